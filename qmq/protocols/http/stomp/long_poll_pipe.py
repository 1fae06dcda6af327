"""A pipe for a session of STOMP whose bytes come and go in HTTP requests.

Surprising: what was taken for a response is not kept. If that response breaks, its caller calls `interrupt`.
"""

from collections.abc import Callable
from math import inf
from typing import Final

import trio

from qmq.environment import Pipe
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.outbox import count_nothing

WAITING_BYTES_MAX: Final = 65536
"""What waits for a receiving request; one larger frame may wait alone."""

RECEIVED_BYTES_MAX: Final = 65536
"""Bytes of the client that its session has not read. Beyond it, the request that sends them is answered later."""

IDLE_SECONDS: Final = 60.0
"""Between two requests of a client. Then its session ends."""


class LongPollPipe:
    """`qmq.environment.Pipe` over requests. `first` is the connection of the first one. `with pipe:` is around each."""

    def __init__(self, first: Pipe) -> None:
        self.peer_address = first.peer_address
        self.peer_port = first.peer_port
        self.peer_certificate_names = first.peer_certificate_names
        self.peer_certificate_subject = first.peer_certificate_subject
        self.login: PendingLogin | None = None
        """That of the session of STOMP, once it has begun."""
        self.receives = False
        """A request waits for frames."""
        self.grew: Callable[[int], None] = count_nothing
        """Called with each change of `held_bytes`, while its session has not ended."""
        self.left_grew: Callable[[int], None] = count_nothing
        """The same from then on."""
        self._counted = 0
        self._received = bytearray()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._requests = 0
        self._deadline = trio.current_time() + IDLE_SECONDS
        """When the client was silent for too long; infinite while there is a request."""
        self._ends = False
        """It takes no more. The client still gets what waits."""
        self._closed = False
        """By its session."""
        self._changed = trio.Event()

    # For the STOMP session

    async def receive_some(self, bytes_max: int) -> bytes:
        """What the client has sent; b"" when the session has ended, or its client was silent for too long."""
        await trio.lowlevel.checkpoint()
        while not self._received:
            if self._closed:
                raise trio.ClosedResourceError
            if self._ends:
                return b""
            changed = self._changed
            with trio.move_on_at(self._deadline):
                await changed.wait()
            self._expire()
        data = bytes(self._received[:bytes_max])
        del self._received[:bytes_max]
        self._wake()
        return data

    def send_now(self, data: bytes) -> int:
        """Take all of `data` or nothing."""
        has_room = not self._waiting_bytes or self._waiting_bytes + len(data) <= WAITING_BYTES_MAX
        if not data or not has_room or self._ends:
            return 0
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wake()
        return len(data)

    async def send_all(self, data: bytes) -> None:
        """Wait until `data` may wait for a response. Raises BrokenResourceError when the session has ended."""
        await trio.lowlevel.checkpoint()
        while data and not self.send_now(data):
            if self._closed:
                raise trio.ClosedResourceError
            if self._ends:
                raise trio.BrokenResourceError
            await self._changed.wait()

    def end_sending(self) -> None:
        """The next responses get what waits, and then the end. There is nothing more to receive."""
        self._ends = True
        self._wake()

    def close(self) -> None:
        """Close at once. What waits is dropped, unless `end_sending` was called: then it still gets to the client."""
        if not self._closed:
            self._closed = True
            if not self._ends:
                self._take()
            self._received.clear()
            # The session has ended, and counts nothing any more: all that waits is what it has left.
            self.grew, self._counted = self.left_grew, 0
            self.end_sending()

    # For the requests

    def __enter__(self) -> "LongPollPipe":
        self._requests += 1
        self._deadline = inf
        return self

    def __exit__(self, *_: object) -> None:
        self._requests -= 1
        if not self._requests:
            self._deadline = trio.current_time() + IDLE_SECONDS
        self._wake()

    async def pass_on(self, data: bytes) -> bool:
        """Pass bytes of the client to the session; returns when it has room for them. False: it has ended."""
        await trio.lowlevel.checkpoint()
        while not self._ends:
            if not self._received or len(self._received) + len(data) <= RECEIVED_BYTES_MAX:
                self._received += data
                self._wake()
                return True
            await self._changed.wait()
        return False

    async def receive(self, wait_seconds: float) -> bytes:
        """What waits for the client; b"" when there is nothing for so long, or the session has ended.

        Only while no other request `receives`.
        """
        assert not self.receives, "one request waits at a time"
        self.receives = True
        try:
            with trio.move_on_after(wait_seconds):
                while not self._waiting_bytes and not self._ends:
                    await self._changed.wait()
        finally:
            self.receives = False
        data = self._take()
        self._wake()
        return data

    def interrupt(self) -> None:
        """End the session, and drop what waits: its client has left, or what it was sent may be lost."""
        self._take()
        self.end_sending()

    @property
    def is_over(self) -> bool:
        """Whether no request can find this session any more. A session that is not read expires here, too."""
        self._expire()
        return self._ends and not self._waiting_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes from and to the client that this holds."""
        return len(self._received) + self._waiting_bytes

    def _expire(self) -> None:
        if trio.current_time() >= self._deadline and not (self._ends and not self._waiting_bytes):
            self.interrupt()

    def _take(self) -> bytes:
        """All that waits for the client."""
        data = b"".join(self._waiting)
        self._waiting = []
        self._waiting_bytes = 0
        return data

    def _wake(self) -> None:
        """Something has changed: all that wait look again. There are three at most: reader, writer and response, and
        one for each request under way that sends.
        """
        delta = self.held_bytes - self._counted
        if delta:
            self._counted += delta
            self.grew(delta)
        self._changed.set()
        self._changed = trio.Event()
