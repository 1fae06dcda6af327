"""`qmq connections` and `qmq kick`: the connections of clients, and their end."""

from collections.abc import Callable
from typing import Any

import click

from ..client import Endpoint
from ..options import client_options, json_option, together
from ..output import print_json, printable, table
from .request import ask, one_node_option

HEADS = ("ID", "USER", "ADDRESS", "PROTOCOL", "SUBSCRIPTIONS", "IN FLIGHT")
FIELDS = ("id", "user", "address", "protocol", "subscriptions", "in_flight")

named_options: Callable[..., Any] = together(
    click.option("--user", metavar="NAME", help="Only connections of this user."),
    click.option("--address", metavar="IP", help="Only connections from this address."),
    one_node_option,
)


@click.command
@client_options
@named_options
@json_option
def connections(node: Endpoint, user: str | None, address: str | None, one_node: bool, as_json: bool) -> None:
    """List the connections of clients, on all nodes.

    At most 1000 of each node are listed. The ID of a connection is for `qmq kick`.
    """
    facts = ask(node, "connections", _headers(user, address, one_node))
    if as_json:
        print_json(facts)
        return
    rows = [[printable(str(row.get(name, ""))) for name in FIELDS] for row in facts.get("rows", [])]
    click.echo("\n".join(table(HEADS, rows)))
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
    headers = [*_headers(user, address, one_node), *([("dry-run", "true")] if dry_run else [])]
    headers += [("reason", reason)] if reason is not None else []
    facts = ask(node, f"kick/{connection}" if connection else "kick", headers)
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


def _headers(user: str | None, address: str | None, one_node: bool) -> list[tuple[str, str]]:
    found = [(name, value) for name, value in (("user", user), ("address", address)) if value is not None]
    return found if one_node else [*found, ("scope", "mesh")]


def _show_missing(facts: dict[str, Any]) -> None:
    if facts.get("nodes_missing"):
        click.echo(f"qmq: these nodes did not answer: {printable(', '.join(facts['nodes_missing']))}", err=True)
