"""The frames of one channel: a gateway of its own, and what is collected for it until it is decided.

Publishes, acks and nacks of one read are collected, and decided when a command needs an answer, or at the end of the
read. A delivery that was taken back meanwhile needs no ack.
"""

from collections.abc import Callable
from typing import Final, Protocol

from qmq.broker.consumers.orders import Begin, SettleDeliveries
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.lifecycle import Back
from qmq.config import DestinationPolicy, LimitSettings
from qmq.engine.runtime.contexts import Tasks
from qmq.gateways.paused import Command
from qmq.gateways.rules import Rules
from qmq.protocols.amqp.blocked import Blocking
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import Method, encode_method
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.gateway.encoder import AmqpEncoder, ChannelEncoder
from qmq.protocols.amqp.lookup import Questions
from qmq.protocols.amqp.topology import TopologyContext, TopologyOwner
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.frame_loop import FrameLoops
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.wire.stomp import Head

PREFETCH_MAX: Final = 65_535
"""Of a consumer or a channel: the largest number that basic.qos can say, and what 0, no bound, means here."""

PUBLISH: Final = (60, 40)
ACK: Final = (60, 80)


class ChannelContext(TopologyContext, Tasks, Protocol):
    loops: FrameLoops
    refusals: Refusals
    rules: Rules
    limits: LimitSettings
    queue_watchers: QueueWatchers

    @property
    def policy_of(self) -> Callable[[str], DestinationPolicy]: ...


class ChannelOwner(TopologyOwner, Protocol):
    """The dialogue of the connection (`AmqpDialogue`)."""

    encoder: AmqpEncoder
    blocking: Blocking
    heads: dict[tuple[str, str, str, bytes], Head]
    """Of publishes before: the serial of the channel, exchange, routing key and properties → the header block."""
    questions: Questions
    absent: set[str]
    """Queues that did not exist when all that the client has sent so far, and is being obeyed, had come."""
    asked_for_bindings: bool
    """Whether this node knows all bindings that there were then."""

    @property
    def context(self) -> ChannelContext: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def qos_is_of_channel(self) -> bool: ...

    async def answers_due(self, channel: Channel, kind: str = "") -> None:
        """Wait until no answer of `channel` is due whose receipt begins with `kind`."""


class ChannelFrames:
    """See the module's opening. `on_flushed` is called when everything that was collected is decided."""

    def __init__(self, owner: ChannelOwner, state: Channel, on_flushed: Callable[[], object]) -> None:
        self.owner = owner
        self.state = state
        self._on_flushed = on_flushed
        context, session = owner.context, owner.session
        self.written = ChannelEncoder(owner.encoder, state, self._ignore, owner.blocking.refused)
        assert owner.rights is not None
        self.rights = owner.rights
        self.gateway = context.loops.gateway_of(session, self.written, self.rights, keep_open=True, stays=True)
        self._loop = context.loops.begin(session, self.gateway)
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
        context, session = self.owner.context, self.owner.session
        session.waits_for_slot = True
        if cause == PUBLISH:
            await self.owner.blocking.slot(session.id)
        else:
            await context.slot(session.id)
        session.waits_for_slot = False
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
