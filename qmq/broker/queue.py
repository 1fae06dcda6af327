"""One queue on one node: the messages this node owns, and who is in line for them.

A message never moves: it belongs to the node that accepted it, and peers with consumers only borrow it (6.4 of the
design: credit). Local consumers come first, round-robin among those with credit; then peers, round-robin among those
whose credit has room. What comes back unsettled goes to the head, in its old order.

    ready ──deliver──▶ in flight (subscription.in_flight) ──settle──▶ gone
      │                     │
      │◀──────requeue───────┘   NACK, unsubscribe, end of session
      ├──lend──▶ lent (Lending.lent) ──settle──▶ gone
      │◀──return────┘           no free consumer there, or its client gave it back, or the peer is gone for good

A message borrowed from a peer never waits here: it goes to a local consumer at once or back to its owner.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable

from qmq.broker.message import Message
from qmq.broker.outcome import Outcome
from qmq.broker.subscription import Delivery, Subscription
from qmq.dots import Dot


class Borrower:
    """A peer that offered credit for a queue.

    Credit is a limit on the count ever lent over the present link, so that an offer can be repeated or overtaken
    without harm. `lent` is all that this peer has from us, of any queue, and outlives the link.
    """

    __slots__ = ("lent", "limit", "peer", "sent", "waiting")

    def __init__(self, peer: str, lent: dict[Dot, Message]) -> None:
        self.peer = peer
        self.limit = 0
        self.sent = 0
        self.lent = lent
        self.waiting = False


class Queue:
    """Ready messages in order, consumers in line. Pure; every method adds what follows to an Outcome."""

    __slots__ = (
        "body_bytes",
        "borrowers",
        "bytes_max",
        "deliveries",
        "depth",
        "free",
        "in_line",
        "messages_max",
        "name",
        "new_tag",
        "peers_in_line",
        "placed",
        "ready",
        "subscriptions",
    )

    def __init__(self, name: str, deliveries: dict[int, Delivery], new_tag: Callable[[], int]) -> None:
        self.name = name
        self.deliveries = deliveries
        self.new_tag = new_tag
        self.messages_max = 0
        self.bytes_max = 0
        self.ready: deque[Message] = deque()
        """In order of `place`; settled messages may stand in it until they are reached."""
        self.placed = 0
        self.depth = 0
        """Messages owned here and not settled: ready, in flight and lent."""
        self.body_bytes = 0
        self.subscriptions: dict[Subscription, None] = {}
        self.free = 0
        """How many messages the local consumers may still be given, all together."""
        self.in_line: deque[Subscription] = deque()
        self.borrowers: dict[str, Borrower] = {}
        self.peers_in_line: deque[Borrower] = deque()

    @property
    def idle(self) -> bool:
        """Nothing is kept here: the queue object may be forgotten. Peers that have used up their credit are known
        to Lending and come back with their next offer."""
        if self.depth or self.subscriptions:
            return False
        return not any(borrower.limit > borrower.sent for borrower in self.borrowers.values())

    def push(self, message: Message) -> None:
        """Take a new message of this node at the tail."""
        self.depth += 1
        self.body_bytes += len(message.body)
        self.placed += 1
        message.place = self.placed
        self.ready.append(message)

    def gone(self, message: Message) -> None:
        """Forget a settled message of this node; where it still stands in `ready` it is skipped later."""
        message.settled = True
        self.depth -= 1
        self.body_bytes -= len(message.body)

    def push_back(self, messages: list[Message]) -> None:
        """Put unsettled messages back at the head, in the order in which they once came in."""
        ready = self.ready
        for message in reversed(messages):
            if not ready or message.place < ready[0].place:
                ready.appendleft(message)
            else:
                ready.insert(self._position(message.place), message)

    def _position(self, place: int) -> int:
        """Index in `ready` for what belongs behind its head: near it, only other messages that came back are before."""
        ready = self.ready
        low, high = 1, 2
        while high < len(ready) and ready[high].place < place:
            low, high = high + 1, 2 * high
        return bisect(ready, place, low, min(high, len(ready)), key=_place_of)

    def line_up(self, subscription: Subscription) -> None:
        """Put a consumer with room in line, once."""
        if not subscription.waiting and not subscription.closed and subscription.free > 0:
            subscription.waiting = True
            self.in_line.append(subscription)

    def leave_line(self, subscription: Subscription) -> None:
        """Take a consumer that ends out of the line; a queue without messages would keep it there for ever."""
        if subscription.waiting:
            subscription.waiting = False
            self.in_line.remove(subscription)

    def line_up_peer(self, borrower: Borrower) -> None:
        """Put a peer with room in line, once; take one without room out."""
        has_room = borrower.limit > borrower.sent
        if has_room and not borrower.waiting:
            borrower.waiting = True
            self.peers_in_line.append(borrower)
        elif borrower.waiting and not has_room:
            borrower.waiting = False
            self.peers_in_line.remove(borrower)

    def hand_out(self, message: Message, out: Outcome) -> bool:
        """Give `message` to the next local consumer in line; False when none has room."""
        in_line = self.in_line
        while in_line:
            subscription = in_line.popleft()
            subscription.waiting = False
            if subscription.closed:
                continue
            free = subscription.credit - len(subscription.in_flight)
            if free <= 0:
                continue
            tag = self.new_tag()
            delivery = Delivery(tag, subscription, message)
            subscription.in_flight[tag] = delivery
            self.deliveries[tag] = delivery
            self.free -= 1
            out.deliver(delivery)
            if free > 1:
                subscription.waiting = True
                in_line.append(subscription)
            return True
        return False

    def dispatch(self, out: Outcome) -> None:
        """Give ready messages away until nobody has room or none is left."""
        ready = self.ready
        while ready:
            message = ready[0]
            if message.settled:
                ready.popleft()
                continue
            if self.hand_out(message, out) or self._lend(message, out):
                ready.popleft()
                continue
            return

    def _lend(self, message: Message, out: Outcome) -> bool:
        """Give `message` to the next peer in line; False when none has room."""
        line = self.peers_in_line
        while line:
            borrower = line.popleft()
            borrower.waiting = False
            if borrower.limit <= borrower.sent:
                continue
            borrower.sent += 1
            borrower.lent[message.dot] = message
            out.peer_deliveries.setdefault(borrower.peer, []).append(message)
            self.line_up_peer(borrower)
            return True
        return False


def _place_of(message: Message) -> int:
    return message.place
