"""What one connection receives over HTTP: a session of its own, without a socket.

A receive is a subscription of that session, from which it takes once (`qmq.sessions.pull_consumer`). The subscription
ends when all messages are settled or taken back; the session, when its connection has ended and nothing is in flight.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from qmq.access.rights import Rights
from qmq.broker.consumers.deliveries import find_delivery
from qmq.broker.consumers.orders import SettleDeliveries, Subscribe
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.waker import Waker
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused
from qmq.gateways.paused import Command
from qmq.protocols.http.gateway.bodies import Receive
from qmq.protocols.http.gateway.pulls import (
    EXPIRED,
    UNREACHABLE,
    AckRequest,
    AckToken,
    PullEncoder,
    received_facts,
    subscription_of,
)
from qmq.protocols.http.gateway.responses import encode_refusal
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.pull_consumer import PullOf

KEY_BITS: Final = 64


class InnerPipe:
    """The pipe of a session without a socket: it takes everything, and brings nothing until it ends."""

    def __init__(self, peer_address: str, peer_port: int) -> None:
        self.peer_address = peer_address
        self.peer_port = peer_port
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

    def __init__(self, pull_of: PullOf, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self.changed = Waker()
        """What has been decided about acknowledgements is known."""
        self.pull = pull_of(session.id)
        self.encoder = session.encoder = PullEncoder(self.changed.wake, self.pull.delivered)
        self.is_started = trio.Event()

    def start(self) -> None:
        self.is_started.set()

    def receive(self, data: bytes) -> None:
        raise AssertionError("the pipe brings nothing")

    async def respond(self) -> None:
        await trio.lowlevel.checkpoint()

    def note_stop(self) -> None:
        self.pull.stop()

    def release(self) -> None:
        self.finish()

    def finish(self) -> None:
        self.changed.wake()
        self.pull.interrupt()


class PullSession:
    """What one connection has received. `id` is that of its session in the node."""

    def __init__(
        self,
        engine: EngineParts,
        node: NodeBasics,
        host: SessionHost,
        loops: FrameLoops,
        rights: Rights,
        acts_for: dict[int, int],
        pull_of: PullOf,
        client: ClientSession,
        on_end: Callable[["PullSession"], object],
    ) -> None:
        """`rights` are those of `client`; see `ExclusiveQueues` for `acts_for`."""
        self._engine = engine
        self._node = node
        self._acts_for = acts_for
        self._on_end = on_end
        self._pipe = InnerPipe(client.peer_address, client.peer_port)
        login, protocol = (
            PendingLogin(client.peer_address),
            ClientProtocol("http-pull", partial(PullDialogue, pull_of), encode_refusal),
        )
        session = self._session = ClientSession(host, self._pipe, client.listener, login, protocol)
        session.grant = client.grant
        dialogue = session.dialogue
        assert isinstance(dialogue, PullDialogue)
        self._dialogue = dialogue
        dialogue.note_product(client.dialogue.product)
        self._encoder = dialogue.encoder
        self._pull = dialogue.pull
        gateway = loops.gateway_of(session, self._encoder, rights, is_atomic=True)
        self._loop = loops.begin(session, gateway)
        self._numbers = 0
        self._turn = trio.Lock()
        self.id = session.id
        self.key = f"{engine.environment.rng.getrandbits(KEY_BITS):016x}"
        self.user = session.user
        acts_for[self.id] = client.id
        self.is_left = False
        """Its connection has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether the node has ended it, by a kick or a permission that was taken away."""
        return self._session.finishing

    @property
    def has_in_flight(self) -> bool:
        """Whether messages wait to be settled."""
        session = self._engine.broker.sessions.get(self.id)
        return session is not None and any(one.in_flight for one in session.subscriptions.values())

    async def start(self) -> None:
        self._node.spawn(self._serve)
        await self._dialogue.is_started.wait()
        self._session.begin()

    async def _serve(self) -> None:
        try:
            await self._session.serve()
        finally:
            del self._acts_for[self.id]
            self._on_end(self)

    @property
    def _why_ended(self) -> ProtocolError | Refused:
        """Why the node has ended this session, which ends before its connection if that is busy."""
        return self._encoder.refused or Refused("kicked", "The node has ended the session of this connection.")

    async def receive(self, queue: str, wanted: Receive, until_left: Callable[[], Awaitable[None]]) -> list[Delivery]:
        """The next messages of a queue, at most as many as are wanted and fit, after at most the time that is allowed.

        `until_left` returns when the client has left; then nothing is received. Raises Refused.
        """
        self._numbers += 1
        id = f"receive-{self._numbers}"
        count = min(wanted.max, self._node.settings.limits.prefetch_max)
        begin = partial(self._subscribe, subscription_of(wanted, self.id, queue, id))
        try:
            received = await self._pull.take([begin], count, wanted.wait_seconds, until_left)
        finally:
            session = self._engine.broker.sessions.get(self.id)
            if session is not None and id in session.subscriptions:
                self._pull.release(session.subscriptions[id])
        if self._pull.has_left:
            self.is_left = True
        if session is None:
            raise self._why_ended
        return received

    async def _subscribe(self, subscription: Subscription) -> Subscription | None:
        await self._obey([Subscribe(subscription)])
        session = self._engine.broker.sessions.get(self.id)
        return None if session is None else session.subscriptions.get(subscription.id)

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
            await self._engine.path.slot(self.id)
            if self._session.finishing or self._session.ending:
                return True
            orders: list[Command] = []
            self._numbers += 1
            for number, (tag, ack) in enumerate(acks):
                delivery = self._delivery(tag)
                if delivery is None or tag in settled:
                    continue
                results[number] = ack.result
                if ack.action == "extend":
                    self._pull.extend(delivery)
                else:
                    settled.add(tag)
                    receipt = f"ack-{self._numbers}-{number}"
                    orders.append(SettleDeliveries([delivery], ack.why, receipt=receipt))
                    due[receipt] = number
            self._encoder.receipts_due.update(due)
            self._encoder.refused = None
            await self._loop.obey(orders)
            # Requests of other connections set it, too.
            return self._encoder.refused is not None or not self._encoder.receipts_refused.isdisjoint(due)

    def _delivery(self, tag: int) -> Delivery | None:
        try:
            return find_delivery(self._engine.broker.queues.deliveries, self.id, tag)
        except Refused:
            return None

    async def _obey(self, frames: list[Command]) -> None:
        """Decide frames, one request at a time. Raises Refused."""
        async with self._turn:
            await self._engine.path.slot(self.id)
            if self.id not in self._engine.broker.sessions:
                raise self._why_ended
            self._encoder.refused = None
            await self._loop.obey(frames)
            refused = self._encoder.refused
        if refused is not None:
            raise refused

    def reap(self) -> None:
        """End receives of which nothing is in flight, and the session if nothing can come of it any more."""
        session = self._engine.broker.sessions.get(self.id)
        if session is None:
            return
        self._pull.reap()
        if self.is_left and not session.subscriptions:
            self._session.end_in_order()

    def leave(self) -> None:
        """The connection has ended: the session ends when nothing is in flight."""
        self.is_left = True
        self._pull.leave()
        self.reap()

    def token(self, delivery: Delivery) -> AckToken:
        """What names this delivery to any node."""
        return AckToken(self._engine.broker.origin.node, self.id, self.key, delivery.tag)

    def facts(self, delivery: Delivery) -> dict[str, Any]:
        """A received message as the client gets it."""
        return received_facts(delivery, self.token(delivery))
