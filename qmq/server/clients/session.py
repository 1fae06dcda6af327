"""One client from accept to close.

The session reads, lets the codec cut frames, waits for a commit slot, lets the gateway decide, and submits, with no
await between decision and hand-over. What the client is told comes back through `Teller` into the outbox. Whatever
goes wrong here ends this connection and no other (`serve` is the guard).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
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
from qmq.gateways.headers import window
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway, encode_error
from qmq.server.clients.admission import Admission, PendingLogin
from qmq.server.clients.login import Logins
from qmq.server.clients.memory_budget import MemoryBudget
from qmq.server.clients.outbox import ClientOutbox
from qmq.server.clients.refusals import Refusals
from qmq.server.peers.answers import ControlResponse
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
    """One connection. `version` is the STOMP version agreed; until login it is 0 and nothing is told."""

    def __init__(self, context: SessionContext, pipe: Pipe, listener: ListenerSettings, login: PendingLogin) -> None:
        self.id = context.new_session_id()
        self.version = Version.V10
        self.user: str | None = None
        self.finishing = False
        self._ending = False
        self._reader_done = Latch()
        self._left = Latch()
        self.closed = Latch()
        self.unsettled: list[Delivery] = []
        """Told to `auto` subscriptions and not yet with the kernel."""
        self.deferred: deque[tuple[Subscription, list[Delivery]]] | None = None
        """In flight to this client and not encoded before it has read what waits; None for nothing."""
        self.buffered: deque[Subscription] | None = None
        """Subscriptions of this client in whose declared buffer something waits, or None; `Buffers` serves them by
        turns."""
        self.buffered_bytes = 0
        self.held_bytes = 0
        """What it makes the node hold, as the Budget counts it."""
        self._context = context
        self._pipe = pipe
        self.listener = listener
        self._login = login
        login.dismiss = self._dismiss
        self._connection = Connection(Role.SERVER, context.wire_limits, context.caches, gathers=True)
        self._gateway: StompGateway | None = None
        self._nursery: trio.Nursery | None = None
        self._checking = trio.CancelScope()
        """While CONNECT is answered."""
        self._ahead = b""
        """Came while a password check was waited for, and is still to be read."""
        self._deadline = -1
        self._heard = self._sent = trio.current_time()
        self._doubted = 0.0
        self._waits_for_slot = False
        self._toils = False
        self._awaits_frame = False
        self._hear_within = 0.0
        self._beat_every = 0.0
        self._client: Client | None = None
        # What of `held_bytes` comes of what the client said, and whether that grew with its last words.
        self._said_bytes = 0
        self._grows = False
        self.outbox = ClientOutbox(pipe, self._start, self._grew)

    @property
    def keep_open(self) -> bool:
        """Whether the client asked to stay after an ERROR that is not its fault (`on-error:keep-open`)."""
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
                    # The nursery closes before this task runs again, and others may still tell this client something
                    # in between: no task may be started for it any more.
                    self.finishing = True
                    self.outbox.break_off()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("! %s connection broke", self.id)
        except* StorageError as failed:
            # Whoever writes to that store next ends the node, with the same words.
            log.error("! %s session failed: %s", self.id, _first(failed))
        except* Exception:
            log.exception("! %s session failed; its connection is closed, others go on", self.id)
        finally:
            self._pipe.close()
            self._end()

    def _grew(self, delta: int) -> None:
        self._context.memory_budget.change(self, delta)

    def _count(self) -> None:
        """Count what the client has said and the node still holds."""
        held = self._connection.unfinished_bytes
        if self._client is not None:
            held += self._client.held_bytes + self._client.asked_bytes
        if held != self._said_bytes:
            self._grows = held > self._said_bytes
            self._context.memory_budget.change(self, held - self._said_bytes)
            self._said_bytes = held

    def _release(self) -> None:
        """What the client has goes back, however long its connection still stands."""
        self._client = None
        self._connection.forget()
        if self.id in self._context.broker.sessions:
            out = Outcome(now_us=self._context.environment.now_us())
            self._context.broker.close_session(self.id, out)
            self._context.submit(out)

    def _end(self) -> None:
        """Take this client out of everything."""
        context = self._context
        self.finishing = True
        context.memory_budget.forget(self)
        context.beats.forget(self._deadline)
        if self._gateway is not None:
            del context.sessions[self.id]
            self._release()
        # What it set off may take the node longer than its connection lasted: it must not connect again for more.
        context.after_delivery(self.id, self._give_up_place)
        self._nursery = None
        self.closed.set()

    def _give_up_place(self) -> None:
        self._context.admission.leave(self._login)
        self._context.logins.leave(self.user)
        # It holds this session, which would wait for the collector with all that its client has made it hold.
        del self._login.dismiss

    async def _receive_until_end(self) -> None:
        """Read until the client has ended its half. Once the session is ending, what comes is thrown away: closing
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
            self._heard = trio.current_time()
            frames = connection.receive(data)
            if frames:
                self._awaits_frame = False
            del data  # as `frames` below: a client that is silent keeps nothing of what it said last in memory
            if self._gateway is None and frames:
                self._login.is_silent = False
                if not await self._log_in(frames.pop(0)):
                    self.finish()
                    continue
            self._waits_for_slot = True
            await context.slot(self.id, asks=_only_ask(frames))
            self._waits_for_slot = False
            if self._ending or self.finishing:
                continue
            if self._gateway is not None:
                left = self._decide(self._gateway, frames)
                while left:
                    if self._gateway.goes_on:
                        left = await self._go_on(self._gateway, left)
                        continue
                    keys = self._gateway.repeats.unsure(left, context.environment.now_us())
                    if keys is None:
                        left = await self._answer_first(self._gateway, left)
                    else:
                        left = await self._ask_about(self._gateway, keys, left)
            elif connection.error is not None:
                self._refuse_login(connection.error, connection.error_receipt)
                self.finish()
            del frames
            self._count()

    async def _go_on(self, gateway: StompGateway, frames: list[Frame]) -> list[Frame]:
        """Obey frames that nobody else must answer first, after everyone else had a turn."""
        self._waits_for_slot = True
        await trio.lowlevel.checkpoint()
        if self._toils:
            # What followers of a fanout select from must not gather in front of one commit.
            await self._context.flushed()
        await self._context.slot(self.id)
        self._waits_for_slot = False
        return [] if self._ending or self.finishing else self._decide(gateway, frames)

    async def _answer_first(self, gateway: StompGateway, frames: list[Frame]) -> list[Frame]:
        """Answer the question that `frames` begin with, then obey the others; this client waits that long, in order."""
        context = self._context
        request = frames[0]
        answer: ControlResponse | Refused
        self._waits_for_slot = True
        try:
            answer = await context.answer(self.user, request.head.headers)
        except Refused as refused:
            answer = refused
        await context.slot(self.id, asks=_only_ask(frames))
        self._waits_for_slot = False
        if self._ending or self.finishing:
            return []
        # By itself: within one Outcome receipts come before everything else that is told.
        out = Outcome(self.id)
        try:
            if isinstance(answer, Refused):
                raise answer
            gateway.send_answer(request, answer.headers, answer.body, context.environment.now_us(), out)
        except Refused as refused:
            gateway.refuse(refused, request.receipt, out)
        self._submit(gateway, out)
        return [] if self._ending else self._decide(gateway, frames[1:])

    async def _ask_about(self, gateway: StompGateway, keys: list[bytes], frames: list[Frame]) -> list[Frame]:
        """Ask peers whether they have what `frames` try again, then obey them; this client waits so long, in order."""
        context = self._context
        self._waits_for_slot = True
        async with context.dedup_query.of(keys) as elsewhere:
            gateway.repeats.answered(keys, elsewhere)
            left = frames
            # Peers that ask about the same are answered when all of it is decided.
            while left and gateway.repeats.unsure(left[:1], context.environment.now_us()) == []:
                left = await self._repeat(gateway, left)
            return left

    async def _repeat(self, gateway: StompGateway, frames: list[Frame]) -> list[Frame]:
        """Answer what `frames` begin with and is appended already, then obey the others, as far as nobody else must
        answer first."""
        context = self._context
        self._waits_for_slot = True
        await context.slot(self.id)
        self._waits_for_slot = False
        if self._ending or self.finishing:
            return []
        out = Outcome(self.id)
        left = gateway.repeats.answer(frames, context.environment.now_us(), out)
        if out.repeats:
            context.submit(out)
        left = self._decide(gateway, left)
        while left and gateway.goes_on:
            left = await self._go_on(gateway, left)
        return left

    def _decide(self, gateway: StompGateway, frames: list[Frame]) -> list[Frame]:
        """Obey the frames of one read, in one breath with their hand-over; returns those that somebody else must
        answer first, and what follows."""
        out = Outcome(self.id)
        error = self._connection.error
        left: list[Frame] = []
        try:
            if frames:
                left = gateway.handle(frames, self._context.environment.now_us(), out)
            if left:
                error = None  # it comes after them
            if error is not None and not out.ending:
                log.info("! %s %s: %s", self.id, self.peer_address, error)
                gateway.refuse(error, self._connection.error_receipt, out)
            self._toils = out.selector_cost >= COST_MAX and bool(out.fanout_runs)
        finally:
            # Also after a bug: what was decided before it has its sequences, and the journal must not have a hole.
            if frames or error is not None:
                self._submit(gateway, out)
        return left

    def _submit(self, gateway: StompGateway, out: Outcome) -> None:
        """Hand over what was decided. A client whose end that is has nothing from now on: its messages go back.

        That is a decision of its own: what came before it, its subscriptions still hear.
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
        """The node is stopping: the frame that the client is sending is the last that is waited for."""
        self._awaits_frame = self._connection.is_amid_frame

    @property
    def is_busy(self) -> bool:
        """Whether the client has something in hand, or has begun something that it may end before it is let go."""
        if self._ending or self.finishing:
            return False
        session = self._context.broker.sessions[self.id]
        if self._waits_for_slot or self._awaits_frame or session.transactions:
            return True
        return any(subscription.in_flight for subscription in session.subscriptions.values())

    def end_in_order(self, why: Refused | None = None) -> None:
        """Hear the client no more: what it asked for is still recorded and told before its connection closes, and
        `why` last."""
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
        """Answer CONNECT; False when the client may not come in (it has been told)."""
        context = self._context
        headers = connect.head.headers
        version = self._connection.version
        try:
            client_beats = parse_heartbeat(headers.get("heart-beat", "0,0"))
            bound = window(headers, context.limits.prefetch_max)
            context.admission.check_open()
            with self._checking:
                self.user = await context.logins.check(headers, self.listener, self._login.address, self._until_gone)
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
        self._beat_every = send_ms / 1000
        self._hear_within = hear_ms / 1000 * context.limits.heartbeat_grace
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
        self._sent = trio.current_time()
        context.beats.forget(self._deadline)
        if self._beat_every or self._hear_within:
            self._deadline = context.beats.watch(self._next_beat(), self._check_heartbeats)
        return True

    async def _until_gone(self) -> None:
        """Return when the client has ended its half. What it sends meanwhile is kept; of more than one read can take
        the rest is not looked at, and the login time is what ends it."""
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

    # Heart-beats (STOMP 1.2, "Heart-beating")

    def _next_beat(self) -> float:
        times = []
        if self._beat_every:
            times.append(self._sent + self._beat_every)
        if self._hear_within:
            times.append(self._heard + self._hear_within)
        return min(times)

    def _check_heartbeats(self, now: float) -> float | None:
        if self.finishing or self.id not in self._context.sessions:
            return None
        if self._waits_for_slot:
            # We are the ones who do not read.
            self._heard = now
        if self._hear_within and now >= self._heard + self._hear_within:
            # Perhaps this whole process stood still, and what the client said waits to be read.
            if self._doubted <= self._heard:
                self._doubted = now
            if now < self._doubted + SECOND_POLL_SECONDS:
                return self._doubted + SECOND_POLL_SECONDS
            log.info("! %s %s: silent for %.1f s", self.id, self.peer_address, now - self._heard)
            self.finish()
            return None
        if self._beat_every and now >= self._sent + self._beat_every:
            # A full outbox needs no beat: bytes are on their way.
            if not self.outbox.size:
                self.outbox.put_answer(HEARTBEAT)
                self.outbox.flush()
            self._sent = now
        return self._next_beat()

    # Ending

    def evict(self, error: Refused, subscription: str | None = None) -> None:
        """Tell a client why it must go (it cannot keep up, its user is no more), and let it go.

        `subscription` is the id of the one that this is about, if it is about one.
        """
        if not self.finishing:
            log.warning("! %s %s: %s", self.id, self.peer_address, error)
            # What it may not have got goes to others when it has left.
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
        # A writer is never cancelled with half a frame sent while there is hope; closing is the deadline.
        with trio.move_on_after(self._context.limits.farewell_seconds):
            await self.outbox.drained()
            self._pipe.end_sending()
            await self._reader_done.wait()
        self._pipe.close()
        self._left.set()

    def owns(self, subscription: Subscription) -> bool:
        """Whether messages for `subscription` may still be told."""
        return not (subscription.closed or self.finishing)


def session_of(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """The session that `subscription` is still one of."""
    session = sessions.get(subscription.session)
    return session if session is not None and session.owns(subscription) else None


async def drained(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """Wait until the client of `subscription` has read what came before; None when it has left."""
    session = session_of(sessions, subscription)
    if session is None:
        return None
    await session.outbox.drained()
    return session_of(sessions, subscription)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of those that the group is about."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _only_ask(frames: list[Frame]) -> bool:
    """Whether these, if there are any, are questions about the node alone."""
    for frame in frames:
        head = frame.head
        if head.command != "SEND" or not head.headers.get("destination", "").startswith(CONTROL):
            return False
    return True
