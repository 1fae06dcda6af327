"""The last hour of a node, in memory of fixed size: samples of its counters, one every SAMPLE_SECONDS.

Samples are taken where the console is served: a node without an HTTP listener sleeps until it has work.

Of a counter its growth is kept, of the processor its time in the interval. The times of fsyncs are kept as the 99th
percentile of each interval, read from the buckets of the histogram: so it is the upper bound of a bucket.
"""

import os
import time
from array import array
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, Final

import trio

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.storage.log.fsync_times import BOUNDS_SECONDS

SAMPLE_SECONDS: Final = 10.0
SAMPLES: Final = 360
"""One hour."""

COUNTERS: Final = ("accepted", "delivered", "acknowledged", "redelivered", "dead_lettered")
SERIES: Final = (*COUNTERS, "cpu_us", "fsync_p99_us", "connections", "in_flight", "resident_bytes")
STATM: Final = Path("/proc/self/statm")

P99: Final = 0.99


class History:
    """Samples of one node, the oldest first. `begin` starts to take them."""

    def __init__(self, engine: EngineParts, beats: Heartbeats, sessions: Sized) -> None:
        self._engine = engine
        self._beats = beats
        self._sessions = sessions
        self._rows = array("q", bytes(8 * SAMPLES * len(SERIES)))
        self._times = array("q", bytes(8 * SAMPLES))
        self._taken = 0
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
        counters, syncs = self._counters(), self._engine.store.journal.sync_times.buckets()
        growth = [after - before for before, after in zip(self._before, counters, strict=True)]
        between = [after - before for before, after in zip(self._syncs, syncs, strict=True)]
        in_flight = len(self._engine.broker.queues.deliveries)
        row = (*growth, percentile_us(between, P99), len(self._sessions), in_flight, resident_bytes())
        place = self._taken % SAMPLES
        self._rows[place * len(SERIES) : (place + 1) * len(SERIES)] = array("q", row)
        self._times[place] = self._engine.environment.now_us()
        self._taken += 1
        self._before, self._syncs = counters, syncs
        return now + SAMPLE_SECONDS

    def facts(self) -> dict[str, Any]:
        """`at_us`: the end of each interval; and for each of SERIES as many numbers.

        Counters and `cpu_us` have their growth in the interval. `fsync_p99_us` is 0 where there was no fsync,
        `resident_bytes` where the system does not say it.
        """
        kept = min(self._taken, SAMPLES)
        places = [number % SAMPLES for number in range(self._taken - kept, self._taken)]
        width = len(SERIES)
        series = {name: [self._rows[place * width + at] for place in places] for at, name in enumerate(SERIES)}
        return {"seconds": SAMPLE_SECONDS, "at_us": [self._times[place] for place in places], **series}


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
