"""What follows from a decision, as a value: records to append, then bytes to send.

One Outcome collects the effects of one chunk of frames (or one batch from a peer, or one timer). The server first
appends `records` and `batches`, and only when they are durable does it tell the `after` half. The `now` half needs no
durability: memory-only messages, and answers about them. Consecutive effects of the same kind merge into runs while
they are made, because runs are what makes encoding and sending cheap.
"""

from qmq.broker.message import Gap, Message, Settle
from qmq.broker.subscription import Ack, Delivery, Subscription
from qmq.dots import Dot, Origin


class TopicRun:
    """The same messages, in order, for the same subscribers."""

    __slots__ = ("messages", "subscriptions")

    def __init__(self, subscriptions: tuple[Subscription, ...], messages: list[Message]) -> None:
        self.subscriptions = subscriptions
        self.messages = messages


class FanoutRun:
    """Messages, in order, for whoever follows the fanout live when they are told."""

    __slots__ = ("destination", "messages")

    def __init__(self, destination: str, messages: list[Message]) -> None:
        self.destination = destination
        self.messages = messages


class Outcome:
    """Effects of one decision. `session` is who asked; its receipts come last, after everything it caused is safe."""

    __slots__ = (
        "batches",
        "borrowed_settled",
        "deliveries_after",
        "deliveries_now",
        "ending",
        "fanout_runs",
        "frames",
        "has_gap",
        "joined",
        "peer_deliveries",
        "peer_returns",
        "peer_settled_after",
        "peer_settled_now",
        "peer_topics",
        "receipts",
        "record_bytes",
        "records",
        "session",
        "settles",
        "topic_runs",
    )

    def __init__(self, session: int = 0) -> None:
        self.session = session
        self.records: list[Message | Settle | Gap] = []
        self.record_bytes = 0
        # Whether a Gap is among the records: it must follow what was submitted before it and precede what comes after.
        self.has_gap = False
        # Settled dots by queue, and the owners of the borrowed ones; `Broker.finish` turns them into records.
        self.settles: dict[str, list[Dot]] = {}
        self.borrowed_settled: dict[Dot, str] = {}
        # Batches of other origins, to be appended byte for byte: (origin, last sequence, bytes).
        self.batches: list[tuple[Origin, int, bytes]] = []
        self.topic_runs: list[TopicRun] = []
        self.fanout_runs: list[FanoutRun] = []
        self.deliveries_now: dict[Subscription, list[Delivery]] = {}
        self.deliveries_after: dict[Subscription, list[Delivery]] = {}
        self.receipts: list[str] = []
        # Other answers to the session, ready encoded, told after its receipts; `ending` closes it after them.
        self.frames: list[bytes] = []
        self.ending = False
        # Fanout subscriptions that begin: the server reads their past and then lets them follow live.
        self.joined: list[Subscription] = []
        self.peer_topics: dict[str, list[Message]] = {}
        self.peer_deliveries: dict[str, list[Message]] = {}
        self.peer_settled_now: dict[str, list[Dot]] = {}
        self.peer_settled_after: dict[str, list[Dot]] = {}
        # Lent messages given back to their owner: (message, whether a client has seen it).
        self.peer_returns: dict[str, list[tuple[Message, bool]]] = {}

    @property
    def needs_commit(self) -> bool:
        """Whether anything here must wait for the journal (its own records, or an earlier one's)."""
        return bool(
            self.records
            or self.batches
            or self.deliveries_after
            or self.fanout_runs
            or self.peer_deliveries
            or self.peer_settled_after
        )

    def publish_topic(self, subscriptions: tuple[Subscription, ...], message: Message) -> None:
        """Tell `message` to `subscriptions`; merges with the run before it when they are the same tuple."""
        runs = self.topic_runs
        if runs and runs[-1].subscriptions is subscriptions:
            runs[-1].messages.append(message)
        else:
            runs.append(TopicRun(subscriptions, [message]))

    def publish_fanout(self, destination: str, message: Message) -> None:
        """Tell `message` to the live followers of the fanout, once it is durable."""
        runs = self.fanout_runs
        if runs and runs[-1].destination == destination:
            runs[-1].messages.append(message)
        else:
            runs.append(FanoutRun(destination, [message]))

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
