"""What peers lend to consumers of a queue with selective dispatch: delivered at once, or buffered, or refused.

An ordered message, of a group or for an exclusive consumer, has one consumer here that may have it. If that one is
full, the message is buffered; if it were returned, the next one could overtake it. So the buffer is bounded by the
credit that was offered. Any other message for which no consumer is free goes back to its owner, as it does everywhere.
"""

from collections import deque
from collections.abc import Callable

from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.group_choice import among
from qmq.broker.queues.selective.local_delivery import LocalDelivery
from qmq.broker.queues.selective.outstanding import group_of
from qmq.dots import Dot


class OrderedBuffer:
    """`waiting`: consumer → what waits for it, in order."""

    __slots__ = ("_local", "waiting")

    def __init__(self, local: LocalDelivery) -> None:
        self._local = local
        self.waiting: dict[Subscription, deque[Message]] = {}

    def take(self, message: Message, out: Outcome) -> bool:
        """Give `message` to a consumer of the class it is lent to, or buffer it; False when no consumer can have it."""
        chosen = self._chosen_for(message) if is_ordered(message) else self._next_of(message.lent_as)
        if chosen is None:
            return False
        if has_room(chosen):
            self._local.give(chosen, message, out)
        else:
            self.waiting.setdefault(chosen, deque()).append(message)
            self._local.outstanding.hold(group_of(message), chosen)
        return True

    def _next_of(self, of: str) -> Subscription | None:
        for subscription in self._local.queue.in_line or ():
            if subscription.lent_as == of and has_room(subscription):
                return subscription
        return None

    def _chosen_for(self, message: Message) -> Subscription | None:
        """The one that may have an ordered message, with room or without."""
        local, of = self._local, message.lent_as
        members = [s for s in local.queue.subscriptions if s.lent_as == of and not s.closed]
        if not members:
            return None
        if members[0].since_us:
            return members[0]  # one by one they began, and the first is the one
        group = group_of(message)
        held = local.outstanding.groups.get(group)
        if held is not None and isinstance(held.holder, Subscription) and held.holder in members:
            return held.holder
        return among(group, members)

    def go_on(self, out: Outcome) -> None:
        """Give what is parked for those that have room again."""
        local = self._local
        for subscription in list(self.waiting):
            buffered = self.waiting[subscription]
            while buffered and has_room(subscription):
                message = buffered.popleft()
                local.unbuffered(message)
                if local.queue.shared.clocks.has_expired(message, out.now_us):
                    out.peer_returns.setdefault(message.owner or "", []).append(Return(message, Back.UNSEEN, None))
                    continue
                local.give(subscription, message, out)
            if not buffered:
                del self.waiting[subscription]
            elif subscription.window is not None and subscription.free > 0:
                local.wait(subscription, subscription.window)

    def leave(self, subscription: Subscription, out: Outcome) -> bool:
        """Its consumer has ended: what is parked for it goes back. True when there was something."""
        buffered = self.waiting.pop(subscription, None)
        for message in buffered or ():
            self._local.unbuffered(message)
            out.peer_returns.setdefault(message.owner or "", []).append(Return(message, Back.UNSEEN, None))
        return buffered is not None

    def drop(self, peer: str) -> None:
        """The link to `peer` ended: no client has seen what is buffered of it, and a new link requests it again.

        A peer that has restarted does not know what it lent to which node, and delivers it again.
        """
        self._drop(lambda message: message.owner == peer)

    def _drop(self, goes: Callable[[Message], bool]) -> None:
        for subscription in list(self.waiting):
            buffered = self.waiting[subscription]
            stays = deque([message for message in buffered if not goes(message)])
            if len(stays) < len(buffered):
                for message in buffered:
                    if goes(message):
                        self._local.unbuffered(message)
                self._local.queue.shared.dirty_queues[self._local.queue.name] = None
            if stays:
                self.waiting[subscription] = stays
            else:
                del self.waiting[subscription]

    def drop_of(self, owner: str) -> None:
        """The messages of `owner` have another server now, which delivers again what no client has seen."""
        self._drop(lambda message: message.origin.node == owner)

    def owners(self) -> set[str]:
        """The peers of which something is parked."""
        return {message.owner or "" for buffered in self.waiting.values() for message in buffered}

    def dots_of(self, peer: str) -> list[Dot]:
        """What of `peer` is parked."""
        return [message.dot for buffered in self.waiting.values() for message in buffered if message.owner == peer]


def is_ordered(message: Message) -> bool:
    """Whether a message that is lent to us must not be overtaken: it has a group, or an exclusive consumer."""
    return bool(group_of(message)) or not (message.lent_as == "" or message.lent_as.endswith("\0" + "0"))


def has_room(subscription: Subscription) -> bool:
    """Whether it may be given a message now."""
    window = subscription.window
    return subscription.free > 0 and (window is None or window.room > 0)
