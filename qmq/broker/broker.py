"""The rules of one node: every request of a client, a peer or the journal, and what follows from it.

Pure and synchronous: callers bring the time and an Outcome; the broker changes its state and adds to the Outcome what
must be recorded and delivered. It either does the whole request or raises `Refused` with nothing changed. Callers make
the calls of one chunk without an await between them, then `finish` the Outcome and commit it.

Sequences are given here, at the decision, so all requests are one module, and the commit path keeps their order. The
rules of each kind of destination have modules: `topics.router`, `queues`, `fanouts`, `subscriptions`, `transactions`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from qmq.broker.collected_records import collect_records
from qmq.broker.consumers.outcome import COPY_COST, DEAD_LETTERS_BYTES_MAX, Outcome
from qmq.broker.consumers.replies import Replies
from qmq.broker.consumers.session import ClientState
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.fanouts.durable_subscriptions import DurableSubscriptions
from qmq.broker.messages.dedup import Dedup
from qmq.broker.messages.dedup_learning import learn_id_of
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import DEFAULT_LIMITS, BrokerLimits
from qmq.broker.messages.message import DeadLetter, Envelope, Fact, Gap, Message
from qmq.broker.messages.receipt_levels import QUORUM, disks_of, strongest, with_quorum
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.broker.messages.sent_run import SentRun
from qmq.broker.queues.bulk_settlement import BulkSettlement
from qmq.broker.queues.dead_letters import Route
from qmq.broker.queues.lending.borrowing import Borrowing
from qmq.broker.queues.lending.lending import Lending
from qmq.broker.queues.queues import Queues
from qmq.broker.queues.state.stored_names import StoredNames
from qmq.broker.send_limits import RECORD_OVERHEAD_BYTES
from qmq.broker.subscriptions import Subscriptions
from qmq.broker.topics.router import TopicRouter
from qmq.broker.transactions import NOWHERE, Transactions, ends_of_runs
from qmq.model.deletions import Deletions
from qmq.model.dots import Dot, Origin, Vector

TOPIC, QUEUE = DestinationKind.TOPIC, DestinationKind.QUEUE
FANOUT, EXCHANGE = DestinationKind.FANOUT, DestinationKind.EXCHANGE
"""Asked about for every message: a name of the module is found faster than a member of an enumeration."""


class Broker:
    """State and rules of one node.

    `origin` is this incarnation; `next_sequence` the first free sequence of its journal. `rules_of` gives the
    rules of a queue by its name, `defaults_of` the headers that a message of it gets where its sender did not say,
    `route` the queues that an exchange leads a dead letter to, `received` what the node has of each origin. Of what is
    `forgotten`, live, the mesh has nothing left. `is_leaving` says whether a session gets nothing any more.
    """

    def __init__(
        self,
        origin: Origin,
        next_sequence: int,
        *,
        rules_of: Callable[[str], QueueRules] = lambda name: DEFAULT_RULES,
        defaults_of: Callable[[str], Mapping[str, str]] = lambda name: {},
        route: Route = lambda exchange, key, headers: ((), 0),
        limits: BrokerLimits = DEFAULT_LIMITS,
        received: Callable[[], Vector] = dict,
        forgotten: Collection[Origin] = (),
        is_leaving: Callable[[int], bool] = lambda session: False,
    ) -> None:
        self.origin = origin
        self.next_sequence = next_sequence
        self.memory_sequence = 0
        self.sessions: dict[int, ClientState] = {}
        self.topic_router = TopicRouter(limits)
        self.retained = self.topic_router.retained
        self.topics = self.topic_router.topics
        self.interest = self.topic_router.interest
        # Of fanouts; the store's readers go by the same.
        self.deletions = Deletions()
        self.dedup = Dedup()
        self.queues = Queues(
            self.dedup, origin, rules_of, self._dead_letter, lambda: self.send_limits.disk_full, defaults_of, route
        )
        self.queues.stored_names = StoredNames(limits.destinations_max)
        self.received, self.forgotten = received, forgotten
        self.durable_subscriptions = DurableSubscriptions(origin, self.queues.deliveries)
        self.clocks = self.queues.shared.clocks
        self.totals = self.queues.shared.totals
        self.lending = Lending(self.queues)
        self.borrowing = Borrowing(self.queues)
        self.replies = Replies(origin, limits.subscriptions_max, self.totals)
        self.subscriptions = Subscriptions(
            self.sessions,
            self.topic_router,
            self.queues,
            self.replies,
            self.durable_subscriptions,
            lambda: {**self.received(), self.origin: self.next_sequence - 1},
            lambda: self.next_sequence - 1,
            is_leaving,
        )
        self.send_limits = self.subscriptions.send_limits
        self.bulk_settlement = BulkSettlement(self.queues, self.send_limits.check_send)
        self.transactions = Transactions(self.sessions, self.queues, self.dedup, self.send_limits)
        self.limit(limits)

    def limit(self, limits: BrokerLimits) -> None:
        """From now on clients may have this much. A client that has more keeps it."""
        self.limits = self.send_limits.limits = limits
        self.replies.subscriptions_max = limits.subscriptions_max
        self.topic_router.limit(limits)
        self.durable_subscriptions.durables_max = limits.durable_subscriptions_max

    # Sessions

    def open_session(self, session_id: int, key: int = 0) -> ClientState:
        """A client has logged in; ids are never reused. `key`: 64 random bits, for its reply addresses."""
        session = self.sessions[session_id] = ClientState(session_id, key)
        return session

    def close_session(self, session_id: int, out: Outcome, why: Back = Back.RELEASED) -> None:
        """A client is gone, or is about to: its transactions end, its messages go back, its subscriptions end.

        `why` is LEFT where the client has said so itself. Nothing happens for one that is closed already.
        """
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        self.subscriptions.end_all(session, out, why)

    # Messages

    def send(
        self, envelope: Envelope, body: bytes, now_us: int, out: Outcome, taker: Subscription | None = None
    ) -> Message | None:
        """Accept one message and decide which clients get it. Call `SendLimits.check_send` first.

        `taker`: a consumer that pulls from its queue, and gets it (`Queues.may_give`).

        Returns the message; of an exchange the first of its copies, None if there is none.
        """
        kind = envelope.kind
        if kind is QUEUE and self.queues.any_overflows and not self.queues.overflow.has_room(envelope, body, out):
            return None
        if envelope.durable:
            sequence = self.next_sequence
            self.next_sequence = sequence + 1
            message = Message(envelope, body, self.origin, sequence, now_us)
            out.records.append(message)
            out.record_bytes += len(body) + len(envelope.headers) + RECORD_OVERHEAD_BYTES
        elif kind is EXCHANGE:
            self.totals.unroutable += not envelope.copies
            return self._send_copies(envelope, body, now_us, out)
        else:
            self.memory_sequence += 1
            message = Message(envelope, body, self.origin, -self.memory_sequence, now_us)
        totals, name = self.totals, envelope.destination
        (totals.by_name.get(name) or totals.begin(name, now_us)).accepted += 1
        if kind is TOPIC:
            self.topic_router.publish(message, out)
            if envelope.copies:
                self._send_copies(envelope, body, now_us, out)
            return message
        if envelope.key is not None:
            learn_id_of(message, self.dedup, now_us)
        if kind is QUEUE:
            self.queues.intake.push(message, out, taker)
        elif kind is FANOUT:
            out.publish_fanout(envelope.destination, message)
            self.subscriptions.count_selecting(envelope, out)
            self._send_copies(envelope, body, now_us, out)
        else:
            self.replies.send(message, out)
        return message

    def _send_copies(self, envelope: Envelope, body: bytes, now_us: int, out: Outcome) -> Message | None:
        """Accept the copies of a message; returns the first of them.

        One that its queue has by its dedup id is left out: bindings may have changed since the first attempt.
        """
        first: Message | None = None
        out.cost += COPY_COST * len(envelope.copies)
        for copy in envelope.copies:
            if copy.key is None or self.dedup.find(copy.key, now_us) is None:
                sent = self.send(copy, body, now_us, out)
                first = first or sent
        return first

    def send_run(
        self, envelope: Envelope, bodies: list[bytes], out: Outcome, envelopes: list[Envelope] | None = None
    ) -> bool:
        """`check_send` and `send` for many messages to one destination at once, accepted at `out.now_us`.

        False, with nothing changed, when a bound is so near that one of them might be refused or sent elsewhere.
        `envelope` is of a queue, fanout or topic, and has no dedup key, no copies, and nothing to do with a last value.
        `envelopes`: those of the messages, if they differ from `envelope` in their own headers.
        """
        durable = envelope.durable
        kind = envelope.kind
        body_bytes = sum(map(len, bodies))
        if durable and self.send_limits.disk_full:
            return False
        if kind is QUEUE and not self.queues.intake.may_push_run(
            envelope, len(bodies), body_bytes, self.limits.queue_memory_bytes_max
        ):
            return False
        now_us = out.now_us
        origin = self.origin
        totals, name = self.totals, envelope.destination
        (totals.by_name.get(name) or totals.begin(name, now_us)).accepted += len(bodies)
        if durable:
            numbered = enumerate(bodies, self.next_sequence)
            messages = [Message(envelope, body, origin, sequence, now_us) for sequence, body in numbered]
            self.next_sequence += len(bodies)
            out.records.extend(messages)
            out.record_bytes += body_bytes + len(bodies) * (len(envelope.headers) + RECORD_OVERHEAD_BYTES)
            if envelopes is not None:
                out.record_bytes += sum([len(one.headers) - len(envelope.headers) for one in envelopes])
        else:
            sent = SentRun(envelope, bodies, origin, self.memory_sequence + 1, now_us)
            self.memory_sequence += len(bodies)
            if kind is TOPIC and envelopes is None:
                self.topic_router.publish_run(sent, out)
                return True
            messages = sent.messages
        if envelopes is not None:
            for message, one in zip(messages, envelopes, strict=True):
                message.envelope = one
            if out.sent is not None:
                out.sent.extend([(message, False) for message in messages])
        if kind is QUEUE:
            self.queues.intake.push_run(messages, out)
        elif kind is TOPIC:  # It is in no journal, so these are `sent`.
            self.topic_router.publish_run(sent, out, is_alike=False)
        else:
            out.publish_fanout_run(envelope.destination, messages)
            self.subscriptions.count_selecting(envelope, out)
        return True

    def _dead_letter(
        self, envelopes: Sequence[Envelope], body: bytes, out: Outcome, queue: str, dot: Dot | None
    ) -> int:
        """The dead letters of one message: accepted without being asked for, so no bound holds them up.

        Returns the sequence of the record that settles the message `dot` of `queue`, too; 0 when there is no such one.
        That is the record of the last dead letter, right behind those of the others. They are in one batch
        (`qmq.record_codec`). If a batch were cut, a message would be there twice, and none would be lost.
        """
        if dot is None or not (envelopes and envelopes[0].durable):
            for envelope in envelopes:
                self.send(envelope, body, out.now_us, out)
            return 0
        queues = self.queues
        # A dead letter that does not fit can have dead letters of its own: their records stand in front.
        if queues.any_overflows:
            envelopes = [one for one in envelopes if queues.overflow.has_room(one, body, out)]
        dead_letters: list[Message] = []
        for envelope in envelopes:
            dead_letters.append(Message(envelope, body, self.origin, self.next_sequence, out.now_us))
            self.next_sequence += 1
            names = len(envelope.destination) + len(queue)
            out.record_bytes += len(body) + len(envelope.headers) + names + 2 * RECORD_OVERHEAD_BYTES
            self.totals.begin(envelope.destination, out.now_us).accepted += 1
        if not dead_letters:
            return 0
        out.records.extend(dead_letters[:-1])
        out.records.append(DeadLetter(dead_letters[-1], queue, dot))
        # Only now: a dead letter that a consumer gets at once must not come between them.
        for dead_letter in dead_letters:
            queues.intake.push(dead_letter, out)
        return dead_letters[-1].sequence

    def new_memory_sequence(self) -> int:
        """Numbers one more message of this node that is in no journal."""
        self.memory_sequence += 1
        return self.memory_sequence

    # Settling

    def acknowledge(self, delivery: Delivery, out: Outcome) -> None:
        """The client has processed the message (and, in `client` mode, all before it)."""
        self.settle(self.transactions.covered(delivery), out)

    def settle_for_good(self, delivery: Delivery, out: Outcome) -> None:
        """What is about to be acknowledged with `delivery` must never be handed out again: QUORUM."""
        if delivery.subscription.durable is None:
            out.settles_for_good(self.transactions.covered(delivery))

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries, all of one subscription, are done."""
        if deliveries and deliveries[0].subscription.durable is not None:
            self.durable_subscriptions.settle(deliveries, out)
            deliveries[0].subscription.acknowledged += len(deliveries)
            self.totals.begin(deliveries[0].subscription.destination).acknowledged += len(deliveries)
        else:
            self.queues.settlement.settle(deliveries, out)

    def refuse(self, delivery: Delivery, out: Outcome, why: Back = Back.FAILED) -> None:
        """NACK: a failed delivery; what becomes of a queue's message is in `messages.lifecycle`."""
        if delivery.subscription.durable is not None:
            self.durable_subscriptions.give_back(self.transactions.covered(delivery), out)
        else:
            self.queues.redelivery.give_back(self.transactions.covered(delivery), why, out)

    def commit(
        self,
        session_id: int,
        name: str,
        now_us: int,
        out: Outcome,
        level: int | None = None,
        elsewhere: Mapping[bytes, bool] = NOWHERE,
        *,
        is_quorum: bool | None = None,
    ) -> int:
        """Apply a transaction in one batch: all of it or, when Refused, none of it. Nothing may follow in `out`.

        Messages and copies whose dedup id is known here, or held `elsewhere`, are left out: they are appended already.

        Returns the level of its receipts: `level` and `is_quorum`, or the strongest that one of the frames asks for.
        """
        transactions = self.transactions
        frames, known, dead_letters_bytes = transactions.close(session_id, name, now_us, elsewhere)
        out.dead_letters_left = DEAD_LETTERS_BYTES_MAX - dead_letters_bytes
        asked = strongest({held.level for held in frames})
        level = disks_of(asked) if level is None else level
        if asked >= QUORUM if is_quorum is None else is_quorum:
            level = with_quorum(level)
        ends = ends_of_runs(frames)
        taken = 0
        for at, held in enumerate(frames):
            envelope = None if at < taken or id(held) in known else transactions.missing(held, now_us, elsewhere)
            if at < taken:
                pass
            elif held.envelope is not None and envelope is None:
                out.repeats = True
                if out.sent is not None:
                    out.sent.append((None, True))
            elif envelope is not None:
                out.repeats = out.repeats or envelope is not held.envelope
                end = ends[at]
                run = frames[at:end] if end > at + 1 and now_us == out.now_us else ()
                envelopes = [one.envelope for one in run if one.envelope is not None]
                if run and self.send_run(envelope, [one.body for one in run], out, envelopes):
                    taken = end
                else:
                    if end > at + 1 and envelope.destination not in self.queues.by_name:
                        ends[at + 1] = end  # The first message makes the queue, and the others are a run.
                    message = self.send(envelope, held.body, now_us, out)
                    if out.sent is not None:
                        out.sent.append((message, False))
            elif held.delivery is not None and held.delivery.tag in self.queues.deliveries:
                if held.is_ack:
                    if level >= QUORUM:
                        self.settle_for_good(held.delivery, out)
                    self.acknowledge(held.delivery, out)
                else:
                    self.refuse(held.delivery, out, held.why)
            if held.receipt is not None:
                out.receipt(held.receipt, level)
        return level

    def tick(self, out: Outcome) -> None:
        """Obey the deadlines that have come by `out.now_us`. Late ACKs for what is taken back will be ignored."""
        for delivery in self.queues.tick(out):
            if (session := self.sessions.get(delivery.subscription.session)) is not None:
                session.remember_late(delivery)

    def written(self, deliveries: list[Delivery], out: Outcome) -> None:
        """Messages of an `auto` subscription are with the operating system: they count as settled."""
        in_flight = self.queues.deliveries
        self.settle([delivery for delivery in deliveries if delivery.tag in in_flight], out)

    # The journal and the peers

    def accept(self, message: Message, out: Outcome) -> None:
        """A durable message of another origin came in over a link (or of an older life of this node)."""
        if self.deletions.covers(message.envelope.destination, message.origin, message.sequence):
            return
        if message.envelope.key is not None:
            known = learn_id_of(message, self.dedup, out.now_us)
            if known is not None:
                self.queues.settlement.retry_came(known, out)
        if message.envelope.kind is DestinationKind.FANOUT:
            self.send_limits.logged_fanouts.add(message.envelope.destination)
            out.publish_fanout(message.envelope.destination, message)
            self.subscriptions.count_selecting(message.envelope, out)
        elif message.envelope.kind is DestinationKind.QUEUE:
            owned = self.queues.owned
            if message.origin.node in owned.serves:
                self.queues.intake.take_in(message, out)
            elif message.origin.node in owned.gathering:
                owned.gathering[message.origin.node].messages.append(message)

    def accept_settles(self, queue: str, dots: list[Dot], have: Vector, record: Dot) -> None:
        """The settle record `record` of another origin came in; `have` is what is known here of every origin."""
        for dot in dots:
            if dot.origin not in self.forgotten:
                self.queues.settlement.settled_elsewhere(queue, dot, have.get(dot.origin, 0), record)

    def note_gap(self, origin: Origin, through: int, now_us: int, out: Outcome) -> None:
        """Records of `origin` up to `through` were given up by every peer that could be asked."""
        out.records.append(Gap(origin, through, self.next_sequence, now_us))
        out.has_gap = True
        self.next_sequence += 1

    def note_fact(self, kind: int, body: bytes, now_us: int, out: Outcome) -> None:
        """Record something about the mesh; its meaning is the node's business."""
        out.records.append(Fact(kind, body, self.next_sequence, now_us))
        out.record_bytes += RECORD_OVERHEAD_BYTES + len(body)
        self.next_sequence += 1

    def finish(self, out: Outcome, now_us: int) -> None:
        """Turn collected settles into records, one per queue. Call once, just before the Outcome is committed."""
        if self.queues.shared.dirty_queues:
            out.now_us = out.now_us or now_us
            self.queues.rounds.finish(out)
        if out.settles or out.attempts or out.moved or out.moves:
            self.next_sequence = collect_records(
                self.queues, self.durable_subscriptions, out, self.next_sequence, now_us
            )
