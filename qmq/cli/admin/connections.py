"""`qmq connections`, `qmq kick` and `qmq links`: connections of clients and their end, and links between nodes."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from ..client import Endpoint, headers_of
from ..listing import PAGE_ROWS
from ..options import client_options, json_option, rates_option, together
from ..output import byte_size, print_json, printable, show_table
from .request import ask, one_node_option

HEADS = ("ID", "USER", "ADDRESS", "PROTOCOL", "SUBSCRIPTIONS", "IN FLIGHT", "BYTES IN", "BYTES OUT")
FIELDS = ("id", "user", "address", "protocol", "subscriptions", "in_flight")
LINK_HEADS = ("NODE", "PEER", "OUT", "IN", "LAG", "BYTES IN", "BYTES OUT", "LAST ERROR")
LINK_FIELDS = ("node", "peer", "out", "in", "lag")

named_options: Callable[..., Any] = together(
    click.option("--user", metavar="NAME", help="Only connections of this user."),
    click.option("--address", metavar="IP", help="Only connections from this address."),
    one_node_option,
)


@click.command
@client_options
@named_options
@rates_option
@click.option("--limit", type=click.IntRange(min=1), default=PAGE_ROWS, show_default=True, help="Most rows to show.")
@json_option
def connections(
    node: Endpoint, user: str | None, address: str | None, one_node: bool, rates: int | None, limit: int, as_json: bool
) -> None:
    """List the connections of clients, on all nodes.

    The ID of a connection is for `qmq kick`.
    """
    asked = headers_of(user=user, address=address, scope=_scope(one_node), rate_seconds=rates)
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        left = limit - len(rows)
        page = headers_of(after=after, limit=left if left < PAGE_ROWS else None)
        facts = ask(node, "connections", [*asked, *page])
        rows += facts.get("rows", [])
        after = str(facts.get("next"))
        if not facts.get("next") or len(rows) >= limit:
            break
    facts["rows"] = rows
    if as_json:
        print_json(facts)
        return
    show_table(HEADS, [[*_texts(row, FIELDS), *_bytes(row)] for row in rows])
    if facts.get("next"):
        click.echo(f"qmq: there are more than {limit}; see --limit", err=True)
    _show_missing(facts)


@click.command
@client_options
@one_node_option
@rates_option
@json_option
def links(node: Endpoint, one_node: bool, rates: int | None, as_json: bool) -> None:
    """List the links between the nodes, as each node sees them.

    Shows the link of NODE to PEER (OUT), the link from there (IN), how many records of NODE the peer is missing, and
    the bytes of the journal over the present links.
    """
    facts = ask(node, "links", headers_of(scope=_scope(one_node), rate_seconds=rates))
    if as_json:
        print_json(facts)
        return
    rows = [[*_texts(row, LINK_FIELDS), *_bytes(row), *_texts(row, ("last_error",))] for row in facts.get("rows", [])]
    show_table(LINK_HEADS, rows)
    _show_missing(facts)


@click.command
@click.argument("connection", required=False, metavar="[ID]")
@client_options
@named_options
@click.option("--reason", metavar="TEXT", help="What the client reads in its ERROR.")
@click.option("--dry-run", is_flag=True, help="Show which connections it would be, and change nothing.")
@json_option
def kick(
    connection: str | None,
    node: Endpoint,
    user: str | None,
    address: str | None,
    one_node: bool,
    reason: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """End connections of clients, by ID, user or address, on all nodes.

    The client gets an ERROR with the code `kicked`. What it has in flight is delivered again. It may connect again: to
    prevent that, change its user or its permissions. Exit code 1 if there is no such connection or a node is missing.
    """
    if connection is None and user is None and address is None:
        raise click.UsageError("name the connections: ID, --user or --address")
    headers = headers_of(user=user, address=address, scope=_scope(one_node), dry_run=dry_run, reason=reason)
    facts = ask(node, "kick" if connection is None else f"kick/{connection}", headers)
    if as_json:
        print_json(facts)
    else:
        for row in facts.get("rows", []):
            done = "would be ended" if dry_run else "is ended"
            click.echo(printable(f"{row.get('id')} {row.get('user') or '-'} {row.get('address')} {done}"))
    _show_missing(facts)
    if not facts.get("connections"):
        click.echo("qmq: there is no such connection", err=True)
    if not facts.get("connections") or facts.get("nodes_missing"):
        raise SystemExit(1)


def _scope(one_node: bool) -> str | None:
    return None if one_node else "mesh"


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
