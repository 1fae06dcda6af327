"""The outstanding messages of one queue: which consumer here, or which offer of a peer, has them, and their groups.

A message is outstanding while a consumer of this node has it in flight (an own or a borrowed message), or while it is
lent and neither settled nor returned. While any own message of a group is outstanding, the group has one holder, and no
other consumer gets messages of it. Borrowed messages have locks of their own, for each node that accepted them.

Surprising: a group that is lent is locked by the offer and not by its name. After a withdrawal the same name may be
offered again while messages that were lent before are still on their way back. A later one must not go there first.
"""

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.model.dots import Dot

Holder = Subscription | str
"""A consumer here, or what `key_of` calls a class of a peer's consumers."""


class GroupLock:
    """A group that is out: its holder, how many of its messages, and which consumers could have had it when it began.

    `holder` None: it was lent under an offer that is not known any more, or several consumers have some of it. No
    consumer gets any until all are back.
    """

    __slots__ = ("count", "epoch", "holder")

    def __init__(self, holder: Subscription | Borrower | None, epoch: int) -> None:
        self.holder = holder
        self.count = 0
        self.epoch = epoch


class BorrowedLock:
    """The consumer here that has borrowed messages of a group of one owner, in flight or buffered, and how many."""

    __slots__ = ("count", "holder")

    def __init__(self, holder: Subscription) -> None:
        self.holder = holder
        self.count = 0


class Outstanding:
    """`epoch` counts how often the consumers have changed; its owner raises it."""

    __slots__ = ("borrowed", "epoch", "groups", "lent", "local", "out")

    def __init__(self) -> None:
        self.epoch = 0
        self.groups: dict[bytes, GroupLock] = {}
        self.borrowed: dict[tuple[str, bytes], BorrowedLock] = {}
        """(node that accepted it, group) → its lock."""
        # Delivery → group, and the node that accepted a message that was borrowed then, else "".
        self.local: dict[int, tuple[bytes, str]] = {}
        # Lent dot → group and whose.
        self.lent: dict[Dot, tuple[bytes, str]] = {}
        # Holder → how many messages of our own.
        self.out: dict[Holder, int] = {}

    def given(self, delivery: Delivery) -> None:
        """A consumer here has a message."""
        message, subscription = delivery.message, delivery.subscription
        group = group_of(message)
        owner = "" if message.owner is None else message.origin.node
        self.local[delivery.tag] = (group, owner)
        if owner:
            self.hold_borrowed(owner, group, subscription)
        else:
            self._hold(group, subscription)
            self.out[subscription] = self.out.get(subscription, 0) + 1

    def lend(self, message: Message, key: str, offer: Borrower | None) -> None:
        """A peer has it; `offer` None: since before this node knew its offers."""
        group = group_of(message)
        self.lent[message.dot] = (group, key)
        self._hold(group, offer)
        self.out[key] = self.out.get(key, 0) + 1

    def offer_ends(self, message: Message) -> None:
        """What is lent is not followed by more of its group: it was lent in a term that is over."""
        held = self.groups.get(group_of(message))
        if held is not None and message.dot in self.lent:
            held.holder = None

    def finished(self, delivery: Delivery) -> GroupLock | None:
        """A delivery is settled or comes back. The lock of its group, if the group is free by that."""
        found = self.local.pop(delivery.tag, None)
        if found is None:
            return None
        group, owner = found
        if owner:
            self.release_borrowed(owner, group)
            return None
        self._count_back(delivery.subscription)
        return self._release(group)

    def not_lent(self, message: Message) -> tuple[bool, GroupLock | None]:
        """What was lent is settled or back. (Whether it was lent at all, as `finished`)."""
        found = self.lent.pop(message.dot, None)
        if found is None:
            return False, None
        group, key = found
        self._count_back(key)
        return True, self._release(group)

    def _count_back(self, holder: Holder) -> None:
        left = self.out[holder] - 1
        if left:
            self.out[holder] = left
        else:
            del self.out[holder]

    def _hold(self, group: bytes, holder: Subscription | Borrower | None) -> None:
        """One own message of `group` is out."""
        if group:
            held = self.groups.get(group)
            if held is None:
                held = self.groups[group] = GroupLock(holder, self.epoch)
            elif held.holder is not holder:
                held.holder = None
            held.count += 1

    def _release(self, group: bytes) -> GroupLock | None:
        held = self.groups.get(group) if group else None
        if held is None:
            return None
        held.count -= 1
        if held.count:
            return None
        del self.groups[group]
        return held

    def hold_borrowed(self, owner: str, group: bytes, holder: Subscription) -> None:
        """One message of `group` that `owner` accepted is in flight here, or buffered for `holder`."""
        if group:
            held = self.borrowed.get((owner, group))
            if held is None:
                held = self.borrowed[owner, group] = BorrowedLock(holder)
            held.holder = holder
            held.count += 1

    def release_borrowed(self, owner: str, group: bytes) -> None:
        """It is not any more."""
        held = self.borrowed.get((owner, group))
        if held is not None:
            held.count -= 1
            if not held.count:
                del self.borrowed[owner, group]


def group_of(message: Message) -> bytes:
    """b"" for a message of no group."""
    options = message.envelope.options
    return b"" if options is None else options.group
