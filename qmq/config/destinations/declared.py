"""`[[queues]]`, `[[exchanges]]` and `[[bindings]]`: what a mesh without such definitions begins with.

The keys are those of the declarations at run time. An entry with `locked = true` counts on this node for ever, whatever
the mesh declares under its name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from qmq.auth.credentials import is_name
from qmq.model.routing_names import (
    MATCH,
    MATCHES,
    PREFIX,
    RESERVED,
    TYPES,
    argument_text,
    binding_name,
    exchange_value,
    is_exchange_name,
    is_reserved,
    misplaces_wildcard,
)
from qmq.section import SecondsOrNone, Section, WrongValue

from .policy import KEYS, DestinationPolicy, QueueName, last_queue, read_alternate, read_queue_name, too_long
from .settings import DestinationSettings

OWNER: Final = r"(\S+-[0-9a-f]{16}/[0-9]{1,19})?"


def _read_owner(value: object) -> object:
    if value != "" and not is_name(value):
        raise ValueError("must be the name of a user")
    return value


def _read_connection(value: object) -> object:
    if not isinstance(value, str) or re.fullmatch(OWNER, value) is None:
        raise ValueError("must be a connection, INCARNATION/NUMBER")
    return value


class QueueLifetime(Section):
    """Until when a declared queue exists. By default until it is deleted."""

    auto_delete: bool = False
    """When the last of its consumers in the mesh has left."""
    expires_seconds: SecondsOrNone = 0.0
    """When it was not used for so long; 0: never."""
    exclusive_to_connection: Annotated[str, _read_connection] = ""
    """When that connection ends: its node's incarnation, and its number there. Only it may consume from the queue."""


class QueueOwner(Section):
    """Whose limits a declared queue counts for."""

    declared_by: Annotated[str, _read_owner] = ""
    """The user that declared it first; "": none that has a name."""


DECLARED_BY: Final = "declared_by"

QUEUE_KEYS: Final = (*KEYS["/queue/"], *QueueLifetime.keys())
"""What the declaration of a queue may say."""


class QueueEntry(DestinationPolicy, rename={"pattern": "name"}):
    """One `[[queues]]`. What it does not set is as the policy of the queue says."""

    name_key: ClassVar[str] = "name"
    own_keys: ClassVar[tuple[str, ...]] = ("name", "pattern", "locked", "auto_delete", "expires_seconds")

    pattern: QueueName
    auto_delete: bool = False
    expires_seconds: SecondsOrNone = 0.0

    @property
    def name(self) -> str:
        return self.pattern

    def is_explicit(self, key: str) -> bool:
        return True

    def effective_keys(self) -> Sequence[str]:
        return ("name", *(key for key in self.__struct_fields__ if key in self.set_keys - {"pattern"}))

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        super().check(key, value, seen)
        if key in ("auto_delete", "expires_seconds") and value and seen.get("locked"):
            raise ValueError("must be left out of a locked entry: the queue could not be deleted")


def _read_exchange_name(value: object) -> object:
    if not isinstance(value, str) or not is_exchange_name(value):
        raise ValueError("must have 1 to 127 characters, without slashes, wildcards and blanks")
    return value


def _read_own_name(value: object) -> object:
    if isinstance(value, str) and is_reserved(value):
        raise ValueError(f"must not begin with {RESERVED}: those are predefined")
    return _read_exchange_name(value)


class ExchangeEntry(Section):
    """One `[[exchanges]]`."""

    name: Annotated[str, _read_own_name]
    type: Literal["direct", "topic", "fanout", "headers"]
    alternate: Annotated[str, read_alternate] = ""
    """The exchange that gets what no binding matches; empty: it is dropped."""
    internal: bool = False
    """Clients cannot send to it; bindings from other exchanges can."""
    delayed: bool = False
    """A message waits in its queues for the milliseconds in its header x-delay."""
    locked: bool = False

    @property
    def value(self) -> dict[str, Any]:
        """As the definition has it."""
        return exchange_value(self.type, self.alternate, self.internal, self.delayed)


def _read_source(value: object) -> object:
    if isinstance(value, str):
        kind, name = value[: value.find("/", 1) + 1], value[value.find("/", 1) + 1 :]
        if (
            (kind == PREFIX and is_exchange_name(name))
            or (kind == "/topic/" and name and not misplaces_wildcard(name))
            or (kind == "/fanout/" and name and not {"*", "#"} & set(name))
        ):
            return value
    raise ValueError("must be /topic/NAME or a pattern of topics, /fanout/NAME, or /exchange/NAME")


def _read_target_exchange(value: object) -> object:
    if value != "" and not (
        isinstance(value, str) and value.startswith(PREFIX) and is_exchange_name(value.removeprefix(PREFIX))
    ):
        raise ValueError(f"must be {PREFIX}NAME")
    return value


class BindingEntry(Section):
    """One `[[bindings]]`: its target is `queue` or `exchange`, and the other one is empty."""

    source: Annotated[str, _read_source]
    queue: Annotated[str, lambda value: value if value == "" else read_queue_name(value)] = ""
    exchange: Annotated[str, _read_target_exchange] = ""
    key: str = ""
    arguments: dict[str, str | int | float | bool] = {}
    """For exchanges of type headers. An argument that only has to be there, with any value, is declared at run time."""
    locked: bool = False

    @property
    def source_exchange(self) -> str:
        """The name of the exchange that is the source; "": it is none."""
        return self.source.removeprefix(PREFIX) if self.source.startswith(PREFIX) else ""

    @property
    def target_exchange(self) -> str:
        """The name of the exchange that is the target; "": it is a queue."""
        return self.exchange.removeprefix(PREFIX)

    @property
    def name(self) -> str:
        """Of the definition."""
        return binding_name(self.source, self.queue or self.exchange, self.key, self._texts)

    @property
    def value(self) -> dict[str, Any]:
        """As the definition has it."""
        target = {"queue": self.queue} if self.queue else {"exchange": self.exchange}
        return {"source": self.source, **target, "key": self.key, "arguments": self._texts}

    def effective_keys(self) -> Sequence[str]:
        other = "exchange" if self.queue else "queue"
        return [key for key in self.__struct_fields__ if key != other]

    @property
    def _texts(self) -> dict[str, str | None]:
        return {name: argument_text(self.arguments[name]) for name in sorted(self.arguments)}

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        source = seen.get("source", PREFIX)
        # Without a queue in `seen` what is said of it is wrong, and its own error.
        if key == "exchange" and "queue" in seen and bool(value) is bool(seen["queue"]):
            raise ValueError(
                "must be left out beside queue" if value else "must be /exchange/NAME, or queue /queue/NAME"
            )
        if key in ("exchange", "key", "arguments") and value and not source.startswith(PREFIX):
            what = "messages of exchanges" if key == "exchange" else "exchanges"
            raise ValueError(f"must be left out: it is for {what}, and {source} is none")
        if key == "arguments" and value.get(MATCH, MATCHES[0]) not in MATCHES:
            raise ValueError(f"must have {MATCH} as one of {', '.join(MATCHES)}")


Entry = TypeVar("Entry", QueueEntry, ExchangeEntry, BindingEntry)


def queue_errors(queues: Sequence[QueueEntry], destinations: DestinationSettings, bytes_max: int) -> list[WrongValue]:
    """Names differ; neither they nor those of dead letter queues are too long; dead letter queues exist."""
    found = _twice(queues, "name")
    declared = {one.name for one in queues}
    for number, one in enumerate(queues):
        for place, name in [(("name",), one.name), *one.named_queues()]:
            if why := too_long(name, bytes_max):
                found.append(WrongValue((number, *place), name, why))
        if "dead_letter" not in one.set_keys or not one.dead_letter:
            continue
        last = last_queue(one.dead_letter)
        if last not in declared and not destinations.exists(last):
            problem = "must be one of [[queues]], because create_on_use is false"
            found.append(WrongValue((number, "dead_letter"), one.dead_letter, problem))
    return found


def exchange_errors(exchanges: Sequence[ExchangeEntry]) -> list[WrongValue]:
    """Names differ; alternates exist."""
    names = {one.name: "" for one in exchanges}
    return _twice(exchanges, "name") + [
        WrongValue((number, "alternate"), one.alternate, "must be one of [[exchanges]], or predefined")
        for number, one in enumerate(exchanges)
        if not _is_known(one.alternate, names)
    ]


def binding_errors(
    bindings: Sequence[BindingEntry], exchanges: Sequence[ExchangeEntry], bytes_max: int
) -> list[WrongValue]:
    """No two say the same; their exchanges exist, and the names of their queues are not too long."""
    names = {one.name: "" for one in exchanges}
    long = [
        WrongValue((number, "queue"), one.queue, why)
        for number, one in enumerate(bindings)
        if (why := too_long(one.queue, bytes_max))
    ]
    return [*_twice(bindings, "source"), *long] + [
        WrongValue((number, end), said, "must be one of [[exchanges]], or predefined")
        for number, one in enumerate(bindings)
        for end, said, exchange in (
            ("source", one.source, one.source_exchange),
            ("exchange", one.exchange, one.target_exchange),
        )
        if not _is_known(exchange, names)
    ]


def _is_known(exchange: str, names: Mapping[str, str]) -> bool:
    return not exchange or exchange in names or exchange in [f"{RESERVED}{type}" for type in TYPES]


def _twice(entries: Sequence[Entry], key: str) -> list[WrongValue]:
    first: dict[str, int] = {}
    return [
        WrongValue((number, key), one.name, f"must not have two entries for {one.name}")
        for number, one in enumerate(entries)
        if first.setdefault(one.name, number) != number
    ]
