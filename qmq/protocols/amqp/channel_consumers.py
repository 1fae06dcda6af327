"""Consumers of one channel: basic.consume, basic.get, their prefetch, and their end."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import PRIORITY_MAX
from qmq.broker.consumers.orders import Subscribe
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Asks, Subscription
from qmq.broker.messages.send_options import MILLISECONDS_MAX
from qmq.protocols.amqp.channel_frames import PREFETCH_MAX, ChannelFrames
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import commands, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Consumer
from qmq.protocols.amqp.gateway.declares import seconds_of
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY, queue_destination, queue_name
from qmq.protocols.amqp.lookup import check_queue
from qmq.protocols.amqp.topology import Topology
from qmq.sessions.pull_consumer import PullConsumer

TAGS_MAX: Final = 1000
"""Consumers of one channel."""

TIMEOUT: Final = "x-consumer-timeout"

CONSUME_OK: Final = b"\x00\x3c\x00\x15"


class ChannelConsumers:
    """Those that are open. `pull` takes for basic.get, and ends those that are cancelled."""

    def __init__(self, frames: ChannelFrames, topology: Topology, pull: PullConsumer) -> None:
        self._frames = frames
        self._topology = topology
        self._owner = frames.owner
        self.state = frames.state
        self._rights = frames.rights
        self._pull = pull
        self._window: ConnectionPrefetch[Subscription] | None = None
        """What all that begin from now on share."""
        self._getters: dict[str, Subscription] = {}
        """Queue → the subscription of its basic.get. It is released between two of them."""

    async def consume(self, method: Any) -> None:
        await self._frames.flush()
        context, state = self._owner.context, self.state
        name = self._topology.named(method.queue)
        id = self._frames.new_id()
        tag = method.consumer_tag or f"amq.ctag-{context.broker.origin.node}-{self._owner.session.id}-{id}"
        if tag in state.consumers:
            raise AmqpRefusal(ReplyCode.NOT_ALLOWED, f"the consumer tag {tag!r} is used on this channel")
        if len(state.consumers) >= TAGS_MAX:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has at most {TAGS_MAX} consumers")
        if name == DIRECT_REPLY:
            consumer, subscription = self._reply_consumer(id, tag, method.no_ack)
        else:
            queue = queue_destination(name, self._owner.vhost)
            self._rights.check_subscribe(queue)
            await check_queue(context, queue, name, self._owner.vhost)
            consumer = Consumer(state, id, tag, queue, needs_ack=not method.no_ack)
            subscription = self._subscription(queue, id, consumer.needs_ack, method.arguments or {})
            subscription.window = self._window
            if method.exclusive:
                if context.policy_of(queue).exclusive:
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
        await self._begin(Subscribe(subscription, receipt), (60, 20), consumer)
        if state.is_closing:
            self.end()
        elif not self._owner.is_over:
            on_deleted = partial(context.spawn, partial(self._notify, consumer))
            context.queue_watchers.watch(consumer.queue, consumer, on_deleted)

    async def _begin(self, subscribe: Subscribe, cause: tuple[int, int], consumer: Consumer | None = None) -> None:
        """Subscribe. Raises AmqpRefusal if the queue is deleted meanwhile: another may have its name by now."""
        queue = subscribe.subscription.destination
        owner = self._owner
        watchers, deleted = owner.context.queue_watchers, trio.Event()
        watcher = consumer or deleted
        watchers.watch(queue, watcher, deleted.set)
        try:
            await owner.session.pay()
            was_decided = await self._frames.obey([subscribe], cause, deleted.is_set, is_paid=True)
        finally:
            watchers.forget(queue, watcher)
        if not was_decided and not owner.is_over:
            if consumer is not None:
                owner.encoder.consumers.pop(consumer.id, None)
                owner.encoder.withdraw_answer(subscribe.receipt or "")
                self.state.consumers.pop(consumer.tag, None)
            raise AmqpRefusal(ReplyCode.NOT_FOUND, f"the queue {queue_name(queue, owner.vhost)!r} has been deleted")

    def _reply_consumer(self, id: str, tag: str, no_ack: bool) -> tuple[Consumer, Subscription]:
        """The consumer of direct replies, of which a channel has one. Raises AmqpRefusal."""
        if not no_ack:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a consumer of {DIRECT_REPLY} needs no_ack")
        if self.state.reply_consumer is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has one consumer of {DIRECT_REPLY}")
        queue = f"/temp-queue/amqp-{self.state.serial}"
        consumer = self.state.reply_consumer = Consumer(self.state, id, tag, queue, needs_ack=False)
        return consumer, Subscription(self._owner.session.id, id, queue, Ack.AUTO, 1, b"")

    def _subscription(self, queue: str, id: str, needs_ack: bool, arguments: Mapping[str, Any]) -> Subscription:
        """With the defaults of RabbitMQ, no limit of deliveries, no pause after a nack and no dead letter queue, unless
        one of these is declared of the queue or in its policy. Raises AmqpRefusal."""
        ack = Ack.CLIENT_INDIVIDUAL if needs_ack else Ack.AUTO
        made = Subscription(self._owner.session.id, id, queue, ack, self.state.prefetch or PREFETCH_MAX, b"")
        said = self._owner.context.policy_of(queue).set_keys
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
        await self._topology.deleted.wait()
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
        owner.context.queue_watchers.forget(consumer.queue, consumer)
        owner.encoder.consumers.pop(consumer.id, None)
        if consumer is self.state.reply_consumer:
            self.state.reply_consumer = None
            self._owner.heads.clear()
        session = owner.context.broker.sessions.get(owner.session.id)
        subscription = None if session is None else session.subscriptions.get(consumer.id)
        if subscription is None:
            return
        if consumer.needs_ack:
            self._pull.release(subscription)
            return
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        owner.context.broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
        owner.context.submit(out)

    async def get(self, method: Any) -> None:
        await self._frames.flush()
        owner, state = self._owner, self.state
        name = self._topology.named(method.queue)
        queue = queue_destination(name, owner.vhost)
        self._rights.check_subscribe(queue)
        await check_queue(owner.context, queue, name, owner.vhost)
        if owner.context.broker.subscriptions.is_stopping:
            # There is nothing for it here any more. It may still settle what it has.
            self._frames.send(commands.Basic.GetEmpty())
            return
        lifetimes = owner.context.queue_lifetimes
        is_alone = lifetimes.has_no_consumer_here(queue)
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
            lifetimes.declared_again(queue)
        if not taken:
            self._frames.send(commands.Basic.GetEmpty())
            return
        owner.put(owner.encoder.got(state, taken[0], self._depth_of(queue), not method.no_ack))
        if method.no_ack:
            # At most once: nothing that comes later, a refusal or its end, may requeue it.
            out = Outcome(owner.session.id, owner.context.environment.now_us())
            owner.context.broker.settle(taken, out)
            owner.context.submit(out)

    async def _getter(self, queue: str) -> Subscription | None:
        """A subscription that takes from a queue. Raises Refused and AmqpRefusal."""
        if queue in self._getters:
            self._rights.check_subscribe(queue)
            self._pull.resume(self._getters[queue])
            return self._getters[queue]
        id = self._frames.new_id()
        # `get` settles what needs no ack: with `auto`, the next message would come as soon as this one is written.
        # The bound of the channel is about its consumers only, as with RabbitMQ.
        subscription = self._subscription(queue, id, True, {})
        subscription.is_pull, subscription.credit = True, 0
        await self._begin(Subscribe(subscription), (60, 70))
        session = self._owner.context.broker.sessions.get(self._owner.session.id)
        found = None if session is None else session.subscriptions.get(id)
        if found is not None:
            self._getters[queue] = found
        return found

    def _depth_of(self, queue: str) -> int:
        """Messages of a queue that wait here, as far as this node knows without looking into the store."""
        found = self._owner.context.broker.queues.by_name.get(queue)
        if found is None:
            return 0
        session = self._owner.context.broker.sessions.get(self._owner.session.id)
        # Those of basic.get are consumers no more when they have their message.
        own = [] if session is None else session.subscriptions.values()
        holders = {*found.subscriptions, *(one for one in own if one.destination == queue)}
        return max(0, found.depth - sum([len(one.in_flight) for one in holders]))

    async def qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is 0: prefetch is counted in messages")
        if method.global_ or self._owner.qos_is_of_channel:
            most = method.prefetch_count or PREFETCH_MAX
            window = self._window
            out = Outcome(self._owner.session.id, self._owner.context.environment.now_us())
            if window is None:
                self._window = window = ConnectionPrefetch(most)
                self._share(window, out)
            else:
                self._owner.context.broker.queues.rounds.resize(window, most, out)
            self._owner.context.submit(out)
        else:
            self.state.prefetch = method.prefetch_count
        self._frames.send(commands.Basic.QosOk())

    def _share(self, window: ConnectionPrefetch[Subscription], out: Outcome) -> None:
        """Let the consumers that the channel has share its new bound, with what they have in flight."""
        queues = self._owner.context.broker.queues
        session = self._owner.context.broker.sessions.get(self._owner.session.id)
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
            self._owner.context.queue_watchers.forget(consumer.queue, consumer)
            self._owner.encoder.consumers.pop(consumer.id, None)
        self.state.consumers.clear()

    def end(self) -> None:
        """End all subscriptions of the channel, and its transaction. What is in flight is requeued."""
        owner = self._owner
        self.forget()
        session = owner.context.broker.sessions.get(owner.session.id)
        if session is not None:
            out = Outcome(owner.session.id, owner.context.environment.now_us())
            for id in [id for id in session.subscriptions if id.startswith(f"{self.state.serial}.")]:
                owner.context.broker.subscriptions.unsubscribe(owner.session.id, id, out)
            if self._frames.transaction in session.transactions:
                owner.context.broker.transactions.abort(owner.session.id, self._frames.transaction)
            owner.context.submit(out)
        self.state.unacked.clear()
        self._getters.clear()
