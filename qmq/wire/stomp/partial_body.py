"""A frame whose body has not come whole: its head, its receipt, and the bytes until now."""

from qmq.wire.stomp.frame_checks import FrameChecks
from qmq.wire.stomp.head import Head
from qmq.wire.stomp.refusals import missing_nul

NUL = 0


class PartialBody:
    """`head` is None while there is no such frame. `length` is the declared one, -1 when NUL ends the body."""

    __slots__ = ("_checks", "_length", "data", "head", "receipt")

    def __init__(self, checks: FrameChecks) -> None:
        self._checks = checks
        self._length = -1
        self.head: Head | None = None
        self.receipt: str | None = None
        self.data = bytearray()

    def keep(self, head: Head, receipt: str | None, length: int, data: bytes) -> None:
        """`data` is the beginning of the body of this frame."""
        self.head = head
        self.receipt = receipt
        self._length = length
        self.data += data

    def end_in(self, data: bytes) -> int:
        """Where the body ends in `data`, which follows what is kept; the size of `data` when there is still more."""
        head = self.head
        assert head is not None
        if self._length >= 0:
            stop = self._length - len(self.data)
            if stop < len(data) and data[stop] != NUL:
                raise missing_nul(self._length)
        else:
            stop = data.find(b"\0")
            if stop < 0:
                stop = len(data)
            self._checks.undeclared(head.command, len(self.data), data, 0, stop)
        return stop

    def clear(self) -> None:
        """The frame is complete, or nothing more is received."""
        self.head = None
        self.receipt = None
        self.data = bytearray()
