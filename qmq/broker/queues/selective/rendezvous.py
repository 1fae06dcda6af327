"""Rendezvous hashing: nodes that know the same names choose the same one, without exchanging messages.

A group of messages goes to one consumer: first to a node, then to a class of that node's consumers, then to one of
them. A peer sees only the nodes and classes of others, so it chooses the same node and class. When a name is added or
removed, only the groups that it gains or loses move.
"""

from collections.abc import Iterable
from hashlib import blake2b

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import selects


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
