"""SockJS on the web port: STOMP for browsers behind proxies that carry no WebSocket.

A session of STOMP runs over a `SockJsPipe`, and the requests of one SockJS session find it by the id in their path,
which the client has drawn at random.
"""

from functools import partial
from typing import Final

from qmq.environment import Pipe
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.session import ClientSession
from qmq.server.stomp.dialogue import STOMP
from qmq.server.web.stomp.polled_sessions import (
    LOGIN_BYTES_MAX,
    Asking,
    PolledContext,
    PolledSessions,
    bytes_max,
    unless_left,
)
from qmq.server.web.stomp.sockjs_pipe import SockJsPipe, serve_sockjs_websocket
from qmq.server.web.stomp.websocket_pipe import WebSocketPipe
from qmq.wire.http import HttpConnection, HttpRefusal, HttpRequest
from qmq.wire.sockjs import TRANSPORTS, SockJsLimits, SockJsTransport, encode_info, split_route

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
        await serve_sockjs_websocket(websocket, opened, partial(bytes_max, opened))

    def body_bytes_max(self, request: HttpRequest, asking: Pipe) -> int:
        """Bytes that the body of this request may have."""
        found = split_route(request.path[1:])
        return LOGIN_BYTES_MAX if found is None else self._sessions.body_bytes_max(found[0], asking)
