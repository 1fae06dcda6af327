"""The outstanding messages of one queue: which consumer here, or which class of a peer, has them, and their groups.

A message is outstanding while a consumer of this node has it in flight (an own or a borrowed message), or while it is
lent and neither settled nor returned. While any message of a group is outstanding, the group has one holder, and no
other consumer gets messages of it.
"""

from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.dots import Dot

Holder = Subscription | str
"""A consumer here, or what `key_of` calls a class of a peer's consumers."""


class GroupLock:
    """A group that is out: its holder, how many of its messages, and which consumers could have had it when it began.

    `is_awaited`: a message of it would be with another consumer if the group were free.
    """

    __slots__ = ("count", "epoch", "holder", "is_awaited")

    def __init__(self, holder: Holder, epoch: int) -> None:
        self.holder = holder
        self.count = 0
        self.epoch = epoch
        self.is_awaited = False


class Outstanding:
    """`epoch` counts how often the consumers have changed; its owner raises it."""

    __slots__ = ("epoch", "groups", "lent", "local", "out")

    def __init__(self) -> None:
        self.epoch = 0
        self.groups: dict[bytes, GroupLock] = {}
        # Delivery → group and whether the message is ours.
        self.local: dict[int, tuple[bytes, bool]] = {}
        # Lent dot → group and whose.
        self.lent: dict[Dot, tuple[bytes, str]] = {}
        # Holder → how many messages of our own.
        self.out: dict[Holder, int] = {}

    def given(self, delivery: Delivery) -> None:
        """A consumer here has a message."""
        message = delivery.message
        group = group_of(message)
        is_own = message.owner is None
        self.local[delivery.tag] = (group, is_own)
        self.hold(group, delivery.subscription)
        if is_own:
            self.out[delivery.subscription] = self.out.get(delivery.subscription, 0) + 1

    def lend(self, message: Message, key: str) -> None:
        """A peer has it."""
        group = group_of(message)
        self.lent[message.dot] = (group, key)
        self.hold(group, key)
        self.out[key] = self.out.get(key, 0) + 1

    def finished(self, delivery: Delivery) -> bool:
        """A delivery is settled or comes back. True when a group is free for another consumer by that."""
        found = self.local.pop(delivery.tag, None)
        if found is None:
            return False
        group, is_own = found
        if is_own:
            self._count_back(delivery.subscription)
        return self.release(group)

    def not_lent(self, message: Message) -> tuple[bool, bool]:
        """What was lent is settled or back. (Whether it was lent at all, as `finished`)."""
        found = self.lent.pop(message.dot, None)
        if found is None:
            return False, False
        group, key = found
        self._count_back(key)
        return True, self.release(group)

    def _count_back(self, holder: Holder) -> None:
        left = self.out[holder] - 1
        if left:
            self.out[holder] = left
        else:
            del self.out[holder]

    def hold(self, group: bytes, holder: Holder) -> None:
        """One message of `group` is out, or parked for `holder`."""
        if group:
            held = self.groups.get(group)
            if held is None:
                held = self.groups[group] = GroupLock(holder, self.epoch)
            held.count += 1

    def release(self, group: bytes) -> bool:
        """It is not any more. True when the group is free, and others were not given messages because of it."""
        held = self.groups.get(group) if group else None
        if held is None:
            return False
        held.count -= 1
        if held.count:
            return False
        del self.groups[group]
        return held.is_awaited or held.epoch != self.epoch


def group_of(message: Message) -> bytes:
    """b"" for a message of no group."""
    terms = message.envelope.terms
    return b"" if terms is None else terms.group
