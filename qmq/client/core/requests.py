"""Requests to the mesh that are not answered yet, in their order.

A request lives from the call that makes it until its RECEIPT, its ERROR, or the moment when its outcome can no longer
be learned; it survives its connection when it can be asked again. The frames of one are encoded once, with the receipt
that names it; SENDs that are written again say so.

Surprising: a request without a waiting task is forgotten here even when its frames are in flight: it may
still be applied, and it is not written again. Only a transaction that settles messages stays until it is answered.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from qmq.client.core.feed import AckMode, Delivered, Feed
from qmq.client.core.vectors import Progress
from qmq.errors import ClientError, Refused, ReplyLost, Stale

BLAMED_MAX = 3
"""So many connections may end with an ERROR that names no receipt while this was the first thing unanswered. Then it
is what the node cannot bear, and asking again would never end."""


class RequestKind(Enum):
    SEND = "send"
    TRANSACTION = "transaction"
    SETTLE = "settle"
    SUBSCRIBE = "subscribe"
    STATUS = "status"
    LEAVE = "leave"


@dataclass(slots=True, eq=False)
class Request:
    """One request. `done` with `error` None means: the node has confirmed it.

    `again` gives what is written after the first time, where that differs. `answer` holds the headers of its RECEIPT.
    `deliveries` are what a transaction settles, `is_forgotten` that no task waits for it. `feed` is set for
    SUBSCRIBE and STATUS, `correlation_id` where a task waits for an answer.
    """

    kind: RequestKind
    receipt: str
    data: bytes
    _: KW_ONLY
    again: Callable[[], bytes] | None = None
    feed: Feed | None = None
    deliveries: tuple[Delivered, ...] = ()
    answer: Mapping[str, str] = field(default_factory=dict)
    done: bool = False
    error: ClientError | Refused | None = None
    blamed: int = 0
    written: bool = False
    is_forgotten: bool = False
    correlation_id: str = ""

    @property
    def takes_room(self) -> bool:
        """Whether it counts against the window, as requests do that the application can make without limit."""
        return self.kind is RequestKind.SEND or self.kind is RequestKind.TRANSACTION

    def lost(self) -> ClientError | None:
        """The error if its connection ended first; None when it is sent again."""
        if self.kind is RequestKind.SETTLE:
            return Stale("the connection ended before the receipt: the message may be delivered again")
        if self.kind is RequestKind.TRANSACTION and self.deliveries:
            return Stale("the connection ended before the receipt: all of the transaction was applied, or none of it")
        return None


class Requests:
    """The table. `messages_max` and `bytes_max` bound what takes room; a single larger one passes when alone."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._by_receipt: dict[str, Request] = {}
        self.messages = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_receipt.values()))

    def has_room(self, size: int) -> bool:
        if not self.messages:
            return True
        return self.messages < self._messages_max and self.bytes + size <= self._bytes_max

    def reserve(self, size: int) -> None:
        """Take room for a request of `size` bytes that is added after `release`."""
        self.messages += 1
        self.bytes += size

    def release(self, size: int) -> None:
        self.messages -= 1
        self.bytes -= size

    def add(self, request: Request) -> None:
        assert request.receipt not in self._by_receipt
        self._by_receipt[request.receipt] = request
        if request.takes_room:
            self.reserve(len(request.data))

    def find(self, receipt: str) -> Request | None:
        """The request that `receipt` belongs to: its own, or that of one of its frames (`t7.2` is of `t7`)."""
        return self._by_receipt.get(receipt) or self._by_receipt.get(receipt.partition(".")[0])

    def get(self, receipt: str) -> Request | None:
        return self._by_receipt.get(receipt)

    def remove(self, request: Request) -> bool:
        """Whether it was there."""
        if self._by_receipt.get(request.receipt) is not request:
            return False
        del self._by_receipt[request.receipt]
        if request.takes_room:
            self.release(len(request.data))
        return True

    def first(self) -> Request | None:
        return next(iter(self._by_receipt.values()), None)


REPLIES = "/temp-queue/replies"


@dataclass(slots=True, eq=False)
class PendingReply:
    """One request. `done` with `error` None means that `reply` is there."""

    correlation_id: str
    request: Request
    reply: Delivered | None = None
    error: ClientError | Refused | None = None
    done: bool = False

    def fail(self, error: ClientError | Refused) -> None:
        self.error = error
        self.done = True


class PendingReplies:
    """Requests that wait for a reply: the reply that belongs to each, and when none can arrive.

    All answers of a client come to one temporary queue, which every request names in `reply-to`; the node makes it on
    first use, so a change of nodes costs nothing but the addresses of the old one. `correlation-id` identifies an
    answer.

        asked ──receipt──▶ taken ──answer──▶ done
          │ └────────answer────────────────▶ done      the receipt may come after the answer, or never
          ├──connection lost──▶ asked                  written again, at the next node, with a new address
          │          taken ──connection lost──▶ ReplyLost
          └──refused──▶ done
    """

    def __init__(self) -> None:
        self._by_correlation: dict[str, PendingReply] = {}
        # Only the feed of the answers: it has no subscriber, holds no message and settles none.
        self._feed = Feed(
            REPLIES,
            ack=AckMode.AUTO,
            prefetch=1,
            buffer_bytes_max=1,
            drops_oldest=True,
            start="first",
            seen=Progress(),
            headers={},
        )

    def __len__(self) -> int:
        return len(self._by_correlation)

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self._by_correlation.values()))

    def add(self, pending: PendingReply) -> None:
        """Raises ValueError when its correlation id is in use."""
        if pending.correlation_id in self._by_correlation:
            raise ValueError("a request with that correlation-id is waiting for its answer")
        self._by_correlation[pending.correlation_id] = pending

    def of(self, request: Request) -> PendingReply | None:
        """What waits for the answer to `request`."""
        pending = self._by_correlation.get(request.correlation_id)
        return pending if pending is not None and pending.request is request else None

    def forget(self, pending: PendingReply) -> None:
        """No task waits for it any longer. Idempotent."""
        if self._by_correlation.get(pending.correlation_id) is pending:
            del self._by_correlation[pending.correlation_id]

    def take(self, headers: Mapping[str, str], body: bytes, connection: int) -> PendingReply | None:
        """An answer came: the request that is done now, None if no task waits for it."""
        pending = self._by_correlation.pop(headers.get("correlation-id", ""), None)
        if pending is not None:
            pending.reply = Delivered(self._feed, headers, body, connection)
            pending.done = True
        return pending

    def lost(self) -> list[PendingReply]:
        """The connection is lost: the requests that a node has taken, whose answers have no address now."""
        failed = [pending for pending in self if pending.request.done]
        for pending in failed:
            self.forget(pending)
            pending.fail(ReplyLost("the connection ended after the request was accepted: its answer cannot arrive"))
        return failed


class Phase(Enum):
    OFFLINE = "offline"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    CLOSED = "closed"


class Exchange:
    """What goes over the present connection of a client, whose parts share it: requests, bytes, what has changed."""

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        self.phase = Phase.OFFLINE
        self.connections = 0
        """Logins that were let in; deliveries remember which one they came over."""
        self.written_again = 0
        self.requests = Requests(window_messages, window_bytes)
        self.output: list[bytes] = []
        """To be sent."""
        self.changed: dict[Request | Feed | PendingReply, None] = {}
        """What a task may wait for."""
        self._numbers = 0

    def next_number(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def request(self, request: Request) -> None:
        self.requests.add(request)
        self.write(request)

    def write(self, request: Request) -> None:
        data = request.data
        if request.written:
            self.written_again += 1
            if request.again is not None:
                data = request.again()
        request.written = True
        self.output.append(data)
