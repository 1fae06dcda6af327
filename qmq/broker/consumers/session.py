"""What the rules know of one connected client: its subscriptions and its open transactions."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.receipt_levels import FSYNC

LATE_MAX = 4096
"""Names of late deliveries that are remembered for a session, two for each."""

HELD_OVERHEAD_BYTES = 128
"""Of one frame, beside what it carries."""


class HeldFrame:
    """One frame inside a transaction: a SEND (`envelope`, `body`), or an ACK or NACK (`delivery`, `is_ack`, `why`).

    `receipt` is sent when the transaction is recorded, as `level` or a stronger one of its other frames asks.
    `is_retry`: the SEND said that it is tried again. `further`: where it goes by its further routing keys.
    """

    __slots__ = ("body", "delivery", "envelope", "further", "is_ack", "is_retry", "level", "receipt", "why")

    def __init__(
        self,
        *,
        envelope: Envelope | None = None,
        body: bytes = b"",
        delivery: Delivery | None = None,
        is_ack: bool = True,
        why: Back = Back.FAILED,
        receipt: str | None = None,
        level: int = FSYNC,
        is_retry: bool = False,
        further: Sequence[str] = (),
    ) -> None:
        self.is_retry = is_retry
        self.further = further
        self.envelope = envelope
        self.body = body
        self.delivery = delivery
        self.is_ack = is_ack
        self.why = why
        self.receipt = receipt
        self.level = level

    @property
    def bytes(self) -> int:
        """What it costs to hold, near enough for a bound."""
        size = HELD_OVERHEAD_BYTES + len(self.body)
        if self.envelope is not None:
            size += len(self.envelope.headers) + len(self.envelope.destination)
            size *= 1 + len(self.envelope.copies)
        return size if self.receipt is None else size + len(self.receipt)


NO_TRANSACTIONS: "Final[dict[str, list[HeldFrame]]]" = {}
NONE_LATE: "Final[dict[int | str, tuple[int, Subscription]]]" = {}
"""One for all clients that have none, as NOTHING_IN_FLIGHT: nothing writes into it."""


class ClientState:
    """One client. `subscriptions` by the client's id, `transactions` by its name; `key` is random (`replies`).

    `listener` has those of its subscriptions that need no object of their own; None while there are none.
    `held_bytes` is what its transactions hold, `asked_bytes` what its other subscriptions cost.
    `transaction_frames_max` may raise the limit of that name for a protocol that has one of its own.
    """

    __slots__ = (
        "_late",
        "_late_order",
        "asked_bytes",
        "held_bytes",
        "id",
        "key",
        "listener",
        "subscriptions",
        "transaction_frames_max",
        "transactions",
    )

    def __init__(self, id: int, key: int = 0) -> None:
        self.id = id
        self.key = key
        self.subscriptions: dict[str, Subscription] = {}
        self.listener: LightSubscriptions | None = None
        self.held_bytes = 0
        self.asked_bytes = 0
        self.transaction_frames_max = 0
        self.transactions: dict[str, list[HeldFrame]] = NO_TRANSACTIONS
        self._late: dict[int | str, tuple[int, Subscription]] = NONE_LATE
        self._late_order: deque[int | str] | None = None

    @property
    def subscribed(self) -> int:
        """How many subscriptions it has."""
        return len(self.subscriptions) + (0 if self.listener is None else len(self.listener.topics))

    def is_taken(self, subscription_id: str) -> bool:
        """Whether one of its subscriptions has that id."""
        if self.listener is not None and subscription_id in self.listener.topics:
            return True
        return subscription_id in self.subscriptions

    def destination_of(self, subscription_id: str) -> str | None:
        """Where its subscription with that id listens; None when it has none."""
        subscription = self.subscriptions.get(subscription_id)
        if subscription is not None:
            return subscription.destination
        return None if self.listener is None else self.listener.topics.get(subscription_id)

    def remember_late(self, delivery: Delivery) -> None:
        """The client was too slow with this ACK; when it still comes, it is not the client's mistake."""
        if self._late_order is None:
            self._late_order, self._late = deque(), {}
        for name in (delivery.tag, delivery.message.message_id):
            self._late[name] = (delivery.tag, delivery.subscription)
            self._late_order.append(name)
        while len(self._late_order) > LATE_MAX:
            self._late.pop(self._late_order.popleft(), None)

    def was_late(self, name: int | str) -> bool:
        """Whether this tag or message-id names a delivery that was taken back."""
        return name in self._late

    def before_late(self, name: int | str) -> Delivery | None:
        """The last delivery that an ACK or NACK of this late one is still about; None for nothing.

        In `client` mode it covers all that its subscription was given before, and some of that may still be in hand.
        """
        tag, subscription = self._late[name]
        if subscription.ack is Ack.CLIENT:
            for delivery in reversed(subscription.in_flight.values()):
                if delivery.tag < tag:
                    return delivery
        return None
