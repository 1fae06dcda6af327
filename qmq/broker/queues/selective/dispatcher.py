"""Selective dispatch of one queue, where not every consumer may get every message: selectors, groups, exclusive
consumers, priorities of consumers, windows.

A queue has a selective dispatcher only while it needs one. There are four rules, the strongest first:

- Exclusive: while any consumer in the mesh is exclusive, the one that began first (by its node's clock, then by its
  node's name) gets everything, and the others stand by. The next one begins when no other consumer has a message of
  this node.
- Groups: all messages of a group go to one consumer, in order; docs/queues.md has the table. The choice is not stored.
  It follows from the names of the consumers that could have the next message (rendezvous hashing over nodes, then over
  the classes of a node, then over consumers), so all owners agree without exchanging messages. While messages of a
  group are in flight, no other consumer gets any of it. If the choice has changed meanwhile, the old consumer gets no
  more of them either; otherwise a backlog would keep the group there. While the next message waits, its group waits.
- Selectors: a message goes to the next consumer in line whose selector matches. If none matches, the message stays, and
  messages behind it are delivered.
- Priorities: among the consumers in line that match, here and on peers, the one with the highest priority gets the
  message. Among equals, those of this node come first, as everywhere.

Each search continues where the last one ended (`seen`: a place per priority level and class of consumers, or per
consumer once there are groups). So a message that no consumer wants is examined once, not for every ACK.
All four rules move these places, so they are one module.

`group_order` has the places where groups wait, `ordered_buffer` what peers lend to consumers here, `outstanding` what
is in flight, `consumers` the consumers.
"""

from typing import Final

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.consumer_class import PLAIN, key_of
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.consumers import Consumers
from qmq.broker.queues.selective.group_choice import GroupChoice
from qmq.broker.queues.selective.group_order import GroupOrder, Seen
from qmq.broker.queues.selective.local_delivery import LocalDelivery
from qmq.broker.queues.selective.ordered_buffer import OrderedBuffer
from qmq.broker.queues.selective.outstanding import group_of
from qmq.broker.queues.selective.selector_paging import COST_SHARE, Sifted, load_on, restart_scans
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import Selector, SelectorCosts, selects

LOOKED_MAX: Final = 2000
"""Questions about messages that one dispatch asks consumers in vain; the next continues after others had a turn."""


class SelectiveDispatcher:
    """See the module's opening."""

    __slots__ = (
        "groups",
        "_local",
        "_peers",
        "_rewinds",
        "_seen",
        "_sifted",
        "_skipped",
        "_subscriptions",
        "outstanding",
        "is_grouped",
        "is_ranked",
        "ordered_buffer",
        "queue",
        "consumers",
    )

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        self.consumers = Consumers(queue)
        self._local = LocalDelivery(queue)
        self.outstanding = self._local.outstanding
        self.is_grouped = False
        self.is_ranked = False
        """Whether some of those in line have a priority, while a dispatch is under way."""
        self.ordered_buffer = OrderedBuffer(self._local)
        self._seen: Seen = {}
        self.groups = GroupChoice(queue, self.consumers, self.outstanding, GroupOrder(self._seen))
        # Priorities of which messages that no consumer wanted were evicted, behind what is in memory.
        self._skipped: set[int] = set()
        self._sifted: dict[int, Sifted] = {}  # By priority, while such messages are looked for.
        self._rewinds = False
        # Consumers with room, while a dispatch is under way.
        self._subscriptions: list[Subscription] = []
        self._peers: list[Borrower] = []
        self._adopt()

    def _adopt(self) -> None:
        """Begin with a queue that is in use: learn its consumers and what is in flight."""
        queue = self.queue
        for subscription in queue.subscriptions:
            self.consumers.count(subscription.lent_as)
        for delivery in queue.in_flight():
            self.outstanding.given(delivery)
        for borrower in (queue.borrowers or {}).values():
            self.consumers.count(borrower.lent_as)
        for peer, lent in queue.shared.owned.lent.items():
            for message in lent.values():
                if message.envelope.destination == queue.name and not message.settled:
                    self.outstanding.lend(message, key_of(peer, message.lent_as), None)
        self._changed()

    # Consumers

    def join(self, subscription: Subscription, now_us: int) -> None:
        """A consumer begins, just before it stands in the queue's `subscriptions`."""
        self.consumers.enter(subscription, now_us)
        self._count(subscription.lent_as)

    def joined(self, subscription: Subscription) -> None:
        """It stands there now."""
        self.ordered_buffer.joined(subscription)
        self._changed()

    def leave(self, subscription: Subscription, out: Outcome) -> None:
        """A consumer has ended; what it has in flight comes back after this."""
        self._uncount(subscription.lent_as, subscription)
        self.ordered_buffer.leave(subscription, out)
        self._changed()

    def admitted(self, borrower: Borrower) -> None:
        """A peer has offered credit for one more class of consumers."""
        self._count(borrower.lent_as)
        self._changed()

    def dismissed(self, borrower: Borrower) -> None:
        """It has none any more."""
        self._uncount(borrower.lent_as, borrower.key)
        self._changed()

    def _count(self, of: str) -> None:
        if self.consumers.count(of) and self._skipped:
            # What no other consumer wanted may be what this one wants.
            self._rewinds = True

    def _uncount(self, of: str, taker: object) -> None:
        keys = [taker, of] if self.consumers.uncount(of) else [taker]
        for level in self.queue.levels:
            for key in keys:
                self._seen.pop((level.priority, key), None)

    def _changed(self) -> None:
        self.consumers.changed()
        self._sifted.clear()
        self.outstanding.epoch += 1
        self.groups.forget()
        if self.is_grouped:
            self.groups.order.clear()
        self.queue.shared.dirty_queues[self.queue.name] = None

    @property
    def is_needed(self) -> bool:
        """Whether anything here differs from a plain queue."""
        if (
            self.is_grouped
            or self._skipped
            or self.ordered_buffer.waiting
            or self._rewinds
            or self.queue.rules.exclusive
        ):
            return True
        if any(self.consumers.classes) or self.outstanding.local or self.outstanding.lent:
            return True
        return self.has_window

    @property
    def has_window(self) -> bool:
        """Whether some consumer here shares a window."""
        return any(subscription.window is not None for subscription in self.queue.subscriptions)

    @property
    def has_passed_over(self) -> bool:
        """Whether something that no consumer here wants is only in the store, before what is in memory."""
        return bool(self._skipped)

    def note_group(self) -> None:
        """A message of a group has come."""
        if not self.is_grouped:
            self.is_grouped = True
            self._changed()

    def free_by_class(self) -> dict[str, int]:
        """What peers may be offered for each class of local consumers."""
        return self.consumers.free_by_class(
            {taker: len(waiting) for taker, waiting in self.ordered_buffer.waiting.items()}
        )

    def poll_again(self) -> None:
        """The store is read from its beginning."""
        restart_scans(self.queue, self._skipped)
        self._changed()
        self.groups.order.clear()

    def evicted(self) -> None:
        """Messages are only in the store again, and no search meets them where they were."""
        if self.is_grouped:
            self.groups.order.clear()

    # What is out

    def finished(self, deliveries: list[Delivery]) -> None:
        """These deliveries are settled, or come back."""
        for delivery in deliveries:
            self.groups.freed(delivery.message, self.outstanding.finished(delivery))

    def not_lent(self, message: Message) -> None:
        """What was lent is settled or has come back; also asked about what was not."""
        was_lent, freed = self.outstanding.not_lent(message)
        self.groups.freed(message, freed)
        if was_lent:
            message.lent_as = PLAIN
            self.queue.shared.dirty_queues[self.queue.name] = None
        elif self.is_grouped:
            self.groups.out_of_line(message)

    def back_in_line(self, message: Message | None, priority: int) -> None:
        """`message` stands where searches may have been: they must look again. None: many messages of the level."""
        order = self.groups.order
        if message is None:
            order.restart(priority)
            return
        options = message.envelope.options
        if options is not None and options.group:
            order.forget(options.group, [level.priority for level in self.queue.levels])
        order.restart_from(priority, message.place)

    # Messages go out

    def dispatch(self, out: Outcome) -> None:
        """Give away what can be given, as the opening says."""
        queue = self.queue
        if self.ordered_buffer.waiting:
            self.ordered_buffer.go_on(out)
        if self._rewinds:
            if queue.is_loading:
                return  # A new consumer must not get what comes behind the evicted ones; `Paging.take` asks again.
            self._rewinds = False
            restart_scans(queue, self._skipped)
        if not queue.in_line and not queue.peers_in_line:
            return
        if not queue.is_counted:
            queue.load(out)
            return
        if 0 < queue.stored_due_us <= out.now_us:
            queue.load(out)  # Became due while no consumer wanted it.
        self._gather()
        self.groups.order.begin()
        left = LOOKED_MAX
        for level in queue.levels:
            if not self._subscriptions and not self._peers:
                break
            left = self._walk(level, left, out)
            if left <= 0:
                queue.shared.deadlines.watch(queue, max(1, out.now_us))
                break
            if level.behind:
                selectors = None if self.consumers.has_unselective or self.is_grouped else self.consumers.selectors
                refused = [taker.selector for taker in self._in_line()]
                load_on(queue, level, selectors, refused, self._skipped, self._sifted, out, left)
                break
        self._subscriptions = []
        self._peers = []

    def _gather(self) -> None:
        """The consumers in line that may be given something now."""
        queue = self.queue
        for subscription in list(queue.in_line or ()):
            if subscription.closed or subscription.free <= 0:
                queue.leave_line(subscription)
            elif subscription.window is not None and subscription.window.room <= 0:
                self._local.wait(subscription, subscription.window)
        self._subscriptions = list(queue.in_line or ())
        self._peers = [borrower for borrower in queue.peers_in_line or () if borrower.limit > borrower.sent]
        self.is_ranked = any([taker.priority for taker in self._in_line()])
        active = self.consumers.active
        if active is not None:
            key = active if isinstance(active, Subscription) else active.key
            if any(holder != key for holder in self.outstanding.out):
                self._subscriptions, self._peers = [], []
            else:
                self._subscriptions = [s for s in self._subscriptions if s is active]
                self._peers = [b for b in self._peers if b is active]

    def _walk(self, level: PriorityLevel, left: int, out: Outcome) -> int:
        """Look through what is ready; returns how many more may be looked at and left."""
        ready, order = level.ready, self.groups.order
        while ready and ready[0].settled:
            ready.popleft()
        if order.has_aims:
            self._give_aimed(level, out)
        last = self._seen_by_all(level)
        order.search(level.priority, last)
        index = level.index_after(last)
        asked = self.groups.asked(self._in_line()) if self.is_grouped else self._in_line()
        costs = SelectorCosts([taker.selector for taker in asked])
        while index < len(ready) and left > 0 and (self._subscriptions or self._peers):
            message = ready[index]
            if self._is_over(message, out):
                del ready[index]
                continue
            last = message.place
            header_bytes = len(message.envelope.headers)
            selector_cost = costs.of(header_bytes) // COST_SHARE
            in_line = len(self._subscriptions) + len(self._peers)
            taker = self._taker_of(message, level)
            if taker is None:
                index += 1
                # What it may have cost: each of these was asked, and long headers are long to look through.
                left -= max(in_line, len(asked)) + (header_bytes >> 7) + selector_cost
            else:
                left -= selector_cost
                del ready[index]
                self._hand(taker, message, level, message.place, out)
                if len(self._subscriptions) + len(self._peers) < in_line:
                    # The search began where this one's last ended; the others may have been further.
                    further = self._seen_by_all(level)
                    if further > last:
                        index = max(index, level.index_after(further))
                        order.search(level.priority, further)
        for other in self._in_line():
            self._has_seen(other, level, last)
        return left

    def _give_aimed(self, level: PriorityLevel, out: Outcome) -> None:
        """Give the next ones of groups to consumers that have looked past them before."""
        ready, order = level.ready, self.groups.order
        while place := order.take_aim([self._key(level, taker) for taker in self._in_line()]):
            index = level.index_after(place - 1)
            if index == len(ready) or order.first(group_of(ready[index]), level.priority) != place:
                continue  # It is the next one no more.
            message = ready[index]
            if self._is_over(message, out):
                del ready[index]
                continue
            order.search(level.priority, place - 1)
            taker = self._taker_of(message, level)
            if taker is not None:
                del ready[index]
                self._hand(taker, message, level, 0, out)

    def _is_over(self, message: Message, out: Outcome) -> bool:
        """Whether a message is settled, or has expired just now: it is out of line then."""
        if message.settled:
            return True
        options = message.envelope.options
        if options is None or not options.is_timed or not 0 < self.queue.shared.clocks.expiry(message) <= out.now_us:
            return False
        self.queue.shared.expire(message, out)
        if not message.settled:
            self.groups.out_of_line(message)
        return True

    def _in_line(self) -> list[Subscription | Borrower]:
        return [*self._subscriptions, *self._peers]

    def _key(self, level: PriorityLevel, taker: Subscription | Borrower) -> tuple[int, object]:
        if not self.is_grouped:
            return level.priority, taker.lent_as
        return level.priority, taker if isinstance(taker, Subscription) else taker.key

    def _seen_by_all(self, level: PriorityLevel) -> int:
        """The place up to which no consumer in line wants anything."""
        return min([self._seen.get(self._key(level, taker), 0) for taker in self._in_line()], default=0)

    def _has_seen(self, taker: Subscription | Borrower, level: PriorityLevel, place: int) -> None:
        key = self._key(level, taker)
        if place > self._seen.get(key, 0):
            self._seen[key] = place

    def _taker_of(self, message: Message, level: PriorityLevel) -> Subscription | Borrower | None:
        envelope = message.envelope
        options = envelope.options
        if options is not None and options.group and self.consumers.active is None:
            return self.groups.taker_of(options.group, message, level.priority, self._subscriptions, self._peers)
        if self.is_ranked:
            for taker in sorted(self._in_line(), key=lambda taker: -taker.priority):
                if taker.selector is None or selects(taker.selector, envelope):
                    return taker
            return None
        refused: Selector | None = None
        for subscription in self._subscriptions:
            selector = subscription.selector
            if selector is None or (selector is not refused and selects(selector, envelope)):
                return subscription
            refused = selector
        for borrower in self._peers:
            selector = borrower.selector
            if selector is None or (selector is not refused and selects(selector, envelope)):
                return borrower
            refused = selector
        return None

    def _hand(
        self, taker: Subscription | Borrower, message: Message, level: PriorityLevel, seen: int, out: Outcome
    ) -> None:
        """Give `message` to a consumer in line. Those that leave the line with it have looked up to place `seen`."""
        group = group_of(message)
        if group:
            self.groups.order.leaves(group, level.priority, message.place)
        if isinstance(taker, Borrower):
            self._peers.remove(taker)
            if self._local.lend(taker, message, out):
                self._peers.append(taker)
            else:
                self._has_seen(taker, level, seen)
        else:
            self._subscriptions.remove(taker)
            if self._local.give(taker, message, out):
                self._subscriptions.append(taker)
            else:
                self._has_seen(taker, level, seen)
            window = taker.window
            if window is not None and window.room <= 0:
                for other in [s for s in self._subscriptions if s.window is window]:
                    self._subscriptions.remove(other)
                    self._has_seen(other, level, seen)
                    self._local.wait(other, window)
        if group and (not seen or len(self.queue.levels) > 1):
            self.groups.aim(group)  # Its holder may have looked past the next one, or has it in another level.
