"""How subscriptions begin and end: those that a protocol has made, and the SUBSCRIBE and UNSUBSCRIBE of STOMP."""

from collections.abc import Mapping
from typing import Final

from qmq.access.rights import Rights
from qmq.access.rules import RESERVED_NAMES, Action
from qmq.broker.broker import Broker
from qmq.broker.consumers.buffer import MESSAGES_UNBOUNDED, OVERFLOWS, Buffer, Overflow
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, StartAt, Subscription
from qmq.broker.messages.destination import JOURNAL, DestinationKind, is_pattern, kind_of
from qmq.broker.messages.receipt_levels import FSYNC, HEARD
from qmq.errors import Refused
from qmq.gateways.bound_queues import BoundQueue, bound_queue, declared_queue, may_be_bound, subscriber_of
from qmq.gateways.durable_headers import check_owner, delete_durable, durable_name, durable_words
from qmq.gateways.encoder import Encoder
from qmq.gateways.headers import (
    PREFETCH_HEADERS,
    ack_mode,
    ack_timeout_us,
    check_name,
    consumer_asks,
    consumer_priority,
    destination_of,
    fanout_start,
    is_said,
    journal_span,
    prefetch,
    required,
    selector,
)
from qmq.gateways.refused_headers import check_subscribe_words
from qmq.gateways.rules import Rules
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Effect
from qmq.wire.stomp import Head, Version

GROWTH = 4
"""So many times `prefetch_default` a consumer without a prefetch of its own may have, while it settles them quickly."""

GROWS_FROM = 50
"""A smaller `prefetch_default` is meant as it is."""

BYTES_OF_COST = 5
"""Of what a subscription costs in memory: reading its selector or pattern takes as long as one unit of selecting, so
that about 5 ms of it fit into one turn."""

OWN_WORDS = ("buffer-bytes", "buffer-messages", "overflow")
PENDING_LIMIT = "activemq.maximumPendingMessageLimit"
DIGITS_MAX = 15

CONFIGURED_KINDS = (DestinationKind.TOPIC, DestinationKind.QUEUE, DestinationKind.FANOUT)
"""Kinds whose destinations the operator may have to name before a client uses them."""


NONE_BOUND: "Final[dict[str, BoundQueue]]" = {}
"""One for all sessions, and nothing writes into it."""


class SubscribeFrames:
    """Those of one session."""

    __slots__ = (
        "_bound_by_id",
        "_broker",
        "_client_id",
        "_encoder",
        "declared",
        "deleted",
        "found",
        "_rights",
        "_rules",
        "_session_id",
        "_version",
        "nameless",
        "window",
    )

    def __init__(
        self,
        session_id: int,
        broker: Broker,
        rules: Rules,
        version: Version,
        rights: Rights,
        encoder: Encoder,
        *,
        client_id: str,
        window: ConnectionPrefetch[Subscription] | None,
    ) -> None:
        self._session_id = session_id
        self._broker = broker
        self._rules = rules
        self._version = version
        self._rights = rights
        self._encoder = encoder
        self._client_id = client_id
        self.window = window
        self._bound_by_id: dict[str, BoundQueue] = NONE_BOUND
        self.declared: BoundQueue | None = None
        """What was declared for the SUBSCRIBE that comes next."""
        self.deleted: BoundQueue | None = None
        """What was deleted for the UNSUBSCRIBE that comes next."""
        self.found: StartAt | None = None
        """What was found in the log for the SUBSCRIBE that comes next."""
        self.nameless: str | None = None
        """How the one subscription is known that a client of 1.1 or 1.2 gave no id; None when there is none."""

    def begin(self, subscription: Subscription, out: Outcome) -> None:
        """Begin a subscription of another protocol, to a queue. Raises Refused."""
        destination = subscription.destination
        check_name(destination)
        kind = kind_of(destination, self._rules.destination_bytes_max)
        self._rights.check_subscribe(destination)
        self._check_configured(destination, kind)
        subscription.prefix = self._encoder.prefix(subscription.id, False)
        if kind is DestinationKind.QUEUE:
            self._check_queue(subscription)
        self._broker.subscriptions.subscribe(subscription, out)
        out.cost += subscription.memory_bytes // BYTES_OF_COST

    def _check_configured(self, destination: str, kind: DestinationKind) -> None:
        if not is_pattern(destination) and kind in CONFIGURED_KINDS and not self._rules.policy(destination)[0]:
            raise Refused("unknown-destination", "This destination is not configured, and none is created on use.")

    def subscribe(self, headers: Mapping[str, str], now_us: int, out: Outcome) -> int:
        """Begin a subscription; returns the level of its receipt."""
        found = self.found
        self.declared = self.found = None
        bound = self._bound(headers) if may_be_bound(headers) else None
        destination = destination_of(headers, "SUBSCRIBE") if bound is None else bound.queue
        kind = kind_of(destination, self._rules.destination_bytes_max)
        self._rights.check_subscribe(destination)
        check_subscribe_words(headers, kind, is_bound=bound is not None)
        is_nameless = not headers.get("id") and self._version >= Version.V11
        subscription_id = self._subscription_id(headers, "SUBSCRIBE")
        # STOMP 1.1 and 1.2 want a subscription on every MESSAGE.
        named = subscription_id if is_nameless else headers.get("id")
        self._check_configured(destination, kind)
        ack = ack_mode(headers)
        durable = durable_name(headers, kind, destination, subscription_id, self._client_id)
        if durable is not None:
            check_owner(self._rights, destination, self._broker.durable_subscriptions.owner_of(durable))
        if is_nameless and durable is not None and not durable.client:
            raise Refused("missing-header", "A durable subscription is named by the header id of SUBSCRIBE.")
        credit = prefetch(headers, self._rules.prefetch_default, self._rules.prefetch_max)
        bytes_max = self._rules.buffer_bytes_max
        buffer = buffer_of(headers, kind, bytes_max)
        if buffer is None and kind is DestinationKind.TOPIC and (most := self._rules.buffer_messages(destination)):
            buffer = Buffer(bytes_max, most, Overflow.DROP_OLDEST)
        wanted = selector(headers)
        if kind is DestinationKind.TOPIC and ack is Ack.AUTO and named and buffer is None and wanted is None:
            listen = self._broker.subscriptions.listen
            if not is_pattern(destination) and listen(self._session_id, destination, named, out):
                if is_nameless:
                    self.nameless = subscription_id
                return HEARD
        needs_no_ack = kind is not DestinationKind.QUEUE and ack is not Ack.AUTO and durable is None
        prefix = self._encoder.prefix(named, needs_no_ack)
        subscription = Subscription(self._session_id, subscription_id, destination, ack, credit, prefix)
        subscription.buffer = buffer
        subscription.selector = wanted
        if bound is not None:
            subscription.source = bound.source
        if kind is DestinationKind.FANOUT:
            subscription.start = found or fanout_start(headers, "first" if durable is None else "next")
        elif kind is DestinationKind.QUEUE:
            self._of_queue(subscription, headers)
        elif destination == JOURNAL:
            subscription.start = journal_span(headers)
            subscription.is_browser = True
        if durable is None:
            self._broker.subscriptions.subscribe(subscription, out)
        else:
            self._broker.subscriptions.subscribe_durable(subscription, durable, now_us, out, self._user)
        if is_nameless:
            self.nameless = subscription_id
        if bound is not None:
            if not self._bound_by_id:
                self._bound_by_id = {}
            self._bound_by_id[subscription_id] = bound
        out.cost += subscription.memory_bytes // BYTES_OF_COST
        return HEARD if kind is DestinationKind.TOPIC else FSYNC

    def _of_queue(self, subscription: Subscription, headers: Mapping[str, str]) -> None:
        """What a SUBSCRIBE to a queue says of the subscription. Raises Refused."""
        subscription.asks = consumer_asks(headers, self._rules.destination_bytes_max)
        subscription.ack_timeout_us = ack_timeout_us(headers)
        subscription.exclusive = is_said(headers, "exclusive", "activemq.exclusive")
        subscription.priority = consumer_priority(headers)
        subscription.is_browser = is_said(headers, "browser")
        if subscription.is_browser and subscription.ack is not Ack.AUTO:
            raise Refused("bad-ack-mode", "A browser receives copies and settles nothing: its ack is auto.")
        subscription.window = self.window
        credit = subscription.credit
        if credit >= GROWS_FROM and self.window is None and not any(name in headers for name in PREFETCH_HEADERS):
            subscription.credit_max = min(GROWTH * credit, self._rules.prefetch_max)
        self._check_queue(subscription)

    def _check_queue(self, subscription: Subscription) -> None:
        """Raises Refused for a queue that is not for this client, or whose dead letters may not go where it asks."""
        queue = subscription.destination
        self._rules.lock(queue, self._session_id)
        check_owner(self._rights, queue, subscriber_of(queue, self._rules.begun_by))
        target = None if subscription.asks is None else subscription.asks.dead_letter
        if target:
            self._rights.check(Action.SEND, target)
        if target and not self._rules.policy(target)[0]:
            raise Refused("bad-dead-letter", "The dead letter queue is not configured, and none is created on use.")

    def missing(self, head: Head) -> BoundQueue | None:
        """The queue with a binding that must be declared before this SUBSCRIBE, or deleted before this UNSUBSCRIBE.

        None: the frame can be decided. Raises Refused for one that is not allowed.
        """
        headers = head.headers
        if head.command == "UNSUBSCRIBE":
            bound = self._bound_of_unsubscribe(headers)
            if bound is None or not self._rules.routing.has_binding(bound.binding.name):
                return None
            self._rights.check_subscribe(bound.queue)
            self._rights.check(Action.DECLARE, bound.queue)
            check_owner(self._rights, bound.queue, self._rules.begun_by(bound.queue) or "")
        else:
            bound = self._bound(headers) if may_be_bound(headers) else declared_queue(headers)
            if bound is None or bound == self.declared:
                return None
            # As a SUBSCRIBE to the queue, so that nothing is changed for one that is refused.
            self._rights.check_subscribe(bound.queue)
            if bound.source:
                effect = Effect(is_private=bool(bound.owner))
                needs = needs_of(f"/control/bind{bound.queue}", {"source": bound.source}, effect)
                if self._is_declared(bound) and not self._rights.has_all(needs):
                    # It is not bound again, so that it does not win over a deletion behind a cut.
                    return None
                self._rights.check_needs(needs)
            check_subscribe_words(headers, DestinationKind.QUEUE, is_bound=bool(bound.source))
            self._check_headers(bound.queue, headers)
        self._rules.lock(bound.queue, self._session_id)
        return bound

    def beginning(self, head: Head) -> tuple[str, StartAt] | None:
        """The fanout at which the durable subscription of this SUBSCRIBE begins, and where in its log.

        None: the log need not be asked, or has been. Raises Refused for a subscription that is not allowed.
        """
        headers = head.headers
        if head.command != "SUBSCRIBE" or self.found is not None or "x-stream-offset" not in headers:
            return None
        destination = destination_of(headers, "SUBSCRIBE")
        kind = kind_of(destination, self._rules.destination_bytes_max)
        named = self._subscription_id(headers, "SUBSCRIBE")
        name = durable_name(headers, kind, destination, named, self._client_id)
        if name is None or self._broker.durable_subscriptions.is_begun(name):
            return None
        self._rights.check_subscribe(destination)
        start = fanout_start(headers, "next")
        return (destination, start) if isinstance(start, StartAt) else None

    def _check_headers(self, queue: str, headers: Mapping[str, str]) -> None:
        """Raises Refused for what no SUBSCRIBE to a queue may say."""
        credit = prefetch(headers, self._rules.prefetch_default, self._rules.prefetch_max)
        buffer_of(headers, DestinationKind.QUEUE, self._rules.buffer_bytes_max)
        self._of_queue(Subscription(self._session_id, "", queue, ack_mode(headers), credit, b""), headers)

    def _is_declared(self, bound: BoundQueue) -> bool:
        # What has rules is compared with its declaration in any case; what has no owner yet gets one.
        is_known = not bound.has_rules and self._rules.routing.has_binding(bound.binding.name)
        return is_known and not self._may_own(bound)

    @property
    def _user(self) -> str:
        """The user that all belongs to that this client begins; "": none."""
        name = self._rights.principal.name
        return "" if name in RESERVED_NAMES else name

    def _may_own(self, bound: BoundQueue) -> bool:
        """Whether it belongs to no user yet, and to the first that continues it."""
        return bound.is_named and self._user != "" and self._rules.begun_by(bound.queue) == ""

    def _bound(self, headers: Mapping[str, str]) -> BoundQueue | None:
        """The queue that a SUBSCRIBE is about, if that has a binding. Raises Refused."""
        words = durable_words(headers, headers.get("id", ""), self._client_id)
        if words is not None and not any(words):
            raise Refused("missing-header", "A durable subscription is named by the header id of SUBSCRIBE.")
        session = f"{self._broker.origin}/{self._session_id}"
        subscription_id = self._subscription_id(headers, "SUBSCRIBE")
        bound = bound_queue(headers, destination_of(headers, "SUBSCRIBE"), words, session, subscription_id)
        if bound is not None:
            self._rights.check(Action.SUBSCRIBE, bound.source)
            if bound.is_named:
                check_owner(self._rights, bound.queue, self._rules.begun_by(bound.queue) or "")
        return bound

    def _bound_of_unsubscribe(self, headers: Mapping[str, str]) -> BoundQueue | None:
        """The queue of the durable subscription that this UNSUBSCRIBE deletes; None if it deletes none."""
        words = durable_words(headers, headers.get("id", ""), self._client_id)
        if words is None:
            return None
        named = headers.get("id", "")
        live = self._bound_by_id.get(named)
        if live is not None and self._broker.sessions[self._session_id].destination_of(named) != live.queue:
            # That subscription has ended, and another one may have its id.
            live = None
        if live is not None or not may_be_bound(headers):
            return live if live is not None and live.durable else None
        return bound_queue(headers, headers["destination"], words, "", "")

    def unsubscribe(self, headers: Mapping[str, str], now_us: int, out: Outcome) -> None:
        """End a subscription; with the words that made it durable, forget it too."""
        named = headers.get("id") or (headers.get("destination") if self._version < Version.V11 else None)
        words = durable_words(headers, named or "", self._client_id)
        deleted, self.deleted = self.deleted, None
        if named is None and words is not None and self._is_nameless(headers, words, deleted):
            named = self.nameless
        if deleted is not None and deleted == self._bound_of_unsubscribe(headers):
            if self._bound_by_id.pop(named or "", None) is not None:
                self._broker.subscriptions.unsubscribe(self._session_id, named or "", out)
        elif words is not None and (words[0] or named):
            delete_durable(self._broker, self._rights, headers, words, self._session_id, named, now_us, out)
        else:
            named = self._subscription_id(headers, "UNSUBSCRIBE")
            self._broker.subscriptions.unsubscribe(self._session_id, named, out)
        if named is not None:
            self._bound_by_id.pop(named, None)
            if named == self.nameless:
                self.nameless = None

    def _is_nameless(self, headers: Mapping[str, str], words: tuple[str, str], deleted: BoundQueue | None) -> bool:
        """Whether these words name the durable subscription that has no id, or its queue was `deleted`."""
        if self.nameless is None or headers.get("destination", self.nameless) != self.nameless:
            return False
        bound = self._bound_by_id.get(self.nameless)
        if bound is not None:
            return deleted is not None and bound.queue == deleted.queue
        live = self._broker.sessions[self._session_id].subscriptions.get(self.nameless)
        return live is not None and live.durable is not None and live.durable.name[1:] == words

    def _subscription_id(self, headers: Mapping[str, str], command: str) -> str:
        """`id`; a 1.0 client may leave it out, and its subscription is then known by its destination (1.0).

        So may others for one subscription at a time, as they do at other brokers.
        """
        named = headers.get("id")
        if named:
            return named
        if self._version >= Version.V11:
            if command == "UNSUBSCRIBE":
                return self.nameless or required(headers, "id", command)
            if self.nameless is not None:
                raise Refused(
                    "missing-header", "SUBSCRIBE needs the header id: this connection has a subscription without one."
                )
        return required(headers, "destination", command)


def buffer_of(headers: Mapping[str, str], kind: DestinationKind, bytes_max: int) -> Buffer | None:
    """How far a topic or fanout subscription may fall behind: the buffer that a SUBSCRIBE declares, its bytes cut to
    `bytes_max`. None when it declares none: the node's default counts.

    `buffer-bytes`, `buffer-messages` and `overflow` are QMQ's own words. `activemq.maximumPendingMessageLimit` is taken
    as ActiveMQ means it: so many messages beyond what the connection holds, the oldest dropped first, a negative number
    for no bound. QMQ's words win where both are there.
    """
    own = [name for name in OWN_WORDS if name in headers]
    if kind is DestinationKind.QUEUE:
        if own:
            raise Refused(
                "bad-buffer", f"The header {own[0]} is for topics and fanouts; a queue is held back by its prefetch."
            )
        return None
    if not own:
        return _as_activemq(headers, bytes_max)
    overflow = OVERFLOWS.get(headers.get("overflow", "disconnect"))
    if overflow is None:
        raise Refused("bad-buffer", f"The header overflow is one of {', '.join(OVERFLOWS)}.")
    size = _count(headers, "buffer-bytes", bytes_max)
    return Buffer(min(size, bytes_max), _count(headers, "buffer-messages", MESSAGES_UNBOUNDED), overflow)


def _as_activemq(headers: Mapping[str, str], bytes_max: int) -> Buffer | None:
    text = headers.get(PENDING_LIMIT)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX:
        raise Refused("bad-buffer", f"The header {PENDING_LIMIT} is a whole number of messages; below 0: no bound.")
    if text != digits:
        return None
    return Buffer(bytes_max, int(digits), Overflow.DROP_OLDEST)


def _count(headers: Mapping[str, str], name: str, default: int) -> int:
    text = headers.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX or not int(text):
        raise Refused("bad-buffer", f"The header {name} is a whole number, at least 1 and of at most 15 digits.")
    return int(text)
