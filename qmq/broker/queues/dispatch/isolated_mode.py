"""Isolated mode: what a node without any link may deliver to its own consumers.

Without a lease, a node must not deliver messages that another node may serve. No other node can have messages that were
accepted while no link was up. So these are delivered, ahead of the messages that wait, and the queue works like that of
a single node. This holds for plain messages of plain queues. Messages with a time, a priority, a group or a selector
wait with the others.
"""

from collections import deque

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.queue import Queue
from qmq.model.dots import Origin


class IsolatedMode:
    """`after` is the last own record that may be known elsewhere; None: the node is not alone."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.after: int | None = None
        self.waiting: dict[str, deque[Message]] = {}
        """Queue → messages that no consumer had room for, in order."""

    def begin(self, last: int) -> None:
        """No link is up any more. What has a number up to `last` may have left."""
        if self.after is None:
            self.after = last

    def stop(self) -> None:
        """A link begins: from now on everything may leave. `end` follows soon."""
        self.after = None

    def end(self) -> dict[str, deque[Message]]:
        """Returns what still waits, by queue: it takes its place among the other messages."""
        self.after = None
        waiting, self.waiting = self.waiting, {}
        return waiting

    def give_up(self, queue_name: str, owner: str) -> list[Message]:
        """Another serves `owner` from now on: returns what was in its queue and waited here, and waits no more."""
        removed: list[Message] = []
        left: deque[Message] = deque()
        for message in self.waiting.pop(queue_name, ()):
            is_its = message.origin.node == owner and message.sequence > 0
            (removed if is_its else left).append(message)
        if left:
            self.waiting[queue_name] = left
        return removed

    def may_take(self, queue: Queue, message: Message) -> bool:
        """Whether `message` can be nowhere else, and any consumer may have it."""
        if self.after is None or queue.selective is not None or message.envelope.options is not None:
            return False
        return message.sequence < 0 or (message.origin == self._origin and message.sequence > self.after)

    def take(self, queue: Queue, message: Message, out: Outcome) -> None:
        """Hand out a message that `queue` counts and that stands in no line, or keep it for the next consumer."""
        self.waiting.setdefault(queue.name, deque()).append(message)
        self.go_on(queue, out)

    def give_back(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """Take those that came back and may go out again; returns the others."""
        mine: list[Message] = []
        others: list[Message] = []
        for message in messages:
            (mine if self.may_take(queue, message) else others).append(message)
        if mine:
            self.waiting.setdefault(queue.name, deque()).extendleft(reversed(mine))
        return others

    def go_on(self, queue: Queue, out: Outcome) -> None:
        """A consumer may have room."""
        if queue.rules.is_delivery_paused:
            return
        waiting = self.waiting.get(queue.name)
        while waiting and (waiting[0].settled or queue.hand_out(waiting[0], out)):
            waiting.popleft()
        if not waiting:
            self.waiting.pop(queue.name, None)
