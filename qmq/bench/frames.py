"""Bytes to send round and round, and counters for what comes back.

A generator in Python can only outrun a broker in Python when it does not work message by message. So all frames of a
run have the same length: how many were sent follows from how many bytes were. And what comes back is searched for a
mark that every message has exactly once, a few gigabytes a second, instead of being parsed.

Surprising: a counter trusts the broker to send whole frames; that bodies come back byte for byte is for tests to
check, not for a benchmark. A frame too few or too many is seen all the same.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from qmq.wire.stomp import encode_frame

BODY_MARK = b"<qmq-bench-body>"
"""Begins every body. Longer than a word, because `bytes.count` skips ahead by the length of what it looks for."""

RECEIPT_NAME = "n"
"""Begins the receipt ids of the messages that are counted; other receipts of a connection begin otherwise."""

RECEIPT_MARK = b"receipt-id:" + RECEIPT_NAME.encode()

RING_BYTES_MIN = 1 << 18
"""As much as one call hands to the kernel. Short frames are repeated up to this."""

RING_BYTES_MAX = 1 << 24
"""Of long frames there are fewer different ones: no more than their window needs, where those are more bytes."""

RECEIPT_IDS = 10_000
"""How many different receipt ids go round; more than any window."""

NUMBER = "{number}"
TURN = "{turn}"
NUMBER_DIGITS = 9
NUMBERED_FRAMES = 1000

ACK_ID = re.compile(rb"\nack:([^\n]*)\n")


class Supply(ABC):
    """Equally long frames to send, one after the other."""

    __slots__ = ("frame_bytes", "sent_bytes")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.sent_bytes = 0

    @property
    def begun(self) -> int:
        """Messages of which at least one byte was sent."""
        return -(-self.sent_bytes // self.frame_bytes)

    @abstractmethod
    def next_piece(self, messages_max: int) -> memoryview:
        """What to send next so that not more than `messages_max` are sent since the start; empty when they are.

        Never ends within a frame unless that was asked for. Add what was really sent to `sent_bytes`.
        """


class Ring(Supply):
    """Equally long frames, joined, sent again and again from the start."""

    __slots__ = ("_bytes", "_view")

    def __init__(self, frames: Sequence[bytes]) -> None:
        """`frames` are repeated until they fill RING_BYTES_MIN."""
        super().__init__(len(frames[0]))
        assert all(len(frame) == self.frame_bytes for frame in frames)
        joined = b"".join(frames)
        joined *= -(-RING_BYTES_MIN // len(joined))
        self._bytes = len(joined)
        self._view = memoryview(joined)

    def next_piece(self, messages_max: int) -> memoryview:
        at = self.sent_bytes % self._bytes
        left = messages_max * self.frame_bytes - self.sent_bytes
        return self._view[at : at + left] if left > 0 else self._view[:0]


class Numbered(Supply):
    """Frames that differ, made a thousand at a time just before they are sent: all of a million would not fit.

    The k-th frame has `first + k % count` where NUMBER stands in its headers and k where TURN stands, in NUMBER_DIGITS
    digits each, so that a frame costs the same whatever `count` is.
    """

    __slots__ = ("_at", "_count", "_first", "_template", "_view")

    def __init__(
        self, command: str, headers: Sequence[tuple[str, str]], body: bytes = b"", *, count: int, first: int = 0
    ) -> None:
        digits = b"0%dd" % NUMBER_DIGITS
        self._template = (
            encode_frame(command, headers, body)
            .replace(b"%", b"%%")
            .replace(NUMBER.encode(), b"%(number)" + digits)
            .replace(TURN.encode(), b"%(turn)" + digits)
        )
        self._first = first
        self._count = count
        self._at = -1
        """Which thousand `_view` holds."""
        self._view = memoryview(b"")
        super().__init__(len(self._frame(0)))

    def _frame(self, turn: int) -> bytes:
        return self._template % {b"number": self._first + turn % self._count, b"turn": turn}

    def next_piece(self, messages_max: int) -> memoryview:
        chunk = NUMBERED_FRAMES * self.frame_bytes
        which, at = divmod(self.sent_bytes, chunk)
        left = messages_max * self.frame_bytes - self.sent_bytes
        if left <= 0:
            return self._view[:0]
        if which != self._at:
            start = which * NUMBERED_FRAMES
            self._at = which
            self._view = memoryview(b"".join(map(self._frame, range(start, start + NUMBERED_FRAMES))))
        return self._view[at : at + left]


def body_of(size: int) -> bytes:
    """A body of `size` bytes, at least the mark."""
    return BODY_MARK.ljust(size, b".")


def sends(destination: str, body_bytes: int, *headers: tuple[str, str]) -> Ring:
    """SENDs without receipts."""
    return Ring([encode_frame("SEND", [("destination", destination), *headers], body_of(body_bytes))])


def receipted_sends(destination: str, body_bytes: int, window: int, *headers: tuple[str, str]) -> Ring:
    """SENDs that each ask for a receipt of their own, different for `window` of them in a row."""
    body = body_of(body_bytes)
    count = min(RECEIPT_IDS, max(window, RING_BYTES_MAX // len(body)))
    digits = len(str(RECEIPT_IDS - 1))
    fixed = [("destination", destination), *headers]
    return Ring(
        [
            encode_frame("SEND", [*fixed, ("receipt", f"{RECEIPT_NAME}{number:0{digits}}")], body)
            for number in range(count)
        ]
    )


class MarkCounter:
    """Counts a mark in a stream, wherever the reads cut it. Answers nothing."""

    __slots__ = ("_mark", "_tail")

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._tail = b""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """(How many marks are complete with these bytes, what to write back)."""
        mark = self._mark
        before = len(mark) - 1
        # The tail and as much of the new bytes are each shorter than a mark: one found here spans both.
        edge = self._tail + data[:before]
        count = data.count(mark) + edge.count(mark)
        self._tail = (data if len(data) >= before else edge)[-before:]
        return count, b""


class AckCutter:
    """Counts the messages of a subscription that wants an ACK for each, and makes the ACKs: one join per read."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = b""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """(How many messages are complete with these bytes, their ACKs)."""
        end = data.rfind(b"\0") + 1
        if not end:
            self._partial += data
            return 0, b""
        whole = self._partial + data[:end]
        self._partial = data[end:]
        ids = ACK_ID.findall(whole)
        if not ids:
            return 0, b""
        return len(ids), b"ACK\nid:" + b"\n\n\0\nACK\nid:".join(ids) + b"\n\n\0\n"


class NumberReader:
    """Takes the numbers out of bodies that `numbered_send` made."""

    __slots__ = ("_partial",)

    NUMBER = re.compile(re.escape(BODY_MARK) + rb"([0-9]{10})")

    def __init__(self) -> None:
        self._partial = b""

    def take(self, data: bytes) -> list[int]:
        """The numbers of the messages that are complete with these bytes, in the order in which they came."""
        end = data.rfind(b"\0") + 1
        if not end:
            self._partial += data
            return []
        whole = self._partial + data[:end]
        self._partial = data[end:]
        return [int(number) for number in self.NUMBER.findall(whole)]


NUMBERED_BODY_BYTES_MIN = len(BODY_MARK) + 10


def numbered_send(destination: str, body_bytes: int, headers: Sequence[tuple[str, str]]) -> tuple[bytes, bytes]:
    """What stands before and after the ten digits of a number in a SEND of `body_bytes`."""
    body = (BODY_MARK + b"0" * 10).ljust(body_bytes, b".")
    before, _, after = encode_frame("SEND", [("destination", destination), *headers], body).partition(
        BODY_MARK + b"0" * 10
    )
    return before + BODY_MARK, after
