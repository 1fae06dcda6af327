"""Dispatch of one queue: messages that this node owns go to consumers here, then to peers that borrow them.

A message never moves: it belongs to the node that accepted it, and peers with consumers only borrow it (docs/queues.md:
credit). Local consumers come first, round-robin among those with credit; then peers, round-robin among those
whose credit has room. What may happen to a message is the table in `lifecycle`; the order of messages is in
`priority_level`, what time does to them in `expiry`, and what is only in the store in `backlog`.

A message borrowed from a peer never waits here: it is delivered to a local consumer at once or returned to its owner.
"""

from collections import deque

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.consumer_class import PLAIN
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import NOTHING_IN_FLIGHT, Ack, Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.selective.dispatcher import SelectiveDispatcher
from qmq.broker.queues.state.context import QueueContext
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.queues.state.queue_state import MESSAGE_BYTES, QueueState

LOW_WATER = 250
"""A level with more in the store is filled up when it has fewer than this ready."""
LOW_WATER_BYTES = 2 << 20
"""The same for large messages, by the mean size of the queue's messages."""


class Queue(QueueState):
    """A queue that dispatches. Pure; every method adds what follows to an Outcome."""

    __slots__ = ("selective",)

    def __init__(self, name: str, rules: QueueRules, shared: QueueContext) -> None:
        super().__init__(name, rules, shared)
        self.selective: SelectiveDispatcher | None = SelectiveDispatcher(self) if rules.exclusive else None
        """Set when not every consumer may have every message."""

    # Messages come in

    def push(self, message: Message, now_us: int) -> None:
        """Take a new message of this node at the tail, or among the delayed ones."""
        self.held += 1
        self.held_bytes += len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes += len(message.body) + MESSAGE_BYTES
            self.shared.memory_messages += 1
        self.placed += 1
        message.place = self.placed
        options = message.envelope.options
        if options is None:
            plain = self.plain or self.level(PRIORITY_DEFAULT)
            if plain.behind:
                plain.append(message)
            else:
                plain.ready.append(message)
            return
        if options.group:
            self.pick().note_group()
        if options.is_timed:
            due_us = self.shared.clocks.due(message)
            if due_us > now_us:
                self.delay(message, due_us)
                return
            self.will_expire(self.shared.clocks.expiry(message))
        self.level(options.level).append(message)
        if options.exact and self.selective is not None:
            self.selective.back_in_line(message, options.level)

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
            self.shared.memory_messages += len(messages)
        level = self.plain or self.level(PRIORITY_DEFAULT)
        if level.behind:
            for message in messages:
                level.append(message)
        else:
            level.ready.extend(messages)

    def forget(self, message: Message) -> None:
        """Forget a settled message of this node; where it still stands in line it is skipped later."""
        message.settled = True
        if self.selective is not None:
            self.selective.not_lent(message)
        self.held -= 1
        self.held_bytes -= len(message.body)
        if message.sequence < 0:
            self.shared.memory_bytes -= len(message.body) + MESSAGE_BYTES
            self.shared.memory_messages -= 1

    def take_out(self, message: Message) -> bool:
        is_out = super().take_out(message)
        if is_out and self.selective is not None:
            self.selective.groups.out_of_line(message)
        return is_out

    def push_back(self, messages: list[Message]) -> None:
        """Put unsettled messages back at the head, in the order in which they once came in."""
        for message in reversed(messages):
            options = message.envelope.options
            priority = PRIORITY_DEFAULT if options is None else options.level
            self.level(priority).push_back(message)
            if options is not None and options.is_timed:
                self.will_expire(self.shared.clocks.expiry(message))
            if self.selective is not None:
                self.selective.back_in_line(message, priority)

    # Consumers and borrowers

    def pick(self) -> SelectiveDispatcher:
        """From now on not each consumer may have each message."""
        if self.selective is None:
            self.selective = SelectiveDispatcher(self)
        return self.selective

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
            if self.asking_borrowers is not None:
                self.asking_borrowers.pop(borrower, None)
            if self.selective is not None:
                self.selective.dismissed(borrower)

    # Messages go out

    def dispatch(self, out: Outcome) -> None:
        """Give ready messages away, the highest priority first, until no consumer has room or none is left."""
        self._dispatch(out)
        if self.asking_borrowers is not None and not self.is_loading:
            self._answer(self.asking_borrowers, out)

    def deliver_buffered(self, out: Outcome) -> None:
        """Consumers may have room: give them what peers have lent and waits here, also while nothing else is served."""
        if self.selective is not None and not self.rules.is_delivery_paused:
            self.selective.ordered_buffer.go_on(out)

    def _answer(self, asking_borrowers: "dict[Borrower, bool]", out: Outcome) -> None:
        """Let peers hear what they have asked for: that something waits, when they have no room; that nothing does,
        when they have some. Where they had room, a message that is lent answers as well."""
        is_waiting = not self.is_counted or any(level.ready or level.behind for level in self.levels)
        for borrower, had_room in list(asking_borrowers.items()):
            has_room = borrower.limit > borrower.sent
            if not had_room and (has_room or not is_waiting or self.selective is not None):
                continue
            del asking_borrowers[borrower]
            if has_room or not had_room:
                out.peer_waiting.setdefault(borrower.peer, {})[self.name] = not had_room
        if not asking_borrowers:
            self.asking_borrowers = None

    def _dispatch(self, out: Outcome) -> None:
        if self.rules.is_delivery_paused:
            return
        if self.selective is not None:
            self.selective.dispatch(out)
            return
        if not self.in_line and not self.peers_in_line:
            return
        if not self.is_counted:
            self.load(out)
            return
        if self.may_load_due(out.now_us):
            self.load(out)  # Became due while no consumer wanted it.
        for level in self.levels:
            if level.ready and not self._empty(level, out):
                if level.behind and self._is_low(len(level.ready)):
                    self.load(out)
                return
            if level.behind:
                # Nothing of a lower priority may overtake what the store still has of this one.
                self.load(out)
                return
        if self.may_load_due(out.now_us):
            self.load(out)

    def may_load_due(self, now_us: int) -> bool:
        """Whether what has become due in the store is to be loaded now.

        It stays in memory until it is delivered, and there may be millions. So the next page waits until the middle of
        the last one was reached. Not where there are several levels: one may have to wait long for another.
        """
        if not 0 < self.stored_due_us <= now_us:
            return False
        if not self.due_place or self.selective is not None or len(self.levels) != 1:
            return True
        ready = self.levels[0].ready
        return not ready or ready[0].place > self.due_place

    def _is_low(self, ready: int) -> bool:
        """Whether a level with so many ready is to be filled up."""
        return ready < LOW_WATER and ready * self.held_bytes < LOW_WATER_BYTES * self.held

    def _empty(self, level: PriorityLevel, out: Outcome) -> bool:
        """Give away what `level` has ready; False when a consumer's room ended before."""
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
            options = message.envelope.options
            if options is not None and options.is_timed and 0 < self.shared.clocks.expiry(message) <= out.now_us:
                ready.popleft()
                self.shared.expire(message, out)
                continue
            if self.hand_out(message, out) or self._lend(message, out):
                ready.popleft()
                continue
            return False
        return True

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
                if message.envelope.options is not None:
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
