"""`qmq delete`: delete a destination on all nodes. The rules are the node's (`qmq.admin.verbs`)."""

import json
from collections.abc import Mapping

import click

from ..client import Endpoint, headers_of
from ..options import client_options, json_option
from ..output import counted, print_json, printable
from .request import JOB_SECONDS, check_kind, is_known, show_missing, show_unknown, taken_over

COUNTS = ("messages", "subscribers", "durable-subscriptions")


@click.command
@click.argument("destination")
@client_options
@click.option("--force", is_flag=True, help="Delete a queue although it has consumers; they stay subscribed.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def delete(destination: str, node: Endpoint, force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a queue, a fanout, or the last value of a topic, on all nodes.

    For a queue, the messages that wait are settled, and its declaration, bindings and pause are deleted. For a fanout,
    its messages and its durable subscriptions are deleted, and its subscribers are disconnected; messages that the node
    of --at has not received yet stay. For a topic, the retained message is deleted. A message that is sent later begins
    a new destination of the same name. Exit code 1 if a node is missing, or if the deletion is refused: the queue has
    consumers, there is no such destination, or the user may not delete it.
    """
    check_kind(destination, ("queue", "topic", "fanout"))
    _delete(node, destination, headers_of(force=force, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


@click.command("delete")
@click.argument("queue")
@client_options
@click.option("--if-empty", is_flag=True, help="Only if no message waits in it.")
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers; also the default without --force.")
@click.option("--force", is_flag=True, help="Delete it although it has consumers; they stay subscribed.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def delete_queue(
    queue: str, node: Endpoint, if_empty: bool, if_unused: bool, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete a queue, on all nodes.

    Its messages that wait, its declaration, its bindings and its pause are deleted. Exit code 1 if it is refused, or if
    a node is missing.
    """
    check_kind(queue)
    if if_unused and force:
        raise click.UsageError("--if-unused and --force exclude each other")
    headers = headers_of(if_empty=if_empty, force=force, dry_run=dry_run)
    _delete(node, queue, headers, dry_run=dry_run, as_json=as_json)


def _delete(node: Endpoint, destination: str, more: list[tuple[str, str]], *, dry_run: bool, as_json: bool) -> None:
    with node.connect() as client:
        client.timeout_seconds = max(client.timeout_seconds, JOB_SECONDS)
        answer = client.request("SEND", [("destination", f"/control/delete{destination}"), *more]).head.headers
    counts = {name: json.loads(answer[name]) for name in COUNTS if name in answer}
    missing = [name for name in answer.get("nodes-missing", "").split(",") if name]
    reason = answer.get("reason", "")
    if as_json:
        facts = {name.replace("-", "_"): count for name, count in counts.items()}
        facts |= {"reason": reason, "nodes_missing": missing, "known": is_known(answer)} if "reason" in answer else {}
        facts |= {"taken_over": taken_over(answer)} if taken_over(answer) else {}
        facts |= {name: json.loads(answer[name]) for name in ("declared", "bindings") if name in answer}
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
