"""Messages come in: accepted here, from the journal, or from the queue store when the node starts."""

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import MAYBE_SEEN, Envelope, Message
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.paging.pager import Pager
from qmq.broker.queues.state.queue_state import MESSAGE_BYTES


class Intake:
    """See the module's opening."""

    def __init__(self, registry: QueueRegistry, paging: Pager) -> None:
        self._registry = registry
        self._owned = registry.owned
        self._paging = paging

    def push(self, message: Message, out: Outcome, taker: Subscription | None = None) -> None:
        """Take in a message that this node serves, or has accepted: that goes to its server by the journal.

        `taker` gets it before all other consumers; it pulls, and nothing else is granted to it.
        """
        registry = self._registry
        if message.envelope.durable:
            if not registry.serves_own and message.origin.node == registry.node:
                gathered = self._owned.gathering.get(registry.node)
                if gathered is not None:
                    gathered.messages.append(message)
                return
            self._owned.by_origin[message.origin][message.sequence] = message
        name = message.envelope.destination
        queue = registry.by_name.get(name) or registry.get(name)
        if registry.held and registry.isolated_mode.may_take(queue, message):
            queue.count_in(message)
            registry.isolated_mode.take(queue, message, out)
            return
        if taker is not None:
            queue.count_in(message)
            taker.credit += 1
            queue.free += 1
            queue.give(message, taker, out)
            return
        queue.push(message, out.now_us)
        if not registry.held:
            queue.dispatch(out)
            if not queue.is_counted and queue.is_bounded:
                queue.load(out)

    def may_push_run(self, envelope: Envelope, count: int, body_bytes: int, memory_bytes_max: int) -> bool:
        """Whether so many messages of a client have room for certain, and only their order decides about them."""
        queue = self._registry.by_name.get(envelope.destination)
        if (
            queue is None
            or queue.is_bounded
            or queue.rules.is_acceptance_paused
            or queue.rules.check_owner is not None
            or envelope.options is not None
            or self._registry.held
            or not self._registry.serves_own
        ):
            return False
        return (
            envelope.durable
            or self._registry.shared.memory_bytes + body_bytes + count * MESSAGE_BYTES <= memory_bytes_max
        )

    def push_run(self, messages: list[Message], out: Outcome) -> None:
        """As `push`, for messages of one envelope of which `may_push_run` was asked in the same breath."""
        first = messages[0]
        if first.envelope.durable:
            by_sequence = self._owned.by_origin[first.origin]
            for message in messages:
                by_sequence[message.sequence] = message
        queue = self._registry.by_name[first.envelope.destination]
        queue.push_run(messages)
        queue.dispatch(out)

    def take_in(self, message: Message, out: Outcome) -> None:
        """A message of the journal or of a peer's: `push` it, unless a peer's consumer has it already."""
        dot = message.dot
        if dot in self._owned.settled_early:
            self._owned.settled_early.discard(dot)
        elif self._registry.first_attempts.is_superseded(message):
            self._paging.settle_outside_memory(message, out)
        elif not (self._owned.elsewhere and self._paging.lend_elsewhere(message)):
            # Its owner may have handed it out before it was silent.
            message.attempts = message.attempts or MAYBE_SEEN
            self.push(message, out)

    def restore(self, message: Message) -> None:
        """Take in an owned message that only the journal has, at start; nothing is handed out yet."""
        self._paging.recall_attempts(message)
        if not message.attempts and not self._paging.is_unseen:
            message.attempts = MAYBE_SEEN
        self._owned.by_origin[message.origin][message.sequence] = message
        self._registry.get(message.envelope.destination).push(message, 0)
