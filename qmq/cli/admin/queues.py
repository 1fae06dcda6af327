"""`qmq queues`: list, declare and delete queues. The rules are in docs/queues.md."""

import json
from collections.abc import Callable
from typing import Any

import click

from qmq.verbs.queues import Declare

from ..options import check_kind, together
from ..output import print_json, printable
from .delete import delete_queue
from .listing import list_queues
from .request import check_quorum, read_values
from .verb import Asked, verb_options


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
@rules
@verb_options(Declare, "force")
def declare(queue: str, values: tuple[str, ...], asked: Asked, memory_only: bool, **named: Any) -> None:
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
    asked.about = queue
    facts = asked.facts(body=json.dumps({**read_values(values), **said}).encode())
    if asked.as_json:
        print_json(facts)
    else:
        is_new = bool(facts.get("changed"))
        done = "would be declared" if asked.is_dry_run and is_new else "is declared" if is_new else "was so before"
        if asked.given["passive"]:
            value = " ".join(f"{key}={json.dumps(one)}" for key, one in facts.get("value", {}).items())
            done = f"is declared{': ' if value else ''}{value}"
        click.echo(printable(f"{queue} {done}"))
    check_quorum(facts)
