"""How much may be on its way over one link, by how long the last of it took to be acknowledged.

What is sent and not acknowledged lies in buffers on the way, and topics, credit and lent messages that are told later
arrive behind it. So the window begins small and doubles while acknowledgements come quickly, and is halved while they
come late: on a line of 10 KB/s nothing waits more than a few seconds for a catching-up, and a fast line has its whole
window after a few round trips. Pure: the caller brings the time.
"""

from typing import Final

WINDOW_BYTES: Final = 1 << 20
"""Sent and not acknowledged, at most. One frame may go over it, because a batch is never split."""

FIRST_BYTES: Final = 128 << 10
LEAST_BYTES: Final = 16 << 10

QUICK_SECONDS: Final = 0.25
"""Acknowledged within this, more could be on its way."""

LATE_SECONDS: Final = 1.0
"""Acknowledged after this, less should be: as long others have waited behind it."""

PARTS: Final = 4
"""Turns in which one window goes out, so that what else waits has its own between them."""


class CongestionWindow:
    """One link. `window` is what may be on its way now."""

    __slots__ = ("window",)

    def __init__(self) -> None:
        self.window = FIRST_BYTES

    @property
    def is_slow(self) -> bool:
        """Whether acknowledgements have come late lately."""
        return self.window < FIRST_BYTES

    @property
    def quantum_bytes(self) -> int:
        """About how much of the journal goes out in one turn, and on a slow link of everything else."""
        return self.window // PARTS

    def took(self, seconds: float) -> None:
        """Something that was sent is acknowledged, after that long."""
        if seconds <= QUICK_SECONDS:
            self.window = min(2 * self.window, WINDOW_BYTES)
        elif seconds > LATE_SECONDS:
            self.window = max(self.window // 2, LEAST_BYTES)
