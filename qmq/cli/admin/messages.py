"""`qmq peek`, `qmq get` and `qmq trace`: messages, and what has become of one. Nothing is consumed."""

from typing import Any

import click

from ..client import Endpoint, headers_of
from ..options import client_options, json_option
from ..output import print_json, printable, utc_text
from .request import ask, check_kind, show_unknown

PEEK_MAX = 1000
SHOWN = ("at_us", "event", "node")
"""Of an event, what its line begins with."""


@click.command
@click.argument("destination")
@client_options
@click.option(
    "--count", type=click.IntRange(1, PEEK_MAX), default=10, show_default=True, metavar="N", help="At most so many."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Leave out the first N messages.")
@json_option
def peek(destination: str, node: Endpoint, count: int, offset: int, as_json: bool) -> None:
    """Show messages of a destination, with headers and bodies.

    For a queue, shows the first messages of all nodes in the order of delivery, including those in flight. For a
    fanout, shows the oldest that are kept. For a topic, shows the retained message.
    """
    check_kind(destination, ("queue", "topic", "fanout"))
    facts = ask(node, f"peek{destination}", headers_of(count=count, offset=offset or None))
    _show(facts, as_json)
    show_unknown(destination, is_known=facts.get("known") is not False)
    if facts.get("more") and not as_json:
        following = offset + len(facts.get("rows", []))
        click.echo(f"qmq: {destination} has more messages; see --offset {following}", err=True)


@click.command
@click.argument("message_id")
@client_options
@json_option
def get(message_id: str, node: Endpoint, as_json: bool) -> None:
    """Show one message, by its message-id.

    A settled message is found as long as the journal of any node has it. Exit code 1 if no node that answers has the
    message any more (`unknown-message`).
    """
    _show(ask(node, f"get/{message_id}", []), as_json)


@click.command
@click.argument("message_id")
@client_options
@json_option
def trace(message_id: str, node: Endpoint, as_json: bool) -> None:
    """Show what has become of a message.

    Shows where it was accepted, copied, delivered and settled, and by which client. Searches the journal of the node;
    if that does not reach back far enough, also those of the other nodes. All nodes are asked what they have of the
    message now. Names what is not known any more. Exit code 1 if nothing is known.
    """
    facts = ask(node, f"trace/{message_id}", [])
    if as_json:
        print_json(facts)
    else:
        for event in facts.get("events", []):
            said = {name: value for name, value in event.items() if name not in (*SHOWN, "by")}
            said |= {"by": _connections(event["by"])} if event.get("by") else {}
            more = " ".join(f"{name}={value}" for name, value in said.items())
            line = f"{utc_text(event.get('at_us', 0))}  {event.get('event')} on {event.get('node')}  {more}"
            click.echo(printable(line).rstrip())
        for one in facts.get("in_flight", []):
            click.echo(printable(f"now  with {one.get('connection')} {one.get('user') or '-'} {one.get('address')}"))
        if facts.get("copies") or facts.get("events"):
            copies = ", ".join(facts.get("copies", [])) or "no node that answered"
            click.echo(printable(f"now  on the disks of {copies}"))
        for text in facts.get("unknown", []):
            click.echo(printable(f"not known: {text}"))
    if not facts.get("events") and not facts.get("messages"):
        raise SystemExit(1)


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for row in facts.get("rows", []):
        click.echo(printable(f"{row.get('message_id')}  {utc_text(row.get('at_us', 0))}  {row.get('state')}"))
        for name, value in row.get("headers", {}).items():
            click.echo(printable(f"  {name}: {value}"))
        body = row["body"] if "body" in row else f"base64 {row.get('body_base64', '')}"
        if "body" not in row and "body_base64" not in row:
            body = f"{row.get('body_bytes')} bytes: ask {row.get('node')} for the body"
        click.echo(f"  {printable(body)}\n")


def _connections(by: Any) -> str:
    """`a/7 ann 10.0.0.1`; of several, one of which it was, with `or` between."""
    rows = [one for one in by if isinstance(one, dict)] if isinstance(by, list) else []
    return " or ".join(f"{one.get('connection')} {one.get('user') or '-'} {one.get('address')}" for one in rows)
