"""A session that speaks HTTP: one request after the other, each decided as the frames of a STOMP client.

A request waits for its response before the next one is decided, so responses are in order and a client that pipelines
holds no more than one read. A stream of events ends with its connection. The client logs in with each request; what
was checked is remembered while the connection sends the same credentials.
"""

import base64
from collections.abc import Collection
from functools import partial
from typing import Final, Protocol

import trio

from qmq.auth.credentials import Credentials, Grant
from qmq.config import HttpListenerSettings
from qmq.dots import Vector
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines
from qmq.gateways.http.avro import AVRO, container, schema_page
from qmq.gateways.http.control import control_of
from qmq.gateways.http.events import HEARTBEAT, EventData, EventEncoder, subscribe_of
from qmq.gateways.http.origins import Origins, check_type
from qmq.gateways.http.pulls import acks_of, receive_of
from qmq.gateways.http.responses import JSON, HttpEncoder, encode_refusal
from qmq.gateways.http.routes import BODY_BYTES, OPEN, Call, Route, route_of
from qmq.gateways.http.sends import MESSAGES_MAX, is_batch, sends_of, single_of
from qmq.gateways.stomp import StompGateway
from qmq.server.admin.control import STATUS
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.session import ClientSession
from qmq.server.console.logins import CSRF_HEADER
from qmq.server.definitions.schemas import SchemaDefinitions
from qmq.server.stomp.dialogue import STOMP
from qmq.server.stomp.frame_loop import FrameContext, FrameLoop
from qmq.server.stomp.login_exchange import LoginContext
from qmq.server.web.console import WebConsole, file_response
from qmq.server.web.files import JAVASCRIPT, file_of
from qmq.server.web.health import HealthContext, livez, readyz
from qmq.server.web.long_poll import LongPollSessions
from qmq.server.web.metrics import CONTENT_TYPE, MetricsContext, metrics_page
from qmq.server.web.polled_sessions import Asking
from qmq.server.web.pulls import NoSource, Pulls, PullSession
from qmq.server.web.sockjs import RAW, SockJsSessions
from qmq.server.web.websocket_pipe import WebSocketPipe
from qmq.wire.http import HttpConnection, HttpLimits, HttpRefusal, HttpRequest
from qmq.wire.stomp import Frame, Head, Limits, Version
from qmq.wire.websocket import WebSocketFrames, WebSocketLimits, accept

BODY_BYTES_MAX: Final = 16 << 20
"""Of one request; a batch of messages is one."""

THREAD_BYTES: Final = 128 << 10
"""A larger batch is parsed in a worker thread. So is an Avro file of any size, because it may be packed. A larger body
counts as memory until its request is answered.
"""

FRAMES_AT_ONCE: Final = 256
"""SENDs that are decided in one turn of the event loop."""

REQUEST_SECONDS: Final = 60.0
"""From the first byte of a request to its last one, and for a response of which the client reads nothing."""

IDLE_SECONDS: Final = 75.0
"""Between two requests. Longer than the usual 60 seconds of proxies, which must not send into a closed connection."""

HEARTBEAT_SECONDS: Final = 15.0
"""Of a stream; proxies end connections that are silent for 30 to 60 seconds."""

EVENT_STREAM: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
)

CHECK_SECONDS: Final = 5.0

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")
"""Of WebSockets, as clients of STOMP offer them. The version is that of CONNECT, whatever was offered."""

CONTROL_SEND: Final = Frame(Head("SEND", {}, Version.V12), b"", None)
"""For the rate of a user a control request is a SEND."""

WEB_STOMP: Final = STOMP._replace(name="web-stomp")


class WebContext(FrameContext, LoginContext, HealthContext, MetricsContext, Protocol):
    """What an HTTP session needs of its node."""

    event_data: EventData
    long_poll: LongPollSessions
    pulls: Pulls
    schemas: SchemaDefinitions
    sockjs: SockJsSessions
    web_console: WebConsole
    wire_limits: Limits

    def received_vector(self) -> Vector: ...


class HttpDialogue:
    """See `ClientDialogue`."""

    def __init__(self, context: WebContext, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self._context = context
        self._session = session
        self._pipe = pipe
        self._login = login
        login.dismiss = self._dismiss
        self._http = HttpConnection(HttpLimits(body_bytes_max=BODY_BYTES_MAX))
        self._encoder = HttpEncoder(self._http)
        session.encoder = self._encoder
        listener = session.listener
        assert isinstance(listener, HttpListenerSettings), "the Unix socket speaks STOMP"
        self._origins = Origins(listener.served_hosts(context.logins.serves_anonymous(listener)), listener.origins)
        self.ahead = b""
        self.keep_open = False
        self._awaits_request = False
        self._gateway: StompGateway | None = None
        self._frames: FrameLoop | None = None
        self._said: str | None = None
        self._cookie: str | None = None
        """The token of a browser that is logged in by its cookie."""
        self._expires_us = 0
        self._checking = trio.CancelScope()
        self._responded = trio.Event()
        self._watch = -1
        self._since = trio.current_time()
        self._is_busy = False
        self._is_stream = False
        self._route: Route | None = None
        """That of the request whose head was checked, while it is not answered."""
        self._admitted: tuple[HttpRequest | None, Route, Lines] | None = None
        """The last head that was checked, its route, and its CORS headers."""
        self._head: tuple[HttpRequest, Head] | None = None
        """What stands for the last head of a single SEND (`HttpConnection.known`), and the head of its frame."""
        self._bytes_before = 0
        """Bytes that the client had sent when its last request was answered."""
        self._body_bytes = 0
        """Of the request that is being answered, if they are many."""
        self._bytes_read = 0
        """Of responses, by the client."""
        self._pull: PullSession | None = None

    @property
    def unfinished_bytes(self) -> int:
        return self._http.unfinished_bytes + self._body_bytes

    @property
    def awaits_frame(self) -> bool:
        return self._awaits_request or (self._pull is not None and self._pull.has_in_flight)

    def start(self) -> None:
        self._since = trio.current_time()
        self._watch = self._context.beats.watch(self._since + CHECK_SECONDS, self._check)

    def receive(self, data: bytes) -> None:
        if self._http.is_idle:
            self._since = trio.current_time()
        self._http.receive(data)

    async def respond(self) -> None:
        session, http = self._session, self._http
        while not self._is_stream and not session.finishing:
            if session.outbox.size:
                await session.outbox.drained()
                if session.finishing:
                    return
            try:
                request = http.next_request()
            except HttpRefusal as refusal:
                self._encoder.begin()
                self._put(self._encoder.error(refusal))
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
                    self._put(http.interim())
                    return
                else:
                    route, self._route = self._route, None
                    assert route is not None
                    if len(request.body) > THREAD_BYTES:
                        self._body_bytes = len(request.body)
                        session.count()
                    await self._run(route, request)
            except (Refused, ProtocolError) as error:
                self._route = None
                self._put(self._encoder.error(error))
            finally:
                self._is_busy = False
                self._body_bytes = 0
                if request is not None:
                    self._awaits_request = False
                    self._bytes_before = session.bytes_in
                    self._since = trio.current_time()
            if http.must_close and not self._is_stream:
                session.finish()

    def _put(self, data: bytes) -> None:
        if data:
            self._session.outbox.put_answer(data)
            self._session.outbox.flush()

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
            if route.call in OPEN or await self._log_in(head):
                self._route = route
                return True
            return False
        self._encoder.cors = self._origins.check(head)
        if head.method == "OPTIONS" and self._encoder.cors:
            self._put(self._encoder.respond(204, headers=self._origins.preflight(head), body=b""))
            return False
        route = route_of(head)
        self._bound_body(route, head)
        if route.call not in OPEN or route.call is Call.LONG_POLL:
            check_type(head)
        if route.call not in OPEN:
            if not await self._log_in(head):
                return False
        self._route = route
        if known is not None:
            self._admitted = known, route, self._encoder.cors
        return True

    def _bound_body(self, route: Route, head: HttpRequest) -> None:
        """Refuse a body that is larger than this call needs, before it is held. Raises HttpRefusal."""
        if route.call is Call.STOMP:
            self._http.bound_body(self._context.sockjs.body_bytes_max(head, self._pipe))
        elif route.call is Call.LONG_POLL:
            self._http.bound_body(self._context.long_poll.body_bytes_max(route.about, self._pipe))
        elif route.call is Call.CONTROL:
            self._http.bound_body(self._context.wire_limits.body_bytes_max)
        elif route.call in BODY_BYTES:
            self._http.bound_body(BODY_BYTES[route.call])

    async def _run(self, route: Route, request: HttpRequest) -> None:
        """Respond to one request, or begin its stream. Raises Refused and ProtocolError for the caller to answer."""
        session = self._session
        if session.allowance.is_limited and route.call not in (Call.SEND, Call.EVENTS):
            # The others have frames that wait for the rates themselves.
            sends = [CONTROL_SEND] if route.call is Call.CONTROL else []
            await self._context.usages.portion(session.allowance, sends, session.bytes_in)
            if session.ending or session.finishing:
                return
        if route.call is Call.SEND:
            await self._send(request, route.about)
        elif route.call is Call.EVENTS:
            await self._stream(request, route.about)
        elif route.call is Call.CONTROL:
            await self._control(request, route.about)
        elif route.call is Call.RECEIVE:
            await self._receive(request, route.about)
        elif route.call is Call.ACKS:
            acks = acks_of(request)
            results = await self._context.pulls.settle(acks, self._session.user)
            rows = [{"ack_token": ack.text, "result": result} for ack, result in zip(acks, results, strict=True)]
            self._put(self._encoder.respond(200, {"acks": rows}))
        elif route.call is Call.PAGE:
            self._put(self._encoder.respond(200, headers=(found := file_response(route.about))[0], body=found[1]))
        elif route.call is Call.CONSOLE:
            self._console(request, route.about)
        elif route.call is Call.STOMP:
            await self._stomp(request, route.about)
        elif route.call is Call.LONG_POLL:
            await self._context.long_poll.serve(request, route.about, self._asking())
        elif route.call is Call.OPENAPI:
            self._put(self._encoder.respond(200, headers=[JSON], body=file_of("openapi.json")))
        elif route.call is Call.MESSAGE_SCHEMA:
            self._put(self._encoder.respond(200, headers=[JSON], body=schema_page()))
        elif route.call is Call.SCHEMA:
            self._put(self._encoder.respond(200, self._context.schemas.value_of(route.about)))
        elif route.call is Call.SCRIPT:
            self._put(self._encoder.respond(200, headers=[JAVASCRIPT], body=file_of("qmq.js")))
        elif route.call is Call.LIVEZ:
            self._put(self._encoder.respond(*livez(self._context)))
        elif route.call is Call.READYZ:
            self._put(self._encoder.respond(*readyz(self._context)))
        elif route.call is Call.METRICS:
            self._context.rights_of(self._session.principal).check_control(STATUS)
            page = await metrics_page(self._context)
            self._put(self._encoder.respond(200, headers=[("content-type", CONTENT_TYPE)], body=page))
        else:
            raise HttpRefusal(404, "unknown-path", "There is nothing at this path.")

    # Calls

    async def _send(self, request: HttpRequest, destination: str) -> None:
        context = self._context
        if not is_batch(request):
            known = self._http.known
            head = self._head[1] if self._head is not None and self._head[0] is known else None
            frames = [single_of(request, destination, context.wire_limits, head)]
            self._head = None if known is None else (known, frames[0].head)
        elif len(request.body) > THREAD_BYTES or AVRO in request.headers.get("content-type", "").lower():
            frames = await context.environment.run_blocking(
                partial(sends_of, request, destination, context.wire_limits)
            )
        else:
            frames = sends_of(request, destination, context.wire_limits)
        await self._decide(frames)

    async def _stream(self, request: HttpRequest, destination: str) -> None:
        frame, vector = subscribe_of(request, destination, self._context.received_vector())
        encoder = EventEncoder(self._http, self._encoder, self._context.event_data, vector)
        gateway = self._gateway
        assert gateway is not None
        self._session.encoder = gateway.encoder = encoder
        await self._decide([frame])
        if self._session.finishing:
            return
        if gateway.has_refused:
            self._session.encoder = gateway.encoder = self._encoder
        else:
            self._is_stream = True
            self._watch_stream()

    async def _control(self, request: HttpRequest, destination: str) -> None:
        session = self._session
        assert self._frames is not None
        response = await self._frames.control(control_of(request, destination), request.body)
        if isinstance(response, Refused):
            raise response
        if not session.finishing:
            body = response.body or b"{}"
            self._put(self._encoder.respond(200, headers=[JSON], body=body))
        if session.leaves_with is not None:
            session.end_in_order(session.leaves_with)

    def _console(self, request: HttpRequest, call: str) -> None:
        """Log a browser in or out, or begin its stream of events."""
        console, session = self._context.web_console, self._session
        if call == "events":
            first = console.follow(session, self._cookie)
            self._encoder.is_due = False
            self._put(self._http.begin_stream(200, EVENT_STREAM) + HEARTBEAT + first)
            self._is_stream = True
            self._watch_stream()
            return
        if call == "logout":
            facts, headers = console.log_out(self._cookie)
        else:
            facts, headers = console.log_in(request, session, self._expires_us)
        self._put(self._encoder.respond(200, facts, headers=headers))

    async def _receive(self, request: HttpRequest, queue: str) -> None:
        wanted = receive_of(request)
        if self._pull is None or self._pull.has_ended:
            self._pull = await self._context.pulls.open(self._session)
        pull = self._pull
        received = await pull.receive(queue, wanted, self._session.until_left)
        if self._session.finishing:
            return
        if AVRO in request.headers.get("accept", ""):
            messages = [{**pull.facts(one), "body": one.message.body} for one in received]
            self._put(self._encoder.respond(200, headers=[("content-type", AVRO)], body=container(messages)))
        else:
            self._put(self._encoder.respond(200, {"messages": [pull.facts(one) for one in received]}))

    async def _stomp(self, request: HttpRequest, below: str) -> None:
        """STOMP for browsers: over a WebSocket, or over SockJS."""
        session = self._session
        is_websocket = below in ("", RAW)
        if is_websocket or below.endswith(f"/{RAW}"):
            websocket = await self._upgrade(request)
            if session.finishing:
                return
            self._is_stream = True
            if is_websocket:
                session.switch(websocket, WEB_STOMP, self._login)
            else:
                await self._context.sockjs.serve_websocket(websocket, session, self._login)
                session.finish()
            return
        await self._context.sockjs.serve(request, self._http, self._asking())
        if self._http.must_close:
            self._is_stream = True
            session.finish()

    def _asking(self) -> Asking:
        return Asking(self._session, self._pipe, self._login, self._encoder, self._put)

    async def _upgrade(self, request: HttpRequest) -> WebSocketPipe:
        """The connection becomes a WebSocket."""
        session = self._session
        headers, _ = accept(request, SUBPROTOCOLS)
        if self._gateway is not None:
            self._log_out()
            session.principal = session.user = None
            self._gateway = None
        self._encoder.is_due = False
        self._put(self._http.switch(headers))
        await session.outbox.drained()
        frames = WebSocketFrames(WebSocketLimits(), is_text=True)
        return WebSocketPipe(self._pipe, frames, session.start, self._http.take_leftover())

    async def _decide(self, frames: list[Frame]) -> None:
        """Decide the frames of a request, and wait until it is answered."""
        context, session, gateway, loop = self._context, self._session, self._gateway, self._frames
        assert gateway is not None and loop is not None
        gateway.has_refused = False
        loop.sent = self._encoder.sent
        self._responded = trio.Event()
        self._encoder.on_response = self._responded.set
        for at in range(0, len(frames), FRAMES_AT_ONCE):
            session.waits_for_slot = True
            await context.slot(session.id)
            session.waits_for_slot = False
            if session.ending or session.finishing:
                return
            await loop.obey(frames[at : at + FRAMES_AT_ONCE])
            if gateway.has_refused:
                break
        if not self._session.finishing:
            await self._responded.wait()

    # Login

    async def _log_in(self, request: HttpRequest) -> bool:
        """Log the client in with the credentials of the request; False when it has left. Raises Refused."""
        context, session = self._context, self._session
        said = request.headers.get("authorization") or _token_in(request)
        cookie = None if said else context.web_console.cookie_of(request)
        if self._gateway is not None and (said, cookie) == (self._said, self._cookie) and not self._is_expired():
            return True
        self._login.is_silent = False
        context.admission.check_open()
        self._checking = trio.CancelScope()
        grant: Grant | None = None
        try:
            with self._checking:
                grant = context.web_console.grant_of(cookie) or await context.logins.check(
                    self._credentials(said), session.listener, session.until_left, self._certified()
                )
        except Refused as refused:
            login = self._credentials(said).login
            context.refusals.note(session.peer_address, refused, login, is_user=context.logins.is_user(login))
            raise
        if session.finishing:
            context.logins.leave(None if grant is None else grant.principal.name)
            return False
        is_first = self._gateway is None
        if not is_first:
            self._log_out()
        principal = None if grant is None else grant.principal
        session.principal = principal
        session.user = None if principal is None else principal.name
        session.authenticator = "" if grant is None else grant.authenticator
        self._expires_us = 0 if grant is None else grant.expires_us or 0
        self._said, self._cookie = said, cookie
        self._gateway = StompGateway(
            session.id,
            context.broker,
            context.rules,
            Version.V12,
            False,
            rights=context.rights_of(principal),
            user=session.user,
            encoder=self._encoder,
            is_atomic=True,
        )
        self._frames = FrameLoop(context, session, self._gateway, NoSource())
        session.begin()
        if not is_first and session.allowance.is_limited:
            session.allowance.skip(self._bytes_before)
        context.broker.sessions[session.id].transaction_frames_max = MESSAGES_MAX
        context.admission.decided(self._login)
        if session.user is not None and cookie is None:
            context.audit("login", user=session.user, address=session.peer_address, authenticator=session.authenticator)
        return True

    def _log_out(self) -> None:
        """End the client that was logged in; the connection stays."""
        self._leave_pull()
        self._session.close_client()
        self._context.logins.leave(self._session.user)

    def _is_expired(self) -> bool:
        if self._cookie is not None and not self._context.web_console.is_open(self._cookie):
            return True
        return bool(self._expires_us) and self._context.environment.now_us() >= self._expires_us

    def _credentials(self, said: str | None) -> Credentials:
        """The credentials in `Authorization`. Raises HttpRefusal for a header that has none."""
        login = token = None
        passcode = ""
        scheme, _, value = (said or "").partition(" ")
        if scheme.lower() == "basic":
            try:
                login, colon, passcode = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                colon = ""
            if not colon:
                raise HttpRefusal(400, "bad-header", "The header Authorization has no name and passcode in base64.")
        elif scheme.lower() == "bearer":
            token = value.strip()
        elif said:
            raise HttpRefusal(400, "bad-header", "The header Authorization is Basic or Bearer.")
        return Credentials(
            login,
            passcode,
            token,
            address=self._session.peer_address,
            node=self._context.broker.origin.node,
            tls_names=self._pipe.peer_certificate_names,
        )

    def _certified(self) -> Collection[str]:
        source = None if self._session.listener is None else self._session.listener.certificate_user
        if source is None:
            return ()
        return self._pipe.peer_certificate_subject if source == "subject" else self._pipe.peer_certificate_names

    # Times

    def _check(self, now: float) -> float | None:
        """End a connection that is silent for too long between or within requests."""
        session = self._session
        if session.finishing or self._is_stream:
            return None
        limits = self._context.limits
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
                    self._put(self._encoder.error(HttpRefusal(408, "request-timeout", "The request takes too long.")))
                session.finish()
                return None
        return now + CHECK_SECONDS

    def _watch_stream(self) -> None:
        self._context.beats.forget(self._watch)
        self._watch = self._context.beats.watch(trio.current_time() + HEARTBEAT_SECONDS, self._beat)

    def _beat(self, now: float) -> float | None:
        session = self._session
        if session.finishing:
            return None
        if self._is_expired():
            session.dismiss(Refused("token-expired", "The token of this connection has expired."))
            return None
        if not session.outbox.size:
            self._put(HEARTBEAT)
        return now + HEARTBEAT_SECONDS

    def _dismiss(self, why: Refused) -> None:
        """End this login at once: another one needs its place."""
        if not self._session.finishing:
            self._session.finishing = True
            self._context.refusals.note(self._session.peer_address, why)
            self._pipe.close()
            self._checking.cancel()

    # Ends

    def note_stop(self) -> None:
        self._awaits_request = self._is_busy or self._http.is_amid_request

    def release(self) -> None:
        pass

    def finish(self) -> None:
        self._context.admission.decided(self._login)
        self._checking.cancel()
        self._responded.set()
        self._leave_pull()

    def stop(self) -> None:
        self._context.beats.forget(self._watch)
        self._leave_pull()

    def _leave_pull(self) -> None:
        if self._pull is not None:
            self._pull.leave()
            self._pull = None

    def leave(self) -> None:
        self._context.admission.leave(self._login)
        self._context.logins.leave(self._session.user)
        del self._login.dismiss, self._session, self._frames, self._gateway


def _token_in(request: HttpRequest) -> str | None:
    """A token in the query, for `EventSource`, which can send no headers."""
    token = request.query.get("access_token")
    return None if token is None or request.method != "GET" else f"Bearer {token}"


HTTP: Final = ClientProtocol("http", HttpDialogue, encode_refusal)
