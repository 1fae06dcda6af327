"""The kind `queue`: queues that clients or operators have declared, with rules of their own.

A declaration sets keys of policies. For these keys it wins over the policy that matches the queue
(`DeclaredQueues.under`). A queue that is not declared exists from its first use on.

Surprising: a declaration is parsed when its queue is first used, because there may be a hundred thousand of them.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from qmq.access.rules import RESERVED_NAMES
from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.routing.table import RoutingTable
from qmq.config import DestinationPolicy
from qmq.config.definition_values import check_replicas, join_declared, read_queue
from qmq.config.destinations.declared import DECLARED_BY, QueueLifetime
from qmq.config.destinations.policy import is_exchange, last_queue, too_long
from qmq.definitions.definition import Key, text_of
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import ConfigError, Refused
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.live import LiveDefinitions, Value
from qmq.settings.definitions.paused_queues import KINDS as PAUSES

KIND: Final = "queue"

BINDING: Final = "binding"
"""The kind of definitions that name a queue to copy to (`qmq.settings.routing`)."""

DECLARED_OTHERWISE: Final = "declared-otherwise"

CACHED_MAX: Final = 16_384
"""Parsed declarations, by their text; at the bound they are forgotten."""

GATEWAY_KEYS: Final = ("durable", "ttl_seconds", "priority", "receipt", "ack_level", "schema")
"""Keys that change what a SEND or an ACK means: plans of gateways must be made again."""

log = logging.getLogger("qmq.definitions")


Follower = Callable[[Iterable[str]], None]
"""Called with queues. It returns at once."""


@dataclass(eq=False, repr=False)
class DeclaredQueues:
    """See `DefinitionKind`. `texts`: queue → its declaration, as canonical JSON.

    `routing` is live. `check_room` raises Refused when this user may declare no more queues.
    """

    names_destinations = True

    _broker: Broker
    _mesh: Mesh
    _membership: Membership
    _node: NodeBasics
    _definitions: LiveDefinitions
    _routing: RoutingTable
    _check_room: Callable[[str], None]

    def __post_init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._changed: tuple[Follower, ...] = ()
        self._deleted: tuple[Follower, ...] = ()
        self._replan: Callable[[], None] = lambda: None
        # Text → what it says as a policy; None for what this version does not understand.
        self._parsed: dict[str, DestinationPolicy | None] = {}
        # (pattern, text) → the policy of that pattern, and what applies to such queues.
        self._joined: dict[tuple[str, str], tuple[DestinationPolicy, DestinationPolicy]] = {}
        self._definitions.follow(KIND, self)
        self._take(one.key.name for one in self._definitions.of_kind(KIND))

    def follow(self, changed: tuple[Follower, ...], deleted: tuple[Follower, ...], replan: Callable[[], None]) -> None:
        """Call these from now on: with queues whose declaration has changed or was deleted, with those of which it was
        deleted, and, before, when plans of gateways must be made again.
        """
        self._changed, self._deleted, self._replan = changed, deleted, replan

    def begin(self) -> None:
        """At a start: let followers know all declarations."""
        self._report(self._changed, list(self.texts))

    def under(self, queue: str, policy: DestinationPolicy) -> DestinationPolicy:
        """What applies to `queue`, where `policy` matches it. Queues with the same of both share one object."""
        text = self.texts.get(queue)
        if text is None:
            return policy
        known = self._joined.get((policy.pattern, text))
        if known is None or known[0] is not policy:
            declared = self._policy(queue, text)
            joined = policy
            if declared is not None:
                # With a pattern of its own, because policies are distinguished by pattern.
                joined = join_declared(policy, declared).replace({"pattern": f"{policy.pattern} {text}"})
            if len(self._joined) >= CACHED_MAX:
                self._joined.clear()
            known = self._joined[policy.pattern, text] = (policy, joined)
        return known[1]

    def value_of(self, queue: str) -> dict[str, Any] | None:
        """What is declared of `queue`; None: it is not declared."""
        text = self.texts.get(queue)
        if text is None:
            return None
        value: dict[str, Any] = json.loads(text)
        return value

    def lifetime(self, queue: str) -> QueueLifetime | None:
        """Until when the queue exists; None: it is not declared, or until it is deleted."""
        text = self.texts.get(queue)
        return None if text is None else _lifetime(text)

    def owner_of(self, queue: str) -> str:
        """The user that declared the queue first; "": it is not declared, or by none with a name."""
        text = self.texts.get(queue)
        return "" if text is None or DECLARED_BY not in text else _owner(text)

    def begun_by(self, queue: str) -> str | None:
        """The user that declared the queue first, "" for none. None: it is not declared."""
        return self.owner_of(queue) if queue in self.texts else None

    def may_own(self, queue: str, user: str | None) -> bool:
        """Whether the queue, which belongs to no user, can belong to this one."""
        return user is not None and user not in RESERVED_NAMES and self.begun_by(queue) == ""

    def is_own(self, queue: str, user: str | None) -> bool:
        """Whether this user has declared the queue, or none has. One that was declared without login is no user's."""
        return queue not in self.texts or (user is not None and self.owner_of(queue) == user)

    def dead_letters_of(self, queue: str, value: Value) -> str:
        """Where the queue's messages go by this declaration, with any key unless it is fixed; "": nowhere.

        Messages that are dropped by an `overflow` go where the policy says, if the declaration does not.
        """
        rules = join_declared(self._node.settings.destinations.policy_of(queue), read_queue(queue, value)[0])
        if not rules.keeps_dropped or ("dead_letter" not in value and value.get("overflow", "refuse") == "refuse"):
            return ""
        if is_exchange(rules.dead_letter) and rules.dead_letter_routing_key is None:
            return f"{rules.dead_letter}/*"
        return rules.dead_letter_target

    def with_owner(self, queue: str, value: Value, user: str | None) -> Value:
        """The declaration that `user` makes. A queue that is declared keeps the user that it has.

        Raises Refused if this user may declare no more queues.
        """
        others = {key: one for key, one in value.items() if key != DECLARED_BY}
        owner = self.owner_of(queue)
        if queue not in self.texts and user is not None and user not in RESERVED_NAMES:
            self._check_room(user)
            owner = user
        return {**others, DECLARED_BY: owner} if owner else others

    def definitions_of(self, queue: str) -> list[Key]:
        """Everything that is defined of `queue`: its declaration, its pause, and bindings to it."""
        keys = [Key(KIND, queue)] if queue in self.texts else []
        pauses = [Key(kind, queue) for kind in PAUSES]
        keys += [pause for pause in pauses if self._definitions.table.get(pause) is not None]
        return keys + [Key(BINDING, one.name) for one in self._routing.bindings_to(queue)]

    def check_deletion(self, queue: str) -> None:
        """Raises Refused if the definitions of `queue` cannot be deleted."""
        self._definitions.check(dict.fromkeys(self.definitions_of(queue)))

    async def delete(
        self, queue: str, user: str | None, *, guard: Callable[[], None] | None = None, is_dry_run: bool = False
    ) -> dict[str, Any]:
        """Delete what is defined of `queue`, in one change: whether it was `declared`, how many `bindings` it had, and
        how many definitions have `changed`, or would in a dry run.

        One that is not declared here is deleted, too, unless all members say that it is not: it may be, elsewhere.
        """
        changes: dict[Key, None] = {}
        found: list[Key] = []

        def decide() -> None:
            if guard is not None:
                guard()
            # Again in its turn: others may bind and unbind while this change waits.
            changes.clear()
            found[:] = self.definitions_of(queue)
            changes.update(dict.fromkeys([Key(KIND, queue), *found]))

        found += self.definitions_of(queue)
        changes.update(dict.fromkeys([Key(KIND, queue), *found]))
        marked = None if found else ()
        report = await self._definitions.change(
            changes, user, guard=decide, deletes_unknown=True, marked=marked, is_dry_run=is_dry_run
        )
        kinds = [key.kind for key in found]
        return {"declared": KIND in kinds, "bindings": kinds.count(BINDING), "changed": report.changed}

    async def declare(
        self, queue: str, value: Value, user: str | None, check: Callable[[], object], *, quorum: bool = False
    ) -> dict[str, Any]:
        """Declare a queue; durable here on return. What has `changed`, 0 or 1, and `quorum` if that was asked for.

        Raises Refused for a bad value, and what `check` raises in the moment of the change.
        """
        changes: dict[Key, Value | None] = {Key(KIND, queue): self.with_owner(queue, value, user)}

        def guard() -> None:
            # Here, because another client may declare it while this change waits.
            check()
            changes[Key(KIND, queue)] = self.with_owner(queue, value, user)

        return (await self._definitions.change(changes, user, quorum=quorum, guard=guard)).facts

    def check_same(self, queue: str, value: Value, *, is_replacing: bool) -> bool:
        """Whether the queue is declared so already.

        Raises Refused for a bad value, and unless `is_replacing`, for a queue that is declared otherwise.
        """
        new, known = self._checked(queue, value), self.value_of(queue)
        self._check_dead_letter(queue, {queue: new})
        new.pop(DECLARED_BY, None)
        if known is not None:
            known.pop(DECLARED_BY, None)
        if known is None or is_replacing or new == known:
            return new == known
        differing = [
            f"{name} is {_said(known, name)}, requested: {_said(new, name)}"
            for name in sorted({*new, *known})
            if new.get(name) != known.get(name)
        ]
        raise Refused(DECLARED_OTHERWISE, f"{queue} is declared: {'; '.join(differing)}. See replace:true.")

    # The kind

    def check(self, changes: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
        checked = {name: None if value is None else self._checked(name, value) for name, value in changes.items()}
        for name in checked:
            self._check_dead_letter(name, checked)
        return checked

    def changed(self, names: Collection[str]) -> None:
        before = [self.texts.get(name, "") for name in names]
        self._take(names)
        texts = [*before, *(self.texts.get(name, "") for name in names)]
        creates = self._node.settings.destinations.create_on_use
        if not creates or any(key in text for key in GATEWAY_KEYS for text in texts):
            self._replan()
        queues = self._broker.queues
        queues.rules_changed([queue for name in names if (queue := queues.by_name.get(name)) is not None])
        self._report(self._changed, names)
        self._report(self._deleted, [name for name in names if name not in self.texts])

    # Inside

    def _report(self, followers: tuple[Follower, ...], queues: Collection[str]) -> None:
        for follower in followers:
            follower(queues)

    def _take(self, names: Iterable[str]) -> None:
        for name in names:
            found = self._definitions.get(Key(KIND, name))
            if found is None or found.text is None:
                self.texts.pop(name, None)
            else:
                self.texts[name] = found.text

    def _policy(self, queue: str, text: str) -> DestinationPolicy | None:
        if text not in self._parsed:
            if len(self._parsed) >= CACHED_MAX:
                self._parsed.clear()
            try:
                self._parsed[text] = read_queue(queue, json.loads(text))[0]
            except ConfigError as error:
                # Written by a later version of the software.
                log.error("! %s: its declaration has no effect: %s", queue, error)
                self._parsed[text] = None
        return self._parsed[text]

    def _checked(self, queue: str, value: Value) -> dict[str, Any]:
        """The canonical form. Raises Refused."""
        bytes_max = self._node.settings.limits.destination_bytes_max
        if why := too_long(queue, bytes_max):
            raise Refused("destination-too-long", f"{KIND} {queue:.64}…: the name {why}")
        is_queue = kind_of(queue, bytes_max) is DestinationKind.QUEUE and queue.startswith("/queue/")
        if not is_queue or is_pattern(queue):
            raise Refused("bad-definition", f"{KIND} {queue}: the name must be that of one queue, /queue/NAME")
        try:
            policy, values = read_queue(queue, value)
            check_replicas(f"{KIND} {queue}", policy, len(self._membership.voting_peers))
        except ConfigError as error:
            raise Refused("bad-definition", "; ".join(error.diagnostics)) from error
        for (key, *_), name in policy.named_queues():
            if why := too_long(name, bytes_max):
                raise Refused("bad-definition", f"{KIND} {queue}: {key}: {why}")
        text_of(Key(KIND, queue), values)
        return values

    def _check_dead_letter(self, queue: str, changes: Mapping[str, Value | None]) -> None:
        """Raises Refused if the dead letters of `queue` have no queue after all `changes`."""
        dead_letter = (changes[queue] or {}).get("dead_letter", "")
        last = last_queue(dead_letter)
        is_declared = changes[last] is not None if last in changes else last in self.texts
        if dead_letter and not is_declared and not self._node.settings.destinations.exists(last):
            raise Refused(
                "bad-definition",
                f"{KIND} {queue}: dead_letter = {dead_letter}: must be declared, because create_on_use is false",
            )

    def reaches_all(self) -> bool:
        """Whether all nodes are linked: a client that declares before each use need not ask them each time."""
        return set(self._membership.peers) <= set(self._mesh.followers())


@lru_cache(CACHED_MAX)
def _owner(text: str) -> str:
    owner = json.loads(text).get(DECLARED_BY)
    return owner if isinstance(owner, str) else ""


@lru_cache(CACHED_MAX)
def _lifetime(text: str) -> QueueLifetime | None:
    if not any(key in text for key in QueueLifetime.keys()):
        return None
    value = json.loads(text)
    try:
        return QueueLifetime.read({key: value[key] for key in QueueLifetime.keys() if key in value})
    except ValueError:
        return None


def _said(value: Mapping[str, Any], name: str) -> str:
    return json.dumps(value[name]) if name in value else "not set"
