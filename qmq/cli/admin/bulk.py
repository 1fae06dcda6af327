"""`qmq purge`, `qmq move` and `qmq redrive`: settle the messages of a queue that wait."""

from typing import Any

import click

from ..client import Endpoint
from ..options import client_options, json_option
from .request import check_kind, job_options, run_job


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
