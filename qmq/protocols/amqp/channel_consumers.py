"""Consumers of one channel: basic.consume, basic.get, their prefetch, and their end."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Final

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.orders import Subscribe
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.engine.parts import EngineParts
from qmq.protocols.amqp.channel_frames import PREFETCH_MAX, ChannelFrames
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import commands, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Consumer
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY, queue_destination
from qmq.protocols.amqp.lookup import Lookup
from qmq.protocols.amqp.queue_methods import QueueMethods
from qmq.sessions.pull_consumer import PullConsumer
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers

TAGS_MAX: Final = 1000
"""Consumers of one channel."""

CONSUME_OK: Final = b"\x00\x3c\x00\x15"


@dataclass(eq=False, repr=False)
class ChannelConsumers:
    """Those that are open. `pull` takes for basic.get, and ends those that are cancelled."""

    _frames: ChannelFrames
    _queues: QueueMethods
    _lookup: Lookup
    _pull: PullConsumer
    engine: InitVar[EngineParts]
    _watchers: QueueWatchers
    _lifetimes: QueueLifetimes
    _spawn: Callable[[Callable[[], object]], None]

    def __post_init__(self, engine: EngineParts) -> None:
        self._owner = self._frames.owner
        self.state = self._frames.state
        self._broker = engine.broker
        self._environment = engine.environment
        self._path = engine.path
        self._getters: dict[str, Subscription] = {}
        """Queue → the subscription of its basic.get. It is released between two of them."""
        self._window: ConnectionPrefetch[Subscription] | None = None
        """What all that begin from now on share."""

    async def consume(self, method: Any) -> None:
        await self._frames.flush()
        state, name = self.state, self.state.named(method.queue)
        id = self._frames.new_id()
        tag = method.consumer_tag or f"amq.ctag-{self._broker.origin.node}-{self._owner.session.id}-{id}"
        if tag in state.consumers:
            raise AmqpRefusal(ReplyCode.NOT_ALLOWED, f"the consumer tag {tag!r} is used on this channel")
        if len(state.consumers) >= TAGS_MAX:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has at most {TAGS_MAX} consumers")
        if name == DIRECT_REPLY:
            consumer, subscription = self._reply_consumer(id, tag, method.no_ack)
        else:
            queue = queue_destination(name, self._owner.vhost)
            self._frames.rights.check_subscribe(queue)
            await self._lookup.check_queue(queue, name, self._owner.vhost)
            consumer = Consumer(state, id, tag, queue, needs_ack=not method.no_ack)
            policy = self._lookup.policy_of(queue)
            subscription = self._frames.subscription(id, queue, policy, consumer.needs_ack, method.arguments or {})
            subscription.window = self._window
            if method.exclusive:
                if policy.exclusive:
                    raise AmqpRefusal(
                        ReplyCode.ACCESS_REFUSED,
                        f"queue {name!r} has a single active consumer: none of its consumers can be exclusive",
                    )
                subscription.exclusive = True
        encoder = self._owner.encoder
        receipt = None
        if not method.nowait:
            receipt = f"consume {id}"
            encoder.answers[receipt] = method_frame(state.number, CONSUME_OK + short_string(tag))
        state.consumers[tag] = encoder.consumers[id] = consumer
        await self._frames.subscribe(Subscribe(subscription, receipt), (60, 20), consumer)
        if state.is_closing:
            self.end()
        elif not self._owner.is_over:
            on_deleted = partial(self._spawn, partial(self._notify, consumer))
            self._watchers.watch(consumer.queue, consumer, on_deleted)

    def _reply_consumer(self, id: str, tag: str, no_ack: bool) -> tuple[Consumer, Subscription]:
        """The consumer of direct replies, of which a channel has one. Raises AmqpRefusal."""
        if not no_ack:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a consumer of {DIRECT_REPLY} needs no_ack")
        if self.state.reply_consumer is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has one consumer of {DIRECT_REPLY}")
        queue = f"/temp-queue/amqp-{self.state.serial}"
        consumer = self.state.reply_consumer = Consumer(self.state, id, tag, queue, needs_ack=False)
        return consumer, Subscription(self._owner.session.id, id, queue, Ack.AUTO, 1, b"")

    async def cancel(self, method: Any) -> None:
        await self._frames.flush()
        consumer = self.state.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self._cease(consumer)
        if not method.nowait:
            self._frames.send(commands.Basic.CancelOk(method.consumer_tag))

    async def _notify(self, consumer: Consumer) -> None:
        """The queue of a consumer is deleted: cancel it, and notify a client that understands that."""
        # After the answer to the channel that has deleted it, as with RabbitMQ.
        await self._queues.deleted.wait()
        owner = self._owner
        # A channel that has been left has no consumers, and its owner has no session any more.
        if self.state.consumers.get(consumer.tag) is not consumer or owner.is_over:
            return
        del self.state.consumers[consumer.tag]
        self._cease(consumer)
        if owner.encoder.understands_cancel:
            self._frames.send(commands.Basic.Cancel(consumer.tag, True))

    def _cease(self, consumer: Consumer) -> None:
        """Deliver nothing more. What the client has stays unacked; what was not sent is requeued."""
        owner = self._owner
        self._watchers.forget(consumer.queue, consumer)
        owner.encoder.consumers.pop(consumer.id, None)
        if consumer is self.state.reply_consumer:
            self.state.reply_consumer = None
            owner.publishes.heads.clear()
        session = self._broker.sessions.get(owner.session.id)
        subscription = None if session is None else session.subscriptions.get(consumer.id)
        if subscription is None:
            return
        if consumer.needs_ack:
            self._pull.release(subscription)
            return
        out = Outcome(owner.session.id, self._environment.now_us())
        self._broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
        self._path.submit(out)

    async def get(self, method: Any) -> None:
        await self._frames.flush()
        owner, state, broker = self._owner, self.state, self._broker
        name = state.named(method.queue)
        queue = queue_destination(name, owner.vhost)
        self._frames.rights.check_subscribe(queue)
        await self._lookup.check_queue(queue, name, owner.vhost)
        if broker.subscriptions.is_stopping:
            # There is nothing for it here any more. It may still settle what it has.
            self._frames.send(commands.Basic.GetEmpty())
            return
        is_alone = self._lifetimes.has_no_consumer_here(queue)
        # One subscription for all gets of a queue, because subscriptions are limited.
        self._getters = {queue: one for queue, one in self._getters.items() if not one.closed}
        try:
            taken = await self._pull.take([partial(self._getter, queue)], 1, 0.0)
        finally:
            if queue in self._getters:
                self._pull.release(self._getters[queue])
        if state.is_closing:
            self.end()
            return
        if owner.is_over:
            return
        if is_alone:
            # A get is no consumer: an `auto_delete` queue stays until the first one has come and left.
            self._lifetimes.declared_again(queue)
        if not taken:
            self._frames.send(commands.Basic.GetEmpty())
            return
        owner.put(owner.encoder.got(state, taken[0], self._depth_of(queue), not method.no_ack))
        if method.no_ack:
            # At most once: nothing that comes later, a refusal or its end, may requeue it.
            out = Outcome(owner.session.id, self._environment.now_us())
            broker.settle(taken, out)
            self._path.submit(out)

    async def _getter(self, queue: str) -> Subscription | None:
        """A subscription that takes from a queue. Raises Refused and AmqpRefusal."""
        if queue in self._getters:
            self._frames.rights.check_subscribe(queue)
            self._pull.resume(self._getters[queue])
            return self._getters[queue]
        id = self._frames.new_id()
        # `get` settles what needs no ack: with `auto`, the next message would come as soon as this one is written.
        # The bound of the channel is about its consumers only, as with RabbitMQ.
        subscription = self._frames.subscription(id, queue, self._lookup.policy_of(queue), True, {})
        subscription.is_pull, subscription.credit = True, 0
        await self._frames.subscribe(Subscribe(subscription), (60, 70))
        session = self._broker.sessions.get(self._owner.session.id)
        found = None if session is None else session.subscriptions.get(id)
        if found is not None:
            self._getters[queue] = found
        return found

    def _depth_of(self, queue: str) -> int:
        """Messages of a queue that wait here, as far as this node knows without looking into the store."""
        found = self._broker.queues.by_name.get(queue)
        if found is None:
            return 0
        return max(0, found.depth - sum([len(one.in_flight) for one in found.holders]))

    async def qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is 0: prefetch is counted in messages")
        if method.global_ or self._owner.qos_is_of_channel:
            most = method.prefetch_count or PREFETCH_MAX
            window = self._window
            out = Outcome(self._owner.session.id, self._environment.now_us())
            if window is None:
                self._window = window = ConnectionPrefetch(most)
                self._share(window, out)
            else:
                self._broker.queues.rounds.resize(window, most, out)
            self._path.submit(out)
        else:
            self.state.prefetch = method.prefetch_count
        self._frames.send(commands.Basic.QosOk())

    def _share(self, window: ConnectionPrefetch[Subscription], out: Outcome) -> None:
        """Let the consumers that the channel has share its new bound, with what they have in flight."""
        queues = self._broker.queues
        session = self._broker.sessions.get(self._owner.session.id)
        known = {} if session is None else session.subscriptions
        shared = [
            (found, found.credit)
            for consumer in self.state.consumers.values()
            if consumer is not self.state.reply_consumer and (found := known.get(consumer.id)) is not None
        ]
        # All leave their queues first: no one of them may get more than the bound from what another gives up.
        for subscription, _ in shared:
            queues.cease(subscription, out)
            subscription.window = window
            window.held += len(subscription.in_flight)
        for subscription, credit in shared:
            subscription.credit = credit
            queues.subscribe(subscription, out)

    def forget(self) -> None:
        """Drop what refers to the session."""
        for consumer in self.state.consumers.values():
            self._watchers.forget(consumer.queue, consumer)
            self._owner.encoder.consumers.pop(consumer.id, None)
        self.state.consumers.clear()

    def end(self) -> None:
        """End all subscriptions of the channel, and its transaction. What is in flight is requeued."""
        owner = self._owner
        self.forget()
        session = self._broker.sessions.get(owner.session.id)
        if session is not None:
            out = Outcome(owner.session.id, self._environment.now_us())
            for id in [id for id in session.subscriptions if id.startswith(f"{self.state.serial}.")]:
                self._broker.subscriptions.unsubscribe(owner.session.id, id, out)
            if self._frames.transaction in session.transactions:
                self._broker.transactions.abort(owner.session.id, self._frames.transaction)
            self._path.submit(out)
        self.state.unacked.clear()
