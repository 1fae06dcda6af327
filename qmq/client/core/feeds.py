"""The subscriptions of one client: opened on each connection again, fed with messages, and ended."""

from qmq.client.core import encode
from qmq.client.core.feed import AckMode, Delivered, Feed, FeedKind, FeedState
from qmq.client.core.requests import Exchange, Phase, Request, RequestKind
from qmq.client.core.vectors import parse_progress
from qmq.errors import ClientError, Overrun, Refused


class Feeds:
    """`all` are those that have not ended, `by_wire_id` those with a SUBSCRIBE on the present connection."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.all: dict[Feed, None] = {}
        self.by_wire_id: dict[str, Feed] = {}

    def forget_connection(self) -> None:
        """The connection is over."""
        self.by_wire_id.clear()

    def open(self, feed: Feed) -> None:
        """SUBSCRIBE on the present connection, or first request the start position."""
        if feed.kind is FeedKind.FANOUT and feed.start == "next" and not feed.opened:
            receipt = self._exchange.next_number()
            feed.state = FeedState.ASKING
            asked = encode.encode_status_request(receipt, feed.destination)
            self._exchange.request(Request(RequestKind.STATUS, receipt, asked, feed=feed))
        else:
            self._subscribe_on_wire(feed)

    def _subscribe_on_wire(self, feed: Feed) -> None:
        feed.state = FeedState.OPENING
        feed.wire_id = self._exchange.next_number()
        self.by_wire_id[feed.wire_id] = feed
        self._exchange.request(Request(RequestKind.SUBSCRIBE, feed.wire_id, encode.encode_subscribe(feed), feed=feed))

    def start_at(self, feed: Feed, status: str) -> None:
        """A feed starts at `next`: make that a vector, so that it can be resumed exactly.

        If the node does not report it, the start stays `next`: a change of nodes may miss messages (docs/client.md).
        """
        vector = encode.vector_of(status)
        if vector is not None:
            feed.seen = parse_progress(vector)
            feed.handed = feed.seen.copy()
            feed.start = "resume"
        self._subscribe_on_wire(feed)

    def put(self, headers: encode.Headers, body: bytes) -> None:
        """A message has come."""
        feed = self.by_wire_id.get(headers.get("subscription", ""))
        if feed is None:
            return  # of a SUBSCRIBE that has been taken back
        if feed.kind is FeedKind.FANOUT and not feed.is_news(headers):
            return
        feed.opened = True
        feed.put(Delivered(feed, headers, body, self._exchange.connections))
        self._exchange.changed[feed] = None
        if feed.kind is not FeedKind.QUEUE and feed.is_full:
            self._overflow(feed)

    def _overflow(self, feed: Feed) -> None:
        if feed.kind is FeedKind.FANOUT and feed.start != "next":
            self._close_wire(feed)
        elif feed.drops_oldest:
            feed.drop_oldest()
        else:
            self.end(feed, Overrun(f"{feed.destination}: over {feed.buffer_bytes_max} bytes wait to be read"))

    def take(self, feed: Feed) -> Delivered | None:
        """The next message for the application; None when none is here. `auto` acknowledges it."""
        if not feed.buffer:
            return None
        delivery = feed.take()
        if feed.ack is AckMode.AUTO and delivery.ack_id:
            self.settle(delivery, True, None)
        if feed.state is FeedState.CLOSED and feed.may_resume and self._exchange.phase is Phase.ONLINE:
            self.open(feed)
        return delivery

    def is_stale(self, delivery: Delivered) -> bool:
        """Whether it is too late to settle it: its connection or subscription has ended."""
        return (
            self._exchange.phase is not Phase.ONLINE
            or delivery.connection != self._exchange.connections
            or delivery.feed.state is FeedState.ENDED
        )

    def settle(self, delivery: Delivered, is_ack: bool, receipt: str | None, *, requeue: bool = True) -> None:
        delivery.feed.settle(delivery)
        frame = encode.encode_settle(delivery.ack_id, is_ack, receipt, delivery.feed.ack_level, requeue=requeue)
        self._exchange.output.append(frame)

    def _close_wire(self, feed: Feed) -> None:
        """Take the SUBSCRIBE back; the feed itself goes on."""
        if self.by_wire_id.pop(feed.wire_id, None) is not None and self._exchange.phase is Phase.ONLINE:
            self._exchange.output.append(encode.encode_undo("UNSUBSCRIBE", "id", feed.wire_id))
        for request in self._exchange.requests:
            if request.feed is feed:
                self._exchange.requests.remove(request)
        feed.state = FeedState.CLOSED

    def end(self, feed: Feed, error: ClientError | Refused | None) -> None:
        if feed.state is FeedState.ENDED:
            return
        self._close_wire(feed)
        feed.cut_off()
        feed.state = FeedState.ENDED
        feed.error = error
        self.all.pop(feed, None)
        self._exchange.changed[feed] = None
