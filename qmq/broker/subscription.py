"""A client's wish for messages, and what it has been given and not yet settled.

Credit is what makes queues fair: a subscription may have at most `credit` messages in flight, and a queue offers
messages only to those with room. Topic and fanout subscriptions have no credit; their bound is the outbox.
"""

from enum import IntEnum

from qmq.broker.message import Message
from qmq.dots import Vector


class Ack(IntEnum):
    """The three ack modes of STOMP (1.2, SUBSCRIBE)."""

    AUTO = 0
    CLIENT = 1
    """An ACK or NACK covers everything delivered to the subscription up to that message."""
    CLIENT_INDIVIDUAL = 2


ACK_MODES = {"auto": Ack.AUTO, "client": Ack.CLIENT, "client-individual": Ack.CLIENT_INDIVIDUAL}


class Subscription:
    """One SUBSCRIBE of one session.

    `prefix` is the gateway's: the bytes that come before each of its messages, so that subscribers with equal
    prefixes can share one encoding. `waiting` says that its queue has it in line for the next message. `after_commit`
    says that something in flight to it may still wait for the journal (kept in `client` mode only). `start` is where
    a fanout subscription begins: `first`, `next`, or the vector it has already seen.
    """

    __slots__ = (
        "ack",
        "after_commit",
        "closed",
        "credit",
        "destination",
        "id",
        "in_flight",
        "message_ids",
        "prefix",
        "session",
        "since",
        "start",
        "waiting",
    )

    def __init__(self, session: int, id: str, destination: str, ack: Ack, credit: int, prefix: bytes) -> None:
        self.session = session
        self.id = id
        self.destination = destination
        self.ack = ack
        self.credit = credit
        self.prefix = prefix
        self.in_flight: dict[int, Delivery] = {}
        # Only for STOMP 1.0 and 1.1, whose clients settle by message-id: message-id -> tag.
        self.message_ids: dict[str, int] | None = None
        self.waiting = False
        self.after_commit = False
        self.closed = False
        self.start: str | Vector = "first"
        # The last sequence that this node had given when a fanout subscription began; for `next`.
        self.since = 0

    @property
    def free(self) -> int:
        """How many more messages it may be given now."""
        return self.credit - len(self.in_flight)


class Delivery:
    """One queue message in the hands of one subscription; `tag` names it within the session and is never reused."""

    __slots__ = ("message", "subscription", "tag")

    def __init__(self, tag: int, subscription: Subscription, message: Message) -> None:
        self.tag = tag
        self.subscription = subscription
        self.message = message
