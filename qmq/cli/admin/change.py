"""Changes that the whole mesh shares: their options, their requests, and what a command prints of them."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from ..client import Endpoint, Headers, headers_of
from ..options import KEY, client_options, json_option, together
from ..output import Failed, print_json, printable
from .request import ask

change_flags: Callable[..., Any] = together(
    click.option("--quorum", is_flag=True, help="Wait until a majority of the nodes has the change."),
    click.option("--dry-run", is_flag=True, help="Check everything, and change nothing."),
    json_option,
)


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """How a command changes definitions, and how it shows that."""

    node: Endpoint
    quorum: bool
    dry_run: bool
    as_json: bool

    def put(self, name: str, value: Mapping[str, Any] | bytes, done: str = "set") -> None:
        """Set the definition `name`, `KIND/NAME`, and show it."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.show_definition(self.ask(f"definitions/put/{name}", body=body), done)

    def delete(self, name: str) -> None:
        """Delete the definition `name`, and show it."""
        self.show_definition(self.ask(f"definitions/delete/{name}"), "deleted")

    def ask(self, request: str, headers: Headers = (), body: bytes = b"") -> dict[str, Any]:
        """The response to a request that changes something."""
        return ask(self.node, request, [*headers, *headers_of(quorum=self.quorum, dry_run=self.dry_run)], body)

    def show_definition(self, facts: Mapping[str, Any], done: str) -> None:
        """As `show`, with the name that the response has."""
        self.show(facts, f"{facts['kind']} {facts['name']}", done)

    def show(self, facts: Mapping[str, Any], name: str, done: str, more: str = "") -> None:
        """Print what has happened to `name`. Raises Failed as `check_quorum` does."""
        if self.as_json:
            print_json(facts)
        else:
            result = f"would be {done}" if self.dry_run else f"is {done}" if facts["changed"] else "was so before"
            click.echo(printable(f"{name} {result}{more}"))
        check_quorum(facts)


def change_options(command: Callable[..., Any], key: Collection[str] = KEY) -> Callable[..., Any]:
    """The options of a command that changes definitions; it gets a `DefinitionChange` as `change`."""

    @wraps(command)
    def with_change(*args: Any, node: Endpoint, quorum: bool, dry_run: bool, as_json: bool, **given: Any) -> Any:
        return command(*args, change=DefinitionChange(node, quorum, dry_run, as_json), **given)

    return client_options(change_flags(with_change), key)


def check_quorum(facts: Mapping[str, Any]) -> None:
    """Raises Failed when a majority was asked for and did not answer in time."""
    if facts.get("quorum") is False:
        raise Failed("no majority has the change yet; it stands, and spreads when the other nodes can be reached")
