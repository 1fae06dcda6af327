"""Replies of one beanstalkd client, in the order of its commands: what receipts, refusals and deliveries become.

A command has a **slot** for its reply as soon as it is decided. The reply is known later, when its record is durable or
its message delivered. It is sent when all replies before it are.
"""

from collections import deque
from collections.abc import Callable, Container
from typing import Final

from qmq.access.rights import NOT_ALLOWED
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.totals import Totals
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.protocols.beanstalk.codec.replies import (
    DRAINING,
    INTERNAL_ERROR,
    JOB_TOO_BIG,
    NOT_FOUND,
    OUT_OF_MEMORY,
    inserted,
)
from qmq.protocols.beanstalk.gateway.jobs import id_of

REPLIES: Final = {
    "body-too-large": JOB_TOO_BIG,
    "disk-full": OUT_OF_MEMORY,
    "memory-full": OUT_OF_MEMORY,
    "queue-full": OUT_OF_MEMORY,
    "too-many-connections": OUT_OF_MEMORY,
    "too-many-destinations": OUT_OF_MEMORY,
    "too-many-subscriptions": OUT_OF_MEMORY,
    "transaction-too-large": OUT_OF_MEMORY,
    "queue-paused": DRAINING,
    "stopping": DRAINING,
    "unknown-ack": NOT_FOUND,
    NOT_ALLOWED: INTERNAL_ERROR,
}


def refusal_reply(error: ProtocolError | Refused) -> bytes:
    """The reply to a refused command: the protocol has few words for a refusal."""
    return REPLIES.get(error.code, INTERNAL_ERROR)


class ReplySlot:
    """The place of one reply."""

    __slots__ = ("_replies", "data", "is_confirmed", "is_put", "message", "on_confirmed")

    def __init__(self, replies: "OrderedReplies", on_confirmed: bytes, *, is_put: bool = False) -> None:
        self._replies = replies
        self.on_confirmed = on_confirmed
        """The reply when the receipt comes, if it is no put."""
        self.is_put = is_put
        self.message: Message | None = None
        """What was put: its reply has its id."""
        self.is_confirmed = False
        self.data: bytes | None = None

    def fill(self, data: bytes) -> None:
        """The reply is known. A second one does not count."""
        if self.data is None:
            self.data = data
            self._replies.send()

    def decided(self, message: Message | None) -> None:
        """The job is put."""
        self.message = message
        if self.is_confirmed:
            self.confirm()

    def confirm(self) -> None:
        """The receipt has come."""
        self.is_confirmed = True
        if not self.is_put:
            self.fill(self.on_confirmed)
        elif self.message is not None:
            self.fill(inserted(id_of(self.message)))


class OrderedReplies:
    """The replies that a client waits for. `put` takes those that may be sent."""

    __slots__ = ("_by_receipt", "_numbers", "_put", "_waiting")

    def __init__(self, put: Callable[[bytes], object]) -> None:
        self._put = put
        self._waiting: deque[ReplySlot] = deque()
        self._by_receipt: dict[str, ReplySlot] = {}
        self._numbers = 0

    @property
    def count(self) -> int:
        """How many replies are not sent yet."""
        return len(self._waiting)

    def slot(self, on_confirmed: bytes = b"", *, is_put: bool = False) -> ReplySlot:
        """The place of the next reply."""
        slot = ReplySlot(self, on_confirmed, is_put=is_put)
        self._waiting.append(slot)
        return slot

    def reply(self, data: bytes) -> None:
        """The next reply, which is known at once."""
        if self._waiting:
            self.slot().fill(data)
        else:
            self._put(data)

    def receipt(self, slot: ReplySlot) -> str:
        """A receipt that fills the slot."""
        self._numbers += 1
        receipt = str(self._numbers)
        self._by_receipt[receipt] = slot
        return receipt

    def forget_receipts(self, undecided: Container[ReplySlot]) -> None:
        """The newest receipts, as far as they are of these slots, do not come: their frames were not decided."""
        receipts = self._by_receipt
        while receipts and next(reversed(receipts.values())) in undecided:
            receipts.popitem()

    def of_receipt(self, receipt: str) -> ReplySlot | None:
        """The slot of a receipt; it is forgotten."""
        return self._by_receipt.pop(receipt, None)

    def send(self) -> None:
        """Send what is known, up to the first reply that is not."""
        waiting = self._waiting
        parts: list[bytes] = []
        while waiting and (data := waiting[0].data) is not None:
            parts.append(data)
            waiting.popleft()
        if parts:
            self._put(b"".join(parts))


class BeanstalkEncoder(NoMessages):
    """`Encoder` of one connection. `delivered` is called with the messages that its reservations get."""

    protocol = "beanstalk"

    def __init__(self, replies: OrderedReplies, delivered: Callable[[list[Delivery], Totals | None], object]) -> None:
        self._replies = replies
        self._delivered = delivered
        self.refused: ProtocolError | Refused | None = None
        """The last refusal."""
        self.refused_slot: ReplySlot | None = None
        """Whose command that was."""

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        self._delivered(deliveries, totals)
        return b""

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        for receipt in receipts:
            slot = self._replies.of_receipt(receipt)
            if slot is not None:
                slot.confirm()
        return b""

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return b""

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        self.refused = error
        slot = None if receipt is None else self._replies.of_receipt(receipt)
        self.refused_slot = slot
        if slot is not None:
            slot.fill(refusal_reply(error))
        return b""
