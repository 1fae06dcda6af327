"""`qmq purge`, `move` and `redrive` settle messages of a queue that wait; `pause` and `resume` hold a queue back."""

from collections.abc import Callable
from typing import Any

import click

from ..client import Endpoint, headers_of
from ..options import client_options, json_option, together
from ..output import print_json, printable
from .request import ask, check_kind, job_options, run_job


@click.command
@click.argument("queue")
@client_options
@job_options
@json_option
def purge(queue: str, node: Endpoint, as_json: bool, **options: Any) -> None:
    """Settle the messages of a queue that wait, on all nodes.

    Messages in flight stay with their consumers, and messages that are sent meanwhile stay in the queue. Exit code 1 if
    a node is missing or the request is refused; messages that were settled by then stay settled.
    """
    check_kind(queue)
    run_job(node, "purge", queue, as_json=as_json, **options)


@click.command
@click.argument("queue")
@click.argument("target")
@client_options
@job_options
@json_option
def move(queue: str, target: str, node: Endpoint, as_json: bool, **options: Any) -> None:
    """Move the messages of a queue that wait to another queue.

    The messages of each node keep their order. Each is settled and accepted in one record: after a crash it is in
    exactly one of the two queues. Exit code 1 if a node is missing, or if messages are left, for example because TARGET
    is full.
    """
    check_kind(queue)
    check_kind(target)
    run_job(node, "move", queue, as_json=as_json, to=target, **options)


@click.command
@click.argument("queue")
@client_options
@job_options
@json_option
def redrive(queue: str, node: Endpoint, as_json: bool, **options: Any) -> None:
    """Move dead letters back to the queues they came from.

    QUEUE is the dead letter queue. Messages in it that are no dead letters stay. Exit code 1 if a node is missing or
    messages are left.
    """
    check_kind(queue)
    run_job(node, "redrive", queue, as_json=as_json, **options)


part_options: Callable[..., Any] = together(
    click.option("--delivery", is_flag=True, help="Only the delivery to consumers."),
    click.option("--acceptance", is_flag=True, help="Only the acceptance of SENDs."),
    click.option("--dry-run", is_flag=True, help="Show what would be paused then, and change nothing."),
    json_option,
)


@click.command
@click.argument("queue")
@client_options
@part_options
def pause(queue: str, node: Endpoint, **options: bool) -> None:
    """Pause the delivery or the acceptance of a queue, on all nodes.

    Without an option the delivery is paused: consumers stay subscribed and get nothing more. With --acceptance a SEND
    is refused with `queue-paused`. A pause survives restarts.
    """
    _ask(node, "pause", queue, **options)


@click.command
@click.argument("queue")
@client_options
@part_options
def resume(queue: str, node: Endpoint, **options: bool) -> None:
    """Resume a paused queue, on all nodes.

    Without an option both parts are resumed. It is no error if the queue is not paused.
    """
    _ask(node, "resume", queue, **options)


def _ask(
    node: Endpoint, verb: str, queue: str, *, delivery: bool, acceptance: bool, dry_run: bool, as_json: bool
) -> None:
    check_kind(queue)
    part = "both" if delivery and acceptance else "delivery" if delivery else "acceptance" if acceptance else None
    facts = ask(node, f"{verb}{queue}", headers_of(part=part, dry_run=dry_run))
    if as_json:
        print_json(facts)
        return
    paused = " and ".join([name for name in ("delivery", "acceptance") if facts.get(name)])
    would = "would be" if dry_run else "are" if " and " in paused else "is"
    done = f"{paused} {would} paused" if paused else "would be resumed" if dry_run else "resumed"
    click.echo(printable(f"{queue}: {done}"))
