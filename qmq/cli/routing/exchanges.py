"""`qmq exchanges`: what routes messages to queues by their keys or headers. The rules are in docs/bindings.md."""

from typing import Any

import click

from ...routing_names import PREFIX, TYPES
from ..admin.definitions import change_headers, change_options, check_quorum
from ..admin.request import ask
from ..client import Endpoint
from ..options import client_options, json_option
from ..output import print_json, printable, table


@click.group
def exchanges() -> None:
    """List, declare and delete the exchanges of a mesh.

    A SEND to `/exchange/NAME/KEY` is copied to the queues whose bindings match. An exchange keeps nothing itself.
    """


@exchanges.command("list")
@client_options
@json_option
def list_exchanges(node: Endpoint, as_json: bool) -> None:
    """List the exchanges, the predefined ones too."""
    facts = ask(node, "exchanges")
    if as_json:
        print_json(facts)
        return
    rows = [[row["name"], row["type"], row["alternate"] or "-", str(row["bindings"])] for row in facts["exchanges"]]
    heads = ["NAME", "TYPE", "ALTERNATE", "BINDINGS"]
    click.echo("\n".join(table(heads, [[printable(cell) for cell in row] for row in rows])))


@exchanges.command
@click.argument("name")
@click.argument("kind", type=click.Choice(TYPES))
@click.option("--alternate", metavar="NAME", help="The exchange that gets what no binding of this one matches.")
@change_options
def declare(name: str, kind: str, alternate: str | None, **options: Any) -> None:
    """Declare an exchange.

    To declare it again as it is changes nothing. Exit code 1 if it exists with another type or alternate; then nothing
    has changed.
    """
    headers = [("type", kind), *([("alternate", alternate)] if alternate else [])]
    _change(f"declare{PREFIX}{name}", name, "declared", headers, **options)


@exchanges.command
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if it has no bindings.")
@change_options
def delete(name: str, if_unused: bool, **options: Any) -> None:
    """Delete an exchange and its bindings.

    Exit code 1 if there is none, or if it is the alternate of another exchange.
    """
    headers = [("if-unused", "true")] if if_unused else []
    _change(f"delete{PREFIX}{name}", name, "deleted", headers, **options)


def _change(
    request: str,
    name: str,
    done: str,
    headers: list[tuple[str, str]],
    node: Endpoint,
    quorum: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    facts = ask(node, request, [*headers, *change_headers(quorum, dry_run)])
    if as_json:
        print_json(facts)
    else:
        bindings = f", with {facts['bindings']} bindings" if facts.get("bindings") else ""
        result = f"would be {done}" if dry_run else f"is {done}" if facts["changed"] else "was so before"
        click.echo(printable(f"exchange {name} {result}{bindings}"))
    check_quorum(facts)
