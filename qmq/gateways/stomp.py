"""One client's commands to broker calls.

Pure: the session passes the commands of one read, the time, and an Outcome; answers go into the Outcome like every
other effect. Login is the session's, because checking a password waits. What the headers of a SEND mean is worked out
once per distinct header block and kept with it (`Head.memo`), so a busy sender costs a look-up per SEND.

A frame that the rules forbid is answered with ERROR and ends the session, as the specification says; the frames
before it in the same read stand. A client that sent `on-error:keep-open` with CONNECT stays when a bound or a missing
destination was the reason (design section 7).
"""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from qmq.access.rights import NOT_ALLOWED, Rights
from qmq.broker.broker import Broker
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.orders import Abort, Begin, Commit, Disconnect, Order, SettleDeliveries, Subscribe
from qmq.broker.consumers.outcome import BESIDE_BYTES_MAX, COST_MAX, Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import StartAt, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, asked_level, asks_quorum
from qmq.errors import ProtocolError, Refused
from qmq.gateways.ack_frames import AckFrames, is_held
from qmq.gateways.bound_queues import BoundQueue
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.gateways.encoder import Encoder
from qmq.gateways.error_frames import KEEP_OPEN_CODES
from qmq.gateways.headers import nack_reason, required
from qmq.gateways.paused import Command, Paused, PauseReason, begins_run, run_at
from qmq.gateways.reply_to import ReplyTo
from qmq.gateways.retries import Repeats
from qmq.gateways.rules import Rules
from qmq.gateways.send_plans import SendPlan, SendPlans
from qmq.gateways.subscribe_frames import SubscribeFrames
from qmq.wire.stomp import Acks, Frame, Head, Sends, Version

PLANNED_COPY_COST: Final = 25
"""What working out one copy of a message costs, in the unit of `Outcome.cost`: its headers are encoded."""


class StompGateway:
    """The dialogue with one logged-in client, which may do what its `rights` allow.

    `is_atomic`: after a refusal the frames that follow in the same read are ignored, and transactions are aborted, but
    the session stays. So a protocol of requests has one answer to each, and a request is decided whole or not at all.

    `stays`: after a refusal the session stays, and the frames that follow are obeyed, until `ignores` is set. So a
    protocol with channels can end one of them.

    `sets`: headers of the node's own (`OWN_HEADERS`) that travel with its SENDs, because the node itself writes them.
    """

    def __init__(
        self,
        session_id: int,
        broker: Broker,
        rules: Rules,
        version: Version,
        keep_open: bool,
        *,
        rights: Rights,
        client_id: str = "",
        user: str | None = None,
        window: ConnectionPrefetch[Subscription] | None = None,
        answers_early: bool = False,
        encoder: Encoder | None = None,
        is_atomic: bool = False,
        stays: bool = False,
        sets: frozenset[str] = frozenset(),
    ) -> None:
        self.session_id = session_id
        self.encoder: Encoder = encoder or STOMP_ENCODERS[version]
        self._broker = broker
        self._rules = rules
        self.keep_open = keep_open
        self._answers_early = answers_early
        self.is_atomic = is_atomic
        self._stays = stays
        self.ignores = False
        """Whether all frames are ignored from now on."""
        self.has_refused = False
        """Whether a frame was refused; set back by the caller."""
        self._replies = ReplyTo(session_id, broker, self.encoder, sets)
        self._rights = rights
        self._plans = SendPlans(broker, rules, self._replies, rights, user)
        self._subscribing = SubscribeFrames(
            session_id,
            broker,
            rules,
            version,
            rights,
            self.encoder,
            client_id=client_id,
            window=window,
        )
        self._acks = AckFrames(session_id, broker, rules, version, self._subscribing, answers_early=answers_early)
        self.repeats = Repeats(session_id, broker, self._plans)
        # Whether SENDs may be taken as one; False after a pause for a turn if a bound was near before it.
        self._may_run = True
        self.denied: ProtocolError | Refused | None = None
        """What the permissions refused last, for the audit."""
        self.found_queue = ""
        """The queue of a mandatory SEND that exists on another node."""
        self.has_left = False
        """Whether the client has sent DISCONNECT."""

    def handle(self, commands: list[Command], now_us: int, out: Outcome) -> Paused | None:
        """Obey `commands` in order; None when all are decided. Sets `out.ending` when the session must end; later ones
        are then ignored.

        Pauses before a command for which the rules of this node alone are not enough: a control request, a SEND that is
        appended already, and a SEND or commit that peers are to be asked about. It pauses for a turn of other tasks,
        too: behind a refused command whose client stays, because within one Outcome receipts come before ERRORs; where
        it has cost COST_MAX; and behind a commit (before one, too, where there are many records), so that it is one
        batch.
        """
        out.now_us = now_us
        if self.ignores:
            return None
        generation = self._rules.generation
        sends = self._rights.sends
        acks = self._acks
        count = len(commands)
        at = 0
        # Until a run was not taken: a bound is near, and each attempt looks at all that follows.
        may_run = self._may_run
        self._may_run = True
        is_over = False
        while at < count:
            if is_over or out.cost + out.selector_cost >= COST_MAX:
                if acks.pending:
                    acks.settle(out)
                self._may_run = may_run
                return Paused(PauseReason.TURN, commands[at:])
            command = commands[at]
            order: Order | None = None
            level: int | None = FSYNC
            try:
                if isinstance(command, Acks):
                    acks.acknowledge_all(command, out)
                elif isinstance(command, Sends) and not (may_run and self._may_send(command)):
                    commands = [*commands[:at], *command.one_by_one(), *commands[at + 1 :]]
                    count = len(commands)
                    continue
                elif isinstance(command, Frame):
                    head = command.head
                    plan = head.memo
                    if plan is None and head.command == "SEND":
                        plan = self._planned(head, out)
                    if isinstance(plan, SendPlan):
                        if plan.generation != generation:
                            plan = self._planned(head, out)
                            assert plan is not None, "no destination becomes a control destination"
                        envelope: Envelope | None = plan.envelope
                        if acks.pending:
                            acks.settle(out)
                        if sends is not None and plan.envelope.destination not in sends:
                            self._rights.check_send(plan.envelope.destination)
                        if plan.may_run:
                            if may_run and (at + 1 < count or isinstance(command, Sends)) and begins_run(commands, at):
                                taken = self._send_run(plan, commands, at, out)
                                if taken:
                                    at += taken
                                    continue
                                may_run = False
                                if isinstance(command, Sends):
                                    continue
                        elif plan.key is not None and (envelope := self.repeats.to_append(plan, now_us)) is None:
                            return self.repeats.pause(commands[at:], now_us)
                        elif plan.is_mandatory and self._is_unknown(plan.envelope.destination):
                            return Paused(PauseReason.NEED, commands[at:], queue=plan.envelope.destination)
                        elif plan.check_body is not None:
                            # In a transaction, too: the rest is not worth waiting for, and each SEND has its turn.
                            out.cost += plan.check_body(command.body)
                        assert envelope is not None, "what is a duplicate has paused"
                        level = self._send(plan, envelope, command, now_us, out)
                    elif head.command == "ACK":
                        level = acks.acknowledge(command, None, out)
                    else:
                        if acks.pending:
                            acks.settle(out)
                        if head.command == "SEND":
                            return Paused(PauseReason.CONTROL, commands[at:])
                        if head.command == "NACK":
                            level = acks.acknowledge(command, nack_reason(head.headers), out)
                        elif head.command == "SUBSCRIBE" or head.command == "UNSUBSCRIBE":
                            bound = self._subscribing.missing(head)
                            start = self._subscribing.beginning(head) if bound is None else None
                            if bound is not None or start is not None:
                                self._may_run = may_run
                                return Paused(PauseReason.NEED, commands[at:], bound=bound, start=start)
                            level = self._subscribe(command, now_us, out)
                        else:
                            order = order_of(command)
                else:
                    order = command
                if order is not None:
                    if isinstance(order, SettleDeliveries):
                        level = acks.obey(order, out)
                    else:
                        if acks.pending:
                            acks.settle(out)
                        is_over = isinstance(order, Commit)
                        # Disconnect by itself: what came before is sent, and confirmed, before the end is decided.
                        if (is_over and out.record_bytes >= BESIDE_BYTES_MAX) or (at and isinstance(order, Disconnect)):
                            self._may_run = may_run
                            return Paused(PauseReason.TURN, commands[at:])
                        if isinstance(order, Commit) and (keys := self.repeats.of_commit(order.transaction, now_us)):
                            return Paused(PauseReason.DEDUP, commands[at:], keys)
                        level = self._obey(order, now_us, out)
                if command.receipt is not None and level is not None:
                    out.receipt(command.receipt, level)
            except Refused as refused:
                if isinstance(command, Frame) and command.head.command == "SEND":
                    self._broker.totals.refused(command.head.headers.get("destination", ""))
                # A transaction that misses a command must not be committed without it.
                self.refuse(refused, command.receipt, out, may_stay=not is_held(command))
                if self.is_atomic:
                    for name in list(self._broker.sessions[self.session_id].transactions):
                        self._broker.transactions.abort(self.session_id, name)
                    break
                is_over = True
            if out.ending:
                break
            at += 1
        if acks.pending:
            acks.settle(out)
        self.repeats.forget()
        self.found_queue = ""
        return None

    def _is_unknown(self, queue: str) -> bool:
        """Whether this node knows nothing of a queue: no messages in memory, no consumers, and no declaration."""
        is_known = queue == self.found_queue or queue in self._broker.queues.by_name
        return not is_known and self._rules.begun_by(queue) is None

    def _planned(self, head: Head, out: Outcome) -> SendPlan | None:
        """What a SEND with this header block asks for (`SendPlans.of`); `out` counts what it costs to find that out."""
        routing = self._rules.routing
        routing.cost = 0
        try:
            plan = self._plans.of(head)
            if plan is not None:
                routing.cost += PLANNED_COPY_COST * len(plan.envelope.copies)
            return plan
        finally:
            out.cost += routing.cost

    def _send(self, plan: SendPlan, envelope: Envelope, frame: Frame, now_us: int, out: Outcome) -> int | None:
        """Take one SEND, of which `envelope` is to be appended; returns the level of its receipt, None when COMMIT
        confirms it.
        """
        if plan.transaction is not None:
            is_early = plan.is_early or self._answers_early
            held = HeldFrame(
                envelope=envelope,
                body=frame.body,
                receipt=None if is_early else frame.receipt,
                level=plan.level,
                is_retry=plan.is_retry,
                further=plan.further,
            )
            self._broker.transactions.hold(self.session_id, plan.transaction, held)
            if envelope.kind is DestinationKind.TOPIC:
                self._broker.topic_router.look_up(envelope.destination, out)
            return ACCEPTED if is_early else None
        if envelope is not plan.envelope:
            out.repeats = True  # Its receipt is about the copies that are there, too.
        if plan.is_bounded:
            self._broker.send_limits.check_send(envelope, len(frame.body))
        elif frame.receipt is not None and envelope.kind is DestinationKind.REPLY:
            # Without a receipt it is dropped: a requester that has left must not cost its worker the connection.
            self._broker.replies.check(envelope.destination)
        message = self._broker.send(envelope, frame.body, now_us, out)
        if out.sent is not None:
            out.sent.append((message, False))
        return plan.level

    def send_to(self, frame: Frame, taker: Subscription, now_us: int, out: Outcome) -> Message | None:
        """Take one SEND to a queue, whose message goes to `taker` before all others; None if that cannot be now.

        Raises Refused.
        """
        plan = self._plans.of(frame.head)
        assert plan is not None and plan.envelope.destination == taker.destination
        if not self._broker.queues.may_give(taker):
            return None
        self._broker.send_limits.check_send(plan.envelope, len(frame.body))
        return self._broker.send(plan.envelope, frame.body, now_us, out, taker)

    def _send_run(self, plan: SendPlan, commands: list[Command], start: int, out: Outcome) -> int:
        """Send what has the header block of the SEND at `start`, from there on, as one; returns how many these were.

        0, with nothing changed, when one of them might be refused, or go elsewhere: then each is asked about.
        """
        bodies, receipts, count = run_at(commands, start)
        if not self._broker.send_run(plan.envelope, bodies, out):
            return 0
        if receipts:
            out.receipt_run(receipts, plan.level)
        return count

    def _may_send(self, sends: Sends) -> bool:
        """Whether these, which the client may send, can be looked at as one."""
        plan, allowed = sends.head.memo, self._rights.sends
        if not isinstance(plan, SendPlan) or plan.generation != self._rules.generation or not plan.may_run:
            return False
        return allowed is None or plan.envelope.destination in allowed

    def send_answer(self, request: Frame, headers: Mapping[str, str], body: bytes, now_us: int, out: Outcome) -> None:
        """Answer a SEND to a control destination: `headers` in its RECEIPT, `body` to its `reply-to`.

        Without either no answer is sent. Raises Refused for a `reply-to` that is no temporary queue.
        """
        asked = request.head.headers
        if "reply-to" in asked:
            broker, envelope = self._broker, self._replies.envelope_of_answer(asked)
            broker.memory_sequence += 1
            answer = Message(envelope, body, broker.origin, -broker.memory_sequence, now_us)
            broker.replies.send(answer, out, is_of_client=False)
        if request.receipt is not None:
            out.frames.append(self.encoder.response(request.receipt, list(headers.items()), body))

    def bound_declared(self, bound: BoundQueue) -> None:
        """The queue that `handle` paused for, before a SUBSCRIBE, is declared."""
        self._subscribing.declared = bound

    def bound_deleted(self, bound: BoundQueue) -> None:
        """The queue that `handle` paused for, before an UNSUBSCRIBE, is deleted."""
        self._subscribing.deleted = bound

    def begins_at(self, start: StartAt) -> None:
        """What `handle` paused for, before a SUBSCRIBE of a durable subscription, is found."""
        self._subscribing.found = start

    def refuse(
        self, error: ProtocolError | Refused, receipt: str | None, out: Outcome, *, may_stay: bool = True
    ) -> None:
        """Answer with ERROR; end the session unless it may stay."""
        if error.code == NOT_ALLOWED:
            self.denied = error
        self.has_refused = True
        keep = self.is_atomic or self._stays or (may_stay and self.keep_open and error.code in KEEP_OPEN_CODES)
        out.frames.append(self.encoder.error(error, receipt))
        out.ending = not keep

    def _subscribe(self, frame: Frame, now_us: int, out: Outcome) -> int:
        """Begin or end a subscription; returns the level of its receipt."""
        headers = frame.head.headers
        if frame.head.command == "UNSUBSCRIBE":
            self._subscribing.unsubscribe(headers, now_us, out)
            return FSYNC
        heard = self._subscribing.subscribe(headers, now_us, out)
        out.begins = out.begins or frame.receipt is not None
        return heard

    def _obey(self, order: Order, now_us: int, out: Outcome) -> int | None:
        """Returns the level of its receipt, None when that is sent later."""
        transactions = self._broker.transactions
        if isinstance(order, Begin):
            transactions.begin(self.session_id, order.transaction)
        elif isinstance(order, Commit):
            level = None if order.level is None else asked_level(order.level, self._rules.level_max)
            if self._rules.level_max == ACCEPTED:
                level = ACCEPTED  # Also with a message to a topic, which needs no disk, and whose level is higher.
            if order.is_quorum:
                asks_quorum("quorum", self._rules.level_max)
            name = order.transaction
            self._check_held(name)
            return self._broker.commit(
                self.session_id, name, now_us, out, level, self.repeats.asked, is_quorum=order.is_quorum
            )
        elif isinstance(order, Subscribe):
            self._subscribing.begin(order.subscription, out)
            out.begins = out.begins or order.receipt is not None
        elif isinstance(order, Abort):
            transactions.abort(self.session_id, order.transaction)
        else:
            assert isinstance(order, Disconnect), order
            out.ending = True
            self.has_left = True
        return FSYNC

    def _check_held(self, transaction: str) -> None:
        """Raises Refused when a message of the transaction may not be sent any more. Queues whose bindings have ended
        meanwhile get no copy."""
        state = self._broker.sessions[self.session_id]
        frames = state.transactions.get(transaction, ())
        named = [(one.envelope.destination, *one.further) for one in frames if one.envelope is not None]
        for destination in dict.fromkeys(chain.from_iterable(named)):
            self._rights.check_send(destination)
        for one in frames:
            if one.envelope is not None and one.envelope.copies:
                state.held_bytes -= one.bytes
                one.envelope = self._plans.still_bound(one.envelope)
                state.held_bytes += one.bytes


def order_of(frame: Frame) -> Order:
    """The order that a frame about a transaction, or the end of the session, stands for. Raises Refused."""
    command, headers = frame.head.command, frame.head.headers
    if command == "DISCONNECT":
        return Disconnect(frame.receipt)
    name = required(headers, "transaction", command)
    if command != "COMMIT":
        return Begin(name, frame.receipt) if command == "BEGIN" else Abort(name, frame.receipt)
    word = headers.get("ack-level")
    return Commit(name, frame.receipt, headers.get("receipt-level"), None if word is None else asks_quorum(word))
