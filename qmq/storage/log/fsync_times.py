"""How long syncs of the journal take: the last of them, the longest since the start, and how many took how long."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final

RECENT: Final = 100
"""Syncs of which the mean is taken."""

BOUNDS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of the histogram: from a disk with a protected cache to one that hangs."""


class SyncTimes:
    """One thread notes; others may ask at the same time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.count = 0
        self.seconds = 0.0
        """All of them together."""
        self._buckets = [0] * (len(BOUNDS_SECONDS) + 1)
        self._max = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def note(self, seconds: float) -> None:
        """A sync has taken so long."""
        self.count += 1
        self.seconds += seconds
        self._buckets[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._recent.append(seconds)
        if seconds > self._max:
            self._max = seconds

    def buckets(self) -> list[int]:
        """How many took up to each of BOUNDS_SECONDS, but longer than the one before; last: longer than all."""
        return list(self._buckets)

    def facts(self) -> dict[str, int]:
        """`count` and `max_us` since the start, `last_us`, and `mean_us` of the last RECENT."""
        recent = list(self._recent)
        times = {
            "last_us": recent[-1] if recent else 0.0,
            "mean_us": sum(recent) / max(1, len(recent)),
            "max_us": self._max,
        }
        return {"count": self.count, **{name: round(1_000_000 * seconds) for name, seconds in times.items()}}
