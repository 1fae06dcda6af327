"""How requests of a client end: confirmed, refused, or blamed for the end of a connection."""

from qmq.client.core.encode import Headers, encode_undo
from qmq.client.core.failures import error_of
from qmq.client.core.feed import FeedState
from qmq.client.core.feeds import Feeds
from qmq.client.core.requests import BLAMED_MAX, Exchange, PendingReplies, PendingReply, Request, RequestKind
from qmq.errors import ClientError, Refused
from qmq.wire.stomp import Frame

NO_REQUEST_CODES = frozenset(
    {
        "destination-deleted",
        "durable-deleted",
        "durable-merged",
        "durable-taken-over",
        "kicked",
        "log-unreadable",
        "login-timeout",
        "node-paused",
        "not-selected",
        "passcode-changed",
        "slow-consumer",
        "stopping",
        "token-expired",
        "unknown-ack",
        "user-removed",
        "values-untold",
    }
)
"""ERRORs without a receipt that no request can be blamed for."""


APPLIED_CODES = frozenset({"too-few-copies"})
"""Codes of ERRORs after which the request is done, with less safety than requested."""

ELSEWHERE_CODES = frozenset({"not-caught-up", "stopping"})
"""Why a node refuses a subscription that another one takes: it will know the name in a moment, or it stops."""

ENDING_CODES = frozenset({"durable-taken-over", "durable-deleted", "not-allowed"})
"""Another client or an operator has ended the subscription that the ERROR names: resubscribing would undo that, or be
refused."""


class Answers:
    """For one client."""

    def __init__(self, exchange: Exchange, feeds: Feeds, replies: PendingReplies) -> None:
        self._exchange = exchange
        self._requests = exchange.requests
        self._feeds = feeds
        self._replies = replies
        self.parting: Refused | None = None
        """The last ERROR without a receipt: it may be why the connection ends."""

    def receipt(self, headers: Headers) -> None:
        """The node has sent RECEIPT."""
        request = self._requests.get(headers.get("receipt-id", ""))
        self.parting = None
        if request is None:
            return  # a frame of a transaction, or no task waits any longer
        if request.kind is RequestKind.STATUS:
            assert request.feed is not None
            self._requests.remove(request)
            self._feeds.start_at(request.feed, headers.get("status", ""))
            return
        if request.feed is not None:
            request.feed.state = FeedState.OPEN
            request.feed.opened = True
            self._exchange.changed[request.feed] = None
        self._settled_by(request)
        request.answer = headers
        self.finish(request, None)

    def error(self, frame: Frame) -> None:
        """The node has sent ERROR. Raises it when another node can do what this one cannot yet."""
        headers = frame.head.headers
        error = error_of(frame)
        receipt = headers.get("receipt-id", "")
        is_applied = error.code in APPLIED_CODES
        if receipt.startswith("t") and "." not in receipt and not is_applied:
            # A COMMIT refused on a connection that stays open leaves its transaction open.
            self._exchange.output.append(encode_undo("ABORT", "transaction", receipt))
        if error.code in ENDING_CODES:
            # The node has it no more: an UNSUBSCRIBE would be refused, and end the connection.
            feed = self._feeds.by_wire_id.pop(headers.get("subscription", ""), None)
            if feed is not None:
                self._feeds.end(feed, error)
                return
        request = self._requests.find(receipt) if receipt else None
        if request is not None and request.feed is not None and error.code in ELSEWHERE_CODES:
            raise error
        if request is None:
            self.parting = None if receipt else error
            return
        if is_applied:
            self._settled_by(request)
        self.refuse(request, error)

    def refuse(self, request: Request, error: Refused) -> None:
        if request.feed is not None:
            self._feeds.by_wire_id.pop(request.feed.wire_id, None)
            self._feeds.end(request.feed, error)
        self.finish(request, error)

    def finish(self, request: Request, error: ClientError | Refused | None) -> None:
        if self._requests.remove(request):
            request.done = True
            request.error = error
            if error is not None:
                self._take_back(request)
            self._exchange.changed[request] = None
            pending = self._replies.of(request)
            if error is not None and pending is not None:
                self.fail(pending, error)

    def _settled_by(self, request: Request) -> None:
        """A transaction is applied: its messages are settled."""
        for delivery in request.deliveries:
            delivery.feed.settle(delivery)
        request.deliveries = ()

    def _take_back(self, request: Request) -> None:
        """A transaction came to nothing: its messages are the application's again. Those that it left in the midst of
        asking go back to their queue."""
        for delivery in request.deliveries:
            delivery.settled = False
        if request.is_forgotten:
            for delivery in request.deliveries:
                # In `client` mode one NACK may have settled others of them.
                if not delivery.settled and not self._feeds.is_stale(delivery):
                    self._feeds.settle(delivery, False, None)

    def fail(self, pending: PendingReply, error: ClientError | Refused) -> None:
        self._replies.forget(pending)
        pending.fail(error)
        self._exchange.changed[pending] = None

    def blame(self) -> None:
        """If an ERROR about nothing in particular ended the connection, the first unanswered request is suspect."""
        error = self.parting
        request = self._requests.first()
        if error is None or error.code in NO_REQUEST_CODES or request is None:
            return
        request.blamed += 1
        if request.blamed >= BLAMED_MAX:
            self.refuse(request, error)
