"""One client from accept to close.

The session reads, lets the codec cut frames, waits for a commit slot, lets the gateway decide, and submits, with no
`await` between decision and submission. Responses and messages come back through `Dispatcher` into the outbox. An error
here ends this connection and no other (`serve` is the guard).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Protocol

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.consumers.session import ClientState as Client
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.config import LimitSettings, ListenerSettings
from qmq.environment import Environment, Pipe
from qmq.errors import ProtocolError, Refused, RemoteProtocolError, StorageError
from qmq.gateways.error_frames import encode_error
from qmq.gateways.headers import window
from qmq.gateways.paused import Paused, PauseReason
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.server.clients.admission import Admission, PendingLogin
from qmq.server.clients.login import Logins
from qmq.server.clients.memory_budget import MemoryBudget
from qmq.server.clients.outbox import ClientOutbox
from qmq.server.clients.refusals import Refusals
from qmq.server.peers.control_response import ControlResponse
from qmq.server.peers.dedup_query import DedupQuery
from qmq.server.runtime.certificates import Certificates
from qmq.server.runtime.contexts import Alarming, Committing
from qmq.server.runtime.heartbeats import Heartbeats
from qmq.server.runtime.latch import Latch
from qmq.wire.stomp import (
    HEARTBEAT,
    Connection,
    Frame,
    HeadCaches,
    Limits,
    Role,
    Version,
    encode_frame,
    negotiate_heartbeat,
    parse_heartbeat,
)

CONTROL = "/control/"

READ_BYTES_MAX = 65536
REPLY_KEY_BITS = 64

SECOND_POLL_SECONDS = 0.25
"""A client that seems silent gets this much longer: a process that was stopped must read before it judges."""

log = logging.getLogger("qmq.session")


class SessionContext(Committing, Alarming, Protocol):
    """What a session needs of its node."""

    broker: Broker
    environment: Environment
    rules: Rules
    limits: LimitSettings
    wire_limits: Limits
    caches: HeadCaches
    admission: Admission
    logins: Logins
    refusals: Refusals
    beats: Heartbeats
    memory_budget: MemoryBudget
    dedup_query: DedupQuery
    certificates: Certificates
    sessions: "dict[int, ClientSession]"
    software: str

    def after_delivery(self, session: int, do: Callable[[], None]) -> None:
        """Call `do` when all topic messages that `session` sent are delivered."""

    async def answer(self, user: str | None, headers: Mapping[str, str]) -> ControlResponse:
        """Respond to a control request to the node, or to the mesh. Raises Refused. May take seconds."""

    def check_right(self, user: str | None, destination: str) -> None:
        """Raises Refused when the user may not use this control destination or system topic."""

    def new_session_id(self) -> int:
        """A number never used before in this process."""


class ClientSession:
    """One connection. `version` is the STOMP version agreed; until login it is 0 and nothing is delivered."""

    def __init__(
        self, context: SessionContext, pipe: Pipe, listener: ListenerSettings | None, login: PendingLogin
    ) -> None:
        self.id = context.new_session_id()
        self.version = Version.V10
        self.user: str | None = None
        self.finishing = False
        self._ending = False
        self._reader_done = Latch()
        self._left = Latch()
        self.closed = Latch()
        self.unsettled: list[Delivery] = []
        """Delivered to `auto` subscriptions and not yet with the kernel."""
        self.deferred: deque[tuple[Subscription, list[Delivery]]] | None = None
        """In flight to this client, and not encoded until it has read its waiting frames; None for nothing."""
        self.buffered: deque[Subscription] | None = None
        """Subscriptions of this client with a non-empty declared buffer, or None; `SubscriberBuffers` serves them in
        turn.
        """
        self.buffered_bytes = 0
        self.held_bytes = 0
        """The memory that this session makes the node hold, as `MemoryBudget` counts it."""
        self._context = context
        self._pipe = pipe
        self.listener = listener
        """None: the client is at the Unix socket of the node."""
        self._login = login
        login.dismiss = self._dismiss
        self._connection = Connection(Role.SERVER, context.wire_limits, context.caches, gathers=True)
        self._gateway: StompGateway | None = None
        self._nursery: trio.Nursery | None = None
        self._checking = trio.CancelScope()
        """Covers the response to CONNECT."""
        self._ahead = b""
        """Bytes that arrived during a password check and are still to be read."""
        self._deadline = -1
        self._received_at = self._sent_at = trio.current_time()
        self._doubted_at = 0.0
        self._waits_for_slot = False
        self._is_costly = False
        self._awaits_frame = False
        self._silence_seconds = 0.0
        self._heartbeat_seconds = 0.0
        self._client: Client | None = None
        # The part of `held_bytes` that the client's frames cause, and whether its last read made that grow.
        self._frames_bytes = 0
        self._grows = False
        self.outbox = ClientOutbox(pipe, self._start, self._grew)

    @property
    def keep_open(self) -> bool:
        """Whether the client requested to stay after an ERROR that is not its fault (`on-error:keep-open`)."""
        return self._gateway is not None and self._gateway.keep_open

    @property
    def peer_address(self) -> str:
        return self._pipe.peer_address

    def _start(self, task: Callable[[], object]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)  # type: ignore[arg-type]  # trio wants the coroutine function's full type

    async def serve(self) -> None:
        """Serve until either side is done, then close. Never raises Exception."""
        context = self._context
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    self._deadline = context.beats.watch(
                        trio.current_time() + context.limits.login_seconds, self._check_login
                    )
                    await self._receive_until_end()
                    self._reader_done.set()
                    self.end_in_order()
                    await self._left.wait()
                    nursery.cancel_scope.cancel()
                finally:
                    # The nursery closes before this task runs again, and other tasks may still deliver to this client
                    # in between: no task may be started for it any more.
                    self.finishing = True
                    self.outbox.break_off()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("! %s connection broke", self.id)
        except* StorageError as failed:
            # The next writer to that store stops the node, with the same error text.
            log.error("! %s session failed: %s", self.id, _first(failed))
        except* Exception:
            log.exception("! %s session failed; its connection is closed, others continue", self.id)
        finally:
            self._pipe.close()
            self._end()

    def _grew(self, delta: int) -> None:
        self._context.memory_budget.change(self, delta)

    def _count(self) -> None:
        """Count the bytes of the client that the node still holds."""
        held = self._connection.unfinished_bytes
        if self._client is not None:
            held += self._client.held_bytes + self._client.asked_bytes
        if held != self._frames_bytes:
            self._grows = held > self._frames_bytes
            self._context.memory_budget.change(self, held - self._frames_bytes)
            self._frames_bytes = held

    def _release(self) -> None:
        """Requeue what the client has in flight, however long its connection stays open."""
        self._client = None
        self._connection.forget()
        if self.id in self._context.broker.sessions:
            out = Outcome(now_us=self._context.environment.now_us())
            self._context.broker.close_session(self.id, out)
            self._context.submit(out)

    def _end(self) -> None:
        """Remove this client from all parts of the node."""
        context = self._context
        self.finishing = True
        context.memory_budget.forget(self)
        context.beats.forget(self._deadline)
        if self._gateway is not None:
            del context.sessions[self.id]
            self._release()
        # Its deliveries may occupy the node longer than its connection lasted: until then it must not connect again.
        context.after_delivery(self.id, self._give_up_place)
        self._nursery = None
        self.closed.set()

    def _give_up_place(self) -> None:
        self._context.admission.leave(self._login)
        self._context.logins.leave(self.user)
        # It holds this session: a reference cycle would keep the session and all that it holds until a collection.
        del self._login.dismiss

    async def _receive_until_end(self) -> None:
        """Read until the client has ended its half. Once the session is ending, further bytes are discarded: closing
        with unread bytes would take the last frame from the client (RFC 9293, 3.10.4: reset).
        """
        pipe, connection, context = self._pipe, self._connection, self._context
        while True:
            if self._grows and context.memory_budget.is_near:
                self._waits_for_slot = True
                await context.memory_budget.room()
                self._waits_for_slot = False
            data = self._ahead or await pipe.receive_some(READ_BYTES_MAX)
            self._ahead = b""
            if not data:
                return
            if self._ending or self.finishing:
                continue
            self._received_at = trio.current_time()
            frames = connection.receive(data)
            if frames:
                self._awaits_frame = False
            del data  # as `frames` below: a silent client keeps nothing of its last read in memory
            if self._gateway is None and frames:
                self._login.is_silent = False
                if not await self._log_in(frames.pop(0)):
                    self.finish()
                    continue
            self._waits_for_slot = True
            await context.slot(self.id, asks=_only_requests(frames))
            self._waits_for_slot = False
            if self._ending or self.finishing:
                continue
            if self._gateway is not None:
                await self._obey(self._gateway, frames)
            elif connection.error is not None:
                self._refuse_login(connection.error, connection.error_receipt)
                self.finish()
            del frames
            self._count()

    async def _obey(self, gateway: StompGateway, frames: list[Frame]) -> None:
        """Decide the frames of one read. When the gateway pauses, wait for what it names."""
        paused = self._decide(gateway, frames)
        if paused is None:
            return
        context = self._context
        # Peers that ask about the ids of a query get the response when all of it is decided.
        async with AsyncExitStack() as query:
            while paused is not None:
                response: ControlResponse | Refused | None = None
                self._waits_for_slot = True
                if paused.reason is PauseReason.TURN:
                    await trio.lowlevel.checkpoint()
                    if self._is_costly:
                        # Selection of fanout messages must not accumulate in front of one commit.
                        await context.flushed()
                elif paused.reason is PauseReason.CONTROL:
                    await query.aclose()
                    response = await self._response(paused.frames[0])
                elif paused.keys:
                    await query.aclose()
                    elsewhere = await query.enter_async_context(context.dedup_query.of(paused.keys))
                    gateway.repeats.answered(paused.keys, elsewhere)
                await context.slot(self.id, asks=response is not None and _only_requests(paused.frames))
                self._waits_for_slot = False
                if self._ending or self.finishing:
                    return
                left = self._answer(gateway, paused, response)
                if self._ending:
                    return
                paused = self._decide(gateway, left)

    async def _response(self, request: Frame) -> ControlResponse | Refused:
        try:
            return await self._context.answer(self.user, request.head.headers)
        except Refused as refused:
            return refused

    def _answer(self, gateway: StompGateway, paused: Paused, response: ControlResponse | Refused | None) -> list[Frame]:
        """Submit the answers to the first of the frames that are left; returns the frames that are still to be decided.

        In an Outcome of their own: within one Outcome receipts precede all other effects.
        """
        frames = paused.frames
        if paused.reason is PauseReason.TURN:
            return frames
        now_us = self._context.environment.now_us()
        out = Outcome(self.id)
        if response is None:
            frames = gateway.repeats.answer(frames, now_us, out)
            if out.repeats:
                self._context.submit(out)
            return frames
        request = frames[0]
        try:
            if isinstance(response, Refused):
                raise response
            gateway.send_answer(request, response.headers, response.body, now_us, out)
        except Refused as refused:
            gateway.refuse(refused, request.receipt, out)
        self._submit(gateway, out)
        return frames[1:]

    def _decide(self, gateway: StompGateway, frames: list[Frame]) -> Paused | None:
        """Handle frames and submit, with no `await` in between; returns why frames are left, if any are."""
        out = Outcome(self.id)
        error = self._connection.error
        paused: Paused | None = None
        try:
            if frames:
                paused = gateway.handle(frames, self._context.environment.now_us(), out)
            if paused is not None:
                error = None  # It comes after the frames that are left.
            if error is not None and not out.ending:
                log.info("! %s %s: %s", self.id, self.peer_address, error)
                gateway.refuse(error, self._connection.error_receipt, out)
            self._is_costly = out.selector_cost >= COST_MAX and bool(out.fanout_runs)
        finally:
            # Also after a bug: what was decided before it has its sequences, and the journal must not have a hole.
            if frames or error is not None:
                self._submit(gateway, out)
        return paused

    def _submit(self, gateway: StompGateway, out: Outcome) -> None:
        """Submit a decision. If it ends the session, the client's messages are requeued.

        The requeue is a decision of its own: its subscriptions still get the effects of what came before.
        """
        if not out.ending:
            self._context.submit(out)
            return
        self._ending = True
        end = Outcome(self.id, self._context.environment.now_us())
        end.frames, end.ending = out.frames, True
        out.frames, out.ending = [], False
        self._context.submit(out)
        self._context.broker.close_session(self.id, end, Back.LEFT if gateway.has_left else Back.RELEASED)
        self._context.submit(end)

    def note_stop(self) -> None:
        """The node is stopping: it waits only for the frame that the client is sending, and for no later one."""
        self._awaits_frame = self._connection.is_amid_frame

    @property
    def is_busy(self) -> bool:
        """Whether the client has messages in flight, or has begun something that it may finish before it is
        disconnected.
        """
        if self._ending or self.finishing:
            return False
        session = self._context.broker.sessions[self.id]
        if self._waits_for_slot or self._awaits_frame or session.transactions:
            return True
        return any(subscription.in_flight for subscription in session.subscriptions.values())

    def end_in_order(self, why: Refused | None = None) -> None:
        """Read no more of the client. Its requests are still recorded, and responses sent, before its connection
        closes; `why` is sent last.
        """
        if self._gateway is not None and not self._ending and not self.finishing:
            self._ending = True
            out = Outcome(self.id, self._context.environment.now_us())
            out.ending = True
            if why is not None:
                out.frames.append(encode_error(why, None, self.version))
            self._context.broker.close_session(self.id, out)
            self._context.submit(out)
        elif not self._ending:
            self.finish()

    # Login

    async def _log_in(self, connect: Frame) -> bool:
        """Respond to CONNECT; False when the login is refused (the client has got the ERROR)."""
        context = self._context
        headers = connect.head.headers
        version = self._connection.version
        try:
            client_beats = parse_heartbeat(headers.get("heart-beat", "0,0"))
            bound = window(headers, context.limits.prefetch_max)
            context.admission.check_open()
            with self._checking:
                self.user = await context.logins.check(
                    headers, self.listener, self._login.address, self._until_disconnected
                )
        except (Refused, RemoteProtocolError) as error:
            self.version = version
            if not self.finishing:
                self._refuse_login(error, connect.receipt, headers.get("login"))
            return False
        if self.finishing:
            return False
        floor = context.limits.heartbeat_floor_ms
        offer = (
            max(client_beats[1], floor) if client_beats[1] else 0,
            max(client_beats[0], floor) if client_beats[0] else 0,
        )
        hear_ms, send_ms = negotiate_heartbeat(client_beats, offer)
        self._heartbeat_seconds = send_ms / 1000
        self._silence_seconds = hear_ms / 1000 * context.limits.heartbeat_grace
        self.version = version
        self._gateway = StompGateway(
            self.id,
            context.broker,
            context.rules,
            version,
            headers.get("on-error") == "keep-open",
            client_id=headers.get("client-id", ""),
            window=bound,
            user=self.user,
            check_right=context.check_right,
            answers_early=context.logins.answers_early(self.user, self.listener),
        )
        context.sessions[self.id] = self
        self._client = context.broker.open_session(self.id, context.environment.rng.getrandbits(REPLY_KEY_BITS))
        context.admission.decided(self._login)
        answer = [
            ("version", version.text),
            ("server", context.software),
            ("session", f"{context.broker.origin}-{self.id}"),
            ("heart-beat", f"{offer[0]},{offer[1]}"),
        ]
        if self.user is not None:
            answer.append(("user-name", self.user))
        self.outbox.put(encode_frame("CONNECTED", answer, version=version))
        self.outbox.flush()
        self._sent_at = trio.current_time()
        context.beats.forget(self._deadline)
        if self._heartbeat_seconds or self._silence_seconds:
            self._deadline = context.beats.watch(self._next_heartbeat(), self._check_heartbeats)
        return True

    async def _until_disconnected(self) -> None:
        """Return when the client has ended its half. Bytes that it sends meanwhile are kept, up to the size of one
        read. More bytes are not read, and the login time ends the connection.
        """
        while len(self._ahead) < READ_BYTES_MAX:
            data = await self._pipe.receive_some(READ_BYTES_MAX - len(self._ahead))
            if not data:
                return
            self._ahead += data
        await trio.sleep_forever()

    def _dismiss(self, why: Refused) -> None:
        """End this login at once: another one needs its place."""
        if not self.finishing:
            self.finishing = True
            self._context.refusals.note(self.peer_address, why)
            self._pipe.send_now(encode_error(why, None, Version.V12))
            self._pipe.close()
            self._checking.cancel()

    def _refuse_login(
        self, error: ProtocolError | Refused, receipt: str | None = None, login: str | None = None
    ) -> None:
        context = self._context
        context.refusals.note(self.peer_address, error, login, is_user=context.logins.is_user(login))
        self.outbox.put(encode_error(error, receipt, self._connection.version))
        self.outbox.flush()

    def _check_login(self, now: float) -> float | None:
        if self._gateway is None and not self.finishing:
            limit = self._context.limits.login_seconds
            self._refuse_login(Refused("login-timeout", f"A login must be done within {limit:g} seconds."))
            self.finish()
            self._checking.cancel()
        return None

    # Heartbeats (STOMP 1.2, "Heart-beating")

    def _next_heartbeat(self) -> float:
        times = []
        if self._heartbeat_seconds:
            times.append(self._sent_at + self._heartbeat_seconds)
        if self._silence_seconds:
            times.append(self._received_at + self._silence_seconds)
        return min(times)

    def _check_heartbeats(self, now: float) -> float | None:
        if self.finishing or self.id not in self._context.sessions:
            return None
        if self._waits_for_slot:
            # The silence is ours: this node does not read.
            self._received_at = now
        if self._silence_seconds and now >= self._received_at + self._silence_seconds:
            # Perhaps this whole process was stopped, and the client's bytes wait to be read.
            if self._doubted_at <= self._received_at:
                self._doubted_at = now
            if now < self._doubted_at + SECOND_POLL_SECONDS:
                return self._doubted_at + SECOND_POLL_SECONDS
            log.info("! %s %s: silent for %.1f s", self.id, self.peer_address, now - self._received_at)
            self.finish()
            return None
        if self._heartbeat_seconds and now >= self._sent_at + self._heartbeat_seconds:
            # A non-empty outbox needs no heartbeat: bytes are on their way.
            if not self.outbox.size:
                self.outbox.put_answer(HEARTBEAT)
                self.outbox.flush()
            self._sent_at = now
        return self._next_heartbeat()

    # Ending

    def evict(self, error: Refused, subscription: str | None = None) -> None:
        """Disconnect a client with an ERROR (it is too slow, or its user was removed).

        `subscription` is the id of the subscription concerned, if there is one.
        """
        if not self.finishing:
            log.warning("! %s %s: %s", self.id, self.peer_address, error)
            # Messages that it may not have got are requeued when it has left.
            self.unsettled = []
            self.outbox.drop_waiting()
            self.outbox.put_answer(encode_error(error, None, self.version, subscription))
            self.outbox.flush()
            self.finish()

    def finish(self) -> None:
        """Read no more; what is in the outbox gets `farewell_seconds` to leave."""
        if not self.finishing:
            self.finishing = True
            self._context.memory_budget.forget(self)
            self._context.admission.decided(self._login)
            self.outbox.await_nothing()
            self.outbox.flush()
            if self._nursery is not None:
                self._nursery.start_soon(self._leave)

    async def _leave(self) -> None:
        self._release()
        # While it may succeed, a writer is never cancelled within a frame; closing is the deadline.
        with trio.move_on_after(self._context.limits.farewell_seconds):
            await self.outbox.drained()
            self._pipe.end_sending()
            await self._reader_done.wait()
        self._pipe.close()
        self._left.set()

    def owns(self, subscription: Subscription) -> bool:
        """Whether messages for `subscription` may still be delivered."""
        return not (subscription.closed or self.finishing)


def session_of(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """The session that still has `subscription`, if any."""
    session = sessions.get(subscription.session)
    return session if session is not None and session.owns(subscription) else None


async def drained(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """Wait until the client of `subscription` has read the frames before; None when it has disconnected."""
    session = session_of(sessions, subscription)
    if session is None:
        return None
    await session.outbox.drained()
    return session_of(sessions, subscription)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors inside nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _only_requests(frames: list[Frame]) -> bool:
    """Whether all of these are control requests; true for none."""
    for frame in frames:
        head = frame.head
        if head.command != "SEND" or not head.headers.get("destination", "").startswith(CONTROL):
            return False
    return True
