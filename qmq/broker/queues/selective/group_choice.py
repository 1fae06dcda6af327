"""Which consumer has a message group, or would have it when the group is free.

The choice is rendezvous hashing: nodes that know the same names choose the same one, without exchanging messages. A
group goes first to a node, then to a class of that node's consumers, then to one of them. A peer sees only the nodes
and classes of others, so it chooses the same node and class. When a name is added or removed, only the groups that it
gains or loses move. So nothing is kept but a cache of the choices.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.consumers import Consumers
from qmq.broker.queues.selective.group_order import GroupOrder
from qmq.broker.queues.selective.outstanding import GroupLock, Outstanding, group_of
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import selects

CHOICES_MAX: Final = 4096
"""Groups whose choice is remembered."""


class GroupChoice:
    """The groups of one queue."""

    __slots__ = ("_choices", "_consumers", "_outstanding", "_queue", "order")

    def __init__(self, queue: QueueState, consumers: Consumers, outstanding: Outstanding, order: GroupOrder) -> None:
        self.order = order
        self._queue = queue
        self._consumers = consumers
        self._outstanding = outstanding
        self._choices: dict[bytes, Subscription | Borrower] = {}

    def forget(self) -> None:
        """The consumers have changed."""
        self._choices.clear()

    def taker_of(
        self,
        group: bytes,
        message: Message,
        priority: int,
        subscriptions: list[Subscription],
        peers: list[Borrower],
    ) -> Subscription | Borrower | None:
        """The one of these, with room, that gets this message of `group`; None: it waits, or no consumer matches it."""
        if self.order.is_next(group):
            taker = self.holder_of(group, message)
            if isinstance(taker, Subscription) and taker in subscriptions:
                return taker
            if isinstance(taker, Borrower) and taker in peers:
                return taker
        if not self.order.knows(group, priority, message.place) and self.is_wanted(message):
            self.order.waits(group, priority, message.place)
        return None

    def freed(self, message: Message, lock: GroupLock | None) -> None:
        """If `lock` is there, it is that of the group of `message`, of which nothing is out any more. Others than its
        holder may be next, and have looked past what waits.
        """
        if lock is None:
            return
        if lock.holder is None or lock.epoch != self._outstanding.epoch or self._consumers.selectors:
            self.aim(group_of(message))

    def aim(self, group: bytes) -> None:
        """Let the consumer of the next message of `group` find it, if it has looked past it before."""
        for level in self._queue.levels:
            place = self.order.first(group, level.priority)
            if place:
                message = level.ready[level.index_after(place - 1)]
                taker = self.holder_of(group, message)
                if taker is not None:
                    self.order.aim(level.priority, taker.key if isinstance(taker, Borrower) else taker, place)
                return

    def out_of_line(self, message: Message) -> None:
        """A message that may have waited does not wait any more: its group goes on without it."""
        options = message.envelope.options
        if options is not None and options.group and self.order.leaves(options.group, options.level, message.place):
            self.aim(options.group)
            self._queue.shared.dirty_queues[self._queue.name] = None

    def holder_of(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The consumer that may have this message of `group`, the next one, with room or without; None: none now."""
        held = self._outstanding.groups.get(group)
        if held is None:
            return self._choose(group, message)
        holder = held.holder
        if holder is None:
            return None
        if held.epoch == self._outstanding.epoch:
            return holder if accepts(holder, message) else None
        if self._choose(group, message) is not holder:
            return None  # The group moves when it is free, or its holder has left.
        if not self._consumers.selectors:
            held.epoch = self._outstanding.epoch
        return holder

    def is_wanted(self, message: Message) -> bool:
        """Whether any consumer that this node knows of matches `message`, with room or without."""
        queue = self._queue
        if any([not s.closed and accepts(s, message) for s in queue.subscriptions]):
            return True
        return any([accepts(borrower, message) for borrower in (queue.borrowers or {}).values()])

    def asked(self, in_line: list[Subscription | Borrower]) -> list[Subscription | Borrower]:
        """Those whose selectors a message may cost: a group looks for its consumer among all, with room or without."""
        if not self._consumers.selectors:
            return in_line
        return [*self._queue.subscriptions, *(self._queue.borrowers or {}).values()]

    def _choose(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The one of all consumers that the message goes to when its group is free."""
        if self._consumers.selectors:
            return choose(self._queue, group, message)
        chosen = self._choices.get(group)
        if chosen is None:
            chosen = choose(self._queue, group, message)
            if chosen is not None:
                if len(self._choices) >= CHOICES_MAX:
                    self._choices.clear()
                self._choices[group] = chosen
        return chosen


def rendezvous(group: bytes, names: Iterable[str]) -> str:
    """The one of `names` (not none) that `group` goes to."""
    key = blake2b(group, digest_size=16).digest()
    return max(names, key=lambda name: (blake2b(name.encode(), key=key, digest_size=8).digest(), name))


def among(group: bytes, subscriptions: list[Subscription]) -> Subscription:
    """The one of `subscriptions` (not none) that `group` goes to."""
    by_name = {f"{subscription.session}/{subscription.id}": subscription for subscription in subscriptions}
    return by_name[rendezvous(group, by_name)]


def choose(queue: QueueState, group: bytes, message: Message) -> Subscription | Borrower | None:
    """The consumer that the group goes to, with room or without; None when none wants `message`."""
    here = [s for s in queue.subscriptions if not s.closed and accepts(s, message)]
    there = [borrower for borrower in (queue.borrowers or {}).values() if accepts(borrower, message)]
    nodes = [borrower.peer for borrower in there]
    if here:
        nodes.append(queue.shared.node)
    if not nodes:
        return None
    node = rendezvous(group, nodes)
    if here and node == queue.shared.node:
        of = rendezvous(group, [s.lent_as for s in here])
        return among(group, [s for s in here if s.lent_as == of])
    classes = {borrower.lent_as: borrower for borrower in there if borrower.peer == node}
    return classes[rendezvous(group, classes)]


def accepts(taker: Subscription | Borrower, message: Message) -> bool:
    """Whether the selector lets `message` through."""
    return taker.selector is None or selects(taker.selector, message.envelope)
