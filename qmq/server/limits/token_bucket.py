"""A token bucket without a clock: at what time so much more is within a rate.

It is kept as one number, the time at which all that was taken is paid for (the generic cell rate algorithm, ITU-T
I.371). What is taken is taken at once, in the order of the calls, so several clients of one bucket take turns.
"""

from typing import Final

BURST_SECONDS: Final = 1.0
"""How much of the rate an idle client may save, and use at once."""


class TokenBucket:
    """`rate` per second, at least 1. Times are seconds of one clock that the caller reads."""

    __slots__ = ("_paid_at", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._paid_at = float("-inf")

    def take(self, amount: int, now: float) -> float:
        """Take `amount`; returns from when on it may be used. At most `now` if it is within the rate."""
        self._paid_at = max(self._paid_at, now) + amount / self.rate
        return self._paid_at - BURST_SECONDS

    @property
    def paid_at(self) -> float:
        """From when on the bucket is full, if nothing more is taken."""
        return self._paid_at
