"""One client from accept to close.

The session reads, and its dialogue cuts frames, logs the client in, decides and submits. Responses and messages come
back through `Dispatcher` into the outbox. An error here ends this connection and no other (`serve` is the guard).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import trio

from qmq.access.rules import Principal
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import ClientState as Client
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.config import LimitSettings, ListenerSettings
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.contexts import Committing, Engine, Reporting
from qmq.engine.runtime.waker import Latch
from qmq.environment import Pipe
from qmq.errors import Refused, StorageError
from qmq.gateways.encoder import Encoder
from qmq.sessions.clients.admission import Admission, PendingLogin, counted_address
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.memory_budget import MemoryBudget
from qmq.sessions.clients.outbox import ClientOutbox
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.traffic import Traffic
from qmq.settings.limits.usage import UNLIMITED_SESSION, ClientUsages

READ_BYTES_MAX = 65536
REPLY_KEY_BITS = 64

log = logging.getLogger("qmq.session")


class SessionContext(Engine, Committing, Reporting, Protocol):
    limits: LimitSettings
    admission: Admission
    refusals: Refusals
    memory_budget: MemoryBudget
    traffic: Traffic
    usages: ClientUsages
    certificates: Certificates
    sessions: "dict[int, ClientSession]"

    def after_delivery(self, session: int, do: Callable[[], None]) -> None:
        """Call `do` when all topic messages that `session` sent are delivered."""

    def session_ended(self, session: int) -> None:
        """The client has left; its exclusive queues end."""

    def new_session_id(self) -> int:
        """A number never used before in this process."""


class ClientSession:
    """One connection. Until the login nothing is delivered."""

    def __init__(
        self,
        context: SessionContext,
        pipe: Pipe,
        listener: ListenerSettings | None,
        login: PendingLogin,
        protocol: ClientProtocol,
    ) -> None:
        self.id = context.new_session_id()
        self.protocol = protocol.name
        self.principal: Principal | None = None
        self.user: str | None = None
        """The name of the principal."""
        self.authenticator = ""
        """Which authenticator decided the login; empty for a client without one."""
        self.proof: str | None = None
        """See `Grant`."""
        self.bytes_in = 0
        self.finishing = False
        self.ending = False
        """No later frame of the client is obeyed: its last answer is decided."""
        self.waits_for_change = False
        """A change of definitions that the client has requested is not answered yet."""
        self.leaves_with: Refused | None = None
        """With which ERROR the connection ends after that answer."""
        self.waits_for_slot = False
        """The client is not read now."""
        self.is_responding = False
        """What it has sent is obeyed now; it is read again after that."""
        self.has_left = False
        """The client has gone while its request was answered; see `watch_leaving`."""
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
        self.allowance = UNLIMITED_SESSION
        self.held_bytes = 0
        """The memory that this session makes the node hold, as `MemoryBudget` counts it."""
        self._context = context
        self._pipe = pipe
        self.listener = listener
        """None: the client is at the Unix socket of the node."""
        self._nursery: trio.Nursery | None = None
        self._is_open = False
        self._client: Client | None = None
        # The part of `held_bytes` that the client's frames cause, and whether its last read made that grow.
        self._frames_bytes = 0
        self._grows = False
        self.outbox = ClientOutbox(pipe, self.start, self._grew)
        self.encoder: Encoder
        """How the client is written to; set by the dialogue."""
        self.dialogue = protocol.begin(self, pipe, login)

    @property
    def keep_open(self) -> bool:
        """Whether the client requested to stay after a refusal that is not its fault."""
        return self.dialogue.keep_open

    @property
    def peer_address(self) -> str:
        return self._pipe.peer_address

    @property
    def peer_port(self) -> int:
        return self._pipe.peer_port

    @property
    def bytes_out(self) -> int:
        return self.outbox.bytes_out

    def start(self, task: Callable[[], object]) -> None:
        """Run a task in the nursery of the connection."""
        assert self._nursery is not None
        self._nursery.start_soon(task)  # type: ignore[arg-type]  # trio wants the coroutine function's full type

    async def serve(self) -> None:
        """Serve until either side is done, then close. Never raises Exception."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    self.dialogue.start()
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

    def count(self) -> None:
        """Count the bytes of the client that the node still holds. Called after each read, and when a dialogue keeps
        many for longer.
        """
        held = self.dialogue.unfinished_bytes
        if self._client is not None:
            held += self._client.held_bytes + self._client.asked_bytes
        if held != self._frames_bytes:
            self._grows = held > self._frames_bytes
            self._context.memory_budget.change(self, held - self._frames_bytes)
            self._frames_bytes = held

    def _release(self) -> None:
        """Requeue what the client has in flight, however long its connection stays open."""
        self._client = None
        self.dialogue.release()
        if self.id in self._context.broker.sessions:
            out = Outcome(now_us=self._context.environment.now_us())
            self._context.broker.close_session(self.id, out)
            self._context.submit(out)

    def _end(self) -> None:
        """Remove this client from all parts of the node."""
        context = self._context
        self.finishing = True
        context.memory_budget.forget(self)
        context.traffic.end(self)
        self.dialogue.stop()
        if self._is_open:
            del context.sessions[self.id]
            self._release()
            context.usages.leave(self.id)
        context.session_ended(self.id)
        # Its deliveries may occupy the node longer than its connection lasted: until then it must not connect again.
        context.after_delivery(self.id, self._give_up_place)
        self._nursery = None
        self.closed.set()

    def _give_up_place(self) -> None:
        self.dialogue.leave()
        # It refers to the session: a reference cycle would keep it, and all that it holds, until a collection.
        del self.dialogue

    def begin(self) -> None:
        """The client is logged in: from now on it may get messages."""
        context = self._context
        self._is_open = True
        context.sessions[self.id] = self
        address = None if self.listener is None else counted_address(self.peer_address)
        self.allowance = context.usages.join(self.id, self.principal, address)
        self._client = context.broker.open_session(self.id, context.environment.rng.getrandbits(REPLY_KEY_BITS))

    async def pay(self, sends: int = 0) -> None:
        """Wait for the rates of the client: of so many SENDs, and of its bytes, also of those that made no frames."""
        if self.allowance.is_limited:
            self.waits_for_slot = True
            await self._context.usages.pay(self.allowance, sends, self.bytes_in)
            self.waits_for_slot = False

    def close_client(self) -> None:
        """The client logs in again, perhaps as another user: what it has ends, and is requeued."""
        self._is_open = False
        del self._context.sessions[self.id]
        self._release()
        self._context.usages.leave(self.id)

    def renumber(self) -> None:
        """Another user logs in next, after `close_client`: exclusive queues of the one before end."""
        before, self.id = self.id, self._context.new_session_id()
        self._context.session_ended(before)

    def switch(self, pipe: Pipe, protocol: ClientProtocol, login: PendingLogin) -> None:
        """From now on the client speaks another protocol, through `pipe`. It has not logged in there.

        Call it within `respond`, when all bytes of the former protocol are with the kernel.
        """
        assert not self._is_open and not self.outbox.size
        self.dialogue.stop()
        self._pipe = pipe
        self.outbox.pipe = pipe
        self.protocol = protocol.name
        self.dialogue = protocol.begin(self, pipe, login)
        self.dialogue.start()

    async def _receive_until_end(self) -> None:
        """Read until the client has ended its half. Once the session is ending, further bytes are discarded: closing
        with unread bytes would take the last frame from the client (RFC 9293, 3.10.4: reset).
        """
        context = self._context
        while True:
            if self._grows and context.memory_budget.is_near:
                self.waits_for_slot = True
                await context.memory_budget.room()
                self.waits_for_slot = False
            # Each time again: the protocol and the pipe may change.
            dialogue = self.dialogue
            data = dialogue.ahead or await self._pipe.receive_some(READ_BYTES_MAX)
            dialogue.ahead = b""
            if not data:
                return
            self.bytes_in += len(data)
            if self.ending or self.finishing:
                continue
            dialogue.receive(data)
            del data  # A silent client keeps nothing of its last read in memory.
            self.is_responding = True
            await dialogue.respond()
            self.is_responding = False
            self.count()

    async def until_left(self) -> None:
        """Return when the client has ended its half. What it sends meanwhile is kept, up to the size of one read, and
        read later. Raises trio.BrokenResourceError when the connection broke.
        """
        dialogue = self.dialogue
        while len(dialogue.ahead) < READ_BYTES_MAX:
            data = await self._pipe.receive_some(READ_BYTES_MAX - len(dialogue.ahead))
            if not data:
                return
            dialogue.ahead += data
        await trio.sleep_forever()

    async def watch_leaving(self) -> None:
        """Set `has_left` when the client ends its half or its connection."""
        try:
            await self.until_left()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.has_left = True

    def note_stop(self) -> None:
        """The node is stopping: it waits only for the frame that the client is sending, and for no later one."""
        self.dialogue.note_stop()

    @property
    def is_busy(self) -> bool:
        """Whether the client has messages in flight, or has begun something that it may finish before it is
        disconnected.
        """
        if self.ending or self.finishing:
            return False
        session = self._context.broker.sessions[self.id]
        if self.waits_for_slot or self.dialogue.awaits_frame or session.transactions:
            return True
        return any(subscription.in_flight for subscription in session.subscriptions.values())

    def end_in_order(self, why: Refused | None = None) -> None:
        """Read no more of the client. Its requests are still recorded, and responses sent, before its connection
        closes; `why` is sent last.
        """
        if self._is_open and not self.ending and not self.finishing:
            self.ending = True
            out = Outcome(self.id, self._context.environment.now_us())
            out.ending = True
            if why is not None:
                out.frames.append(self.encoder.error(why))
            self._context.broker.close_session(self.id, out)
            self._context.submit(out)
        elif not self.ending:
            self.finish()

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
            self.outbox.put_answer(self.encoder.error(error, None, subscription))
            self.outbox.flush()
            self.finish()

    def dismiss(self, error: Refused) -> None:
        """`evict` a client that may not be connected any more. If its own request caused that, it is answered first."""
        if self.waits_for_change:
            self.leaves_with = error
        else:
            self.evict(error)

    def finish(self) -> None:
        """Read no more; what is in the outbox gets `farewell_seconds` to leave."""
        if not self.finishing:
            self.finishing = True
            self._context.memory_budget.forget(self)
            self._context.usages.end_wait(self.id)
            self.dialogue.finish()
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
