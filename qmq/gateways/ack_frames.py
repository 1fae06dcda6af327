"""What settles deliveries: orders, and the ACK and NACK frames that name them in the words of each STOMP version.

Consecutive ACKs of one read are settled together, subscription by subscription. They are collected in `pending`, and
the gateway calls `settle` before anything else is decided.
"""

from collections.abc import Mapping
from typing import Final

from qmq.broker.broker import Broker
from qmq.broker.consumers.deliveries import find_delivery, find_run
from qmq.broker.consumers.orders import SettleDeliveries
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, QUORUM
from qmq.errors import Refused
from qmq.gateways.encode import NO_ACK_ID
from qmq.gateways.headers import required
from qmq.gateways.paused import Command
from qmq.gateways.rules import Rules
from qmq.gateways.subscribe_frames import SubscribeFrames
from qmq.wire.stomp import Acks, Frame, Version
from qmq.wire.stomp.refusals import shown

NO_HEADERS: Final[Mapping[str, str]] = {}

SEARCHED_OF_COST = 3
"""Messages in flight that are searched for a message-id in the time of one unit of selecting."""


class AckFrames:
    """The ACKs and NACKs of one session."""

    __slots__ = ("_answers_early", "_broker", "_rules", "_session_id", "_subscribing", "_version", "pending")

    def __init__(
        self,
        session_id: int,
        broker: Broker,
        rules: Rules,
        version: Version,
        subscribing: SubscribeFrames,
        *,
        answers_early: bool,
    ) -> None:
        self._session_id = session_id
        self._broker = broker
        self._rules = rules
        self._version = version
        self._subscribing = subscribing
        self._answers_early = answers_early
        self.pending: dict[int, Delivery] = {}
        """Acknowledged and not yet settled: tag → delivery, in order."""

    def settle(self, out: Outcome) -> None:
        """Settle the run of ACKs, subscription by subscription."""
        acked = self.pending
        self.pending = {}
        by_subscription: dict[Subscription, list[Delivery]] = {}
        for delivery in acked.values():
            by_subscription.setdefault(delivery.subscription, []).append(delivery)
        for deliveries in by_subscription.values():
            self._broker.settle(deliveries, out)

    def acknowledge_all(self, acks: Acks, out: Outcome) -> None:
        """Take ACKs that say nothing but their ids: together when they settle one by one, and all of them can."""
        if self.pending:
            self.settle(out)
        deliveries = find_run(self._broker.queues.deliveries, self._session_id, list(map(int, acks.numbers)))
        if deliveries is not None:
            self._broker.settle(deliveries, out)
            return
        for frame in acks.one_by_one():
            self.acknowledge(frame, None, out)

    def acknowledge(self, frame: Frame, why: Back | None, out: Outcome) -> int | None:
        """Take one ACK; or NACK, that says `why`. Returns the level of its receipt, None when a transaction holds that
        back."""
        headers = frame.head.headers
        delivery = self._find(headers, out)
        if delivery is None:
            return FSYNC
        return self._decide(delivery, why, headers, headers.get("transaction"), frame.receipt, out)

    def obey(self, order: SettleDeliveries, out: Outcome) -> int | None:
        """Settle what is still in flight; as `acknowledge`. Raises Refused."""
        level: int | None = FSYNC
        known = self._broker.queues.deliveries
        if order.why is None and order.receipt is None and order.transaction is None:
            self.pending.update([(one.tag, one) for one in order.deliveries if known.get(one.tag) is one])
            return level
        if order.why is not None and self.pending:
            self.settle(out)
        for delivery in order.deliveries:
            tag = delivery.tag
            if known.get(tag) is delivery:
                level = self._decide(delivery, order.why, NO_HEADERS, order.transaction, order.receipt, out)
            elif order.transaction is not None or order.receipt is not None:
                if self._broker.sessions[self._session_id].was_late(tag):
                    _check_late(order.transaction)
                else:
                    find_delivery(known, self._session_id, tag)
        return level

    def _decide(
        self,
        delivery: Delivery,
        why: Back | None,
        headers: Mapping[str, str],
        transaction: str | None,
        receipt: str | None,
        out: Outcome,
    ) -> int | None:
        """`why` it comes back, None for an ACK; `headers` may ask for a level of the receipt."""
        level = FSYNC
        envelope = delivery.message.envelope
        if receipt is not None or transaction is not None:
            # Else it is not read.
            is_ack = why is None and envelope.kind is DestinationKind.QUEUE
            level_of = self._rules.level_of_ack if is_ack else self._rules.level_of
            asked = level_of(headers, envelope.destination)
            level = asked if envelope.durable else FSYNC
        if transaction is not None:
            held = HeldFrame(
                delivery=delivery,
                is_ack=why is None,
                why=Back.FAILED if why is None else why,
                receipt=None if self._answers_early else receipt,
                level=level,
            )
            self._broker.transactions.hold(self._session_id, transaction, held)
            return ACCEPTED if self._answers_early else None
        if why is not None:
            self._broker.refuse(delivery, out, why)
            return level
        if level >= QUORUM:
            self._broker.settle_for_good(delivery, out)
        if delivery.subscription.ack is Ack.CLIENT_INDIVIDUAL:
            self.pending[delivery.tag] = delivery
        else:
            self.settle(out)
            self._broker.acknowledge(delivery, out)
        return level

    def _find(self, headers: Mapping[str, str], out: Outcome) -> Delivery | None:
        """The delivery that an ACK or NACK names, or the last before it that it covers when it comes too late itself.

        None when there is nothing to settle (topics, fanouts, 1.0).
        """
        if self._version >= Version.V12:
            text = headers.get("id", "")
            if text == NO_ACK_ID:
                return None
            if text.isascii() and text.isdigit() and len(text) <= 18:
                tag = int(text)
            else:
                found = self._tag_of_message_id(text, out)
                if found is None:
                    _check_late(headers.get("transaction"))
                    return self._broker.sessions[self._session_id].before_late(text)
                tag = found
        else:
            found = self._tag_of(headers)
            if found is None:
                return None
            tag = found
        if tag in self.pending:
            if self._version < Version.V11:
                return None
            raise Refused("unknown-ack", f"The message with the id {_named(headers)} has been acknowledged before.")
        session = self._broker.sessions[self._session_id]
        if session.was_late(tag):
            _check_late(headers.get("transaction"))
            return session.before_late(tag)
        return find_delivery(self._broker.queues.deliveries, self._session_id, tag)

    def _tag_of(self, headers: Mapping[str, str]) -> int | None:
        """STOMP 1.0 and 1.1 settle by `message-id`, 1.1 also names the subscription (1.1, ACK)."""
        message_id = required(headers, "message-id", "ACK")
        session = self._broker.sessions[self._session_id]
        wanted = headers.get("subscription")
        if wanted is None and self._version >= Version.V11 and self._subscribing.nameless is None:
            raise Refused("missing-header", "ACK needs the header subscription in STOMP 1.1.")
        for subscription in session.subscriptions.values():
            if wanted is not None and subscription.id != wanted:
                continue
            ids = subscription.message_ids
            if ids is None:
                settles = subscription.durable is not None or kind_of(subscription.destination) is DestinationKind.QUEUE
                if subscription.ack is not Ack.AUTO and wanted is not None and not settles:
                    return None  # a topic or fanout subscription: nothing waits for the ACK
                continue
            tag = ids.get(message_id)
            if tag is not None:
                return tag
        if session.was_late(message_id):
            _check_late(headers.get("transaction"))
            before = session.before_late(message_id)
            return None if before is None else before.tag
        if self._version < Version.V11:
            return None
        raise Refused(
            "unknown-ack", f"No message with the message-id {_named(headers)} waits for an ACK on this connection."
        )

    def _tag_of_message_id(self, message_id: str, out: Outcome) -> int | None:
        """What a 1.2 client means that gives the message-id as `id`: that is no number, so there is no doubt.

        None for a delivery that was late. What the search costs counts in `out`.
        """
        session = self._broker.sessions[self._session_id]
        number = message_id.rpartition("-")[2].removeprefix("m")
        sequence = int(number) if number.isascii() and number.isdigit() and len(number) <= 18 else 0
        if sequence:
            for subscription in session.subscriptions.values():
                out.cost += len(subscription.in_flight) // SEARCHED_OF_COST
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


def _check_late(transaction: str | None) -> None:
    """The delivery was taken back when its ack-timeout had passed. That means nothing, but in a transaction: what was
    made of the message will be made again, so it must not be committed."""
    if transaction is not None:
        raise Refused("unknown-ack", "The ack-timeout of this message has passed; its transaction cannot be committed.")


def _named(headers: Mapping[str, str]) -> str:
    """What an ACK or NACK names, for an error."""
    return shown(headers.get("id") or headers.get("message-id", ""))


def is_held(command: Command) -> bool:
    """Whether it was to be part of a transaction. (A commit is not: refused, it can be tried again.)"""
    if isinstance(command, Frame):
        head = command.head
        return head.command in ("SEND", "ACK", "NACK") and "transaction" in head.headers
    return isinstance(command, SettleDeliveries) and command.transaction is not None
