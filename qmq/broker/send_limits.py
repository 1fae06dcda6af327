"""Whether a message, or one more destination, may be accepted now: disk, memory, bounds of queues, destinations.

This module only reads and refuses; the broker accepts. Surprising: the caller sets whether the disk is full
(`disk_full`), because only a failed write shows it.
"""

from collections.abc import Mapping, Sized

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.limits import COPIES_BYTES_MAX, COPIES_MAX, BrokerLimits
from qmq.broker.messages.message import Envelope, Retain
from qmq.broker.queues.queues import Queues
from qmq.broker.topics.retained import RetainedValues
from qmq.errors import Refused

RECORD_OVERHEAD_BYTES = 64


def check_copies_count(count: int) -> None:
    """Refuse a message with so many copies."""
    if count > COPIES_MAX:
        raise Refused("too-many-copies", f"A message is copied to at most {COPIES_MAX} queues, not to {count}.")


class SendLimits:
    """The bounds of one node. `fanouts` and `topics` are those with subscriptions."""

    def __init__(
        self, queues: Queues, retained: RetainedValues, fanouts: Sized, topics: Sized, limits: BrokerLimits
    ) -> None:
        self._queues = queues
        self.retained = retained
        self._fanouts = fanouts
        self._topics = topics
        self.limits = limits
        self.disk_full = False
        self.logged_fanouts: set[str] = set()
        """Fanouts that have a log here, or will have one."""

    def check_send(
        self, envelope: Envelope, body_bytes: int, messages_ahead: int = 0, body_bytes_ahead: int = 0
    ) -> None:
        """Refuse what must not be accepted now. Nothing changes.

        What is `ahead` goes into the same queue before it, in the same transaction.
        """
        if envelope.durable and self.disk_full:
            raise Refused("disk-full", "The node has no disk space left for new messages; consuming goes on.")
        if envelope.kind is DestinationKind.QUEUE:
            if not envelope.durable and self._queues.shared.memory_bytes > self.limits.queue_memory_bytes_max:
                most = self.limits.queue_memory_bytes_max
                raise Refused(
                    "memory-full", f"The node holds its maximum of {most} bytes of memory-only queue messages."
                )
            queue = self._queues.by_name.get(envelope.destination)
            if queue is None:
                self.check_room(envelope.destination)
                depth = size = 0
                rules = self._queues.rules_for(envelope.destination)
            else:
                depth, size = queue.held + queue.stored, queue.held_bytes + queue.stored_bytes
                rules = queue.rules
            if rules.is_acceptance_paused:
                raise Refused("queue-paused", f"{envelope.destination} accepts no messages now: an operator paused it.")
            if rules.overflow == "refuse":
                if rules.messages_max and depth + messages_ahead >= rules.messages_max:
                    raise Refused("queue-full", f"The queue holds its maximum of {rules.messages_max} messages.")
                if rules.bytes_max and size + body_bytes_ahead + body_bytes > rules.bytes_max:
                    raise Refused("queue-full", f"The queue holds its maximum of {rules.bytes_max} bytes.")
            if rules.check_owner is not None:
                rules.check_owner(body_bytes)
        else:
            if envelope.copies:
                self.check_copies(envelope, body_bytes, {})
            if envelope.retain is Retain.SET:
                self.retained.check([(envelope, body_bytes)])

    def has_room(self, envelope: Envelope, count: int, body_bytes: int) -> bool:
        """Whether `check_send` accepts so many messages to this queue for certain, one after the other.

        They have no options and no copies.
        """
        if envelope.durable and self.disk_full:
            return False
        if envelope.destination in self._queues.by_name:
            most = self.limits.queue_memory_bytes_max
            return self._queues.intake.may_push_run(envelope, count, body_bytes, most)
        rules = self._queues.rules_for(envelope.destination)
        return (
            envelope.durable
            and self.destinations < self.limits.destinations_max
            and not rules.is_acceptance_paused
            and not rules.messages_max
            and not rules.bytes_max
            and rules.check_owner is None
        )

    def check_copies(self, envelope: Envelope, body_bytes: int, ahead: Mapping[str, tuple[int, int]]) -> None:
        """Refuse a message when a queue that gets a copy has no room: all copies are taken, or none.

        `ahead`: messages and bytes that go into a queue before it, in the same transaction.
        """
        count = len(envelope.copies)
        check_copies_count(count)
        most = COPIES_BYTES_MAX // (1 + count)
        if body_bytes + len(envelope.headers) + RECORD_OVERHEAD_BYTES > most:
            raise Refused("body-too-large", f"A message that is copied to {count} queues has at most {most} bytes.")
        for copy in envelope.copies:
            messages, size = ahead.get(copy.destination, (0, 0))
            try:
                self.check_send(copy, body_bytes, messages, size)
            except Refused as refused:
                message = f"{copy.destination} gets a copy, and takes no message now: {refused.message}"
                raise Refused(refused.code, message) from None

    def open_fanout(self, destination: str) -> None:
        """The fanout has a log from now on. Raises Refused when it is one too many."""
        if destination not in self.logged_fanouts:
            self.check_room()
            self.logged_fanouts.add(destination)

    @property
    def destinations(self) -> int:
        """How many there are now. Queues and topics live while they are used or hold something, in memory or not."""
        fanouts = max(len(self.logged_fanouts), len(self._fanouts))
        return len(self._queues.by_name) + self._queues.stored_names.count + len(self._topics) + fanouts

    @property
    def is_crowded(self) -> bool:
        """Whether there are three quarters as many as there may be."""
        return 4 * self.destinations >= 3 * self.limits.destinations_max

    def check_room(self, queue: str = "") -> None:
        """Refuse one more destination when there are too many; `queue` may be one of those that are only stored."""
        if self.destinations >= self.limits.destinations_max and queue not in self._queues.stored_names:
            raise Refused(
                "too-many-destinations", f"The node has its maximum of {self.limits.destinations_max} destinations."
            )
