"""A frame that has not come whole, its head or its body, and the limits of a header block.

A head that arrives in many reads is kept in a PartialHead, which refuses it as soon as no more bytes could make it
right. Every byte is searched once, however small the reads are.
"""

from typing import Final

from qmq.wire.stomp.frame_checks import FrameChecks, first_line
from qmq.wire.stomp.head import Head
from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.refusals import missing_nul, nul_in_headers, too_large, unknown_command
from qmq.wire.stomp.states import COMMANDS, Role

NUL = 0

NOTHING: Final = bytearray()
"""Kept of no frame: one for all connections, and nothing writes into it."""


class PartialHead:
    """The bytes of one unfinished head; falsy when there is none."""

    __slots__ = ("_bytes", "_limits", "_lines", "_role", "_searched")

    def __init__(self, limits: Limits, role: Role) -> None:
        self._limits = limits
        self._role = role
        self._bytes = NOTHING
        self._searched = 0
        # LFs among the searched bytes.
        self._lines = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def keep(self, data: bytes) -> None:
        """Keep `data`, in which no head ends, for later.

        Raises RemoteProtocolError when the head breaks a rule whatever follows.
        """
        self._bytes = self._bytes + data
        self._check()

    def extend(self, data: bytes) -> bytes:
        """The whole of what arrived when that is worth a new look, and nothing is kept then; else nothing.

        Raises RemoteProtocolError as keep() does.
        """
        # At least as many bytes again: looking at all of them once more costs no more than looking at the new ones.
        worth_polling = len(data) >= len(self._bytes)
        self._bytes += data
        if not worth_polling:
            start = max(0, self._searched - 2)
            worth_polling = self._bytes.find(b"\n\n", start) >= 0 or self._bytes.find(b"\n\r\n", start) >= 0
        if not worth_polling:
            self._check()
            return b""
        whole = bytes(self._bytes)
        self.clear()
        return whole

    def whole_lines(self) -> bytes:
        """What can be relied on: the lines that have ended."""
        return bytes(self._bytes[: self._bytes.rfind(b"\n") + 1])

    def clear(self) -> None:
        self._bytes = NOTHING
        self._searched = 0
        self._lines = 0

    def _check(self) -> None:
        limits = self._limits
        head = self._bytes
        if self._lines == 0:
            self._check_command_line(first_line(bytes(head), 0).removesuffix(b"\r"))
        if head.find(b"\0", self._searched) >= 0:
            raise nul_in_headers()
        self._lines += head.count(b"\n", self._searched)
        self._searched = len(head)
        # One LF ended the command, and each other one a header line.
        if self._lines - 1 > limits.header_count_max:
            raise too_large("too-many-headers", "header_count_max", limits.header_count_max)
        if len(head) - head.rfind(b"\n") - 1 > limits.header_line_bytes_max:
            raise too_large("header-line-too-long", "header_line_bytes_max", limits.header_line_bytes_max)
        # Two bytes more may be the beginning of the blank line.
        if len(head) > limits.header_bytes_max + 2:
            raise too_large("headers-too-large", "header_bytes_max", limits.header_bytes_max)

    def _check_command_line(self, line: bytes) -> None:
        """Refuse at once other protocols, such as HTTP or a TLS handshake, which may never end their headers.

        An unknown command waits for the end of its head, because its sender may have requested a receipt.
        """
        if (line and not line.isalpha()) or len(line) > self._limits.command_bytes_max:
            raise unknown_command(line, COMMANDS[self._role])


def check_block(block: bytes, limits: Limits) -> None:
    """Raise RemoteProtocolError when a whole header block breaks a limit, or lacks the blank line before its NUL."""
    if b"\0" in block:
        raise nul_in_headers()
    if block.count(b"\n") > limits.header_count_max:
        raise too_large("too-many-headers", "header_count_max", limits.header_count_max)
    if max(map(len, block.split(b"\n"))) > limits.header_line_bytes_max:
        raise too_large("header-line-too-long", "header_line_bytes_max", limits.header_line_bytes_max)
    if len(block) > limits.header_bytes_max:
        raise too_large("headers-too-large", "header_bytes_max", limits.header_bytes_max)


class PartialBody:
    """`head` is None while there is no such frame. `length` is the declared one, -1 when NUL ends the body."""

    __slots__ = ("_checks", "_length", "data", "head", "receipt")

    def __init__(self, checks: FrameChecks) -> None:
        self._checks = checks
        self._length = -1
        self.head: Head | None = None
        self.receipt: str | None = None
        self.data = NOTHING

    def keep(self, head: Head, receipt: str | None, length: int, data: bytes) -> None:
        """`data` is the beginning of the body of this frame."""
        self.head = head
        self.receipt = receipt
        self._length = length
        self.data = bytearray(data)

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
        self.data = NOTHING
