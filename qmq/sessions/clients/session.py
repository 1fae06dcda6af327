"""One client from accept to close.

The session reads, and its dialogue cuts frames, logs the client in, decides and submits. Responses and messages come
back through `Dispatcher` into the outbox. An error here ends this connection and no other (`serve` is the guard).
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from qmq.access.rules import Principal
from qmq.auth.credentials import Grant
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import ClientState as Client
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.config import ListenerSettings
from qmq.engine.runtime.waker import Latch
from qmq.environment import Pipe
from qmq.errors import Refused, StorageError
from qmq.gateways.encoder import Encoder
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.outbox import ClientOutbox
from qmq.sessions.clients.session_host import OwnChange, SessionHost, first_of
from qmq.settings.limits.usage import UNLIMITED_SESSION

READ_BYTES_MAX = 65536

NOTHING_UNSETTLED: Final[list[Delivery]] = []
"""One for all clients, and nothing writes into it."""

log = logging.getLogger("qmq.session")


class ClientSession:
    """One connection. Until the login nothing is delivered."""

    # An idle client costs its node mostly what its objects take; with so many attributes, a dictionary of them takes
    # 1,700 bytes, and these 270.
    __slots__ = (
        "__weakref__", "_client", "_farewell", "_frames_bytes", "_grows", "_host", "_is_open", "_left", "_pipe",
        "_protocol", "allowance", "buffered", "buffered_bytes", "bytes_in", "closed", "deferred",
        "dialogue", "encoder", "ending", "finishing", "grant", "has_left", "held_bytes", "id", "is_responding",
        "listener", "outbox", "own_change", "unsettled", "waits_for_slot",
    )  # fmt: skip

    def __init__(
        self,
        host: SessionHost,
        pipe: Pipe,
        listener: ListenerSettings | None,
        login: PendingLogin,
        protocol: ClientProtocol,
    ) -> None:
        self.id = host.new_id()
        self._protocol = protocol
        self.grant: Grant | None = None
        """The login; None for a client without one."""
        self.bytes_in = 0
        self.finishing = False
        self.ending = False
        """No later frame of the client is obeyed: its last answer is decided."""
        self.own_change = OwnChange()
        self.waits_for_slot = False
        """The client is not read now."""
        self.is_responding = False
        """What it has sent is obeyed now; it is read again after that."""
        self.has_left = False
        """The client has gone while its request was answered; see `watch_leaving`."""
        self._left = Latch()
        self._farewell = -1
        self.closed = Latch()
        self.unsettled = NOTHING_UNSETTLED
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
        self._host = host
        self._pipe = pipe
        self.listener = listener
        """None: the client is at the Unix socket of the node."""
        self._is_open = False
        self._client: Client | None = None
        # The part of `held_bytes` that the client's frames cause, and whether its last read made that grow.
        self._frames_bytes = 0
        self._grows = False
        self.outbox = ClientOutbox(pipe, self)
        self.encoder: Encoder
        """How the client is written to; set by the dialogue."""
        self.dialogue = protocol.begin(self, pipe, login)

    @property
    def protocol(self) -> str:
        """Its name."""
        return self._protocol.name

    @property
    def is_operators(self) -> bool:
        """Whether it may be open while the node is drained."""
        return self.listener is None or self._protocol.is_for_operators

    @property
    def principal(self) -> Principal | None:
        return None if self.grant is None else self.grant.principal

    @property
    def user(self) -> str | None:
        """The name of the principal."""
        return None if self.grant is None else self.grant.principal.name

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

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it ends, or the connection does, which ends it. A nursery of each would take 1,300 bytes."""
        self._host.tasks.spawn(partial(self._run, task))

    async def _run(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self.closed.is_set:
                await task()
        except* Exception as errors:
            self._failed(errors)
            self._pipe.close()
            self._left.set()

    async def serve(self) -> None:
        """Serve until either side is done, then close. Never raises Exception."""
        try:
            self.dialogue.start()
            budget = self._host.budget
            # Read until the client has ended its half. Once the session is ending, further bytes are discarded: closing
            # with unread bytes would take the last frame from the client (RFC 9293, 3.10.4: reset). Here, because a
            # coroutine of its own is 200 bytes of each idle connection.
            while True:
                if self._grows and budget.is_near:
                    self.waits_for_slot = True
                    await budget.room()
                    self.waits_for_slot = False
                # Each time again: the protocol and the pipe may change.
                dialogue = self.dialogue
                data = dialogue.ahead or await self._pipe.receive_some(READ_BYTES_MAX)
                dialogue.ahead = b""
                if not data:
                    break
                self.bytes_in += len(data)
                if self.ending or self.finishing:
                    continue
                dialogue.receive(data)
                del data  # A silent client keeps nothing of its last read in memory.
                self.is_responding = True
                await dialogue.respond()
                self.is_responding = False
                self.count()
            self.end_in_order()
            if not self._left.is_set:
                await self._left.wait()
        except* Exception as errors:
            self._failed(errors)
        finally:
            self.finishing = True
            # What its tasks wait for does not come any more.
            self.outbox.break_off()
            self._pipe.close()
            self._end()

    def settle_when_written(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries of an `auto` subscription, which have been put into the outbox."""
        if self.unsettled:
            self.unsettled.extend(deliveries)
        else:
            self.unsettled = list(deliveries)

    def _failed(self, errors: ExceptionGroup[Exception]) -> None:
        """The connection ends because of these."""
        _, failures = errors.split((trio.BrokenResourceError, trio.ClosedResourceError))
        of_storage, bugs = (None, None) if failures is None else failures.split(StorageError)
        if failures is None:
            log.debug("! %s connection broke", self.id)
        if of_storage is not None:
            # The next writer to that store stops the node, with the same error text.
            log.error("! %s session failed: %s", self.id, first_of(of_storage))
        if bugs is not None:
            log.error("! %s session failed; its connection is closed, others continue", self.id, exc_info=bugs)

    def waiting_grew(self, delta: int) -> None:
        """See `OutboxOwner`."""
        self._host.budget.change(self, delta)

    def count(self) -> None:
        """Count the bytes of the client that the node still holds. Called after each read, and when a dialogue keeps
        many for longer.
        """
        held = self.dialogue.unfinished_bytes
        if self._client is not None:
            held += self._client.held_bytes + self._client.asked_bytes
        if held != self._frames_bytes:
            self._grows = held > self._frames_bytes
            self._host.budget.change(self, held - self._frames_bytes)
            self._frames_bytes = held

    def _release(self) -> None:
        """Requeue what the client has in flight, however long its connection stays open."""
        self._client = None
        self.dialogue.release()
        self._host.requeue(self.id)

    def _end(self) -> None:
        """Remove this client from all parts of the node."""
        self._host.budget.forget(self)
        self._host.beats.forget(self._farewell)
        self.dialogue.stop()
        if self._is_open:
            self._host.leave(self.id)
            self._release()
        # Its deliveries may occupy the node longer than its connection lasted: until then it must not connect again.
        self._host.ended(self, self._give_up_place)
        self.closed.set()

    def _give_up_place(self) -> None:
        self.dialogue.leave()
        # It refers to the session: a reference cycle would keep it, and all that it holds, until a collection.
        del self.dialogue

    def begin(self) -> None:
        """The client is logged in: from now on it may get messages."""
        self._is_open = True
        self._client = self._host.enter(self)

    async def pay(self, sends: int = 0) -> None:
        """Wait for the rates of the client: of so many SENDs, and of its bytes, also of those that made no frames."""
        if self.allowance.is_limited:
            self.waits_for_slot = True
            await self._host.usages.pay(self.allowance, sends, self.bytes_in)
            self.waits_for_slot = False

    def close_client(self) -> None:
        """The client logs in again, perhaps as another user: what it has ends, and is requeued."""
        self._is_open = False
        self._host.leave(self.id)
        self._release()

    def renumber(self) -> None:
        """Another user logs in next, after `close_client`: exclusive queues of the one before end."""
        before, self.id = self.id, self._host.new_id()
        self._host.left(before)

    def switch(self, pipe: Pipe, protocol: ClientProtocol, login: PendingLogin) -> None:
        """From now on the client speaks another protocol, through `pipe`. It has not logged in there.

        Call it within `respond`, when all bytes of the former protocol are with the kernel.
        """
        assert not self._is_open and not self.outbox.size
        self.dialogue.stop()
        self._pipe = self.outbox.pipe = pipe
        self._protocol = protocol
        self.dialogue = protocol.begin(self, pipe, login)
        self.dialogue.start()

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
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.until_left()
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
        session = self._host.engine.broker.sessions[self.id]
        if self.waits_for_slot or self.dialogue.awaits_frame or session.transactions:
            return True
        return any(subscription.in_flight for subscription in session.subscriptions.values())

    def end_in_order(self, why: Refused | None = None) -> None:
        """Read no more of the client. Its requests are still recorded, and responses sent, before its connection
        closes; `why` is sent last.
        """
        if self._is_open and not self.ending and not self.finishing:
            self.ending = True
            engine = self._host.engine
            out = Outcome(self.id, engine.environment.now_us())
            out.ending = True
            if why is not None:
                out.frames.append(self.encoder.error(why))
            engine.broker.close_session(self.id, out)
            engine.path.submit(out)
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
            self.unsettled = NOTHING_UNSETTLED
            self.outbox.drop_waiting()
            self.outbox.put_answer(self.encoder.error(error, None, subscription))
            self.outbox.flush()
            self.finish()

    def dismiss(self, error: Refused) -> None:
        """`evict` a client that may not be connected any more. If its own request caused that, it is answered first."""
        if self.own_change.is_due:
            self.own_change.dismissal = error
        else:
            self.evict(error)

    def leave_if_dismissed(self) -> None:
        """The client's own change is answered: end its connection, if the change has caused that."""
        if self.own_change.dismissal is not None:
            self.end_in_order(self.own_change.dismissal)

    def finish(self) -> None:
        """Read no more; what is in the outbox gets `farewell_seconds` to leave."""
        if not self.finishing:
            self.finishing = True
            self._host.budget.forget(self)
            self._host.usages.end_wait(self.id)
            self.dialogue.finish()
            self.outbox.await_nothing()
            self.outbox.flush()
            due = trio.current_time() + self._host.node.settings.limits.farewell_seconds
            # While it may succeed, a writer is never cancelled within a frame; closing is the deadline.
            self._farewell = self._host.beats.watch(due, self._break_off)
            if self.outbox.size or self.id in self._host.engine.broker.sessions:
                self.start(self._leave)
            else:  # Mostly: nothing waits, and no decision is under way that a requeue would cut in two. No task.
                self._release()
                self._end_sending()

    async def _leave(self) -> None:
        self._release()
        await self.outbox.drained()
        self._end_sending()

    def _end_sending(self) -> None:
        self._pipe.end_sending()
        self._left.set()

    def _break_off(self, now: float) -> None:
        self._pipe.close()
        self._left.set()

    def owns(self, subscription: Subscription) -> bool:
        """Whether messages for `subscription` may still be delivered."""
        return not (subscription.closed or self.finishing)


def is_leaving(sessions: Mapping[int, ClientSession], session_id: int) -> bool:
    """Whether the client gets nothing any more."""
    session = sessions.get(session_id)
    return session is None or session.finishing


def session_of(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """The session that still has `subscription`, if any."""
    session = sessions.get(subscription.session)
    return session if session is not None and session.owns(subscription) else None


async def drained(sessions: Mapping[int, ClientSession], subscription: Subscription) -> ClientSession | None:
    """Wait until the client of `subscription` has read the frames before; None when it has disconnected."""
    if (session := session_of(sessions, subscription)) is None:
        return None
    await session.outbox.drained()
    return session_of(sessions, subscription)
