"""`qmq bindings`: which queues and exchanges get copies of which messages. The rules are in docs/bindings.md."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ...routing_names import MATCH, MATCHES
from ..admin.request import DefinitionChange, change_options, check_kind, list_command
from ..client import headers_of
from ..options import together
from ..output import show_table

# Here --key is the routing key.
binding_options: Callable[..., Any] = partial(change_options, key=("--cert-key",))

binding_arguments: Callable[..., Any] = together(
    click.argument("source"),
    click.argument("target"),
    click.option("--key", default="", metavar="KEY", help="The routing key; of a topic exchange a pattern."),
    click.option(
        "--argument",
        "arguments",
        multiple=True,
        metavar="HEADER=VALUE",
        help="A header that a headers exchange compares; HEADER alone: any value. More than once for several.",
    ),
    click.option("--match", type=click.Choice(MATCHES), help="Whether all arguments must match, or any."),
)


@click.group
def bindings() -> None:
    """List, add and delete the bindings of a mesh.

    A binding copies messages from SOURCE to TARGET. SOURCE is `/topic/NAME` or a pattern of topics, `/fanout/NAME`, or
    `/exchange/NAME`. TARGET is `/queue/NAME`; or `/exchange/NAME`, where the source is an exchange, too.
    """


@list_command(bindings, "bindings")
def list_bindings(facts: dict[str, Any]) -> None:
    """List the bindings."""
    rows = [
        [
            row["source"] if row["effective"] else f"{row['source']} (no effect)",
            row.get("queue") or row["exchange"],
            row["key"] or "-",
            " ".join(name if value is None else f"{name}={value}" for name, value in row["arguments"].items()) or "-",
        ]
        for row in facts["bindings"]
    ]
    show_table(["SOURCE", "TARGET", "KEY", "ARGUMENTS"], rows)


@bindings.command
@binding_arguments
@binding_options
def add(change: DefinitionChange, **options: Any) -> None:
    """Copy messages from SOURCE to TARGET, from now on.

    To add a binding again changes nothing. Exit code 1 if it is refused; then nothing has changed.
    """
    _change(change, "bind", "added", **options)


@bindings.command
@binding_arguments
@binding_options
def delete(change: DefinitionChange, **options: Any) -> None:
    """Delete exactly this binding, as `list` shows it.

    Messages that were copied stay in the queue. Exit code 1 if there is none.
    """
    _change(change, "unbind", "deleted", **options)


def _change(
    change: DefinitionChange,
    verb: str,
    done: str,
    source: str,
    target: str,
    key: str,
    arguments: tuple[str, ...],
    match: str | None,
) -> None:
    check_kind(source, ("topic", "fanout", "exchange"))
    check_kind(target, ("queue", "exchange"))
    headers = headers_of(source=source, key=key or None)
    facts = change.ask(f"{verb}{target}", headers, json.dumps(_arguments(arguments, match)).encode())
    change.show(facts, f"binding from {source} to {target}", done)


def _arguments(given: tuple[str, ...], match: str | None) -> dict[str, str | None]:
    arguments: dict[str, str | None] = {} if match is None else {MATCH: match}
    for one in given:
        name, sign, value = one.partition("=")
        if not name or name in arguments:
            raise click.BadParameter(f"{one!r}: {name} is given twice" if name else f"{one!r} must be HEADER=VALUE")
        arguments[name] = value if sign else None
    return arguments
