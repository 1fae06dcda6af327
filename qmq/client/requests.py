"""Requests to the mesh that are not answered yet, in their order.

A request lives from the call that makes it until its RECEIPT, its ERROR, or the moment when its outcome can no longer
be learned; it survives its connection when it can be asked again. The frames of one are encoded once, with the receipt
that names it; SENDs that are written again say so.

Surprising: a request without a waiting task is forgotten here even when its frames are in flight: it may
still be applied, and it is not written again. Only a transaction that settles messages stays until it is answered.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from qmq.client.feed import Delivered, Feed
from qmq.errors import ClientError, Refused, Stale

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


class Request:
    """One request. `done` with `error` None means: the node has confirmed it.

    `again` gives what is written after the first time, where that differs. `answer` holds the headers of its RECEIPT.
    `deliveries` are what a transaction settles, `is_forgotten` that no task waits for it. `feed` is set for
    SUBSCRIBE and STATUS, `correlation_id` where a task waits for an answer.
    """

    __slots__ = (
        "again",
        "answer",
        "blamed",
        "correlation_id",
        "data",
        "deliveries",
        "done",
        "error",
        "feed",
        "is_forgotten",
        "kind",
        "receipt",
        "written",
    )

    def __init__(
        self,
        kind: RequestKind,
        receipt: str,
        data: bytes,
        *,
        again: Callable[[], bytes] | None = None,
        feed: Feed | None = None,
        deliveries: tuple[Delivered, ...] = (),
    ) -> None:
        self.again = again
        self.answer: Mapping[str, str] = {}
        self.kind = kind
        self.receipt = receipt
        self.data = data
        self.feed = feed
        self.deliveries = deliveries
        self.done = False
        self.error: ClientError | Refused | None = None
        self.blamed = 0
        self.written = False
        self.is_forgotten = False
        self.correlation_id = ""

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

    __slots__ = ("_bytes", "_by_receipt", "_bytes_max", "_messages", "_messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._by_receipt: dict[str, Request] = {}
        self._messages = 0
        self._bytes = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_receipt.values()))

    @property
    def messages(self) -> int:
        return self._messages

    @property
    def bytes(self) -> int:
        return self._bytes

    def has_room(self, size: int) -> bool:
        if not self._messages:
            return True
        return self._messages < self._messages_max and self._bytes + size <= self._bytes_max

    def add(self, request: Request) -> None:
        assert request.receipt not in self._by_receipt
        self._by_receipt[request.receipt] = request
        if request.takes_room:
            self._messages += 1
            self._bytes += len(request.data)

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
            self._messages -= 1
            self._bytes -= len(request.data)
        return True

    def first(self) -> Request | None:
        return next(iter(self._by_receipt.values()), None)
