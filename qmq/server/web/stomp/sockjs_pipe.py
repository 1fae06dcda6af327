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
from qmq.server.web.stomp.polled_pipe import PolledPipe
from qmq.wire.sockjs import (
    HEARTBEAT_FRAME,
    SockJsLimits,
    SockJsResponse,
    SockJsSession,
    SockJsTransport,
    decode_messages,
)


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
