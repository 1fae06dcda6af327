"""SockJS on the web port: STOMP for browsers behind proxies that carry no WebSocket.

A session of STOMP runs over a `SockJsPipe`, and the requests of one SockJS session find it by the id in their path.
That id is all that names the session, so it must be hard to guess; clients draw it at random. A request from another
address does not find it.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import trio

from qmq.config import ListenerSettings
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.gateways.http.responses import HttpEncoder
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.session import ClientSession, SessionContext
from qmq.server.runtime.contexts import Tasks
from qmq.server.stomp.dialogue import STOMP
from qmq.server.web.sockjs_pipe import SockJsPipe
from qmq.server.web.sockjs_websocket import serve_sockjs_websocket
from qmq.server.web.websocket_pipe import WebSocketPipe
from qmq.wire.http import HttpConnection, HttpRefusal, HttpRequest
from qmq.wire.sockjs import TRANSPORTS, SockJsLimits, SockJsTransport, encode_info, split_route

SESSIONS_MAX: Final = 10_000
"""Of one node. Beyond it a new one is refused; each is also a connection, with the bounds of connections."""

SWEEP_SECONDS: Final = 5.0
"""Between two looks for sessions that have ended."""

LOGIN_BYTES_MAX: Final = 64 << 10
"""Of a request, and of a message of a WebSocket, while its session has not logged in."""

BODY_BYTES_MAX: Final = 16 << 20
"""Of both after the login: room for the largest frame of STOMP, in JSON."""

ENTROPY_BITS: Final = 32

INFO: Final = "info"
SEND: Final = "xhr_send"
RAW: Final = "websocket"
"""Below the path of SockJS: a WebSocket without its frames, as at the path itself."""

SOCKJS: Final[ClientProtocol] = STOMP._replace(name="sockjs")

NO_STORE: Final = ("cache-control", "no-store, no-transform, must-revalidate, max-age=0")


class SockJsContext(SessionContext, Tasks, Protocol):
    """What SockJS needs of the node."""


class SockJsSessions:
    """All SockJS sessions of the node."""

    def __init__(self, context: SockJsContext) -> None:
        self._context = context
        self._pipes: dict[str, SockJsPipe] = {}
        self._sweeps = False

    async def serve(
        self,
        request: HttpRequest,
        http: HttpConnection,
        encoder: HttpEncoder,
        session: ClientSession,
        pipe: Pipe,
        put: Callable[[bytes], None],
        decided: Callable[[], None],
    ) -> None:
        """Answer one request below the path of SockJS, on the connection `pipe` of `session`. Raises HttpRefusal and
        Refused. After a stream the caller finishes the session.

        `decided` is called for a receiving response: its connection lives as long as the session of STOMP behind it,
        whose own login is pending.
        """
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
            known = self._find(id, pipe)
            if known is None:
                raise HttpRefusal(404, "unknown-session", "There is no SockJS session with this id.")
            await known.send(request.body)
            put(encoder.respond(204, body=b""))
            return
        transport = TRANSPORTS[action]
        if action == "xhr":
            if request.method != "POST":
                raise HttpRefusal(405, "bad-method", "The method here is POST.", headers=[("allow", "POST")])
        opened = self._find(id, pipe) or self._open(id, session, pipe)
        decided()
        if transport is SockJsTransport.XHR:
            with opened.stream(transport) as stream:
                body = await self._or_left(session, stream.next)
                if body is not None:
                    put(encoder.respond(200, headers=[("content-type", transport.content_type), NO_STORE], body=body))
                    await session.outbox.drained()
                    await stream.next()
            return
        encoder.is_due = False
        put(http.begin_stream(200, [("content-type", transport.content_type), NO_STORE, *encoder.cors]))
        with opened.stream(transport) as stream:
            while (piece := await self._or_left(session, stream.next)) is not None:
                put(piece)
                await session.outbox.drained()
                if session.finishing or session.outbox.broken:
                    return

    async def serve_websocket(self, websocket: WebSocketPipe, session: ClientSession, login: PendingLogin) -> None:
        """SockJS over a WebSocket, until either side has ended. `login` is that of its connection."""
        opened = self._begin(session, websocket)
        self._context.admission.decided(login)
        await serve_sockjs_websocket(websocket, opened, partial(self._bytes_max, opened))

    def body_bytes_max(self, request: HttpRequest, pipe: Pipe) -> int:
        """Bytes that the body of this request may have."""
        found = split_route(request.path[1:])
        known = None if found is None else self._find(found[0], pipe)
        return LOGIN_BYTES_MAX if known is None else self._bytes_max(known)

    def _bytes_max(self, pipe: SockJsPipe) -> int:
        return BODY_BYTES_MAX if pipe.session in self._context.sessions else LOGIN_BYTES_MAX

    async def _or_left(self, session: ClientSession, take: "Take") -> bytes | None:
        """The next piece of a response; None when it has ended, or the client has left."""
        piece: bytes | None = None
        async with trio.open_nursery() as nursery:

            async def until_left() -> None:
                try:
                    await session.until_left()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_left)
            piece = await take()
            nursery.cancel_scope.cancel()
        return piece

    def _find(self, id: str, pipe: Pipe) -> SockJsPipe | None:
        known = self._pipes.get(id)
        if known is None or known.is_over or known.peer_address != pipe.peer_address:
            return None
        return known

    def _open(self, id: str, session: ClientSession, pipe: Pipe) -> SockJsPipe:
        if id in self._pipes and not self._pipes[id].is_over:
            raise HttpRefusal(404, "unknown-session", "There is no SockJS session with this id.")
        if len(self._pipes) >= SESSIONS_MAX:
            raise Refused("too-many-connections", f"At most {SESSIONS_MAX} SockJS sessions may be open.")
        opened = self._pipes[id] = self._begin(session, pipe)
        if not self._sweeps:
            self._sweeps = True
            self._context.spawn(self._sweep)
        return opened

    def _begin(self, session: ClientSession, pipe: Pipe) -> SockJsPipe:
        """A session of STOMP over a new pipe; it is a connection of its own. Raises Refused."""
        opened = SockJsPipe(SockJsLimits(), pipe)
        login = self._context.admission.admit(pipe.peer_address, now=trio.current_time())
        listener: ListenerSettings | None = session.listener
        begun = ClientSession(self._context, opened, listener, login, SOCKJS)
        opened.session = begun.id
        self._context.spawn(begun.serve)
        return opened

    async def _sweep(self) -> None:
        while self._pipes:
            await trio.sleep(SWEEP_SECONDS)
            self._pipes = {id: pipe for id, pipe in self._pipes.items() if not pipe.is_over}
        self._sweeps = False


class Take(Protocol):
    """Waits for the next piece."""

    async def __call__(self) -> bytes | None: ...
