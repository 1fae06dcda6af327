"""`qmq delete`: delete a destination on all nodes. The rules are the node's (`qmq.admin.verbs`)."""

import json
from collections.abc import Mapping
from typing import Final

import click

from qmq.verbs.queues import Delete

from ..output import counted, print_json, printable
from .request import is_known, show_missing, show_unknown, taken_over
from .verb import Asked, verb_command

COUNTS = ("messages", "subscribers", "durable-subscriptions")


def _show(asked: Asked, if_unused: bool = False) -> None:
    if if_unused and asked.given["force"]:
        raise click.UsageError("--if-unused and --force exclude each other")
    destination, dry_run, answer = asked.about, asked.is_dry_run, asked.receipt()
    counts = {name: json.loads(answer[name]) for name in COUNTS if name in answer}
    missing = [name for name in answer.get("nodes-missing", "").split(",") if name]
    reason = answer.get("reason", "")
    if asked.as_json:
        facts = {name.replace("-", "_"): count for name, count in counts.items()}
        facts |= {"reason": reason, "nodes_missing": missing, "known": is_known(answer)} if "reason" in answer else {}
        facts |= {"taken_over": taken_over(answer)} if taken_over(answer) else {}
        facts |= {name: json.loads(answer[name]) for name in ("declared", "bindings", "changed") if name in answer}
        print_json({"destination": destination, **facts, "dry_run": dry_run})
    else:
        done = "would be deleted" if dry_run else "is deleted"
        if missing and not dry_run:
            done += f" on {answer.get('nodes-answered')} of {answer.get('nodes-asked')} nodes"
        of_fanout = ""
        if "subscribers" in counts:
            of_fanout = f", {counted(counts['durable-subscriptions'], 'durable subscription')}"
            of_fanout += f"; {counted(counts['subscribers'], 'subscriber')} of this node"
        messages = counted(counts.get("messages", 0), "message")
        click.echo(printable(f"{destination} {done}: {messages}{of_fanout}{_defined(answer)}"))
        if missing and not dry_run:
            later = "is deleted when it is back" if answer.get("declared") == "true" else "stays: run the command again"
            click.echo(printable(f"what {', '.join(missing)} has {later}"))
    show_unknown(destination, is_known=is_known(answer))
    show_missing(answer)


def _defined(answer: Mapping[str, str]) -> str:
    """What was defined of a queue, in words."""
    bindings = json.loads(answer.get("bindings", "0"))
    declaration = ", its declaration" if answer.get("declared") == "true" else ""
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
