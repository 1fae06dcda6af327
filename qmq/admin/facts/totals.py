"""Totals and rates in the responses of a node: what `qmq.broker.messages.totals` counts, as fields of rows and status.

A rate is the difference of two samples, taken for one request: the response waits for the time that the request names
in `rate-seconds`. So nothing is sampled while no client asks.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from qmq.broker.messages.totals import NAMES, NodeTotals, Totals

SINCE: Final = "counted_since_us"
RATE: Final = "_per_second"
RATED: Final = (*NAMES, "bytes_in", "bytes_out")
"""Fields that get a rate wherever they are."""

Row = dict[str, str | int | float]
"""One line of a list, ready for JSON."""


def facts_of_totals(totals: Totals) -> dict[str, int]:
    return dict(zip(NAMES, totals.all(), strict=True))


def row_totals(totals: NodeTotals, destination: str) -> Row:
    """The totals of one destination that are not 0, and since when it is counted; nothing if it is not."""
    found = totals.by_name.get(destination)
    if found is None:
        return {}
    return {SINCE: found.since_us, **{name: value for name, value in facts_of_totals(found).items() if value}}


def rates_between(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """How much each number in `after` has grown in a second; none if the counting began again in between."""
    if before.get(SINCE) != after.get(SINCE):
        return {}
    grown = {name: _number(after, name) - _number(before, name) for name in RATED if name in after}
    return {f"{name}{RATE}": round(growth / seconds, 1) for name, growth in grown.items() if growth >= 0}


async def rated(seconds: int, read: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """The facts that `read` returns, with `rows` that have an `id`; and the rates of each over `seconds`, if not 0."""
    began, facts = trio.current_time(), await read()
    if seconds:
        await trio.sleep(seconds)
        took, before = trio.current_time() - began, {row["id"]: row for row in _with_id(facts["rows"])}
        facts = await read()
        for row in _with_id(facts["rows"]):
            row |= rates_between(before[row["id"]], row, took) if row["id"] in before else {}
    return facts


def _with_id(rows: list[Any]) -> list[dict[str, Any]]:
    """The rows that make sense: a peer may have sent them."""
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _number(row: Mapping[str, Any], name: str) -> int:
    """A field of a row that a peer may have sent."""
    value = row.get(name, 0)
    return value if isinstance(value, int) else 0
