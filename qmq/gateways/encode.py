"""MESSAGE frames, encoded once and joined per subscriber.

A MESSAGE is a **prefix** that belongs to the subscription (command, `subscription`) and a **tail** that belongs to the
message (id, destination, headers, body). The tail is made once per message and kept with it; a whole run for one
subscriber is a single join of its prefix between the tails. Queue messages carry what differs per delivery (`ack`,
`redelivered`, `delivery-count`) between the two.
"""

import re
from typing import Final

from qmq.broker.consumers.light_subscriptions import PREFIXES_MAX, LightSubscriptions
from qmq.broker.consumers.subscription import Ack, Delivery, FanoutDelivery, Subscription
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.broker.messages.sent_run import SentRun
from qmq.broker.messages.totals import Totals
from qmq.broker.queues.dead_letter_history import THROUGH
from qmq.errors import ProtocolError, Refused
from qmq.gateways.copies import EXCHANGE, ORIGINAL, ROUTING_KEY
from qmq.gateways.encoder import Lines
from qmq.gateways.error_frames import encode_error
from qmq.gateways.headers import AMQP_BLOCK
from qmq.model.dots import Origin
from qmq.wire.stomp import Version, convert_headers, encode_frame, encode_headers, encode_receipts

FIRST_DELIVERED: Final = b"%back:%d\n%b%d%b%d\n\n%b\0\n"
FIRST_DELIVERED_FROM_MEMORY: Final = b"%back:%d\n%bm%d%b%d\n\n%b\0\n"
"""A queue message that needs an ACK and has not come back before, in STOMP 1.2."""

AMQP_BLOCK_NAME: Final = AMQP_BLOCK.encode()
_AMQP_BLOCK: Final = re.compile(rb"^%b:[^\n]*\n" % AMQP_BLOCK_NAME, re.MULTILINE)

_DEAD_LETTER: Final = re.compile(rb"^dead-letter-reason:", re.MULTILINE)
_DEAD_LETTER_TO: Final = re.compile(rb"^%b:(/exchange/[^\n]*)\n" % THROUGH.encode(), re.MULTILINE)
_COPY_TO: Final = re.compile(
    rb"^(?:%b:([^\n]*)|%b:([^\n]*)\n%b:([^\n]*))\n" % (ORIGINAL.encode(), EXCHANGE.encode(), ROUTING_KEY.encode()),
    re.MULTILINE,
)

NO_ACK_ID = "none"
"""`ack` header of messages that need no ACK, for clients that insist on sending one."""


def subscription_prefix(version: Version, subscription_id: str | None, needs_no_ack: bool) -> bytes:
    """What comes before every message of a subscription.

    `subscription_id` is None where a 1.0 client gave none. `needs_no_ack`: topic or fanout messages for a client
    that subscribed with an ack mode other than auto; it gets an ack id that means nothing.
    """
    headers = [] if subscription_id is None else [("subscription", subscription_id)]
    if needs_no_ack and version >= Version.V12:
        headers.append(("ack", NO_ACK_ID))
    return b"MESSAGE\n" + encode_headers(headers, version)


def listener_prefix(version: Version, listener: LightSubscriptions, topic: str) -> bytes:
    """What comes before every message of `topic` to a listener; empty when it does not hear the topic any more."""
    id = listener.ids.get(topic)
    if id is None:
        return b""
    if len(listener.prefixes) >= PREFIXES_MAX:
        listener.prefixes.clear()
    prefix = listener.prefixes[topic] = subscription_prefix(version, id, False)
    return prefix


def tail_of(message: Message) -> bytes:
    """The rest of the MESSAGE frame as STOMP 1.1 and 1.2 clients get it; remembered.

    Writes the id out by itself, as `Message.message_id` does.
    """
    tail = message.tail
    if not tail:
        envelope = message.envelope
        # Nearly always the origin of the message before: one comparison instead of a dot written out.
        if envelope.wire_origin is not message.origin:
            _write_for(envelope, message.origin)
        wire = envelope.wire
        body = message.body
        sequence = message.sequence
        if sequence > 0:
            tail = b"%b%d%b%d\n\n%b\0\n" % (envelope.wire_lead, sequence, wire, len(body), body)
        else:
            tail = b"%bm%d%b%d\n\n%b\0\n" % (envelope.wire_lead, -sequence, wire, len(body), body)
        message.tail = tail
    return tail


def tails_of_run(sent: SentRun) -> list[bytes]:
    """`tail_of` each of these; remembered."""
    tails = sent.tails
    if tails is None:
        envelope = sent.envelope
        if envelope.wire_origin is not sent.origin:
            _write_for(envelope, sent.origin)
        lead, wire = envelope.wire_lead, envelope.wire
        tails = sent.tails = [
            b"%bm%d%b%d\n\n%b\0\n" % (lead, number, wire, len(body), body)
            for number, body in enumerate(sent.bodies, sent.first)
        ]
    return tails


def _write_for(envelope: Envelope, origin: Origin) -> None:
    """Remember in `envelope` what the tails of its messages from `origin` share."""
    if not envelope.wire:
        envelope.wire = _wire_of(envelope, envelope.headers, Version.V12)
    envelope.wire_lead = b"message-id:%b-" % str(origin).encode()
    envelope.wire_origin = origin


def _wire_of(envelope: Envelope, headers: bytes, version: Version, names: bytes = b"") -> bytes:
    """The part of a tail that messages of one envelope share, from the end of the id to the length of the body.

    `names` are the lines that say where it went, in STOMP 1.2; without them, its destination.
    """
    # Converted as headers are: 1.0 cannot write every destination, and a refusal would harm the client that names it.
    if AMQP_BLOCK_NAME in headers:
        headers = _AMQP_BLOCK.sub(b"", headers)
    names = names or encode_headers([("destination", envelope.destination)], Version.V12)
    return b"\n" + convert_headers(names, Version.V12, version) + headers + b"content-length:"


def tail_for(message: Message, version: Version) -> bytes:
    """The tail for one version: as `tail_of` unless a header has an escape that the version writes otherwise."""
    envelope = message.envelope
    if version == Version.V12 or (b"\\" not in envelope.headers and version == Version.V11):
        return tail_of(message)
    return _tail(message, version)


def _tail(message: Message, version: Version, names: bytes = b"") -> bytes:
    envelope = message.envelope
    headers = convert_headers(envelope.headers, Version.V12, version)
    wire = _wire_of(envelope, headers, version, names)
    return b"message-id:%b%b%d\n\n%b\0\n" % (message.message_id.encode(), wire, len(message.body), message.body)


def sent_tail(message: Message, version: Version) -> bytes:
    """As `tail_for`, for a client that has subscribed to the source of a binding and not to a queue: `destination` is
    that of the SEND (STOMP 1.2, MESSAGE), and `queue` names the queue.
    """
    envelope = message.envelope
    queue = encode_headers([("queue", envelope.destination)], Version.V12)
    sent_to = _sent_to(envelope.headers) or queue.removeprefix(b"queue:").rstrip(b"\n")
    return _tail(message, version, b"destination:%b\n%b" % (sent_to, queue))


def _sent_to(headers: bytes) -> bytes:
    """The destination of the SEND, or of the dead letter, whose copy has these headers; empty: it is no copy.

    The values are joined as they are: a slash has no escape.
    """
    if _DEAD_LETTER.search(headers):
        through = _DEAD_LETTER_TO.search(headers)
        return b"" if through is None else through[1]
    copy = _COPY_TO.search(headers)
    if copy is None:
        return b""
    source, exchange, key = copy.groups()
    if source is not None:
        return bytes(source)
    return b"/exchange/%b/%b" % (exchange, key) if key else b"/exchange/%b" % exchange


def encode_deliveries(
    subscription: Subscription, deliveries: list[Delivery], version: Version, totals: Totals | None = None
) -> bytes:
    """Queue messages for one subscription, with what its client needs to settle them. They count as sent now."""
    prefix = subscription.prefix
    redelivered = 0
    needs_ack = subscription.ack is not Ack.AUTO
    tagged = needs_ack and version >= Version.V12
    is_copy = bool(subscription.source)
    parts: list[bytes] = []
    for delivery in deliveries:
        delivery.sent = True
        message = delivery.message
        if tagged and not message.attempts and not is_copy:
            # Sent once, and whole: no other delivery will need this tail.
            envelope = message.envelope
            if envelope.wire_origin is not message.origin:
                _write_for(envelope, message.origin)
            body = message.body
            sequence = message.sequence
            form = FIRST_DELIVERED if sequence > 0 else FIRST_DELIVERED_FROM_MEMORY
            number = sequence if sequence > 0 else -sequence
            parts.append(form % (prefix, delivery.tag, envelope.wire_lead, number, envelope.wire, len(body), body))
            continue
        parts.append(prefix)
        if tagged:
            parts.append(b"ack:%d\n" % delivery.tag)
        if message.attempts:
            redelivered += 1
            parts.append(b"redelivered:true\ndelivery-count:%d\n" % (max(message.attempts, 0) + 1))
        if is_copy:
            parts.append(sent_tail(message, version))
        else:
            parts.append(tail_of(message) if version == Version.V12 else tail_for(message, version))
        if needs_ack and not tagged:
            if subscription.message_ids is None:
                subscription.message_ids = {}
            subscription.message_ids[message.message_id] = delivery.tag
    if totals is not None:
        totals.delivered += len(deliveries)
        totals.redelivered += redelivered
    return b"".join(parts)


def encode_handed(subscription: Subscription, run: list[FanoutDelivery], version: Version) -> bytes:
    """Fanout messages for a durable subscription, with what its client needs to settle them."""
    prefix = subscription.prefix
    needs_ack = subscription.ack is not Ack.AUTO
    tagged = needs_ack and version >= Version.V12
    parts: list[bytes] = []
    for handed in run:
        parts.append(prefix)
        if tagged:
            parts.append(b"ack:%d\n" % handed.tag)
        if handed.redelivered:
            parts.append(b"redelivered:true\n")
        parts.append(tail_for(handed.message, version))
        if needs_ack and not tagged:
            if subscription.message_ids is None:
                subscription.message_ids = {}
            subscription.message_ids[handed.message.message_id] = handed.tag
    return b"".join(parts)


class StompEncoder:
    """`Encoder` of one version of STOMP."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.protocol = f"STOMP {version.text}"

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        return subscription_prefix(self.version, subscription_id, needs_no_ack)

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        return listener_prefix(self.version, listener, topic)

    def tails(self, messages: list[Message]) -> list[bytes]:
        version = self.version
        if version is Version.V12:
            return [message.tail or tail_of(message) for message in messages]
        return [tail_for(message, version) for message in messages]

    def tails_of(self, sent: SentRun) -> list[bytes]:
        return tails_of_run(sent) if self.version is Version.V12 else self.tails(sent.messages)

    def marked(self, tail: bytes, name: str, value: str) -> bytes:
        return encode_headers([(name, value)], self.version) + tail

    def run(self, prefix: bytes, tails: list[bytes]) -> bytes:
        return prefix + prefix.join(tails)

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        return encode_deliveries(subscription, deliveries, self.version, totals)

    def durable_deliveries(self, subscription: Subscription, run: list[FanoutDelivery]) -> bytes:
        return encode_handed(subscription, run, self.version)

    def notice(self, subscription: Subscription, lines: Lines, body: bytes = b"") -> bytes:
        headers = encode_headers([*lines, ("content-length", str(len(body)))], self.version)
        return b"%b%b\n%b\0\n" % (subscription.prefix, headers, body)

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = FSYNC) -> bytes:
        if not lines:
            return encode_receipts(receipts, self.version)
        return b"".join([self.response(receipt, lines, b"") for receipt in receipts])

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return encode_frame("RECEIPT", [("receipt-id", receipt), *lines], version=self.version)

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        return encode_error(error, receipt, self.version, subscription)


STOMP_ENCODERS: Final = {version: StompEncoder(version) for version in Version}
