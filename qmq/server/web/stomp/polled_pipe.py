"""The bytes of a session whose client makes HTTP requests, as a pipe for the session of STOMP.

What waits for the client, and when the session ends, is up to its `PolledState`: SockJS and long poll have one each.
"""

from typing import Protocol

import trio

from qmq.environment import Pipe
from qmq.server.clients.admission import PendingLogin

NORMAL_CLOSE = (1000, "Normal closure")
GO_AWAY = (3000, "Go away!")


class PolledState(Protocol):
    """What one client is sent. It reads no clock and never waits."""

    closed: tuple[int, str] | None
    """Code and reason, once it takes no more."""
    deadline: float
    """When `expire` is due."""
    waiting_bytes: int

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may wait."""

    def send(self, data: bytes) -> bool:
        """Add bytes; False if it is closed, or cannot carry them, which closes it."""

    def close(self, code: int, reason: str) -> None:
        """Take no more. The client still gets what waits; the first code counts."""

    def drop_waiting(self) -> None:
        """Drop what waits."""

    def expire(self, now: float) -> bool:
        """Whether the session is over. If its client was silent for too long, it then closes."""


class PolledPipe:
    """`qmq.environment.Pipe` over requests. `first` is the connection of the first one."""

    def __init__(self, state: PolledState, first: Pipe, received_bytes_max: int) -> None:
        self.peer_address = first.peer_address
        self.peer_certificate_names = first.peer_certificate_names
        self.peer_certificate_subject = first.peer_certificate_subject
        self.login: PendingLogin | None = None
        """That of the session of STOMP, once it has begun."""
        self._state = state
        self._received = bytearray()
        self._received_bytes_max = received_bytes_max
        self._closed = False
        self._changed = trio.Event()

    def wake(self) -> None:
        """Something has changed: all that wait look again. There are three at most: reader, writer and response, and
        one for each request under way that sends.
        """
        self._changed.set()
        self._changed = trio.Event()

    # For the STOMP session

    async def receive_some(self, bytes_max: int) -> bytes:
        """What the client has sent; b"" when the session is closed, or its client was silent for too long."""
        await trio.lowlevel.checkpoint()
        while not self._received:
            if self._closed:
                raise trio.ClosedResourceError
            if self._state.closed is not None:
                return b""
            changed = self._changed
            with trio.move_on_at(self._state.deadline):
                await changed.wait()
            if self._state.expire(trio.current_time()):
                self.wake()
        data = bytes(self._received[:bytes_max])
        del self._received[:bytes_max]
        self.wake()
        return data

    def send_now(self, data: bytes) -> int:
        """Take all of `data` or nothing."""
        if not data or not self._state.has_room(len(data)):
            return 0
        taken = self._state.send(data)
        self.wake()
        return len(data) if taken else 0

    async def send_all(self, data: bytes) -> None:
        """Wait until `data` may wait for a response. Raises BrokenResourceError when the session is closed."""
        await trio.lowlevel.checkpoint()
        while data and not self.send_now(data):
            if self._closed:
                raise trio.ClosedResourceError
            if self._state.closed is not None:
                raise trio.BrokenResourceError
            await self._changed.wait()

    def end_sending(self, code: int = NORMAL_CLOSE[0], reason: str = NORMAL_CLOSE[1]) -> None:
        """The next responses get what waits, and then the end. There is nothing more to receive."""
        self._state.close(code, reason)
        self.wake()

    def close(self) -> None:
        """Close at once. What waits is dropped, unless `end_sending` was called: then it still gets to the client."""
        if not self._closed:
            self._closed = True
            if self._state.closed is None:
                self._state.drop_waiting()
            self._state.close(*GO_AWAY)
            self._received.clear()
            self.wake()

    # For the HTTP side

    async def pass_on(self, data: bytes) -> bool:
        """Pass bytes of the client to the session; returns when it has room for them. False: it is closed."""
        await trio.lowlevel.checkpoint()
        while self._state.closed is None:
            if not self._received or len(self._received) + len(data) <= self._received_bytes_max:
                self._received += data
                self.wake()
                return True
            await self._changed.wait()
        return False

    async def changed(self) -> None:
        """Wait until something has changed."""
        await self._changed.wait()

    @property
    def is_over(self) -> bool:
        """Whether no request can find this session any more. A session that is not read expires here, too."""
        if self._state.expire(trio.current_time()):
            self.wake()
            return True
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes from and to the client that this holds."""
        return len(self._received) + self._state.waiting_bytes
