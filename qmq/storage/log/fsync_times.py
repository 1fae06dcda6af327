"""How long something takes, in the buckets of a histogram; of syncs of the journal also the last and the longest."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RECENT: Final = 100
"""Syncs of which the mean is taken."""

BOUNDS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of a histogram: from a disk with a protected cache to one that hangs."""


@dataclass(frozen=True, slots=True)
class SyncStatistics:
    """`count` and `max_us` are since the start, `mean_us` is that of the last RECENT syncs."""

    count: int
    last_us: int
    mean_us: int
    max_us: int


class Durations:
    """How many took how long. One thread notes; others may ask at the same time."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        """All of them together."""
        self._buckets = [0] * (len(BOUNDS_SECONDS) + 1)

    def note(self, seconds: float) -> None:
        """One has taken so long."""
        self.count += 1
        self.seconds += seconds
        self._buckets[bisect_left(BOUNDS_SECONDS, seconds)] += 1

    def buckets(self) -> list[int]:
        """How many took up to each of BOUNDS_SECONDS, but longer than the one before; last: longer than all."""
        return list(self._buckets)


class SyncTimes(Durations):
    """Those of syncs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.clock = clock
        self._max = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def note(self, seconds: float) -> None:
        super().note(seconds)
        self._recent.append(seconds)
        if seconds > self._max:
            self._max = seconds

    def statistics(self) -> SyncStatistics:
        recent = list(self._recent) or [0.0]
        times = (recent[-1], sum(recent) / len(recent), self._max)
        return SyncStatistics(self.count, *[round(1_000_000 * seconds) for seconds in times])
