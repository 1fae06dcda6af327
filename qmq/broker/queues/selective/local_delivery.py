"""Giving one message of a selectively dispatched queue to one consumer of this node, or to a peer."""

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.outstanding import Outstanding
from qmq.broker.queues.state.queue_state import QueueState


class LocalDelivery:
    """`outstanding` learns what is given."""

    __slots__ = ("outstanding", "queue")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        self.outstanding = Outstanding()

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

    def lend(self, borrower: Borrower, message: Message, out: Outcome) -> bool:
        """Lend `message` to a peer that has room; True when it has room for more and stands at the end of the line."""
        queue = self.queue
        borrower.sent += 1
        borrower.lent[message.dot] = message
        message.lent_as = borrower.lent_as
        self.outstanding.lend(message, borrower.key, borrower)
        out.peer_deliveries.setdefault(borrower.peer, []).append(message)
        if queue.peers_in_line is not None:
            queue.peers_in_line.remove(borrower)
            borrower.waiting = False
        queue.line_up_peer(borrower)
        return borrower.waiting

    def wait(self, subscription: Subscription, window: ConnectionPrefetch[Subscription]) -> None:
        """Out of the line until the client has room again."""
        self.queue.leave_line(subscription)
        window.wait(subscription)
