"""The frames of one channel: a gateway of its own, and what is collected for it until it is decided.

Publishes, acks and nacks of one read are collected, and decided when a command needs an answer, or at the end of the
read. A delivery that was taken back meanwhile needs no ack.
"""

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final, Protocol

import trio

from qmq.access.rights import Rights
from qmq.broker.consumers.consumer_class import PRIORITY_MAX
from qmq.broker.consumers.orders import Begin, SettleDeliveries, Subscribe
from qmq.broker.consumers.subscription import Ack, Asks, Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.send_options import MILLISECONDS_MAX
from qmq.config import DestinationPolicy
from qmq.gateways.paused import Command
from qmq.mesh.peers.calls import Facts
from qmq.protocols.amqp.blocked import Blocking
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import Method, encode_method
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Channel, Consumer
from qmq.protocols.amqp.gateway.declares import seconds_of
from qmq.protocols.amqp.gateway.encoder import AmqpEncoder, ChannelEncoder
from qmq.protocols.amqp.gateway.names import Vhost, queue_name
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoops
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.verbs.verb import NO_HEADERS, Verb
from qmq.wire.stomp import Head

PREFETCH_MAX: Final = 65_535
"""Of a consumer or a channel: the largest number that basic.qos can say, and what 0, no bound, means here."""

TIMEOUT: Final = "x-consumer-timeout"

PUBLISH: Final = (60, 40)
ACK: Final = (60, 80)


class PublishMemory:
    """What the publishes of all channels of a connection have found out."""

    def __init__(self) -> None:
        self.heads: dict[tuple[str, str, str, bytes], Head] = {}
        """The serial of the channel, exchange, routing key and properties → the header block."""
        self.absent: set[str] = set()
        """Queues that did not exist when all that the client has sent so far, and is being obeyed, had come."""
        self.asked_for_bindings = False
        """Whether this node knows all bindings that there were then."""

    def read(self) -> None:
        """More has come of the client: a queue may have been declared before, or bound."""
        self.absent.clear()
        self.asked_for_bindings = False


class ChannelOwner(Protocol):
    """The dialogue of the connection (`AmqpDialogue`)."""

    session: ClientSession
    rights: Rights | None
    vhost: Vhost
    encoder: AmqpEncoder
    blocking: Blocking
    publishes: PublishMemory

    @property
    def is_over(self) -> bool: ...

    @property
    def qos_is_of_channel(self) -> bool: ...

    def put(self, data: bytes) -> None: ...

    async def ask(
        self, options: Verb, about: str, value: Mapping[str, Any] | None = None, said: Mapping[str, str] = NO_HEADERS
    ) -> Facts:
        """The facts of a verb that the client asks for. Raises Refused."""

    async def answers_due(self, channel: Channel, kind: str = "") -> None:
        """Wait until no answer of `channel` is due whose receipt begins with `kind`."""


@dataclass(eq=False, repr=False)
class ChannelFrames:
    """See the module's opening. `on_flushed` is called when everything that was collected is decided."""

    owner: ChannelOwner
    state: Channel
    loops: InitVar[FrameLoops]
    _watchers: QueueWatchers
    _on_flushed: Callable[[], object]

    def __post_init__(self, loops: FrameLoops) -> None:
        session = self.owner.session
        self.written = ChannelEncoder(self.owner.encoder, self.state, self._ignore, self.owner.blocking.refused)
        assert self.owner.rights is not None
        self.rights = self.owner.rights
        self.gateway = loops.gateway_of(session, self.written, self.rights, keep_open=True, stays=True)
        self._loop = loops.begin(session, self.gateway)
        self.pending: list[Command] = []
        self._numbers = 0
        self.transaction: str | None = None
        """Its name, once tx.select has come."""
        self.has_begun = False
        """A publish or ack of the transaction has come."""

    def _ignore(self) -> None:
        """The channel is closing: nothing that follows is obeyed."""
        self.gateway.ignores = True

    def new_id(self) -> str:
        """An id that no other channel of the connection uses."""
        self._numbers += 1
        return f"{self.state.serial}.{self._numbers}"

    def send(self, method: Method) -> None:
        """Nothing if the channel is closing: some clients take an answer after channel.close as an error."""
        if self.state.is_closing:
            return
        self.owner.put(method_frame(self.state.number, encode_method(method)))

    def respond(self, method: Any, response: bytes) -> None:
        """Respond to `method`, if the client wants that."""
        if not method.nowait:
            self.owner.put(method_frame(self.state.number, response))

    def done(self, method: Any, response: Method) -> None:
        """The same."""
        self.respond(method, encode_method(response))

    def begin(self) -> None:
        """Before each publish or ack: the first one of a transaction begins it."""
        if self.transaction is not None and not self.has_begun:
            self.has_begun = True
            self.pending.append(Begin(self.transaction))

    def settle(self, deliveries: list[Delivery], why: Back | None = None) -> None:
        """Collect an ack of these, or a nack that says `why`."""
        self.begin()
        last = self.pending[-1] if self.pending else None
        if isinstance(last, SettleDeliveries) and last.why is why:
            last.deliveries += deliveries
        else:
            self.pending.append(SettleDeliveries(deliveries, why, transaction=self.transaction))

    async def flush(self) -> None:
        """Decide what was collected."""
        pending, self.pending = self.pending, []
        at = 0
        while at < len(pending) and not self.state.is_closing:
            end = at + 1
            is_ack = isinstance(pending[at], SettleDeliveries)
            while end < len(pending) and isinstance(pending[end], SettleDeliveries) is is_ack:
                end += 1
            await self.obey(pending[at:end], ACK if is_ack else PUBLISH)
            if self.owner.is_over:
                return
            at = end
        self._on_flushed()

    async def obey(
        self,
        decided: list[Command],
        cause: tuple[int, int],
        is_void: Callable[[], bool] = bool,
        *,
        is_paid: bool = False,
    ) -> bool:
        """Decide these for the method `cause`. False, and nothing, if the connection ends before, or if they
        are void when there is a slot for them."""
        session = self.owner.session
        if cause == PUBLISH:
            session.waits_for_slot = True
            await self.owner.blocking.slot(session.id)
            session.waits_for_slot = False
        else:
            await self._loop.slot()
        if self.owner.is_over or is_void():
            return False
        self.written.cause = cause
        await self._loop.obey(decided, is_paid=is_paid)
        if self.owner.encoder.is_closing:
            # A refusal of a node that stops ends the connection: nothing that follows is obeyed.
            session.end_in_order()
        if cause == PUBLISH and not self.owner.is_over:
            self.owner.blocking.published()
        return True

    async def subscribe(self, subscribe: Subscribe, cause: tuple[int, int], consumer: Consumer | None = None) -> None:
        """Subscribe. Raises AmqpRefusal if the queue is deleted meanwhile: another may have its name by now."""
        queue = subscribe.subscription.destination
        owner, watchers, deleted = self.owner, self._watchers, trio.Event()
        watcher = consumer or deleted
        watchers.watch(queue, watcher, deleted.set)
        try:
            await owner.session.pay()
            was_decided = await self.obey([subscribe], cause, deleted.is_set, is_paid=True)
        finally:
            watchers.forget(queue, watcher)
        if not was_decided and not owner.is_over:
            if consumer is not None:
                owner.encoder.consumers.pop(consumer.id, None)
                owner.encoder.withdraw_answer(subscribe.receipt or "")
                self.state.consumers.pop(consumer.tag, None)
            raise AmqpRefusal(ReplyCode.NOT_FOUND, f"the queue {queue_name(queue, owner.vhost)!r} has been deleted")

    def subscription(
        self, id: str, queue: str, policy: DestinationPolicy, needs_ack: bool, arguments: Mapping[str, Any]
    ) -> Subscription:
        """With the defaults of RabbitMQ, no limit of deliveries, no pause after a nack and no dead letter queue, unless
        one of these is declared of the queue or in its policy. Raises AmqpRefusal."""
        ack = Ack.CLIENT_INDIVIDUAL if needs_ack else Ack.AUTO
        made = Subscription(self.owner.session.id, id, queue, ack, self.state.prefetch or PREFETCH_MAX, b"")
        said = policy.set_keys
        made.asks = Asks(
            None if "delivery_limit" in said else 0,
            None if "redelivery_seconds_min" in said else 0,
            None if "dead_letter" in said else "",
        )
        timeout = arguments.get(TIMEOUT)
        if timeout is not None:
            made.ack_timeout_us = round(seconds_of(TIMEOUT, timeout) * 1000) * 1000
            if made.ack_timeout_us > MILLISECONDS_MAX * 1000:
                raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{TIMEOUT} is at most {MILLISECONDS_MAX}")
        priority = arguments.get("x-priority", 0)
        if type(priority) is not int or abs(priority) > PRIORITY_MAX:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"x-priority is a whole number, not {priority!r}")
        made.priority = priority
        return made
