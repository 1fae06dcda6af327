"""`qmq delete`: delete a destination on all nodes. The rules are the node's (`qmq.admin.verbs`)."""

from collections.abc import Mapping
from typing import Any, Final

import click

from qmq.verbs.queues import Delete

from ..output import counted, print_json, printable
from .request import show_missing, show_unknown
from .verb import Asked, verb_command

SHOWN: Final = (
    *("messages", "subscribers", "durable_subscriptions"),
    *("reason", "taken_over", "declared", "bindings", "changed"),
)
"""Facts of the response that --json prints."""


def _show(asked: Asked, if_unused: bool = False) -> None:
    if if_unused and asked.given["force"]:
        raise click.UsageError("--if-unused and --force exclude each other")
    destination, dry_run, facts = asked.about, asked.is_dry_run, asked.outcome()
    missing = facts.get("nodes_missing", [])
    if asked.as_json:
        shown: dict[str, Any] = {name: facts[name] for name in SHOWN if name in facts}
        if "reason" in facts:
            shown |= {"nodes_missing": missing, "known": facts.get("known", True)}
        print_json({"destination": destination, **shown, "dry_run": dry_run})
    else:
        done = "would be deleted" if dry_run else "is deleted"
        if missing and not dry_run:
            done += f" on {facts.get('nodes_answered')} of {facts.get('nodes_asked')} nodes"
        of_fanout = ""
        if "subscribers" in facts:
            of_fanout = f", {counted(facts['durable_subscriptions'], 'durable subscription')}"
            of_fanout += f"; {counted(facts['subscribers'], 'subscriber')} of this node"
        messages = counted(facts.get("messages", 0), "message")
        click.echo(printable(f"{destination} {done}: {messages}{of_fanout}{_defined(facts)}"))
        if missing and not dry_run:
            later = "is deleted when it is back" if facts.get("declared") else "stays: run the command again"
            click.echo(printable(f"what {', '.join(missing)} has {later}"))
    show_unknown(destination, facts)
    show_missing(facts)


def _defined(facts: Mapping[str, Any]) -> str:
    """What was defined of a queue, in words."""
    bindings = facts.get("bindings", 0)
    declaration = ", its declaration" if facts.get("declared") else ""
    return declaration + (f", {counted(bindings, 'binding')}" if bindings else "")


QUEUE_HELP: Final = """Delete a queue, on all nodes.

Its messages that wait, its declaration, its bindings and its pause are deleted. Exit code 1 if it is refused, or if
a node is missing.
"""

if_unused_option = click.option(
    "--if-unused", is_flag=True, help="Only if it has no consumers; also the default without --force."
)

delete = verb_command(Delete, "if_empty", "if_unused", "quorum", kinds=("queue", "topic", "fanout"))(_show)
delete_queue = verb_command(Delete, "if_unused", "quorum", help=QUEUE_HELP, kinds=("queue",), more=if_unused_option)(
    _show
)
