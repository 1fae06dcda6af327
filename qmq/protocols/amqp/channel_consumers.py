"""Consumers of one channel: basic.consume, basic.get, their prefetch, and their end."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.protocols.amqp.channel_frames import PREFETCH_MAX, ChannelFrames
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import commands, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Consumer
from qmq.protocols.amqp.gateway.declares import seconds_of
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY, queue_destination, queue_name
from qmq.protocols.amqp.lookup import check_queue
from qmq.protocols.amqp.topology import Topology
from qmq.wire.stomp import Frame, Head, Version

GET_SECONDS: Final = 0.1
"""For the first message to come, perhaps from another node, before basic.get-empty."""

TAGS_MAX: Final = 1000
"""Consumers of one channel."""

TIMEOUT: Final = "x-consumer-timeout"

CONSUME_OK: Final = b"\x00\x3c\x00\x15"


class ChannelConsumers:
    """Those that are open, and those that have ended and still have messages in flight."""

    def __init__(self, frames: ChannelFrames, topology: Topology) -> None:
        self._frames = frames
        self._topology = topology
        self._owner = frames.owner
        self.state = frames.state
        self._rights = frames.rights
        self._ceased: dict[str, Consumer] = {}
        """Cancelled consumers that have messages in flight, and those of basic.get, by the id of their subscription."""

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
            consumer, headers = self._reply_consumer(id, tag, method.no_ack)
        else:
            queue = queue_destination(name, self._owner.vhost)
            self._rights.check_subscribe(queue)
            await check_queue(context, queue, name, self._owner.vhost)
            consumer = Consumer(state, id, tag, queue, needs_ack=not method.no_ack)
            headers = self._subscribe(consumer, method.arguments or {})
            if method.exclusive:
                if context.policy_of(queue).exclusive:
                    raise AmqpRefusal(
                        ReplyCode.ACCESS_REFUSED,
                        f"queue {name!r} has a single active consumer: none of its consumers can be exclusive",
                    )
                headers["exclusive"] = "true"
        encoder = self._owner.encoder
        receipt = None
        if not method.nowait:
            receipt = f"consume {id}"
            encoder.answers[receipt] = method_frame(state.number, CONSUME_OK + short_string(tag))
        state.consumers[tag] = encoder.consumers[id] = consumer
        await self._begin(consumer, headers, receipt, (60, 20))
        if state.is_closing:
            self.end()
        elif not self._owner.is_over:
            on_deleted = partial(context.spawn, partial(self._notify, consumer))
            context.queue_watchers.watch(consumer.queue, consumer, on_deleted)

    async def _begin(
        self, consumer: Consumer, headers: dict[str, str], receipt: str | None, cause: tuple[int, int]
    ) -> None:
        """Subscribe. Raises AmqpRefusal if the queue is deleted meanwhile: another may have its name by now."""
        owner = self._owner
        watchers, deleted = owner.context.queue_watchers, trio.Event()
        watchers.watch(consumer.queue, consumer, deleted.set)
        try:
            frame = Frame(Head("SUBSCRIBE", headers, Version.V12), b"", receipt)
            await self._frames.pay(frame)
            was_decided = await self._frames.obey([frame], cause, deleted.is_set, is_paid=True)
        finally:
            watchers.forget(consumer.queue, consumer)
        if not was_decided and not owner.is_over:
            owner.encoder.consumers.pop(consumer.id, None)
            owner.encoder.withdraw_answer(receipt or "")
            self.state.consumers.pop(consumer.tag, None)
            raise AmqpRefusal(
                ReplyCode.NOT_FOUND, f"the queue {queue_name(consumer.queue, owner.vhost)!r} has been deleted"
            )

    def _reply_consumer(self, id: str, tag: str, no_ack: bool) -> tuple[Consumer, dict[str, str]]:
        """The consumer of direct replies, of which a channel has one. Raises AmqpRefusal."""
        if not no_ack:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a consumer of {DIRECT_REPLY} needs no_ack")
        if self.state.reply_consumer is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has one consumer of {DIRECT_REPLY}")
        queue = f"/temp-queue/amqp-{self.state.serial}"
        consumer = self.state.reply_consumer = Consumer(self.state, id, tag, queue, needs_ack=False)
        return consumer, {"destination": queue, "id": id}

    def _subscribe(self, consumer: Consumer, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The headers of a SUBSCRIBE with the defaults of RabbitMQ: no limit of deliveries, no pause after a nack,
        and no dead letter queue, unless one of these is declared of the queue or in its policy."""
        headers = {
            "destination": consumer.queue,
            "id": consumer.id,
            "ack": "client-individual" if consumer.needs_ack else "auto",
            "prefetch-count": str(self.state.prefetch or PREFETCH_MAX),
        }
        said = self._owner.context.policy_of(consumer.queue).set_keys
        if "delivery_limit" not in said:
            headers["delivery-limit"] = "0"
        if "redelivery_seconds_min" not in said:
            headers["redelivery-delay"] = "0"
        if "dead_letter" not in said:
            headers["dead-letter"] = ""
        timeout = arguments.get(TIMEOUT)
        if timeout is not None:
            headers["ack-timeout"] = f"{seconds_of(TIMEOUT, timeout):.3f}"
        priority = arguments.get("x-priority", 0)
        if type(priority) is not int:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"x-priority is a whole number, not {priority!r}")
        if priority:
            headers["consumer-priority"] = str(priority)
        return headers

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
        broker = owner.context.broker
        session = broker.sessions.get(owner.session.id)
        subscription = None if session is None else session.subscriptions.get(consumer.id)
        if consumer is self.state.reply_consumer:
            self.state.reply_consumer = None
            self._owner.heads.clear()
        if subscription is None:
            owner.encoder.consumers.pop(consumer.id, None)
            return
        consumer.is_cancelled = True
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        is_acked = consumer.needs_ack or consumer.is_get
        if is_acked:
            # First: what is given back may go to any consumer.
            broker.queues.cease(subscription, out)
            unsent = [one for one in subscription.in_flight.values() if not one.sent]
            broker.queues.redelivery.give_back(unsent, Back.UNSEEN, out)
        if is_acked and subscription.in_flight:
            self._ceased[consumer.id] = consumer
        else:
            broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
            owner.encoder.consumers.pop(consumer.id, None)
        owner.context.submit(out)

    def reap(self) -> None:
        """End subscriptions of cancelled consumers of which nothing is in flight any more."""
        if not self._ceased:
            return
        owner = self._owner
        session = owner.context.broker.sessions.get(owner.session.id)
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        for id in list(self._ceased):
            subscription = None if session is None else session.subscriptions.get(id)
            if subscription is None or not subscription.in_flight:
                del self._ceased[id]
                owner.encoder.consumers.pop(id, None)
                if subscription is not None:
                    owner.context.broker.subscriptions.unsubscribe(owner.session.id, id, out)
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
        given = trio.Event()
        owner.encoder.on_given = given.set
        consumer = await self._getter(queue, not method.no_ack)
        if state.is_closing:
            owner.encoder.consumers.pop(consumer.id, None)
            self.end()
            return
        with trio.move_on_after(GET_SECONDS):
            await given.wait()
        owner.encoder.on_given = bool
        if owner.is_over:
            return
        self._cease(consumer)
        if is_alone:
            # A get is no consumer: an `auto_delete` queue stays until the first one has come and left.
            lifetimes.declared_again(queue)
        if not consumer.was_given:
            self._frames.send(commands.Basic.GetEmpty())
        elif method.no_ack:
            self._settle(consumer)

    async def _getter(self, queue: str, needs_ack: bool) -> Consumer:
        """A consumer with room for one message more: one for all gets of a queue, because subscriptions are limited."""
        owner, state = self._owner, self.state
        session = owner.context.broker.sessions.get(owner.session.id)
        for consumer in self._ceased.values():
            found = None if session is None else session.subscriptions.get(consumer.id)
            if consumer.is_get and found is not None and consumer.queue == queue and consumer.needs_ack is needs_ack:
                self._rights.check_subscribe(queue)
                out = Outcome(owner.session.id, owner.context.environment.now_us())
                consumer.was_given = consumer.is_cancelled = False
                found.credit = len(found.in_flight) + 1
                found.since_us = 0
                owner.context.broker.queues.subscribe(found, out)
                owner.context.submit(out)
                return consumer
        id = self._frames.new_id()
        consumer = Consumer(state, id, "", queue, needs_ack=needs_ack, is_get=True)
        # `get` settles what needs no ack: with `auto`, the next message would come as soon as this one is written.
        headers = {**self._subscribe(consumer, {}), "ack": "client-individual", "prefetch-count": "1"}
        owner.encoder.consumers[id] = consumer
        # The bound of the channel is about its consumers only, as with RabbitMQ.
        gateway = self._frames.gateway
        window, gateway.window = gateway.window, None
        try:
            await self._begin(consumer, headers, None, (60, 70))
        finally:
            gateway.window = window
        return consumer

    def _settle(self, consumer: Consumer) -> None:
        """It has its message, at most once: nothing that comes later, a refusal or its end, may requeue that."""
        owner = self._owner
        session = owner.context.broker.sessions.get(owner.session.id)
        subscription = None if session is None else session.subscriptions.get(consumer.id)
        if subscription is not None and subscription.in_flight:
            out = Outcome(owner.session.id, owner.context.environment.now_us())
            owner.context.broker.settle(list(subscription.in_flight.values()), out)
            owner.context.submit(out)

    async def qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is 0: prefetch is counted in messages")
        if method.global_ or self._owner.qos_is_of_channel:
            most = method.prefetch_count or PREFETCH_MAX
            window = self._frames.gateway.window
            out = Outcome(self._owner.session.id, self._owner.context.environment.now_us())
            if window is None:
                self._frames.gateway.window = window = ConnectionPrefetch(most)
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
        self.state.consumers.clear()

    def end(self) -> None:
        """End all subscriptions of the channel, and its transaction. What is in flight is requeued."""
        owner = self._owner
        session = owner.context.broker.sessions.get(owner.session.id)
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        for consumer in [*self.state.consumers.values(), *self._ceased.values()]:
            owner.context.queue_watchers.forget(consumer.queue, consumer)
            owner.encoder.consumers.pop(consumer.id, None)
            if session is not None and session.is_taken(consumer.id):
                owner.context.broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
        if session is not None and self._frames.transaction in session.transactions:
            owner.context.broker.transactions.abort(owner.session.id, self._frames.transaction)
        owner.context.submit(out)
        self.state.consumers.clear()
        self.state.unacked.clear()
        self._ceased.clear()
