"""What peers lend to consumers of a queue with selective dispatch: delivered at once, or buffered, or refused.

An ordered message, of a group or for an exclusive consumer, has one consumer here that may have it. If that one is
full, the message is buffered; if it were returned, the next one could overtake it. The buffer is bounded by the credit
that was offered (`Consumers.free_by_class`). What comes while something is buffered for its consumer is buffered behind
that. Any other message for which no consumer is free goes back to its owner, as it does everywhere.
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
from qmq.broker.queues.state.context import is_ordered


class OrderedBuffer:
    """`waiting`: consumer → what waits for it, in order."""

    __slots__ = ("_local", "waiting")

    def __init__(self, local: LocalDelivery) -> None:
        self._local = local
        self.waiting: dict[Subscription, deque[Message]] = {}

    def take(self, message: Message, out: Outcome) -> bool:
        """Give `message` to a consumer of the class it is lent to, or buffer it; False when no consumer can have it."""
        if not is_ordered(message):
            chosen = self._next_of(message.lent_as)
        else:
            chosen = self._chosen_for(message)
            # It may have room beside what is buffered, where the queue was paused meanwhile.
            if chosen is not None and (chosen in self.waiting or not has_room(chosen)):
                self.waiting.setdefault(chosen, deque()).append(message)
                self._local.outstanding.hold_borrowed(message.origin.node, group_of(message), chosen)
                return True
        if chosen is None:
            return False
        self._local.give(chosen, message, out)
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
        held = local.outstanding.borrowed.get((message.origin.node, group))
        return held.holder if held is not None and held.holder in members else among(group, members)

    def joined(self, subscription: Subscription) -> None:
        """A consumer has come. If its class has some of a group that another one would get now, peers lend no more of
        it until that is settled: the group would stay with its old consumer for ever.
        """
        queue, of = self._local.queue, subscription.lent_as
        members = [s for s in queue.subscriptions if s.lent_as == of and not s.closed]
        for (_, group), held in self._local.outstanding.borrowed.items():
            if held.holder.lent_as == of and among(group, members) is not held.holder:
                queue.shared.withdrawn["", queue.name, of] = None
                return

    def _unbuffer(self, message: Message) -> None:
        """A message that was buffered is about to be delivered, or returned."""
        self._local.outstanding.release_borrowed(message.origin.node, group_of(message))

    def go_on(self, out: Outcome) -> None:
        """Give what is parked for those that have room again."""
        local = self._local
        for subscription in list(self.waiting):
            buffered = self.waiting[subscription]
            while buffered and has_room(subscription):
                message = buffered.popleft()
                self._unbuffer(message)
                if local.queue.shared.clocks.has_expired(message, out.now_us):
                    out.peer_returns.setdefault(message.owner or "", []).append(Return(message, Back.UNSEEN, None))
                    continue
                local.give(subscription, message, out)
            if not buffered:
                del self.waiting[subscription]
            elif subscription.window is not None and subscription.free > 0:
                local.wait(subscription, subscription.window)

    def leave(self, subscription: Subscription, out: Outcome) -> None:
        """Its consumer has ended: what is parked for it goes back. What is on its way here must not overtake that, nor
        what the consumer has in flight.
        """
        queue = self._local.queue
        for message in self.waiting.pop(subscription, ()):
            self._unbuffer(message)
            queue.shared.return_to_owner(Return(message, Back.UNSEEN, None), out)
        if subscription.since_us:
            queue.shared.withdrawn["", queue.name, subscription.lent_as] = None
        for delivery in subscription.in_flight.values():
            if delivery.message.owner is not None and group_of(delivery.message):
                queue.shared.withdrawn[delivery.message.owner, queue.name, subscription.lent_as] = None

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
                        self._unbuffer(message)
                self._local.queue.shared.dirty_queues[self._local.queue.name] = None
            if stays:
                self.waiting[subscription] = stays
            else:
                del self.waiting[subscription]

    def drop_of(self, owner: str) -> None:
        """The messages of `owner` have another server now, which delivers again what no client has seen."""
        self._drop(lambda message: message.origin.node == owner)

    def messages(self) -> list[Message]:
        """All that is parked."""
        return [message for buffered in self.waiting.values() for message in buffered]


def has_room(subscription: Subscription) -> bool:
    """Whether it may be given a message now."""
    window = subscription.window
    return subscription.free > 0 and (window is None or window.room > 0)
