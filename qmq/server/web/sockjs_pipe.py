"""A SockJS session as a pipe for a STOMP session, and the calls that its HTTP requests make.

How the requests of one session use it:

- The first receiving request makes a `SockJsPipe`, keeps it under the id of the session, and starts a STOMP session on
  it. Requests with the same id use the same pipe until `is_over`; then it is forgotten.
- `xhr`, `xhr_streaming`, `eventsource`: `with pipe.stream(transport) as stream:`. Each `await stream.next()` gives the
  next bytes to send, until None ends the response. `xhr` has one such piece, the body of a response with a length. Call
  it again only when the bytes were sent, also for the None.
- `xhr_send`: `await pipe.send(body)`, then 204. Without a pipe of that id it is 404.
- `websocket`: `serve_sockjs_websocket`, which makes the same calls.

A block that is left before None was returned (the connection broke, its client has left) closes the session, because
what was taken for the response may be lost.

Only text can be carried. A message with other bytes closes the session, and its code says so.
"""

import trio

from qmq.environment import Pipe
from qmq.wire.sockjs import (
    GO_AWAY,
    HEARTBEAT_FRAME,
    SockJsLimits,
    SockJsResponse,
    SockJsSession,
    SockJsTransport,
    decode_messages,
)

NORMAL_CLOSE = (1000, "Normal closure")


class SockJsPipe:
    """`qmq.environment.Pipe` over the requests of one SockJS session. `first` is the connection of the first one."""

    def __init__(self, limits: SockJsLimits, first: Pipe) -> None:
        self.peer_address = first.peer_address
        self.peer_certificate_names = first.peer_certificate_names
        self.peer_certificate_subject = first.peer_certificate_subject
        self._limits = limits
        self._session = SockJsSession(limits, trio.current_time())
        self._received = bytearray()
        self._closed = False
        self._changed = trio.Event()
        self.session = 0
        """The id of the session of STOMP."""

    def wake(self) -> None:
        """Something has changed: all that wait look again. There are three at most: reader, writer and response, and
        one for each `xhr_send` under way.
        """
        self._changed.set()
        self._changed = trio.Event()

    # For the STOMP session

    async def receive_some(self, bytes_max: int) -> bytes:
        """The joined messages of the client; b"" when the session is closed, or had no response for too long."""
        await trio.lowlevel.checkpoint()
        while not self._received:
            if self._closed:
                raise trio.ClosedResourceError
            if self._session.closed is not None:
                return b""
            changed = self._changed
            with trio.move_on_at(self._session.deadline):
                await changed.wait()
            if self._session.expire(trio.current_time()):
                self.wake()
        data = bytes(self._received[:bytes_max])
        del self._received[:bytes_max]
        self.wake()
        return data

    def send_now(self, data: bytes) -> int:
        """Take all of `data` or nothing."""
        if not data or not self._session.has_room(len(data)):
            return 0
        taken = self._session.send(data)
        self.wake()
        return len(data) if taken else 0

    async def send_all(self, data: bytes) -> None:
        """Wait until `data` may wait for a response. Raises BrokenResourceError when the session is closed."""
        await trio.lowlevel.checkpoint()
        while data and not self.send_now(data):
            if self._closed:
                raise trio.ClosedResourceError
            if self._session.closed is not None:
                raise trio.BrokenResourceError
            await self._changed.wait()

    def end_sending(self, code: int = NORMAL_CLOSE[0], reason: str = NORMAL_CLOSE[1]) -> None:
        """The next responses get what waits, and then a close frame. There is nothing more to receive."""
        self._session.close(code, reason)
        self.wake()

    def close(self) -> None:
        """Close at once. What waits is dropped, unless `end_sending` was called: then it still gets to the client."""
        if not self._closed:
            self._closed = True
            if self._session.closed is None:
                self._session.drop_waiting()
            self._session.close(*GO_AWAY)
            self._received.clear()
            self.wake()

    # For the HTTP side

    async def send(self, body: bytes) -> None:
        """Pass the messages in `body` to the session; returns when it has room for them.

        Raises HttpRefusal for a body that is wrong; nothing has changed. Messages to a closed session are dropped.
        """
        data = decode_messages(body)
        await trio.lowlevel.checkpoint()
        while self._session.closed is None:
            if not self._received or len(self._received) + len(data) <= self._limits.received_bytes_max:
                self._received += data
                self.wake()
                return
            await self._changed.wait()

    def stream(self, transport: SockJsTransport) -> "SockJsStream":
        """A receiving response begins."""
        stream = SockJsStream(self, self._session, self._session.attach(transport), self._limits)
        self.wake()
        return stream

    async def changed(self) -> None:
        """Wait until something has changed."""
        await self._changed.wait()

    @property
    def is_over(self) -> bool:
        """Whether no request can find this session any more. A session that is not read expires here, too."""
        if self._session.expire(trio.current_time()):
            self.wake()
            return True
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes from and to the client that this holds."""
        return len(self._received) + self._session.waiting_bytes


class SockJsStream:
    """One receiving response of a session."""

    def __init__(
        self, pipe: SockJsPipe, session: SockJsSession, response: SockJsResponse, limits: SockJsLimits
    ) -> None:
        self._pipe = pipe
        self._session = session
        self._response = response
        self._limits = limits
        self._ended = False

    def __enter__(self) -> "SockJsStream":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self._ended = True
            self._session.interrupt(self._response, trio.current_time())
            self._pipe.wake()

    async def next(self) -> bytes | None:
        """The next bytes of the response, a heartbeat if there is nothing for too long; None at its end."""
        await trio.lowlevel.checkpoint()
        heartbeat_at = trio.current_time() + self._limits.heartbeat_seconds
        while not self._response.is_done:
            data = self._session.take(self._response)
            if not data:
                with trio.move_on_at(heartbeat_at) as scope:
                    await self._pipe.changed()
                if not scope.cancelled_caught:
                    continue
                data = self._response.encode(HEARTBEAT_FRAME)
            self._pipe.wake()
            return data
        if not self._ended:
            self._ended = True
            self._session.detach(self._response, trio.current_time())
            self._pipe.wake()
        return None
