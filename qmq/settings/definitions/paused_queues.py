"""Queues whose delivery or acceptance an operator has paused, on all nodes: a kind of definition for each of the two.

A pause is a definition, so it survives restarts and reaches nodes that were away. Each part is one by itself, so two
operators may change both at once, on two nodes. Each node applies it through the rules of the queue. The owner of a
message alone decides about its delivery: what is lent already is not stopped.

Surprising: a definition of the kind `pause` of earlier builds has both parts. It is read, not written: the next request
about its queue replaces it.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from qmq.broker.consumers.outcome import Outcome
from qmq.definitions.definition import Key
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.settings.definitions.kinds import SimpleKind, Value
from qmq.settings.definitions.live import LiveDefinitions

QUEUES_AT_ONCE: Final = 100
"""Queues that are dispatched before other tasks get a turn."""


class Pause(NamedTuple):
    """Which parts of a queue are paused."""

    delivery: bool
    acceptance: bool


NOT_PAUSED: Final = Pause(False, False)

BOTH: Final = "pause"
"""The kind of earlier builds: its value says which parts are paused."""

KINDS: Final = (*(f"pause-{part}" for part in Pause._fields), BOTH)


class PausedQueues:
    """The pauses of all queues; adds its kind to the definitions."""

    def __init__(self, engine: EngineParts, node: NodeBasics, definitions: LiveDefinitions) -> None:
        self._engine = engine
        self._node = node
        self._definitions = definitions
        for kind in KINDS:
            check = partial(checked_pause, kind)
            definitions.follow(kind, SimpleKind(check, self._changed, names_destinations=True))

    def of(self, queue: str) -> Pause:
        """What is paused of this queue."""
        value = self._definitions.value
        both = value(Key(BOTH, queue)) or {}
        parts = Pause._fields
        return Pause(*[value(Key(f"pause-{part}", queue)) is not None or both.get(part) is True for part in parts])

    def parts(self, queue: str) -> str:
        """The names of the paused parts, as lists show them; "": nothing is paused."""
        return ",".join([part for part, is_paused in self.of(queue)._asdict().items() if is_paused])

    def names(self) -> set[str]:
        return {found.key.name for kind in KINDS for found in self._definitions.of_kind(kind)}

    async def set(
        self, queue: str, parts: Mapping[str, bool], user: str | None, *, is_dry_run: bool = False
    ) -> dict[str, Any]:
        """Pause or resume these parts of `queue` on all nodes; durable here on return. What is paused then, and whether
        that has `changed`, 0 or 1; in a dry run, what would be. Raises Refused.
        """
        definitions, both = self._definitions, Key(BOTH, queue)
        changes: dict[Key, Value | None] = {}

        def decide() -> None:
            # Again in its turn: another request may have replaced what an earlier build has written.
            is_old = definitions.get(both) is not None
            then = self.of(queue)._replace(**parts)._asdict() if is_old else parts
            changes.clear()
            changes.update({Key(f"pause-{part}", queue): {} if flag else None for part, flag in then.items()})
            if is_old:
                changes[both] = None

        decide()
        report = await definitions.change(changes, user, guard=decide, deletes_unknown=True, is_dry_run=is_dry_run)
        then = self.of(queue)._replace(**parts) if is_dry_run else self.of(queue)
        return {**then._asdict(), "changed": min(1, report.changed)}

    def _changed(self, names: Collection[str]) -> None:
        queues = self._engine.broker.queues
        queues.rules_changed([queue for name in names if (queue := queues.by_name.get(name)) is not None])
        self._node.spawn(partial(self._dispatch, list(names)))

    async def _dispatch(self, names: list[str]) -> None:
        """What waits in queues that are resumed is delivered."""
        engine = self._engine
        queues = engine.broker.queues
        for start in range(0, len(names), QUEUES_AT_ONCE):
            await engine.path.commit_slot()
            out = Outcome(now_us=engine.environment.now_us())
            for name in names[start : start + QUEUES_AT_ONCE]:
                if (queue := queues.by_name.get(name)) is not None:
                    queues.dispatch(queue, out)
            engine.path.submit(out)


def checked_pause(kind: str, name: str, value: Value) -> Value:
    """Raises Refused for a bad definition."""
    if not name.startswith("/queue/") or "*" in name or "#" in name:
        raise Refused("bad-definition", f"{kind} {name}: the name must be that of one queue")
    is_old = kind == BOTH
    are_flags = value.keys() <= set(Pause._fields) and all(type(flag) is bool for flag in value.values())
    if is_old and not (are_flags and any(value.values())) or value and not is_old:
        must = "have delivery or acceptance, true or false" if is_old else "be empty, {}"
        raise Refused("bad-definition", f"{kind} {name}: the value must {must}")
    return value
