"""How long syncs of the journal take: the last of them, and the longest since the start."""

from collections import deque
from collections.abc import Callable
from typing import Final

RECENT: Final = 100
"""Syncs of which the mean is taken."""


class SyncTimes:
    """One thread notes; others may ask at the same time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.count = 0
        self._max = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def note(self, seconds: float) -> None:
        """A sync has taken so long."""
        self.count += 1
        self._recent.append(seconds)
        if seconds > self._max:
            self._max = seconds

    def facts(self) -> dict[str, int]:
        """`count` and `max_us` since the start, `last_us`, and `mean_us` of the last RECENT."""
        recent = list(self._recent)
        times = {
            "last_us": recent[-1] if recent else 0.0,
            "mean_us": sum(recent) / max(1, len(recent)),
            "max_us": self._max,
        }
        return {"count": self.count, **{name: round(1_000_000 * seconds) for name, seconds in times.items()}}
