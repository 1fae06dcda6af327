"""`qmq exchanges`, `bindings` and `vhosts`: what gets copies of which messages, and virtual hosts of AMQP clients.

The rules are in docs/bindings.md and docs/amqp.md.
"""

import json
from collections.abc import Callable
from typing import Any

import click

from qmq.model.routing_names import MATCH, MATCHES, PREFIX, TYPES, VHOST_DEFAULT, vhost_name, vhost_prefix
from qmq.verbs.verb import Defining

from ..client import headers_of
from ..options import together
from ..output import show_table
from .request import check_kind, list_command
from .verb import Asked, change_options, verb_options


@click.group
def exchanges() -> None:
    """List, declare and delete the exchanges of a mesh.

    A SEND to `/exchange/NAME/KEY` is copied to the queues whose bindings match. An exchange keeps nothing itself.
    """


@list_command(exchanges, "exchanges")
def list_exchanges(facts: dict[str, Any]) -> None:
    """List the exchanges, the predefined ones too."""
    rows = [
        [row["name"], _type(row), row["alternate"] or "-", "yes" if row["internal"] else "-", str(row["bindings"])]
        for row in facts["exchanges"]
    ]
    show_table(["NAME", "TYPE", "ALTERNATE", "INTERNAL", "BINDINGS"], rows)


def _type(row: dict[str, Any]) -> str:
    # A node of another version has no such key.
    return f"{row['type']}, delayed" if row.get("delayed") else str(row["type"])


@exchanges.command("declare")
@click.argument("name")
@click.argument("kind", type=click.Choice(TYPES))
@click.option("--alternate", metavar="NAME", help="The exchange that gets what no binding of this one matches.")
@click.option("--internal", is_flag=True, help="Clients cannot send to it, only other exchanges.")
@click.option("--delayed", is_flag=True, help="Messages wait for the milliseconds in their header x-delay.")
@change_options
def declare_exchange(name: str, kind: str, alternate: str | None, internal: bool, delayed: bool, asked: Asked) -> None:
    """Declare an exchange.

    To declare it again as it is changes nothing. Exit code 1 if it exists with another type, alternate, `internal`
    or `delayed`; then nothing has changed.
    """
    headers = headers_of(type=kind, alternate=alternate or None, internal=internal, delayed=delayed)
    _change_exchange(asked, "declare", name, "declared", headers)


@exchanges.command("delete")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if it has no bindings.")
@change_options
def delete_exchange(name: str, if_unused: bool, asked: Asked) -> None:
    """Delete an exchange and its bindings.

    Exit code 1 if there is none, or if it is the alternate of another exchange.
    """
    _change_exchange(asked, "delete", name, "deleted", headers_of(if_unused=if_unused))


def _change_exchange(asked: Asked, verb: str, name: str, done: str, headers: list[tuple[str, str]]) -> None:
    facts = asked.ask(f"{verb}{PREFIX}{name}", headers)
    bindings = f", with {facts['bindings']} bindings" if facts.get("bindings") else ""
    asked.show_change(facts, f"exchange {name}", done, bindings)


# Here --key is the routing key.
binding_options: Callable[..., Any] = verb_options(Defining, key=("--cert-key",))

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


@bindings.command("add")
@binding_arguments
@binding_options
def add_binding(asked: Asked, **options: Any) -> None:
    """Copy messages from SOURCE to TARGET, from now on.

    To add a binding again changes nothing. Exit code 1 if it is refused; then nothing has changed.
    """
    _change_binding(asked, "bind", "added", **options)


@bindings.command("delete")
@binding_arguments
@binding_options
def delete_binding(asked: Asked, **options: Any) -> None:
    """Delete exactly this binding, as `list` shows it.

    Messages that were copied stay in the queue. Exit code 1 if there is none.
    """
    _change_binding(asked, "unbind", "deleted", **options)


def _change_binding(
    asked: Asked,
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
    facts = asked.ask(f"{verb}{target}", headers, json.dumps(_arguments(arguments, match)).encode())
    asked.show_change(facts, f"binding from {source} to {target}", done)


def _arguments(given: tuple[str, ...], match: str | None) -> dict[str, str | None]:
    arguments: dict[str, str | None] = {} if match is None else {MATCH: match}
    for one in given:
        name, sign, value = one.partition("=")
        if not name or name in arguments:
            raise click.BadParameter(f"{one!r}: {name} is given twice" if name else f"{one!r} must be HEADER=VALUE")
        arguments[name] = value if sign else None
    return arguments


@click.group
def vhosts() -> None:
    """List, declare and delete the virtual hosts of a mesh.

    A virtual host is a prefix of names: the queue `orders` in `shop` is `/queue/shop~orders`.
    """


@list_command(vhosts, "definitions/list/vhost")
def list_vhosts(facts: dict[str, Any]) -> None:
    """List the virtual hosts, and what their names begin with."""
    names = [VHOST_DEFAULT, *(row["name"] for row in facts["definitions"])]
    show_table(["NAME", "PREFIX"], [[name, vhost_prefix(name) or "-"] for name in names])


@vhosts.command("declare")
@click.argument("name")
@change_options
def declare_vhost(name: str, asked: Asked) -> None:
    """Declare a virtual host.

    Clients may open it from then on. To declare it again changes nothing.
    """
    asked.put(f"vhost/{vhost_name(name)}", {}, "declared")


@vhosts.command("delete")
@click.argument("name")
@change_options
def delete_vhost(name: str, asked: Asked) -> None:
    """Delete a virtual host.

    Exit code 1 if there is none, or if a queue, an exchange or a binding is in it.
    """
    asked.delete(f"vhost/{vhost_name(name)}")
