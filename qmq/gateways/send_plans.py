"""What a SEND's header block asks for, worked out once and kept with the block (`Head.memo`).

A plan counts for every session of the node, and until the operator's rules change. What means something else in each
session (temporary queues, reply addresses) is worked out each time.
"""

from collections.abc import Callable, Iterable, Mapping

from qmq.access.rights import Rights
from qmq.broker.broker import Broker
from qmq.broker.messages.copy_budget import COPIES_LEFT
from qmq.broker.messages.dedup import DEDUP_HEADERS, SENDER, sender_of
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.messages.limits import COPIES_MAX
from qmq.broker.messages.message import Envelope, Retain
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.broker.messages.send_options import check_options
from qmq.broker.send_limits import check_copies_count
from qmq.errors import Refused
from qmq.gateways.copies import (
    MANDATORY,
    ROUTING_KEYS,
    bound_copies,
    destination_with,
    further_keys,
    level_of_copies,
    queue_block,
    queues_of_exchange,
)
from qmq.gateways.headers import destination_of, is_persistent, is_said, retain
from qmq.gateways.refused_headers import check_send_words
from qmq.gateways.reply_to import ReplyTo
from qmq.gateways.rules import BodyCheck, Rules
from qmq.model.routing_names import PREFIX
from qmq.wire.avro import AVRO
from qmq.wire.stomp import Head, Version, encode_headers

LIKE_KINDS = (DestinationKind.TOPIC, DestinationKind.QUEUE)
"""Kinds whose plans may count for other destinations, too."""

KINDS_WITH_KEYS = (DestinationKind.EXCHANGE, DestinationKind.QUEUE)
"""Kinds to which a SEND may have further routing keys."""


class SendPlan:
    """What a SEND header block asks for, worked out once. `likeness` is that of its destination (`Rules`), set where
    blocks to other destinations may have a plan like this one; the key of a message depends on where it goes."""

    __slots__ = (
        "check_body",
        "envelope",
        "further",
        "generation",
        "is_bounded",
        "is_early",
        "is_mandatory",
        "is_retry",
        "key",
        "level",
        "likeness",
        "may_run",
        "transaction",
    )

    def __init__(
        self,
        envelope: Envelope,
        transaction: str | None,
        generation: int,
        level: int = FSYNC,
        *,
        is_retry: bool = False,
        is_early: bool = False,
        is_mandatory: bool = False,
        check_body: BodyCheck | None = None,
    ) -> None:
        self.envelope = envelope
        self.check_body = check_body
        self.generation = generation
        self.level = level
        self.transaction = transaction
        # Where it goes by its further routing keys.
        self.further: tuple[str, ...] = ()
        self.is_retry = is_retry
        # In a transaction: whether its receipt does not wait for COMMIT.
        self.is_early = is_early
        self.is_mandatory = is_mandatory
        """Whether it is refused if its queue does not exist."""
        self.key = envelope.key
        self.likeness: object | None = None
        # Whether nothing but its destination decides about it, so that many can be sent as one (`Broker.send_run`).
        self.may_run = (
            transaction is None
            and check_body is None
            and not is_mandatory
            and envelope.key is None
            and not envelope.copies
            and not envelope.retain
            and (
                envelope.kind is DestinationKind.QUEUE
                or envelope.kind is DestinationKind.FANOUT
                or envelope.kind is DestinationKind.TOPIC
            )
        )
        self.is_bounded = (
            envelope.durable
            or envelope.kind is DestinationKind.QUEUE
            or envelope.retain is Retain.SET
            or bool(envelope.copies)
        )

    def to(self, destination: str) -> "SendPlan":
        """The plan of a block that differs only in its destination, which is of the same likeness."""
        return SendPlan(
            self.envelope.to(destination),
            self.transaction,
            self.generation,
            self.level,
            is_early=self.is_early,
            is_mandatory=self.is_mandatory,
            check_body=self.check_body,
        )


class SendPlans:
    """Those of one session, with its `replies` and its `user`."""

    __slots__ = ("_broker", "_replies", "_rights", "_rules", "_sender")

    def __init__(self, broker: Broker, rules: Rules, replies: ReplyTo, rights: Rights, user: str | None = None) -> None:
        self._broker = broker
        self._rules = rules
        self._replies = replies
        self._rights = rights
        self._sender = () if user is None else ((SENDER, sender_of(user)),)

    def of(self, head: Head) -> SendPlan | None:
        """What a SEND with this header block asks for; None for a control destination, answered each time again.

        Raises Refused for what may not be sent. A remembered plan was allowed for the session that made it, so the
        gateway asks again.
        """
        plan = head.memo
        if isinstance(plan, SendPlan) and plan.generation == self._rules.generation:
            return plan
        return self._work_out(head)

    def _work_out(self, head: Head) -> SendPlan | None:
        headers = head.headers
        rules = self._rules
        destination = destination_of(headers, "SEND")
        kind = kind_of(destination, rules.destination_bytes_max)
        if kind is DestinationKind.CONTROL:
            return None
        self._rights.check_send(destination)
        check_send_words(headers, kind)
        form = head.form
        if form is not None and isinstance(form.memo, SendPlan) and not is_pattern(destination):
            like = form.memo
            is_like = like.generation == rules.generation and like.envelope.kind is kind
            if (
                is_like
                and like.likeness is rules.likeness(destination)
                # A plan of a topic with bindings is like no other.
                and not (
                    rules.routing.has_topics
                    and kind is DestinationKind.TOPIC
                    and rules.routing.queues_of_topic(destination)
                )
            ):
                plan = head.memo = like.to(destination)
                return plan
        if is_pattern(destination):
            raise Refused("bad-destination", "A message goes to one destination; * and # are for SUBSCRIBE to topics.")
        if kind is DestinationKind.SYSTEM:
            raise Refused("bad-destination", "Only the node itself sends to system destinations.")
        if kind is DestinationKind.TEMP or kind is DestinationKind.REPLY:
            # Not remembered: what names a queue of this session means another one in the next.
            envelope = self._replies.envelope_to(destination, kind, headers)
            return SendPlan(envelope, headers.get("transaction"), rules.generation)
        durable = False
        if kind is not DestinationKind.EXCHANGE:
            exists, durable = rules.policy(destination)
            if not exists:
                raise Refused("unknown-destination", "This destination is not configured, and none is created on use.")
        bound: tuple[str, ...] = ()
        further = further_keys(headers)
        if further and kind not in KINDS_WITH_KEYS:
            raise Refused("bad-header", f"The header {ROUTING_KEYS} is for exchanges and queues.")
        others = tuple([destination_with(destination, key) for key in further])
        for other in others:
            self._rights.check_send(other)
        if kind is DestinationKind.TOPIC:
            durable = False
            if rules.routing.has_topics:
                bound = rules.routing.queues_of_topic(destination)
        elif kind is DestinationKind.FANOUT:
            self._broker.send_limits.open_fanout(destination)
            durable = True
            bound = rules.routing.queues_of_fanout(destination)
        elif kind is DestinationKind.EXCHANGE:
            bound = queues_of_exchange(rules.routing, destination, headers, further)
        elif further:
            # To several queues: as an exchange it keeps nothing itself.
            kind, durable = DestinationKind.EXCHANGE, False
            bound = self._queues_named(destination, *others)
        else:
            durable = durable and is_persistent(headers)
        plan = self._plan(head, destination, kind, bound, durable)
        plan.further = others
        return plan

    def still_bound(self, envelope: Envelope) -> Envelope:
        """`envelope`, planned some time ago, without copies for queues to which no binding leads any more.

        Children of a fanout, and queues that the SEND names, need none.
        """
        kind, destination = envelope.kind, envelope.destination
        is_fanout = kind is DestinationKind.FANOUT
        if kind is not DestinationKind.TOPIC and not is_fanout and not destination.startswith(PREFIX):
            return envelope
        routing, children = self._rules.routing, self._rules.children(destination) if is_fanout else ()
        copies = [one for one in envelope.copies if one.destination in children or routing.is_bound(one.destination)]
        return envelope if len(copies) == len(envelope.copies) else envelope.with_copies(copies)

    def _queues_named(self, *destinations: str) -> tuple[str, ...]:
        """These queues, each once. Raises Refused."""
        rules = self._rules
        queues = set(destinations)
        for queue in queues:
            kind_of(queue, rules.destination_bytes_max)
            if not rules.policy(queue)[0]:
                raise Refused("unknown-destination", f"{queue} is not configured, and none is created on use.")
        return tuple(sorted(queues))

    def _plan(
        self, head: Head, destination: str, kind: DestinationKind, bound: tuple[str, ...], durable: bool
    ) -> SendPlan:
        """The plan of a SEND that is allowed, and that bindings copy to the queues `bound`; remembered where it may."""
        headers = head.headers
        rules = self._rules
        is_stored = kind is DestinationKind.QUEUE or kind is DestinationKind.FANOUT
        travelling, is_own = self._replies.travelling(headers)
        is_named = (is_stored or bool(bound)) and any(name in headers for name in DEDUP_HEADERS)
        # Of records. A message of a topic that its subscribers get is none.
        lines = [*travelling, *self._sender] if is_named and self._sender else travelling
        # An id without a value names nothing, and a request tried again has another reply address.
        has_id = is_named and not is_own and any(headers.get(name) for name in DEDUP_HEADERS)
        is_retry = has_id and is_said(headers, "redelivered")
        if kind is DestinationKind.QUEUE:
            block = queue_block(rules, destination, lines, headers, is_retry=is_retry)
            check_options(block)
        else:
            block = encode_headers(lines if is_stored else travelling, Version.V12)
        envelope = Envelope(destination, kind, block, durable)
        children: tuple[str, ...] = ()
        if kind is DestinationKind.FANOUT:
            children = tuple(rules.children(destination))
            bound = tuple([queue for queue in bound if queue not in children])
        count = len(children) + len(bound)
        check_copies_count(count)  # Before all of them are made.
        if count > 1:
            lines = [*lines, (COPIES_LEFT, str(COPIES_MAX // count))]
        if children:
            envelope.copies = tuple(
                Envelope(
                    child,
                    DestinationKind.QUEUE,
                    queue_block(rules, child, lines, headers, is_retry=is_retry),
                    rules.policy(child)[1],
                )
                for child in children
            )
        if bound:
            envelope.copies += bound_copies(rules, kind, destination, bound, lines, headers, is_retry=is_retry)
        if envelope.copies:
            check_options(block)
            if not is_stored:
                envelope.key = envelope.copies[0].key
        if kind is DestinationKind.TOPIC:
            envelope.retain = retain(headers, rules.retains(destination))
        # What the SEND itself names: copies of bindings are not checked.
        named = bound if kind is DestinationKind.EXCHANGE and not destination.startswith(PREFIX) else (destination,)
        transaction = headers.get("transaction")
        level = rules.level_of(headers, destination)
        is_asked = "receipt-level" in headers
        is_early = transaction is not None and level < FSYNC and is_asked
        if envelope.copies and not durable:
            level = level_of_copies(rules, envelope.copies, level if is_asked and not is_early else None)
        elif not durable:
            level = FSYNC
        elif is_early:
            # It has what it asked for; what COMMIT waits for is not its business.
            level = rules.level(destination)
        if is_own:
            # Tried again it has another reply address, and the answer to the first try reaches no client.
            for one in (envelope, *envelope.copies):
                one.key = None
        plan = SendPlan(
            envelope,
            transaction,
            rules.generation,
            level,
            is_retry=is_retry,
            is_early=is_early,
            is_mandatory=kind is DestinationKind.QUEUE and headers.get(MANDATORY) == "true",
            check_body=None if rules.body_check is None else _body_check(rules.body_check, named, headers),
        )
        # A name of a message means another one in the session of another user; further keys need rights of their own.
        if not is_own and envelope.key is None and ROUTING_KEYS not in headers:
            head.memo = plan
            form = head.form
            if form is not None and not envelope.copies and kind in LIKE_KINDS:
                plan.likeness = rules.likeness(destination)
                form.memo = plan
        return plan


def _body_check(
    check_of: Callable[[str], BodyCheck | None], destinations: Iterable[str], headers: Mapping[str, str]
) -> BodyCheck | None:
    """What checks the bodies of a SEND to these destinations, with these headers. Raises Refused if no body of theirs
    could pass it."""
    checks = [check for one in destinations if (check := check_of(one)) is not None]
    if checks and headers.get("content-type", "").partition(";")[0].strip().lower() != AVRO:
        raise Refused("bad-body", f"This destination has a schema: its messages have the content-type {AVRO}.")
    if len(checks) > 1:
        return lambda body: sum([check(body) for check in checks])
    return checks[0] if checks else None
