"""`qmq peek`, `qmq get` and `qmq trace`: messages, and what has become of one. Nothing is consumed."""

from typing import Any

import click

from qmq.verbs.messages import Get, Peek, Trace

from ..output import print_json, printable, utc_text
from .request import show_unknown
from .verb import Asked, verb_command

SHOWN = ("at_us", "event", "node")
"""Of an event, what its line begins with."""


@verb_command(Peek)
def peek(asked: Asked) -> None:
    facts, destination = asked.facts(), asked.about
    _show(facts, asked.as_json)
    show_unknown(destination, facts)
    if facts.get("more") and not asked.as_json:
        following = asked.given["offset"] + len(facts.get("rows", []))
        click.echo(f"qmq: {destination} has more messages; see --offset {following}", err=True)


@verb_command(Get)
def get(asked: Asked) -> None:
    _show(asked.facts(), asked.as_json)


@verb_command(Trace)
def trace(asked: Asked) -> None:
    facts = asked.facts()
    if asked.as_json:
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
