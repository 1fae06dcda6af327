"""What follows from a decision, as a value: records to append, then bytes to send.

One Outcome collects the effects of one chunk of frames (or one batch from a peer, or one timer). The server first
appends `records` and `batches`, and only when they are durable does it send the `after` half. The `now` half needs no
durability: memory-only messages, and answers about them. Consecutive effects of the same kind merge into runs while
they are made, because runs are what makes encoding and sending cheap.
"""

from typing import Final, NamedTuple

from qmq.broker.consumers.light_subscriptions import Subscriber
from qmq.broker.consumers.subscription import Ack, Asks, Attachment, Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message, OwnRecord
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.broker.messages.sent_run import SentRun
from qmq.errors import Refused
from qmq.model.cursors import Move
from qmq.model.deletions import Deletion
from qmq.model.dots import Dot, Origin

COST_MAX: Final = 100_000
"""What one Outcome may cost (`Outcome.cost` and `selector_cost`), some 20 ms: then others have their turn."""


COPY_COST: Final = 20
"""What accepting one copy of a message costs."""

DEAD_LETTER_COST: Final = 50
"""What making one dead letter costs."""


TURN_COST: Final = 10_000
"""What selecting may cost in one turn of the event loop, some 2 ms; the last selector asked may exceed it, by 1,012."""

FOLLOW_COST_MAX: Final = 2 * TURN_COST
"""What selecting for live subscribers of fanouts may cost in one group of commits; beyond it they read the log."""

DEAD_LETTERS_BYTES_MAX: Final = 18 << 20
"""Of the dead letters that a transaction sets off; the largest message fits."""

BESIDE_BYTES_MAX: Final = 1 << 20
"""Of records before a transaction in its Outcome: with all that it sets off it must be one batch."""


class Return(NamedTuple):
    """A message that comes back to its owner, and what its consumer asked for in that case."""

    message: Message
    why: Back
    asks: Asks | None


class Eviction(NamedTuple):
    """A session that must be disconnected, why, and the id of the subscription concerned, if there is one."""

    session: int
    why: Refused
    subscription: str | None = None


class TopicRun:
    """Messages to one destination, in order, for the same subscribers. `retained`: last values, marked as such.

    `sent` has the messages as one object; each is made when it is asked for.
    """

    __slots__ = ("_messages", "retained", "sent", "subscriptions")

    def __init__(
        self,
        subscriptions: tuple[Subscriber, ...],
        messages: list[Message],
        retained: bool = False,
        sent: SentRun | None = None,
    ) -> None:
        self.subscriptions = subscriptions
        self._messages = messages
        self.retained = retained
        self.sent = sent

    @property
    def messages(self) -> list[Message]:
        return self._messages if self.sent is None else self.sent.messages

    @property
    def destination(self) -> str:
        return (self._messages[0] if self.sent is None else self.sent).envelope.destination

    def __len__(self) -> int:
        return len(self._messages) if self.sent is None else len(self.sent.bodies)


class FanoutRun:
    """Messages, in order, for the live subscribers of the fanout when they are sent."""

    __slots__ = ("destination", "messages")

    def __init__(self, destination: str, messages: list[Message]) -> None:
        self.destination = destination
        self.messages = messages


class Outcome:
    """Effects of one decision. `session` made the request; its receipts come last, after everything it caused is safe.

    `now_us` is the wall clock of the decision; 0 where nothing in it depends on the time.
    """

    __slots__ = (
        "attempts",
        "batches",
        "begins",
        "borrowed_settled",
        "browsers",
        "cost",
        "deletions",
        "deliveries_after",
        "deliveries_now",
        "ending",
        "evictions",
        "fanout_runs",
        "frames",
        "freed",
        "lost_ranges",
        "has_gap",
        "interest_changes",
        "is_first",
        "joined",
        "left",
        "dead_letters_left",
        "levels",
        "loads",
        "marks",
        "moved",
        "moves",
        "now_us",
        "offers",
        "owners",
        "peer_deliveries",
        "peer_forgotten",
        "peer_replies",
        "peer_returns",
        "peer_settled_after",
        "peer_settled_now",
        "peer_topics",
        "peer_waiting",
        "retained_delivery",
        "receipts",
        "record_bytes",
        "records",
        "repeats",
        "sequence",
        "session",
        "settles",
        "selector_cost",
        "sent",
        "topic_runs",
        "watchers",
    )

    def __init__(self, session: int = 0, now_us: int = 0) -> None:
        self.session = session
        self.now_us = now_us
        self.records: list[OwnRecord] = []
        self.record_bytes = 0
        # Whether a Gap is among the records: it must follow what was submitted before it and precede what comes after.
        self.has_gap = False
        # Settled dots by queue, and the owners of the borrowed ones; `Broker.finish` turns them into records.
        self.settles: dict[str, list[Dot]] = {}
        self.borrowed_settled: dict[Dot, str] = {}
        # By queue, own durable messages that have come back -> how often by now; likewise.
        self.attempts: dict[str, dict[Dot, int]] = {}
        # Durable subscriptions that settled something, and what else is to be recorded of cursors; likewise.
        self.moved: dict[Attachment, None] = {}
        self.moves: list[Move] = []
        # Batches of other origins, to be appended byte for byte: (origin, last sequence, bytes).
        self.batches: list[tuple[Origin, int, bytes]] = []
        # With a transaction, which must be one batch: how many more bytes of dead letters it may set off.
        self.dead_letters_left: int | None = None
        # What deciding has cost: bindings and patterns looked through, selectors read, bodies checked, copies and dead
        # dead letters made; in the unit of `Selector.cost`. And what the selectors of topic and fanout subscribers may
        # cost.
        self.cost = 0
        self.selector_cost = 0
        # What readers of fanouts miss, besides the messages here: origin, after, through. Sent behind the fanout runs.
        self.lost_ranges: list[tuple[Origin, int, int]] = []
        self.topic_runs: list[TopicRun] = []
        self.fanout_runs: list[FanoutRun] = []
        self.deliveries_now: dict[Subscription, list[Delivery]] = {}
        self.deliveries_after: dict[Subscription, list[Delivery]] = {}
        self.receipts: list[str] = []
        # Where among the receipts another level begins (FSYNC at first), and the last own record that they are about.
        self.levels: list[tuple[int, int]] = []
        self.sequence = 0
        # Whose messages were acknowledged at a level with QUORUM; None while there is none.
        self.owners: set[str] | None = None
        # Whether its receipts are about messages appended before, and so wait for all that was decided before; and
        # header lines that go into each of the receipts.
        self.repeats = False
        self.marks: tuple[tuple[str, str], ...] = ()
        # Whether the session has no answer to hear before these that waits for the disk.
        self.is_first = False
        # Other answers to the session, ready encoded, sent after its receipts; `ending` closes it after them.
        self.frames: list[bytes] = []
        # What became of each SEND, for a session whose answer names that: its message, or None, and whether it is a
        # duplicate.
        self.sent: list[tuple[Message | None, bool]] | None = None
        self.ending = False
        # Whether the receipt of a SUBSCRIBE is among them, which goes before the first message of the subscription.
        self.begins = False
        # Fanout subscriptions that begin: the server reads their past and then lets them follow live.
        self.joined: list[Subscription] = []
        # Fanout subscriptions that end; attachments that have credit again, or something to be delivered again.
        self.left: list[Subscription] = []
        self.freed: dict[Attachment, None] = {}
        # Subscriptions that begin to what the node publishes of itself.
        self.watchers: list[Subscription] = []
        # Sessions that cannot continue, because of another node or because they do not read.
        self.evictions: list[Eviction] = []
        # Fanouts that were deleted, here or on another node.
        self.deletions: list[Deletion] = []
        # Topic subscriptions that begin while there are retained values, and the last change before them.
        self.retained_delivery: list[tuple[Subscription, int]] = []
        # Queue subscriptions that only look: the server reads to them what there is.
        self.browsers: list[Subscription] = []
        # Topic patterns that got their first local subscriber (True), or lost their last.
        self.interest_changes: dict[str, bool] = {}
        # Credit for peers: (peer, offer, limit). Sent first: a message that goes back must not overtake less credit.
        self.offers: list[tuple[str, str, int]] = []
        self.peer_topics: dict[str, list[Message]] = {}
        self.peer_replies: dict[Origin, list[Message]] = {}
        self.peer_deliveries: dict[str, list[Message]] = {}
        # Credit that a peer has withdrawn, and that is forgotten once everything lent against it before is sent.
        self.peer_forgotten: dict[str, list[str]] = {}
        # Queue → whether messages wait here for consumers of a peer, which has asked.
        self.peer_waiting: dict[str, dict[str, bool]] = {}
        self.peer_settled_now: dict[str, list[Dot]] = {}
        self.peer_settled_after: dict[str, list[Dot]] = {}
        # Lent messages given back to their owner.
        self.peer_returns: dict[str, list[Return]] = {}
        # Queues that want more from the queue store.
        self.loads: list[str] = []

    @property
    def needs_commit(self) -> bool:
        """Whether anything here must wait for the journal (its own records, or an earlier one's)."""
        return bool(
            self.records
            or self.batches
            or self.repeats
            or self.deliveries_after
            or self.fanout_runs
            or self.peer_deliveries
            or self.peer_forgotten
            or self.peer_waiting
            or self.peer_settled_after
        )

    @property
    def is_for_peers(self) -> bool:
        """Whether something here goes over links, besides what the journal carries."""
        return bool(
            self.offers
            or self.interest_changes
            or self.peer_topics
            or self.peer_replies
            or self.peer_deliveries
            or self.peer_forgotten
            or self.peer_waiting
            or self.peer_settled_now
            or self.peer_settled_after
            or self.peer_returns
        )

    @property
    def has_answers(self) -> bool:
        """Whether something is still to be sent to the session."""
        return bool(self.receipts or self.frames or self.ending)

    def receipt(self, receipt: str, level: int = FSYNC) -> None:
        """Answer with this receipt, once `level` is reached (`qmq.broker.messages.receipt_levels`)."""
        levels = self.levels
        if level != (levels[-1][1] if levels else FSYNC):
            levels.append((len(self.receipts), level))
        self.receipts.append(receipt)

    def receipt_run(self, receipts: list[str], level: int = FSYNC) -> None:
        """As `receipt`, for all of these, of which there is one at least."""
        self.receipt(receipts[0], level)
        self.receipts.extend(receipts[1:])

    def settles_for_good(self, deliveries: list[Delivery]) -> None:
        """These are acknowledged at a level with QUORUM: receipts wait for the servers of their owners."""
        if self.owners is None:
            self.owners = set()
        self.owners.update([one.message.origin.node for one in deliveries if one.message.sequence > 0])

    def publish_topic(self, subscriptions: tuple[Subscriber, ...], message: Message) -> None:
        """Deliver `message` to `subscriptions`; merges with the run before it when they are the same tuple."""
        runs = self.topic_runs
        last = runs[-1] if runs else None
        if last is not None and last.subscriptions is subscriptions and not last.retained and last.sent is None:
            last.messages.append(message)
        else:
            runs.append(TopicRun(subscriptions, [message]))

    def publish_topic_run(self, subscriptions: tuple[Subscriber, ...], sent: SentRun, *, is_alike: bool = True) -> None:
        """As `publish_topic`, for all of these. Not `is_alike`: its messages have been given envelopes of their own."""
        run = TopicRun(subscriptions, [], sent=sent) if is_alike else TopicRun(subscriptions, sent.messages)
        self.topic_runs.append(run)

    def publish_value(self, subscriptions: tuple[Subscriber, ...], message: Message) -> None:
        """Deliver the last value of a topic to subscribers that did not get it when it was set."""
        self.topic_runs.append(TopicRun(subscriptions, [message], retained=True))

    def publish_fanout(self, destination: str, message: Message) -> None:
        """Deliver `message` to the live subscribers of the fanout, once it is durable."""
        self.publish_fanout_run(destination, [message])

    def publish_fanout_run(self, destination: str, messages: list[Message]) -> None:
        """As `publish_fanout`, for all of these; keeps the list."""
        runs = self.fanout_runs
        if runs and runs[-1].destination == destination:
            runs[-1].messages.extend(messages)
        else:
            runs.append(FanoutRun(destination, messages))

    def deliver_run(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """As `deliver`, for own messages in the hands of a subscription whose ACKs cover one each; keeps the list."""
        durable = [delivery.message.envelope.durable for delivery in deliveries]
        if all(durable):
            self._deliver_all(self.deliveries_after, subscription, deliveries)
        elif not any(durable):
            self._deliver_all(self.deliveries_now, subscription, deliveries)
        else:
            for delivery in deliveries:
                self.deliver(delivery)

    def _deliver_all(
        self, where: dict[Subscription, list[Delivery]], subscription: Subscription, deliveries: list[Delivery]
    ) -> None:
        run = where.get(subscription)
        if run is None:
            where[subscription] = deliveries
        else:
            run.extend(deliveries)

    def deliver(self, delivery: Delivery) -> None:
        """Hand a queue message to its subscription: once it is durable, at once when there is nothing to wait for.

        A lent message was durable at its owner before it left there. In `client` mode an ACK covers all deliveries
        before it, so there nothing may overtake one that waits: the client would settle what it has never seen.
        """
        message = delivery.message
        subscription = delivery.subscription
        waits = message.envelope.durable and message.owner is None
        if subscription.ack is Ack.CLIENT:
            waits = waits or (subscription.after_commit and len(subscription.in_flight) > 1)
            subscription.after_commit = waits
        where = self.deliveries_after if waits else self.deliveries_now
        run = where.get(subscription)
        if run is None:
            where[subscription] = [delivery]
        else:
            run.append(delivery)
