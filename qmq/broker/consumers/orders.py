"""Orders: what a client wants the broker to do, besides its SENDs.

STOMP makes orders of the text of its frames; the other protocols make them as they are. A gateway takes them together
with SENDs, in the order in which they came (`StompGateway.handle`).
"""

from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.lifecycle import Back


class Order:
    """`receipt` names the answer that the client waits for; None: it waits for none."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: str | None = None) -> None:
        self.receipt = receipt


class SettleDeliveries(Order):
    """These deliveries are acknowledged; or they come back, as `why` says. With `transaction`, when that is committed.

    One that has been taken back meanwhile is no mistake of the client, unless it is part of a transaction.
    """

    __slots__ = ("deliveries", "transaction", "why")

    def __init__(
        self,
        deliveries: list[Delivery],
        why: Back | None = None,
        *,
        transaction: str | None = None,
        receipt: str | None = None,
    ) -> None:
        super().__init__(receipt)
        self.deliveries = deliveries
        self.why = why
        self.transaction = transaction


class Subscribe(Order):
    """A subscription to a queue begins, as its protocol has made it. Its prefix is set when it does."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Subscription, receipt: str | None = None) -> None:
        super().__init__(receipt)
        self.subscription = subscription


class TransactionOrder(Order):
    __slots__ = ("transaction",)

    def __init__(self, transaction: str, receipt: str | None = None) -> None:
        super().__init__(receipt)
        self.transaction = transaction


class Begin(TransactionOrder):
    """A transaction begins."""

    __slots__ = ()


class Abort(TransactionOrder):
    """Nothing of a transaction is done."""

    __slots__ = ()


class Commit(TransactionOrder):
    """All of a transaction is done. `level` and `is_quorum`: what its receipt asks for; None: what its parts ask."""

    __slots__ = ("is_quorum", "level")

    def __init__(
        self, transaction: str, receipt: str | None = None, level: str | None = None, is_quorum: bool | None = None
    ) -> None:
        super().__init__(transaction, receipt)
        self.level = level
        self.is_quorum = is_quorum


class Disconnect(Order):
    """The client leaves. What was sent to it before comes to it before its receipt."""

    __slots__ = ()
