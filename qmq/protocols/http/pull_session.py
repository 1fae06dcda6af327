"""What one connection receives over HTTP: a session of its own, without a socket.

A receive is a subscription of that session: it gets at most as many messages as are asked for, then nothing more, and
ends when all of them are settled or taken back. The session ends when its connection has ended and nothing is left in
flight.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import trio

from qmq.access.rights import Rights
from qmq.access.rules import Principal
from qmq.broker.consumers.deliveries import find_delivery
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.lifecycle import Back
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.runtime.contexts import MeshPeers, Tasks
from qmq.engine.runtime.waker import Waker
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.mesh.peers.rpc import PeerRpc
from qmq.protocols.http.gateway.bodies import Receive
from qmq.protocols.http.gateway.pulls import (
    EXPIRED,
    RECEIVE_BYTES_MAX,
    UNREACHABLE,
    AckRequest,
    AckToken,
    PullEncoder,
    received_facts,
    settling,
    subscribe_of,
)
from qmq.protocols.http.gateway.responses import encode_refusal
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.session import ClientSession, SessionContext
from qmq.sessions.frame_loop import FrameContext, FrameLoop, gateway_of
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.wire.stomp import Frame

KEY_BITS: Final = 64

LINGER_SECONDS: Final = 0.02
"""After the first message a receive waits so long for more of them: pages and peers need a moment."""

EMPTY_SECONDS: Final = 0.1
"""What a receive that may not wait gives a queue whose messages are on disk, or on another node."""


class PullContext(FrameContext, SessionContext, MeshPeers, Tasks, Protocol):
    peer_rpc: PeerRpc
    deadline_timer: DeadlineTimer
    exclusive_queues: ExclusiveQueues

    def rights_of(self, principal: Principal | None) -> Rights: ...


class InnerPipe:
    """The pipe of a session without a socket: it takes everything, and brings nothing until it ends."""

    def __init__(self, peer_address: str) -> None:
        self.peer_address = peer_address
        self.peer_certificate_names: frozenset[str] = frozenset()
        self.peer_certificate_subject: frozenset[str] = frozenset()
        self._ended = trio.Event()

    async def receive_some(self, bytes_max: int) -> bytes:
        await self._ended.wait()
        return b""

    def send_now(self, data: bytes) -> int:
        return len(data)

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    def end_sending(self) -> None:
        self._ended.set()

    def close(self) -> None:
        self._ended.set()


class PullDialogue(ClientDialogue):
    """Its client sends nothing, because requests come through `PullSession`."""

    answers_each = True

    def __init__(self, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self.changed = Waker()
        self.encoder = session.encoder = PullEncoder(self.changed.wake)
        self.is_started = trio.Event()
        self.is_stopping = False
        """The node delivers nothing more: a receive that waits ends with what it has."""

    def start(self) -> None:
        self.is_started.set()

    def receive(self, data: bytes) -> None:
        raise AssertionError("the pipe brings nothing")

    async def respond(self) -> None:
        await trio.lowlevel.checkpoint()

    def note_stop(self) -> None:
        self.is_stopping = True
        self.changed.wake()

    def release(self) -> None:
        self.changed.wake()

    def finish(self) -> None:
        self.changed.wake()


PULL: Final = ClientProtocol("http-pull", PullDialogue, encode_refusal)


class PullSession:
    """What one connection has received. `id` is that of its session in the node."""

    def __init__(
        self,
        context: PullContext,
        client: ClientSession,
        on_end: Callable[["PullSession"], object],
    ) -> None:
        self._context = context
        self._on_end = on_end
        self._pipe = InnerPipe(client.peer_address)
        self._session = ClientSession(context, self._pipe, client.listener, PendingLogin(client.peer_address), PULL)
        session = self._session
        session.principal, session.user, session.authenticator = client.principal, client.user, client.authenticator
        session.proof = client.proof
        dialogue = session.dialogue
        assert isinstance(dialogue, PullDialogue)
        self._dialogue = dialogue
        self._encoder = dialogue.encoder
        rights = context.rights_of(session.principal)
        gateway = gateway_of(context, session, self._encoder, rights, is_atomic=True)
        self._loop = FrameLoop(context, session, gateway)
        self._numbers = 0
        self._turn = trio.Lock()
        self._ceased: set[str] = set()
        """Receives that get nothing more, and have messages in flight."""
        self.id = session.id
        self.key = f"{context.environment.rng.getrandbits(KEY_BITS):016x}"
        self.user = session.user
        context.exclusive_queues.acts_for[self.id] = client.id
        self.is_left = False
        """Its connection has ended."""
        self._receiving = trio.CancelScope()

    @property
    def has_ended(self) -> bool:
        """Whether the node has ended it, by a kick or a permission that was taken away."""
        return self._session.finishing

    @property
    def has_in_flight(self) -> bool:
        """Whether messages wait to be settled."""
        session = self._context.broker.sessions.get(self.id)
        return session is not None and any(one.in_flight for one in session.subscriptions.values())

    async def start(self) -> None:
        self._context.spawn(self._serve)
        await self._dialogue.is_started.wait()
        self._session.begin()

    async def _serve(self) -> None:
        try:
            await self._session.serve()
        finally:
            del self._context.exclusive_queues.acts_for[self.id]
            self._on_end(self)

    async def receive(self, queue: str, wanted: Receive, until_left: Callable[[], Awaitable[None]]) -> list[Delivery]:
        """The next messages of a queue, at most as many as are wanted and fit, after at most the time that is allowed.

        `until_left` returns when the client has left; then what was received is requeued, as if it had not been sent.
        So is what the broker has decided to deliver and the response does not have. Raises Refused.
        """
        self._numbers += 1
        id = f"receive-{self._numbers}"
        self._encoder.received[id] = []
        received: list[Delivery] = []
        try:
            await self._obey([subscribe_of(wanted, queue, id)])
            async with trio.open_nursery() as nursery:
                self._receiving = nursery.cancel_scope
                nursery.start_soon(self._cancel_when_left, until_left, nursery.cancel_scope)
                await self._wait_for(id, wanted)
                nursery.cancel_scope.cancel()
            if not self.is_left:
                received = _fitting(self._encoder.received[id])
        finally:
            del self._encoder.received[id]
            self._cease(id, received)
        if self.id not in self._context.broker.sessions:
            raise self._encoder.refused or Refused("kicked", "The node has ended the session of this connection.")
        # Some may have been taken back meanwhile.
        return [one for one in received if one.tag in self._context.broker.queues.deliveries]

    async def _cancel_when_left(self, until_left: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            await until_left()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.is_left = True
        scope.cancel()

    async def _wait_for(self, id: str, wanted: Receive) -> None:
        received = self._encoder.received[id]
        deadline = trio.current_time() + wanted.wait_seconds
        if not received and not wanted.wait_seconds:
            deadline += EMPTY_SECONDS
        while len(_fitting(received)) == len(received) < wanted.max and self.id in self._context.broker.sessions:
            if self._dialogue.is_stopping:
                return
            self._dialogue.changed.clear()
            left = deadline - trio.current_time()
            if received:
                left = min(left, LINGER_SECONDS) if wanted.wait_seconds else left
            if left <= 0:
                return
            count = len(received)
            await self._dialogue.changed.wait(left)
            if received and len(received) == count:
                return

    def _cease(self, id: str, received: Sequence[Delivery]) -> None:
        """A receive gets nothing more than it has `received`. It ends when nothing of it is in flight."""
        broker = self._context.broker
        session = broker.sessions.get(self.id)
        subscription = None if session is None else session.subscriptions.get(id)
        if subscription is None:
            return
        out = Outcome(self.id, self._context.environment.now_us())
        broker.queues.cease(subscription, out)
        taken = {one.tag for one in received}
        # What waits for its commit would come after the response, and be in flight for its whole ack timeout.
        late = [one for tag, one in subscription.in_flight.items() if tag not in taken]
        broker.queues.redelivery.give_back(late, Back.UNSEEN, out)
        if subscription.in_flight:
            self._ceased.add(id)
        else:
            broker.subscriptions.unsubscribe(self.id, id, out)
        self._context.submit(out)

    async def settle(self, acks: Sequence[tuple[int, AckRequest]]) -> list[str]:
        """The result of each request, given with the tag of its delivery. Durable, as the policy of the queue says.

        A second request to settle the same delivery finds it settled.
        """
        results = [EXPIRED] * len(acks)
        due: dict[str, int] = {}
        receipts_due, receipts_refused = self._encoder.receipts_due, self._encoder.receipts_refused
        try:
            is_refused = await self._begin_to_settle(acks, results, due)
            while not is_refused and not receipts_due.isdisjoint(due) and not self._session.finishing:
                self._dialogue.changed.clear()
                await self._dialogue.changed.wait()
        finally:
            for receipt in due.keys() & (receipts_due | receipts_refused):
                results[due[receipt]] = UNREACHABLE  # Whether it is recorded is not known.
            receipts_due.difference_update(due)
            receipts_refused.difference_update(due)
        self.reap()
        return results

    async def _begin_to_settle(
        self, acks: Sequence[tuple[int, AckRequest]], results: list[str], due: dict[str, int]
    ) -> bool:
        """Decide them. Fills in `results`, and `due`: receipt → number of its request. Whether one is refused."""
        settled: set[int] = set()
        async with self._turn:
            await self._context.slot(self.id)
            if self._session.finishing or self._session.ending:
                return True
            frames = []
            self._numbers += 1
            for number, (tag, ack) in enumerate(acks):
                delivery = self._delivery(tag)
                if delivery is None or tag in settled:
                    continue
                results[number] = ack.result
                if ack.action == "extend":
                    self._context.broker.queues.extend(delivery, self._context.environment.now_us())
                    self._context.deadline_timer.decided()
                else:
                    settled.add(tag)
                    receipt = f"ack-{self._numbers}-{number}"
                    frames.append(settling(tag, ack, receipt))
                    due[receipt] = number
            self._encoder.receipts_due.update(due)
            self._encoder.refused = None
            await self._loop.obey(frames)
            # Requests of other connections set it, too.
            return self._encoder.refused is not None or not self._encoder.receipts_refused.isdisjoint(due)

    def _delivery(self, tag: int) -> Delivery | None:
        try:
            return find_delivery(self._context.broker.queues.deliveries, self.id, tag)
        except Refused:
            return None

    async def _obey(self, frames: list[Frame]) -> None:
        """Decide frames, one request at a time. Raises Refused."""
        async with self._turn:
            await self._context.slot(self.id)
            if self.id not in self._context.broker.sessions:
                raise Refused("kicked", "The node has ended the session of this connection.")
            self._encoder.refused = None
            await self._loop.obey(frames)
            refused = self._encoder.refused
        if refused is not None:
            raise refused

    def reap(self) -> None:
        """End receives of which nothing is in flight, and the session if nothing can come of it any more."""
        broker = self._context.broker
        session = broker.sessions.get(self.id)
        if session is None:
            return
        for id in list(self._ceased):
            subscription = session.subscriptions.get(id)
            if subscription is None or not subscription.in_flight:
                self._ceased.discard(id)
                out = Outcome(self.id, self._context.environment.now_us())
                if subscription is not None:
                    broker.subscriptions.unsubscribe(self.id, id, out)
                    self._context.submit(out)
        if self.is_left and not session.subscriptions:
            self._session.end_in_order()

    def leave(self) -> None:
        """The connection has ended: the session ends when nothing is in flight."""
        self.is_left = True
        self._receiving.cancel()
        self.reap()

    def token(self, delivery: Delivery) -> AckToken:
        """What names this delivery to any node."""
        return AckToken(self._context.broker.origin.node, self.id, self.key, delivery.tag)

    def facts(self, delivery: Delivery) -> dict[str, Any]:
        """A received message as the client gets it."""
        return received_facts(delivery, self.token(delivery))


def _fitting(received: list[Delivery]) -> list[Delivery]:
    """The first ones, whose bodies fit into one response."""
    size = 0
    for at, delivery in enumerate(received):
        size += len(delivery.message.body)
        if at and size > RECEIVE_BYTES_MAX:
            return received[:at]
    return received
