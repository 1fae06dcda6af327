"""Messages that come back: requeued, delayed, or dead-lettered, by the table in `lifecycle` and the rules of the queue.

Other ways in which a message leaves without a consumer, such as expiry, are here, too. If a message reaches its
delivery limit while another node may serve it, it is `postponed`. That node may dead-letter it as well, and there would
be two dead letters. So its failure is counted, and it stays. Before anything is delivered again, the node dead-letters
what it still serves.
"""

from collections.abc import Callable, Mapping
from typing import Final

from qmq.broker.consumers.outcome import COST_MAX, Outcome, Return
from qmq.broker.consumers.subscription import Asks, Delivery
from qmq.broker.messages.lifecycle import COMES_BACK, Back, MessageState
from qmq.broker.messages.message import SEEN, Message
from qmq.broker.queues.dead_letters import DELIVERY_LIMIT, EXPIRED, REJECTED, DeadLetters
from qmq.broker.queues.dispatch.prefetch_rounds import PrefetchRounds
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.paging import backlog
from qmq.broker.queues.paging.pager import Pager
from qmq.model.dots import Dot

Copy = Callable[[Message, Outcome], int]
"""Accepts a message in another queue; the sequence of the record that settles the message, too, or 0."""

FULL_PAUSE_US: Final = 1_000_000
"""On a full disk, without the right to serve, or beside a transaction: until an expired message is tried again."""

TURN_PAUSE_US: Final = 1_000
"""The same if the turn has cost COST_MAX."""


class Redelivery:
    """See the module's opening."""

    def __init__(
        self, registry: QueueRegistry, paging: Pager, rounds: PrefetchRounds, dead_letters: DeadLetters
    ) -> None:
        self._registry = registry
        self._shared = registry.shared
        self._owned = registry.owned
        self._paging = paging
        self._rounds = rounds
        self.dead_letters = dead_letters
        self.postponed: list[Return] = []
        """In the order of their queues with the others; nothing is delivered from there meanwhile."""
        registry.shared.expire = self._expired

    # Requeue

    def give_back(self, deliveries: list[Delivery], why: Back, out: Outcome) -> None:
        """These deliveries come back: own messages go where `lifecycle` says, borrowed ones to their owner.

        All of one subscription, in delivery order. Of a consumer that has gone, nothing was seen that was not sent.
        """
        if not deliveries:
            return
        has_left = why is Back.RELEASED or why is Back.LEFT
        subscription = deliveries[0].subscription
        queue = self._registry.get(subscription.destination)
        back: list[Return] = []
        queue.finished(subscription, len(deliveries))
        if queue.selective is not None:
            queue.selective.finished(deliveries)
        asks = subscription.asks
        for delivery in deliveries:
            del subscription.in_flight[delivery.tag]
            del self._registry.deliveries[delivery.tag]
            message = delivery.message
            if subscription.message_ids is not None:
                subscription.message_ids.pop(message.message_id, None)
            if message.settled:
                continue
            returned = Return(message, Back.UNSEEN if has_left and not delivery.sent else why, asks)
            if message.owner is None:
                back.append(returned)
            else:
                self._registry.owned.in_hand.pop(message.dot, None)
                self._shared.return_to_owner(returned, out)
        if subscription.window is None:
            queue.line_up(subscription)
        self._registry.touched[queue.name] = None
        self.take_back(queue, back, out)
        if subscription.window is not None:
            self._rounds.freed(queue, subscription, len(deliveries), out)

    def take_back(self, queue: Queue, returns: list[Return], out: Outcome) -> None:
        """Own messages, with no consumer any more and in their old order."""
        for message, why, _ in returns:
            if why is Back.LEFT:
                message.attempts = message.attempts if message.attempts > 0 else SEEN
            elif why is not Back.UNSEEN:
                message.attempts = max(message.attempts, 0) + 1
        self.put_back(queue, returns, out)
        self._registry.dispatch(queue, out)
        self._registry.forget_if_idle(queue)

    def put_back(self, queue: Queue, returns: list[Return], out: Outcome) -> None:
        """Each goes where `_state_after` says; its failure is counted."""
        rules = queue.rules
        again: list[Message] = []
        for returned in returns:
            message, why, asks = returned
            state, target = self._state_after(queue, message.attempts, why, asks)
            if state is MessageState.DEAD and target and out.cost >= COST_MAX and out.dead_letters_left is None:
                # As on a full disk: it comes once more.
                state = MessageState.DELAYED
            if state is MessageState.DEAD and self._must_wait(queue, message):
                self.postponed.append(returned)
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
                self._dead_letter(queue, message, _reason(why), target, out)
        if again and self._registry.isolated_mode.after is not None:
            again = self._registry.isolated_mode.give_back(queue, again)
        queue.push_back(again)

    def _state_after(self, queue: Queue, attempts: int, why: Back, asks: Asks | None) -> tuple[MessageState, str]:
        """What becomes of a message that has come back so often, and where its dead letter goes, if there is one."""
        rules = queue.rules
        limit = rules.delivery_limit if asks is None or asks.delivery_limit is None else asks.delivery_limit
        target = rules.dead_letter if asks is None or asks.dead_letter is None else asks.dead_letter
        below, at_limit = COMES_BACK[why]
        state = at_limit if limit and attempts >= limit else below
        if state is MessageState.DEAD and target == queue.name:
            # It is among the dead letters already: there it stays until a consumer takes it.
            state = MessageState.DELAYED
        if state is MessageState.DEAD and target and self._shared.is_disk_full():
            state = MessageState.DELAYED
        return state, target

    def _must_wait(self, queue: Queue, message: Message) -> bool:
        """Whether another node may serve `message` by now."""
        registry = self._registry
        return registry.held and message.sequence > 0 and not registry.isolated_mode.may_take(queue, message)

    def end_postponement(self, out: Outcome) -> None:
        """The node may serve again."""
        waiting, self.postponed = self.postponed, []
        for returned in waiting:
            queue = self._registry.by_name.get(returned.message.envelope.destination)
            if queue is not None and not returned.message.settled and queue.take_out(returned.message):
                self.put_back(queue, [returned], out)
                self._registry.forget_if_idle(queue)

    def _note_attempts(self, message: Message, out: Outcome) -> None:
        """A message has come back: recorded, so that neither a crash nor another node makes it young again.

        Not on a full disk: what space is left there is for settles.
        """
        if message.sequence > 0 and not self._shared.is_disk_full():
            out.attempts.setdefault(message.envelope.destination, {})[message.dot] = message.attempts

    def failed_before(self, counts: Mapping[Dot, int]) -> None:
        """These have come back so often, by a record of a node that serves or served them.

        That can be an earlier incarnation of this node.
        """
        for dot, count in counts.items():
            node = dot.origin.node
            message = self._owned.by_origin.get(dot.origin, {}).get(dot.sequence)
            if message is not None:
                message.attempts = max(message.attempts, count)
            elif node in self._owned.gathering or (self._owned.has_stored and node in self._owned.serves):
                self._paging.failed_unseen(dot, count)

    # Dead letters and expiry

    def dead_letter_bytes(self, delivery: Delivery, why: Back) -> int:
        """What the dead letters take that a NACK of `delivery` leads to; 0 where it leads to none here."""
        message = delivery.message
        if message.settled or message.owner is not None:
            return 0
        subscription = delivery.subscription
        queue = self._registry.get(subscription.destination)
        state, target = self._state_after(queue, max(message.attempts, 0) + 1, why, subscription.asks)
        if state is not MessageState.DEAD or not target:
            return 0
        return self.dead_letters.dead_letters_bytes_of(message, _reason(why), target)

    def _dead_letter(self, queue: Queue, message: Message, reason: str, target: str, out: Outcome) -> None:
        """An own message that no consumer has is settled; with a `target`, a dead letter is accepted there."""
        self._leave_memory(queue, message)
        self.count(queue.name, reason, is_kept=bool(target))
        self._settle(queue, message, self._copy(reason, target), out)

    def count(self, queue: str, reason: str, *, is_kept: bool) -> None:
        """A message leaves `queue` without a consumer; `is_kept`: as a dead letter."""
        totals = self._shared.totals.begin(queue)
        if reason == EXPIRED:
            totals.expired += 1
        if is_kept:
            totals.dead_lettered += 1
        elif reason != EXPIRED:
            totals.removed += 1

    def _copy(self, reason: str, target: str) -> Copy | None:
        if not target:
            return None
        return lambda message, out: self.dead_letters.accept(message, reason, target, out)

    def remove(self, message: Message, copy: Copy | None, out: Outcome) -> bool:
        """An own message that waits, in memory or only in the store, is settled; False if it is settled already."""
        queue = self._registry.get(message.envelope.destination)
        if message.sequence < 0 or message.sequence in self._owned.by_origin.get(message.origin, {}):
            self._leave_memory(queue, message)
        elif self._paging.take_stored(message):
            backlog.stored_settled(queue, len(message.body))
        else:
            return False
        self._shared.totals.begin(queue.name).removed += 1
        self._settle(queue, message, copy, out)
        return True

    def _leave_memory(self, queue: Queue, message: Message) -> None:
        queue.forget(message)
        if message.envelope.durable:
            self._owned.by_origin[message.origin].pop(message.sequence, None)
            if self._paging.may_be_stored(message):
                self._paging.pending_deletes.add(queue.name, message.origin, message.sequence, 0)

    def _settle(self, queue: Queue, message: Message, copy: Copy | None, out: Outcome) -> None:
        """Record that a message of `queue` is settled, in one record with its copy if there is one."""
        record = 0 if copy is None else copy(message, out)
        if not message.envelope.durable:
            return
        dot = message.dot
        if record:
            self._paging.pending_deletes.recorded(queue.name, [dot], record)
        else:
            out.settles.setdefault(queue.name, []).append(dot)

    def drop(self, queue: Queue, message: Message, reason: str, out: Outcome) -> None:
        """An own message leaves its queue without a consumer; it becomes a dead letter where the rules keep it."""
        rules = queue.rules
        target = rules.dead_letter if rules.keeps_dropped and rules.dead_letter != queue.name else ""
        self._dead_letter(queue, message, reason, target, out)

    def expire_stored(self, messages: list[Message], out: Outcome) -> bool:
        """The time of these messages of the store has passed; those in memory see to it themselves, and those that
        consumers of a peer have are left to them.

        Returns whether there were not too many dead letters for one turn.
        """
        for message in messages:
            if out.cost >= COST_MAX:
                return False
            if message.dot in self._owned.elsewhere:
                continue
            is_superseded = self._registry.first_attempts.is_superseded(message)
            keeps_dropped = self._registry.rules_for(message.envelope.destination).keeps_dropped and not is_superseded
            if keeps_dropped and (self._shared.is_disk_full() or self._dead_letter_from_us(message) > out.now_us):
                continue
            if self._paging.take_stored(message):
                queue = self._registry.get(message.envelope.destination)
                backlog.stored_settled(queue, len(message.body))
                dead_letter = queue.rules.dead_letter
                target = dead_letter if keeps_dropped and dead_letter != queue.name else ""
                if not is_superseded:
                    self.count(queue.name, EXPIRED, is_kept=bool(target))
                self._settle(queue, message, self._copy(EXPIRED, target), out)
                self._registry.forget_if_idle(queue)
        return True

    def _dead_letter_from_us(self, message: Message) -> int:
        """From when on this node dead-letters an expired message; until then its owner may be back with the dead
        letter."""
        return self._owned.dead_letters_from_us.get(message.origin.node, 0)

    def _expired(self, message: Message, out: Outcome) -> None:
        queue = self._registry.get(message.envelope.destination)
        # A transaction is one batch, and has no room for dead letters of what happens to expire beside it.
        must_wait = self._shared.is_disk_full() or out.dead_letters_left is not None
        is_kept = queue.rules.keeps_dropped and bool(queue.rules.dead_letter)
        if self._registry.is_fenced() or (is_kept and must_wait):
            queue.delay(message, out.now_us + FULL_PAUSE_US)
            return
        if is_kept and self._dead_letter_from_us(message) > out.now_us:
            queue.delay(message, self._dead_letter_from_us(message))
            return
        if is_kept and out.cost >= COST_MAX:
            queue.delay(message, out.now_us + TURN_PAUSE_US)
            return
        self.drop(queue, message, EXPIRED, out)


def _reason(why: Back) -> str:
    return REJECTED if why is Back.REJECTED else DELIVERY_LIMIT
