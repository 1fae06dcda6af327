"""`qmq connections`, `qmq kick` and `qmq links`: connections of clients and their end, and links between nodes."""

from collections.abc import Sequence
from typing import Any

import click

from qmq.verbs.nodes import Connections, Kick, Links

from ..client import headers_of
from ..output import byte_size, print_json, printable, show_table
from .listing import PAGE_ROWS, limit_option
from .verb import Asked, verb_command

HEADS = ("ID", "USER", "ADDRESS", "PORT", "PROTOCOL", "PRODUCT", "SUBSCRIPTIONS", "IN FLIGHT", "BYTES IN", "BYTES OUT")
FIELDS = ("id", "user", "address", "port", "protocol", "product", "subscriptions", "in_flight")
LINK_HEADS = ("NODE", "PEER", "OUT", "IN", "LAG", "BYTES IN", "BYTES OUT", "LAST ERROR")
LINK_FIELDS = ("node", "peer", "out", "in", "lag")


@verb_command(Connections, more=limit_option)
def connections(asked: Asked, limit: int) -> None:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        left = limit - len(rows)
        facts = asked.facts(*headers_of(after=after, limit=left if left < PAGE_ROWS else None))
        rows += facts.get("rows", [])
        after = str(facts.get("next"))
        if not facts.get("next") or len(rows) >= limit:
            break
    facts["rows"] = rows
    if asked.as_json:
        print_json(facts)
        return
    show_table(HEADS, [[*_texts(row, FIELDS), *_bytes(row)] for row in rows])
    if facts.get("next"):
        click.echo(f"qmq: there are more than {limit}; see --limit", err=True)
    _show_missing(facts)


@verb_command(Links)
def links(asked: Asked) -> None:
    facts = asked.facts()
    if asked.as_json:
        print_json(facts)
        return
    rows = [[*_texts(row, LINK_FIELDS), *_bytes(row), *_texts(row, ("last_error",))] for row in facts.get("rows", [])]
    show_table(LINK_HEADS, rows)
    _show_missing(facts)


@verb_command(Kick)
def kick(asked: Asked) -> None:
    if not asked.about and asked.given["user"] is None and asked.given["address"] is None:
        raise click.UsageError("name the connections: ID, --user or --address")
    facts = asked.facts()
    if asked.as_json:
        print_json(facts)
    else:
        for row in facts.get("rows", []):
            done = "would be ended" if asked.is_dry_run else "is ended"
            click.echo(printable(f"{row.get('id')} {row.get('user') or '-'} {row.get('address')} {done}"))
    _show_missing(facts)
    if not facts.get("connections"):
        click.echo("qmq: there is no such connection", err=True)
    if not facts.get("connections") or facts.get("nodes_missing"):
        raise SystemExit(1)


def _texts(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [str(row.get(name, "")) for name in names]


def _bytes(row: dict[str, Any]) -> list[str]:
    """Bytes in and out, per second where that was measured."""
    found = []
    for name in ("bytes_in", "bytes_out"):
        rate = row.get(f"{name}_per_second")
        found.append(byte_size(row.get(name, 0)) if rate is None else f"{byte_size(int(rate))}/s")
    return found


def _show_missing(facts: dict[str, Any]) -> None:
    if facts.get("nodes_missing"):
        click.echo(f"qmq: these nodes did not answer: {printable(', '.join(facts['nodes_missing']))}", err=True)
