"""The client without its sockets and tasks: bytes in, bytes out, and what changed.

One Core lives as long as its client and sees connections come and go. It holds what must survive them: requests that
are not answered, subscriptions, and how far each fanout stream has come. The runner reports each new
connection (`begin`), its bytes (`receive`) and its end (`lost`), sends what `take_output` returns, and wakes the tasks
that wait for what `take_changed` names. It has no clock, no randomness and no task. What is sent over the present
connection is in `Exchange`, the subscriptions are in `Feeds`, and how requests end is in `Answers`.

What a lost connection means: SENDs and transactions of SENDs are written again on the next one with the same
`dedup-id` and `redelivered:true`, so that the mesh appends them once; SUBSCRIBEs too, fanouts after what was seen;
queue messages of the old connection are stale.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from qmq.client.core.answers import Answers
from qmq.client.core.encode import Headers, Send, encode_connect, encode_leave, encode_send, encode_transaction
from qmq.client.core.failures import error_of
from qmq.client.core.feed import Delivered, Feed, FeedKind, FeedState
from qmq.client.core.feeds import Feeds
from qmq.client.core.requests import REPLIES, Exchange, PendingReplies, PendingReply, Phase, Request, RequestKind
from qmq.errors import NotConnected, Stale
from qmq.wire.stomp import HEARTBEAT, Connection, Frame, Limits, Role, negotiate_heartbeat, parse_heartbeat

FINAL_CODES: Final = frozenset({"login-failed", "login-required"})

Passcode = str | Callable[[], str] | None
"""A function is called at each login."""

LIMITS = Limits(header_line_bytes_max=1 << 20, header_count_max=1000, header_bytes_max=4 << 20, body_bytes_max=64 << 20)
"""Of what a node may send. It is trusted more than a stranger, so these only stop nonsense."""


class Core:
    """The state of one client. `id` is unique to it: its messages' dedup ids begin with it.

    `beat_ms` is offered and requested as heart-beat, 0 for none.
    """

    def __init__(
        self,
        *,
        id: str,
        login: str | None = None,
        passcode: Passcode = None,
        client_id: str = "",
        beat_ms: int = 0,
        window_messages: int = 256,
        window_bytes: int = 4 << 20,
    ) -> None:
        self.id = id
        self._exchange = Exchange(window_messages, window_bytes)
        self._feeds = Feeds(self._exchange)
        self.stale_settles = 0
        self.send_beat_seconds = 0.0
        self.receive_beat_seconds = 0.0
        self.server = ""
        self.requests = self._exchange.requests
        self.feeds = self._feeds.all
        self.take = self._feeds.take
        self.is_stale = self._feeds.is_stale
        self.replies = PendingReplies()
        self._answers = Answers(self._exchange, self._feeds, self.replies)
        self._login = login
        self._passcode = passcode
        self.client_id = client_id
        self._beat_ms = beat_ms
        self._connection = Connection(Role.CLIENT, LIMITS)
        self.closed_because: Exception | None = None

    @property
    def phase(self) -> Phase:
        return self._exchange.phase

    @property
    def connections(self) -> int:
        """Logins that were let in."""
        return self._exchange.connections

    @property
    def written_again(self) -> int:
        """Requests that were written on a later connection, too."""
        return self._exchange.written_again

    # For the runner

    @property
    def final_codes(self) -> Collection[str]:
        """Codes of refused logins that waiting does not heal."""
        return FINAL_CODES if callable(self._passcode) else {*FINAL_CODES, "token-expired"}

    def begin(self, host: str) -> None:
        """A connection exists: log in."""
        assert self.phase is Phase.OFFLINE, self.phase
        self._exchange.phase = Phase.LOGGING_IN
        self._connection = Connection(Role.CLIENT, LIMITS)
        passcode = self._passcode() if callable(self._passcode) else self._passcode
        self._exchange.output = [encode_connect(host, self._login, passcode, self._beat_ms, self.client_id)]

    def receive(self, data: bytes) -> None:
        """Bytes of the node.

        Raises:
            Refused: the login was refused, or the node does not know a durable name yet; the connection is of no more
                use.
            RemoteProtocolError: these bytes are not STOMP; likewise.
        """
        if self.phase is Phase.CLOSED:
            return  # closed while these bytes arrived: the answer to a login must not open it again
        for frame in self._connection.receive(data):
            command = frame.head.command
            if command == "MESSAGE":
                self._take_message(frame)
            elif command == "RECEIPT":
                self._answers.receipt(frame.head.headers)
            elif command == "ERROR":
                if self.phase is Phase.LOGGING_IN:
                    raise error_of(frame)
                self._answers.error(frame)
            else:
                self._logged_in(frame.head.headers)
        if self._connection.error is not None:
            raise self._connection.error

    def take_output(self) -> bytes:
        """Everything to send now; empty when there is nothing."""
        output, self._exchange.output = self._exchange.output, []
        return b"".join(output)

    @property
    def has_output(self) -> bool:
        return bool(self._exchange.output)

    def beat(self) -> None:
        """Nothing was sent for a while."""
        if self.phase is Phase.ONLINE and not self._exchange.output:
            self._exchange.output.append(HEARTBEAT)

    def take_changed(self) -> list[Request | Feed | PendingReply]:
        """What a task may wait for: requests that are answered, feeds with messages, opened or ended, replies."""
        if not self._exchange.changed:
            return []
        changed, self._exchange.changed = self._exchange.changed, {}
        return list(changed)

    def lost(self) -> None:
        """The connection is over, whyever. Idempotent."""
        if self.phase is Phase.ONLINE:
            self._answers.blame()
        if self.phase is not Phase.CLOSED:
            self._exchange.phase = Phase.OFFLINE
        self._answers.parting = None
        self._exchange.output.clear()
        self._feeds.forget_connection()
        for feed in self.feeds:
            feed.cut_off()
        for request in self.requests:
            if request.kind in (RequestKind.SUBSCRIBE, RequestKind.STATUS):
                self.requests.remove(request)
            elif request.kind is RequestKind.LEAVE:
                self._answers.finish(request, None)
            elif (error := request.lost()) is not None:
                self._answers.finish(request, error)
        for pending in self.replies.lost():
            self._exchange.changed[pending] = None

    def close(self, error: Exception | None) -> None:
        """The client stops: all waiting calls get an error. Idempotent."""
        if self.phase is Phase.CLOSED:
            return
        self._exchange.phase = Phase.CLOSED
        self.closed_because = error
        for request in self.requests:
            self._answers.finish(request, self._not_connected())
        for feed in list(self.feeds):
            self._feeds.end(feed, self._not_connected())
        for pending in self.replies:
            self._answers.fail(pending, self._not_connected())

    def check_open(self) -> None:
        """Raises NotConnected once closed."""
        if self.phase is Phase.CLOSED:
            raise self._not_connected()

    # Requests

    def new_send(self, destination: str, body: bytes, headers: Headers) -> Request:
        """A message to be submitted, as `encode_send` makes it and with its errors."""
        receipt = self._exchange.next_number()
        encode = partial(encode_send, self.id, receipt, destination, body, headers)
        return Request(RequestKind.SEND, receipt, encode(), again=partial(encode, again=True))

    def new_transaction(self, sends: list[Send], settles: list[tuple[Delivered, bool]]) -> Request:
        """Several frames as one request. `settles` are (delivery, is ack), all of them held by `hold`."""
        name = f"t{self._exchange.next_number()}"
        settled = [(delivery.ack_id, is_ack, delivery.feed.ack_level) for delivery, is_ack in settles]
        encode = partial(encode_transaction, self.id, name, sends, settled)
        deliveries = tuple(delivery for delivery, _ in settles)
        return Request(
            RequestKind.TRANSACTION, name, encode(), again=partial(encode, again=True), deliveries=deliveries
        )

    def new_correlation_id(self) -> str:
        return f"{self.id}-q{self._exchange.next_number()}"

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
        self._exchange.changed.pop(pending, None)
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
            earlier = [one for delivery in request.deliveries for one in delivery.feed.hold_earlier(delivery)]
            request.deliveries += tuple(earlier)
            self._exchange.write(request)

    def forget(self, request: Request) -> None:
        """No task waits for it any longer: it is not written again. It may have been applied, or may still be.

        A transaction in flight keeps its messages, and its room, until it is answered: the node could not apply an
        earlier ACK or NACK of them.
        """
        if request.written and request.deliveries and not request.done:
            request.is_forgotten = True
            return
        self.requests.remove(request)
        self._exchange.changed.pop(request, None)

    def leave(self) -> Request:
        """Disconnect: the receipt means that the node has taken all that was sent before."""
        receipt = self._exchange.next_number()
        request = Request(RequestKind.LEAVE, receipt, encode_leave(receipt))
        if self.phase is Phase.ONLINE:
            self._exchange.request(request)
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
            self._feeds.open(feed)

    def stop(self, feed: Feed) -> None:
        """Its owner takes no more messages, and settles those that it has. Idempotent."""
        feed.is_stopped = True
        self._exchange.changed[feed] = None

    def unsubscribe(self, feed: Feed) -> None:
        """Its owner has left. Waiting and unsettled messages return to their queue. Idempotent."""
        self._feeds.end(feed, None)

    def settle(self, delivery: Delivered, is_ack: bool, with_receipt: bool, *, requeue: bool = True) -> Request | None:
        """ACK or NACK (in `client` mode of everything before it too); without `requeue` it becomes a dead letter. Does
        nothing for a message settled before, or one that needs no settling. With a receipt, returns the request whose
        answer means that it is recorded.

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
            self._feeds.settle(delivery, is_ack, None)
            return None
        request = Request(RequestKind.SETTLE, self._exchange.next_number(), b"")
        self._feeds.settle(delivery, is_ack, request.receipt, requeue=requeue)
        self.requests.add(request)
        return request

    def hold(self, delivery: Delivered) -> bool:
        """Put a message into a transaction; False when there is nothing to settle. Raises Stale."""
        if delivery.settled or not delivery.ack_id:
            return False
        if self.is_stale(delivery):
            raise Stale("the connection of this message has ended: it is delivered again")
        delivery.settled = True
        return True

    def release(self, delivery: Delivered) -> None:
        """A transaction with it was never requested: it waits for its ACK as before."""
        delivery.settled = False

    # Frames of the node

    def _take_message(self, frame: Frame) -> None:
        headers = frame.head.headers
        if headers.get("subscription") == REPLIES:
            pending = self.replies.take(headers, frame.body, self.connections)
            if pending is not None:
                self.requests.remove(pending.request)  # answered, so taken: it must not be written again
                self._exchange.changed[pending] = None
            return
        self._feeds.put(headers, frame.body)

    def _logged_in(self, headers: Headers) -> None:
        """The login succeeded: send everything that is pending, subscriptions first."""
        can, asks = parse_heartbeat(headers.get("heart-beat", "0,0"))
        send_ms, receive_ms = negotiate_heartbeat((self._beat_ms, self._beat_ms), (can, asks))
        self.send_beat_seconds, self.receive_beat_seconds = send_ms / 1000, receive_ms / 1000
        self.server = headers.get("server", "")
        self._exchange.phase = Phase.ONLINE
        self._exchange.connections += 1
        waiting = list(self.requests)
        for request in waiting:
            self.requests.remove(request)
        for feed in self.feeds:
            if feed.may_resume or feed.kind is not FeedKind.FANOUT:
                self._feeds.open(feed)
        for request in waiting:
            self.requests.add(request)
            self._exchange.write(request)

    def _not_connected(self) -> NotConnected:
        reason = self.closed_because
        error = NotConnected("the client was closed" if reason is None else f"the client has given up: {reason}")
        error.__cause__ = reason
        return error
