"""The client without its sockets and tasks: bytes in, bytes out, and what changed.

One Core lives as long as its client and sees connections come and go. It holds what must survive them: requests that
are not answered, subscriptions, and how far each fanout stream has come. The runner reports each new
connection (`begin`), its bytes (`receive`) and its end (`lost`), sends what `take_output` returns, and wakes the tasks
that wait for what `take_changed` names. It has no clock, no randomness and no task. (Long for one module: everything
here moves the same few tables, and half of it is docstrings.)

What a lost connection means: SENDs and transactions of SENDs are written again on the next one with the same
`dedup-id` and `redelivered:true`, so that the mesh appends them once; SUBSCRIBEs too, fanouts after what was seen;
queue messages of the old connection are stale.
"""

from enum import Enum
from functools import partial

from qmq.client.encode import (
    Headers,
    Send,
    encode_connect,
    encode_leave,
    encode_send,
    encode_settle,
    encode_status_request,
    encode_subscribe,
    encode_transaction,
    encode_undo,
    vector_of,
)
from qmq.client.feed import AckMode, Delivered, Feed, FeedKind, FeedState
from qmq.client.request_reply import REPLIES, PendingReplies, PendingReply
from qmq.client.requests import BLAMED_MAX, Request, RequestKind, Requests
from qmq.client.vectors import parse_progress
from qmq.errors import ClientError, NotConnected, Overrun, Refused, Stale
from qmq.wire.stomp import (
    HEARTBEAT,
    Connection,
    Frame,
    Limits,
    Role,
    negotiate_heartbeat,
    parse_heartbeat,
)

LIMITS = Limits(header_line_bytes_max=1 << 20, header_count_max=1000, header_bytes_max=4 << 20, body_bytes_max=64 << 20)
"""Of what a node may send. It is trusted more than a stranger, so these only stop nonsense."""

NO_REQUEST_CODES = frozenset({"login-timeout", "slow-consumer", "stopping", "unknown-ack"})
"""ERRORs without a receipt that no request can be blamed for."""


APPLIED_CODES = frozenset({"too-few-copies"})
"""Codes of ERRORs after which the request is done, with less safety than requested."""

ENDING_CODES = frozenset({"durable-taken-over", "durable-deleted"})
"""Another client or an operator has ended the durable subscription here: resubscribing would undo that."""


class Phase(Enum):
    OFFLINE = "offline"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    CLOSED = "closed"


class Core:
    """The state of one client. `id` is unique to it: its messages' dedup ids begin with it.

    `beat_ms` is offered and requested as heart-beat, 0 for none.
    """

    def __init__(
        self,
        *,
        id: str,
        login: str | None = None,
        passcode: str | None = None,
        client_id: str = "",
        beat_ms: int = 0,
        window_messages: int = 256,
        window_bytes: int = 4 << 20,
    ) -> None:
        self.id = id
        self.phase = Phase.OFFLINE
        self.connections = 0
        """Logins that were let in; deliveries remember which one they came over."""
        self.written_again = 0
        self.stale_settles = 0
        self.send_beat_seconds = 0.0
        self.receive_beat_seconds = 0.0
        self.server = ""
        self.requests = Requests(window_messages, window_bytes)
        self.feeds: dict[Feed, None] = {}
        self.replies = PendingReplies()
        self._login = login
        self._passcode = passcode
        self.client_id = client_id
        self._beat_ms = beat_ms
        self._connection = Connection(Role.CLIENT, LIMITS)
        self._by_wire_id: dict[str, Feed] = {}
        self._output: list[bytes] = []
        self._changed: dict[Request | Feed | PendingReply, None] = {}
        self._numbers = 0
        self._parting: Refused | None = None
        self.closed_because: ClientError | Refused | None = None

    # For the runner

    def begin(self, host: str) -> None:
        """A connection exists: log in."""
        assert self.phase is Phase.OFFLINE, self.phase
        self.phase = Phase.LOGGING_IN
        self._connection = Connection(Role.CLIENT, LIMITS)
        self._output = [encode_connect(host, self._login, self._passcode, self._beat_ms, self.client_id)]

    def receive(self, data: bytes) -> None:
        """Bytes of the node.

        Raises:
            Refused: the login was refused, or the node does not know a durable name yet; the connection is of no more
                use.
            RemoteProtocolError: these bytes are not STOMP; likewise.
        """
        for frame in self._connection.receive(data):
            command = frame.head.command
            if command == "MESSAGE":
                self._take_message(frame)
            elif command == "RECEIPT":
                self._take_receipt(frame.head.headers)
            elif command == "ERROR":
                self._take_error(frame)
            else:
                self._logged_in(frame.head.headers)
        if self._connection.error is not None:
            raise self._connection.error

    def take_output(self) -> bytes:
        """Everything to send now; empty when there is nothing."""
        output, self._output = self._output, []
        return b"".join(output)

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def beat(self) -> None:
        """Nothing was sent for a while."""
        if self.phase is Phase.ONLINE and not self._output:
            self._output.append(HEARTBEAT)

    def take_changed(self) -> list[Request | Feed | PendingReply]:
        """What a task may wait for: requests that are answered, feeds with messages, opened or ended, replies."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return list(changed)

    def lost(self) -> None:
        """The connection is over, whyever. Idempotent."""
        if self.phase is Phase.ONLINE:
            self._blame()
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.OFFLINE
        self._parting = None
        self._output.clear()
        self._by_wire_id.clear()
        for feed in self.feeds:
            feed.cut_off()
        for request in self.requests:
            if request.kind in (RequestKind.SUBSCRIBE, RequestKind.STATUS):
                self.requests.remove(request)
            elif request.kind is RequestKind.LEAVE:
                self._answer(request, None)
            elif (error := request.lost()) is not None:
                self._answer(request, error)
        for pending in self.replies.lost():
            self._changed[pending] = None

    def close(self, error: ClientError | Refused | None) -> None:
        """The client stops: all waiting calls get an error. Idempotent."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.closed_because = error
        for request in self.requests:
            self._answer(request, self._not_connected())
        for feed in list(self.feeds):
            self._end_feed(feed, self._not_connected())
        for pending in self.replies:
            self._fail(pending, self._not_connected())

    def check_open(self) -> None:
        """Raises NotConnected once closed."""
        if self.phase is Phase.CLOSED:
            raise self._not_connected()

    # Requests

    def new_send(self, destination: str, body: bytes, headers: Headers) -> Request:
        """A message to be submitted, as `encode_send` makes it and with its errors."""
        receipt = self._next()
        encode = partial(encode_send, self.id, receipt, destination, body, headers)
        return Request(RequestKind.SEND, receipt, encode(), again=partial(encode, again=True))

    def new_transaction(self, sends: list[Send], settles: list[tuple[Delivered, bool]]) -> Request:
        """Several frames as one request. `settles` are (delivery, is ack), all of them held by `hold`."""
        name = f"t{self._next()}"
        settled = [(delivery.ack_id, is_ack, delivery.feed.ack_level) for delivery, is_ack in settles]
        encode = partial(encode_transaction, self.id, name, sends, settled)
        deliveries = tuple(delivery for delivery, _ in settles)
        return Request(
            RequestKind.TRANSACTION, name, encode(), again=partial(encode, again=True), deliveries=deliveries
        )

    def new_correlation_id(self) -> str:
        return f"{self.id}-q{self._next()}"

    def new_reply_request(self, destination: str, body: bytes, headers: Headers, correlation_id: str) -> PendingReply:
        """A message that asks for an answer, to be submitted as `asked.request`. Raises as `new_send`, and ValueError
        when a request with that id waits for its answer.
        """
        if "reply-to" in headers:
            raise ValueError("a request has its own reply-to")
        request_headers = {"dedup-id": f"{self.id}-{correlation_id}", **headers}
        request_headers.update({"reply-to": REPLIES, "correlation-id": correlation_id})
        pending = PendingReply(correlation_id, self.new_send(destination, body, request_headers))
        pending.request.correlation_id = correlation_id
        self.replies.add(pending)
        return pending

    def forget_reply(self, pending: PendingReply) -> None:
        """No task waits for the answer any longer; the request is not written again."""
        self.replies.forget(pending)
        self._changed.pop(pending, None)
        self.forget(pending.request)

    def submit(self, request: Request) -> None:
        """Send it, now or once there is a connection. The caller has checked that the window has room.

        Raises NotConnected, or Stale for a transaction with a message of a lost connection.
        """
        self.check_open()
        if any(map(self.is_stale, request.deliveries)):
            raise Stale("a message of the transaction came over a connection that has ended; nothing was applied")
        self.requests.add(request)
        if self.phase is Phase.ONLINE:
            self._write(request)

    def forget(self, request: Request) -> None:
        """No task waits for it any longer: it is not written again. It may have been applied, or may still be.

        A transaction in flight keeps its messages, and its room, until it is answered: the node could not apply an
        earlier ACK or NACK of them.
        """
        if request.written and request.deliveries and not request.done:
            request.is_forgotten = True
            return
        self.requests.remove(request)
        self._changed.pop(request, None)

    def leave(self) -> Request:
        """Disconnect: the receipt means that the node has taken all that was sent before."""
        receipt = self._next()
        request = Request(RequestKind.LEAVE, receipt, encode_leave(receipt))
        if self.phase is Phase.ONLINE:
            self._request(request)
        else:
            request.done = True
        return request

    # Subscriptions

    def subscribe(self, feed: Feed) -> None:
        """Begin; `feed.opened` or `feed.error` will hold the result. Raises NotConnected."""
        self.check_open()
        assert feed.state is FeedState.CLOSED and feed not in self.feeds, "a subscription is entered once"
        self.feeds[feed] = None
        if self.phase is Phase.ONLINE:
            self._open(feed)

    def unsubscribe(self, feed: Feed) -> None:
        """Its owner has left. Waiting and unsettled messages return to their queue. Idempotent."""
        self._end_feed(feed, None)

    def take(self, feed: Feed) -> Delivered | None:
        """The next message for the application; None when none is here. `auto` acknowledges it."""
        if not feed.buffer:
            return None
        delivery = feed.take()
        if feed.ack is AckMode.AUTO and delivery.ack_id:
            self._settle(delivery, True, None)
        if feed.state is FeedState.CLOSED and feed.may_resume and self.phase is Phase.ONLINE:
            self._open(feed)
        return delivery

    def settle(self, delivery: Delivered, is_ack: bool, with_receipt: bool) -> Request | None:
        """ACK or NACK (in `client` mode of everything before it too). Does nothing for a message settled before, or
        one that needs no settling. With a receipt, returns the request whose answer means that it is recorded.

        Raises Stale when it is too late, NotConnected.
        """
        if delivery.settled or not delivery.ack_id:
            return None
        self.check_open()
        if self.is_stale(delivery):
            delivery.settled = True
            self.stale_settles += 1
            raise Stale("the connection of this message has ended: it is delivered again")
        if not with_receipt:
            self._settle(delivery, is_ack, None)
            return None
        request = Request(RequestKind.SETTLE, self._next(), b"")
        self._settle(delivery, is_ack, request.receipt)
        self.requests.add(request)
        return request

    def is_stale(self, delivery: Delivered) -> bool:
        """Whether it is too late to settle it: its connection or subscription has ended."""
        return (
            self.phase is not Phase.ONLINE
            or delivery.connection != self.connections
            or delivery.feed.state is FeedState.ENDED
        )

    def hold(self, delivery: Delivered) -> bool:
        """Put a message into a transaction; False when there is nothing to settle. Raises Stale."""
        if delivery.settled or not delivery.ack_id:
            return False
        if self.is_stale(delivery):
            raise Stale("the connection of this message has ended: it is delivered again")
        delivery.settled = True
        return True

    def release(self, delivery: Delivered) -> None:
        """A transaction with it was never requested, or was not applied: it waits for its ACK as before."""
        delivery.settled = False

    # Frames of the node

    def _take_message(self, frame: Frame) -> None:
        headers = frame.head.headers
        if headers.get("subscription") == REPLIES:
            pending = self.replies.take(headers, frame.body, self.connections)
            if pending is not None:
                self.requests.remove(pending.request)  # answered, so taken: it must not be written again
                self._changed[pending] = None
            return
        feed = self._by_wire_id.get(headers.get("subscription", ""))
        if feed is None:
            return  # of a SUBSCRIBE that has been taken back
        if feed.kind is FeedKind.FANOUT and not feed.is_news(headers):
            return
        feed.opened = True
        feed.put(Delivered(feed, headers, frame.body, self.connections))
        self._changed[feed] = None
        if feed.kind is not FeedKind.QUEUE and feed.is_full:
            self._overflow(feed)

    def _overflow(self, feed: Feed) -> None:
        if feed.kind is FeedKind.FANOUT and feed.start != "next":
            self._close_wire(feed)
        elif feed.drops_oldest:
            feed.drop_oldest()
        else:
            self._end_feed(feed, Overrun(f"{feed.destination}: over {feed.buffer_bytes_max} bytes wait to be read"))

    def _take_receipt(self, headers: Headers) -> None:
        request = self.requests.get(headers.get("receipt-id", ""))
        self._parting = None
        if request is None:
            return  # a frame of a transaction, or no task waits any longer
        if request.kind is RequestKind.STATUS:
            assert request.feed is not None
            self.requests.remove(request)
            self._start_at(request.feed, headers.get("status", ""))
            return
        if request.feed is not None:
            request.feed.state = FeedState.OPEN
            request.feed.opened = True
            self._changed[request.feed] = None
        self._settled_by(request)
        request.answer = headers
        self._answer(request, None)

    def _take_error(self, frame: Frame) -> None:
        headers = frame.head.headers
        error = Refused(
            headers.get("error-code", "error"),
            headers.get("message", ""),
            frame.body.decode("utf-8", "backslashreplace"),
        )
        if self.phase is Phase.LOGGING_IN:
            raise error
        receipt = headers.get("receipt-id", "")
        is_applied = error.code in APPLIED_CODES
        if receipt.startswith("t") and "." not in receipt and not is_applied:
            # A COMMIT refused on a connection that stays open leaves its transaction open.
            self._output.append(encode_undo("ABORT", "transaction", receipt))
        if error.code in ENDING_CODES:
            feed = self._by_wire_id.get(headers.get("subscription", ""))
            if feed is not None:
                self._end_feed(feed, error)
                return
        request = self.requests.find(receipt) if receipt else None
        if request is not None and request.feed is not None and error.code == "not-caught-up":
            raise error  # this node will know the name in a moment; another one knows it now
        if request is None:
            self._parting = None if receipt else error
            return
        if is_applied:
            self._settled_by(request)
        self._refuse(request, error)

    def _refuse(self, request: Request, error: Refused) -> None:
        if request.feed is not None:
            self._by_wire_id.pop(request.feed.wire_id, None)
            self._end_feed(request.feed, error)
        self._answer(request, error)

    def _logged_in(self, headers: Headers) -> None:
        """The login succeeded: send everything that is pending, subscriptions first."""
        can, wants = parse_heartbeat(headers.get("heart-beat", "0,0"))
        send_ms, receive_ms = negotiate_heartbeat((self._beat_ms, self._beat_ms), (can, wants))
        self.send_beat_seconds, self.receive_beat_seconds = send_ms / 1000, receive_ms / 1000
        self.server = headers.get("server", "")
        self.phase = Phase.ONLINE
        self.connections += 1
        waiting = list(self.requests)
        for request in waiting:
            self.requests.remove(request)
        for feed in self.feeds:
            if feed.may_resume or feed.kind is not FeedKind.FANOUT:
                self._open(feed)
        for request in waiting:
            self.requests.add(request)
            self._write(request)

    # Steps of the above

    def _next(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def _open(self, feed: Feed) -> None:
        """SUBSCRIBE on the present connection, or first request the start position."""
        if feed.kind is FeedKind.FANOUT and feed.start == "next" and not feed.opened:
            receipt = self._next()
            feed.state = FeedState.ASKING
            self._request(Request(RequestKind.STATUS, receipt, encode_status_request(receipt), feed=feed))
        else:
            self._subscribe_on_wire(feed)

    def _subscribe_on_wire(self, feed: Feed) -> None:
        feed.state = FeedState.OPENING
        feed.wire_id = self._next()
        self._by_wire_id[feed.wire_id] = feed
        self._request(Request(RequestKind.SUBSCRIBE, feed.wire_id, encode_subscribe(feed), feed=feed))

    def _start_at(self, feed: Feed, status: str) -> None:
        """A feed starts at `next`: make that a vector, so that it can be resumed exactly.

        If the node does not report it, the start stays `next`: a change of nodes may miss messages (docs/client.md).
        """
        vector = vector_of(status)
        if vector is not None:
            feed.seen = parse_progress(vector)
            feed.handed = feed.seen.copy()
            feed.start = "resume"
        self._subscribe_on_wire(feed)

    def _request(self, request: Request) -> None:
        self.requests.add(request)
        self._write(request)

    def _write(self, request: Request) -> None:
        data = request.data
        if request.written:
            self.written_again += 1
            if request.again is not None:
                data = request.again()
        request.written = True
        self._output.append(data)

    def _answer(self, request: Request, error: ClientError | Refused | None) -> None:
        if self.requests.remove(request):
            request.done = True
            request.error = error
            if error is not None:
                self._take_back(request)
            self._changed[request] = None
            pending = self.replies.of(request)
            if error is not None and pending is not None:
                self._fail(pending, error)

    def _settled_by(self, request: Request) -> None:
        """A transaction is applied: its messages are settled."""
        for delivery in request.deliveries:
            delivery.feed.settle(delivery)
        request.deliveries = ()

    def _take_back(self, request: Request) -> None:
        """A transaction came to nothing: its messages are the application's again. Those that it left in the midst of
        asking go back to their queue."""
        for delivery in request.deliveries:
            self.release(delivery)
        if request.is_forgotten:
            for delivery in request.deliveries:
                # In `client` mode one NACK may have settled others of them.
                if not delivery.settled and not self.is_stale(delivery):
                    self._settle(delivery, False, None)

    def _fail(self, pending: PendingReply, error: ClientError | Refused) -> None:
        self.replies.forget(pending)
        pending.fail(error)
        self._changed[pending] = None

    def _settle(self, delivery: Delivered, is_ack: bool, receipt: str | None) -> None:
        delivery.feed.settle(delivery)
        self._output.append(encode_settle(delivery.ack_id, is_ack, receipt, delivery.feed.ack_level))

    def _close_wire(self, feed: Feed) -> None:
        """Take the SUBSCRIBE back; the feed itself goes on."""
        if self._by_wire_id.pop(feed.wire_id, None) is not None and self.phase is Phase.ONLINE:
            self._output.append(encode_undo("UNSUBSCRIBE", "id", feed.wire_id))
        for request in self.requests:
            if request.feed is feed:
                self.requests.remove(request)
        feed.state = FeedState.CLOSED

    def _end_feed(self, feed: Feed, error: ClientError | Refused | None) -> None:
        if feed.state is FeedState.ENDED:
            return
        self._close_wire(feed)
        feed.cut_off()
        feed.state = FeedState.ENDED
        feed.error = error
        self.feeds.pop(feed, None)
        self._changed[feed] = None

    def _blame(self) -> None:
        """If an ERROR about nothing in particular ended the connection, the first unanswered request is suspect."""
        error = self._parting
        request = self.requests.first()
        if error is None or error.code in NO_REQUEST_CODES or request is None:
            return
        request.blamed += 1
        if request.blamed >= BLAMED_MAX:
            self._refuse(request, error)

    def _not_connected(self) -> NotConnected:
        reason = self.closed_because
        error = NotConnected("the client was closed" if reason is None else f"the client has given up: {reason}")
        error.__cause__ = reason
        return error
