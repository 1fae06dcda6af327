"""The kind `pause`: queues whose delivery or acceptance an operator has paused, on all nodes.

A pause is a definition, so it survives restarts and reaches nodes that were away. Each node applies it through the
rules of the queue. The owner of a message alone decides about its delivery: what is lent already is not stopped.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from qmq.broker.consumers.outcome import Outcome
from qmq.definitions.definition import Key
from qmq.engine.runtime.contexts import Committing, Engine, Tasks
from qmq.errors import Refused
from qmq.settings.definitions.kinds import SimpleKind, Value
from qmq.settings.definitions.live import LiveDefinitions

KIND: Final = "pause"

QUEUES_AT_ONCE: Final = 100
"""Queues that are dispatched before other tasks get a turn."""


class Pause(NamedTuple):
    """Which parts of a queue are paused."""

    delivery: bool
    acceptance: bool


NOT_PAUSED: Final = Pause(False, False)


class PauseContext(Engine, Committing, Tasks, Protocol):
    definitions: LiveDefinitions


class PausedQueues:
    """The pauses of all queues; adds its kind to the definitions."""

    def __init__(self, context: PauseContext) -> None:
        self._context = context
        context.definitions.kinds[KIND] = SimpleKind(_checked, self._changed, names_destinations=True)

    def of(self, queue: str) -> Pause | None:
        """What is paused of this queue; None: nothing."""
        found = self._context.definitions.table.get(Key(KIND, queue))
        value = None if found is None else found.value
        return None if value is None else Pause(value.get("delivery") is True, value.get("acceptance") is True)

    def parts(self, queue: str) -> str:
        """The names of the paused parts, as lists show them; "": nothing is paused."""
        paused = self.of(queue)
        return "" if paused is None else ",".join([part for part, is_paused in paused._asdict().items() if is_paused])

    def names(self) -> list[str]:
        return [found.key.name for found in self._context.definitions.table.of_kind(KIND)]

    async def set(self, queue: str, parts: Mapping[str, bool], user: str | None) -> dict[str, Any]:
        """Pause or resume these parts of `queue` on all nodes; durable here on return. What is paused then, and how
        many definitions have `changed`, 0 or 1. Raises Refused.
        """
        changes: dict[Key, Value | None] = {}

        def decide() -> None:
            # Again in its turn: another client may pause or resume another part while this change waits.
            changes[Key(KIND, queue)] = self.after(queue, parts)

        decide()
        report = await self._context.definitions.change(changes, user, guard=decide, deletes_unknown=True)
        return {**(changes[Key(KIND, queue)] or NOT_PAUSED._asdict()), "changed": report.changed}

    def after(self, queue: str, parts: Mapping[str, bool]) -> dict[str, bool] | None:
        """What is paused of this queue when these parts are paused or resumed; None: nothing."""
        pause = (self.of(queue) or NOT_PAUSED)._replace(**parts)
        return None if pause == NOT_PAUSED else pause._asdict()

    def _changed(self, names: Collection[str]) -> None:
        queues = self._context.broker.queues
        queues.rules_changed([queue for name in names if (queue := queues.by_name.get(name)) is not None])
        self._context.spawn(partial(self._dispatch, list(names)))

    async def _dispatch(self, names: list[str]) -> None:
        """What waits in queues that are resumed is delivered."""
        context = self._context
        queues = context.broker.queues
        for start in range(0, len(names), QUEUES_AT_ONCE):
            await context.commit_slot()
            out = Outcome(now_us=context.environment.now_us())
            for name in names[start : start + QUEUES_AT_ONCE]:
                queue = queues.by_name.get(name)
                if queue is not None:
                    queues.dispatch(queue, out)
            context.submit(out)


def _checked(name: str, value: Value) -> Mapping[str, bool]:
    """Raises Refused for a bad definition."""
    if not name.startswith("/queue/") or "*" in name or "#" in name:
        raise Refused("bad-definition", f"{KIND} {name}: the name must be that of one queue")
    unknown = value.keys() - set(Pause._fields)
    if unknown or not all(type(flag) is bool for flag in value.values()) or not any(value.values()):
        raise Refused("bad-definition", f"{KIND} {name}: the value must have delivery or acceptance, true or false")
    return {field: bool(value.get(field)) for field in Pause._fields}
