"""One channel of an AMQP session: its commands become frames of a gateway of its own, and control requests.

Publishes, acks and nacks of one read are collected, and decided when a command needs an answer, or at the end of the
read. An ack is looked up in the moment in which it is decided: a delivery that was taken back meanwhile needs none.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import trio

from qmq.access.rights import Rights
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.config import DestinationPolicy, LimitSettings
from qmq.gateways.amqp.channel import Channel, Consumer
from qmq.gateways.amqp.encoder import AmqpEncoder, ChannelEncoder
from qmq.gateways.amqp.messages import send_headers
from qmq.gateways.amqp.names import DIRECT_REPLY, QUEUE, REPLIES, exchange_name, publish_destination, queue_destination
from qmq.gateways.stomp import StompGateway
from qmq.server.amqp.lookup import check_exchange, check_queue, knows_queue, queue_exists
from qmq.server.amqp.topology import Topology, TopologyContext
from qmq.server.clients.session import ClientSession
from qmq.server.definitions.queue_watchers import QueueWatchers
from qmq.server.peers.control_response import ControlResponse
from qmq.server.runtime.contexts import Tasks
from qmq.server.stomp.frame_loop import FrameContext, FrameLoop, NoSource
from qmq.wire.amqp import (
    AmqpRefusal,
    Command,
    Method,
    ReplyCode,
    commands,
    content_frames,
    encode_method,
    method_frame,
    read_ack,
    read_method,
    read_nack,
    read_publish,
    short_string,
)
from qmq.wire.amqp.methods import IMMEDIATE, MANDATORY
from qmq.wire.stomp import Acks, Frame, Head, Version

PREFETCH_MAX: Final = 65_535
"""Of a consumer or a channel: the largest number that basic.qos can say, and what 0, no bound, means here."""

HEADS_MAX: Final = 256
"""Different publishes of a channel that are remembered; at the bound all are forgotten."""
HEAD_BYTES_MAX: Final = 1024
"""Properties of such a publish."""

GET_SECONDS: Final = 0.1
"""For the first message to come, perhaps from another node, before basic.get-empty."""

TAGS_MAX: Final = 1000
"""Consumers of one channel."""

PUBLISH: Final = (60, 40)
ACK: Final = (60, 80)
REJECT: Final = (60, 90)
NACK: Final = (60, 120)

NO_ROUTE: Final = 312
RETURN: Final = b"\x00\x3c\x00\x32"
CONSUME_OK: Final = b"\x00\x3c\x00\x15"

Item = Frame | Delivery
"""A frame, or a delivery that is acknowledged."""


class ChannelContext(FrameContext, TopologyContext, Tasks, Protocol):
    """What a channel needs of the node."""

    limits: LimitSettings
    queue_watchers: QueueWatchers

    @property
    def policy_of(self) -> Callable[[str], DestinationPolicy]: ...


class ChannelOwner(Protocol):
    """The dialogue of the connection (`AmqpDialogue`)."""

    session: ClientSession
    encoder: AmqpEncoder
    rights: Rights | None

    @property
    def context(self) -> ChannelContext: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def qos_is_of_channel(self) -> bool: ...

    @property
    def understands_cancel(self) -> bool: ...

    def put(self, data: bytes) -> None: ...

    async def control(self, destination: str, headers: dict[str, str], body: bytes = b"") -> ControlResponse: ...


class AmqpChannel:
    """`take` gets one command after the other."""

    def __init__(self, owner: ChannelOwner, number: int, serial: str) -> None:
        self._owner = owner
        self.state = Channel(number, serial)
        owner.encoder.channels[serial] = self.state
        context, session = owner.context, owner.session
        self._written = ChannelEncoder(owner.encoder, self.state, self._ignore)
        assert owner.rights is not None
        self._rights = owner.rights
        self._gateway = StompGateway(
            session.id,
            context.broker,
            context.rules,
            Version.V12,
            True,
            rights=self._rights,
            user=session.user,
            encoder=self._written,
            stays=True,
            prefetch_max=PREFETCH_MAX,
        )
        self._loop = FrameLoop(context, session, self._gateway, NoSource())
        self._topology = Topology(owner, self.state)
        self._pending: list[Item] = []
        self._heads: dict[tuple[str, str, bytes], Head] = {}
        self._numbers = 0
        self._ceased: dict[str, Consumer] = {}
        """Cancelled consumers that have messages in flight, and those of basic.get, by the id of their subscription."""
        self._transaction: str | None = None
        """Its name, once tx.select has come."""
        self._has_begun = False
        self._tx_taken: dict[int, Delivery] = {}

    def _ignore(self) -> None:
        """The channel is closing: nothing that follows is obeyed."""
        self._gateway.ignores = True

    async def take(self, command: Command) -> bool:
        """Obey a command; False if it is none of an open channel. Raises AmqpRefusal, Refused."""
        kind = (command.class_id, command.method_id)
        if kind == PUBLISH:
            await self._publish(command)
        elif kind == ACK:
            tag, multiple = read_ack(command.arguments)
            self._ack(tag, multiple)
        elif kind == NACK:
            tag, multiple, requeue = read_nack(command.arguments)
            self._nack(tag, multiple, requeue)
        else:
            method = read_method(command)
            handler = HANDLERS.get(type(method))
            if handler is None:
                topology = self._topology.handler_of(method)
                if topology is None:
                    return False
                await self.flush()
                if not self.state.is_closing and not self._owner.is_over:
                    await topology(method)
            else:
                await handler(self, method)
        return True

    def _send(self, method: Method) -> None:
        self._owner.put(method_frame(self.state.number, encode_method(method)))

    # Publishes

    async def _publish(self, command: Command) -> None:
        exchange, key, bits = read_publish(command.arguments)
        context = self._owner.context
        if command.body is None:
            most = context.limits.body_bytes_max
            raise AmqpRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the message has {command.size} bytes; limits.body_bytes_max of this node is {most}",
            )
        if bits & IMMEDIATE:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "immediate = true is not supported")
        head = self._head_of(exchange, key, command.properties)
        if exchange and exchange_name(exchange) not in context.rules.routing.exchanges:
            await check_exchange(context, exchange)
        receipt = self.state.next_confirm() if self.state.confirms else None
        if not await self._is_routable(exchange, head, bool(bits & MANDATORY)):
            if bits & MANDATORY:
                self._return(exchange, key, command)
            if receipt is not None:
                self._owner.put(self.state.confirm([self.state.published]))
            return
        self._begin()
        self._pending.append(Frame(head, command.body, receipt))

    def _head_of(self, exchange: str, key: str, properties: bytes) -> Head:
        """The header block of a publish. Raises AmqpRefusal."""
        known = self._heads.get((exchange, key, properties))
        if known is not None:
            return known
        session = self._owner.session
        destination = publish_destination(exchange, key)
        replies = None if self.state.reply_consumer is None else self.state
        headers = send_headers(destination, properties, session.user, replies)
        if self._transaction is not None:
            headers["transaction"] = self._transaction
        head = Head("SEND", headers, Version.V12)
        if len(properties) <= HEAD_BYTES_MAX:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[exchange, key, properties] = head
        return head

    async def _is_routable(self, exchange: str, head: Head, is_mandatory: bool) -> bool:
        """Whether a publish reaches a queue. One to an exchange is asked about only where the answer is wanted."""
        context, headers = self._owner.context, head.headers
        destination = headers["destination"]
        if not exchange:
            if destination.startswith(REPLIES) or knows_queue(context, destination):
                return True
            return destination != QUEUE and await queue_exists(context, destination)
        if not is_mandatory:
            return True
        name, _, key = destination.removeprefix("/exchange/").partition("/")
        return bool(context.rules.routing.queues_of_exchange(name, key, headers))

    def _return(self, exchange: str, key: str, command: Command) -> None:
        """basic.return of a publish that no queue gets."""
        assert command.body is not None
        routing = short_string("NO_ROUTE") + short_string(exchange) + short_string(key)
        method = method_frame(self.state.number, RETURN + NO_ROUTE.to_bytes(2, "big") + routing)
        frame_bytes_max = self._owner.encoder.frame_bytes_max
        content = content_frames(self.state.number, command.properties, command.body, frame_bytes_max)
        self._owner.put(method + content)

    # Acks

    def _ack(self, tag: int, multiple: bool) -> None:
        taken = self._taken(tag, multiple)
        if self._transaction is None:
            self._pending += taken
            return
        self._begin()
        for delivery in taken:
            headers = {"id": str(delivery.tag), "transaction": self._transaction}
            self._pending.append(Frame(Head("ACK", headers, Version.V12), b"", None))

    def _nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        taken = self._taken(tag, multiple)
        self._begin()
        for delivery in taken:
            self._pending.append(self._nack_frame(delivery, requeue))

    def _taken(self, tag: int, multiple: bool) -> list[Delivery]:
        """What an ack or nack is about. Raises AmqpRefusal."""
        if self._transaction is None:
            return self.state.take(tag, multiple)
        before = dict(self.state.unacked)
        taken = self.state.take(tag, multiple)
        # A rollback makes them unacked again.
        self._tx_taken.update({tag: one for tag, one in before.items() if tag not in self.state.unacked})
        return taken

    def _nack_frame(self, delivery: Delivery, requeue: bool) -> Frame:
        headers = {"id": str(delivery.tag), "requeue": "true" if requeue else "false"}
        if self._transaction is not None:
            headers["transaction"] = self._transaction
        return Frame(Head("NACK", headers, Version.V12), b"", None)

    async def flush(self) -> None:
        """Decide what was collected."""
        pending, self._pending = self._pending, []
        at = 0
        while at < len(pending) and not self.state.is_closing:
            end = at + 1
            is_ack = isinstance(pending[at], Delivery)
            while end < len(pending) and isinstance(pending[end], Delivery) is is_ack:
                end += 1
            await self._obey(pending[at:end], ACK if is_ack else PUBLISH)
            if self._owner.is_over:
                return
            at = end
        if self.state.is_closing:
            self._end()
        elif self._ceased:
            self._reap()

    async def _obey(self, items: list[Any], cause: tuple[int, int]) -> None:
        context, session = self._owner.context, self._owner.session
        session.waits_for_slot = True
        await context.slot(session.id)
        session.waits_for_slot = False
        if self._owner.is_over:
            return
        self._written.cause = cause
        frames: list[Frame] = self._acks_of(items) if isinstance(items[0], Delivery) else items
        if frames:
            await self._loop.obey(frames)

    def _acks_of(self, deliveries: list[Delivery]) -> list[Frame]:
        """The ACKs of those that are still in flight: together for each subscription."""
        known = self._owner.context.broker.queues.deliveries
        by_subscription: dict[Subscription, list[bytes]] = {}
        for delivery in deliveries:
            if known.get(delivery.tag) is delivery:
                by_subscription.setdefault(delivery.subscription, []).append(b"%d" % delivery.tag)
        head = Head("ACK", {}, Version.V12)
        return [Acks(head, numbers) for numbers in by_subscription.values()]

    # Consumers

    async def _consume(self, method: Any) -> None:
        await self.flush()
        context, state = self._owner.context, self.state
        name = self._topology.named(method.queue)
        self._numbers += 1
        id = f"{state.serial}.{self._numbers}"
        tag = method.consumer_tag or f"amq.ctag-{context.broker.origin.node}-{self._owner.session.id}-{id}"
        if tag in state.consumers:
            raise AmqpRefusal(ReplyCode.NOT_ALLOWED, f"the consumer tag {tag!r} is used on this channel")
        if len(state.consumers) >= TAGS_MAX:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a channel has at most {TAGS_MAX} consumers")
        if name == DIRECT_REPLY:
            consumer, headers = self._reply_consumer(id, tag, method.no_ack)
        else:
            queue = queue_destination(name)
            await check_queue(context, queue, name)
            consumer = Consumer(state, id, tag, queue, needs_ack=not method.no_ack)
            headers = self._subscribe(consumer, method.arguments or {})
            if method.exclusive:
                headers["exclusive"] = "true"
        encoder = self._owner.encoder
        receipt = None
        if not method.nowait:
            receipt = f"consume {id}"
            encoder.answers[receipt] = method_frame(state.number, CONSUME_OK + short_string(tag))
        state.consumers[tag] = encoder.consumers[id] = consumer
        context.queue_watchers.watch(consumer.queue, consumer, partial(context.spawn, partial(self._notify, consumer)))
        await self._obey([Frame(Head("SUBSCRIBE", headers, Version.V12), b"", receipt)], (60, 20))
        if state.is_closing:
            self._end()

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
            "prefetch-count": str(PREFETCH_MAX if self._gateway.window else self.state.prefetch or PREFETCH_MAX),
        }
        said = self._owner.context.policy_of(consumer.queue).model_fields_set
        if "delivery_limit" not in said:
            headers["delivery-limit"] = "0"
        if "redelivery_seconds_min" not in said:
            headers["redelivery-delay"] = "0"
        if "dead_letter" not in said:
            headers["dead-letter"] = ""
        milliseconds = arguments.get("x-consumer-timeout")
        if type(milliseconds) is int and milliseconds > 0:
            headers["ack-timeout"] = f"{milliseconds / 1000:.3f}"
        return headers

    async def _cancel(self, method: Any) -> None:
        await self.flush()
        consumer = self.state.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self._cease(consumer)
        if not method.nowait:
            self._send(commands.Basic.CancelOk(method.consumer_tag))

    async def _notify(self, consumer: Consumer) -> None:
        """The queue of a consumer is deleted: cancel it, and notify a client that understands that."""
        await trio.lowlevel.checkpoint()
        owner = self._owner
        if owner.is_over or self.state.consumers.pop(consumer.tag, None) is not consumer:
            return
        self._cease(consumer)
        if owner.understands_cancel:
            self._send(commands.Basic.Cancel(consumer.tag, True))

    def _cease(self, consumer: Consumer) -> None:
        """Deliver nothing more. What the client has stays unacked; what was not sent is requeued."""
        owner = self._owner
        owner.context.queue_watchers.forget(consumer.queue, consumer)
        broker = owner.context.broker
        session = broker.sessions.get(owner.session.id)
        subscription = None if session is None else session.subscriptions.get(consumer.id)
        if consumer is self.state.reply_consumer:
            self.state.reply_consumer = None
            self._heads.clear()
        if subscription is None:
            owner.encoder.consumers.pop(consumer.id, None)
            return
        consumer.is_cancelled = True
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        if consumer.needs_ack:
            unsent = [one for one in subscription.in_flight.values() if not one.sent]
            broker.queues.redelivery.give_back(unsent, Back.UNSEEN, out)
        if consumer.needs_ack and subscription.in_flight:
            broker.queues.cease(subscription, out)
            self._ceased[consumer.id] = consumer
        else:
            broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
            del owner.encoder.consumers[consumer.id]
        owner.context.submit(out)

    def _reap(self) -> None:
        """End subscriptions of cancelled consumers of which nothing is in flight any more."""
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

    def _end(self) -> None:
        """End all subscriptions of the channel, and its transaction. What is in flight is requeued."""
        owner = self._owner
        session = owner.context.broker.sessions.get(owner.session.id)
        out = Outcome(owner.session.id, owner.context.environment.now_us())
        for consumer in [*self.state.consumers.values(), *self._ceased.values()]:
            owner.context.queue_watchers.forget(consumer.queue, consumer)
            owner.encoder.consumers.pop(consumer.id, None)
            if session is not None and session.is_taken(consumer.id):
                owner.context.broker.subscriptions.unsubscribe(owner.session.id, consumer.id, out)
        if session is not None and self._transaction in session.transactions:
            owner.context.broker.transactions.abort(owner.session.id, self._transaction)
        owner.context.submit(out)
        self.state.consumers.clear()
        self.state.unacked.clear()
        self._ceased.clear()
        self.forget()

    async def _get(self, method: Any) -> None:
        await self.flush()
        owner, state = self._owner, self.state
        name = self._topology.named(method.queue)
        queue = queue_destination(name)
        await check_queue(owner.context, queue, name)
        given = trio.Event()
        owner.encoder.on_given = given.set
        consumer = await self._getter(queue, not method.no_ack)
        with trio.move_on_after(GET_SECONDS):
            await given.wait()
        owner.encoder.on_given = bool
        if owner.is_over or state.is_closing:
            return
        self._cease(consumer)
        if not consumer.was_given:
            self._send(commands.Basic.GetEmpty())

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
                owner.context.broker.queues.subscribe(found, out)
                owner.context.submit(out)
                return consumer
        self._numbers += 1
        id = f"{state.serial}.{self._numbers}"
        consumer = Consumer(state, id, "", queue, needs_ack=needs_ack, is_get=True)
        headers = {**self._subscribe(consumer, {}), "prefetch-count": "1"}
        owner.encoder.consumers[id] = consumer
        await self._obey([Frame(Head("SUBSCRIBE", headers, Version.V12), b"", None)], (60, 70))
        return consumer

    async def _qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is 0: prefetch is counted in messages")
        if method.global_ or self._owner.qos_is_of_channel:
            most = method.prefetch_count or PREFETCH_MAX
            window = self._gateway.window
            if window is None:
                self._gateway.window = ConnectionPrefetch(most)
            else:
                out = Outcome(self._owner.session.id, self._owner.context.environment.now_us())
                self._owner.context.broker.queues.rounds.resize(window, most, out)
                self._owner.context.submit(out)
        else:
            self.state.prefetch = method.prefetch_count
        self._send(commands.Basic.QosOk())

    async def _reject(self, method: Any) -> None:
        self._nack(method.delivery_tag, False, method.requeue)

    async def _recover(self, method: Any) -> None:
        if not method.requeue:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "requeue = false is not supported")
        if self.state.unacked:
            self._nack(0, True, True)
        await self.flush()
        if isinstance(method, commands.Basic.Recover):
            self._send(commands.Basic.RecoverOk())

    async def _confirm(self, method: Any) -> None:
        if self._transaction is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "a channel with transactions has no confirms")
        await self.flush()
        self.state.confirms = True
        if not method.nowait:
            self._send(commands.Confirm.SelectOk())

    async def _flow(self, method: Any) -> None:
        if not method.active:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "channel.flow with active = false: use basic.qos")
        self._send(commands.Channel.FlowOk(True))

    # Transactions

    def _begin(self) -> None:
        """The first publish or ack of a transaction."""
        if self._transaction is not None and not self._has_begun:
            self._has_begun = True
            self._pending.append(Frame(Head("BEGIN", {"transaction": self._transaction}, Version.V12), b"", None))

    async def _select(self, method: Any) -> None:
        if self.state.confirms:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "a channel with confirms has no transactions")
        await self.flush()
        if self._transaction is None:
            self._transaction = f"amqp-{self.state.serial}"
            self._written.is_transactional = True
            self._heads.clear()
        self._send(commands.Tx.SelectOk())

    async def _commit(self, method: Any) -> None:
        await self._end_transaction("COMMIT", commands.Tx.CommitOk())

    async def _rollback(self, method: Any) -> None:
        self.state.unacked = dict(sorted({**self.state.unacked, **self._tx_taken}.items()))
        await self._end_transaction("ABORT", commands.Tx.RollbackOk())

    async def _end_transaction(self, command: str, answer: Method) -> None:
        name = self._transaction
        if name is None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "the channel has no transactions: tx.select is first")
        self._tx_taken = {}
        if not self._has_begun:
            self._send(answer)
            return
        self._has_begun = False
        self._numbers += 1
        receipt = f"transaction {self.state.serial}.{self._numbers}"
        self._owner.encoder.answers[receipt] = method_frame(self.state.number, encode_method(answer))
        self._pending.append(Frame(Head(command, {"transaction": name}, Version.V12), b"", receipt))
        await self.flush()

    # The end

    async def leave(self) -> None:
        """The channel ends: what it has unacked is requeued, and a transaction that is open is aborted."""
        await self.flush()
        if not self._owner.is_over:
            self._end()

    def forget(self) -> None:
        """Drop what refers to the session."""
        for consumer in self.state.consumers.values():
            self._owner.context.queue_watchers.forget(consumer.queue, consumer)
        self._owner.encoder.channels.pop(self.state.serial, None)
        self._pending.clear()
        self._heads.clear()


Handler = Callable[[AmqpChannel, Any], Awaitable[None]]

HANDLERS: Final[Mapping[type[Method], Handler]] = {
    commands.Basic.Consume: AmqpChannel._consume,
    commands.Basic.Cancel: AmqpChannel._cancel,
    commands.Basic.Get: AmqpChannel._get,
    commands.Basic.Qos: AmqpChannel._qos,
    commands.Basic.Reject: AmqpChannel._reject,
    commands.Basic.Recover: AmqpChannel._recover,
    commands.Basic.RecoverAsync: AmqpChannel._recover,
    commands.Channel.Flow: AmqpChannel._flow,
    commands.Confirm.Select: AmqpChannel._confirm,
    commands.Tx.Select: AmqpChannel._select,
    commands.Tx.Commit: AmqpChannel._commit,
    commands.Tx.Rollback: AmqpChannel._rollback,
}
