"""All queues of one node: the registry, the parts that act on it, and the consumers of queues.

For ownership see `state.owned`. Messages come in by `intake`, leave by `settlement`, come back by `redelivery`, and
pass from one serving node to another by `handoff`. What is only in the queue store is `paging`.
"""

from collections.abc import Callable, Mapping

from qmq.broker.consumers.outcome import Eviction, Outcome
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.dedup import Dedup
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.rules import QueueRules
from qmq.broker.queues.dead_letters import DeadLetters, Publish, Route
from qmq.broker.queues.dispatch import expiry
from qmq.broker.queues.dispatch.prefetch_rounds import PrefetchRounds
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.handoff import Handoff
from qmq.broker.queues.intake import Intake
from qmq.broker.queues.overflow import Overflow
from qmq.broker.queues.paging.pager import Pager
from qmq.broker.queues.redelivery import Redelivery
from qmq.broker.queues.settlement import Settlement
from qmq.errors import Refused
from qmq.model.dots import Origin

DUE_AT_ONCE = 1000
"""Queues and subscriptions with a deadline that one turn looks at; the others follow in the next."""


class _Release:
    """How far the queues are released: those in front of `left` are still to be dispatched. Watched like a queue."""

    __slots__ = ("check_us", "left")

    def __init__(self) -> None:
        self.check_us = self.left = 0


class Queues(QueueRegistry):
    """The queues of this node by destination, and what is done with their messages."""

    def __init__(
        self,
        dedup: Dedup,
        origin: Origin,
        rules_of: Callable[[str], QueueRules],
        publish: Publish,
        is_disk_full: Callable[[], bool] = lambda: False,
        defaults_of: Callable[[str], Mapping[str, str]] = lambda name: {},
        route: Route = lambda exchange, key, headers: ((), 0),
    ) -> None:
        super().__init__(origin, rules_of, dedup)
        # A dead letter is a new message: the space that is left is for settles.
        self.shared.is_disk_full = is_disk_full
        self.paging = Pager(origin, self)
        self.rounds = PrefetchRounds(self)
        self.intake = Intake(self, self.paging)
        self.settlement = Settlement(self, self.paging, self.rounds)
        self.redelivery = Redelivery(self, self.paging, self.rounds, DeadLetters(publish, defaults_of, route))
        self.overflow = Overflow(self, self.redelivery)
        self.handoff = Handoff(self, self.paging, self.intake, self.settlement)
        self._release = _Release()

    def hold(self, out: Outcome) -> None:
        """The node may hand out nothing from now on, because another may serve what it serves.

        What it has decided to deliver before, and no client was sent, comes back as if it had not been decided. A node
        that has stood still finds it waiting for a commit, or for a client that did not read.
        """
        if self.held:
            return
        self.held = True
        unsent: dict[Subscription, list[Delivery]] = {}
        for delivery in self.deliveries.values():
            message, subscription = delivery.message, delivery.subscription
            if not delivery.sent and message.owner is None and message.sequence > 0 and subscription.durable is None:
                unsent.setdefault(subscription, []).append(delivery)
        for subscription, deliveries in unsent.items():
            subscription.may_lose_unsent = True
            self.redelivery.give_back(deliveries, Back.UNSEEN, out)
            if subscription.is_pull:
                self.grant(subscription, len(deliveries), out)

    def release_hold(self, out: Outcome) -> None:
        """The node may hand out: everything that waited goes out, from DUE_AT_ONCE queues in this turn, and from as
        many in each of the next (`tick`).
        """
        self.held = False
        self.redelivery.end_postponement(out)
        self._release.left = len(self.listed)
        self._dispatch_more(out)

    def _dispatch_more(self, out: Outcome) -> None:
        # From the end: what one that is dropped meanwhile leaves free is filled with one that is dispatched already.
        end = min(self._release.left, len(self.listed))
        self._release.left = begin = max(0, end - DUE_AT_ONCE)
        for queue in [queue for queue in self.listed[begin:end] if queue.is_wanted]:
            queue.dispatch(out)
        if begin:
            self.deadlines.watch(self._release, max(1, out.now_us))

    # Consumers

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Put a consumer in line and give it what is ready."""
        queue = self.get(subscription.destination)
        is_picky = (
            subscription.exclusive
            or subscription.selector is not None
            or subscription.window is not None
            or subscription.priority != 0
        )
        selective = queue.pick() if is_picky or queue.rules.exclusive else queue.selective
        if selective is not None:
            selective.join(subscription, out.now_us)
        queue.subscriptions.append(subscription)
        self.shared.end_ceased(subscription)
        if selective is not None:
            selective.joined(subscription)
        self.note_consumers(queue)
        queue.free += subscription.free if subscription.is_pull else subscription.credit
        if not subscription.ack_timeout_us:
            subscription.ack_timeout_us = queue.rules.ack_timeout_us
        queue.line_up(subscription)
        self.touched[queue.name] = None
        self.dispatch(queue, out)

    def grant(self, subscription: Subscription, count: int, out: Outcome) -> None:
        """A consumer that pulls may have so many messages more, unless it has ceased."""
        queue = self.get(subscription.destination)
        if subscription not in queue.subscriptions:
            return
        subscription.credit += count
        queue.free += count
        queue.line_up(subscription)
        self.touched[queue.name] = None
        self.dispatch(queue, out)

    def may_give(self, subscription: Subscription) -> bool:
        """Whether a new message can be given to this consumer before all others."""
        queue = self.by_name.get(subscription.destination)
        is_open = queue is not None and queue.selective is None and subscription in queue.subscriptions
        return is_open and not self.held and self.serves_own

    def withdraw(self, subscription: Subscription) -> None:
        """A consumer that pulls gets nothing of what it was granted and does not have yet."""
        room = subscription.free
        queue = self.get(subscription.destination)
        if room > 0 and subscription in queue.subscriptions:
            subscription.credit -= room
            queue.free -= room
            queue.leave_line(subscription)
            self.touched[queue.name] = None

    def cease(self, subscription: Subscription, out: Outcome) -> None:
        """Give a consumer nothing more; what it has in flight stays with it. A second call does nothing."""
        queue = self.get(subscription.destination)
        if subscription not in queue.subscriptions:
            return
        queue.subscriptions.remove(subscription)
        if subscription.in_flight:
            self.shared.ceased.setdefault(queue.name, {})[subscription] = None
        self.note_consumers(queue)
        queue.leave_line(subscription)
        if subscription.is_pull:
            queue.free -= subscription.free
            subscription.credit = len(subscription.in_flight)
        else:
            queue.free -= subscription.credit
            subscription.credit = 0
        if queue.selective is not None:
            queue.selective.leave(subscription, out)
        if subscription.window is not None:
            subscription.window.leave(subscription)
        self.touched[queue.name] = None

    def unsubscribe(self, subscription: Subscription, out: Outcome, why: Back) -> None:
        """Take a consumer out; what it has in flight goes back, as `why` (RELEASED or LEFT) says."""
        subscription.closed = True
        self.cease(subscription, out)
        self.deadlines.forget(subscription)
        queue = self.get(subscription.destination)
        in_flight = list(subscription.in_flight.values())
        if why is Back.LEFT and subscription.ack is Ack.AUTO:
            # What was sent before a client left comes to it before the answer to that.
            self.settlement.settle([delivery for delivery in in_flight if delivery.sent], out)
            in_flight = [delivery for delivery in in_flight if not delivery.sent]
        self.redelivery.give_back(in_flight, why, out)
        self.shared.end_ceased(subscription)
        self.touched[queue.name] = None
        self.forget_if_idle(queue)

    # Time

    def tick(self, out: Outcome) -> list[Delivery]:
        """Obey every deadline that has come by `out.now_us`; returns the deliveries that were taken back."""
        late: list[Delivery] = []
        for thing in self.deadlines.due(out.now_us, DUE_AT_ONCE):
            if isinstance(thing, Queue):
                expiry.on_deadline(thing, out)
                self.dispatch(thing, out)
                self.forget_if_idle(thing)
            elif isinstance(thing, Subscription):
                late += self._time_out(thing, out)
            elif not self.held:
                self._dispatch_more(out)
        return late

    def _time_out(self, subscription: Subscription, out: Outcome) -> list[Delivery]:
        late: list[Delivery] = []
        unread: list[Delivery] = []
        next_us = 0
        for delivery in subscription.in_flight.values():
            deadline_us = delivery.deadline_us
            if deadline_us and deadline_us <= out.now_us:
                (late if delivery.sent else unread).append(delivery)
            elif deadline_us and (not next_us or deadline_us < next_us):
                next_us = deadline_us
        if next_us:
            self.deadlines.watch(subscription, next_us)
        if unread:
            # It would keep its connection for ever: what comes back from it is only delivered to it again.
            why = Refused("slow-consumer", "The client does not read what it should acknowledge in time.")
            out.evictions.append(Eviction(subscription.session, why))
        self.redelivery.give_back(late, Back.TIMED_OUT, out)
        self.redelivery.give_back(unread, Back.UNSEEN, out)
        return late + unread

    def extend(self, delivery: Delivery, now_us: int) -> None:
        """The time for the ACK of a delivery begins again, if it has one."""
        if delivery.timeout_us:
            delivery.deadline_us = now_us + delivery.timeout_us
            self.deadlines.watch(delivery.subscription, delivery.deadline_us)

    def start_ack_timeouts(self, deliveries: list[Delivery], now_us: int) -> list[Delivery]:
        """These are about to be sent, or to wait for their client to read: their time begins. Without those that were
        taken back meanwhile."""
        left: list[Delivery] = []
        for delivery in deliveries:
            if delivery.tag in self.deliveries:
                left.append(delivery)
                if delivery.timeout_us and not delivery.deadline_us:
                    delivery.deadline_us = now_us + delivery.timeout_us
                    self.deadlines.watch(delivery.subscription, delivery.deadline_us)
        return left
