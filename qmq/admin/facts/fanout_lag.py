"""How far the subscribers of a fanout are behind: messages that their clients have not been sent, or not acknowledged.

A live subscription has been sent everything except the messages in the buffer that it declares. A subscription that
reads the log is behind by the messages after its position. A durable subscription is behind from the first message on
that is not acknowledged. Its cursor is on every node, so one node responds for all durable subscriptions, including
those that no client uses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qmq.admin.facts.counts import Counts, Page
from qmq.broker.consumers.subscription import Subscription
from qmq.engine.parts import EngineParts
from qmq.errors import CorruptLog, LogBroken
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.storage.fanouts.reader import FanoutPosition

FANOUT: Final = "/fanout/"
BEHIND: Final = "behind"
DURABLES: Final = "durables"
DURABLES_SHOWN: Final = 200
"""Of one fanout, those behind most first."""


class FanoutLag:
    """Of the fanouts of one node."""

    def __init__(self, engine: EngineParts, counts: Counts, subscribers: FanoutSubscribers) -> None:
        self._engine = engine
        self._counts = counts
        self._subscribers = subscribers

    async def subscribers_page(self, destination: str, after: str, limit: int) -> Page:
        """As `Counts.subscriber_rows`; of a fanout each row has `behind`, unless its log cannot be read."""
        page = self._counts.subscriber_rows(destination, after, limit)
        if not destination.startswith(FANOUT):
            return page
        subscriptions = {
            (one.session, one.id): one for one in self._engine.broker.subscriptions.fanouts.get(destination, ())
        }
        found = [subscriptions[int(row["session"]), str(row["id"])] for row in page.rows]
        waiting = [0 if one.buffer is None else len(one.buffer) for one in found]
        unread = await self._behind(destination, [self._position(one) for one in found])
        for row, buffered, behind in zip(page.rows, waiting, unread, strict=False):
            row[BEHIND] = buffered + behind
        for row, one in zip(page.rows, found, strict=True):
            if one.buffer is not None:
                row["dropped"] = one.buffer.dropped
        return page

    async def durable_facts(self, destination: str) -> Mapping[str, list[dict[str, Any]]]:
        """The durable subscriptions of a fanout, with `behind`; nothing for another destination.

        `in_use` is about clients of this node.
        """
        if not destination.startswith(FANOUT):
            return {}
        durables = self._engine.broker.durable_subscriptions
        found = [
            (name, cursor)
            for name, cursor in durables.by_name.items()
            if cursor.created_us and name.destination == destination
        ]
        # Where none is known to begin, only the log can say how far behind it is.
        positions = [_behind_all(cursor.vector()) for _, cursor in found if cursor.start is not None]
        behind = iter(await self._behind(destination, positions))
        rows: list[dict[str, Any]] = []
        for name, cursor in found:
            row = {"destination": destination, "name": name.text, "in_use": name in durables.attached}
            row["in_flight"] = len(durables.attached[name].subscription.in_flight) if row["in_use"] else 0
            number = None if cursor.start is None else next(behind, None)
            rows.append(row if number is None else {**row, BEHIND: number})
        rows.sort(key=lambda row: (-row.get(BEHIND, 0), row["name"]))
        return {DURABLES: rows[:DURABLES_SHOWN]}

    def _position(self, subscription: Subscription) -> FanoutPosition | None:
        """Up to where the client has been sent all; None: it is live."""
        if subscription.durable is not None:
            return _behind_all(subscription.durable.cursor.vector())
        return self._subscribers.position_of(subscription)

    async def _behind(self, destination: str, positions: Sequence[FanoutPosition | None]) -> Sequence[int]:
        """Messages behind each position, 0 for None; nothing if the log cannot be read."""
        if not any(positions):
            return [0] * len(positions)
        try:
            return await self._engine.environment.run_blocking(self._engine.store.fanout_behind, destination, positions)
        except (CorruptLog, LogBroken, OSError):
            return ()


def _behind_all(vector: Mapping[Any, int]) -> FanoutPosition:
    return FanoutPosition(0, 0, tuple(vector.items()))
