"""One STOMP client's frames to broker calls.

Pure: the session hands over the frames of one read, the time, and an Outcome; answers go into the Outcome like every
other effect. Login is the session's, because checking a password waits. What a frame's headers mean is worked out
once per distinct header block and kept with it (`Head.memo`), so a busy sender costs a look-up per frame.

A frame that the rules forbid is answered with ERROR and ends the session, as the specification says; the frames
before it in the same read stand. A client that sent `on-error:keep-open` with CONNECT stays when a bound or a missing
destination was the reason (design section 7).
"""

from collections.abc import Callable, Mapping

from qmq.broker.broker import Broker
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.deliveries import find_delivery, find_run
from qmq.broker.consumers.outcome import BESIDE_BYTES_MAX, COST_MAX, Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.destination import JOURNAL, DestinationKind, is_pattern, kind_of
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, HEARD, QUORUM, asked_level, asks_quorum
from qmq.errors import ProtocolError, Refused
from qmq.gateways.buffer_headers import buffer_of
from qmq.gateways.durable_headers import delete_durable, durable_name, durable_words
from qmq.gateways.encode import NO_ACK_ID, subscription_prefix
from qmq.gateways.headers import (
    ack_mode,
    ack_timeout_us,
    consumer_asks,
    fanout_start,
    is_said,
    journal_span,
    nack_reason,
    prefetch,
    required,
    selector,
)
from qmq.gateways.reply_to import ReplyTo
from qmq.gateways.retries import Repeats
from qmq.gateways.rules import Rules
from qmq.gateways.send_plans import SendPlan, SendPlans
from qmq.wire.stomp import SUPPORTED_VERSIONS, Acks, Frame, Head, Version, encode_frame
from qmq.wire.stomp.refusals import shown

KEEP_OPEN_CODES = frozenset(
    {
        "queue-full",
        "disk-full",
        "memory-full",
        "bad-destination",
        "unknown-destination",
        "too-many-destinations",
        "too-many-patterns",
        "too-many-selectors",
        "too-many-retained",
        "not-allowed",
        "too-few-copies",
        "durable-in-use",
        "not-caught-up",
        "too-many-durables",
    }
)
"""Refusals after which a client may ask to stay connected: the frame was right, the moment or the user was not."""

BYTES_OF_COST = 5
"""Of what a subscription costs in memory: reading its selector or pattern takes as long as one unit of selecting, so
that about 5 ms of it fit into one turn."""

SEARCHED_OF_COST = 3
"""Messages in flight that are searched for a message-id in the time of one unit of selecting."""

CONFIGURED_KINDS = (DestinationKind.TOPIC, DestinationKind.QUEUE, DestinationKind.FANOUT)
"""Kinds whose destinations the operator may have to name before somebody uses them."""


class StompGateway:
    """The dialogue with one logged-in client. `check_right` raises Refused when its `user` may not subscribe to this
    system topic.
    """

    def __init__(
        self,
        session_id: int,
        broker: Broker,
        rules: Rules,
        version: Version,
        keep_open: bool,
        *,
        client_id: str = "",
        user: str | None = None,
        check_right: Callable[[str | None, str], None] = lambda user, destination: None,
        window: ConnectionPrefetch[Subscription] | None = None,
        answers_early: bool = False,
    ) -> None:
        self.session_id = session_id
        self.client_id = client_id
        self.version = version
        self._broker = broker
        self._rules = rules
        self.keep_open = keep_open
        self._user = user
        self._check_right = check_right
        self._window = window
        self._answers_early = answers_early
        self._replies = ReplyTo(session_id, broker, version)
        # Consecutive ACKs of one read are settled together; tag -> delivery, in order.
        self._acked: dict[int, Delivery] = {}
        self._plans = SendPlans(broker, rules, self._replies, user)
        self.repeats = Repeats(session_id, broker, self._plans)
        self.goes_on = False
        """Whether what `handle` returned last needs no answer from elsewhere, only an Outcome of its own."""
        self._may_run = True
        self._nameless: str | None = None
        """How the one subscription is known that a client of 1.1 or 1.2 gave no id; None when there is none."""
        self.has_left = False
        """Whether the client has said so itself (DISCONNECT)."""

    def handle(self, frames: list[Frame], now_us: int, out: Outcome) -> list[Frame]:
        """Obey `frames` in order. Sets `out.ending` when the session must end; later frames are then ignored.

        Stops before what more than this node's rules must answer, and returns it with what follows. For a question to a
        control destination somebody else finds the answer, gives it to `send_answer`, and comes back with the rest. For
        a SEND that is appended already, or a SEND or COMMIT that peers are to be asked about, see `Repeats`.
        Stops, too, behind a refused frame whose client stays, because within one Outcome receipts come before ERRORs,
        where what was obeyed sets off so much selecting that others must have their turn, and behind a COMMIT (before
        one, too, where there are many records), so that it is one batch.
        """
        broker = self._broker
        out.now_us = now_us
        generation = self._rules.generation
        count = len(frames)
        at = 0
        # Until one was not taken: a bound is near, and each attempt looks at all that follows.
        may_run = self._may_run or not self.goes_on
        self.goes_on = False
        is_over = False
        while at < count:
            if is_over or out.selector_cost >= COST_MAX:
                if self._acked:
                    self._settle_acked(out)
                self.goes_on = True
                self._may_run = may_run
                return frames[at:]
            frame = frames[at]
            at += 1
            head = frame.head
            level: int | None = FSYNC
            try:
                plan = head.memo
                if plan is None and head.command == "SEND":
                    plan = self._plans.of(head)
                if isinstance(plan, SendPlan):
                    if plan.generation != generation:
                        plan = self._plans.of(head)
                        assert plan is not None, "no destination becomes a control destination"
                    if self._acked:
                        self._settle_acked(out)
                    if plan.may_run and may_run and at < count and frames[at].head is head:
                        taken = self._send_all(plan, frames, at - 1, out)
                        if taken:
                            at += taken - 1
                            continue
                        may_run = False
                    body = frame.body
                    if plan.transaction is not None:
                        is_early = plan.is_early or self._answers_early
                        held = HeldFrame(
                            envelope=plan.envelope,
                            body=body,
                            receipt=None if is_early else frame.receipt,
                            level=plan.level,
                            is_retry=plan.is_retry,
                        )
                        broker.transactions.hold(self.session_id, plan.transaction, held)
                        if is_early and frame.receipt is not None:
                            out.receipt(frame.receipt, ACCEPTED)
                        continue
                    if plan.is_bounded:
                        if plan.key is not None and not self.repeats.is_first(plan.key, plan.is_retry, now_us):
                            return frames[at - 1 :]
                        broker.send_limits.check_send(plan.envelope, len(body))
                    elif frame.receipt is not None and plan.envelope.kind is DestinationKind.REPLY:
                        # Without a receipt it is dropped: a requester that has left must not cost its worker the line.
                        broker.replies.check(plan.envelope.destination)
                    broker.send(plan.envelope, body, now_us, out)
                    level = plan.level
                elif isinstance(frame, Acks):
                    self._acknowledge_all(frame, out)
                elif head.command == "ACK":
                    level = self._acknowledge(frame, out)
                elif head.command == "SEND":
                    if self._acked:
                        self._settle_acked(out)
                    return frames[at - 1 :]
                else:
                    if self._acked:
                        self._settle_acked(out)
                    # A farewell by itself: what came before is told, and receipted, before the end is decided.
                    is_late = head.command == "COMMIT" and out.record_bytes >= BESIDE_BYTES_MAX
                    if is_late or (head.command == "DISCONNECT" and at > 1):
                        self.goes_on = True
                        self._may_run = may_run
                        return frames[at - 1 :]
                    if head.command == "COMMIT" and self.repeats.of_commit(frame, now_us):
                        return frames[at - 1 :]
                    level = self._obey(frame, now_us, out)
                    is_over = head.command == "COMMIT"
                if frame.receipt is not None and level is not None:
                    out.receipt(frame.receipt, level)
                if out.ending:
                    break
            except Refused as refused:
                # A transaction that misses a frame must not be committed without it.
                self.refuse(refused, frame.receipt, out, may_stay=not _is_held(head))
                is_over = True
                if out.ending:
                    break
        if self._acked:
            self._settle_acked(out)
        self.repeats.forget()
        return []

    def _send_all(self, plan: SendPlan, frames: list[Frame], start: int, out: Outcome) -> int:
        """Send what has the header block of the frame at `start`, from there on, as one; returns how many these were.

        0, with nothing changed, when one of them might be refused, or go elsewhere: then each is asked about.
        """
        head = frames[start].head
        end = start + 1
        while end < len(frames) and frames[end].head is head:
            end += 1
        run = frames[start:end]
        if not self._broker.send_run(plan.envelope, [frame.body for frame in run], out):
            return 0
        receipts = [frame.receipt for frame in run if frame.receipt is not None]
        if receipts:
            out.receipt_run(receipts, plan.level)
        return len(run)

    def send_answer(self, request: Frame, headers: Mapping[str, str], body: bytes, now_us: int, out: Outcome) -> None:
        """Answer a SEND to a control destination: `headers` in its RECEIPT, `body` to its `reply-to`.

        Without either there is nobody to tell. Raises Refused for a `reply-to` that is no temporary queue.
        """
        asked = request.head.headers
        if "reply-to" in asked:
            self._broker.send(self._replies.envelope_of_answer(asked), body, now_us, out)
        if request.receipt is not None:
            lines = [("receipt-id", request.receipt), *headers.items()]
            out.frames.append(encode_frame("RECEIPT", lines, version=self.version))

    def refuse(
        self, error: ProtocolError | Refused, receipt: str | None, out: Outcome, *, may_stay: bool = True
    ) -> None:
        """Answer with ERROR; end the session unless it may stay."""
        keep = may_stay and self.keep_open and error.code in KEEP_OPEN_CODES
        out.frames.append(encode_error(error, receipt, self.version))
        out.ending = not keep

    def _settle_acked(self, out: Outcome) -> None:
        """Settle the run of ACKs, subscription by subscription."""
        acked = self._acked
        self._acked = {}
        by_subscription: dict[Subscription, list[Delivery]] = {}
        for delivery in acked.values():
            by_subscription.setdefault(delivery.subscription, []).append(delivery)
        for deliveries in by_subscription.values():
            self._broker.settle(deliveries, out)

    def _acknowledge_all(self, acks: Acks, out: Outcome) -> None:
        """Take ACKs that say nothing but their ids: together when they settle one by one, and all of them can."""
        if self._acked:
            self._settle_acked(out)
        deliveries = find_run(self._broker.queues.deliveries, self.session_id, list(map(int, acks.numbers)))
        if deliveries is not None:
            self._broker.settle(deliveries, out)
            return
        for frame in acks.one_by_one():
            self._acknowledge(frame, out)

    def _acknowledge(self, frame: Frame, out: Outcome) -> int | None:
        """Take one ACK; returns the level of its receipt, None when a transaction holds that back."""
        headers = frame.head.headers
        transaction = headers.get("transaction")
        delivery = self._find(headers, out)
        if delivery is None:
            return FSYNC
        level = self._level_of_settle(frame, delivery, self._rules.level_of_ack)
        if transaction is not None:
            receipt = None if self._answers_early else frame.receipt
            held = HeldFrame(delivery=delivery, is_ack=True, receipt=receipt, level=level)
            self._broker.transactions.hold(self.session_id, transaction, held)
            return ACCEPTED if self._answers_early else None
        if level >= QUORUM:
            self._broker.settle_for_good(delivery, out)
        if delivery.subscription.ack is Ack.CLIENT_INDIVIDUAL:
            self._acked[delivery.tag] = delivery
        else:
            self._settle_acked(out)
            self._broker.acknowledge(delivery, out)
        return level

    def _level_of_settle(
        self, frame: Frame, delivery: Delivery, of_queue: Callable[[Mapping[str, str], str], int]
    ) -> int:
        """The level for the receipt of an ACK or NACK, by `of_queue` for a queue's message; nobody asks when it has no
        receipt and is in no transaction."""
        envelope = delivery.message.envelope
        if not _is_answered(frame):
            return FSYNC
        level_of = of_queue if envelope.kind is DestinationKind.QUEUE else self._rules.level_of
        asked = level_of(frame.head.headers, envelope.destination)
        return asked if envelope.durable else FSYNC

    def _find(self, headers: Mapping[str, str], out: Outcome) -> Delivery | None:
        """The delivery that an ACK or NACK names, or the last before it that it covers when it comes too late itself.

        None when there is nothing to settle (topics, fanouts, 1.0).
        """
        if self.version >= Version.V12:
            text = headers.get("id", "")
            if text == NO_ACK_ID:
                return None
            if text.isascii() and text.isdigit() and len(text) <= 18:
                tag = int(text)
            else:
                found = self._tag_of_message_id(text, out)
                if found is None:
                    _check_late(headers)
                    return self._broker.sessions[self.session_id].before_late(text)
                tag = found
        else:
            found = self._tag_of(headers)
            if found is None:
                return None
            tag = found
        if tag in self._acked:
            if self.version < Version.V11:
                return None
            raise Refused("unknown-ack", f"The message with the id {_named(headers)} has been acknowledged before.")
        session = self._broker.sessions[self.session_id]
        if session.was_late(tag):
            _check_late(headers)
            return session.before_late(tag)
        return find_delivery(self._broker.queues.deliveries, self.session_id, tag)

    def _tag_of(self, headers: Mapping[str, str]) -> int | None:
        """STOMP 1.0 and 1.1 settle by `message-id`, 1.1 also names the subscription (1.1, ACK)."""
        message_id = required(headers, "message-id", "ACK")
        session = self._broker.sessions[self.session_id]
        wanted = headers.get("subscription")
        if wanted is None and self.version >= Version.V11 and self._nameless is None:
            raise Refused("missing-header", "ACK needs the header subscription in STOMP 1.1.")
        for subscription in session.subscriptions.values():
            if wanted is not None and subscription.id != wanted:
                continue
            ids = subscription.message_ids
            if ids is None:
                if subscription.ack is not Ack.AUTO and wanted is not None:
                    return None  # a topic or fanout subscription: nothing waits for the ACK
                continue
            tag = ids.get(message_id)
            if tag is not None:
                return tag
        if session.was_late(message_id):
            _check_late(headers)
            before = session.before_late(message_id)
            return None if before is None else before.tag
        if self.version < Version.V11:
            return None
        raise Refused(
            "unknown-ack", f"No message with the message-id {_named(headers)} waits for an ACK on this connection."
        )

    def _tag_of_message_id(self, message_id: str, out: Outcome) -> int | None:
        """What a 1.2 client means that gives the message-id as `id`: that is no number, so there is no doubt.

        None for a delivery that was late. What the search costs is toil of `out`.
        """
        session = self._broker.sessions[self.session_id]
        number = message_id.rpartition("-")[2].removeprefix("m")
        sequence = int(number) if number.isascii() and number.isdigit() and len(number) <= 18 else 0
        if sequence:
            for subscription in session.subscriptions.values():
                out.selector_cost += len(subscription.in_flight) // SEARCHED_OF_COST
                for tag, delivery in subscription.in_flight.items():
                    message = delivery.message
                    if message.sequence in (sequence, -sequence) and message.message_id == message_id:
                        return tag
        if session.was_late(message_id):
            return None
        what = f"not {shown(message_id)}" if message_id else "and there is none"
        raise Refused(
            "unknown-ack",
            f"ACK and NACK need the header id, as it was in the header ack of a MESSAGE that waits for it, {what}.",
        )

    def _obey(self, frame: Frame, now_us: int, out: Outcome) -> int | None:
        """Every command but SEND to a destination, and ACK; returns the level of its receipt, None when someone else
        tells that."""
        head = frame.head
        command = head.command
        headers = head.headers
        broker = self._broker
        if command == "SUBSCRIBE":
            heard = self._subscribe(headers, now_us, out)
            out.begins = out.begins or frame.receipt is not None
            return heard
        elif command == "UNSUBSCRIBE":
            self._unsubscribe(headers, now_us, out)
        elif command == "NACK":
            return self._refuse_delivery(frame, out)
        elif command == "BEGIN":
            broker.transactions.begin(self.session_id, required(headers, "transaction", command))
        elif command == "COMMIT":
            asked = headers.get("receipt-level")
            level = None if asked is None else asked_level(asked, self._rules.replicas_max)
            word = headers.get("ack-level")
            name = required(headers, "transaction", command)
            return broker.commit(
                self.session_id,
                name,
                now_us,
                out,
                level,
                self.repeats.asked,
                is_quorum=None if word is None else asks_quorum(word),
            )
        elif command == "ABORT":
            broker.transactions.abort(self.session_id, required(headers, "transaction", command))
        else:
            assert command == "DISCONNECT", command
            out.ending = True
            self.has_left = True
        return FSYNC

    def _refuse_delivery(self, frame: Frame, out: Outcome) -> int | None:
        """Take one NACK; returns the level of its receipt, None when a transaction holds that back."""
        headers = frame.head.headers
        why = nack_reason(headers)
        delivery = self._find(headers, out)
        if delivery is None:
            return FSYNC
        level = self._level_of_settle(frame, delivery, self._rules.level_of)
        transaction = headers.get("transaction")
        if transaction is not None:
            receipt = None if self._answers_early else frame.receipt
            held = HeldFrame(delivery=delivery, is_ack=False, why=why, receipt=receipt, level=level)
            self._broker.transactions.hold(self.session_id, transaction, held)
            return ACCEPTED if self._answers_early else None
        self._broker.refuse(delivery, out, why)
        return level

    def _unsubscribe(self, headers: Mapping[str, str], now_us: int, out: Outcome) -> None:
        """End a subscription; with the words that made it durable, forget it too."""
        named = headers.get("id") or (headers.get("destination") if self.version < Version.V11 else None)
        words = durable_words(headers, named or "", self.client_id)
        if words is not None and (words[0] or named):
            delete_durable(self._broker, headers, words, self.session_id, named, now_us, out)
        else:
            wanted = self._subscription_id(headers, "UNSUBSCRIBE")
            self._broker.subscriptions.unsubscribe(self.session_id, wanted, out)
            if wanted == self._nameless:
                self._nameless = None

    def _subscribe(self, headers: Mapping[str, str], now_us: int, out: Outcome) -> int:
        """Begin a subscription; returns the level of its receipt."""
        destination = required(headers, "destination", "SUBSCRIBE")
        kind = kind_of(destination, self._rules.destination_bytes_max)
        if kind is DestinationKind.SYSTEM:
            self._check_right(self._user, destination)
        is_nameless = not headers.get("id") and self.version >= Version.V11
        subscription_id = self._subscription_id(headers, "SUBSCRIBE")
        # STOMP 1.1 and 1.2 want a subscription on every MESSAGE.
        named = subscription_id if is_nameless else headers.get("id")
        if not is_pattern(destination) and kind in CONFIGURED_KINDS and not self._rules.policy(destination)[0]:
            raise Refused("unknown-destination", "This destination is not configured, and none is made on use.")
        ack = ack_mode(headers)
        durable = durable_name(headers, kind, destination, subscription_id, self.client_id)
        if is_nameless:
            if durable is not None and not durable.client:
                raise Refused("missing-header", "A durable subscription is named by the header id of SUBSCRIBE.")
        credit = prefetch(headers, self._rules.prefetch_default, self._rules.prefetch_max)
        buffer = buffer_of(headers, kind, self._rules.buffer_bytes_max)
        wanted = selector(headers)
        if kind is DestinationKind.TOPIC and ack is Ack.AUTO and named and buffer is None and wanted is None:
            if not is_pattern(destination) and self._broker.subscriptions.listen(self.session_id, destination, named):
                if is_nameless:
                    self._nameless = subscription_id
                return HEARD
        needs_no_ack = kind is not DestinationKind.QUEUE and ack is not Ack.AUTO and durable is None
        prefix = subscription_prefix(self.version, named, needs_no_ack)
        subscription = Subscription(self.session_id, subscription_id, destination, ack, credit, prefix)
        subscription.buffer = buffer
        subscription.selector = wanted
        if kind is DestinationKind.FANOUT:
            subscription.start = fanout_start(headers, "first" if durable is None else "next")
        elif kind is DestinationKind.QUEUE:
            subscription.asks = consumer_asks(headers, self._rules.destination_bytes_max)
            subscription.ack_timeout_us = ack_timeout_us(headers)
            subscription.exclusive = is_said(headers, "exclusive", "activemq.exclusive")
            subscription.is_browser = is_said(headers, "browser")
            if subscription.is_browser and ack is not Ack.AUTO:
                raise Refused("bad-ack-mode", "A browser is given copies and settles nothing: its ack is auto.")
            subscription.window = self._window
            target = None if subscription.asks is None else subscription.asks.dead_letter
            if target and not self._rules.policy(target)[0]:
                raise Refused("bad-dead-letter", "The dead letter queue is not configured, and none is made on use.")
        elif destination == JOURNAL:
            subscription.start = journal_span(headers)
            subscription.is_browser = True
        if durable is None:
            self._broker.subscriptions.subscribe(subscription, out)
        else:
            self._broker.subscriptions.subscribe_durable(subscription, durable, now_us, out)
        if is_nameless:
            self._nameless = subscription_id
        out.selector_cost += subscription.memory_bytes // BYTES_OF_COST
        return HEARD if kind is DestinationKind.TOPIC else FSYNC

    def _subscription_id(self, headers: Mapping[str, str], command: str) -> str:
        """`id`; a 1.0 client may leave it out, and its subscription is then known by its destination (1.0).

        So may others for one subscription at a time, as they do at other brokers.
        """
        named = headers.get("id")
        if named:
            return named
        if self.version >= Version.V11:
            if command == "UNSUBSCRIBE":
                return self._nameless or required(headers, "id", command)
            if self._nameless is not None:
                raise Refused(
                    "missing-header", "SUBSCRIBE needs the header id: this connection has a subscription without one."
                )
        return required(headers, "destination", command)


def _check_late(headers: Mapping[str, str]) -> None:
    """The delivery was taken back when its ack-timeout had passed. That means nothing, but in a transaction: what was
    made of the message will be made again, so it must not be committed."""
    if "transaction" in headers:
        raise Refused("unknown-ack", "The ack-timeout of this message has passed; its transaction cannot be committed.")


def _named(headers: Mapping[str, str]) -> str:
    """What an ACK or NACK names, for an error."""
    return shown(headers.get("id") or headers.get("message-id", ""))


def _is_held(head: Head) -> bool:
    """Whether the frame was to be part of a transaction. (COMMIT is not: refused, it can be tried again.)"""
    return head.command in ("SEND", "ACK", "NACK") and "transaction" in head.headers


def _is_answered(frame: Frame) -> bool:
    return frame.receipt is not None or _is_held(frame.head)


def encode_error(
    error: ProtocolError | Refused, receipt: str | None, version: Version, subscription: str | None = None
) -> bytes:
    """An ERROR frame: `message` for people, `error-code` for programs, `receipt-id` when there was a receipt,
    `subscription` when it is about one."""
    headers = [("message", error.message), ("error-code", error.code), ("content-type", "text/plain")]
    if receipt is not None:
        headers.append(("receipt-id", receipt))
    if subscription is not None:
        headers.append(("subscription", subscription))
    if error.code == "version-unsupported":
        headers.append(("version", SUPPORTED_VERSIONS))
    return encode_frame("ERROR", headers, (error.detail or error.message).encode(), version=version)
