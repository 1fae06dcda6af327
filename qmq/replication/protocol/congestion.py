"""The congestion window of one link: bytes in flight, by the time that the last acknowledgement took.

Unacknowledged bytes wait in buffers on the path, and topics, credit and lent messages that are sent later arrive after
them. So the window begins small, doubles while acknowledgements come quickly, and is halved while they come late. On a
line of 10 KB/s nothing waits more than a few seconds for a catch-up; a fast line has its whole window after a few
round trips. Pure: the caller passes the time.
"""

from typing import Final

WINDOW_BYTES: Final = 1 << 20
"""Sent and not acknowledged, at most. One frame may go over it, because a batch is never split."""

FIRST_BYTES: Final = 128 << 10
LEAST_BYTES: Final = 16 << 10

QUICK_SECONDS: Final = 0.25
"""After an acknowledgement within this time, the window may grow."""

LATE_SECONDS: Final = 1.0
"""Acknowledged after this, less should be: as long others have waited behind it."""

PARTS: Final = 4
"""Turns in which one window is sent, so that other data has its turns between them."""


class CongestionWindow:
    """One link. `window` is how many bytes may be in flight now."""

    __slots__ = ("window",)

    def __init__(self) -> None:
        self.window = FIRST_BYTES

    @property
    def is_slow(self) -> bool:
        """Whether recent acknowledgements were late."""
        return self.window < FIRST_BYTES

    @property
    def quantum_bytes(self) -> int:
        """About how many bytes of the journal are sent in one turn, and on a slow link of everything else."""
        return self.window // PARTS

    def took(self, seconds: float) -> None:
        """Something that was sent is acknowledged, after that long."""
        if seconds <= QUICK_SECONDS:
            self.window = min(2 * self.window, WINDOW_BYTES)
        elif seconds > LATE_SECONDS:
            self.window = max(self.window // 2, LEAST_BYTES)
