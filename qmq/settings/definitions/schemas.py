"""The kind `schema`: Avro schemas that policies and declared queues name, and by which bodies of SENDs are checked.

A definition is a schema in JSON, with everything that consumers need of it, such as defaults and comments.
`qmq.wire.avro.schema` knows which schemas are allowed.

A change after which a policy or a declaration would name a schema that does not exist is refused. Node files, and two
sides of a network partition, can still lead to that. SENDs to such destinations are refused, and the condition
`schema-missing` names the schema.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass
from itertools import chain
from typing import Final

from qmq.config import DestinationPolicy
from qmq.config.destinations.policy import MESSAGE_SCHEMA, SCHEMA_NAME_RULE, is_schema_name
from qmq.definitions.definition import Key
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.gateways.rules import BodyCheck, Rules
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.kinds import SimpleKind, Value
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.policies import KIND as POLICY
from qmq.wire.avro import AvroSchema, read_schema

SCHEMA: Final = "schema"

MISSING: Final = "schema-missing"
"""Code of the condition, and of refused SENDs."""

IN_USE: Final = "schema-in-use"

SCHEMAS_MAX: Final = 1000


@dataclass(eq=False, repr=False)
class SchemaDefinitions:
    """Schemas of the mesh; adds their kind to the definitions. `policy_of`: what applies, declarations included."""

    _node: NodeBasics
    _definitions: LiveDefinitions
    declared: InitVar[DeclaredQueues]
    _policy_of: Callable[[str], DestinationPolicy]
    _rules: Rules

    def __post_init__(self, declared: DeclaredQueues) -> None:
        self._declared_queues = declared
        # None: this version cannot read it.
        self._schemas: dict[str, AvroSchema | None] = {}
        # Declared queue → the schema that its declaration names.
        self._declared: dict[str, str] = {}
        # Schema → how many of those name it. A client may declare many queues one by one.
        self._count: Counter[str] = Counter()
        self._missing = ConditionGroup(self._node, MISSING)
        self._definitions.follow(SCHEMA, SimpleKind(checked_schema, self._changed), fits=self._check_fit)
        self._read(self._definitions.values(SCHEMA))

    def value_of(self, name: str) -> Value:
        """The schema as it was defined. Raises Refused if there is none."""
        value = self._definitions.value(Key(SCHEMA, name))
        if value is None:
            raise Refused("unknown-schema", f"There is no schema {name}.")
        return value

    def declarations_changed(self, queues: Iterable[str]) -> None:
        """The declarations of these queues have changed, or are known since the start."""
        declared = self._declared_queues
        before = set(self._count)
        for queue in queues:
            # Most declarations name none, and need not be parsed.
            value = declared.value_of(queue) if SCHEMA in declared.texts.get(queue, "") else None
            name, known = None if value is None else value.get(SCHEMA), self._declared.pop(queue, None)
            if known is not None:
                self._count[known] -= 1
            if isinstance(name, str):
                self._declared[queue] = name
                self._count[name] += 1
        self._count = +self._count
        if before != self._count.keys():
            self.follow()

    def follow(self) -> None:
        """Policies, declarations or schemas have changed. The caller raises the generation of the rules."""
        named = {*self._count, *(name for _, name in self._named())}
        self._rules.check_bodies(self._check_of if named else None)
        missing = [name for name in named if self._schemas.get(name) is None]
        self._missing.show([f"SENDs are refused: {_missing_text(name)}" for name in missing])

    # Inside

    def _changed(self, names: Collection[str]) -> None:
        definitions = self._definitions
        self._read({name: definitions.value(Key(SCHEMA, name)) for name in names})
        self._rules.replan()
        self.follow()

    def _read(self, values: Mapping[str, Value | None]) -> None:
        for name, value in values.items():
            self._schemas.pop(name, None)
            if value is not None:
                try:
                    self._schemas[name] = read_schema(value)
                except ValueError:
                    # Written by a later version of the software.
                    self._schemas[name] = None

    def _check_of(self, destination: str) -> BodyCheck | None:
        """What bodies of SENDs to the destination are checked with. Raises Refused if its schema is missing."""
        name = self._policy_of(destination).schema
        if name is None:
            return None
        schema = self._schemas.get(name)
        if schema is None:
            raise Refused(MISSING, f"{destination} takes no message now: {_missing_text(name)}.")

        def check(body: bytes) -> int:
            try:
                return schema.check_body(body)
            except ValueError as error:
                raise Refused("bad-body", f"The body does not fit the schema {name}: {error}.") from None

        return check

    def _check_fit(self, changes: Mapping[Key, Value | None]) -> None:
        """Refuse changes after which something would name no schema."""
        is_expected = self._definitions.is_expected
        here = {key.name for key, value in changes.items() if key.kind == SCHEMA and value is not None}
        deleted = {key.name for key, value in changes.items() if key.kind == SCHEMA and value is None}
        for key, value in changes.items():
            name = value.get(SCHEMA) if value is not None and key.kind in (POLICY, QUEUE) else None
            is_known = name in {*here, *self._schemas} and name not in deleted
            if name is not None and not is_known and not is_expected(key):
                problem = f'{SCHEMA} = "{name}": there is no such schema: define it first, or with it'
                raise Refused("bad-definition", f"{key}: {problem}")
        if len({*self._schemas, *here} - deleted) > max(SCHEMAS_MAX, len(self._schemas)):
            raise Refused("too-many-definitions", f"There are {SCHEMAS_MAX} schemas at most.")
        declared = ((Key(QUEUE, queue), name) for queue, name in self._declared.items())
        for user, name in chain(self._named(), declared) if deleted else ():
            if name in deleted and user not in changes:
                raise Refused(IN_USE, f"{SCHEMA} {name} is named by {user}: change that first, or with it")

    def _named(self) -> Iterable[tuple[Key, str]]:
        for policy in self._node.settings.destinations.policies:
            if policy.schema is not None:
                yield Key(POLICY, policy.pattern), policy.schema


def _missing_text(name: str) -> str:
    return f"the schema {name} is not defined, or this version cannot read it"


def checked_schema(name: str, value: Value) -> Value:
    """The canonical form of a definition. Raises Refused."""
    if not is_schema_name(name):
        raise Refused(
            "bad-definition", f"{SCHEMA} {name}: the name must have {SCHEMA_NAME_RULE}, and not be {MESSAGE_SCHEMA}"
        )
    try:
        read_schema(value)
    except ValueError as error:
        raise Refused("bad-definition", f"{SCHEMA} {name}: {error}") from error
    return value
