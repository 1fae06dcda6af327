"""All queues of this node: how many, the first ones in any order, and the rows of some of them.

Everything that lists queues asks here, so other parts need not know whether the messages of a queue are in memory or
only in the store. No order of all queues is kept: it would cost memory and time for each queue, and a search for the
first ones in one order takes less than a second for a million queues (`queue_search`).

The rows of one page are filled in on the event loop. Each is correct for the moment in which it is made, but for the
messages in flight, which are counted before.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from itertools import chain
from typing import Final

import trio

from qmq.admin.facts.queue_search import DEPTH, NAME, Found, QueueSearch, first_queues, sizes_of
from qmq.admin.facts.totals import Row, row_totals
from qmq.broker.queues.dispatch.queue import Queue
from qmq.engine.checkpoint.queue_ages import oldest_ages_us
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.listed_parts import parts_of
from qmq.engine.runtime.single_flight import SingleFlight
from qmq.engine.turns import in_turns
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.paused_queues import PausedQueues

SEARCHES_AT_ONCE: Final = 2

KEPT_FROM_SECONDS: Final = 0.05
"""What was found in less time is found again for the next client."""

KEPT_MAX: Final = 32
"""Searches whose result is kept, with at most a few thousand names each."""

TURN_DELIVERIES: Final = 10_000
"""Deliveries that are counted in one turn of the event loop, about a millisecond."""

OLDEST_AGE: Final = "oldest_age_us"


class QueueCatalog:
    def __init__(
        self, engine: EngineParts, tasks: Tasks, declared_queues: DeclaredQueues, paused_queues: PausedQueues
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._declared_queues = declared_queues
        self._paused_queues = paused_queues
        self._searching = trio.CapacityLimiter(SEARCHES_AT_ONCE)
        self._kept: dict[QueueSearch, SingleFlight[Found]] = {}

    @property
    def count(self) -> int:
        """How many queues have messages or consumers here, about."""
        queues = self._engine.broker.queues
        return len(queues.by_name) + queues.stored_names.count

    async def first(self, search: QueueSearch) -> tuple[Found, float]:
        """The first queues in this order, and how many seconds ago that was found.

        A search that took long serves all clients for a while. Raises CorruptLog, LogBroken, OSError.
        """
        kept = self._kept.get(search)
        if kept is None:
            self._kept = {one: kept for one, kept in self._kept.items() if not kept.is_old}
            kept = SingleFlight(self._tasks, partial(self._find, search), [], short_seconds=KEPT_FROM_SECONDS)
            if len(self._kept) < KEPT_MAX:
                self._kept[search] = kept
        found = await kept.get()
        return found, 0.0 if kept.began_at is None else trio.current_time() - kept.began_at

    async def names(self, prefix: str, after: str, limit: int) -> tuple[list[str], str]:
        """Up to `limit` names that begin with `prefix` and come after `after`, and the last of them if more follow."""
        search = QueueSearch(NAME, is_reversed=False, count=limit + 1, prefix=prefix, after=after)
        names = [name for name, _ in await self._find(search)]
        return names[:limit], names[limit - 1] if len(names) > limit else ""

    async def _find(self, search: QueueSearch) -> Found:
        async with self._searching:
            more = [*self._declared_queues.texts, *self._paused_queues.names()]
            return await first_queues(self._engine, search, more)

    async def in_memory(self) -> AsyncIterator[list[Queue]]:
        """The queues that are in memory, some hundreds at a time, in turns with other tasks."""
        listed = self._engine.broker.queues.listed
        async for part in parts_of(listed):
            yield listed[part]

    def is_known(self, name: str) -> bool:
        """Whether this queue has a row, wherever else it may have messages."""
        return name in self._engine.broker.queues.by_name or name in self._declared_queues.texts

    async def depth(self, name: str) -> int:
        """Unsettled messages that this node serves, including those in flight and lent."""
        return (await sizes_of(self._engine, [name]))[name][0]

    async def deepest(self, count: int) -> dict[str, tuple[int, int]]:
        """The queues with most messages, the deepest first, with their messages and bytes of bodies."""
        found, _ = await self.first(QueueSearch(DEPTH, is_reversed=True, count=count))
        return await sizes_of(self._engine, [name for name, _ in found])

    async def rows(self, names: list[str], *, with_ages: bool = False) -> list[Row]:
        """The rows of these queues, in this order; none for a queue of which nothing is known.

        `with_ages` adds the age of the oldest message, where there is one.
        """
        engine, queues = self._engine, self._engine.broker.queues
        in_flight = await self._in_flight(names)
        sizes = await sizes_of(engine, names)
        rows: list[Row] = []
        for name in names:
            queue = queues.by_name.get(name)
            row: Row = {"destination": name, "messages": 0, "bytes": 0, "in_flight": 0, "consumers": 0}
            row["messages"], row["bytes"] = sizes[name]
            if queue is not None:
                row["in_flight"] = in_flight.get(name, 0)
                row["consumers"] = len(queue.subscriptions)
            paused = self._paused_queues.parts(name)
            if paused:
                row["paused"] = paused
            declared = self._declared_queues.texts.get(name)
            if declared is not None:
                row["declared"] = declared
            row |= row_totals(engine.broker.totals, name)
            if queue is not None or paused or declared is not None or row["messages"]:
                rows.append(row)
        if with_ages:
            found = [str(row["destination"]) for row in rows]
            ages_us = await oldest_ages_us(engine.broker, engine.environment, engine.served_rows(), found)
            for name, row in zip(found, rows, strict=True):
                if name in ages_us:
                    row[OLDEST_AGE] = ages_us[name]
        return rows

    async def _in_flight(self, names: list[str]) -> Mapping[str, int]:
        """Queue → messages with consumers, lent ones too. Many are counted in turns, some of them before others."""
        queues = self._engine.broker.queues
        counts: Counter[str] = Counter()
        async for part in in_turns(chain.from_iterable(map(queues.in_flight_of, names)), TURN_DELIVERIES):
            counts.update([one.subscription.destination for one in part if one.message.owner is None])
        counts.update(message.envelope.destination for lent in queues.owned.lent.values() for message in lent.values())
        return counts
