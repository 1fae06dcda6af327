"""One subscription and the messages that wait in it, without the tasks that wait for them.

What arrives is buffered here, and each kind of destination has its own bound: a queue is bounded by the credit that
the node was given, a fanout is paused at `buffer_bytes` (it is unsubscribed, and continued from its vector when half
of that has been taken), and a topic, whose messages cannot be had again, ends or drops its oldest.

A durable subscription of a fanout, whose place the nodes keep, is for this side what a queue is: its messages are
bounded by credit, need an ACK, and come again after a lost connection.

Surprising: `auto` is not what goes over the wire for queues. A message that the node counts as consumed when it
is sent would be lost in this buffer if the client died, and nothing would bound the buffer. So SUBSCRIBE says
`client-individual`, and the message is acknowledged when it is handed out.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from itertools import takewhile

from qmq.client.core.vectors import Progress, parse_gap
from qmq.errors import ClientError, Refused

MESSAGE_OVERHEAD_BYTES = 512
"""What one buffered message costs beyond its body, near enough for a bound: it makes that a bound on messages too."""


GAP_HEADER = "qmq-gap"

DEDUP_HEADERS = ("dedup-id", "qmq-dedup-id", "_AMQ_DUPL_ID")

SENDER = "dedup-sender"
"""Stands for the user of the sender: an id counts for one user."""

IDS_MAX = 10_000
"""So many messages of a fanout are known by their dedup ids, at least: up to 4 MB. When a node dies with a message that
no other has, its sender sends it again elsewhere; the copy of that node comes when it is back, however late.
"""


class FeedKind(Enum):
    QUEUE = "queue"
    TOPIC = "topic"
    FANOUT = "fanout"


class AckMode(Enum):
    """When a message is acknowledged: `AUTO` means when it is handed out; the others as in STOMP 1.2."""

    AUTO = "auto"
    CLIENT = "client"
    CLIENT_INDIVIDUAL = "client-individual"


class FeedState(Enum):
    CLOSED = "closed"
    """Not subscribed at the present node: there is none, or the feed is paused."""
    ASKING = "asking"
    """The node was asked where its fanouts end, for a start at `next`."""
    OPENING = "opening"
    OPEN = "open"
    ENDED = "ended"
    """Ended for good; `error` is the reason, None when its owner has left."""


def kind_of(destination: str) -> FeedKind:
    """What `destination` is to a subscriber. The node refuses an invalid one.

    >>> kind_of("/fanout/log"), kind_of("/exchange/orders/eu")
    (<FeedKind.FANOUT: 'fanout'>, <FeedKind.QUEUE: 'queue'>)
    """
    if destination.startswith("/fanout/"):
        return FeedKind.FANOUT
    if destination.startswith(("/topic/", "/system/", "/temp-queue/")):
        return FeedKind.TOPIC
    return FeedKind.QUEUE


class Delivered:
    """One message as it came. `connection` numbers the connection it came over; `settled` once ACK or NACK is sent.

    `ack_id` is empty when there is nothing to settle (topics, fanouts).
    """

    __slots__ = ("ack_id", "body", "connection", "feed", "headers", "settled")

    def __init__(self, feed: "Feed", headers: Mapping[str, str], body: bytes, connection: int) -> None:
        self.feed = feed
        self.headers = headers
        self.body = body
        self.connection = connection
        self.ack_id = headers.get("ack", "") if feed.kind is FeedKind.QUEUE else ""
        self.settled = False

    @property
    def cost_bytes(self) -> int:
        return len(self.body) + MESSAGE_OVERHEAD_BYTES


@dataclass(slots=True, eq=False)
class Feed:
    """One subscription over all connections. `wire_id` is its id on the present one: new at each SUBSCRIBE, so that
    what was still on its way for an earlier SUBSCRIBE is not taken for this one.
    """

    destination: str
    _: KW_ONLY
    ack: AckMode
    prefetch: int
    buffer_bytes_max: int
    drops_oldest: bool
    start: str
    """`first`, `next`, or `resume`: after `seen`."""
    seen: Progress
    """Fanouts: what has been put into the buffer."""
    headers: Mapping[str, str]
    durable: str = ""
    """Its name at the nodes, for a durable subscription; otherwise empty."""
    ack_level: str = ""
    """Of ACKs with a receipt; empty: as the node's policy says."""
    kind: FeedKind = field(init=False)
    state: FeedState = FeedState.CLOSED
    opened: bool = False
    """Whether a node has ever accepted it."""
    error: ClientError | Refused | None = None
    wire_id: str = ""
    buffer: deque[Delivered] = field(default_factory=deque)
    buffered_bytes: int = 0
    handed: Progress = field(init=False)
    """Fanouts: what has been handed out."""
    is_at_start: bool = field(init=False)
    """Fanouts: whether nothing has come yet of a start at the first kept message."""
    ids: dict[str, str] = field(default_factory=dict)
    """Fanouts: dedup ids of the messages that came last, with their senders, oldest first; and which origin's came
    first."""
    has_passed_over: bool = False
    """Fanouts: whether `seen` has copies that `handed` does not have."""
    unsettled: dict[str, Delivered] = field(default_factory=dict)
    """By ack id, in the order of delivery: came over the present connection, and neither ACK nor NACK is said."""
    dropped: int = 0
    is_stopped: bool = False
    """Whether the application takes no more messages."""

    def __post_init__(self) -> None:
        self.kind = FeedKind.QUEUE if self.durable else kind_of(self.destination)
        self.headers = dict(self.headers)
        self.handed = self.seen.copy()
        self.is_at_start = self.start == "first"

    @property
    def is_full(self) -> bool:
        return self.buffered_bytes >= self.buffer_bytes_max

    @property
    def may_resume(self) -> bool:
        """Whether enough has been taken that a paused feed is worth continuing."""
        return self.buffered_bytes * 2 <= self.buffer_bytes_max

    def is_news(self, headers: Mapping[str, str]) -> bool:
        """Fanouts: whether a MESSAGE is for the application; it is seen from now on.

        A gap notice that comes before any message, when everything that is kept was asked for, only says where that
        begins: nothing of it was ever promised.
        """
        gap = headers.get(GAP_HEADER)
        if gap is None:
            self.is_at_start = False
            message_id = headers.get("message-id", "")
            if not self.seen.advance(message_id):
                return False
            if self._is_new_id(message_id, headers):
                return True
            self.has_passed_over = True
            self._catch_up()
            return False
        missing = parse_gap(gap)
        is_news = self.seen.pass_over(missing)
        if self.is_at_start:
            self.handed.pass_over(missing)
        return is_news and not self.is_at_start

    def _catch_up(self) -> None:
        """A position has the copies that were passed over, too, once all that came before them is handed out: a client
        that continues there does not know their ids.
        """
        if self.has_passed_over and not self.buffer:
            self.has_passed_over = False
            self.handed = self.seen.copy()

    def _is_new_id(self, message_id: str, headers: Mapping[str, str]) -> bool:
        """Whether no message with this dedup id came just before, from another node that had taken it too.

        What one origin takes twice are two messages: it has known the id, and would not have taken it before its time.
        """
        id = next((headers[name] for name in DEDUP_HEADERS if name in headers), "")
        if not id:
            return True
        if SENDER in headers:
            id = f"{headers[SENDER]} {id}"
        origin = message_id.rpartition("-")[0]
        if self.ids.setdefault(id, origin) != origin:
            return False
        if len(self.ids) > 2 * IDS_MAX:
            # All at once: taking the oldest one from a dict each time would look at every place that is free by now.
            self.ids = dict(list(self.ids.items())[IDS_MAX:])
        return True

    def put(self, delivery: Delivered) -> None:
        self.buffer.append(delivery)
        self.buffered_bytes += delivery.cost_bytes
        if delivery.ack_id:
            self.unsettled[delivery.ack_id] = delivery

    def take(self) -> Delivered:
        """The oldest one. IndexError when there is none."""
        delivery = self.buffer.popleft()
        self.buffered_bytes -= delivery.cost_bytes
        if self.kind is FeedKind.FANOUT:
            gap = delivery.headers.get(GAP_HEADER)
            if gap is None:
                self.handed.advance(delivery.headers.get("message-id", ""))
            else:
                self.handed.pass_over(parse_gap(gap))
            self._catch_up()
        return delivery

    def settle(self, delivery: Delivered) -> None:
        """ACK or NACK is said of it; in `client` mode of everything delivered before it, too."""
        if self.ack is AckMode.CLIENT and delivery.ack_id in self.unsettled:
            for ack_id, earlier in list(self.unsettled.items()):
                if ack_id == delivery.ack_id:
                    break
                earlier.settled = True
                del self.unsettled[ack_id]
        delivery.settled = True
        self.unsettled.pop(delivery.ack_id, None)

    def hold_earlier(self, delivery: Delivered) -> list[Delivered]:
        """What a transaction that settles `delivery` covers besides it, in `client` mode: it counts as settled now."""
        if self.ack is not AckMode.CLIENT or delivery.ack_id not in self.unsettled:
            return []
        before = takewhile(lambda one: one is not delivery, self.unsettled.values())
        earlier = [one for one in before if not one.settled]
        for one in earlier:
            one.settled = True
        return earlier

    def drop_oldest(self) -> None:
        while self.buffer and self.is_full:
            self.buffered_bytes -= self.buffer.popleft().cost_bytes
            self.dropped += 1

    def cut_off(self) -> None:
        """No node knows it any more: queue messages that wait here are delivered again, so none is handed out."""
        self.unsettled.clear()
        if self.kind is FeedKind.QUEUE:
            self.buffer.clear()
            self.buffered_bytes = 0
        self.state = FeedState.CLOSED
