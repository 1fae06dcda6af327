"""`/control/list/queue` with `sort`: one page of queues in any order, of this node or of the mesh.

Each node names its first queues in that order with their values (`firsts`), and then each shows the rows of all of them
(`rows`). Rows of one queue are summed, as in the list by name. So with `scope:mesh` a queue that is among the first of
no node is not among the first of the mesh, although its sum might be.
"""

from heapq import nsmallest
from typing import Annotated, ClassVar, Final

import trio
from msgspec import Meta, Struct

from qmq.admin.facts.counts import sum_rows
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.facts.queue_search import NAME, OLDEST, QueueSearch
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.totals import NodeTotals
from qmq.engine.turns import in_turns
from qmq.mesh.peers.calls import Count, Facts, NamedCall, R, Text, Whole, need
from qmq.verbs.lists import FILTER_CHARS_MAX, LIMIT_MAX, OFFSET_MAX, QueuePage, Sort

PREFIX: Final = "/queue/"
RATE: Final = "rate"
GROWTH: Final = "growth"

RATE_SECONDS: Final = 4.0
"""Rates are measured over at least so long."""

TURN_NAMES: Final = 1_000
"""Counters that are compared in one turn of the event loop."""

RATED: Final = ("accepted", "acknowledged", "grown")
"""A queue is sorted by the sum of the first two rates, or by the last one. What came in on one node and left on another
has grown on the first, and less than nothing on the other.
"""


class ConsoleCall(NamedCall[R], frozen=True):
    """The part of a node in what the console shows."""

    kind: ClassVar = "console"
    named_by: ClassVar = "part"


class FirstQueues(Struct, frozen=True):
    """`names`: the first queues in an order, and `values` by which they are sorted; `queues`: how many there are;
    `age_seconds`: since the order was found.
    """

    names: list[Text]
    values: list[Whole | float]
    queues: Count
    age_seconds: float = 0.0


class FirstsCall(ConsoleCall[FirstQueues], frozen=True):
    name: ClassVar = "firsts"
    sort: Sort
    is_reversed: bool
    text: Annotated[str, Meta(max_length=FILTER_CHARS_MAX)]
    count: Annotated[int, Meta(ge=0, le=OFFSET_MAX + LIMIT_MAX + 1)]


class QueueRows(Struct, frozen=True):
    """The rows of queues, as in the list by name, with ages and rates."""

    rows: list[Facts]

    def __post_init__(self) -> None:
        for row in self.rows:
            need(row, destination=str)


class RowsCall(ConsoleCall[QueueRows], frozen=True):
    name: ClassVar = "rows"
    names: Annotated[list[Text], Meta(max_length=LIMIT_MAX * 10)]


class Rates:
    """Messages in and out per second, of each queue that is counted, between the two last requests for them."""

    def __init__(self, totals: NodeTotals) -> None:
        self._totals = totals
        self._before: dict[str, tuple[int, ...]] = {}
        self._begun_at = self._taken_at = float("-inf")
        self.by_name: dict[str, tuple[float, ...]] = {}

    async def refresh(self) -> None:
        """Measure again, unless the last sample is recent. The first sample has no rates."""
        now = trio.current_time()
        if now - self._begun_at < RATE_SECONDS:
            return
        self._begun_at = now
        # One that is cancelled leaves the sample before it.
        seconds = now - self._taken_at
        totals = self._totals.by_name
        names = [name for name in totals if name.startswith(PREFIX)]
        before, by_name = self._before, {}
        counts: dict[str, tuple[int, ...]] = {}
        async for part in in_turns(names, TURN_NAMES):
            for name in part:
                one = totals.get(name)
                if one is None:
                    continue
                left = one.acknowledged + one.expired + one.dead_lettered + one.removed
                after = counts[name] = (one.since_us, one.accepted, one.acknowledged, one.accepted - left)
                known = before.get(name)
                # One that made room for others is counted from 0 again.
                if known is not None and known != after and known[0] == after[0]:
                    by_name[name] = tuple([(b - a) / seconds for a, b in zip(known[1:], after[1:], strict=True)])
        self._before, self._taken_at, self.by_name = counts, now, by_name


def firsts_call(page: QueuePage) -> FirstsCall:
    """One more than the page needs, to see whether more follow."""
    return FirstsCall(page.sort, page.is_reversed, page.filter, page.offset + page.limit + 1)


class QueuePages:
    """The part of this node in pages."""

    def __init__(self, totals: NodeTotals, catalog: QueueCatalog) -> None:
        self._catalog = catalog
        self._rates = Rates(totals)

    async def firsts(self, call: FirstsCall) -> FirstQueues:
        """The reply of this node."""
        sort, is_reversed, text, count = call.sort, call.is_reversed, call.text, call.count
        await self._rates.refresh()
        catalog = self._catalog
        if sort not in (RATE, GROWTH):
            found, age_seconds = await catalog.first(QueueSearch(sort, is_reversed, count, text))
            return FirstQueues([one for one, _ in found], [n for _, n in found], catalog.count, round(age_seconds, 1))
        sign = -1 if is_reversed else 1
        by_name = {
            name: sign * (rates[-1] if sort == GROWTH else rates[0] + rates[1])
            for name, rates in self._rates.by_name.items()
            if text in name
        }
        # Queues without a rate have the rate 0, and go by name: behind some of the others, and before some.
        places = [(value, name) for name, value in by_name.items() if value < 0]
        places = nsmallest(count, places)
        age_seconds = 0.0
        if len(places) < count:
            calm, age_seconds = await catalog.first(QueueSearch(NAME, False, count + len(by_name), text))
            places += [(0.0, name) for name, _ in calm if not by_name.get(name)]
            places += nsmallest(count, [(value, name) for name, value in by_name.items() if value > 0])
            places = places[:count]
        return FirstQueues(
            [name for _, name in places], [sign * value for value, _ in places], catalog.count, round(age_seconds, 1)
        )

    async def rows(self, call: RowsCall) -> QueueRows:
        """The reply of this node."""
        rows = await self._catalog.rows(call.names, with_ages=True)
        for row in rows:
            for field, rate in zip(RATED, self._rates.by_name.get(str(row["destination"]), ()), strict=False):
                row[f"{field}_per_second"] = round(rate, 1)
        return QueueRows(rows)


def names_of_page(asked: QueuePage, firsts: list[FirstQueues]) -> tuple[list[str], bool]:
    """The queues of the page, and whether more follow; `firsts` are those of each node."""
    values: dict[str, float] = {}
    for one in firsts:
        for name, value in zip(one.names, one.values, strict=False):
            if asked.sort == OLDEST:
                values[name] = max(value, values.get(name, 0))
            else:
                values[name] = value + values.get(name, 0)
    if asked.sort == NAME:
        names = sorted(values, reverse=asked.is_reversed)
    else:
        sign = -1 if asked.is_reversed else 1
        names = sorted(values, key=lambda name: (sign * values[name], name))
    end = asked.offset + asked.limit
    return names[asked.offset : end], len(names) > end


def merged_rows(names: list[str], nodes: list[QueueRows]) -> list[Facts]:
    """One row for each of `names`, in this order. A queue that is gone meanwhile has a row without messages."""
    rows: dict[str, Facts] = {}
    for one in nodes:
        for row in one.rows:
            name = str(row["destination"])
            rows[name] = sum_rows(DestinationKind.QUEUE, rows[name], row) if name in rows else row
    empty = {"messages": 0, "bytes": 0, "in_flight": 0, "consumers": 0}
    return [rows.get(name, {"destination": name, **empty}) for name in names]
