"""Queues that drop messages instead of refusing them: which message goes when one more does not fit."""

from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.queues.dead_letters import OVERFLOW
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.paging import backlog
from qmq.broker.queues.redelivery import Redelivery


class Overflow:
    """See the module's opening."""

    def __init__(self, registry: QueueRegistry, redelivery: Redelivery) -> None:
        self._registry = registry
        self._redelivery = redelivery

    def has_room(self, envelope: Envelope, body: bytes, out: Outcome) -> bool:
        """Whether a queue takes a message that was not refused. If not, it has gone where its policy says."""
        registry = self._registry
        queue = registry.by_name.get(envelope.destination)
        rules = registry.rules_of(envelope.destination) if queue is None else queue.rules
        if rules.overflow == "refuse":
            return True
        # What would not fit into an empty queue must not empty it.
        if not rules.bytes_max or len(body) <= rules.bytes_max:
            if queue is None or queue.fits(1, len(body)):
                return True
            if rules.overflow == "drop-oldest" and self.make_room(queue, 1, len(body), out):
                return True
        self.drop_newest(envelope, body, out)
        return False

    def make_room(self, queue: Queue, messages: int, body_bytes: int, out: Outcome) -> bool:
        """Drop the oldest messages that wait, lowest priority first, until that much fits.

        False when everything is with consumers.
        """
        while not queue.fits(messages, body_bytes):
            if queue.rules.keeps_dropped and out.cost >= COST_MAX:
                # Of one message that comes in, the dead letters of others can become very many: until the next message
                # comes the queue is longer than it may be.
                return True
            oldest = queue.oldest()
            if oldest is None:
                # What must go is only in the store. Until it is here the queue is longer than it may be.
                queue.loads_lowest_first = True
                queue.load(out)
                return backlog.has_more(queue) or not queue.is_counted
            if out.dead_letters_left is not None and queue.rules.keeps_dropped:
                dead_letters = self._redelivery.dead_letters
                out.dead_letters_left -= dead_letters.dead_letters_bytes_of(oldest, OVERFLOW, queue.rules.dead_letter)
                if out.dead_letters_left < 0:
                    # The same, because one transaction is one batch.
                    queue.push_back([oldest])
                    return True
            self._redelivery.drop(queue, oldest, OVERFLOW, out)
        return True

    def drop_newest(self, envelope: Envelope, body: bytes, out: Outcome) -> None:
        """A message that does not fit goes where the queue's dropped messages go, and is never in the queue."""
        rules = self._registry.rules_of(envelope.destination)
        self._redelivery.count(envelope.destination, OVERFLOW, is_kept=rules.keeps_dropped and bool(rules.dead_letter))
        if rules.keeps_dropped and rules.dead_letter:
            self._redelivery.dead_letters.accept(
                Message(envelope, body, self._registry.origin, 0, out.now_us), OVERFLOW, rules.dead_letter, out
            )
