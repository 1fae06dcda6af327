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

from collections.abc import Callable
from math import inf

import trio

from qmq.environment import Pipe
from qmq.errors import RemoteProtocolError
from qmq.server.web.stomp.polled_sessions import PolledPipe
from qmq.server.web.stomp.websocket_pipe import WebSocketPipe
from qmq.wire.sockjs import (
    HEARTBEAT_FRAME,
    SockJsLimits,
    SockJsResponse,
    SockJsSession,
    SockJsTransport,
    decode_messages,
)
from qmq.wire.websocket.frames import PROTOCOL_ERROR

READ_BYTES_MAX = 65536

CLOSING_SECONDS = 2.0
"""For the client to answer the close frame."""


class SockJsPipe(PolledPipe):
    """A pipe over the requests of one SockJS session."""

    def __init__(self, limits: SockJsLimits, first: Pipe) -> None:
        self._session = SockJsSession(limits, trio.current_time())
        self._limits = limits
        super().__init__(self._session, first, limits.received_bytes_max)

    async def send(self, body: bytes) -> None:
        """Pass the messages in `body` to the session; returns when it has room for them.

        Raises HttpRefusal for a body that is wrong; nothing has changed. Messages to a closed session are dropped.
        """
        await self.pass_on(decode_messages(body))

    def stream(self, transport: SockJsTransport) -> "SockJsStream":
        """A receiving response begins."""
        stream = SockJsStream(self, self._session, self._session.attach(transport), self._limits)
        self.wake()
        return stream


class SockJsStream:
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


async def serve_sockjs_websocket(
    websocket: WebSocketPipe, session: SockJsPipe, message_bytes_max: Callable[[], float] = lambda: inf
) -> None:
    """SockJS over one WebSocket: pass messages of text both ways until either side has ended.

    Does not close `websocket`; the session is closed then.

    A message that is longer than `message_bytes_max`, as it is when a part of the message arrives, ends both.

    A client that does not take what it is sent is bounded by the session, whose waiting messages have a limit. When
    cancelled, an unknown part of a message is sent, so the connection must be closed.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, websocket, session, nursery.cancel_scope)
        try:
            while messages := await websocket.receive_messages(READ_BYTES_MAX, message_bytes_max):
                for message in messages:
                    if message:  # an empty one means nothing
                        await session.send(message)
        except RemoteProtocolError:
            websocket.end_sending(PROTOCOL_ERROR, "Broken framing.")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        nursery.cancel_scope.cancel()


async def _send(websocket: WebSocketPipe, session: SockJsPipe, scope: trio.CancelScope) -> None:
    with session.stream(SockJsTransport.WEBSOCKET) as stream:
        try:
            while (frame := await stream.next()) is not None:
                await websocket.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()
            return
    websocket.end_sending()
    scope.deadline = trio.current_time() + CLOSING_SECONDS
