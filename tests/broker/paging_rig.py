"""One broker over one queue store, without a server: what the clerk, the commits and the checkpoints do, step by step.

`PagedNode` keeps the log as real batches, of which a prefix is durable. A checkpoint reduces a stretch of it into the
memory twin of the queue store as `qmq.storage` does, in three steps that others may come between; loads are asked and
taken in two. What the broker may never see together is the rig's business: between asking and taking no checkpoint
ends and nothing is evicted. A peer `b` borrows, and its settles come as a word, as a record, or both.

The rig keeps the truth beside the broker: which messages were accepted, and which are settled.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Asks, Delivery, Subscription
from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import MAYBE_SEEN, SEEN, Attempts, DeadLetter, Envelope, Message, Settle
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import times_of
from qmq.broker.queues.paging.pager import Load, LoadedPage
from qmq.broker.selectors import Selector, compile_selector
from qmq.engine.checkpoint.queue_pager import LoadResult, _ask
from qmq.model.dots import Dot, Origin, Vector
from qmq.record_codec import Replay, encode_records
from qmq.storage.checkpoints.compaction import NEVER, Compaction
from qmq.storage.format.batch import batch_records, encode_batch, read_head
from qmq.storage.format.failure_records import unpack_attempts, unpack_dead
from qmq.storage.format.queue_store import QueueHead, QueueRow
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record, unpack_dots
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.served_rows import ServedRows
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore, rows_in

from .rig import JOBS, NOW_US, Recorded, parts

OLD = Origin("a", 1)
"""A life of this node of which peers give back messages, as after the loss of a disk."""

PEER = Origin("b", 1)
RED = b"color:red\n"
WANTS_RED = compile_selector("color = 'red'")
SETTINGS = StoreSettings(times_of=times_of)


class Sent(NamedTuple):
    """What the rig knows of an accepted message."""

    queue: str
    urgency: int
    """Of priority and exact number: higher is delivered first."""
    due_us: int
    expires_us: int
    is_red: bool


class StoreView:
    """The queue store as `_ask` sees it; `between` happens after the heads were read and before the first page."""

    def __init__(self, store: MemoryQueueStore, between: Callable[[], None]) -> None:
        self._store = store
        self._between = between

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        found = self._store.heads(node, queues, now_us)
        self._between()
        return found

    def page(self, *arguments: object) -> list[QueueRow]:
        return self._store.page(*arguments)  # type: ignore[arg-type]

    def due(self, *arguments: object) -> list[QueueRow]:
        return self._store.due(*arguments)  # type: ignore[arg-type]


class Watched(Outcome):
    """An Outcome that knows in which order messages were given to consumers and peers."""

    __slots__ = ("order",)

    def __init__(self, now_us: int) -> None:
        super().__init__(now_us=now_us)
        self.order: list[Message] = []
        self.peer_deliveries = WatchedPeers(self.order)

    def deliver_run(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        self.order.extend([delivery.message for delivery in deliveries])
        super().deliver_run(subscription, deliveries)

    def deliver(self, delivery: Delivery) -> None:
        self.order.append(delivery.message)
        super().deliver(delivery)


class WatchedPeers(dict[str, list[Message]]):
    def __init__(self, order: list[Message]) -> None:
        super().__init__()
        self._order = order

    def setdefault(self, peer: str, default: list[Message] | None = None) -> list[Message]:
        return super().setdefault(peer, WatchedList(self._order))


class WatchedList(list[Message]):
    def __init__(self, order: list[Message]) -> None:
        super().__init__()
        self._order = order

    def append(self, message: Message) -> None:
        self._order.append(message)
        super().append(message)


class PagedNode:
    """See the module's opening."""

    def __init__(self, rules_of: Callable[[str], QueueRules] = lambda name: QueueRules()) -> None:
        self.rules_of = rules_of
        self.now_us = NOW_US
        self.store = MemoryQueueStore(MemoryDisk())
        self.log: list[bytes] = []
        self.told = 0
        # What the store has of the log, and what every prefix of the log holds of each origin.
        self.applied = 0
        self.vectors: list[Vector] = [{}]
        self.life = 10
        self.sent: dict[Dot, Sent] = {}
        self.settled: set[Dot] = set()
        self.failed: dict[Dot, int] = {}
        # What a consumer had and left in order, which is in no record.
        self.left: set[Dot] = set()
        # What came back at least once in this life, or was late: its place among the others is no promise.
        self.moved: set[Dot] = set()
        self.delivered: list[Dot] = []
        self.not_before: dict[Dot, int] = {}
        # Settles of the peer whose record is still on its way.
        self.records_coming: list[tuple[str, list[Dot]]] = []
        self.peer_sequence = 0
        self.old_sequence = 0
        self.ids = 0
        self._begin()

    def _begin(self) -> None:
        self.life += 1
        self.origin = Origin("a", self.life)
        # The record with which a life begins, durable before anything else.
        start = pack_record(1, self.now_us, RecordKind.START, 0, pack_envelope("", b""), b"")
        self._write(encode_batch(self.origin, [start], 1, 1, self.now_us, self.now_us))
        self.told = len(self.log)
        self.broker = Broker(self.origin, 2, rules_of=self.rules_of)
        self.queues = self.broker.queues
        self.paging = self.queues.paging
        self.lending = self.broker.lending
        self.replay = Replay(self.broker)
        self.subscriptions: list[Subscription] = []
        self.wanted: list[str] = []
        self.loads: list[Load] = []
        self.answers: list[LoadResult] = []
        # What was settled twice, and its queues: how deep they are is known again when the store forgets it, too.
        self.twice: set[Dot] = set()
        self.vague: set[str] = set()
        # What was decided when the checkpoint began, and how much of the log it takes, once that is durable.
        self.checkpoint_begun: int | None = None
        self.checkpoint_end: int | None = None
        self.checkpoint_applied = False
        self.moved = {dot for dot, sent in self.sent.items() if sent.due_us}
        self.delivered.clear()
        self.not_before.clear()
        self.queues.owned.has_stored = not self.store.is_empty("a")
        self.paging.starts_with(dict(self.vectors[self.applied]))
        self.lending.borrower_connected("b")

    # Decisions

    def decide(self, action: Callable[[Outcome], object]) -> Outcome:
        settled_before = set(self.settled)
        sent_before = set(self.sent)
        held_before = self.in_hand()
        out = Watched(self.now_us)
        action(out)
        self.broker.finish(out, self.now_us)
        self._append(self.origin, out)
        self.wanted += out.loads
        for message in out.order:
            dot = message.dot
            assert dot in self.sent, f"{dot} was never accepted"
            assert dot not in settled_before, f"{dot} is delivered after its settle"
            assert self.sent[dot].due_us <= self.now_us, f"{dot} is delivered before it is due"
            assert not self.is_expired(dot), f"{dot} is delivered after its expiry"
            failed = self.failed.get(dot, SEEN if dot in self.left else 0)
            is_perhaps = not failed and message.attempts == MAYBE_SEEN
            assert is_perhaps or message.attempts == failed, f"{dot} has failed {failed} times"
            assert self.not_before.get(dot, 0) <= self.now_us, f"{dot} is delivered before its pause is over"
            if dot not in self.moved:
                self.delivered.append(dot)
        for delivery in [d for run in (*out.deliveries_now.values(), *out.deliveries_after.values()) for d in run]:
            delivery.sent = True
        held = Counter(self.holders())
        assert all(count == 1 for count in held.values()), f"in two hands: {held.most_common(3)}"
        self._check_priorities(out, sent_before - set(held))
        self.moved |= held_before | set(held)
        return out

    def _check_priorities(self, out: Watched, there: set[Dot]) -> None:
        """What was handed out has overtaken nothing of a higher priority that was `there`, wherever that waits."""
        lowest: dict[tuple[str, bool], int] = {}
        for message in out.order:
            sent = self.sent[message.dot]
            key = sent.queue, sent.is_red
            lowest[key] = min(lowest.get(key, sent.urgency), sent.urgency)
        if lowest:
            waiting = [(dot, self.sent[dot]) for dot in there - self.settled - self.moved]
            passed = [dot for dot, sent in waiting if sent.urgency > lowest.get((sent.queue, sent.is_red), 10 << 33)]
            assert all(self.is_expired(dot) for dot in passed), f"overtaken: {passed}"

    def _append(self, origin: Origin, out: Outcome) -> None:
        for record in out.records:
            self._note(record)
        for batch in encode_records(origin, [out]):
            self._write(batch)

    def _write(self, batch: bytes) -> None:
        self.log.append(batch)
        head = read_head(batch)
        assert head is not None
        self.vectors.append({**self.vectors[-1], head.origin: head.last})

    def _note(self, record: Recorded) -> None:
        for part in parts(record):
            if isinstance(part, Message):
                self._learn(part)
            elif isinstance(part, Settle):
                self.settled.update(part.dots)
            elif isinstance(part, Attempts):
                self.failed.update(part.counts)

    def _learn(self, message: Message) -> None:
        options = message.envelope.options
        due_us, expires_us = times_of(message.envelope.headers, message.timestamp_us)
        urgency = 4 << 33 if options is None else (options.priority << 33) - options.exact
        self.sent[message.dot] = Sent(
            message.envelope.destination, urgency, due_us, expires_us, RED in message.envelope.headers
        )
        if due_us:
            self.moved.add(message.dot)

    def holders(self) -> list[Dot]:
        """Who has what: unsettled own messages with consumers and with the peer."""
        local = [d.message for d in self.queues.deliveries.values()]
        lent = [message for by_dot in self.lending.lent.values() for message in by_dot.values()]
        return [message.dot for message in local + lent if not message.settled]

    def in_hand(self) -> set[Dot]:
        return set(self.holders())

    def open_dots(self, queue: str) -> set[Dot]:
        """Accepted and not settled, in truth."""
        return {dot for dot, sent in self.sent.items() if sent.queue == queue and dot not in self.settled}

    def is_expired(self, dot: Dot) -> bool:
        return 0 < self.sent[dot].expires_us <= self.now_us

    # Clients

    def send(self, queue: str = JOBS, headers: bytes = b"", body: bytes = b"m") -> Dot:
        sequence = self.broker.next_sequence
        envelope = Envelope(queue, kind_of(queue), headers, durable=True)
        self.decide(lambda out: self.broker.send(envelope, body, self.now_us, out))
        return Dot(self.origin, sequence)

    def subscribe(
        self,
        queue: str = JOBS,
        credit: int = 10,
        timeout_us: int = 0,
        asks: Asks | None = None,
        selector: Selector | None = None,
    ) -> Subscription:
        self.ids += 1
        self.broker.open_session(self.ids)
        subscription = Subscription(self.ids, "s", queue, Ack.CLIENT_INDIVIDUAL, credit, b"")
        subscription.ack_timeout_us = timeout_us
        subscription.asks = asks
        subscription.selector = selector
        self.subscriptions.append(subscription)
        self.decide(lambda out: self.broker.subscriptions.subscribe(subscription, out))
        return subscription

    def leave(self, subscription: Subscription) -> None:
        self.subscriptions.remove(subscription)
        self.decide(lambda out: self.broker.close_session(subscription.session, out))

    def ack(self, delivery: Delivery) -> None:
        self.decide(lambda out: self.broker.acknowledge(delivery, out))

    def nack(self, delivery: Delivery, why: Back = Back.FAILED) -> None:
        self._will_pause(delivery.message, why)
        self.decide(lambda out: self.broker.refuse(delivery, out, why))

    def _will_pause(self, message: Message, why: Back) -> None:
        """A failed message comes again after a pause, and so does a dead letter that is rejected."""
        queue = message.envelope.destination
        rules = self.rules_of(queue)
        if why is Back.FAILED or (why is Back.REJECTED and rules.dead_letter == queue):
            self.not_before[message.dot] = self.now_us + rules.back_off(max(message.attempts, 0) + 1)

    def wait(self, microseconds: int) -> None:
        self.now_us += microseconds
        self.decide(self.broker.tick)

    # The peer

    def offer(self, limit: int, queue: str = JOBS) -> None:
        """The peer may be lent `limit` more."""
        borrower = self.lending._borrowing["b"].get(queue)
        before = 0 if borrower is None else borrower.sent
        self.decide(lambda out: self.lending.offer("b", queue, before + limit, out))

    def lent(self) -> list[Dot]:
        return list(self.lending.lent.get("b", {}))

    def peer_settles(self, dots: list[Dot]) -> None:
        """Consumers of the peer are done with these; nobody here knows yet. All of one queue."""
        self.records_coming.append((self.sent[dots[0]].queue, dots))

    def word_comes(self, dots: list[Dot]) -> None:
        """The peer says so."""
        self.settled.update(dots)
        self.decide(lambda out: self.lending.settled("b", dots))

    def record_comes(self, index: int = 0) -> None:
        """The peer's settle record arrives: appended and obeyed in one decision."""
        queue, dots = self.records_coming.pop(index)
        if self.settled.issuperset(dots) and not any(self.paging.pending_deletes.has(queue, dot) for dot in dots):
            # Settled here, too, and forgotten since: it cannot be told from a message that is only in the store.
            self.twice.update(dots)
            self.vague.add(queue)
        self.peer_sequence += 1
        record = Dot(PEER, self.peer_sequence)
        out = Outcome()
        out.records.append(Settle(queue, dots, record.sequence, self.now_us))
        self._append(PEER, out)
        have = self.have()
        self.decide(lambda out: self.broker.accept_settles(queue, dots, have, record))

    def have(self) -> Vector:
        return dict(self.vectors[-1])

    def peer_returns(self, dots: list[Dot], why: Back) -> None:
        for dot in dots:
            self._will_pause(self.lending.lent["b"][dot], why)
            if why is Back.LEFT:
                self.left.add(dot)
        self.decide(lambda out: self.lending.returned("b", [(dot, why, None) for dot in dots], out))

    def peer_is_lost(self) -> None:
        """The link ends and comes again: what the peer settled is here, the rest is given up."""
        self.lending.borrower_lost("b")
        while self.records_coming:
            self.record_comes()
        self.lending.borrower_connected("b")
        self.decide(lambda out: self.lending.give_up("b", self.lending.with_peer("b"), out))

    def old_message_comes(self, queue: str = JOBS, body: bytes = b"old") -> Dot:
        """A peer gives back a message of an earlier life of this node."""
        self.old_sequence += 1
        dot = Dot(OLD, self.old_sequence)
        message = Message(Envelope(queue, kind_of(queue), b"", durable=True), body, OLD, dot.sequence, NOW_US)
        out = Outcome()
        out.records.append(message)
        self._append(OLD, out)
        self.decide(lambda out: self.broker.accept(message, out))
        return dot

    # The journal and the store

    def commit(self, batches: int | None = None) -> None:
        """The next `batches` become durable."""
        self.told = len(self.log) if batches is None else min(self.told + batches, len(self.log))

    def checkpoint_begins(self) -> None:
        assert self.checkpoint_begun is None
        self.checkpoint_begun = len(self.log)
        self.paging.checkpoint_begins()

    def checkpoint_reads(self) -> None:
        """What was decided before it began has become durable, and perhaps more: so much of the log it takes."""
        assert self.checkpoint_begun is not None
        self.told = max(self.told, self.checkpoint_begun)
        self.checkpoint_end = self.told

    def checkpoint_applies(self) -> None:
        """The worker thread writes: at any time, also while a load is under way."""
        assert self.checkpoint_end is not None
        self._apply(self.checkpoint_end)
        self.checkpoint_applied = True

    def _apply(self, end: int) -> None:
        reduction = self._reduce(end)
        self.store.apply(
            reduction.runs(),
            reduction.deletes,
            reduction.tombstones_add,
            reduction.tombstones_del,
            end,
            reduction.attempts,
        )
        self.applied = end

    def _reduce(self, end: int) -> Compaction:
        reduction = Compaction(
            SETTINGS,
            "a",
            dict(self.vectors[self.applied]),
            self.store.tombstones(),
            queue_position=self.store.position(),
            fanout_position=NEVER,
        )
        for position in range(self.applied, end):
            head = read_head(self.log[position])
            assert head is not None
            reduction.take(position, head, self.log[position])
        return reduction

    def checkpoint_done(self) -> None:
        assert self.checkpoint_applied and not self.loads
        self.checkpoint_begun = self.checkpoint_end = None
        self.checkpoint_applied = False
        self.paging.checkpoint_done(dict(self.vectors[self.applied]))
        again, self.paging.vague = list(self.paging.vague), {}
        heads = self.store.heads("a", again, 0)
        for name in again:
            head = heads.get(name, QueueHead(0, 0, (), 0))
            self.paging.recount(name, head.messages, head.body_bytes)
            self._counted(name)

    def checkpoint(self) -> None:
        self.checkpoint_begins()
        self.checkpoint_reads()
        self.checkpoint_applies()
        self.checkpoint_done()

    def _counted(self, queue: str) -> None:
        if not any(self.paging.pending_deletes.has(queue, dot) for dot in self.twice):
            self.vague.discard(queue)

    def evict(self) -> int:
        assert not self.loads and self.checkpoint_begun is None
        names = self.paging.queues_to_evict(self.paging.owned_in_memory())
        return sum(self.paging.evict(self.queues.by_name[name]) for name in names)

    # Loads, as the clerk makes them

    def ask(self, between: Callable[[], None] = lambda: None) -> None:
        assert not self.loads
        names, self.wanted = self.wanted, []
        for name in names:
            queue = self.queues.by_name[name]
            load = self.paging.next_load(queue, self.now_us)
            if load is None:
                self.decide(partial(self.paging.take_none, queue))
            else:
                self.loads.append(load)
        if self.loads:
            self.answers = _ask(ServedRows(StoreView(self.store, between), "a"), self.loads)  # type: ignore[arg-type]

    def take(self) -> None:
        loads, answers, self.loads, self.answers = self.loads, self.answers, [], []

        def take_all(out: Outcome) -> None:
            for load, answer in zip(loads, answers, strict=True):
                load = load._replace(limit=answer.limit)
                messages = [m for row in answer.rows if (m := self.replay.message_of_row(row)) is not None]
                counted: QueueHead | None = None
                if load.priority is None and not load.due_after_us:
                    counted = answer.head or QueueHead(0, 0, (), 0)
                    self._counted(load.queue)
                self.paging.take(load, LoadedPage(counted, answer.priority, messages, answer.next_due_us), out)

        self.decide(take_all)

    def load_all(self) -> int:
        """Ask and take, and obey what has become due meanwhile, until nobody wants more; returns how often."""
        rounds = 0
        while self.wanted or self.loads or self.is_late:
            if self.is_late:
                self.wait(0)
            elif self.loads:
                self.take()
            else:
                self.ask()
            rounds += 1
            assert rounds < 2000, "loads never come to an end"
        return rounds

    @property
    def is_late(self) -> bool:
        """Whether the timekeeper would wake the broker at once."""
        return 0 < self.queues.deadlines.next_us <= self.now_us

    # Expiry of what is only in the store, as the clerk sees to it

    def sweep(self, between: Callable[[], None] = lambda: None) -> None:
        assert not self.loads
        rows = self.store.expired("a", self.now_us, 3, 1 << 20)
        between()
        messages = [message for row in rows if (message := self.replay.message_of_row(row)) is not None]
        self.decide(lambda out: self.queues.redelivery.expire_stored(messages, out))

    # Restarts

    def restart(self, *, has_room: bool = True) -> None:
        """Lose what is not durable and begin a new life; without room the store stays as the last checkpoint left it,
        and the rest of the log comes back into memory."""
        del self.log[self.told :]
        del self.vectors[self.told + 1 :]
        self._recount()
        # Nothing is lent before it is durable.
        self.records_coming = [coming for coming in self.records_coming if self.sent.keys() >= set(coming[1])]
        if has_room:
            self._apply(self.told)
        reduction = self._reduce(self.told)
        self._begin()
        for dot in reduction.tombstones():
            if dot.origin.node == "a":
                self.queues.owned.settled_early.add(dot)
        for counts in reduction.attempts.values():
            self.paging.attempts.update(counts)
        for row in sorted(row for run in reduction.runs() for row in rows_in(run)):
            message = self.replay.message_of_row(row)
            if row.dot.origin.node == "a" and message is not None:
                self.queues.intake.restore(message)
        for queue, dots in reduction.deletes.items():
            self.paging.settled_before(queue, [dot for dot in dots if dot.origin.node == "a"])

    def _records(self) -> list[tuple[Origin, Recorded]]:
        found: list[tuple[Origin, Recorded]] = []
        for batch in self.log:
            head = read_head(batch)
            assert head is not None
            for record in batch_records(batch):
                if record.kind == RecordKind.START:
                    continue
                if record.kind == RecordKind.SETTLE:
                    settle = Settle(record.destination, unpack_dots(record.body), record.sequence, record.timestamp_us)
                    found.append((head.origin, settle))
                elif record.kind == RecordKind.ATTEMPTS:
                    counts = unpack_attempts(record.body)
                    found.append((head.origin, Attempts(record.destination, counts, record.sequence, 0)))
                else:
                    queue = dot = None
                    if record.kind == RecordKind.DEAD:
                        queue, dot, record.body = unpack_dead(record.body)
                    message = self.replay.message_of(head.origin, record)
                    assert message is not None
                    if queue is not None and dot is not None:
                        found += [(head.origin, part) for part in parts(DeadLetter(message, queue, dot))]
                        continue
                    found.append((head.origin, message))
        return found

    def _recount(self) -> None:
        """The truth of what is durable."""
        self.sent.clear()
        self.settled.clear()
        self.failed.clear()
        self.left.clear()
        for _, record in self._records():
            self._note(record)
        self.peer_sequence = self.have().get(PEER, 0)
        self.old_sequence = self.have().get(OLD, 0)
