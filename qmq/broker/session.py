"""What the rules know of one connected client: its subscriptions and its open transactions."""

from qmq.broker.message import Envelope
from qmq.broker.subscription import Delivery, Subscription

HELD_OVERHEAD_BYTES = 128
"""Of one frame, beside what it carries."""


class Held:
    """One frame inside a transaction: a SEND (`envelope`, `body`), or an ACK or NACK (`delivery`, `is_ack`).

    `receipt` is told when the transaction is recorded.
    """

    __slots__ = ("body", "delivery", "envelope", "is_ack", "receipt")

    def __init__(
        self,
        *,
        envelope: Envelope | None = None,
        body: bytes = b"",
        delivery: Delivery | None = None,
        is_ack: bool = True,
        receipt: str | None = None,
    ) -> None:
        self.envelope = envelope
        self.body = body
        self.delivery = delivery
        self.is_ack = is_ack
        self.receipt = receipt

    @property
    def bytes(self) -> int:
        """What it costs to hold, near enough for a bound."""
        size = HELD_OVERHEAD_BYTES + len(self.body)
        if self.envelope is not None:
            size += len(self.envelope.headers) + len(self.envelope.destination)
        return size if self.receipt is None else size + len(self.receipt)


class Session:
    """One client. `subscriptions` by the client's id, `transactions` by its name."""

    __slots__ = ("held_bytes", "id", "subscriptions", "transactions")

    def __init__(self, id: int) -> None:
        self.id = id
        self.subscriptions: dict[str, Subscription] = {}
        self.held_bytes = 0
        self.transactions: dict[str, list[Held]] = {}
