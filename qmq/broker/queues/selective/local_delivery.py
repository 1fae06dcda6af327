"""Giving one message of a selectively dispatched queue to one consumer of this node."""

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.outstanding import Outstanding, group_of
from qmq.broker.queues.state.queue_state import QueueState

Seen = dict[tuple[int, object], int]
"""Priority and consumer class or consumer → the place up to which it was offered the messages of that level."""


class LocalDelivery:
    """`seen` is cleared when messages that were passed over must be offered again."""

    __slots__ = ("outstanding", "queue", "seen")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        self.outstanding = Outstanding()
        self.seen: Seen = {}

    def give(self, subscription: Subscription, message: Message, out: Outcome) -> bool:
        """Deliver `message`; True when the consumer has room for more and stands at the end of the line."""
        queue = self.queue
        queue.leave_line(subscription)
        self.outstanding.given(queue.give(message, subscription, out))
        window = subscription.window
        if window is not None:
            if window.turn is subscription:
                window.turn = None  # This message has the place, also when another peer was to send it.
            window.held += 1
            if window.room <= 0:
                if subscription.free > 0:
                    window.wait(subscription)
                return False
        queue.line_up(subscription)
        return subscription.waiting

    def wait(self, subscription: Subscription, window: ConnectionPrefetch[Subscription]) -> None:
        """Out of the line until the client has room again."""
        self.queue.leave_line(subscription)
        window.wait(subscription)

    def unbuffered(self, message: Message) -> None:
        """A message that was buffered for a consumer here is about to be delivered to it, or returned."""
        if self.outstanding.release(group_of(message)):
            self.seen.clear()
