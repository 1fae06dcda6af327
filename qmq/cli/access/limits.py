"""`qmq limits`: what users may use, on all nodes. The rules are in docs/limits.md."""

from typing import Any

import click

from ..admin.definitions import read_values, show_rows
from ..admin.request import DefinitionChange, change_options, list_command


@click.group
def limits() -> None:
    """List, set and delete the limits of users and groups.

    SUBJECT is `user:NAME`, `group:NAME`, or NAME alone for a user. `*` is each user that logs in, and `anonymous` all
    clients without login together. A change applies on all nodes, without a restart.
    """


@list_command(limits, "definitions/list/limit")
def list_limits(facts: dict[str, Any]) -> None:
    """List the limits of users and groups."""
    rows = [
        [one["name"], " ".join(f"{key}={value}" for key, value in one["value"].items())] for one in facts["definitions"]
    ]
    show_rows(facts, "limit", ["SUBJECT", "LIMITS"], rows)


@limits.command("set")
@click.argument("subject")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@change_options
def set_limit(subject: str, values: tuple[str, ...], change: DefinitionChange) -> None:
    """Set the limits of a user, of each user of a group, or of each user (`*`).

    KEY is connections_max, subscriptions_max, messages_per_second_max, bytes_per_second_max, queues_max or
    held_bytes_max. 0 is no limit. Keys that are not given set no limit. Exit code 1 if a limit is not allowed; then
    nothing has changed.
    """
    change.put(f"limit/{_name(subject)}", read_values(values))


@limits.command("delete")
@click.argument("subject")
@change_options
def delete_limit(subject: str, change: DefinitionChange) -> None:
    """Delete the limits of exactly this SUBJECT.

    Exit code 1 if there are none.
    """
    change.delete(f"limit/{_name(subject)}")


def _name(subject: str) -> str:
    """The name of the definition."""
    return subject if subject.startswith(("user:", "group:")) else f"user:{subject}"
