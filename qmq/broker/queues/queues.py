"""All queues of one node: taking messages in, handing them out, settling them, taking them back.

Who owns what: a durable message accepted here (by this or an earlier incarnation of this node) belongs to this node
until a settle for its dot is seen, from whichever node. It stands in `owned` while it is in memory; the rest is in the
queue store (`paging`). A settle may arrive before its message when this node lost its disk and gets both back from
peers; such dots wait in `settled_early`.

Long for one module: taking in, handing out, settling and taking back move a message between the same tables, and each
must leave them so that the other three hold.
"""

from collections.abc import Callable, Mapping
from typing import Final

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.consumers.subscription import Ack, Asks, Delivery, Subscription
from qmq.broker.messages.dedup import Dedup
from qmq.broker.messages.lifecycle import COMES_BACK, Back, MessageState
from qmq.broker.messages.message import MAYBE_SEEN, SEEN, Envelope, Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.queues import expiry
from qmq.broker.queues.context import QueueContext
from qmq.broker.queues.dead_letters import (
    DELIVERY_LIMIT,
    EXPIRED,
    OVERFLOW,
    REJECTED,
    DeadLetters,
    Publish,
    letter_bytes_of,
)
from qmq.broker.queues.first_attempts import FirstAttempts
from qmq.broker.queues.lending.handoff import Handoff
from qmq.broker.queues.lending.isolated_mode import IsolatedMode
from qmq.broker.queues.paging import backlog
from qmq.broker.queues.paging.pager import Pager
from qmq.broker.queues.paging.stored_names import StoredNames
from qmq.broker.queues.postponed import Postponed
from qmq.broker.queues.queue import MESSAGE_BYTES, Queue
from qmq.dots import Dot, Origin

_new_dot: Final = tuple.__new__
"""The constructor of a named tuple takes twice as long, and this is done for every message that is settled."""

FULL_PAUSE_US = 1_000_000
"""On a full disk, without the right to serve, or beside a transaction: until it is tried again to do something about an
expired message."""


class Queues:
    """The queues of this node by destination. `held` stops all dispatching until the node has caught up and may."""

    def __init__(
        self,
        dedup: Dedup,
        origin: Origin,
        rules_of: Callable[[str], QueueRules],
        publish: Publish,
        is_disk_full: Callable[[], bool] = lambda: False,
        defaults_of: Callable[[str], Mapping[str, str]] = lambda name: {},
    ) -> None:
        self.node = origin.node
        self.rules_of = rules_of
        self.by_name: dict[str, Queue] = {}
        self.stored_names = StoredNames(0)
        """Queues that are only in the store."""
        self.shared = QueueContext(origin.node, self._expired)
        self.shared.is_fenced = self._is_fenced
        self.deliveries = self.shared.deliveries
        self.deadlines = self.shared.deadlines
        self.owned: dict[Origin, dict[int, Message]] = {}
        self.paging = self.shared.paging = Pager(origin, self)
        self.lent = self.shared.lent
        self.settled_early: set[Dot] = set()
        self.handoff = Handoff(self, origin.node)
        self.isolated_mode = IsolatedMode(self)
        self.postponed = Postponed(self)
        self.first_attempts = FirstAttempts(self, dedup)
        self.serves_own = True
        """Whether this node hands out what it accepts, and not another that has taken over."""
        self.held = False
        self.is_starting = False
        """Whether the node still learns what its peers have settled and moved meanwhile."""
        # Sessions that have not even read what they should have acknowledged by now.
        self.not_reading: dict[int, None] = {}
        # Whether some queue may drop messages instead of refusing them.
        self.any_overflows = False
        # Queues whose free credit may have changed since the peers were last told.
        self.touched: dict[str, None] = {}
        # Owner -> dots borrowed from it and settled here -> sequence of our settle record, until it has that record.
        self.settled_here: dict[str, dict[Dot, int]] = {}
        self._dead_letters = DeadLetters(publish, defaults_of)
        # A letter is a new message: the space that is left is for settles.
        self._is_disk_full = self.shared.is_disk_full = is_disk_full

    def get(self, name: str) -> Queue:
        """The queue called `name`, made on first use."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name, self.rules_for(name), self.shared)
            if self.stored_names.count:
                self.stored_names.discard(name)
        return queue

    def forget_if_idle(self, queue: Queue) -> None:
        """Nothing about an unused queue is kept in memory."""
        if queue.idle:
            self.drop(queue)

    def drop(self, queue: Queue) -> None:
        """Forget the queue object: nothing is left in memory of what is in the queue."""
        # Its deadlines, too: another object may bear the name when they come.
        self.deadlines.forget(queue)
        if self.by_name.get(queue.name) is queue:
            del self.by_name[queue.name]
            if queue.stored or not queue.is_counted:
                self.stored_names.add(queue.name)

    def rules_for(self, name: str) -> QueueRules:
        """The rules of the queue called `name`, which need not be here."""
        rules = self.rules_of(name)
        if rules.overflow != "refuse":
            self.any_overflows = True
        return rules

    def rules_changed(self, queues: list[Queue]) -> None:
        """The operator has decided anew about these. What is in a queue stays there."""
        for queue in queues:
            queue.rules = self.rules_for(queue.name)

    def dispatch(self, queue: Queue, out: Outcome) -> None:
        """Hand out what is ready, unless the node holds its messages back after a restart."""
        if not self.held:
            queue.dispatch(out)
        elif self.isolated_mode.waiting:
            self.isolated_mode.go_on(queue, out)

    def settle_turns(self, out: Outcome) -> None:
        """It may be somebody else's turn: after a consumer came or went, or what was lent is settled or back."""
        if self.shared.turns:
            self._check_turns(out)
        while self.shared.awake:
            awake, self.shared.awake = self.shared.awake, {}
            for queue in awake:
                if self.by_name.get(queue.name) is queue and queue.selective is not None:
                    self.touched[queue.name] = None
                    if not queue.selective.is_needed:
                        queue.selective = None
                    self.dispatch(queue, out)
                    self.forget_if_idle(queue)

    def release_hold(self, out: Outcome) -> None:
        """The node may hand out: everything that waited goes out."""
        self.held = False
        self.postponed.end(out)
        for queue in list(self.by_name.values()):
            queue.dispatch(out)

    # In

    def push(self, message: Message, out: Outcome) -> None:
        """Take in a message that this node serves, or has accepted: that goes to its server by the journal."""
        if message.envelope.durable:
            if not self.serves_own and message.origin.node == self.node:
                if self.node in self.handoff.gathering:
                    self.handoff.gathering[self.node].messages.append(message)
                return
            by_sequence = self.owned.get(message.origin)
            if by_sequence is None:
                by_sequence = self.owned[message.origin] = {}
            by_sequence[message.sequence] = message
        name = message.envelope.destination
        queue = self.by_name.get(name) or self.get(name)
        if self.held and self.isolated_mode.may_take(queue, message):
            queue.count_in(message)
            self.isolated_mode.take(queue, message, out)
            return
        queue.push(message, out.now_us)
        if not self.held:
            queue.dispatch(out)
            if not queue.is_counted and queue.is_bounded:
                queue.load(out)

    def may_push_run(self, envelope: Envelope, count: int, body_bytes: int, memory_bytes_max: int) -> bool:
        """Whether so many messages of a client have room for certain, and only their order decides about them."""
        queue = self.by_name.get(envelope.destination)
        if queue is None or queue.is_bounded or envelope.terms is not None or self.held or not self.serves_own:
            return False
        return envelope.durable or self.shared.memory_bytes + body_bytes + count * MESSAGE_BYTES <= memory_bytes_max

    def push_run(self, messages: list[Message], out: Outcome) -> None:
        """As `push`, for messages of one envelope of which `may_push_run` was asked in the same breath."""
        first = messages[0]
        if first.envelope.durable:
            by_sequence = self.owned.get(first.origin)
            if by_sequence is None:
                by_sequence = self.owned[first.origin] = {}
            for message in messages:
                by_sequence[message.sequence] = message
        queue = self.by_name[first.envelope.destination]
        queue.push_run(messages)
        queue.dispatch(out)

    def take_in(self, message: Message, out: Outcome) -> None:
        """A message of the journal or of a peer's: `push` it, unless a peer's consumer has it already."""
        dot = message.dot
        if dot in self.settled_early:
            self.settled_early.discard(dot)
        elif self.first_attempts.is_superseded(message):
            self.settle_outside_memory(message, out)
        elif not (self.handoff.elsewhere and self.lend_elsewhere(message)):
            # Its owner may have handed it out before it was silent.
            message.attempts = message.attempts or MAYBE_SEEN
            self.push(message, out)

    def lend_elsewhere(self, message: Message) -> bool:
        """Count a message as lent to the peer whose consumers have it since before it was served here, if any has."""
        peer = self.handoff.elsewhere.pop(message.dot, None)
        if peer is None:
            return False
        message.attempts = message.attempts or MAYBE_SEEN
        self.owned.setdefault(message.origin, {})[message.sequence] = message
        queue = self.get(message.envelope.destination)
        queue.count_in(message)
        self.count_as_lent(message, peer)
        return True

    def count_as_lent(self, message: Message, peer: str) -> None:
        """A message that stands in no line is with consumers of `peer`."""
        self.lent.setdefault(peer, {})[message.dot] = message
        queue = self.get(message.envelope.destination)
        if queue.selective is not None:
            queue.selective.outstanding.lend(message, peer)

    def restore(self, message: Message) -> None:
        """Take in an owned message that only the journal has, at start; nothing is handed out yet."""
        self.paging.recall_attempts(message)
        if not message.attempts and not self.paging.is_unseen:
            message.attempts = MAYBE_SEEN
        self.owned.setdefault(message.origin, {})[message.sequence] = message
        self.get(message.envelope.destination).push(message, 0)

    def make_room(self, queue: Queue, messages: int, body_bytes: int, out: Outcome) -> bool:
        """Drop the oldest messages that wait, lowest priority first, until that much fits.

        False when everything is with consumers.
        """
        while not queue.fits(messages, body_bytes):
            oldest = queue.oldest()
            if oldest is None:
                # What must go is only in the store. Until it is here the queue is longer than it may be.
                queue.wants_lowest = True
                queue.load(out)
                return backlog.has_more(queue) or not queue.is_counted
            if out.letters_left is not None and queue.rules.keeps_dropped:
                out.letters_left -= letter_bytes_of(oldest)
                if out.letters_left < 0:
                    # One transaction is one batch: until the next message comes the queue is longer than it may be.
                    return True
            self._drop(queue, oldest, OVERFLOW, out)
        return True

    def drop_newest(self, envelope: Envelope, body: bytes, origin: Origin, out: Outcome) -> None:
        """A message that does not fit goes where the queue's dropped messages go, and is never in the queue."""
        rules = self.rules_of(envelope.destination)
        if rules.keeps_dropped and rules.dead_letter:
            self._dead_letters.accept(Message(envelope, body, origin, 0, out.now_us), OVERFLOW, rules.dead_letter, out)

    # Consumers

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Put a consumer in line and give it what is ready."""
        queue = self.get(subscription.destination)
        is_picky = subscription.exclusive or subscription.selector is not None or subscription.window is not None
        selective = queue.pick() if is_picky or queue.rules.exclusive else queue.selective
        if selective is not None:
            selective.join(subscription, out.now_us)
        queue.subscriptions.append(subscription)
        if selective is not None:
            selective.joined()
        queue.free += subscription.credit
        if not subscription.ack_timeout_us:
            subscription.ack_timeout_us = queue.rules.ack_timeout_us
        queue.line_up(subscription)
        self.touched[queue.name] = None
        self.dispatch(queue, out)

    def cease(self, subscription: Subscription, out: Outcome) -> None:
        """Give a consumer nothing more; what it has in flight stays with it. A second call does nothing."""
        queue = self.get(subscription.destination)
        if subscription not in queue.subscriptions:
            return
        queue.subscriptions.remove(subscription)
        queue.leave_line(subscription)
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
            self.settle([delivery for delivery in in_flight if delivery.sent], out)
            in_flight = [delivery for delivery in in_flight if not delivery.sent]
        self.give_back(in_flight, why, out)
        self.touched[queue.name] = None
        self.forget_if_idle(queue)

    # Settling

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries are done: record it where the messages are durable, tell owners of borrowed ones.

        All of one subscription. The records are made by `Broker.finish`.
        """
        if not deliveries:
            return
        subscription = deliveries[0].subscription
        queue = self.get(subscription.destination)
        in_flight = subscription.in_flight
        own = queue.name
        queue.free += len(deliveries)
        if queue.selective is not None:
            queue.selective.finished(deliveries)
        message_ids = subscription.message_ids
        begun, origin, gone = self.paging.begun, self.paging.origin, self.paging.gone
        all_deliveries, owned = self.deliveries, self.owned
        settled: list[Dot] = []
        for delivery in deliveries:
            tag = delivery.tag
            del in_flight[tag]
            del all_deliveries[tag]
            message = delivery.message
            if message_ids is not None:
                message_ids.pop(message.message_id, None)
            if message.settled:
                if message.sequence > 0:
                    # Another consumer was quicker; a level that this one asks for needs a record of this node.
                    settled.append(message.dot)
                continue
            if message.owner is not None:
                self._settle_borrowed(message, out)
                continue
            queue.gone(message)
            sequence = message.sequence
            if sequence > 0:
                its = message.origin
                owned[its].pop(sequence, None)
                dot = _new_dot(Dot, (its, sequence))
                settled.append(dot)
                if sequence <= begun or (its is not origin and its != origin):
                    gone.add(own, its, sequence, 0)
        if settled:
            out.settles.setdefault(own, []).extend(settled)
        if subscription.window is not None:
            self._pass_on(queue, subscription, len(deliveries), out)
        elif not subscription.waiting:
            queue.line_up(subscription)
        self.touched[own] = None
        # A queue that is not counted may have messages in the store only, and asks for them when a consumer has room.
        if (queue.levels or queue.selective is not None or not queue.is_counted) and not self.held:
            queue.dispatch(out)
        elif self.isolated_mode.waiting:
            self.isolated_mode.go_on(queue, out)
        if not queue.held and not queue.subscriptions:
            self.forget_if_idle(queue)

    def _pass_on(self, queue: Queue, subscription: Subscription, count: int, out: Outcome) -> None:
        """So many messages of a client with a window are done: the next of its subscriptions has its turn."""
        window = subscription.window
        assert window is not None
        if window.room <= 0:
            for other in window.subscriptions:
                self.touched[other.destination] = None
        window.held -= count
        if window.turn is not subscription:
            queue.leave_line(subscription)
            if not subscription.closed and subscription.free > 0:
                window.wait(subscription)
        self._go_round(window, out)

    def _go_round(self, window: ConnectionPrefetch[Subscription], out: Outcome) -> None:
        """There may be room: the next of the client's subscriptions has its turn, and so on."""
        while window.room > 0:
            following = window.next()
            if following is None:
                break
            if not following.closed and following.free > 0:
                its = self.get(following.destination)
                its.line_up(following)
                self.dispatch(its, out)
                if following.waiting and window.turn is None and self._may_come(following):
                    its.leave_line(following)
                    window.turn = following
                    self.shared.turns[following] = None
                    self.touched[its.name] = None

    def _may_come(self, subscription: Subscription) -> bool:
        return not subscription.lent_as and subscription.destination in self.shared.waiting_elsewhere

    def end_turns_of(self, queue_name: str) -> None:
        """A message for the places that are kept is here: they are free for it."""
        for subscription in self.shared.turns:
            if subscription.destination == queue_name:
                self._end_turn(subscription)

    def _end_turn(self, subscription: Subscription) -> None:
        window = subscription.window
        if window is not None and window.turn is subscription:
            window.turn = None
            if not subscription.closed:
                self.get(subscription.destination).line_up(subscription)

    def _check_turns(self, out: Outcome) -> None:
        """Keep no place for what does not come any more; others may have it."""
        for subscription in list(self.shared.turns):
            window = subscription.window
            assert window is not None
            if window.turn is not subscription or subscription.closed or not self._may_come(subscription):
                del self.shared.turns[subscription]
                self._end_turn(subscription)
                self.touched[subscription.destination] = None
                self._go_round(window, out)

    def _settle_borrowed(self, message: Message, out: Outcome) -> None:
        message.settled = True
        dot = message.dot
        owner = message.owner or ""
        if dot.origin.node in self.handoff.gathering:
            self.handoff.gathering[dot.origin.node].settles.append((message.envelope.destination, dot, None))
        if message.envelope.durable:
            out.settles.setdefault(message.envelope.destination, []).append(dot)
            out.borrowed_settled[dot] = owner
            out.peer_settled_after.setdefault(owner, []).append(dot)
        else:
            out.peer_settled_now.setdefault(owner, []).append(dot)

    def settled_elsewhere(self, queue_name: str, dot: Dot, have: int, record: Dot | None) -> None:
        """A settle of another node (or of an earlier life of this one) names `dot`.

        Only dots of served nodes' origins matter here, the rest is the checkpoint's business. Where the message
        stands in line or in flight it is only marked, and skipped later. `have` is the sequence up to which the
        dot's origin is known here; `record` the settle record, None when only its node's word has come yet.
        """
        handoff = self.handoff
        if handoff.elsewhere:
            handoff.elsewhere.pop(dot, None)
        if dot.origin.node not in handoff.serves:
            if dot.origin.node in handoff.gathering:
                handoff.gathering[dot.origin.node].settles.append((queue_name, dot, record))
            return
        message = self.owned.get(dot.origin, {}).pop(dot.sequence, None)
        if message is None:
            if dot.sequence > have:
                self.settled_early.add(dot)
            else:
                self.paging.settled_unseen(queue_name, dot, record)
            return
        # The peer's own word about it may have been lost with a link.
        for lent in self.lent.values():
            lent.pop(dot, None)
        queue = self.get(message.envelope.destination)
        queue.gone(message)
        self.paging.settled_by(queue.name, dot, record)
        self.forget_if_idle(queue)

    def settle_in_memory(self, message: Message, out: Outcome) -> None:
        """A message of a served node needs no consumer; one that has it may go on."""
        queue, dot = message.envelope.destination, message.dot
        out.settles.setdefault(queue, []).append(dot)
        self.settled_elsewhere(queue, dot, dot.sequence, None)

    def settle_outside_memory(self, message: Message, out: Outcome) -> None:
        """As `settle_in_memory`, for a message that comes in, or that the queue store gives."""
        queue, dot = message.envelope.destination, message.dot
        self.handoff.elsewhere.pop(dot, None)
        self.paging.gone.add(queue, *dot, 0)
        out.settles.setdefault(queue, []).append(dot)

    # Back

    def give_back(self, deliveries: list[Delivery], why: Back, out: Outcome) -> None:
        """These deliveries come back: own messages go where `life` says, borrowed ones to their owner, which decides.

        All of one subscription, in delivery order. Of a consumer that has gone, nothing was seen that was not sent.
        """
        if not deliveries:
            return
        has_gone = why is Back.RELEASED or why is Back.LEFT
        subscription = deliveries[0].subscription
        queue = self.get(subscription.destination)
        back: list[Return] = []
        queue.free += len(deliveries)
        if queue.selective is not None:
            queue.selective.finished(deliveries)
        asks = subscription.asks
        for delivery in deliveries:
            del subscription.in_flight[delivery.tag]
            del self.deliveries[delivery.tag]
            message = delivery.message
            if subscription.message_ids is not None:
                subscription.message_ids.pop(message.message_id, None)
            if message.settled:
                continue
            returned = Return(message, Back.UNSEEN if has_gone and not delivery.sent else why, asks)
            if message.owner is None:
                back.append(returned)
            else:
                out.peer_returns.setdefault(message.owner, []).append(returned)
        if subscription.window is None:
            queue.line_up(subscription)
        self.touched[queue.name] = None
        self.take_back(queue, back, out)
        if subscription.window is not None:
            self._pass_on(queue, subscription, len(deliveries), out)

    def take_back(self, queue: Queue, returns: list[Return], out: Outcome) -> None:
        """Own messages, out of everybody's hands again and in their old order."""
        for message, why, _ in returns:
            if why is Back.LEFT:
                message.attempts = message.attempts if message.attempts > 0 else SEEN
            elif why is not Back.UNSEEN:
                message.attempts = max(message.attempts, 0) + 1
        self.put_back(queue, returns, out)
        self.dispatch(queue, out)
        self.forget_if_idle(queue)

    def put_back(self, queue: Queue, returns: list[Return], out: Outcome) -> None:
        """Each goes where `_fate` says; its failure is counted."""
        rules = queue.rules
        again: list[Message] = []
        for returned in returns:
            message, why, asks = returned
            state, target = self._fate(queue, message.attempts, why, asks)
            if state is MessageState.DEAD and self.postponed.must_wait(queue, message):
                self.postponed.waiting.append(returned)
                state = MessageState.READY
            if state is not MessageState.DEAD and why is not Back.UNSEEN and why is not Back.LEFT:
                self._note_attempts(message, out)
            if state is MessageState.READY:
                again.append(message)
            elif state is MessageState.DELAYED:
                wait_us = (
                    rules.back_off(message.attempts)
                    if asks is None or asks.redelivery_us is None
                    else asks.redelivery_us
                )
                if wait_us:
                    queue.delay(message, out.now_us + wait_us)
                else:
                    again.append(message)
            else:
                reason = REJECTED if why is Back.REJECTED else DELIVERY_LIMIT
                self._dead_letter(queue, message, reason, target, out)
        if again and self.isolated_mode.after is not None:
            again = self.isolated_mode.give_back(queue, again)
        queue.push_back(again)

    def _fate(self, queue: Queue, attempts: int, why: Back, asks: Asks | None) -> tuple[MessageState, str]:
        """What becomes of a message that has come back so often, and where its letter goes, if there is one."""
        rules = queue.rules
        limit = rules.delivery_limit if asks is None or asks.delivery_limit is None else asks.delivery_limit
        target = rules.dead_letter if asks is None or asks.dead_letter is None else asks.dead_letter
        below, at_limit = COMES_BACK[why]
        state = at_limit if limit and attempts >= limit else below
        if state is MessageState.DEAD and target == queue.name:
            # It is among the dead letters already: there it stays until somebody takes it.
            state = MessageState.DELAYED
        if state is MessageState.DEAD and target and self._is_disk_full():
            state = MessageState.DELAYED
        return state, target

    def letter_bytes(self, delivery: Delivery, why: Back) -> int:
        """What the dead letter takes that a NACK of `delivery` leads to; 0 where it leads to none here."""
        message = delivery.message
        if message.settled or message.owner is not None:
            return 0
        subscription = delivery.subscription
        queue = self.get(subscription.destination)
        state, target = self._fate(queue, max(message.attempts, 0) + 1, why, subscription.asks)
        return letter_bytes_of(message) if state is MessageState.DEAD and target else 0

    def _note_attempts(self, message: Message, out: Outcome) -> None:
        """A message has come back: recorded, so that neither a crash nor another node makes it young again.

        Not on a full disk: what space is left there is for settles.
        """
        if message.sequence > 0 and not self._is_disk_full():
            out.attempts.setdefault(message.envelope.destination, {})[message.dot] = message.attempts

    def failed_before(self, counts: Mapping[Dot, int]) -> None:
        """A record of whoever serves or served them, perhaps of an earlier life of this node, says how often these have
        come back."""
        for dot, count in counts.items():
            node = dot.origin.node
            message = self.owned.get(dot.origin, {}).get(dot.sequence)
            if message is not None:
                message.attempts = max(message.attempts, count)
            elif node in self.handoff.gathering or (self.shared.has_stored and node in self.handoff.serves):
                self.paging.failed_unseen(dot, count)

    def _dead_letter(self, queue: Queue, message: Message, reason: str, target: str, out: Outcome) -> None:
        """An own message that no consumer has is done with; with a `target`, a letter tells of it there."""
        queue.gone(message)
        if not message.envelope.durable:
            if target:
                self._dead_letters.accept(message, reason, target, out)
            return
        self.owned[message.origin].pop(message.sequence, None)
        if self.paging.may_be_stored(message):
            self.paging.gone.add(queue.name, message.origin, message.sequence, 0)
        self._settle_dead(queue, message, reason, target, out)

    def _settle_dead(self, queue: Queue, message: Message, reason: str, target: str, out: Outcome) -> None:
        """Record that a durable message of `queue` is done with, in one with its letter where there is one."""
        dot = message.dot
        record = self._dead_letters.accept(message, reason, target, out) if target else 0
        if record:
            self.paging.gone.recorded(queue.name, [dot], record)
        else:
            out.settles.setdefault(queue.name, []).append(dot)

    def _drop(self, queue: Queue, message: Message, reason: str, out: Outcome) -> None:
        rules = queue.rules
        target = rules.dead_letter if rules.keeps_dropped and rules.dead_letter != queue.name else ""
        self._dead_letter(queue, message, reason, target, out)

    def expire_stored(self, messages: list[Message], out: Outcome) -> None:
        """The time of these messages of the store has passed; those in memory see to it themselves."""
        for message in messages:
            if self._is_disk_full() and self.rules_for(message.envelope.destination).keeps_dropped:
                continue
            if self.paging.take_stored(message):
                queue = self.get(message.envelope.destination)
                backlog.stored_gone(queue, len(message.body))
                rules = queue.rules
                target = rules.dead_letter if rules.keeps_dropped and rules.dead_letter != queue.name else ""
                self._settle_dead(queue, message, EXPIRED, target, out)
                self.forget_if_idle(queue)

    def _expired(self, queue: Queue, message: Message, out: Outcome) -> None:
        # A transaction is one batch, and has no room for letters of what happens to expire beside it.
        must_wait = self._is_disk_full() or out.letters_left is not None
        if self._is_fenced() or (queue.rules.keeps_dropped and queue.rules.dead_letter and must_wait):
            queue.delay(message, out.now_us + FULL_PAUSE_US)
            return
        self._drop(queue, message, EXPIRED, out)

    def _is_fenced(self) -> bool:
        return self.held and not self.is_starting

    # Time

    def tick(self, out: Outcome) -> list[Delivery]:
        """Obey every deadline that has come by `out.now_us`; returns the deliveries that were taken back."""
        late: list[Delivery] = []
        for thing in self.deadlines.due(out.now_us):
            if isinstance(thing, Queue):
                expiry.on_deadline(thing, out)
                self.dispatch(thing, out)
                self.forget_if_idle(thing)
            elif isinstance(thing, Subscription):
                late += self._time_out(thing, out)
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
            self.not_reading[subscription.session] = None
        self.give_back(late, Back.TIMED_OUT, out)
        self.give_back(unread, Back.UNSEEN, out)
        return late + unread

    def told(self, deliveries: list[Delivery], now_us: int) -> list[Delivery]:
        """These are about to be told, or to wait for their client to read: their time begins. Without those that were
        taken back meanwhile."""
        left: list[Delivery] = []
        for delivery in deliveries:
            if delivery.tag in self.deliveries:
                left.append(delivery)
                if delivery.timeout_us and not delivery.deadline_us:
                    delivery.deadline_us = now_us + delivery.timeout_us
                    self.deadlines.watch(delivery.subscription, delivery.deadline_us)
        return left
