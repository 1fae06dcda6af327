"""What a channel knows: delivery tags, consumers, and publishes that wait for their confirm.

Delivery tags count up per channel, over all its consumers. An ack with `multiple` is about all tags up to its own.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from struct import Struct
from typing import Final

from qmq.broker.consumers.subscription import Delivery
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import commands, encode_method, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY

DELIVER: Final = b"\x00\x3c\x00\x3c"
GET_OK: Final = b"\x00\x3c\x00\x47"

ACK: Final = Struct(">BHIHHQBB")
"""The whole frame of basic.ack and basic.nack."""
ACK_BYTES: Final = 13
BASIC: Final = 60
ACK_METHOD: Final = 80
NACK_METHOD: Final = 120
FRAME_END: Final = 0xCE

LATE_MAX: Final = 1000
"""An ack of one of so many deliveries, the last ones, is never an error, whatever became of the delivery."""


@dataclass(slots=True, eq=False)
class Consumer:
    """One basic.consume. `id` is that of its subscription."""

    channel: "Channel"
    id: str
    tag: str
    queue: str
    """A destination."""
    _: KW_ONLY
    needs_ack: bool
    lead: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.lead = DELIVER + short_string(self.tag)


@dataclass(slots=True, eq=False)
class Channel:
    """One open channel, or one that is closing: then the client has not confirmed its close yet."""

    number: int
    serial: str
    """Names this channel among all that the connection has opened: numbers are used again."""
    is_closing: bool = False
    last_tag: int = 0
    unacked: dict[int, Delivery] = field(default_factory=dict)
    """Delivery tag → the delivery, in order. Some may have been taken back: their acks may still come."""
    unacked_max: int = 2 * LATE_MAX
    consumers: dict[str, Consumer] = field(default_factory=dict)
    """By consumer tag."""
    reply_consumer: Consumer | None = None
    prefetch: int = 0
    """Of each consumer that begins from now on; 0 for as many as the node allows."""
    confirms: bool = False
    published: int = 0
    """Publishes since confirm.select: the number of the last one."""
    unconfirmed: dict[int, None] = field(default_factory=dict)
    """Numbers of publishes, in order."""
    last_queue: str = ""
    """The queue that was declared last: an empty name means it."""

    def named(self, queue: str | None) -> str:
        """The queue that a method names; an empty name means the one that was declared last. Raises AmqpRefusal."""
        name = queue or self.last_queue
        if not name:
            raise AmqpRefusal(ReplyCode.NOT_FOUND, "no queue is named, and none was declared on this channel")
        return name

    @property
    def reply_queue(self) -> str:
        """The temporary queue of its consumer of direct replies. Raises AmqpRefusal."""
        if self.reply_consumer is None:
            raise AmqpRefusal(
                ReplyCode.PRECONDITION_FAILED, f"a publish that is answered needs a consumer of {DIRECT_REPLY} first"
            )
        return self.reply_consumer.queue

    def take(self, tag: int, multiple: bool) -> dict[int, Delivery]:
        """What an ack or nack is about, by tag, oldest first; it is unacked no more. Raises AmqpRefusal for an unknown
        tag."""
        unacked = self.unacked
        if not multiple:
            delivery = unacked.pop(tag, None)
            if delivery is None:
                raise self._unknown(tag)
            return {tag: delivery}
        if tag == 0:
            self.unacked = {}
            return unacked
        if tag > self.last_tag:
            raise self._unknown(tag)
        tags = []
        for one in unacked:
            if one > tag:
                break
            tags.append(one)
        if not tags:
            raise self._unknown(tag)
        return {one: unacked.pop(one) for one in tags}

    def forget_late(self) -> None:
        """`unacked` has grown to `unacked_max`: forget what was taken back, except among the last deliveries."""
        kept = self.last_tag - LATE_MAX
        self.unacked = {
            tag: one
            for tag, one in self.unacked.items()
            if tag > kept or one.subscription.in_flight.get(one.tag) is one
        }
        self.unacked_max = 2 * (len(self.unacked) + LATE_MAX)

    def _unknown(self, tag: int) -> AmqpRefusal:
        return AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    # Confirms

    def next_confirm(self) -> str:
        """The receipt of the next publish."""
        self.published += 1
        self.unconfirmed[self.published] = None
        return f"{self.serial}.{self.published}"

    def confirm(self, numbers: Iterable[int]) -> bytes:
        """Confirm publishes, in as few methods as their order allows."""
        unconfirmed = self.unconfirmed
        done = [number for number in numbers if unconfirmed.pop(number, self) is None]
        if self.is_closing or not done:
            return b""
        last = done[-1]
        oldest = next(iter(unconfirmed), None)
        if oldest is None or oldest > last:
            return self._settled(ACK_METHOD, last, len(done) > 1)
        return b"".join([self._settled(ACK_METHOD, number, False) for number in done])

    def refuse_publish(self, number: int) -> bytes:
        """basic.nack of one publish."""
        if self.is_closing or self.unconfirmed.pop(number, self) is not None:
            return b""
        return self._settled(NACK_METHOD, number, False)

    def _settled(self, method: int, number: int, multiple: bool) -> bytes:
        return ACK.pack(1, self.number, ACK_BYTES, BASIC, method, number, multiple, FRAME_END)

    def close(self, refusal: AmqpRefusal, cause: tuple[int, int] = (0, 0)) -> bytes:
        """channel.close; from now on the channel is closing. `cause` are class and method."""
        self.is_closing = True
        return method_frame(
            self.number, encode_method(commands.Channel.Close(int(refusal.reply), refusal.text, cause[0], cause[1]))
        )
