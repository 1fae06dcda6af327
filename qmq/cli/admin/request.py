"""Requests of administrative commands and their responses: verbs, bulk jobs, and changes that the whole mesh shares."""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import click

from ..client import CommandClient, Endpoint, Headers
from ..options import check_kind as check_kind
from ..options import client_options, json_option
from ..output import Failed, print_json, printable

ANSWERS = "/temp-queue/answers"
JOB_SECONDS = 3600.0
"""How long a command waits for a job that may settle millions of messages, unless `--patience` says otherwise."""

CLOSED: Final = (
    "qmq: these are the first users: from now on clients without login are refused, except at listeners with "
    "anonymous = true. `qmq … --data DIR` on the machine of a node needs no login"
)


def taken_over(answer: Mapping[str, str]) -> dict[str, str]:
    """Nodes that did not respond → the node that serves the messages of each, and has done it for them."""
    found = json.loads(answer.get("taken-over", "{}"))
    return found if isinstance(found, dict) else {}


def is_known(answer: Mapping[str, str]) -> bool:
    """Whether a node has the queue of a request."""
    return answer.get("known") != "false"


def show_unknown(queue: str, *, is_known: bool) -> None:
    """Say that a name may be misspelled. The exit code stays: what was asked for is so."""
    if not is_known:
        click.echo(f"qmq: {printable(queue)} has no messages, consumers or definitions: is the name right?", err=True)


def show_missing(answer: Mapping[str, str]) -> None:
    """Say why messages were left, and which nodes are missing. Raises SystemExit 1 if there is either."""
    reason, missing = answer.get("reason", ""), answer.get("nodes-missing", "")
    for owner, server in taken_over(answer).items():
        click.echo(
            printable(f"qmq: {owner} does not respond; {server} serves its messages and did it for them"), err=True
        )
    if reason:
        click.echo(f"qmq: not all of them: {printable(reason)}", err=True)
    if missing:
        click.echo(f"qmq: these nodes did not do it: {printable(missing.replace(',', ', '))}", err=True)
    if reason or missing:
        raise SystemExit(1)


def ask(node: Endpoint, destination: str, headers: Headers = (), body: bytes = b"") -> dict[str, Any]:
    """The JSON response to a control request. Raises Failed or ServerError."""
    with node.connect() as client:
        return ask_over(client, destination, headers, body)


def ask_over(client: CommandClient, destination: str, headers: Headers = (), body: bytes = b"") -> dict[str, Any]:
    """The same over a connection, which an ERROR of the node ends."""
    asked = [("destination", f"/control/{destination}"), ("reply-to", ANSWERS), *headers]
    client.write(client.frame("SEND", asked, body))
    frame = client.receive(client.timeout_seconds)
    if frame is None:
        raise Failed(f"{client.address}: no answer within {client.timeout_seconds:g} s")
    try:
        facts = json.loads(frame.body)
    except ValueError as error:
        raise Failed(f"{client.address}: sends no JSON; is it a QMQ node?") from error
    if not isinstance(facts, dict):
        raise Failed(f"{client.address}: sends no facts; is it a QMQ node?")
    return facts


def list_command(group: click.Group, request: str) -> Callable[[Callable[[dict[str, Any]], None]], click.Command]:
    """Decorates what prints the facts that a node responds to `request`: as `list` of `group`, or as JSON."""

    def decorate(show: Callable[[dict[str, Any]], None]) -> click.Command:
        @wraps(show)
        def listed(node: Endpoint, as_json: bool) -> None:
            (print_json if as_json else show)(ask(node, request))

        return group.command("list")(client_options(json_option(listed)))

    return decorate


def show_left_behind(facts: Mapping[str, Any]) -> None:
    """Name what a user has declared with a right that was taken away: it goes on."""
    for line in facts.get("left_behind", ()):
        click.echo(printable(f"stays: {line}"))


def check_quorum(facts: Mapping[str, Any]) -> None:
    """Raises Failed when a majority was asked for and did not answer in time."""
    if facts.get("quorum") is False:
        raise Failed("no majority has the change yet; it stands, and spreads when the other nodes can be reached")


def warn_of_closing(dry_run: bool) -> None:
    """Say what the first users of a mesh mean for its other clients."""
    click.echo(CLOSED.replace("from now on", "then") if dry_run else CLOSED, err=True)


def read_values(given: tuple[str, ...]) -> dict[str, Any]:
    """What `KEY=VALUE...` says; a value is JSON, or text."""
    values: dict[str, Any] = {}
    for one in given:
        key, sign, text = one.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{one!r} must be KEY=VALUE")
        if key in values:
            raise click.BadParameter(f"{key} is given twice")
        try:
            values[key] = json.loads(text)
        except (ValueError, RecursionError):
            values[key] = text
    return values
