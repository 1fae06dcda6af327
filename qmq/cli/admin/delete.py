"""`qmq delete`: delete a destination on all nodes. The rules are the node's (`qmq.server.admin.verbs`)."""

import json

import click

from ..client import Endpoint
from ..options import client_options, json_option
from ..output import counted, print_json, printable
from .request import JOB_SECONDS, check_kind, show_missing

COUNTS = ("messages", "subscribers", "durable-subscriptions")


@click.command
@click.argument("destination")
@client_options
@click.option("--force", is_flag=True, help="Delete a queue although it has consumers; they stay subscribed.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def delete(destination: str, node: Endpoint, force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a queue, a fanout, or the last value of a topic, on all nodes.

    Of a queue, the messages that wait are settled, and its name is forgotten. Of a fanout, its messages and its durable
    subscriptions are deleted, and its subscribers are disconnected; what the node that --at names has not received yet
    stays. Of a topic, the retained message is deleted. A message that is sent later begins a new destination of the
    same name. Exit code 1 if it is refused: a queue has consumers, there is no such destination, or the user may not
    delete; or if a node is missing.
    """
    check_kind(destination, ("queue", "topic", "fanout"))
    with node.connect() as client:
        client.timeout_seconds = max(client.timeout_seconds, JOB_SECONDS)
        headers = [("destination", f"/control/delete{destination}")]
        headers += [("force", "true")] if force else []
        headers += [("dry-run", "true")] if dry_run else []
        answer = client.request("SEND", headers).head.headers
    counts = {name: json.loads(answer[name]) for name in COUNTS if name in answer}
    paused = answer.get("paused", "")
    missing = [name for name in answer.get("nodes-missing", "").split(",") if name]
    reason = answer.get("reason", "")
    if as_json:
        facts = {name.replace("-", "_"): count for name, count in counts.items()}
        facts |= {"reason": reason, "nodes_missing": missing} if "reason" in answer else {}
        facts |= {"paused": paused} if paused else {}
        print_json({"destination": destination, **facts, "dry_run": dry_run})
    else:
        done = "would be deleted" if dry_run else "is deleted"
        if missing and not dry_run:
            done += f" on {answer.get('nodes-answered')} of {answer.get('nodes-asked')} nodes"
        more = ""
        if "subscribers" in counts:
            more = f", {counted(counts['durable-subscriptions'], 'durable subscription')}"
            more += f"; {counted(counts['subscribers'], 'subscriber')} of this node"
        click.echo(printable(f"{destination} {done}: {counted(counts.get('messages', 0), 'message')}{more}"))
        if missing and not dry_run:
            click.echo(printable(f"what {', '.join(missing)} has stays: run the command again"))
        if paused:
            click.echo(printable(f"{destination} stays paused ({paused}); see `qmq resume`"))
    show_missing(answer)
