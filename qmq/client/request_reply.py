"""Requests that wait for a reply: the reply that belongs to each, and when none can arrive.

All answers of a client come to one temporary queue, which every request names in `reply-to`; the node makes it on first
use, so a change of nodes costs nothing but the addresses of the old one. `correlation-id` identifies an answer.

    asked ──receipt──▶ taken ──answer──▶ done
      │ └────────answer────────────────▶ done      the receipt may come after the answer, or never
      ├──connection lost──▶ asked                  written again, at the next node, with a new address
      │          taken ──connection lost──▶ ReplyLost
      └──refused──▶ done
"""

from collections.abc import Iterator, Mapping

from qmq.client.feed import AckMode, Delivered, Feed
from qmq.client.requests import Request
from qmq.client.vectors import Progress
from qmq.errors import ClientError, Refused, ReplyLost

REPLIES = "/temp-queue/replies"


class PendingReply:
    """One request. `done` with `error` None means that `reply` is there."""

    __slots__ = ("correlation_id", "done", "error", "reply", "request")

    def __init__(self, correlation_id: str, request: Request) -> None:
        self.correlation_id = correlation_id
        self.request = request
        self.reply: Delivered | None = None
        self.error: ClientError | Refused | None = None
        self.done = False

    def fail(self, error: ClientError | Refused) -> None:
        self.error = error
        self.done = True


class PendingReplies:
    """The table of one client."""

    __slots__ = ("_by_correlation", "_feed")

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
