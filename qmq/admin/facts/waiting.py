"""How many queue messages of a node wait: those that it serves, that are not settled, and that no consumer has.

No counter is kept: messages enter, leave, are lent and change their server at many places, and an error would stay.
What memory and store have is counted instead, when a client asks. The store sums the counters of its queues in a
worker thread. It is a checkpoint behind, so two numbers make up for that: messages in memory that it does not have
yet, and messages that it has although they are settled (`qmq.broker.queues.paging.pager`).
"""

from typing import Final

from qmq.broker.queues.paging.pending_deletes import Record
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.single_flight import SingleFlight
from qmq.engine.turns import in_turns
from qmq.errors import CorruptLog, LogBroken
from qmq.model.dots import Origin, Vector

KEPT_FROM_SECONDS: Final = 0.01
"""A number that was found in less time is found again for the next client."""

WAIT_SECONDS: Final = 1.0
"""After this time clients get the number before: the database of the store may not answer."""

TURN_MESSAGES: Final = 20_000
"""Looked at in one turn of the event loop, one or two milliseconds."""

READS_MAX: Final = 3
"""How often the store is read again because a checkpoint has ended meanwhile. After that what it took counts twice."""


class WaitingMessages:
    """Those of one node."""

    def __init__(self, engine: EngineParts, tasks: Tasks) -> None:
        self._engine = engine
        self._counted = SingleFlight(tasks, self._count, 0, short_seconds=KEPT_FROM_SECONDS)

    async def count(self) -> int:
        """The number now, or the last one if it is recent or the store does not answer."""
        try:
            return await self._counted.refresh(WAIT_SECONDS)
        except (CorruptLog, LogBroken, OSError):
            return self._counted.value

    async def _count(self) -> int:
        """Exact while nothing happens; else some messages are counted before others."""
        queues = self._engine.broker.queues
        stored = await self._only_stored() if queues.has_stored else 0
        in_flight = 0
        async for part in in_turns(queues.deliveries.values(), TURN_MESSAGES):
            in_flight += sum([one.message.owner is None and not one.message.settled for one in part])
        lent = sum(map(len, queues.owned.lent.values()))
        return max(0, stored + queues.owned.in_memory + queues.shared.memory_messages - in_flight - lent)

    async def _only_stored(self) -> int:
        """Messages that are not settled and not in memory."""
        engine, owned, paging = self._engine, self._engine.broker.queues.owned, self._engine.broker.queues.paging
        for _ in range(READS_MAX):
            vector = engine.store.stored_vector
            count = await engine.environment.run_blocking(engine.served_rows().total)
            if engine.store.stored_vector is vector:
                break
        own = paging.origin
        async for settled in in_turns(paging.pending_deletes, TURN_MESSAGES):
            count -= sum([_is_in_store(*one[1:], vector, own) for one in settled])
        for origin in list(owned.by_origin):
            have = vector.get(origin, 0)
            async for sequences in in_turns(owned.by_origin.get(origin, ()), TURN_MESSAGES):
                count -= sum([sequence <= have for sequence in sequences])
        return count


def _is_in_store(origin: Origin, sequence: int, record: Record, vector: Vector, own: Origin) -> bool:
    """Whether a store with what `vector` covers still has this message, which `record` has settled."""
    if sequence > vector.get(origin, 0):
        return False
    if isinstance(record, int):
        return record == 0 or record > vector.get(own, 0)
    return record.sequence > vector.get(record.origin, 0)
