"""What the node does for each call of an HTTP client, and how it responds.

A call that the broker decides becomes frames of a STOMP client. Its response is sent when the broker's answer to them
is durable. Other calls ask a part of the node.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

import trio

from qmq.admin.console.requests import OVERVIEW
from qmq.admin.list_verbs import LIST, STATUS
from qmq.engine.parts import EngineParts
from qmq.errors import ProtocolError, Refused
from qmq.gateways.paused import Command
from qmq.protocols.http.client import WebClient
from qmq.protocols.http.codec import HttpConnection, HttpRequest
from qmq.protocols.http.gateway.avro import AVRO, check_writer, container
from qmq.protocols.http.gateway.control import control_of
from qmq.protocols.http.gateway.events import HEARTBEAT, EventEncoder, subscribe_of
from qmq.protocols.http.gateway.management import management_call
from qmq.protocols.http.gateway.pulls import acks_of, receive_of
from qmq.protocols.http.gateway.responses import JSON
from qmq.protocols.http.gateway.routes import Call, Route
from qmq.protocols.http.gateway.sends import TRANSACTION, held_bytes, is_batch, sends_of, single_of
from qmq.protocols.http.metrics import CONTENT_TYPE
from qmq.protocols.http.pages import PageResponse
from qmq.protocols.http.part import WebPart
from qmq.protocols.http.stomp.long_poll import Asking
from qmq.protocols.http.stomp.websocket_pipe import WebSocketPipe
from qmq.protocols.http.websocket import WebSocketFrames, WebSocketLimits, accept
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.refusals import Refusals
from qmq.verbs.table import needs_of
from qmq.wire.stomp import Frame, Head, Limits

THREAD_BYTES: Final = 128 << 10
"""A larger batch is parsed in a worker thread. So is an Avro file of any size, because it may be packed. A larger body
counts as memory until its request is answered, as the frames of a batch do.
"""

FRAMES_AT_ONCE: Final = 256
"""SENDs that are decided in one turn of the event loop."""

EVENT_STREAM: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
)

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")
"""Of WebSockets, as clients of STOMP offer them. The version is that of CONNECT, whatever was offered."""


@dataclass(eq=False, repr=False)
class WebCalls:
    """The calls of one connection, one at a time.

    `on_events` is called when the response has become a stream of events, `hold` with the bytes of memory that a
    request takes until it is answered, besides its body.
    """

    _engine: EngineParts
    _limits: Limits
    _access: Access
    _refusals: Refusals
    _part: WebPart
    _client: WebClient
    _http: HttpConnection
    _on_events: Callable[[], object]
    _hold: Callable[[int], object]

    def __post_init__(self) -> None:
        self._session = self._client.session
        self._encoder = self._client.encoder
        self.is_stream = False
        """The response goes on until the connection ends: there is no further request."""
        self._responded = trio.Event()
        self._head: tuple[HttpRequest, Head] | None = None
        """What stands for the last head of a single SEND (`HttpConnection.known`), and the head of its frame."""

    async def run(self, route: Route, request: HttpRequest) -> None:
        """Respond to one request, or begin its stream. Raises Refused and ProtocolError for the caller to answer."""
        session = self._session
        if session.allowance.is_limited and route.call not in (Call.SEND, Call.EVENTS):
            # The others have SENDs that wait for the rates themselves. For these rates a control request is a SEND.
            await session.pay(1 if route.call is Call.CONTROL else 0)
            if session.ending or session.finishing:
                return
        if (page := self._part.pages.get(route.call)) is not None:
            self._respond(page(route.about))
        else:
            await self.CALLS[route.call](self, request, route.about)

    def put(self, data: bytes) -> None:
        if data:
            self._session.outbox.put_answer(data)
            self._session.outbox.flush()

    def finish(self) -> None:
        """The client gets no response any more."""
        self._responded.set()

    def _respond(self, page: PageResponse) -> None:
        self.put(self._encoder.respond(page.status, page.facts, headers=page.headers, body=page.body))

    async def _send(self, request: HttpRequest, destination: str) -> None:
        known = self._http.known
        head = self._head[1] if self._head is not None and self._head[0] is known else None
        of = (request, destination, self._limits, head)
        if not is_batch(request):
            commands: list[Command] = [single_of(*of)]
        else:
            self._check_send(destination)
            if len(request.body) > THREAD_BYTES or AVRO in request.headers.get("content-type", "").lower():
                async with self._part.parsing:
                    commands = await self._engine.environment.run_blocking(sends_of, *of)
            else:
                commands = sends_of(*of)
            self._hold(held_bytes(commands))
        first = commands[0]
        if isinstance(first, Frame):
            self._head = None if known is None else (known, first.head)
        await self._decide(commands)

    def _check_send(self, destination: str) -> None:
        """Ask for the right before a body is parsed. Raises Refused."""
        session = self._session
        try:
            self._access.rights_of(session.principal).check_send(destination)
        except Refused as refused:
            self._engine.broker.totals.refused(destination)
            self._refusals.note_client(session, refused)
            raise

    async def _stream(self, request: HttpRequest, destination: str) -> None:
        frame, vector = subscribe_of(request, destination, self._engine.path.received_vector())
        encoder = EventEncoder(self._http, self._encoder, self._part.event_data, vector)
        gateway = self._client.gateway
        assert gateway is not None
        self._session.encoder = gateway.encoder = encoder
        await self._decide([frame])
        if self._session.finishing:
            return
        if gateway.has_refused:
            self._session.encoder = gateway.encoder = self._encoder
        else:
            self.is_stream = True
            self._on_events()

    async def _control(self, request: HttpRequest, destination: str) -> None:
        session, frames = self._session, self._client.frames
        assert frames is not None
        response = await frames.control(control_of(request, destination), request.body)
        if isinstance(response, Refused):
            raise response
        if not session.finishing:
            body = response.body or b"{}"
            self.put(self._encoder.respond(200, headers=[JSON], body=body))
        session.leave_if_dismissed()

    async def _console(self, request: HttpRequest, call: str) -> None:
        """Log a browser in or out, or begin its stream of events."""
        console, session = self._part.console, self._session
        if call == "events":
            first = console.follow(session, self._client.cookie)
            self._encoder.is_due = False
            self.put(self._http.begin_stream(200, EVENT_STREAM) + HEARTBEAT + first)
            self.is_stream = True
            self._on_events()
            return
        if call == "logout":
            facts, headers = console.log_out(request)
        else:
            facts, headers = console.log_in(request, session, self._client.cookie)
        self.put(self._encoder.respond(200, facts, headers=headers))

    async def _receive(self, request: HttpRequest, queue: str) -> None:
        wanted = receive_of(request)
        is_avro = AVRO in request.headers.get("accept", "")
        if is_avro:
            check_writer()  # What is received without it would be in flight, and counted as delivered.
        pull = await self._client.pull()
        received = await pull.receive(queue, wanted, self._session.until_left)
        if self._session.finishing:
            return
        if is_avro:
            messages = [{**pull.facts(one), "body": one.message.body} for one in received]
            self.put(self._encoder.respond(200, headers=[("content-type", AVRO)], body=container(messages)))
        else:
            self.put(self._encoder.respond(200, {"messages": [pull.facts(one) for one in received]}))

    async def _settle(self, request: HttpRequest, _: str) -> None:
        acks = acks_of(request)
        results = await self._part.pulls.settle(acks, self._session.user)
        rows = [{"ack_token": ack.text, "result": result} for ack, result in zip(acks, results, strict=True)]
        self.put(self._encoder.respond(200, {"acks": rows}))

    async def _stomp(self, request: HttpRequest, _: str) -> None:
        """STOMP over a WebSocket."""
        websocket = await self._upgrade(request)
        if not self._session.finishing:
            self.is_stream = True
            self._session.switch(websocket, self._part.stomp._replace(name="web-stomp"), self._client.login)

    async def _long_poll(self, request: HttpRequest, path: str) -> None:
        asking = Asking(self._session, self._client.pipe, self._client.login, self._encoder, self.put)
        await self._part.long_poll.serve(request, path, asking)

    async def _metrics(self, request: HttpRequest, _: str) -> None:
        self._access.rights_of(self._session.principal).check_needs(needs_of(STATUS))
        page = await self._part.metrics.read()
        self._respond(PageResponse(headers=[("content-type", CONTENT_TYPE)], body=page))

    async def _management(self, request: HttpRequest, _: str) -> None:
        call = management_call(request.path[1:])
        asked = f"{LIST}{call.about}" if call.about else OVERVIEW
        self._access.rights_of(self._session.principal).check_needs(needs_of(asked))
        page = await self._part.management.page(call, lambda: self._session.finishing)
        if not self._session.finishing:
            self._respond(page)

    async def _upgrade(self, request: HttpRequest) -> WebSocketPipe:
        """The connection becomes a WebSocket."""
        session = self._session
        headers, _ = accept(request, SUBPROTOCOLS)
        self._client.log_out()
        self._encoder.is_due = False
        self.put(self._http.switch(headers))
        await session.outbox.drained()
        frames = WebSocketFrames(WebSocketLimits(), is_text=True)
        return WebSocketPipe(self._client.pipe, frames, session.start, self._http.take_leftover())

    async def _decide(self, frames: list[Command]) -> None:
        """Decide the frames of a request, and wait until it is answered."""
        session, gateway, loop = self._session, self._client.gateway, self._client.frames
        assert gateway is not None and loop is not None
        gateway.has_refused = False
        loop.sent = self._encoder.sent
        self._responded = trio.Event()
        self._encoder.on_response = self._responded.set
        for at in range(0, len(frames), FRAMES_AT_ONCE):
            if at:
                # What is decided so far is held by the transaction of the batch.
                await trio.lowlevel.checkpoint()
            await loop.slot()
            if session.ending or session.finishing:
                return
            try:
                await loop.obey(frames[at : at + FRAMES_AT_ONCE])
            except ProtocolError:
                # JSON has texts that no header can have. The next batch must find no open transaction.
                with suppress(Refused):
                    self._engine.broker.transactions.abort(session.id, TRANSACTION)
                raise
            if gateway.has_refused:
                break
        if not self._session.finishing:
            await self._responded.wait()

    CALLS: ClassVar[Mapping[Call, Callable[["WebCalls", HttpRequest, str], Awaitable[None]]]] = {
        Call.SEND: _send,
        Call.EVENTS: _stream,
        Call.CONTROL: _control,
        Call.RECEIVE: _receive,
        Call.ACKS: _settle,
        Call.CONSOLE: _console,
        Call.STOMP: _stomp,
        Call.LONG_POLL: _long_poll,
        Call.METRICS: _metrics,
        Call.MANAGEMENT: _management,
    }
    """Call → what is done for it. All others are in PAGES."""
