"""What single queues were like in the last hour: a sample every SAMPLE_SECONDS, in memory of fixed size.

There may be a million queues, so few have a history: the DEEPEST ones, since an operator looks at those and wants to
know what was before, and all that were looked at. A queue keeps its history for an hour after it was last one of them.
Peers do not keep it: of a node that has ended it is lost.
"""

from typing import ClassVar, Final

import trio

from qmq.admin.console.queue_pages import ConsoleCall
from qmq.admin.console.samples import SAMPLES, TimeSeries, check_samples
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.facts.queue_search import DEPTH, QueueSearch
from qmq.admin.facts.totals import SINCE, Row
from qmq.environment import Environment
from qmq.errors import CorruptLog, LogBroken
from qmq.mesh.peers.calls import Facts, Text

DEEPEST: Final = 10
QUEUES_MAX: Final = 50
"""Queues with a history, 14 KB each; those that were wanted longest ago go."""

CHOSEN_SECONDS: Final = 60.0
"""Between two looks which queues are the deepest: of a million queues each takes half a second."""

KEPT_SECONDS: Final = 3600.0

SERIES: Final = ("waiting", "in_flight", "accepted", "acknowledged")
"""The last two are growth in the interval."""


class QueueHistoryCall(ConsoleCall[Facts], frozen=True):
    """The samples of a queue that a node has."""

    name: ClassVar = "queue-history"
    queue: Text

    def check(self, reply: Facts) -> None:
        check_samples(reply, SERIES)


class QueueHistory:
    """Those of this node. `sample` is called every SAMPLE_SECONDS."""

    def __init__(self, environment: Environment, catalog: QueueCatalog) -> None:
        self._environment = environment
        self._catalog = catalog
        self._chosen_at = float("-inf")
        self._wanted_at: dict[str, float] = {}
        self._samples: dict[str, TimeSeries] = {}
        self._before: dict[str, tuple[int, ...]] = {}

    async def sample(self) -> None:
        """Without a store that answers there is no sample."""
        try:
            await self._choose(trio.current_time())
            rows = {str(row["destination"]): row for row in await self._catalog.rows(list(self._wanted_at))}
        except (CorruptLog, LogBroken, OSError):
            return
        now_us = self._environment.now_us()
        before, self._before = self._before, {}
        self._samples = {name: kept for name, kept in self._samples.items() if name in self._wanted_at}
        for name in self._wanted_at:
            row = rows.get(name, {})
            counts = self._before[name] = _counts(row)
            known = before.get(name)
            if known is not None:
                # Where the counting has begun again, all that is counted is new.
                growth = [now - then * (known[0] == counts[0]) for then, now in zip(known[1:], counts[1:], strict=True)]
                messages, in_flight = int(row.get("messages", 0)), int(row.get("in_flight", 0))
                samples = self._samples.setdefault(name, TimeSeries(SERIES))
                samples.add((now_us, max(0, messages - in_flight), in_flight, *growth))

    async def _choose(self, now: float) -> None:
        if now >= self._chosen_at + CHOSEN_SECONDS:
            self._chosen_at = now
            deepest, _ = await self._catalog.first(QueueSearch(DEPTH, is_reversed=True, count=DEEPEST))
            for name, messages in deepest:
                if messages:
                    self._wanted_at[name] = now
        latest = sorted(self._wanted_at.items(), key=lambda one: -one[1])[:QUEUES_MAX]
        self._wanted_at = {name: at for name, at in latest if now < at + KEPT_SECONDS}

    def here(self, call: QueueHistoryCall) -> Facts:
        """The reply of this node. From now on it has samples of this queue."""
        if len(self._wanted_at) < 2 * QUEUES_MAX or call.queue in self._wanted_at:
            self._wanted_at[call.queue] = trio.current_time()
        return self._samples.get(call.queue, TimeSeries(SERIES)).facts(SAMPLES)


def _counts(row: Row) -> tuple[int, ...]:
    """Since when a queue is counted, and what has grown since."""
    return tuple([int(row.get(name, 0)) for name in (SINCE, "accepted", "acknowledged")])
