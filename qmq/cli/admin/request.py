"""What administrative commands say of responses: verbs, bulk jobs, and changes that the whole mesh shares."""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import click

from ..client import Endpoint, ask
from ..options import check_kind as check_kind
from ..options import client_options, json_option
from ..output import Failed, print_json, printable

JOB_SECONDS = 3600.0
"""How long a command waits for a job that may settle millions of messages, unless `--patience` says otherwise."""

CLOSED: Final = (
    "qmq: these are the first users: from now on clients without login are refused, except at listeners with "
    "anonymous = true. `qmq … --data DIR` on the machine of a node needs no login"
)


def show_unknown(queue: str, facts: Mapping[str, Any]) -> None:
    """Say that a name may be misspelled, if no node has the queue. The exit code stays: what was asked for is so."""
    if facts.get("known") is False:
        click.echo(f"qmq: {printable(queue)} has no messages, consumers or definitions: is the name right?", err=True)


def show_missing(facts: Mapping[str, Any]) -> None:
    """Say why messages were left, which nodes are missing, and which nodes serve the messages of others, and have done
    it for them. Raises SystemExit 1 if messages were left or nodes are missing.
    """
    reason, missing = facts.get("reason"), facts.get("nodes_missing")
    for owner, server in facts.get("taken_over", {}).items():
        click.echo(
            printable(f"qmq: {owner} does not respond; {server} serves its messages and did it for them"), err=True
        )
    if reason:
        click.echo(f"qmq: not all of them: {printable(reason)}", err=True)
    if missing:
        click.echo(f"qmq: these nodes did not do it: {printable(', '.join(missing))}", err=True)
    if reason or missing:
        raise SystemExit(1)


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
