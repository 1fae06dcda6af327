"""SockJS on the web port: STOMP for browsers behind proxies that carry no WebSocket.

A session of STOMP runs over a `SockJsPipe`, and the requests of one SockJS session find it by the id in their path,
which the client has drawn at random.
"""

from collections.abc import Callable
from math import inf
from typing import Final

import trio

from qmq.environment import Pipe
from qmq.errors import RemoteProtocolError
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.session import ClientSession
from qmq.server.stomp.dialogue import STOMP
from qmq.server.web.stomp.polled_sessions import (
    LOGIN_BYTES_MAX,
    Asking,
    PolledContext,
    PolledPipe,
    PolledSessions,
    bytes_max,
    unless_left,
)
from qmq.server.web.stomp.websocket_pipe import WebSocketPipe
from qmq.wire.http import HttpConnection, HttpRefusal, HttpRequest
from qmq.wire.sockjs import (
    HEARTBEAT_FRAME,
    TRANSPORTS,
    SockJsLimits,
    SockJsResponse,
    SockJsSession,
    SockJsTransport,
    decode_messages,
    encode_info,
    split_route,
)
from qmq.wire.websocket.frames import PROTOCOL_ERROR

READ_BYTES_MAX = 65536

CLOSING_SECONDS = 2.0
"""For the client to answer the close frame."""


class SockJsPipe(PolledPipe):
    """A pipe over the requests of one SockJS session.

    The first receiving request makes it, and starts a STOMP session on it. `xhr` has one piece of a stream, the body of
    a response with a length. Only text can be carried: a message with other bytes closes the session, and its code says
    so.
    """

    def __init__(self, limits: SockJsLimits, first: Pipe) -> None:
        self._session = SockJsSession(limits, trio.current_time())
        self._limits = limits
        self.begun_bytes = 0
        """Of a message of a WebSocket that is not complete."""
        super().__init__(self._session, first, limits.received_bytes_max)

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + self.begun_bytes

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
    """`with pipe.stream(transport) as stream:`; each `await stream.next()` gives the next bytes to send.

    None ends the response. Call it again only when the bytes were sent, also for the None.

    A block that is left before None was returned (the connection broke, its client has left) closes the session,
    because what was taken for the response may be lost.
    """

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


ENTROPY_BITS: Final = 32

INFO: Final = "info"
SEND: Final = "xhr_send"
RAW: Final = "websocket"
"""Below the path of SockJS: a WebSocket without its frames, as at the path itself."""

SOCKJS: Final[ClientProtocol] = STOMP._replace(name="sockjs")

CREDENTIALS: Final = ("access-control-allow-credentials", "true")
"""For pages of listed origins: sockjs-client asks with credentials, of which nothing here makes use."""

NO_STORE: Final = ("cache-control", "no-store, no-transform, must-revalidate, max-age=0")


class SockJsSessions:
    """All SockJS sessions of the node."""

    def __init__(self, context: PolledContext) -> None:
        self._context = context
        self._sessions = PolledSessions[SockJsPipe](context, SOCKJS)

    async def serve(
        self,
        request: HttpRequest,
        http: HttpConnection,
        asking: Asking,
    ) -> None:
        """Answer one request below the path of SockJS. Raises HttpRefusal and Refused.

        After a stream the caller finishes the session.
        """
        session, encoder, put = asking.session, asking.encoder, asking.put
        if encoder.cors:
            encoder.cors = (*encoder.cors, CREDENTIALS)
        path = request.path[1:]
        if path == (INFO,):
            entropy = self._context.environment.rng.getrandbits(ENTROPY_BITS)
            info = encode_info(entropy)
            put(encoder.respond(200, headers=[("content-type", "application/json; charset=UTF-8")], body=info))
            return
        found = split_route(path)
        if found is None:
            raise HttpRefusal(404, "unknown-path", "There is nothing at this path of SockJS.")
        id, action = found
        if action == SEND:
            await self._sessions.known(id, asking).send(request.body)
            put(encoder.respond(204, body=b""))
            return
        transport = TRANSPORTS[action]
        if action == "xhr":
            if request.method != "POST":
                raise HttpRefusal(405, "bad-method", "The method here is POST.", headers=[("allow", "POST")])
        opened = self._sessions.find(id, asking)
        if opened is None:
            opened = self._sessions.open(id, SockJsPipe(SockJsLimits(), asking.pipe), asking)
        if transport is SockJsTransport.XHR:
            with opened.stream(transport) as stream:
                body = await unless_left(session, stream.next)
                if body is not None:
                    put(encoder.respond(200, headers=[("content-type", transport.content_type), NO_STORE], body=body))
                    await session.outbox.drained()
                    if not (session.finishing or session.outbox.broken):
                        await stream.next()
            return
        encoder.is_due = False
        put(http.begin_stream(200, [("content-type", transport.content_type), NO_STORE, *encoder.cors]))
        with opened.stream(transport) as stream:
            while (piece := await unless_left(session, stream.next)) is not None:
                put(piece)
                await session.outbox.drained()
                if session.finishing or session.outbox.broken:
                    return

    async def serve_websocket(self, websocket: WebSocketPipe, session: ClientSession, login: PendingLogin) -> None:
        """SockJS over a WebSocket, until either side has ended. `login` is that of its connection."""
        opened = SockJsPipe(SockJsLimits(), websocket)
        self._sessions.begin(opened, session, login)

        def message_bytes_max() -> int:
            opened.begun_bytes = websocket.begun_bytes
            opened.count()
            return bytes_max(opened)

        await serve_sockjs_websocket(websocket, opened, message_bytes_max)

    def body_bytes_max(self, request: HttpRequest, asking: Pipe) -> int:
        """Bytes that the body of this request may have."""
        found = split_route(request.path[1:])
        return LOGIN_BYTES_MAX if found is None else self._sessions.body_bytes_max(found[0], asking)
