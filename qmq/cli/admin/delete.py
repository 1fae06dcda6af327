"""`qmq delete`: delete a destination on all nodes. The rules are the node's (`qmq.server.admin.deletion`)."""

import json

import click

from ..client import Endpoint
from ..options import client_options, json_option
from ..output import print_json, printable


@click.command
@click.argument("destination")
@client_options
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def delete(
    destination: str,
    node: Endpoint,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete a fanout, /fanout/NAME, on all nodes of the mesh.

    Its messages and its durable subscriptions are deleted, and its subscribers are disconnected. What the node that
    --at names has not received yet stays. A message that is sent later begins a new fanout of the same name. Exit
    code 1 if it is refused: there is no such fanout, or the user may not delete.
    """
    if not destination.startswith("/"):
        raise click.UsageError(f"a destination begins with its kind: /fanout/{destination}")
    with node.connect() as client:
        headers = [("destination", f"/control/delete{destination}")]
        headers += [("dry-run", "true")] if dry_run else []
        answer = client.request("SEND", headers).head.headers
    counts = {name: json.loads(answer.get(name, "0")) for name in ("messages", "subscribers", "durable-subscriptions")}
    if as_json:
        facts = {name.replace("-", "_"): count for name, count in counts.items()}
        print_json({"destination": destination, **facts, "dry_run": dry_run})
        return
    done = "would be deleted" if dry_run else "is deleted"
    click.echo(
        printable(
            f"{destination} {done}: {counts['messages']} messages, {counts['durable-subscriptions']} durable"
            f" subscriptions; {counts['subscribers']} subscribers of this node"
        )
    )
