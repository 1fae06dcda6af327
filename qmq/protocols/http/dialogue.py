"""A session that speaks HTTP: one request after the other, each decided as the frames of a STOMP client.

A request waits for its response before the next one is decided, so responses are in order and a client that pipelines
holds no more than one read. A stream of events ends with its connection. The client logs in with each request; what
was checked is remembered while the connection sends the same credentials.
"""

from functools import partial
from typing import Any, Final

import trio

from qmq.admin.console.logins import CSRF_HEADER
from qmq.admin.protocol_parts import ProtocolParts
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Configured
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines
from qmq.mesh.peers.calls import CallTable
from qmq.protocols.http.calls import THREAD_BYTES, WebCalls
from qmq.protocols.http.client import WebClient
from qmq.protocols.http.codec import HttpConnection, HttpLimits, HttpRefusal, HttpRequest
from qmq.protocols.http.gateway.events import HEARTBEAT
from qmq.protocols.http.gateway.origins import Origins, check_unasked
from qmq.protocols.http.gateway.responses import HttpEncoder, encode_refusal
from qmq.protocols.http.gateway.routes import BODY_BYTES, OPEN, Call, Route, route_of
from qmq.protocols.http.listener import HttpListenerSettings
from qmq.protocols.http.part import WebPart, web_part
from qmq.protocols.http.pulls import PullAcksCall
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.client_login import token_expired
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoops
from qmq.settings.rules_of_settings import wire_limits

BODY_BYTES_MAX: Final = 16 << 20
"""Of one request; a batch of messages is one."""

REQUEST_SECONDS: Final = 60.0
"""From the first byte of a request to its last one, and for a response of which the client reads nothing."""

IDLE_SECONDS: Final = 75.0
"""Between two requests. Longer than the usual 60 seconds of proxies, which must not send into a closed connection."""

HEARTBEAT_SECONDS: Final = 15.0
"""Of a stream; proxies end connections that are silent for 30 to 60 seconds."""

CHECK_SECONDS: Final = 5.0


class HttpDialogue(ClientDialogue):
    answers_each = True

    def __init__(
        self,
        engine: EngineParts,
        node: Configured,
        path: LoginPath,
        loops: FrameLoops,
        part: WebPart,
        session: ClientSession,
        pipe: Pipe,
        login: PendingLogin,
    ) -> None:
        self._node = node
        self._path = path
        self._part = part
        self._session = session
        self._pipe = pipe
        self._login = login
        login.dismiss = self._dismiss
        self._http = HttpConnection(HttpLimits(body_bytes_max=BODY_BYTES_MAX))
        self._encoder = HttpEncoder(self._http)
        session.encoder = self._encoder
        self._client = WebClient(engine, path, loops, part, session, pipe, login, self._encoder)
        self._limits = wire_limits(node.settings.limits)
        access, refusals, client = path.access, path.refusals, self._client
        self._calls = WebCalls(
            engine, self._limits, access, refusals, part, client, self._http, self._watch_stream, self._hold
        )
        listener = session.listener
        assert isinstance(listener, HttpListenerSettings), "the Unix socket speaks STOMP"
        self._origins = Origins(listener.served_hosts(path.logins.serves_anonymous(listener)), listener.origins)
        self._awaits_request = False
        self._watch = -1
        self._since = trio.current_time()
        self._is_busy = False
        self._route: Route | None = None
        """That of the request whose head was checked, while it is not answered."""
        self._admitted: tuple[HttpRequest | None, Route, Lines] | None = None
        """The last head that was checked, its route, and its CORS headers."""
        self._bytes_before = 0
        """Bytes that the client had sent when its last request was answered."""
        self._body_bytes = 0
        """Of the request that is being answered, if they are many, and what was made of it."""
        self._bytes_read = 0
        """Of responses, by the client."""

    @property
    def unfinished_bytes(self) -> int:
        return self._http.unfinished_bytes + self._body_bytes

    @property
    def awaits_frame(self) -> bool:
        return self._awaits_request or self._client.has_in_flight

    def start(self) -> None:
        self._since = trio.current_time()
        self._watch = self._path.beats.watch(self._since + CHECK_SECONDS, self._check)

    def receive(self, data: bytes) -> None:
        if self._http.is_idle:
            self._since = trio.current_time()
        self._http.receive(data)

    async def respond(self) -> None:
        session, http = self._session, self._http
        while not self._calls.is_stream and not session.finishing:
            if session.outbox.size:
                await session.outbox.drained()
                if session.finishing:
                    return
            try:
                request = http.next_request()
            except HttpRefusal as refusal:
                self._encoder.begin()
                self._calls.put(self._encoder.error(refusal))
                session.finish()
                return
            head = request or http.head
            if head is None:
                return
            self._is_busy = True
            try:
                if self._route is None and not await self._check_head(head):
                    pass
                elif request is None:
                    self._calls.put(http.interim())
                    return
                else:
                    route, self._route = self._route, None
                    assert route is not None
                    # Its message is in flight no more while the response waits for the disk.
                    self._awaits_request |= route.call is Call.ACKS
                    if len(request.body) > THREAD_BYTES:
                        self._body_bytes = len(request.body)
                        session.count()
                    await self._calls.run(route, request)
            except (Refused, ProtocolError) as error:
                self._route = None
                self._calls.put(self._encoder.error(error))
            finally:
                self._is_busy = False
                self._body_bytes = 0
                if request is not None:
                    self._awaits_request = False
                    self._bytes_before = session.bytes_in
                    self._since = trio.current_time()
            if http.must_close and not self._calls.is_stream:
                session.finish()

    def _hold(self, more: int) -> None:
        self._body_bytes += more
        self._session.count()

    async def _check_head(self, head: HttpRequest) -> bool:
        """Admit a request before its body is held; False when it is answered, or the client has left.

        Raises Refused and ProtocolError for the caller to answer.
        """
        self._encoder.begin()
        self._encoder.is_for_page = CSRF_HEADER in head.headers or head.path[:2] == ("v1", "console")
        known = self._http.known
        if self._admitted is not None and known is not None and known is self._admitted[0]:
            _, route, self._encoder.cors = self._admitted
            self._bound_body(route, head)
            if route.call in OPEN or await self._log_in(route, head):
                self._route = route
                return True
            return False
        self.note_product(head.headers.get("user-agent"))
        self._encoder.cors = self._origins.check(head)
        if head.method == "OPTIONS" and self._encoder.cors:
            self._calls.put(self._encoder.respond(204, headers=self._origins.preflight(head), body=b""))
            return False
        route = route_of(head)
        self._bound_body(route, head)
        if route.call not in OPEN or route.call is Call.LONG_POLL:
            check_unasked(head)
        if route.call not in OPEN and not await self._log_in(route, head):
            return False
        self._route = route
        if known is not None:
            self._admitted = known, route, self._encoder.cors
        return True

    async def _log_in(self, route: Route, head: HttpRequest) -> bool:
        return await self._client.log_in(head, self._bytes_before, sends=route.call is Call.SEND)

    def _bound_body(self, route: Route, head: HttpRequest) -> None:
        """Refuse a body that is larger than this call needs, before it is held. Raises HttpRefusal."""
        if route.call is Call.LONG_POLL:
            self._http.bound_body(self._part.long_poll.body_bytes_max(route.about, self._pipe))
        elif route.call is Call.CONTROL:
            self._http.bound_body(self._limits.body_bytes_max)
        elif route.call in BODY_BYTES:
            self._http.bound_body(BODY_BYTES[route.call])

    # Times

    def _check(self, now: float) -> float | None:
        """End a connection that is silent for too long between or within requests."""
        session = self._session
        if session.finishing or self._calls.is_stream:
            return None
        limits = self._node.settings.limits
        if session.outbox.size:
            if session.bytes_out != self._bytes_read:
                self._bytes_read = session.bytes_out
                self._since = now
            elif now >= self._since + REQUEST_SECONDS:
                session.finish()
                return None
        elif not self._is_busy:
            is_idle = self._http.is_idle
            seconds = (limits.login_seconds if self._login.is_pending else IDLE_SECONDS) if is_idle else REQUEST_SECONDS
            if now >= self._since + seconds:
                if not is_idle:
                    self._http.refuse()
                    self._encoder.begin()
                    self._calls.put(
                        self._encoder.error(HttpRefusal(408, "request-timeout", "The request takes too long."))
                    )
                session.finish()
                return None
        return now + CHECK_SECONDS

    def _watch_stream(self) -> None:
        self._path.beats.forget(self._watch)
        self._watch = self._path.beats.watch(trio.current_time() + HEARTBEAT_SECONDS, self._beat)

    def _beat(self, now: float) -> float | None:
        session = self._session
        if session.finishing:
            return None
        if self._client.is_expired:
            session.dismiss(token_expired())
            return None
        if not session.outbox.size:
            self._calls.put(HEARTBEAT)
        return now + HEARTBEAT_SECONDS

    def _dismiss(self, why: Refused) -> None:
        """End this login at once: another one needs its place."""
        if not self._session.finishing:
            self._session.finishing = True
            self._path.refused(self._session.peer_address, why)
            self._pipe.close()
            self._client.cancel()

    # Ends

    def note_stop(self) -> None:
        self._awaits_request = self._is_busy or self._http.is_amid_request

    def finish(self) -> None:
        self._path.admission.decided(self._login)
        self._client.cancel()
        self._calls.finish()
        self._client.leave_pull()

    def stop(self) -> None:
        self._path.beats.forget(self._watch)
        self._client.leave_pull()

    def leave(self) -> None:
        self._client.leave()
        del self._login.dismiss, self._session, self._client, self._calls


def protocol(of_node: ProtocolParts) -> ClientProtocol:
    """HTTP on one node."""
    part, sessions = web_part(of_node), of_node.sessions
    begin = partial(HttpDialogue, of_node.engine, of_node.node, sessions.login_path, sessions.loops, part)
    calls = CallTable[Any]([PullAcksCall.by(lambda parts, call: part.pulls.answer(call))])
    follow = of_node.admin.console.history.begin
    return ClientProtocol("http", begin, encode_refusal, part, calls, follow, is_for_operators=True)
