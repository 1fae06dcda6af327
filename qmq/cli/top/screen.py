"""A sample as lines of text that fit into a terminal. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from ..output import byte_size, duration, printable, table
from .samples import Row, Sample, per_second
from .view import View

NODES: Final = ("NODE", "STATE", "IN/S", "OUT/S", "ACK/S", "CONNS", "LINKS", "BEHIND", "DISK FREE", "FSYNC")
QUEUES: Final = ("QUEUE", "MESSAGES", "IN FLIGHT", "CONSUMERS", "OLDEST", "IN/S")
CONSUMERS: Final = ("NODE", "USER", "ADDRESS", "CREDIT", "IN FLIGHT", "OUT/S", "ACK/S")
KEYS: Final = "q quit  d depth  o oldest  r rate  n name  arrows and enter open a queue  space pause"
KEYS_OPEN: Final = "q quit  escape back  space pause"
CONDITIONS_SHOWN: Final = 3
UNKNOWN: Final = "-"


def draw(now: Sample, before: Sample | None, view: View, width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` characters. Rates are those since `before`."""
    lines = [_head(now, view), "", *table(NODES, list(_nodes(now, before))), *_conditions(now.conditions), ""]
    room = max(1, height - len(lines) - 2)
    if view.opened is None:
        first = max(0, view.selected - room + 2)
        lines += table(QUEUES, list(_queues(now, before, view.selected))[first : first + room - 1])
    else:
        lines += [view.opened, *table(CONSUMERS, list(_consumers(now, before))[: room - 2])]
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines)) + [KEYS if view.opened is None else KEYS_OPEN]
    return [printable(line)[:width].rstrip() for line in lines]


def _head(now: Sample, view: View) -> str:
    at_us = max((node.get("at_us", 0) for node in now.nodes.values()), default=0)
    at = datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%H:%M:%SZ")
    silent = f", {len(now.missing)} silent" if now.missing else ""
    paused = "  PAUSED" if view.is_paused else ""
    waiting = sum(node.get("waiting", 0) for node in now.nodes.values())
    counts = f"{waiting} messages wait  {now.queues_total} queues by {view.sort}"
    return f"qmq top  {at}  {len(now.nodes)} nodes{silent}  {counts}{paused}"


def _nodes(now: Sample, before: Sample | None) -> Iterable[Sequence[object]]:
    for name, node in sorted(now.nodes.items()):
        was = before.nodes.get(name, {}) if before is not None else {}
        seconds = (node.get("at_us", 0) - was.get("at_us", 0)) / 1e6
        totals, totals_before = node.get("totals", {}), was.get("totals", {})
        names = ("accepted", "delivered", "acknowledged")
        rates = [_rate(per_second(totals.get(one), totals_before.get(one), seconds)) for one in names]
        links = node.get("links", ())
        ways = [link.get(way) in ("up", "caught-up") for link in links for way in ("out", "in")]
        yield [
            name,
            _state(node),
            *rates,
            node.get("connections", 0),
            f"{sum(ways)}/{len(ways)}" if ways else UNKNOWN,
            sum(link.get("lag") or 0 for link in links),
            byte_size(node.get("disk_free_bytes", 0)),
            f"{node.get('fsync', {}).get('last_us', 0) / 1000:.1f} ms",
        ]
    for name in now.missing:
        yield [name, "SILENT", *[UNKNOWN] * (len(NODES) - 2)]


def _state(node: Row) -> str:
    words = {"stopping": "stopping", "draining": "drained", "disk_full": "DISK FULL", "held": "HELD"}
    for key, word in (words | {"learner": "learner"}).items():
        if node.get(key):
            return word
    return "ok"


def _conditions(conditions: Sequence[Row]) -> list[str]:
    shown = [f"{one.get('severity')}  {one.get('node')}  {one.get('code')}: {one.get('message')}" for one in conditions]
    more = [f"and {len(shown) - CONDITIONS_SHOWN} more: qmq conditions"] * (len(shown) > CONDITIONS_SHOWN)
    return ["", *shown[:CONDITIONS_SHOWN], *more] if shown else []


def _queues(now: Sample, before: Sample | None, selected: int) -> Iterable[Sequence[object]]:
    were = {row.get("destination"): row for row in before.queues} if before is not None else {}
    seconds = now.at_seconds - before.at_seconds if before is not None else 0.0
    for number, row in enumerate(now.queues):
        name = str(row.get("destination"))
        age_us = row.get("oldest_age_us")
        yield [
            f"{'>' if number == selected else ' '} {name}",
            row.get("messages", 0),
            row.get("in_flight", 0),
            row.get("consumers", 0),
            duration(age_us / 1e6) if isinstance(age_us, int) else UNKNOWN,
            _rate(per_second(row.get("accepted"), were.get(name, {}).get("accepted"), seconds)),
        ]


def _consumers(now: Sample, before: Sample | None) -> Iterable[Sequence[object]]:
    were = {_identity(row): row for row in before.consumers} if before is not None else {}
    seconds = now.at_seconds - before.at_seconds if before is not None else 0.0
    for row in now.consumers:
        was = were.get(_identity(row), {})
        names = ("delivered", "acknowledged")
        yield [
            *(row.get(name, "") for name in ("node", "user", "address", "credit", "in_flight")),
            *(_rate(per_second(row.get(name), was.get(name), seconds)) for name in names),
        ]


def _identity(row: Row) -> tuple[object, ...]:
    return row.get("node"), row.get("session"), row.get("id")


def _rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"
