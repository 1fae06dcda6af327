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
from qmq.broker.queues.selective.outstanding import Outstanding
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import selects

CHOICES_MAX: Final = 4096
"""Groups whose choice is remembered."""


class GroupChoice:
    """The groups of one queue."""

    __slots__ = ("_choices", "_consumers", "_outstanding", "_queue")

    def __init__(self, queue: QueueState, consumers: Consumers, outstanding: Outstanding) -> None:
        self._queue = queue
        self._consumers = consumers
        self._outstanding = outstanding
        self._choices: dict[bytes, Subscription | Borrower] = {}

    def forget(self) -> None:
        """The consumers have changed."""
        self._choices.clear()

    def holder_of(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The consumer that may have this message of `group`, with room or without; None: none now."""
        held = self._outstanding.groups.get(group)
        if held is not None:
            if held.epoch != self._outstanding.epoch and not self._consumers.selectors:
                chosen = self._choose(group, message)
                if held.holder != _key_of(chosen):
                    return None
                held.epoch = self._outstanding.epoch
            if self._consumers.selectors and not held.is_awaited:
                held.is_awaited = _key_of(choose(self._queue, group, message)) not in (held.holder, None)
            holder = held.holder
            taker = (self._queue.borrowers or {}).get(holder) if isinstance(holder, str) else holder
            return taker if taker is None or accepts(taker, message) else None
        if self._consumers.selectors:
            return choose(self._queue, group, message)
        return self._choose(group, message)

    def _choose(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The one of all consumers that the group goes to when it is free; none has a selector."""
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


def _key_of(taker: Subscription | Borrower | None) -> Subscription | str | None:
    return taker.key if isinstance(taker, Borrower) else taker


def accepts(taker: Subscription | Borrower, message: Message) -> bool:
    """Whether the selector lets `message` through."""
    return taker.selector is None or selects(taker.selector, message.envelope)
