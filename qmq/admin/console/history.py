"""The last hour of a node and of its peers, in memory of fixed size: samples of counters, one every SAMPLE_SECONDS.

Samples are taken where the console is served: a node without an HTTP listener sleeps until it has work. Such a node
also asks its peers for their latest samples at the same pace and keeps them, because what happened just before a node
ended is in no other place. A node that starts again asks its peers for what they have of it.

Of a counter its growth is kept, of the processor its time in the interval. The times of fsyncs are kept as the 99th
percentile of each interval, read from the buckets of the histogram: so it is the upper bound of a bucket.
"""

import os
import time
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import ClassVar, Final

import trio

from qmq.admin.console.queue_history import QueueHistory
from qmq.admin.console.queue_pages import ConsoleCall
from qmq.admin.console.samples import SAMPLE_SECONDS, SAMPLES, TimeSeries, check_samples
from qmq.admin.facts.waiting import WaitingMessages
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.mesh.peers.calls import Count, Facts, Text
from qmq.mesh.peers.rpc import PeerRpc
from qmq.storage.log.fsync_times import BOUNDS_SECONDS

LATEST: Final = 6
"""Samples that a peer is asked for each time: so some questions may get no answer and nothing is missing."""

COUNTERS: Final = ("accepted", "delivered", "acknowledged", "redelivered", "dead_lettered")
SERIES: Final = (*COUNTERS, "cpu_us", "fsync_p99_us", "connections", "in_flight", "resident_bytes", "waiting")
STATM: Final = Path("/proc/self/statm")

P99: Final = 0.99


class HistoryCall(ConsoleCall[Facts], frozen=True):
    """The last samples of a node, or with `of` those that it has of another one; at most `count`."""

    name: ClassVar = "history"
    of: Text = ""
    count: Count = SAMPLES

    def check(self, reply: Facts) -> None:
        check_samples(reply, SERIES)


class History:
    """Samples of this node, and of its peers. `begin` starts to take them."""

    def __init__(
        self,
        engine: EngineParts,
        beats: Heartbeats,
        sessions: Sized,
        tasks: Tasks,
        rpc: PeerRpc,
        waiting: WaitingMessages,
        of_queues: QueueHistory,
    ) -> None:
        self.of_queues = of_queues
        self._engine = engine
        self._waiting = waiting
        self._beats = beats
        self._sessions = sessions
        self._tasks = tasks
        self._rpc = rpc
        self._node = engine.broker.origin.node
        self._own = TimeSeries(SERIES)
        self._of_peers: dict[str, TimeSeries] = {}
        self._is_asking = False
        self._before: tuple[int, ...] = ()
        self._syncs: list[int] = []

    def begin(self) -> None:
        """Take a sample every SAMPLE_SECONDS from now on."""
        self._before, self._syncs = self._counters(), self._engine.store.journal.sync_times.buckets()
        self._beats.watch(trio.current_time() + SAMPLE_SECONDS, self._sample)

    def _counters(self) -> tuple[int, ...]:
        totals = self._engine.broker.totals.node()
        return (*[getattr(totals, name) for name in COUNTERS], time.process_time_ns() // 1000)

    def _sample(self, now: float) -> float:
        if not self._tasks.is_stopping:
            self._tasks.spawn(self._round)
        return now + SAMPLE_SECONDS

    async def _round(self) -> None:
        self.take(await self._waiting.count())
        await self.of_queues.sample()
        if not self._is_asking:
            await self._ask()

    def take(self, waiting: int) -> None:
        """Take a sample now, with so many messages that wait."""
        counters, syncs = self._counters(), self._engine.store.journal.sync_times.buckets()
        growth = [after - before for before, after in zip(self._before, counters, strict=True)]
        between = [after - before for before, after in zip(self._syncs, syncs, strict=True)]
        in_flight = len(self._engine.broker.queues.deliveries)
        row = (*growth, percentile_us(between, P99), len(self._sessions), in_flight, resident_bytes(), waiting)
        self._own.add((self._engine.environment.now_us(), *row))
        self._before, self._syncs = counters, syncs

    async def _ask(self) -> None:
        """Keep what peers have of themselves; the first time all of it, and what they have of this node."""
        self._is_asking = True
        try:
            is_first = not self._of_peers
            found, missing = await self._rpc.ask(HistoryCall(count=SAMPLES if is_first else LATEST))
            for name, facts in found.items():
                self._of_peers.setdefault(name, TimeSeries(SERIES)).add_later(facts)
            for name in self._of_peers.keys() - found.keys() - set(missing):
                del self._of_peers[name]  # It is no member any more.
            if is_first and found:
                self._own.add_earlier(await self._kept(self._node))
        finally:
            self._is_asking = False

    async def _kept(self, node: str) -> Facts:
        """The most that any peer has of a node."""
        found, _ = await self._rpc.ask(HistoryCall(of=node))
        return max(
            (one for one in found.values()), key=lambda one: len(one["at_us"]), default=TimeSeries(SERIES).facts()
        )

    async def of_silent(self, node: str) -> Facts:
        """The samples of a node that does not answer: what this node has, or else a peer. `at_us` may be empty."""
        kept = self._of_peers.get(node)
        return kept.facts() if kept else await self._kept(node)

    def here(self, call: HistoryCall) -> Facts:
        """The reply of this node.

        `at_us`: the end of each interval; and for each of SERIES as many numbers. Counters and `cpu_us` have their
        growth in the interval. `fsync_p99_us` is 0 where there was no fsync, `resident_bytes` where the system does not
        say it.
        """
        samples = self._own if call.of in ("", self._node) else self._of_peers.get(call.of, TimeSeries(SERIES))
        return samples.facts(call.count)


def resident_bytes() -> int:
    """Memory of this process (Linux, proc_pid_statm(5)); 0 elsewhere."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def percentile_us(buckets: Sequence[int], part: float) -> int:
    """The bound of the bucket in which `part` of the syncs is reached, in microseconds; 0 without any."""
    wanted = sum(buckets) * part
    reached = 0
    for bound, count in zip((*BOUNDS_SECONDS, 2 * BOUNDS_SECONDS[-1]), buckets, strict=True):
        reached += count
        if count and reached >= wanted:
            return round(bound * 1_000_000)
    return 0
