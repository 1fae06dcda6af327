"""Settles: of consumers here, for own and borrowed messages, and those that come from other nodes by the journal."""

from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.prefetch_rounds import PrefetchRounds
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.paging.pager import Pager
from qmq.model.dots import Dot, Origin

_new_dot: Final = tuple.__new__
"""The constructor of a named tuple takes twice as long, and this is done for every message that is settled."""


class Settlement:
    """See the module's opening."""

    def __init__(self, registry: QueueRegistry, paging: Pager, rounds: PrefetchRounds) -> None:
        self._registry = registry
        self._owned = registry.owned
        self._paging = paging
        self._rounds = rounds

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries are done: record it where the messages are durable, notify owners of borrowed ones.

        All of one subscription. The records are made by `Broker.finish`.
        """
        if not deliveries:
            return
        registry = self._registry
        subscription = deliveries[0].subscription
        queue = registry.get(subscription.destination)
        in_flight = subscription.in_flight
        own = queue.name
        queue.finished(subscription, len(deliveries))
        if subscription.credit < subscription.credit_max:
            queue.grow(subscription, len(deliveries))
        subscription.acknowledged += len(deliveries)
        if queue.selective is not None:
            queue.selective.finished(deliveries)
        totals = registry.shared.totals
        (totals.by_name.get(own) or totals.begin(own)).acknowledged += len(deliveries)
        message_ids = subscription.message_ids
        begun, origin, pending_deletes = self._paging.begun, self._paging.origin, self._paging.pending_deletes
        all_deliveries, owned = registry.deliveries, self._owned.by_origin
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
            queue.forget(message)
            sequence = message.sequence
            if sequence > 0:
                its = message.origin
                owned[its].pop(sequence, None)
                dot = _new_dot(Dot, (its, sequence))
                settled.append(dot)
                if sequence <= begun or (its is not origin and its != origin):
                    pending_deletes.add(own, its, sequence, 0)
        if settled:
            out.settles.setdefault(own, []).extend(settled)
        if subscription.window is not None:
            self._rounds.freed(queue, subscription, len(deliveries), out)
        elif not subscription.waiting:
            queue.line_up(subscription)
        registry.touched[own] = None
        # A queue that is not counted may have messages in the store only, and asks for them when a consumer has room.
        if registry.held or queue.levels or queue.selective is not None or not queue.is_counted:
            registry.dispatch(queue, out)
        if not queue.held and not queue.subscriptions:
            registry.forget_if_idle(queue)

    def _settle_borrowed(self, message: Message, out: Outcome) -> None:
        message.settled = True
        dot = message.dot
        owner = message.owner or ""
        self._owned.in_hand.pop(dot, None)
        if dot.origin.node in self._owned.gathering:
            self._owned.gathering[dot.origin.node].settles.append((message.envelope.destination, dot, None))
        if message.envelope.durable:
            out.settles.setdefault(message.envelope.destination, []).append(dot)
            out.borrowed_settled[dot] = owner
            out.peer_settled_after.setdefault(owner, []).append(dot)
        else:
            out.peer_settled_now.setdefault(owner, []).append(dot)

    def retry_came(self, dot: Dot, out: Outcome) -> None:
        """The retry of the message `dot` is recorded here. What is only in the queue store is settled at its load."""
        message = self._owned.by_origin.get(dot.origin, {}).get(dot.sequence)
        if message is not None and self._registry.first_attempts.is_superseded(message):
            # It needs no consumer; one that has it may go on.
            queue = message.envelope.destination
            out.settles.setdefault(queue, []).append(dot)
            self.settled_elsewhere(queue, dot, dot.sequence, None)

    def clock_heard(self, peer: Origin, theirs_us: int, out: Outcome) -> None:
        """A frame says what the clock of `peer` was when it was sent: see `PeerClocks.heard`."""
        if self._registry.shared.clocks.heard(peer, theirs_us, out.now_us):
            for dot in self._registry.first_attempts.take_unjudged():
                self.retry_came(dot, out)

    def settled_elsewhere(self, queue_name: str, dot: Dot, have: int, record: Dot | None) -> None:
        """A settle of another node (or of an earlier life of this one) names `dot`.

        Only dots of served nodes' origins matter here, the rest is the checkpoint's business. Where the message
        stands in line or in flight it is only marked, and skipped later. `have` is the sequence up to which the
        dot's origin is known here; `record` the settle record, None when only its node's word has come yet.
        """
        owned = self._owned
        if owned.elsewhere:
            owned.elsewhere.pop(dot, None)
        if dot.origin.node not in owned.serves:
            if dot.origin.node in owned.gathering:
                owned.gathering[dot.origin.node].settles.append((queue_name, dot, record))
            elif owned.in_hand and (kept := owned.in_hand.pop(dot, None)) is not None:
                kept.settled = True
            return
        message = owned.by_origin.get(dot.origin, {}).pop(dot.sequence, None)
        if message is None:
            if dot.sequence > have:
                owned.settled_early.add(dot)
            else:
                self._paging.settled_unseen(queue_name, dot, record)
            return
        # The peer's own word about it may have been lost with a link.
        for lent in owned.lent.values():
            lent.pop(dot, None)
        queue = self._registry.get(message.envelope.destination)
        queue.forget(message)
        self._paging.settled_by(queue.name, dot, record)
        self._registry.forget_if_idle(queue)
