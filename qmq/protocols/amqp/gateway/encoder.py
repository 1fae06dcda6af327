"""How AMQP is written: deliveries, confirms, and why a channel or a connection ends.

A session has one `AmqpEncoder`. The gateway of each channel has a `ChannelEncoder`, so that a refusal ends the channel
that it is about.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from qmq.access.rights import NOT_ALLOWED
from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.subscription import Delivery, FanoutDelivery, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.sent_run import SentRun
from qmq.broker.messages.totals import Totals
from qmq.broker.queues.dead_letter_history import came_through
from qmq.broker.selectors import properties_of
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.protocols.amqp.codec.frames import content_frames, method_frame
from qmq.protocols.amqp.codec.methods import commands, encode_method, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal
from qmq.protocols.amqp.gateway.channel import GET_OK, Channel, Consumer
from qmq.protocols.amqp.gateway.messages import delivered_properties
from qmq.protocols.amqp.gateway.names import DEFAULT_VHOST, DIRECT_REPLY, Vhost, queue_name
from qmq.protocols.amqp.gateway.replies import LATE, NACKED, of_channel, of_connection

SHARED_MAX: Final = 1024
SHARED_BYTES_MAX: Final = 4 << 20
"""Of what `SharedContents` remembers; at either bound all of it is forgotten."""

TAG: Final = Struct(">QB")
COUNT: Final = Struct(">I")
METHOD: Final = Struct(">BHI")
LENGTHS: Final = Struct(">HI")

PUBLISH: Final = (60, 40)
COMMIT: Final = (90, 20)
CANCEL: Final = b"\x00\x3c\x00\x1e"
NO_WAIT: Final = b"\x01"


class SharedContents:
    """What messages with the same headers share as AMQP, for all sessions of the node: routing and properties."""

    def __init__(self) -> None:
        self._known: dict[tuple[Envelope, str], tuple[bytes, bytes]] = {}
        self._bytes = 0

    def of(self, envelope: Envelope, vhost: Vhost) -> tuple[bytes, bytes]:
        """Exchange and routing key as two short strings; and the properties. A client of `vhost` gets them."""
        place = (envelope, vhost.prefix)
        known = self._known.get(place)
        if known is None:
            if len(self._known) >= SHARED_MAX or self._bytes > SHARED_BYTES_MAX:
                self._known.clear()
                self._bytes = 0
            known = self._known[place] = _content_of(envelope, vhost)
            self._bytes += len(known[0]) + len(known[1])
        return known


def _content_of(envelope: Envelope, vhost: Vhost) -> tuple[bytes, bytes]:
    was_parsed = envelope.properties is not None
    headers = properties_of(envelope)
    if not was_parsed:
        # Most envelopes have one message, and no selector will look at it.
        envelope.properties = None
    queue = queue_name(envelope.destination, vhost)
    exchange, key = headers.get("exchange"), headers.get("routing-key")
    if "dead-letter-from" in headers:
        exchange, key = came_through(headers, queue)
    elif exchange is None or key is None:
        exchange, key = "", DIRECT_REPLY if envelope.kind is DestinationKind.TEMP else queue
    routing = short_string(exchange.removeprefix(vhost.prefix)) + short_string(key)
    return routing, delivered_properties(headers, queue, vhost)


class AmqpEncoder:
    """`Encoder` of one connection. `delivered` is called with what is delivered for basic.get."""

    protocol = "AMQP 0-9-1"

    def __init__(self, contents: SharedContents, delivered: Callable[[list[Delivery], Totals | None], object]) -> None:
        self._contents = contents
        self._delivered = delivered
        self.vhost = DEFAULT_VHOST
        self.frame_bytes_max = 4096
        self.channels: dict[str, Channel] = {}
        """By serial."""
        self.consumers: dict[str, Consumer] = {}
        """By the id of their subscription."""
        self.answers: dict[str, bytes] = {}
        """Receipt → the method that is sent for it, for frames that are no publish."""
        self.on_answered: Callable[[], object] = bool
        """Called when one of them has been sent, or is refused."""
        self.on_ended: Callable[[Consumer], object] = bool
        """Called when the node has ended a subscription."""
        self.understands_cancel = False
        """Whether basic.cancel may be sent to the client."""
        self.is_closing = False
        """connection.close is written."""

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        return (subscription_id or "").encode()

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        return b""

    def tails(self, messages: list[Message]) -> list[bytes]:
        found = []
        for message in messages:
            routing, properties = self._contents.of(message.envelope, self.vhost)
            found.append(b"%b%b%b%b" % (LENGTHS.pack(len(routing), len(properties)), routing, properties, message.body))
        return found

    def tails_of(self, sent: SentRun) -> list[bytes]:
        return self.tails(sent.messages)

    def marked(self, tail: bytes, name: str, value: str) -> bytes:
        return tail

    def run(self, prefix: bytes, tails: list[bytes]) -> bytes:
        consumer = self.consumers.get(prefix.decode())
        if consumer is None:
            return b""
        parts = []
        for tail in tails:
            routing_bytes, properties_bytes = LENGTHS.unpack_from(tail)
            end = LENGTHS.size + routing_bytes
            body_at = end + properties_bytes
            routing, properties = tail[LENGTHS.size : end], tail[end:body_at]
            parts.append(self._delivery(consumer.channel, consumer.lead, False, routing, properties, tail[body_at:]))
        return b"".join(parts)

    def _delivery(
        self, channel: Channel, lead: bytes, is_redelivered: bool, routing: bytes, properties: bytes, body: bytes
    ) -> bytes:
        """One message with the next tag of its channel."""
        channel.last_tag += 1
        payload = b"%b%b%b" % (lead, TAG.pack(channel.last_tag, is_redelivered), routing)
        return b"%b%b\xce%b" % (
            METHOD.pack(1, channel.number, len(payload)),
            payload,
            content_frames(channel.number, properties, body, self.frame_bytes_max),
        )

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        if subscription.is_pull:
            self._delivered(deliveries, totals)
            return b""
        consumer = self.consumers.get(subscription.id)
        if consumer is None:
            return b""
        parts: list[bytes] = []
        channel = consumer.channel
        redelivered = 0
        for delivery in deliveries:
            delivery.sent = True
            message = delivery.message
            routing, properties = self._contents.of(message.envelope, self.vhost)
            is_redelivered = message.attempts != 0
            redelivered += is_redelivered
            parts.append(self._delivery(channel, consumer.lead, is_redelivered, routing, properties, message.body))
            if consumer.needs_ack:
                channel.unacked[channel.last_tag] = delivery
        if len(channel.unacked) > channel.unacked_max:
            channel.forget_late()
        if totals is not None:
            totals.delivered += len(deliveries)
            totals.redelivered += redelivered
        return b"".join(parts)

    def got(self, channel: Channel, delivery: Delivery, depth: int, needs_ack: bool) -> bytes:
        """basic.get-ok; `depth` is how many messages of the queue wait."""
        message = delivery.message
        routing, properties = self._contents.of(message.envelope, self.vhost)
        routing += COUNT.pack(max(0, min(depth, 0xFFFFFFFF)))
        data = self._delivery(channel, GET_OK, message.attempts != 0, routing, properties, message.body)
        if needs_ack:
            channel.unacked[channel.last_tag] = delivery
            if len(channel.unacked) > channel.unacked_max:
                channel.forget_late()
        return data

    def durable_deliveries(self, subscription: Subscription, run: list[FanoutDelivery]) -> bytes:
        return b""

    def notice(self, subscription: Subscription, lines: Lines, body: bytes = b"") -> bytes:
        return b""

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        parts: list[bytes] = []
        answers = self.answers
        numbers: list[int] = []
        of = ""
        for receipt in receipts:
            answer = answers.pop(receipt, None) if answers else None
            if answer is not None:
                parts.append(answer)
                self.on_answered()
                continue
            channel, _, number = receipt.partition(".")
            if channel != of:
                parts.append(self._confirm(of, numbers))
                of, numbers = channel, []
            numbers.append(int(number))
        parts.append(self._confirm(of, numbers))
        return b"".join(parts)

    def owes(self, channel: Channel, kind: str) -> bool:
        """Whether an answer of this channel is due whose receipt begins with `kind`."""
        return any(receipt.startswith(kind) and f" {channel.serial}." in receipt for receipt in self.answers)

    def withdraw_answer(self, receipt: str) -> bool:
        """Send no answer for this receipt; False if none is due."""
        if self.answers.pop(receipt, None) is None:
            return False
        self.on_answered()
        return True

    def _confirm(self, of: str, numbers: list[int]) -> bytes:
        channel = self.channels.get(of)
        return b"" if channel is None else channel.confirm(numbers)

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return b""

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        if receipt is not None:
            of, _, number = receipt.rpartition(" ")[2].partition(".")
            channel = self.channels.get(of)
            is_publish = not self.withdraw_answer(receipt)
            if channel is None or is_publish:
                return b"" if channel is None else channel.refuse_publish(int(number))
            # tx.commit: too few nodes confirm it. The subscriptions end when the client has confirmed the close.
            self.consumers = {id: one for id, one in self.consumers.items() if one.channel is not channel}
            return b"" if channel.is_closing else channel.close(of_channel(error), COMMIT)
        if subscription is not None and error.code == NOT_ALLOWED:
            return self.cancel(subscription)
        return self.close(of_connection(error))

    def cancel(self, id: str) -> bytes:
        """basic.cancel of the node: the subscription has ended. Nothing if its client does not know of it any more."""
        consumer = self.consumers.pop(id, None)
        if consumer is None:
            return b""
        self.on_ended(consumer)
        open_ones = consumer.channel.consumers
        if open_ones.get(consumer.tag) is not consumer:
            return b""
        del open_ones[consumer.tag]
        if not self.understands_cancel:
            return b""
        return method_frame(consumer.channel.number, CANCEL + short_string(consumer.tag) + NO_WAIT)

    def close(self, refusal: AmqpRefusal, cause: tuple[int, int] = (0, 0)) -> bytes:
        """connection.close, once."""
        if self.is_closing:
            return b""
        self.is_closing = True
        method = commands.Connection.Close(int(refusal.reply), refusal.text, cause[0], cause[1])
        return method_frame(0, encode_method(method))


class ChannelEncoder(NoMessages):
    """What the gateway of one channel writes: refusals. `on_close` is called when the channel is closing, `on_refused`
    with the code of each refusal.
    """

    protocol = AmqpEncoder.protocol

    def __init__(
        self,
        encoder: AmqpEncoder,
        channel: Channel,
        on_close: Callable[[], object],
        on_refused: Callable[[str], object] = bool,
    ) -> None:
        self._encoder = encoder
        self._channel = channel
        self._on_close = on_close
        self._on_refused = on_refused
        self.cause = PUBLISH
        """Class and method of the frames that are decided."""
        self.is_transactional = False
        """A transaction that misses a message must not be committed, so each refusal ends the channel."""

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        return self._encoder.prefix(subscription_id, needs_no_ack)

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        return b""

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return b""

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        channel = self._channel
        if channel.is_closing or (error.code == LATE and not self.is_transactional):
            return b""
        has_answer = receipt is not None and self._encoder.withdraw_answer(receipt)
        # A basic.get, or a basic.consume with nowait, has no receipt either.
        is_publish = self.cause == PUBLISH and not has_answer
        self._on_refused(error.code)
        if is_publish and error.code in NACKED and not self.is_transactional:
            # Without confirms a publish is dropped, as by RabbitMQ.
            return b"" if receipt is None else channel.refuse_publish(int(receipt.partition(".")[2]))
        self._on_close()
        refusal = of_channel(error)
        if not refusal.ends_channel:
            # The node is stopping: the other channels end with this one.
            return self._encoder.close(of_connection(error), self.cause)
        return channel.close(refusal, self.cause)
