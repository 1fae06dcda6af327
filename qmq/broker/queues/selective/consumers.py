"""The consumers of one queue with selective dispatch, here and on peers: classes, selectors, the first exclusive one.

Kept beside `subscriptions` and `borrowers` of the queue, and computed again when one of these begins or ends.
"""

from typing import Final

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import class_of
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import Selector

BUFFERED_MAX: Final = 20
"""Messages that wait here for consumers of one class; then peers are to lend it no more. More would keep their groups
here when a consumer comes elsewhere; fewer would leave its other consumers without work."""


class Consumers:
    """See the module's opening."""

    __slots__ = ("_queue", "active", "classes", "selectors", "has_unselective")

    def __init__(self, queue: QueueState) -> None:
        self._queue = queue
        self.classes: dict[str, int] = {}
        """Class → how many consumers here and peers."""
        self.selectors: list[Selector] = []
        self.has_unselective = False
        """Whether some consumer has no selector."""
        self.active: Subscription | Borrower | None = None
        """The exclusive consumer whose turn it is; None when none is exclusive."""

    def enter(self, subscription: Subscription, now_us: int) -> None:
        """Work out the class of a consumer that begins. One that is put in line again keeps its place among exclusive
        ones.
        """
        if not subscription.since_us and (subscription.exclusive or self._queue.rules.exclusive):
            subscription.since_us = max(1, now_us)
        subscription.lent_as = class_of(subscription.selector, subscription.since_us, subscription.priority)
        if subscription.window is not None:
            subscription.window.subscriptions[subscription] = None

    def count(self, of: str) -> bool:
        """One more of a class; True when it is the first."""
        count = self.classes.get(of, 0)
        self.classes[of] = count + 1
        return not count

    def uncount(self, of: str) -> bool:
        """One less; True when it was the last."""
        self.classes[of] -= 1
        if self.classes[of]:
            return False
        del self.classes[of]
        return True

    def changed(self) -> None:
        """A consumer came or went."""
        queue = self._queue
        selectors: dict[str, Selector] = {}
        self.has_unselective = False
        first: Subscription | Borrower | None = None
        first_at = (0, "")
        takers: list[Subscription | Borrower] = [s for s in queue.subscriptions if not s.closed]
        takers += (queue.borrowers or {}).values()
        for taker in takers:
            if taker.selector is None:
                self.has_unselective = True
            else:
                selectors[taker.selector.text] = taker.selector
            if taker.since_us:
                node = queue.shared.node if isinstance(taker, Subscription) else taker.peer
                if first is None or (taker.since_us, node) < first_at:
                    first, first_at = taker, (taker.since_us, node)
        self.active = first
        self.selectors = list(selectors.values())

    def first_here(self) -> Subscription | None:
        """This node's candidate for the exclusive one: peers compare it with theirs."""
        first: Subscription | None = None
        for subscription in self._queue.subscriptions:
            if subscription.since_us and not subscription.closed:
                if first is None or subscription.since_us < first.since_us:
                    first = subscription
        return first

    def free_by_class(self, buffered: dict[Subscription, int]) -> dict[str, int]:
        """What peers may be offered for each class of local consumers; 0 for those that stand by.

        `buffered`: how many messages wait here for a consumer already. What else comes may be for the same one,
        whatever room others of its class have, so a class with many of them is offered nothing either.
        """
        free: dict[str, int] = {}
        waiting: dict[str, int] = {}
        rooms: dict[ConnectionPrefetch[Subscription], int] = {}
        first = self.first_here()
        for subscription in self._queue.subscriptions:
            own = subscription.free - buffered.get(subscription, 0)
            if self.active is not None and subscription is not first:
                own = 0
            window = subscription.window
            if window is not None and window.turn is subscription:
                own = min(own, 1)
            elif window is not None:
                left = rooms.get(window, window.room)
                own = min(own, left)
                rooms[window] = left - max(0, own)
            of = subscription.lent_as
            free[of] = free.get(of, 0) + max(0, own)
            waiting[of] = waiting.get(of, 0) + buffered.get(subscription, 0)
        for of, count in waiting.items():
            if count >= BUFFERED_MAX:
                free[of] = 0
        return free
