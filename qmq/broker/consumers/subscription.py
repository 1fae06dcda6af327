"""A subscription: what a client has asked for, and what it has been given and not yet settled.

Credit makes queues fair: a subscription may have at most `credit` messages in flight, and a queue offers messages only
to subscriptions with room. Topic and fanout subscriptions have no credit. Their bound is the outbox, or the `buffer`
that they declared.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from qmq.broker.consumers.buffer import Buffer
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import PLAIN
from qmq.broker.messages.destination import is_pattern
from qmq.broker.messages.message import Message
from qmq.broker.selectors import Selector
from qmq.model.cursors import Cursor, Holder, Move, Name, Range, add_range
from qmq.model.dots import Origin, Vector


class Ack(IntEnum):
    """The three ack modes of STOMP (1.2, SUBSCRIBE)."""

    AUTO = 0
    CLIENT = 1
    """An ACK or NACK covers everything delivered to the subscription up to that message."""
    CLIENT_INDIVIDUAL = 2


ACK_MODES = {"auto": Ack.AUTO, "client": Ack.CLIENT, "client-individual": Ack.CLIENT_INDIVIDUAL}


class Asks(NamedTuple):
    """What a consumer asks for itself instead of what its queue's policy says; None where it asks nothing."""

    delivery_limit: int | None = None
    redelivery_us: int | None = None
    dead_letter: str | None = None


class StartAt(NamedTuple):
    """A beginning that only the log can find."""

    word: str
    """`last`, `offset` or `timestamp`."""
    number: int = 0
    """The offset; or µs since 1970."""
    before: Vector | None = None
    """What the log has found: the vector of what precedes it. A new durable subscription begins behind that."""


class JournalSpan(NamedTuple):
    """What a reader of the journal wants: records above `after`, up to `until`; without `until` also those to come.

    `reader` is the name that the status shows, "" for none.
    """

    after: Vector
    until: Vector | None
    reader: str = ""


Claim = tuple[Origin, int, int]
"""(origin, after, through), as a range of `qmq.model.cursors`."""

OBJECT_BYTES: Final = 600
NODE_BYTES: Final = 400
"""Of one node of the trie of patterns, about."""

SELECTOR_PART_BYTES: Final = 200
"""Of a compiled selector, for each unit of its cost."""

NOTHING_IN_FLIGHT: "Final[dict[int, Delivery]]" = {}
"""One for all, and nothing writes into it: `hold` gives a subscription a dictionary of its own before the first.

A real dictionary, not a read-only view of one: compiled modules hold a name to its type.
"""


class Subscription:
    """One SUBSCRIBE of one session.

    `prefix` is the gateway's: the bytes that come before each of its messages, so that subscribers with equal
    prefixes can share one encoding. `waiting` says that its queue has it in line for the next message. `after_commit`
    says that something in flight to it may still wait for the journal (kept in `client` mode only). `start` is where
    a fanout subscription begins: `first`, `next`, a StartAt, or the vector it has already seen; `durable` is its cursor
    there. `selector` says which messages it wants, None for all. `check_us` is when the oldest delivery under an
    ack-timeout may be late. `exclusive` is asked for, `since_us` and `lent_as` (`consumer_class`) follow for consumers
    that are not plain. `window` bounds what all queue subscriptions of the client have in flight. One with
    `is_browser` is given copies and stands in no line.
    """

    __slots__ = (
        "ack",
        "ack_timeout_us",
        "acknowledged",
        "after_commit",
        "asks",
        "buffer",
        "check_us",
        "closed",
        "credit",
        "credit_max",
        "delivered",
        "destination",
        "durable",
        "exclusive",
        "id",
        "in_flight",
        "is_browser",
        "is_pull",
        "may_lose_unsent",
        "lent_as",
        "message_ids",
        "prefix",
        "priority",
        "selector",
        "session",
        "since",
        "since_us",
        "source",
        "start",
        "waiting",
        "window",
    )

    def __init__(self, session: int, id: str, destination: str, ack: Ack, credit: int, prefix: bytes) -> None:
        self.session = session
        self.id = id
        self.destination = destination
        self.ack = ack
        self.credit = credit
        self.credit_max = 0
        """Up to this it grows while the consumer settles what fills it; see `QueueState.grow`."""
        self.delivered = 0
        """Messages of a queue or a durable subscription that were sent to it, each time."""
        self.acknowledged = 0
        """Those that are settled: by its ACKs, or for `ack:auto` by the node."""
        self.prefix = prefix
        # Most subscriptions to topics never hold anything, and there may be a million: they share an empty mapping.
        self.in_flight: dict[int, Delivery] = NOTHING_IN_FLIGHT
        # Only for STOMP 1.0 and 1.1, whose clients settle by message-id: message-id -> tag.
        self.message_ids: dict[str, int] | None = None
        self.waiting = False
        self.after_commit = False
        self.closed = False
        self.buffer: Buffer | None = None
        self.ack_timeout_us = 0
        self.check_us = 0
        self.asks: Asks | None = None
        self.source = ""
        """The topic or exchange that the client named, of a subscription that is served by a queue of its own."""
        self.selector: Selector | None = None
        self.is_browser = False
        self.is_pull = False
        """Whether it gets only as many messages as it is granted (`Queues.grant`): one that is settled, or comes back,
        makes no room for the next one."""
        # Whether what was decided for it may be taken back before it is sent: it was given a message under an
        # ack-timeout, or the node has lost the right to serve.
        self.may_lose_unsent = False
        self.exclusive = False
        self.priority = 0
        """Of a queue's consumers those with the highest are served first, as long as they have room."""
        self.since_us = 0
        self.lent_as = PLAIN
        self.window: ConnectionPrefetch[Subscription] | None = None
        self.durable: Attachment | None = None
        self.start: str | Vector | StartAt | JournalSpan = "first"
        # The last sequence that this node had given when a fanout subscription began; for `next`.
        self.since = 0

    @property
    def memory_bytes(self) -> int:
        """What it costs to have it, about, besides what it is given."""
        size = OBJECT_BYTES
        if self.selector is not None:
            size += SELECTOR_PART_BYTES * self.selector.cost
        if is_pattern(self.destination):
            size += NODE_BYTES * (1 + self.destination.count("."))
        return size

    def hold(self, delivery: "Delivery") -> None:
        """It has this message in hand."""
        if self.in_flight is NOTHING_IN_FLIGHT:
            self.in_flight = {}
        self.in_flight[delivery.tag] = delivery

    @property
    def free(self) -> int:
        """How many more messages it may be given now."""
        return self.credit - len(self.in_flight)


class Delivery:
    """One queue message in the hands of one subscription; `tag` names it within the session and is never reused.

    `timeout_us` is how long its ACK may take once it is sent, 0 for ever; `deadline_us` when it is late, 0 until it is
    sent. `sent`: its bytes are in the outbox of its client.
    """

    __slots__ = ("deadline_us", "message", "sent", "subscription", "tag", "timeout_us")

    def __init__(self, tag: int, subscription: Subscription, message: Message) -> None:
        self.tag = tag
        self.subscription = subscription
        self.message = message
        self.timeout_us = 0
        self.deadline_us = 0
        self.sent = False


class FanoutDelivery(Delivery):
    """A message of a fanout, or a gap notice, in the hands of a durable subscription."""

    __slots__ = ("claims", "redelivered")

    def __init__(
        self, tag: int, subscription: Subscription, message: Message, claims: tuple[Claim, ...], redelivered: bool
    ) -> None:
        super().__init__(tag, subscription, message)
        self.claims = claims
        self.redelivered = redelivered


class Attachment:
    """One live subscription of a name. Made by `DurableSubscriptions.attach`."""

    __slots__ = (
        "_before",
        "_maybe",
        "_seen",
        "again",
        "begin",
        "cursor",
        "holder",
        "is_new",
        "subscription",
        "delivered_up_to",
        "unrecorded",
        "user",
    )

    def __init__(
        self,
        cursor: Cursor,
        subscription: Subscription,
        holder: Holder,
        is_new: bool,
        user: str = "",
    ) -> None:
        self.user = user
        """Of its client; "" for one that is no user."""
        self.holder = holder
        self.cursor = cursor
        self.subscription = subscription
        self.is_new = is_new
        """Until its first reading: what is missing then was never promised."""
        self.delivered_up_to: Vector = {}
        """The last sequence looked at, per origin."""
        self.again: list[FanoutDelivery] = []
        """Refused by the client; to be handed out again. They keep their credit."""
        self.unrecorded: dict[Origin, list[Range]] = {}
        """Done, and in no record yet."""
        self._before = dict(cursor.delivered_up_to)
        self._maybe = cursor.credit
        self._seen: dict[Origin, int] = {}

    @property
    def name(self) -> Name:
        return self.cursor.name

    @property
    def free(self) -> int:
        """How many messages it may be handed now."""
        subscription = self.subscription
        return 0 if subscription.closed else subscription.credit - len(subscription.in_flight) - len(self.again)

    def reached(self, origin: Origin) -> int:
        """Up to where nothing of `origin` needs to be looked at any more."""
        delivered_up_to = self.delivered_up_to.get(origin)
        return self.cursor.done_up_to(origin) if delivered_up_to is None else delivered_up_to

    def claim(self, claims: Iterable[Claim]) -> None:
        """These are done."""
        for origin, after, through in claims:
            add_range(self.cursor.done.setdefault(origin, []), after, through)
            add_range(self.unrecorded.setdefault(origin, []), after, through)

    def skip(self, message: Message) -> None:
        """The subscription does not want this message (its selector says so): done without being handed out."""
        origin, sequence = message.origin, message.sequence
        reached = self.reached(origin)
        if sequence > reached:
            self.claim([(origin, reached, sequence)])
            self.delivered_up_to[origin] = sequence

    def is_redelivery(self, message: Message) -> bool:
        """Whether a client may have seen it in an earlier attachment. Asked once per message."""
        origin, sequence = message.origin, message.sequence
        if sequence <= self._before.get(origin, 0):
            return True
        if not self._maybe:
            return False
        seen = self._seen[origin] = self._seen.get(origin, 0) + 1
        return seen <= self._maybe

    def handed_out(self) -> Vector:
        """What was handed out, by this attachment or one before it, and is not all done."""
        highest = dict(self._before)
        for origin, delivered_up_to in self.delivered_up_to.items():
            highest[origin] = max(delivered_up_to, highest.get(origin, 0))
        return {origin: last for origin, last in highest.items() if last > self.cursor.done_up_to(origin)}

    def moved(self) -> Move:
        """What is done and in no record yet, as the next record says it."""
        done, self.unrecorded = self.unrecorded, {}
        return Move(self.name, self.cursor.created_us, self.cursor.deleted_us, done=done)


def covered(delivery: Delivery) -> list[Delivery]:
    """What an ACK or NACK of `delivery` is about: in `client` mode everything delivered up to it."""
    subscription = delivery.subscription
    if subscription.ack is not Ack.CLIENT:
        return [delivery]
    found = []
    for tag, other in subscription.in_flight.items():
        if tag > delivery.tag:
            break
        found.append(other)
    return found
