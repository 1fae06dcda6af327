"""The state of one queue: counters, priority levels, consumers, borrowers, and how one message is given to a consumer.

`dispatch.queue` chooses the next consumer, because it knows selective dispatch as well.

Surprising: a queue object is created when something happens in the queue, and dropped when none of its messages is in
memory. Messages that remain are only in the queue store, and they are not counted until a consumer wants them.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import chain

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import NOTHING_IN_FLIGHT, Ack, Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.state.context import QueueContext
from qmq.broker.queues.state.exact_level import ExactLevel
from qmq.broker.queues.state.expiry_scan import ExpiryScan
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.model.levels import delivery_order

MESSAGE_BYTES = 400
"""Of a message in memory, beside its body."""


class ListedQueue:
    """Slots of what a list of a million queues looks at. Those of one class are beside each other, so that each queue
    is one look-up of the processor's memory instead of three.

    A queue has 256 bytes in CPython, and begins where a line of the cache begins.
    """

    __slots__ = ("held", "levels", "stored")


class QueueState(ListedQueue):
    """Messages in order, consumers in line. Pure; what follows is added to an Outcome."""

    __slots__ = (
        "asking_borrowers",
        "borrowers",
        "check_us",
        "delayed",
        "due_place",
        "expires_us",
        "expiry_scan",
        "free",
        "held_bytes",
        "in_line",
        "is_counted",
        "is_loading",
        "listed_at",
        "loaded_until_us",
        "name",
        "peers_in_line",
        "placed",
        "plain",
        "rules",
        "shared",
        "stored_bytes",
        "stored_due_us",
        "subscriptions",
        "loads_lowest_first",
    )

    def __init__(self, name: str, rules: QueueRules, shared: QueueContext) -> None:
        # These are first, also in the object of a compiled class.
        self.levels: tuple[PriorityLevel, ...] = ()
        """One per level that was seen (`qmq.model.levels`), those that are delivered first in front."""
        self.held = 0
        """Messages owned here, not settled, and in memory: ready, delayed, in flight and lent."""
        self.stored = 0
        """Messages that are only in the store."""
        self.name = name
        self.rules = rules
        self.shared = shared
        self.listed_at = 0
        """The index of this queue in `QueueRegistry.listed`."""
        self.plain: PriorityLevel | None = None
        """The level of the default priority."""
        self.placed = 0
        self.held_bytes = 0
        self.is_counted = not shared.owned.has_stored
        """Whether it is known what the store holds of this queue. Until then every level counts as behind."""
        self.is_loading = False
        self.loads_lowest_first = False
        """Room is needed: the next page is of the lowest priority, whose oldest messages go first."""
        self.stored_bytes = 0
        self.stored_due_us = 0
        """When the next of them becomes due that was not when the queue was counted; 0: none."""
        self.loaded_until_us = 0
        """Delayed messages of the store that were due by then have been loaded, or come with the pages."""
        self.due_place = 0
        """The place of a message in the middle of the last page that had become due in the store; 0: there is none."""
        self.delayed: list[tuple[int, int, Message]] | None = None
        """A heap: due time, place, message."""
        self.expires_us = 0
        """When to look for expired messages next; 0: nothing here expires."""
        self.expiry_scan: ExpiryScan | None = None
        """While expired messages are looked for, which may take several turns."""
        self.check_us = 0
        # Lists, not deques and dictionaries: a queue has few consumers, and there may be a million queues.
        self.subscriptions: list[Subscription] = []
        self.free = 0
        """How many messages the local consumers may still be given, all together."""
        self.in_line: list[Subscription] | None = None
        self.borrowers: dict[str, Borrower] | None = None
        self.peers_in_line: deque[Borrower] | None = None
        self.asking_borrowers: dict[Borrower, bool] | None = None
        """Peers that want to hear whether messages wait for them here; True: they had room when they asked."""

    @property
    def depth(self) -> int:
        """Messages owned here and not settled."""
        return self.held + self.stored

    @property
    def body_bytes(self) -> int:
        return self.held_bytes + self.stored_bytes

    @property
    def ready(self) -> list[Message]:
        """What could be delivered now without asking the store, in order."""
        return [message for level in self.levels for message in level.ready if not message.settled]

    @property
    def is_bounded(self) -> bool:
        return bool(self.rules.messages_max or self.rules.bytes_max)

    def fits(self, messages: int, body_bytes: int) -> bool:
        """Whether that much more is within the bounds."""
        rules = self.rules
        if rules.messages_max and self.held + self.stored + messages > rules.messages_max:
            return False
        return not (rules.bytes_max and self.held_bytes + self.stored_bytes + body_bytes > rules.bytes_max)

    def oldest(self) -> Message | None:
        """Take the message out that has waited longest among those of the lowest priority; None when none is here."""
        for level in reversed(self.levels):
            message = level.take_oldest()
            if message is not None:
                return message
            if level.behind:
                return None
        return None

    @property
    def is_wanted(self) -> bool:
        """Whether a client here or on a peer consumes this queue."""
        return bool(self.subscriptions or self.borrowers)

    @property
    def idle(self) -> bool:
        """Nothing is kept here, and no consumer waits for anything: the queue object may be forgotten."""
        return not self.held and not self.is_wanted and not self.is_loading and self.name not in self.shared.ceased

    @property
    def holders(self) -> list[Subscription]:
        """Consumers of this node, with those that get nothing more and may still settle what they have."""
        return [*self.subscriptions, *self.shared.ceased.get(self.name, ())]

    def in_flight(self) -> Iterator[Delivery]:
        """What the holders have, borrowed messages and such as were settled meanwhile (by a purge) among it."""
        return chain.from_iterable([one.in_flight.values() for one in self.holders])

    def level(self, priority: int) -> PriorityLevel:
        """The level with this number, made on first use."""
        for level in self.levels:
            if level.priority == priority:
                return level
        is_behind = not self.is_counted
        level = PriorityLevel(priority, is_behind) if priority >= 0 else ExactLevel(priority, is_behind)
        if priority == PRIORITY_DEFAULT:
            self.plain = level
        # Nearly all of a million queues have one.
        if self.levels:
            self.levels = tuple(sorted((*self.levels, level), key=lambda level: -delivery_order(level.priority)))
        else:
            self.levels = (level,)
        return level

    def will_expire(self, expires_us: int) -> None:
        """Look for expired messages by then; 0: it never expires."""
        if self.expiry_scan is not None:
            self.expiry_scan.note(expires_us)
        if expires_us and (not self.expires_us or expires_us < self.expires_us):
            self.expires_us = expires_us
            self.shared.deadlines.watch(self, expires_us)

    def count_in(self, message: Message) -> None:
        """A message that stands in no line belongs to this queue. (`push` does the same in place: it is in a hurry.)"""
        self.held += 1
        self.held_bytes += len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes += len(message.body) + MESSAGE_BYTES
            self.shared.memory_messages += 1
        self.placed += 1
        message.place = self.placed

    def delay(self, message: Message, due_us: int) -> None:
        """Keep a message that is held here until it is due."""
        if self.delayed is None:
            self.delayed = []
        heapq.heappush(self.delayed, (due_us, message.place, message))
        if self.expiry_scan is not None:
            self.expiry_scan.delayed_changed()
        self.shared.deadlines.watch(self, due_us)

    def take_out(self, message: Message) -> bool:
        """Take a message out of line; False when it stands in none."""
        for level in self.levels:
            if message in level.ready:
                level.ready.remove(message)
                return True
            if level.tail is not None and message in level.tail:
                # Not in place: a search may be going through it.
                level.tail = [other for other in level.tail if other is not message] or None
                return True
        return False

    def put_away(self, messages: list[Message]) -> None:
        """These are out of their levels, and from now on only in the store."""
        size = sum([len(message.body) for message in messages])
        self.held -= len(messages)
        self.held_bytes -= size
        self.stored += len(messages)
        self.stored_bytes += size

    # Consumers in line

    def line_up(self, subscription: Subscription) -> None:
        """Put a consumer with room in line, once."""
        if not subscription.waiting and not subscription.closed and subscription.free > 0:
            subscription.waiting = True
            if self.in_line is None:
                self.in_line = []
            self.in_line.append(subscription)

    def leave_line(self, subscription: Subscription) -> None:
        """Take a consumer that ends out of the line; a queue without messages would keep it there for ever."""
        if subscription.waiting and self.in_line is not None:
            subscription.waiting = False
            self.in_line.remove(subscription)

    def finished(self, subscription: Subscription, count: int) -> None:
        """So many messages are in flight to a consumer no more: it has room for others, unless it pulls."""
        if subscription.is_pull:
            subscription.credit -= count
        else:
            self.free += count

    def grow(self, subscription: Subscription, settled: int) -> None:
        """Double the credit of a consumer whose credit is in use and of which half is settled in one go.

        Its messages come and go in small rounds, each with a commit and a read. One that takes its time keeps what it
        began with, so that it holds no more from others.
        """
        credit = subscription.credit
        if credit <= len(subscription.in_flight) and credit <= 2 * settled:
            more = min(credit, subscription.credit_max - credit)
            subscription.credit += more
            self.free += more

    def line_up_peer(self, borrower: Borrower) -> None:
        """Put a peer with room in line, once; take one without room out."""
        has_room = borrower.limit > borrower.sent
        if has_room and not borrower.waiting:
            borrower.waiting = True
            if self.peers_in_line is None:
                self.peers_in_line = deque()
            self.peers_in_line.append(borrower)
        elif borrower.waiting and not has_room and self.peers_in_line is not None:
            borrower.waiting = False
            self.peers_in_line.remove(borrower)

    # One message is given away

    def hand_out(self, message: Message, out: Outcome) -> bool:
        """Give `message` to the next local consumer in line; False when none has room."""
        in_line = self.in_line
        while in_line:
            subscription = in_line.pop(0)
            subscription.waiting = False
            if subscription.closed:
                continue
            free = subscription.credit - len(subscription.in_flight)
            if free <= 0:
                continue
            self.give(message, subscription, out)
            if free > 1:
                subscription.waiting = True
                in_line.append(subscription)
            return True
        return False

    def give(self, message: Message, subscription: Subscription, out: Outcome) -> Delivery:
        """Put `message` into the hands of a consumer that is out of the line."""
        shared = self.shared
        shared.tag = tag = shared.tag + 1
        delivery = Delivery(tag, subscription, message)
        if subscription.in_flight is NOTHING_IN_FLIGHT:
            subscription.in_flight = {}
        subscription.in_flight[tag] = delivery
        shared.deliveries[tag] = delivery
        self.free -= 1
        options = message.envelope.options
        if subscription.ack_timeout_us or options is not None:
            timeout_us = options.ack_timeout_us if options is not None else 0
            timeout_us = timeout_us or subscription.ack_timeout_us
            if timeout_us and subscription.ack is not Ack.AUTO:
                delivery.timeout_us = timeout_us
                subscription.may_lose_unsent = True
        out.deliver(delivery)
        return delivery

    # The queue store

    def waiting(self) -> list[Message]:
        """Everything that is in memory and with no consumer, some of it settled: the levels in order, then what is
        delayed. There may be millions, so what looks at each of them must give way. The list takes 15 ms for 700,000.
        """
        found: list[Message] = []
        for level in self.levels:
            found.extend(level.ready)
            found.extend(level.tail or ())
        found.extend([entry[2] for entry in self.delayed or ()])
        return found

    def load(self, out: Outcome) -> None:
        """Ask for the next messages from the store, once."""
        if not self.is_loading:
            self.is_loading = True
            out.loads.append(self.name)
