"""The queues of one node by name: created on first use, and dropped when none of their messages is in memory.

The registry also knows whether they may dispatch. Surprising: a node that has just started, or has no lease, dispatches
nothing (`held`), except in isolated mode.
"""

from collections.abc import Callable, Iterator

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.dedup import Dedup
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.dispatch.isolated_mode import IsolatedMode
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.state.context import QueueContext
from qmq.broker.queues.state.first_attempts import FirstAttempts
from qmq.broker.queues.state.stored_names import StoredNames
from qmq.model.dots import Origin


class QueueRegistry:
    """`held` stops all dispatching until the node has caught up and may serve."""

    def __init__(self, origin: Origin, rules_of: Callable[[str], QueueRules], dedup: Dedup) -> None:
        self.origin = origin
        self.node = origin.node
        self.rules_of = rules_of
        self.by_name: dict[str, Queue] = {}
        self.listed: list[Queue] = []
        """The same queues in no order, for a pass over a million of them. A pass takes turns with other tasks, and a
        dictionary that changes meanwhile can only be copied as a whole.
        """
        self.listed_names: list[str] = []
        """Their names, each at the same place: a pass by name looks at no queue, which would be slow."""
        self.stored_names = StoredNames(0)
        """Queues that are only in the store."""
        self.shared = QueueContext(origin.node)
        self.shared.is_fenced = self.is_fenced
        self.owned = self.shared.owned
        self.deliveries = self.shared.deliveries
        self.deadlines = self.shared.deadlines
        self.isolated_mode = IsolatedMode(origin)
        self.first_attempts = FirstAttempts(origin.node, dedup, self.shared.clocks)
        self.serves_own = True
        """Whether this node dispatches what it accepts; false while another node has taken over."""
        self.held = False
        self.is_starting = False
        """Whether the node still learns what its peers have settled and moved meanwhile."""
        self.any_overflows = False
        """Whether some queue may drop messages instead of refusing them."""
        self.consumers_changed: dict[str, None] = {}
        """Queues with a lifetime to which a consumer, here or on a peer, has come, or which one has left."""
        self.touched: dict[str, None] = {}
        """Queues whose free credit may have changed since the last offers to peers."""

    @property
    def has_stored(self) -> bool:
        """Whether some messages may be in the store alone. Otherwise memory has all that its rows have."""
        return self.owned.has_stored or self.stored_names.count > 0

    def get(self, name: str) -> Queue:
        """The queue called `name`, made on first use."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name, self.rules_for(name), self.shared)
            queue.listed_at = len(self.listed)
            self.listed.append(queue)
            self.listed_names.append(name)
            if self.stored_names.count:
                self.stored_names.discard(name)
        return queue

    def in_flight_of(self, name: str) -> Iterator[Delivery]:
        """As `Queue.in_flight`, of the queue called `name`."""
        queue = self.by_name.get(name)
        return iter(()) if queue is None else queue.in_flight()

    def forget_if_idle(self, queue: Queue) -> None:
        """Nothing about an unused queue is kept in memory."""
        if queue.idle:
            self.drop(queue)

    def drop(self, queue: Queue) -> None:
        """Forget the queue object: nothing of its messages is left in memory."""
        # Its deadlines, too: another object may have the name when they come.
        self.deadlines.forget(queue)
        if self.by_name.get(queue.name) is queue:
            del self.by_name[queue.name]
            last, last_name = self.listed.pop(), self.listed_names.pop()
            if last is not queue:
                self.listed[queue.listed_at] = last
                self.listed_names[queue.listed_at] = last_name
                last.listed_at = queue.listed_at
            if queue.stored or not queue.is_counted:
                self.stored_names.add(queue.name)

    def rules_for(self, name: str) -> QueueRules:
        """The rules of the queue called `name`, which need not be here."""
        rules = self.rules_of(name)
        if rules.overflow != "refuse":
            self.any_overflows = True
        return rules

    def rules_changed(self, queues: list[Queue]) -> None:
        """The operator has changed the rules of these. What is in a queue stays there."""
        for queue in queues:
            queue.rules = self.rules_for(queue.name)

    def note_consumers(self, queue: Queue) -> None:
        """A consumer has come or left."""
        if queue.rules.has_lifetime:
            self.consumers_changed[queue.name] = None

    def dispatch(self, queue: Queue, out: Outcome) -> None:
        """Deliver what is ready, unless the node holds its messages back after a restart."""
        if not self.held:
            queue.dispatch(out)
            return
        queue.deliver_buffered(out)
        if self.isolated_mode.waiting:
            self.isolated_mode.go_on(queue, out)

    def end_isolation(self, out: Outcome) -> None:
        """The node is not isolated any more: what still waits takes its place among the other messages."""
        for name, messages in self.isolated_mode.end().items():
            queue = self.get(name)
            for message in messages:
                if not message.settled:
                    queue.placed += 1
                    message.place = queue.placed
                    queue.level(PRIORITY_DEFAULT).append(message)
            self.dispatch(queue, out)

    def count_as_lent(self, message: Message, peer: str) -> None:
        """A message that is not in the order of its queue is with consumers of `peer`."""
        self.owned.lent.setdefault(peer, {})[message.dot] = message
        queue = self.get(message.envelope.destination)
        if queue.selective is not None:
            queue.selective.outstanding.lend(message, peer, None)

    def is_fenced(self) -> bool:
        """Whether another node may serve what is here by now."""
        return self.held and not self.is_starting
