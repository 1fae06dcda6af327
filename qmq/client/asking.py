"""Requests that wait for an answer: which answer belongs to which, and when none can come any more.

All answers of a client come to one temporary queue, which every request names in `reply-to`; the node makes it on first
use, so a change of nodes costs nothing but the addresses of the old one. An answer is told apart by `correlation-id`.

    asked ──receipt──▶ taken ──answer──▶ done
      │ └────────answer────────────────▶ done      the receipt may come after the answer, or never
      ├──connection lost──▶ asked                  written again, at the next node, with a new address
      │          taken ──connection lost──▶ ReplyLost
      └──refused──▶ done
"""

from collections.abc import Iterator, Mapping

from qmq.client.feed import Ack, Delivery, Feed
from qmq.client.requests import Request
from qmq.client.vectors import Progress
from qmq.errors import ClientError, Refused, ReplyLost

REPLIES = "/temp-queue/replies"


class Asked:
    """One request. `done` with `error` None means that `reply` is there."""

    __slots__ = ("correlation_id", "done", "error", "reply", "request")

    def __init__(self, correlation_id: str, request: Request) -> None:
        self.correlation_id = correlation_id
        self.request = request
        self.reply: Delivery | None = None
        self.error: ClientError | Refused | None = None
        self.done = False

    def fail(self, error: ClientError | Refused) -> None:
        self.error = error
        self.done = True


class Asking:
    """The table of one client."""

    __slots__ = ("_by_correlation", "_feed")

    def __init__(self) -> None:
        self._by_correlation: dict[str, Asked] = {}
        # Only to give the answers a home: nobody subscribes to it, nothing waits in it, nothing is settled.
        self._feed = Feed(
            REPLIES,
            ack=Ack.AUTO,
            prefetch=1,
            buffer_bytes_max=1,
            drops_oldest=True,
            start="first",
            seen=Progress(),
            headers={},
        )

    def __len__(self) -> int:
        return len(self._by_correlation)

    def __iter__(self) -> Iterator[Asked]:
        return iter(list(self._by_correlation.values()))

    def add(self, asked: Asked) -> None:
        """Raises ValueError when its correlation id is in use."""
        if asked.correlation_id in self._by_correlation:
            raise ValueError("a request with that correlation-id is waiting for its answer")
        self._by_correlation[asked.correlation_id] = asked

    def of(self, request: Request) -> Asked | None:
        """What waits for the answer to `request`."""
        asked = self._by_correlation.get(request.correlation_id)
        return asked if asked is not None and asked.request is request else None

    def forget(self, asked: Asked) -> None:
        """Nobody waits for it any more. Idempotent."""
        if self._by_correlation.get(asked.correlation_id) is asked:
            del self._by_correlation[asked.correlation_id]

    def take(self, headers: Mapping[str, str], body: bytes, connection: int) -> Asked | None:
        """An answer came: the request that is done now, None when nobody waits for it."""
        asked = self._by_correlation.pop(headers.get("correlation-id", ""), None)
        if asked is not None:
            asked.reply = Delivery(self._feed, headers, body, connection)
            asked.done = True
        return asked

    def lost(self) -> list[Asked]:
        """The connection is gone: the requests that a node has taken, whose answers have no address any more."""
        failed = [asked for asked in self if asked.request.done]
        for asked in failed:
            self.forget(asked)
            asked.fail(ReplyLost("the connection ended after the request was taken: its answer cannot arrive"))
        return failed
