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
from qmq.broker.destination import Kind, is_pattern, kind_of
from qmq.broker.message import Envelope
from qmq.broker.outcome import Outcome
from qmq.broker.session import Held
from qmq.broker.subscription import Ack, Delivery, Subscription
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encode import NO_ACK_ID, subscription_prefix
from qmq.gateways.headers import OWN_HEADERS, ack_mode, fanout_start, is_persistent, prefetch, required
from qmq.wire.stomp import SUPPORTED_VERSIONS, Frame, Head, Version, encode_frame, encode_headers

KEEP_OPEN_CODES = frozenset({"queue-full", "disk-full", "unknown-destination", "too-many-destinations"})
"""Refusals after which a client may ask to stay connected: the frame was right, the moment was not."""


class Rules:
    """What the operator allows STOMP clients. `policy` gives (exists, durable) for a destination name."""

    __slots__ = ("control", "destination_bytes_max", "policy", "prefetch_default", "prefetch_max")

    def __init__(
        self,
        *,
        policy: Callable[[str], tuple[bool, bool]],
        control: Callable[[str], Mapping[str, str]],
        prefetch_default: int,
        prefetch_max: int,
        destination_bytes_max: int,
    ) -> None:
        self.policy = policy
        self.control = control
        self.prefetch_default = prefetch_default
        self.prefetch_max = prefetch_max
        self.destination_bytes_max = destination_bytes_max


class SendPlan:
    """What a SEND header block asks for, worked out once."""

    __slots__ = ("envelope", "is_bounded", "transaction")

    def __init__(self, envelope: Envelope, transaction: str | None) -> None:
        self.envelope = envelope
        self.transaction = transaction
        self.is_bounded = envelope.durable or envelope.kind is Kind.QUEUE


class StompGateway:
    """The dialogue with one logged-in client."""

    def __init__(self, session_id: int, broker: Broker, rules: Rules, version: Version, keep_open: bool) -> None:
        self.session_id = session_id
        self.version = version
        self._broker = broker
        self._rules = rules
        self._keep_open = keep_open
        # Consecutive ACKs of one read are settled together; tag -> delivery, in order.
        self._acked: dict[int, Delivery] = {}

    def handle(self, frames: list[Frame], now_us: int, out: Outcome) -> None:
        """Obey `frames` in order. Sets `out.ending` when the session must end; later frames are then ignored."""
        broker = self._broker
        receipts = out.receipts
        for frame in frames:
            head = frame.head
            try:
                plan = head.memo
                if plan is None and head.command == "SEND":
                    plan = self._plan(head)
                if isinstance(plan, SendPlan):
                    if self._acked:
                        self._settle_acked(out)
                    body = frame.body
                    if plan.transaction is not None:
                        held = Held(envelope=plan.envelope, body=body, receipt=frame.receipt)
                        broker.hold(self.session_id, plan.transaction, held)
                        continue
                    if plan.is_bounded:
                        broker.check_send(plan.envelope, len(body))
                    broker.send(plan.envelope, body, now_us, out)
                elif head.command == "ACK":
                    if self._acknowledge(frame, out):
                        continue
                else:
                    if self._acked:
                        self._settle_acked(out)
                    if self._obey(frame, now_us, out):
                        continue
                if frame.receipt is not None:
                    receipts.append(frame.receipt)
                if out.ending:
                    break
            except Refused as refused:
                # A transaction that misses a frame must not be committed without it.
                self.refuse(refused, frame.receipt, out, may_stay=not _is_held(head))
                if out.ending:
                    break
        if self._acked:
            self._settle_acked(out)

    def refuse(
        self, error: ProtocolError | Refused, receipt: str | None, out: Outcome, *, may_stay: bool = True
    ) -> None:
        """Answer with ERROR; end the session unless it may stay."""
        keep = may_stay and self._keep_open and error.code in KEEP_OPEN_CODES
        out.frames.append(encode_error(error, receipt, self.version))
        out.ending = not keep

    def _plan(self, head: Head) -> SendPlan | None:
        """Work out a SEND header block; None for a control destination, which is answered each time anew."""
        headers = head.headers
        destination = required(headers, "destination", "SEND")
        kind = kind_of(destination, self._rules.destination_bytes_max)
        if kind is Kind.CONTROL:
            return None
        if is_pattern(destination):
            raise Refused("bad-destination", "A message goes to one destination; * and # are for SUBSCRIBE to topics.")
        exists, durable = self._rules.policy(destination)
        if not exists:
            raise Refused("unknown-destination", "This destination is not configured, and none is made on use.")
        if kind is Kind.TOPIC:
            durable = False
        elif kind is Kind.FANOUT:
            self._broker.open_fanout(destination)
            durable = True
        else:
            durable = durable and is_persistent(headers)
        travelling = [(name, value) for name, value in headers.items() if name not in OWN_HEADERS]
        envelope = Envelope(destination, kind, encode_headers(travelling, Version.V12), durable)
        plan = SendPlan(envelope, headers.get("transaction"))
        head.memo = plan
        return plan

    def _settle_acked(self, out: Outcome) -> None:
        """Settle the run of ACKs, subscription by subscription."""
        acked = self._acked
        self._acked = {}
        by_subscription: dict[Subscription, list[Delivery]] = {}
        for delivery in acked.values():
            by_subscription.setdefault(delivery.subscription, []).append(delivery)
        for deliveries in by_subscription.values():
            self._broker.queues.settle(deliveries, out)

    def _acknowledge(self, frame: Frame, out: Outcome) -> bool:
        """Take one ACK; True when its receipt is held back by a transaction."""
        headers = frame.head.headers
        transaction = headers.get("transaction")
        delivery = self._find(headers)
        if delivery is None:
            return False
        if transaction is not None:
            held = Held(delivery=delivery, is_ack=True, receipt=frame.receipt)
            self._broker.hold(self.session_id, transaction, held)
            return True
        if delivery.subscription.ack is Ack.CLIENT_INDIVIDUAL:
            self._acked[delivery.tag] = delivery
        else:
            self._settle_acked(out)
            self._broker.acknowledge(delivery, out)
        return False

    def _find(self, headers: Mapping[str, str]) -> Delivery | None:
        """The delivery that an ACK or NACK names; None when there is nothing to settle (topics, fanouts, 1.0)."""
        if self.version >= Version.V12:
            text = headers.get("id", "")
            if text == NO_ACK_ID:
                return None
            if not (text.isascii() and text.isdigit()) or len(text) > 18:
                raise Refused("unknown-ack", "ACK and NACK need the header id, as it was in the header ack of MESSAGE.")
            tag = int(text)
        else:
            found = self._tag_of(headers)
            if found is None:
                return None
            tag = found
        if tag in self._acked:
            if self.version < Version.V11:
                return None
            raise Refused("unknown-ack", "The message with that id has been acknowledged before.")
        return self._broker.find_delivery(self.session_id, tag)

    def _tag_of(self, headers: Mapping[str, str]) -> int | None:
        """STOMP 1.0 and 1.1 settle by `message-id`, 1.1 also names the subscription (1.1, ACK)."""
        message_id = required(headers, "message-id", "ACK")
        session = self._broker.sessions[self.session_id]
        wanted = headers.get("subscription")
        if wanted is None and self.version >= Version.V11:
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
        if self.version < Version.V11:
            return None
        raise Refused("unknown-ack", "No message with that message-id is waiting for an ACK on this connection.")

    def _obey(self, frame: Frame, now_us: int, out: Outcome) -> bool:
        """Every command but SEND to a destination, and ACK; True when its receipt is told by someone else."""
        head = frame.head
        command = head.command
        headers = head.headers
        broker = self._broker
        if command == "SUBSCRIBE":
            self._subscribe(headers, out)
        elif command == "UNSUBSCRIBE":
            broker.unsubscribe(self.session_id, self._subscription_id(headers, command), out)
        elif command == "NACK":
            return self._refuse_delivery(frame, out)
        elif command == "BEGIN":
            broker.begin(self.session_id, required(headers, "transaction", command))
        elif command == "COMMIT":
            broker.commit(self.session_id, required(headers, "transaction", command), now_us, out)
        elif command == "ABORT":
            broker.abort(self.session_id, required(headers, "transaction", command))
        elif command == "DISCONNECT":
            out.ending = True
        else:
            assert command == "SEND", command
            self._control(frame, out)
            return True
        return False

    def _refuse_delivery(self, frame: Frame, out: Outcome) -> bool:
        """Take one NACK; True when its receipt is held back by a transaction."""
        headers = frame.head.headers
        delivery = self._find(headers)
        if delivery is None:
            return False
        transaction = headers.get("transaction")
        if transaction is not None:
            held = Held(delivery=delivery, is_ack=False, receipt=frame.receipt)
            self._broker.hold(self.session_id, transaction, held)
            return True
        self._broker.refuse(delivery, out)
        return False

    def _subscribe(self, headers: Mapping[str, str], out: Outcome) -> None:
        destination = required(headers, "destination", "SUBSCRIBE")
        kind = kind_of(destination, self._rules.destination_bytes_max)
        named = headers.get("id")
        subscription_id = self._subscription_id(headers, "SUBSCRIBE")
        if not is_pattern(destination) and kind is not Kind.CONTROL and not self._rules.policy(destination)[0]:
            raise Refused("unknown-destination", "This destination is not configured, and none is made on use.")
        ack = ack_mode(headers)
        prefix = subscription_prefix(self.version, named, kind is not Kind.QUEUE and ack is not Ack.AUTO)
        credit = prefetch(headers, self._rules.prefetch_default, self._rules.prefetch_max)
        subscription = Subscription(self.session_id, subscription_id, destination, ack, credit, prefix)
        if kind is Kind.FANOUT:
            subscription.start = fanout_start(headers)
        self._broker.subscribe(subscription, out)

    def _subscription_id(self, headers: Mapping[str, str], command: str) -> str:
        """`id`; a 1.0 client may leave it out, and its subscription is then known by its destination (1.0)."""
        if self.version >= Version.V11:
            return required(headers, "id", command)
        return headers.get("id") or required(headers, "destination", command)

    def _control(self, frame: Frame, out: Outcome) -> None:
        """Control destinations answer in the RECEIPT; without a receipt there is nobody to tell."""
        destination = frame.head.headers["destination"]
        answer = self._rules.control(destination)
        if frame.receipt is not None:
            headers = [("receipt-id", frame.receipt), *answer.items()]
            out.frames.append(encode_frame("RECEIPT", headers, version=self.version))


def _is_held(head: Head) -> bool:
    """Whether the frame was to be part of a transaction. (COMMIT is not: refused, it can be tried again.)"""
    return head.command in ("SEND", "ACK", "NACK") and "transaction" in head.headers


def encode_error(error: ProtocolError | Refused, receipt: str | None, version: Version) -> bytes:
    """An ERROR frame: `message` for people, `error-code` for programs, `receipt-id` when there was a receipt."""
    headers = [("message", error.message), ("error-code", error.code), ("content-type", "text/plain")]
    if receipt is not None:
        headers.append(("receipt-id", receipt))
    if error.code == "version-unsupported":
        headers.append(("version", SUPPORTED_VERSIONS))
    return encode_frame("ERROR", headers, (error.detail or error.message).encode(), version=version)
