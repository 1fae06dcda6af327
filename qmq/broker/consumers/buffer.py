"""The messages that wait for one subscriber that declared how far it may fall behind.

While the client of a topic or fanout subscription does not read, the messages wait in its Buffer. At the bound, the
client is disconnected, or it misses the oldest or the newest messages, as its SUBSCRIBE says. The next message after a
hole carries the number of messages that were dropped there. Subscriptions that declare nothing have no Buffer and no
cost. `qmq.sessions.clients.subscriber_buffers` fills and drains it. Pure.

What waits are the ends of MESSAGE frames, after the subscription's prefix. All subscribers of a message share these, so
a hundred slow clients hold one copy of the messages that all of them wait for.
"""

from collections import deque
from enum import IntEnum

MESSAGES_UNBOUNDED = 1 << 53


class Overflow(IntEnum):
    """What happens when one more does not fit."""

    DISCONNECT = 0
    DROP_OLDEST = 1
    DROP_NEWEST = 2


OVERFLOWS = {
    "disconnect": Overflow.DISCONNECT,
    "drop-oldest": Overflow.DROP_OLDEST,
    "drop-newest": Overflow.DROP_NEWEST,
}


class Buffer:
    """A bounded line of messages, first in, first out.

    `bytes` is what waits, `dropped` all that were ever dropped, `unsaid` those that no message has reported yet.
    `messages_max` may be 0: nothing waits at all.
    """

    __slots__ = ("_late_drops", "_waiting", "bytes", "bytes_max", "dropped", "messages_max", "overflow", "unsaid")

    def __init__(self, bytes_max: int, messages_max: int, overflow: Overflow) -> None:
        self.bytes_max = bytes_max
        self.messages_max = messages_max
        self.overflow = overflow
        # (dropped just before it, the message)
        self._waiting: deque[tuple[int, bytes]] = deque()
        # Dropped behind the last that waits; `unsaid` holds those before the first.
        self._late_drops = 0
        self.bytes = 0
        self.dropped = 0
        self.unsaid = 0

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def add(self, tail: bytes, room: int) -> bool:
        """Let one message wait, or drop one; False when the client is to be disconnected instead.

        `room` bytes are left of what all buffers of the connection may hold together.
        """
        size = len(tail)
        if self._fits(size, room):
            self._append(tail, size)
            return True
        if self.overflow is Overflow.DISCONNECT:
            return False
        hopeless = size > self.bytes_max or not self.messages_max or size > room + self.bytes
        if self.overflow is Overflow.DROP_OLDEST and not hopeless:
            while not self._fits(size, room):
                before, oldest = self._waiting.popleft()
                self.bytes -= len(oldest)
                room += len(oldest)
                self.unsaid += before + 1
                self.dropped += 1
            self._append(tail, size)
            return True
        self.dropped += 1
        if self._waiting:
            self._late_drops += 1
        else:
            self.unsaid += 1
        return True

    def _fits(self, size: int, room: int) -> bool:
        return len(self._waiting) < self.messages_max and self.bytes + size <= self.bytes_max and size <= room

    def _append(self, tail: bytes, size: int) -> None:
        self._waiting.append((self._late_drops, tail))
        self._late_drops = 0
        self.bytes += size

    def take(self, bytes_max: int) -> list[tuple[int, bytes]]:
        """The next messages, about `bytes_max` of them and at least one, each with how many were dropped before it."""
        taken: list[tuple[int, bytes]] = []
        size = 0
        while self._waiting and size < bytes_max:
            before, tail = self._waiting.popleft()
            size += len(tail)
            taken.append((before + self.unsaid, tail))
            self.unsaid = 0
        if not self._waiting:
            self.unsaid += self._late_drops
            self._late_drops = 0
        self.bytes -= size
        return taken

    def clear(self) -> int:
        """Forget what waits; returns how many bytes that were."""
        size = self.bytes
        self._waiting.clear()
        self.bytes = 0
        return size
