"""What all queue subscriptions of one client may have in flight together, when it has asked for such a bound.

Each subscription keeps its own credit; the window comes on top. One that would be given a message while the window is
full waits in the client's own round, and lines up at its queue again when its turn comes: so queues with many messages
do not starve those with few.

A queue may have messages at other nodes only. When its turn comes, and an owner has said that messages wait there
(`Shared.waiting_elsewhere`), the place is kept free until one of them is here or none waits any more (`turn`).
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmq.broker.consumers.subscription import Subscription


class ConnectionPrefetch:
    """`most` messages, of which `held` are out. `subscriptions` are all that share it; for `turn` one place is kept."""

    __slots__ = ("_round", "held", "most", "subscriptions", "turn")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.subscriptions: dict[Subscription, None] = {}
        self.turn: Subscription | None = None
        self._round: dict[Subscription, None] = {}

    @property
    def room(self) -> int:
        kept = 0 if self.turn is None else 1
        return self.most - self.held - kept

    @property
    def round(self) -> deque["Subscription"]:
        """Who waits for room, in order."""
        return deque(self._round)

    def wait(self, subscription: "Subscription") -> None:
        """Put `subscription` at the end of the round, where it may stand already."""
        self._round.pop(subscription, None)
        self._round[subscription] = None

    def next(self) -> "Subscription | None":
        """Whose turn it is, taken out of the round."""
        for subscription in self._round:
            del self._round[subscription]
            return subscription
        return None

    def leave(self, subscription: "Subscription") -> None:
        """It ends. A place that is kept for it is free when `Queues._check_turns` has seen that."""
        self.subscriptions.pop(subscription, None)
        self._round.pop(subscription, None)
