"""All queues of one node: taking messages in, handing them out, settling them, taking them back.

Who owns what: a durable message accepted here (by this or an earlier incarnation of this node) stands in `owned`
until a settle for its dot is seen, from whichever node. A settle may arrive before its message when this node lost
its disk and gets both back from peers; such dots wait in `settled_early`.
"""

from collections.abc import Callable
from itertools import count

from qmq.broker.message import Message
from qmq.broker.outcome import Outcome
from qmq.broker.queue import Queue
from qmq.broker.subscription import Delivery, Subscription
from qmq.dots import Dot, Origin


class Queues:
    """The queues of this node by destination. `held` stops all dispatching until the node has caught up."""

    def __init__(self, node: str, bounds: Callable[[str], tuple[int, int]]) -> None:
        self.node = node
        self.by_name: dict[str, Queue] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.owned: dict[Origin, dict[int, Message]] = {}
        # peer -> what it has from us: neither settled nor returned nor given up.
        self.lent: dict[str, dict[Dot, Message]] = {}
        self.settled_early: set[Dot] = set()
        self.held = False
        # Queues whose free credit may have changed since the peers were last told.
        self.touched: dict[str, None] = {}
        # Owner -> dots borrowed from it and settled here -> sequence of our settle record, until it has that record.
        self.settled_here: dict[str, dict[Dot, int]] = {}
        self.bounds = bounds
        self._new_tag = count(1).__next__

    def get(self, name: str) -> Queue:
        """The queue called `name`, made on first use."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name, self.deliveries, self._new_tag)
            queue.messages_max, queue.bytes_max = self.bounds(name)
        return queue

    def forget_if_idle(self, queue: Queue) -> None:
        """Nothing about an unused queue is kept in memory."""
        if queue.idle:
            self.by_name.pop(queue.name, None)

    def dispatch(self, queue: Queue, out: Outcome) -> None:
        """Hand out what is ready, unless the node holds its messages back after a restart."""
        if not self.held:
            queue.dispatch(out)

    def release_hold(self, out: Outcome) -> None:
        """The node has caught up: everything that waited goes out."""
        self.held = False
        for queue in list(self.by_name.values()):
            queue.dispatch(out)

    def push(self, message: Message, out: Outcome) -> None:
        """Take in a message that this node owns."""
        if message.envelope.durable:
            by_sequence = self.owned.get(message.origin)
            if by_sequence is None:
                by_sequence = self.owned[message.origin] = {}
            by_sequence[message.sequence] = message
        queue = self.get(message.envelope.destination)
        queue.push(message)
        if not self.held:
            queue.dispatch(out)

    def restore(self, message: Message) -> None:
        """Take in an owned message from the stores at start; nothing is handed out yet."""
        self.owned.setdefault(message.origin, {})[message.sequence] = message
        self.get(message.envelope.destination).push(message)

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Put a consumer in line and give it what is ready."""
        queue = self.get(subscription.destination)
        queue.subscriptions[subscription] = None
        queue.free += subscription.credit
        queue.line_up(subscription)
        self.touched[queue.name] = None
        self.dispatch(queue, out)

    def unsubscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Take a consumer out; what it has in flight counts as a failed delivery and goes back."""
        queue = self.get(subscription.destination)
        queue.subscriptions.pop(subscription, None)
        queue.leave_line(subscription)
        subscription.closed = True
        queue.free -= subscription.credit
        self.give_back(list(subscription.in_flight.values()), out)
        self.touched[queue.name] = None
        self.forget_if_idle(queue)

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries are done: record it where the messages are durable, tell owners of borrowed ones.

        All of one subscription. The records are made by `Broker.finish`.
        """
        if not deliveries:
            return
        subscription = deliveries[0].subscription
        queue = self.get(subscription.destination)
        in_flight = subscription.in_flight
        own = queue.name
        queue.free += len(deliveries)
        message_ids = subscription.message_ids
        for delivery in deliveries:
            tag = delivery.tag
            del in_flight[tag]
            del self.deliveries[tag]
            message = delivery.message
            if message_ids is not None:
                message_ids.pop(message.message_id, None)
            if message.settled:
                continue
            if message.owner is not None:
                self._settle_borrowed(message, out)
            else:
                queue.gone(message)
                if message.envelope.durable:
                    self.owned[message.origin].pop(message.sequence, None)
                    out.settles.setdefault(own, []).append(message.dot)
        if not subscription.waiting:
            queue.line_up(subscription)
        self.touched[own] = None
        if queue.ready and not self.held:
            queue.dispatch(out)
        elif not queue.depth:
            self.forget_if_idle(queue)

    def _settle_borrowed(self, message: Message, out: Outcome) -> None:
        message.settled = True
        dot = message.dot
        owner = message.owner or ""
        if message.envelope.durable:
            out.settles.setdefault(message.envelope.destination, []).append(dot)
            out.borrowed_settled[dot] = owner
            out.peer_settled_after.setdefault(owner, []).append(dot)
        else:
            out.peer_settled_now.setdefault(owner, []).append(dot)

    def give_back(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries failed: own messages return to the head of their queue, borrowed ones to their owner.

        All of one subscription, in delivery order.
        """
        if not deliveries:
            return
        subscription = deliveries[0].subscription
        queue = self.get(subscription.destination)
        mine: list[Message] = []
        queue.free += len(deliveries)
        for delivery in deliveries:
            del subscription.in_flight[delivery.tag]
            del self.deliveries[delivery.tag]
            message = delivery.message
            if subscription.message_ids is not None:
                subscription.message_ids.pop(message.message_id, None)
            if message.settled:
                continue
            message.attempts += 1
            if message.owner is None:
                mine.append(message)
            else:
                out.peer_returns.setdefault(message.owner, []).append((message, True))
        queue.push_back(mine)
        queue.line_up(subscription)
        self.touched[queue.name] = None
        self.dispatch(queue, out)

    def settled_elsewhere(self, dot: Dot, have: int) -> None:
        """A settle record of another node (or of an earlier life of this one) names `dot`.

        Only dots of this node's origins matter here, the rest is the checkpoint's business. Where the message
        stands in line or in flight it is only marked, and skipped later. `have` is the sequence up to which the
        dot's origin is known here.
        """
        if dot.origin.node != self.node:
            return
        message = self.owned.get(dot.origin, {}).pop(dot.sequence, None)
        if message is None:
            if dot.sequence > have:
                self.settled_early.add(dot)
            return
        # The peer's own word about it may have been lost with a link.
        for lent in self.lent.values():
            lent.pop(dot, None)
        queue = self.get(message.envelope.destination)
        queue.gone(message)
        self.forget_if_idle(queue)
