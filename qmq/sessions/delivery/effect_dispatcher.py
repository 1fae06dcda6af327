"""Effects to bytes of clients: the last step of decide, record, deliver.

A run of messages is encoded once per distinct prefix and put into the outbox of every subscriber. All outboxes touched
in one pass are flushed together at its end, so each client gets one send per pass. Disconnected clients are skipped;
the broker has requeued what they had in flight.
"""

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import trio

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.outcome import FOLLOW_COST_MAX, Outcome, TopicRun
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.totals import COUNTED_KINDS
from qmq.broker.selectors import Selector, selected
from qmq.engine.commit.receipts import Receipts
from qmq.engine.commit.replica_acks import PendingReceipt
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.sessions.clients.session import NOTHING_UNSETTLED, ClientSession
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.sessions.delivery.retained_delivery import RETAINED, RetainedDelivery
from qmq.sessions.delivery.selector_turns import SelectorTurns

RUN_MAX = 32
"""Queue messages encoded between two checks of what waits for their client."""


SETTLE_ROUNDS_MAX = 8
"""A memory queue whose consumer takes all at once is drained in steps of so many times its credit."""


STOOD_STILL: Final = Refused(
    "node-paused", "This node was paused while queue messages were on their way to the client. Connect again."
)


class Spans(Protocol):
    """What is traced of messages: `qmq.sessions.delivery.broker_spans`. Nothing here raises or waits."""

    def stored(self, group: list[Outcome]) -> None:
        """The records of `group` are durable now."""

    def delivered(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """These have been put into the outbox of their client."""


class Dispatcher:
    """Passes effects to sessions and fanout subscribers. Deliveries that count as settled because they are with
    the kernel (`auto` subscriptions) return to the commit path.
    """

    def __init__(
        self,
        engine: EngineParts,
        sessions: dict[int, ClientSession],
        fanout_subscribers: FanoutSubscribers,
        receipts: Receipts,
        beats: Heartbeats,
        spans: Spans | None,
        *,
        outbox_bytes_max: int,
        body_bytes_max: int,
        spawn: Callable[[Callable[[], object]], None],
        browse: Callable[[Subscription], None],
    ) -> None:
        self._sessions = sessions
        self._totals = engine.broker.totals
        self._receipts = receipts
        self._beats = beats
        self._spans = spans
        # When receipts run short of time, and the watch for that.
        self._receipts_due = math.inf
        self._receipts_watch = -1
        self._fanout_subscribers = fanout_subscribers
        self._buffers = fanout_subscribers.buffers
        self.retained_delivery = RetainedDelivery(
            sessions, engine.broker.retained, self._buffers, outbox_bytes_max=outbox_bytes_max, spawn=spawn
        )
        self._commits = engine.path
        self._spawn = spawn
        self._outbox_bytes_max = outbox_bytes_max
        # Queue messages are held back long before that: they are limited by the consumer's credit, not by its
        # connection.
        self._queue_bytes_max = self._outbox_bytes_max // 4
        self._run_max = max(1, min(RUN_MAX, self._outbox_bytes_max // 2 // body_bytes_max))
        self.selecting = SelectorTurns(sessions, self._send_topic, self.flush, spawn)
        self._touched: dict[ClientSession, None] = {}
        self._consumers: set[ClientSession] = set()
        """Sessions whose outbox was given queue messages, and was not flushed since."""
        self._written: list[Delivery] = []
        self._settling = False
        self._settles_later = False
        self._browse = browse

    async def slot(self, session: int, *, asks: bool) -> None:
        """Wait until the effects of what `session` has decided leave room for more."""
        await self.selecting.delivered(session)
        if not asks:
            await self._receipts.slot()

    def before_commit(self, out: Outcome) -> None:
        """Deliver the effects that need no durability. `flush` follows."""
        if out.begins and (session := self._sessions.get(out.session)) is not None:
            session.outbox.await_answer()
        if out.levels and out.is_first:
            self._put_receipts(self._receipts.early(out))
        for joined, since in out.retained_delivery:
            self.retained_delivery.begin(joined, since)
        if out.selector_cost or self.selecting.behind:
            self.selecting.deliver(out)
        else:
            for run in out.topic_runs:
                self._send_topic(run)
        for subscription, deliveries in out.deliveries_now.items():
            self._send_queue(subscription, deliveries)

    def after_commit(self, group: list[Outcome], begin: int) -> None:
        """Deliver the effects that are durable now; `begin` is where the group's batches start in the journal."""
        if self._spans is not None:
            self._spans.stored(group)
        is_costly = (
            sum([out.selector_cost for out in group if out.fanout_runs]) > FOLLOW_COST_MAX
            and self._fanout_subscribers.cost_of(group) > FOLLOW_COST_MAX
        )
        for out in group:
            # First, so that a client receives its own SENDs right after its SUBSCRIBE; `since` excludes earlier
            # messages.
            for joined in out.joined:
                self._fanout_subscribers.join(joined)
            for browser in out.browsers:
                self._browse(browser)
            for run in out.fanout_runs:
                self._fanout_subscribers.deliver(run.destination, run.messages, begin, is_costly=is_costly)
            if out.lost_ranges:
                self._fanout_subscribers.send_lost(out.lost_ranges, out.fanout_runs)
            for subscription, deliveries in out.deliveries_after.items():
                self._send_queue(subscription, deliveries)
            if out.has_answers:
                self._put_receipts(self._receipts.due_now(out))
                self._watch_receipts()

    def after_submit(self, out: Outcome) -> None:
        """End readers and sessions, once what was decided for them before is delivered, or waits for its commit."""
        if out.left:
            self._fanout_subscribers.forget(out.left)
        for eviction in out.evictions:
            session = self._sessions.get(eviction.session)
            if session is not None:
                session.evict(eviction.why, eviction.subscription)
        if out.freed:
            self._fanout_subscribers.feeds.wake(out.freed)

    def flush(self) -> None:
        """One send per touched client; then `auto` deliveries whose bytes have left count as settled."""
        self._put_receipts(self._receipts.freed())
        self._touched.update(self._fanout_subscribers.touched)
        self._fanout_subscribers.touched.clear()
        if self.retained_delivery.touched:
            self._touched.update(self.retained_delivery.touched)
            self.retained_delivery.touched.clear()
        touched, self._touched = self._touched, {}
        for session in touched:
            self._flush(session)
            if session.unsettled:
                deliveries, session.unsettled = session.unsettled, NOTHING_UNSETTLED
                if session.outbox.size:
                    session.outbox.when_written(partial(self._settle, deliveries))
                elif not session.outbox.broken:
                    self._written.extend(deliveries)
        self._settle_all()

    def _flush(self, session: ClientSession) -> None:
        """Send, unless the node stood still in the middle of this turn: then another node may have served the queue
        messages in the outbox. No client is sent them, and this one must connect again.
        """
        if session in self._consumers:
            self._consumers.discard(session)
            if self._commits.is_late():
                session.outbox.drop_put()
                session.evict(STOOD_STILL)
                return
        session.outbox.flush()

    def _settle(self, deliveries: list[Delivery]) -> None:
        self._written.extend(deliveries)
        self._settle_all()

    def _settle_all(self) -> None:
        # A settle makes room for more deliveries, whose flush comes back here: a loop, not a recursion.
        if self._settling:
            return
        self._settling = True
        try:
            rounds = 0
            while self._written and rounds < SETTLE_ROUNDS_MAX:
                rounds += 1
                written, self._written = self._written, []
                self._commits.settle_written(written)
        finally:
            self._settling = False
        if self._written and not self._settles_later:
            self._settles_later = True
            self._spawn(self._settle_later)

    async def _settle_later(self) -> None:
        """Continue where `_settle_all` stopped, after every other task had a turn."""
        await trio.lowlevel.checkpoint()
        self._settles_later = False
        self._settle_all()

    def _put_receipts(self, answers: list[PendingReceipt]) -> None:
        for answer in answers:
            self.put_receipt(answer)

    def _watch_receipts(self) -> None:
        due = self._receipts.next_deadline
        if due is not None and due < self._receipts_due:
            self._beats.forget(self._receipts_watch)
            self._receipts_due = due
            self._receipts_watch = self._beats.watch(due, self._expire_receipts)

    def _expire_receipts(self, now: float) -> float | None:
        self._receipts.expire(now)
        self.flush()
        due = self._receipts.next_deadline
        self._receipts_due = math.inf if due is None else due
        return due

    def put_receipt(self, answer: PendingReceipt) -> None:
        """Put a response into the outbox of its session; `flush` follows."""
        session = self._sessions.get(answer.session)
        if session is None or session.finishing:
            return
        outbox = session.outbox
        if outbox.size > self._outbox_bytes_max and self._is_too_slow(session):
            return
        if answer.copies is not None:
            keep_open = session.keep_open or session.dialogue.answers_each
            self._receipts.mark_short(answer, session.encoder, keep_open)
        if answer.receipts:
            outbox.put_answer(session.encoder.receipts(answer.receipts, answer.marks, answer.level))
        for frame in answer.frames:
            outbox.put_answer(frame)
        if answer.begins:
            outbox.answered()
        self._touched[session] = None
        if answer.ending:
            self._flush(session)
            session.finish()

    def _send_topic(self, run: TopicRun, asked: Selector | None = None) -> None:
        """The messages of `run` are those that match the selector `asked`."""
        if self.retained_delivery.walking:
            self.retained_delivery.deliver_first(run.subscriptions, run.messages)
        encoded: dict[tuple[bytes, Encoder, Selector | None], bytes] = {}
        name = run.destination
        delivered = 0
        for subscription in run.subscriptions:
            session = self._sessions.get(subscription.session)
            if session is None or subscription.closed or session.finishing:
                continue
            selector = subscription.selector
            wanted = run if selector is None or selector is asked else _selected(selector, run)
            if not len(wanted):
                continue
            encoder = session.encoder
            if isinstance(subscription, LightSubscriptions):
                prefix = subscription.prefixes.get(name) or encoder.listener_prefix(subscription, name)
                if not prefix:
                    continue  # The session has unsubscribed from this topic.
            elif subscription.buffer is not None:
                self._buffers.deliver(session, subscription, _tails(encoder, wanted))
                delivered += len(wanted)
                self._touched[session] = None
                continue
            else:
                prefix = subscription.prefix
            key = (prefix, encoder, selector)
            data = encoded.get(key)
            if data is None:
                data = encoded[key] = encoder.run(prefix, _tails(encoder, wanted))
            outbox = session.outbox
            if outbox.size > self._outbox_bytes_max and self._is_too_slow(session):
                continue
            outbox.put(data)
            delivered += len(wanted)
            self._touched[session] = None
        # The other kinds: replies, which are counted where they are sent, and what the node itself says.
        if delivered and name.startswith(COUNTED_KINDS):
            totals = self._totals
            (totals.by_name.get(name) or totals.begin(name)).delivered += delivered

    def _send_queue(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        session = self._sessions.get(subscription.session)
        if session is None or subscription.closed or session.finishing:
            return
        if subscription.may_lose_unsent:
            deliveries = self._started(deliveries)
            if not deliveries:
                return
        self._touched[session] = None
        fits = session.outbox.size <= self._queue_bytes_max and (
            len(deliveries) <= self._run_max or body_bytes(deliveries) <= self._queue_bytes_max
        )
        if session.deferred or not fits:
            if session.deferred is None:
                session.deferred = deque()
            session.deferred.append((subscription, deliveries))
            if len(session.deferred) == 1:
                self._send_deferred(session, session.deferred)
            return
        self._put_queue(session, subscription, deliveries)

    def _started(self, deliveries: list[Delivery]) -> list[Delivery]:
        return self._commits.begin_time(deliveries)

    def _put_queue(self, session: ClientSession, subscription: Subscription, deliveries: list[Delivery]) -> None:
        if subscription.may_lose_unsent:
            deliveries = self._started(deliveries)
        name = subscription.destination
        totals = self._totals.by_name.get(name) or self._totals.begin(name)
        subscription.delivered += len(deliveries)
        session.outbox.put(session.encoder.deliveries(subscription, deliveries, totals))
        if not subscription.is_pull:
            self._consumers.add(session)
        if self._spans is not None:
            self._spans.delivered(subscription, deliveries)
        if subscription.ack is Ack.AUTO:
            session.settle_when_written(deliveries)

    def _send_deferred(self, session: ClientSession, deferred: deque[tuple[Subscription, list[Delivery]]]) -> None:
        """Encode as much as the client's bound allows, and the remainder when the client has read that."""
        outbox = session.outbox
        while deferred:
            subscription, deliveries = deferred[0]
            if subscription.closed or session.finishing:
                deferred.popleft()
                continue
            if outbox.size > self._queue_bytes_max:
                self._flush(session)
            if outbox.size > self._queue_bytes_max:
                outbox.when_written(partial(self._go_on, session, deferred))
                return
            self._put_queue(session, subscription, deliveries[: self._run_max])
            if len(deliveries) > self._run_max:
                deferred[0] = (subscription, deliveries[self._run_max :])
            else:
                deferred.popleft()
        session.deferred = None

    def _go_on(self, session: ClientSession, deferred: deque[tuple[Subscription, list[Delivery]]]) -> None:
        self._touched[session] = None
        self._commits.check()
        self._send_deferred(session, deferred)
        self.flush()

    def _is_too_slow(self, session: ClientSession) -> bool:
        """Whether the client really does not read; then it got its ERROR, and is disconnected."""
        self._flush(session)
        size = session.outbox.size
        if size > self._outbox_bytes_max:
            session.evict(too_slow(size))
        return session.finishing


def _selected(selector: Selector, run: TopicRun) -> TopicRun:
    return TopicRun(run.subscriptions, selected(selector, run.messages), run.retained)


def _tails(encoder: Encoder, run: TopicRun) -> list[bytes]:
    if run.sent is not None:
        return encoder.tails_of(run.sent)
    tails = encoder.tails(run.messages)
    return [encoder.marked(tail, *RETAINED) for tail in tails] if run.retained else tails


def body_bytes(deliveries: list[Delivery]) -> int:
    return sum(map(len, [delivery.message.body for delivery in deliveries]))


def too_slow(size: int) -> Refused:
    """The error for a client that does not read."""
    return Refused("slow-consumer", f"The client does not read: {size} bytes wait for it.")
