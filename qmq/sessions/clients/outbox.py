"""Bytes on their way to one client.

All frames for a client in one pass are joined and handed to the kernel in one call. Only when the kernel has no room
does a writer task exist, until all is written. The waiting bytes are bounded: a subscriber too slow for topic messages
exceeds the bound, and the session decides what follows.

While a RECEIPT of a SUBSCRIBE is due, messages are held back and responses go first. A client should get no message of
a subscription that is not confirmed yet; many libraries lose it.

Surprising: only whole frames are put in. So bytes that no send has touched can be dropped to make room for an ERROR.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from qmq.environment import Pipe
from qmq.wire.stomp import HEARTBEAT

SEND_BYTES_MAX = 1 << 18
"""Joined for one call; more would copy what the kernel does not accept anyway."""


HELD_BYTES_MAX = 1 << 18
"""Held back behind a RECEIPT; bytes beyond it are sent before it."""


def start_nothing(task: Callable[[], Awaitable[None]]) -> None:
    """Used in place of the nursery after a session has ended."""


def count_nothing(delta: int) -> None:
    """Used in place of the byte counter of a session that has ended, or is not counted."""


class OutboxOwner(Protocol):
    """The session. One object, because two bound methods are 128 bytes of each idle connection."""

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it ends, or the connection does."""

    def waiting_grew(self, delta: int) -> None:
        """Called with each change of the bytes that wait for the client."""


class _NoOwner:
    """In place of a session that has ended."""

    start = staticmethod(start_nothing)
    waiting_grew = staticmethod(count_nothing)


NO_OWNER: Final = _NoOwner()


class ClientOutbox:
    """Whole frames in, bytes out, in order.

    `size` counts bytes accepted and not yet with the kernel.
    """

    __slots__ = (
        "_counted",
        "_drained",
        "_due",
        "_held",
        "_held_bytes",
        "_hooks",
        "_owner",
        "_parts",
        "_unsent",
        "_writing",
        "broken",
        "bytes_out",
        "pipe",
        "size",
    )

    def __init__(self, pipe: Pipe, owner: OutboxOwner) -> None:
        self.pipe = pipe
        self._owner = owner
        self._counted = 0
        self._parts: list[bytes] | None = None
        self._unsent = b""
        """Set when the kernel took only the beginning, until the writer runs. It may begin in the middle of a frame."""
        self._writing = False
        self._due = 0
        """Responses that messages wait for."""
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self._drained: trio.Event | None = None
        self.size = 0
        self.bytes_out = 0
        """Of all frames that are with the kernel."""
        self.broken = False
        self._hooks: list[Callable[[], None]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the client; what is held back is not."""
        return self.size <= self._held_bytes

    def put(self, data: bytes) -> None:
        """Add whole frames; `flush` sends them. Frames put while a response is due follow it."""
        if self._due:
            self._hold(data)
        elif data:  # What a client takes for itself is no frame.
            self.put_answer(data)

    def put_answer(self, data: bytes) -> None:
        """Like `put`, for a response that no message may precede."""
        if not self.broken:
            if self._parts is None:
                self._parts = [data]
            else:
                self._parts.append(data)
            self.size += len(data)

    def when_written(self, hook: Callable[[], None]) -> None:
        """Call `hook` once when everything put in so far is with the kernel; never if the connection breaks before."""
        if self._hooks is None:
            self._hooks = []
        self._hooks.append(hook)

    def await_answer(self) -> None:
        """A response is due that must precede every message put from now on; call `answered` when it is put."""
        self._due += 1

    def answered(self) -> None:
        """One due response has been put."""
        self._due -= 1
        if not self._due:
            self._let_through()

    def await_nothing(self) -> None:
        """No response is due any more."""
        self._due = 0
        self._let_through()

    def _hold(self, data: bytes) -> None:
        if not self.broken:
            if self._held is None:
                self._held = []
            self._held.append(data)
            self._held_bytes += len(data)
            self.size += len(data)
            self._count()
            if self._held_bytes > HELD_BYTES_MAX:
                self._let_through()

    def _let_through(self) -> None:
        if self._held is not None:
            self._parts = [*(self._parts or ()), *self._held]
        self._held = None
        self._held_bytes = 0

    def flush(self) -> None:
        """Send what is there without waiting; a writer takes over what the kernel does not accept."""
        parts = self._parts
        if self._writing or not parts:
            if self._writing:
                self._count()
            return
        if self.size <= SEND_BYTES_MAX:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            sent = self.pipe.send_now(data)
            self.size -= sent
            self.bytes_out += sent
            if sent == len(data):
                self._parts = None
                if self._counted:
                    self._count()
                if not self._held:
                    self._now_drained()
                return
            self._unsent, self._parts = (data[sent:], None) if sent else (b"", [data])
        self._writing = True
        self._count()
        self._owner.start(self._write)

    def _count(self) -> None:
        delta = self.size - self._counted
        if delta:
            self._counted = self.size
            self._owner.waiting_grew(delta)

    async def _write(self) -> None:
        """Write until nothing is left. Returns when the connection breaks; the reader finds that out, too."""
        try:
            while self._unsent or self._parts:
                data = self._take()
                await self.pipe.send_all(data)
                self.bytes_out += len(data)
                if not self.broken:
                    self.size -= len(data)
                    self._count()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.break_off()
        finally:
            self._writing = False
        if not self._held:
            self._now_drained()

    def _take(self) -> bytes:
        """The next whole parts, about SEND_BYTES_MAX: parts that are not taken can still be dropped."""
        if self._unsent:
            data, self._unsent = self._unsent, b""
            return data
        parts = self._parts
        assert parts is not None
        count = size = 0
        while count < len(parts) and size < SEND_BYTES_MAX:
            size += len(parts[count])
            count += 1
        if count > 1 and parts[0] == HEARTBEAT:
            # It was put when nothing else waited. Some clients find no frame behind one in a message of a WebSocket.
            parts[0] = b""
            self.size -= len(HEARTBEAT)
        data = parts[0] if count == 1 else b"".join(parts[:count])
        del parts[:count]
        return data

    def _now_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        if self._hooks is not None:
            hooks, self._hooks = self._hooks, None
            if not self.broken:
                for hook in hooks:
                    hook()

    def drop_waiting(self) -> None:
        """Drop frames of which no byte was sent, to make room for the last frame. No hook is called."""
        self._hooks = None
        self.size -= self._held_bytes
        self._held = None
        self._held_bytes = 0
        if self._writing:
            self.size -= sum(map(len, self._parts or ()))
            self._parts = None
        self._count()

    def drop_put(self) -> None:
        """Drop frames that were put since the last `flush`; what is held back stays."""
        if not self._writing and self._parts is not None:
            self.size -= sum(map(len, self._parts))
            self._parts = None
            self._count()

    def break_off(self) -> None:
        """Nothing can be sent any more: waiting bytes are dropped, and tasks that wait for them continue."""
        self.broken = True
        self._parts = None
        self._held = None
        self._held_bytes = 0
        self._unsent = b""
        self.size = 0
        self._count()
        # It holds this: a connection that ends leaves no reference cycle.
        self._owner = NO_OWNER
        self._now_drained()

    async def drained(self) -> None:
        """Wait until everything is with the kernel (or the connection broke)."""
        while self.size and not self.broken:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()
