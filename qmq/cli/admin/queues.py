"""`qmq queues`: list, declare and delete queues. The rules are in docs/queues.md."""

import json
from collections.abc import Callable
from typing import Any

import click

from ..client import Endpoint, headers_of
from ..listing import list_queues
from ..options import client_options, json_option, together
from ..output import print_json, printable
from .delete import delete_queue
from .request import ask, check_kind, check_quorum, read_values


class QueueGroup(click.Group):
    """A group that lists when no command is named: `qmq queues jobs.` is `qmq queues list jobs.`"""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_help and (not args or args[0] not in self.commands):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=QueueGroup)
def queues() -> None:
    """List, declare and delete queues.

    Without a command, `list`. A queue needs no declaration: it exists from its first use on.
    """


queues.add_command(list_queues)
queues.add_command(delete_queue)

# The options of a declaration that have a key of their own.
rules: Callable[..., Any] = together(
    click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="Most messages; 0: no bound."),
    click.option("--max-bytes", metavar="SIZE", help="Most bytes of bodies, such as 64MiB; 0: no bound."),
    click.option("--overflow", help="At a bound: refuse, drop-oldest or drop-newest."),
    click.option("--ttl", "ttl_seconds", type=float, metavar="SECONDS", help="Messages expire after so long."),
    click.option("--dead-letter", metavar="QUEUE", help="Where dead letters go; empty: they are dropped."),
    click.option("--priority", type=int, metavar="N", help="Of messages that name none, 0 to 9."),
    click.option("--delivery-limit", type=int, metavar="N", help="Failed deliveries until a message is dead."),
    click.option("--ack-timeout", "ack_timeout_seconds", type=float, metavar="SECONDS", help="For an ACK."),
    click.option("--exclusive", is_flag=True, help="One consumer at a time gets messages, in the whole mesh."),
    click.option("--memory-only", is_flag=True, help="Messages are lost when their node stops."),
    click.option("--auto-delete", is_flag=True, help="Delete it when its last consumer has left."),
    click.option("--expires", "expires_seconds", type=float, metavar="SECONDS", help="Delete it when unused so long."),
)


@queues.command("declare")
@click.argument("queue")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@client_options
@rules
@click.option("--replace", is_flag=True, help="Replace a declaration with other values.")
@click.option("--passive", is_flag=True, help="Declare nothing; exit code 1 if the queue is not declared.")
@click.option("--quorum", is_flag=True, help="Wait until a majority of the nodes has the change.")
@click.option("--dry-run", is_flag=True, help="Check everything, and change nothing.")
@json_option
def declare(
    queue: str,
    values: tuple[str, ...],
    node: Endpoint,
    replace: bool,
    passive: bool,
    quorum: bool,
    dry_run: bool,
    as_json: bool,
    memory_only: bool,
    **named: Any,
) -> None:
    """Declare a queue, on all nodes.

    QUEUE is /queue/NAME. KEY=VALUE sets a key of policies that has no option here. Keys that are not given have the
    values of the policies. To declare the queue again with the same values changes nothing. Exit code 1 if it is
    declared with other values, or if a value is not allowed.
    """
    check_kind(queue)
    # A flag that is not given sets nothing.
    said = {key: value for key, value in named.items() if value is not None and value is not False}
    if memory_only:
        said["durable"] = False
    if "exclusive_to_connection" in read_values(values):
        raise click.UsageError(
            "exclusive_to_connection: the connection of this command ends with it, and so would QUEUE"
        )
    twice = sorted(said.keys() & read_values(values).keys())
    if twice:
        raise click.UsageError(f"{twice[0]} is given twice")
    headers = headers_of(quorum=quorum, dry_run=dry_run, replace=replace, passive=passive)
    facts = ask(node, f"declare{queue}", headers, json.dumps({**read_values(values), **said}).encode())
    if as_json:
        print_json(facts)
    else:
        is_new = bool(facts.get("changed"))
        done = "would be declared" if dry_run and is_new else "is declared" if is_new else "was so before"
        if passive:
            value = " ".join(f"{key}={json.dumps(one)}" for key, one in facts.get("value", {}).items())
            done = f"is declared{': ' if value else ''}{value}"
        click.echo(printable(f"{queue} {done}"))
    check_quorum(facts)
