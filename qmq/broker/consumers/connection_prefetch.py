"""The connection prefetch: how much all queue subscriptions of one client may have in flight together, if it sets that.

Each subscription keeps its own credit, and both limits apply. If a subscription would get a message while the window is
full, it waits for its turn among those of the client. When that comes, it lines up at its queue again. So queues with
many messages do not starve those with few.

A queue may have messages only at other nodes. If an owner has reported that messages wait there
(`Shared.waiting_elsewhere`), then at the turn of that queue the place stays free until a message has arrived or none
waits any more (`turn`).
"""

from collections import deque
from typing import Generic, TypeVar

M = TypeVar("M")
"""A member; here a subscription."""


class ConnectionPrefetch(Generic[M]):
    """`most` messages, of which `held` are out. `subscriptions` are all that share it; for `turn` one place is kept."""

    __slots__ = ("_round", "held", "most", "subscriptions", "turn")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.subscriptions: dict[M, None] = {}
        self.turn: M | None = None
        self._round: dict[M, None] = {}

    @property
    def room(self) -> int:
        kept = 0 if self.turn is None else 1
        return self.most - self.held - kept

    @property
    def round(self) -> deque[M]:
        """The subscriptions that wait for room, in order."""
        return deque(self._round)

    def wait(self, subscription: M) -> None:
        """Put `subscription` at the end of the round, where it may stand already."""
        self._round.pop(subscription, None)
        self._round[subscription] = None

    def next(self) -> M | None:
        """Whose turn it is, taken out of the round."""
        for subscription in self._round:
            del self._round[subscription]
            return subscription
        return None

    def leave(self, subscription: M) -> None:
        """It ends. A place that is kept for it is free when `PrefetchRounds.finish` has seen that."""
        self.subscriptions.pop(subscription, None)
        self._round.pop(subscription, None)
