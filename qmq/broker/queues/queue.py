"""One queue on one node: the messages this node owns, and who is in line for them.

A message never moves: it belongs to the node that accepted it, and peers with consumers only borrow it (6.4 of the
design: credit). Local consumers come first, round-robin among those with credit; then peers, round-robin among those
whose credit has room. What may happen to a message is the table in `life`; where messages wait is in `level`, what
time does to them in `aging`, and what is only in the store in `backlog`.

A message borrowed from a peer never waits here: it goes to a local consumer at once or back to its owner.

Surprising: a queue object is made when something happens in the queue and forgotten when nothing is in memory any
more. What it then still holds is only in the queue store, and it is not even counted until somebody wants it.
"""

import heapq
from collections import deque

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.consumer_class import PLAIN
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import NOTHING_IN_FLIGHT, Ack, Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.context import QueueContext
from qmq.broker.queues.priority_level import PriorityLevel
from qmq.broker.queues.selective.dispatcher import SelectiveDispatcher

LOW_WATER = 250
"""A lane with more in the store is filled up when it has fewer than this ready."""
LOW_WATER_BYTES = 2 << 20
"""The same for large ones, by the mean size of the queue's messages."""

MESSAGE_BYTES = 400
"""Of a message in memory, beside its body."""


class Queue:
    """Messages in order, consumers in line. Pure; every method adds what follows to an Outcome."""

    __slots__ = (
        "peer_rpc",
        "borrowers",
        "check_us",
        "delayed",
        "expires_us",
        "free",
        "held",
        "held_bytes",
        "in_line",
        "is_counted",
        "is_loading",
        "levels",
        "loaded_until_us",
        "name",
        "peers_in_line",
        "selective",
        "placed",
        "plain",
        "rules",
        "shared",
        "stored",
        "stored_bytes",
        "stored_due_us",
        "subscriptions",
        "wants_lowest",
    )

    def __init__(self, name: str, rules: QueueRules, shared: QueueContext) -> None:
        self.name = name
        self.rules = rules
        self.shared = shared
        self.levels: tuple[PriorityLevel, ...] = ()
        """One per priority that was seen, the highest first."""
        self.plain: PriorityLevel | None = None
        """The lane of the default priority."""
        self.placed = 0
        self.held = 0
        """Messages owned here, not settled, and in memory: ready, delayed, in flight and lent."""
        self.held_bytes = 0
        self.is_counted = not shared.has_stored
        """Whether it is known what the store holds of this queue. Until then every lane counts as behind."""
        self.is_loading = False
        self.wants_lowest = False
        """Room is needed: the next page is of the lowest priority, whose oldest messages go first."""
        self.stored = 0
        """Messages that are only in the store."""
        self.stored_bytes = 0
        self.stored_due_us = 0
        """When the next of them becomes due that was not when the queue was counted; 0: none."""
        self.loaded_until_us = 0
        """Delayed messages of the store that were due by then have been loaded, or come with the pages."""
        self.delayed: list[tuple[int, int, Message]] | None = None
        """A heap: due time, place, message."""
        self.expires_us = 0
        """When to look for expired messages next; 0: nothing here expires."""
        self.check_us = 0
        # Lists, not deques and dictionaries: a queue has few consumers, and there may be a million queues.
        self.subscriptions: list[Subscription] = []
        self.free = 0
        """How many messages the local consumers may still be given, all together."""
        self.in_line: list[Subscription] | None = None
        self.borrowers: dict[str, Borrower] | None = None
        self.peers_in_line: deque[Borrower] | None = None
        self.peer_rpc: dict[Borrower, bool] | None = None
        """Peers that want to hear whether messages wait for them here; True: they had room when they asked."""
        self.selective: SelectiveDispatcher | None = SelectiveDispatcher(self) if rules.exclusive else None
        """Set when not everybody may have every message."""

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
            while level.ready:
                message = level.ready.popleft()
                if not message.settled:
                    return message
            if level.behind:
                return None
        return None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody here or on a peer consumes this queue."""
        return bool(self.subscriptions or self.borrowers)

    @property
    def idle(self) -> bool:
        """Nothing is kept here, and nobody waits for anything: the queue object may be forgotten."""
        return not self.held and not self.is_wanted and not self.is_loading

    # Messages come in

    def level(self, priority: int) -> PriorityLevel:
        """The lane of `priority`, made on first use."""
        for level in self.levels:
            if level.priority == priority:
                return level
        level = PriorityLevel(priority, behind=not self.is_counted)
        if priority == PRIORITY_DEFAULT:
            self.plain = level
        # Nearly all of a million queues have one.
        self.levels = (
            tuple(sorted((*self.levels, level), key=lambda level: -level.priority)) if self.levels else (level,)
        )
        return level

    def push(self, message: Message, now_us: int) -> None:
        """Take a new message of this node at the tail, or among the delayed ones."""
        self.held += 1
        self.held_bytes += len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes += len(message.body) + MESSAGE_BYTES
        self.placed += 1
        message.place = self.placed
        terms = message.envelope.terms
        if terms is None:
            plain = self.plain or self.level(PRIORITY_DEFAULT)
            if plain.behind:
                plain.append(message)
            else:
                plain.ready.append(message)
            return
        if terms.group:
            self.pick().note_group()
        if terms.is_timed:
            due_us = self.shared.clocks.due(message)
            if due_us > now_us:
                self.delay(message, due_us)
                return
            self.will_expire(self.shared.clocks.expiry(message))
        self.level(terms.priority).append(message)

    def push_run(self, messages: list[Message]) -> None:
        """As `push`, for messages that ask for nothing, all durable or none."""
        body_bytes = 0
        place = self.placed
        for message in messages:
            place += 1
            message.place = place
            body_bytes += len(message.body)
        self.placed = place
        self.held += len(messages)
        self.held_bytes += body_bytes
        if messages[0].sequence < 0:
            self.shared.memory_bytes += body_bytes + len(messages) * MESSAGE_BYTES
        level = self.plain or self.level(PRIORITY_DEFAULT)
        if level.behind:
            for message in messages:
                level.append(message)
        else:
            level.ready.extend(messages)

    def will_expire(self, expires_us: int) -> None:
        """Look for expired messages by then; 0: it never expires."""
        if expires_us and (not self.expires_us or expires_us < self.expires_us):
            self.expires_us = expires_us
            self.shared.deadlines.watch(self, expires_us)

    def count_in(self, message: Message) -> None:
        """A message that stands in no line belongs to this queue. (`push` does the same in place: it is in a hurry.)"""
        self.held += 1
        self.held_bytes += len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes += len(message.body) + MESSAGE_BYTES
        self.placed += 1
        message.place = self.placed

    def delay(self, message: Message, due_us: int) -> None:
        """Keep a message that is held here until it is due."""
        if self.delayed is None:
            self.delayed = []
        heapq.heappush(self.delayed, (due_us, message.place, message))
        self.shared.deadlines.watch(self, due_us)

    def gone(self, message: Message) -> None:
        """Forget a settled message of this node; where it still stands in line it is skipped later."""
        message.settled = True
        if self.selective is not None:
            self.selective.not_lent(message)
        self.held -= 1
        self.held_bytes -= len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes -= len(message.body) + MESSAGE_BYTES

    def push_back(self, messages: list[Message]) -> None:
        """Put unsettled messages back at the head, in the order in which they once came in."""
        for message in reversed(messages):
            terms = message.envelope.terms
            priority = PRIORITY_DEFAULT if terms is None else terms.priority
            self.level(priority).push_back(message)
            if terms is not None and terms.is_timed:
                self.will_expire(self.shared.clocks.expiry(message))
            if self.selective is not None:
                self.selective.back_in_line(message, priority)

    def take_out(self, message: Message) -> bool:
        """Take a message out of line; False when it stands in none."""
        for level in self.levels:
            for line in (level.ready, level.fresh or []):
                if message in line:
                    line.remove(message)
                    return True
        return False

    def pick(self) -> SelectiveDispatcher:
        """From now on not everybody may have every message."""
        if self.selective is None:
            self.selective = SelectiveDispatcher(self)
        return self.selective

    # Who is in line

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

    def admit(self, borrower: Borrower) -> None:
        """A peer may borrow from this queue."""
        selective = self.pick() if borrower.lent_as else self.selective
        if self.borrowers is None:
            self.borrowers = {}
        is_new = borrower.key not in self.borrowers
        self.borrowers[borrower.key] = borrower
        if selective is not None and is_new:
            selective.admitted(borrower)

    def dismiss(self, borrower: Borrower) -> None:
        """A peer may not borrow any more."""
        if self.borrowers is not None and self.borrowers.pop(borrower.key, None) is not None:
            if not self.borrowers:
                self.borrowers = None
            if self.peer_rpc is not None:
                self.peer_rpc.pop(borrower, None)
            if self.selective is not None:
                self.selective.dismissed(borrower)

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

    # Messages go out

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
        terms = message.envelope.terms
        if subscription.ack_timeout_us or terms is not None:
            timeout_us = terms.ack_timeout_us if terms is not None else 0
            timeout_us = timeout_us or subscription.ack_timeout_us
            if timeout_us and subscription.ack is not Ack.AUTO:
                delivery.timeout_us = timeout_us
                subscription.is_timed = True
        out.deliver(delivery)
        return delivery

    def _hand_out_run(self, subscription: Subscription, ready: deque[Message], out: Outcome) -> None:
        """Give the only consumer in line what it has room for, up to the first message that asks for something."""
        room = subscription.credit - len(subscription.in_flight)
        if room <= 0 or subscription.closed or subscription.ack_timeout_us or subscription.ack is Ack.CLIENT:
            return
        if subscription.in_flight is NOTHING_IN_FLIGHT:
            subscription.in_flight = {}
        in_flight, shared = subscription.in_flight, self.shared
        deliveries, tag = shared.deliveries, shared.tag
        run: list[Delivery] = []
        while ready and len(run) < room:
            message = ready[0]
            if not message.settled:
                if message.envelope.terms is not None:
                    break
                tag += 1
                delivery = Delivery(tag, subscription, message)
                in_flight[tag] = delivery
                deliveries[tag] = delivery
                run.append(delivery)
            ready.popleft()
        if run:
            shared.tag = tag
            self.free -= len(run)
            if len(run) == room:
                self.leave_line(subscription)
            out.deliver_run(subscription, run)

    def dispatch(self, out: Outcome) -> None:
        """Give ready messages away, the highest priority first, until nobody has room or none is left."""
        self._dispatch(out)
        if self.peer_rpc is not None and not self.is_loading:
            self._answer(self.peer_rpc, out)

    def _answer(self, peer_rpc: "dict[Borrower, bool]", out: Outcome) -> None:
        """Let peers hear what they have asked for: that something waits, when they have no room; that nothing does,
        when they have some. Where they had room, a message that is lent answers as well."""
        is_waiting = not self.is_counted or any(level.ready or level.behind for level in self.levels)
        for borrower, had_room in list(peer_rpc.items()):
            has_room = borrower.limit > borrower.sent
            if not had_room and (has_room or not is_waiting or self.selective is not None):
                continue
            del peer_rpc[borrower]
            if has_room or not had_room:
                out.peer_waiting.setdefault(borrower.peer, {})[self.name] = not had_room
        if not peer_rpc:
            self.peer_rpc = None

    def _dispatch(self, out: Outcome) -> None:
        if self.selective is not None:
            self.selective.dispatch(out)
            return
        if not self.in_line and not self.peers_in_line:
            return
        if not self.is_counted:
            self.load(out)
            return
        if 0 < self.stored_due_us <= out.now_us:
            self.load(out)  # Became due while nobody wanted it.
        for level in self.levels:
            if level.ready and not self._empty(level, out):
                if level.behind and self._is_low(len(level.ready)):
                    self.load(out)
                return
            if level.behind:
                # Nothing of a lower priority may overtake what the store still has of this one.
                self.load(out)
                return

    def _is_low(self, ready: int) -> bool:
        """Whether a lane with so many ready is to be filled up."""
        return ready < LOW_WATER and ready * self.held_bytes < LOW_WATER_BYTES * self.held

    def _empty(self, level: PriorityLevel, out: Outcome) -> bool:
        """Give away what `level` has ready; False when somebody's room ended before."""
        ready = level.ready
        while ready:
            if self.in_line is not None and len(self.in_line) == 1 and len(ready) > 1:
                self._hand_out_run(self.in_line[0], ready, out)
                if not ready:
                    break
            message = ready[0]
            if message.settled:
                ready.popleft()
                continue
            terms = message.envelope.terms
            if terms is not None and terms.is_timed and 0 < self.shared.clocks.expiry(message) <= out.now_us:
                ready.popleft()
                self.shared.expire(self, message, out)
                continue
            if self.hand_out(message, out) or self._lend(message, out):
                ready.popleft()
                continue
            return False
        return True

    def _lend(self, message: Message, out: Outcome) -> bool:
        """Give `message` to the next peer in line; False when none has room."""
        line = self.peers_in_line
        while line:
            borrower = line.popleft()
            borrower.waiting = False
            if borrower.limit <= borrower.sent:
                continue
            borrower.sent += 1
            message.lent_as = PLAIN
            borrower.lent[message.dot] = message
            out.peer_deliveries.setdefault(borrower.peer, []).append(message)
            self.line_up_peer(borrower)
            return True
        return False

    # Beyond what is in line

    def waiting(self) -> list[Message]:
        """Everything that is in memory and with nobody, in no particular order."""
        found = [message for level in self.levels for message in level.ready]
        found += [message for level in self.levels for message in level.fresh or ()]
        return found + [entry[2] for entry in self.delayed or ()]

    def load(self, out: Outcome) -> None:
        """Ask for the next messages from the store, once."""
        if not self.is_loading:
            self.is_loading = True
            out.loads.append(self.name)
