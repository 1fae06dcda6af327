"""`qmq exchanges`: what routes messages to queues by their keys or headers. The rules are in docs/bindings.md."""

from typing import Any

import click

from ...routing_names import PREFIX, TYPES
from ..admin.request import DefinitionChange, change_options, list_command
from ..client import headers_of
from ..output import show_table


@click.group
def exchanges() -> None:
    """List, declare and delete the exchanges of a mesh.

    A SEND to `/exchange/NAME/KEY` is copied to the queues whose bindings match. An exchange keeps nothing itself.
    """


@list_command(exchanges, "exchanges")
def list_exchanges(facts: dict[str, Any]) -> None:
    """List the exchanges, the predefined ones too."""
    rows = [
        [row["name"], row["type"], row["alternate"] or "-", "yes" if row["internal"] else "-", str(row["bindings"])]
        for row in facts["exchanges"]
    ]
    show_table(["NAME", "TYPE", "ALTERNATE", "INTERNAL", "BINDINGS"], rows)


@exchanges.command
@click.argument("name")
@click.argument("kind", type=click.Choice(TYPES))
@click.option("--alternate", metavar="NAME", help="The exchange that gets what no binding of this one matches.")
@click.option("--internal", is_flag=True, help="Clients cannot send to it, only other exchanges.")
@change_options
def declare(name: str, kind: str, alternate: str | None, internal: bool, change: DefinitionChange) -> None:
    """Declare an exchange.

    To declare it again as it is changes nothing. Exit code 1 if it exists with another type, alternate or `internal`;
    then nothing has changed.
    """
    headers = headers_of(type=kind, alternate=alternate or None, internal=internal)
    _change(change, "declare", name, "declared", headers)


@exchanges.command
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if it has no bindings.")
@change_options
def delete(name: str, if_unused: bool, change: DefinitionChange) -> None:
    """Delete an exchange and its bindings.

    Exit code 1 if there is none, or if it is the alternate of another exchange.
    """
    _change(change, "delete", name, "deleted", headers_of(if_unused=if_unused))


def _change(change: DefinitionChange, verb: str, name: str, done: str, headers: list[tuple[str, str]]) -> None:
    facts = change.ask(f"{verb}{PREFIX}{name}", headers)
    bindings = f", with {facts['bindings']} bindings" if facts.get("bindings") else ""
    change.show(facts, f"exchange {name}", done, bindings)
