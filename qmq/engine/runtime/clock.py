"""The clock of a node: the wall clock, without its jumps.

Everything that a node decides by time uses this clock: when a message is due, expires or is late, what is too old to be
kept, and the time stamps of its records. It starts at the wall clock and advances by a clock that cannot be set. If the
wall clock is set meanwhile, it follows, but never by more than an eighth of the time that passes. So however the wall
clock jumps, a minute takes between 52 and 68 seconds here, nothing expires all at once, and time never goes back. An
hour of difference is made up in eight hours.

Surprising: the sleep of a machine is no jump if the system counts that time (Linux does). A guest that was paused by
its host cannot know for how long, and treats it as a jump.
"""

import time
from collections.abc import Callable
from typing import Final

FOLLOWS_PARTS: Final = 8
"""One part in so many of the passing time may go into following the wall clock."""

POLL_US: Final = 1_000
"""The wall clock is not read more often than this."""

_COUNTED = getattr(time, "CLOCK_BOOTTIME", None)


class SteadyClock:
    """µs since 1970. `wall_us` may jump, `passed_us` only grows. For one thread."""

    def __init__(self, wall_us: Callable[[], int], passed_us: Callable[[], int]) -> None:
        self._wall = wall_us
        self._passed = passed_us
        # At the last reading: this clock, the time passed, and how far the wall clock was ahead. 0: never read.
        self._base_us = 0
        self._seen_us = 0
        self._wrong_us = 0

    def __call__(self) -> int:
        seen_us = self._passed()
        if not self._base_us:
            self._seen_us, self._base_us = seen_us, self._wall()
            return self._base_us
        passed = seen_us - self._seen_us
        most = passed // FOLLOWS_PARTS
        now_us = self._base_us + passed + max(-most, min(most, self._wrong_us))
        if passed >= POLL_US:
            self._seen_us, self._base_us = seen_us, now_us
            self._wrong_us = self._wall() - now_us
        return now_us


def system_clock() -> SteadyClock:
    """The clock of this machine."""
    return SteadyClock(_wall_us, _passed_us)


def _wall_us() -> int:
    return time.time_ns() // 1000


def _passed_us() -> int:
    if _COUNTED is not None:
        return time.clock_gettime_ns(_COUNTED) // 1000
    return time.monotonic_ns() // 1000
