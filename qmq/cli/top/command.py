"""`qmq top`: the command."""

import shutil
import sys
import time

import click

from ..client import CommandClient, Endpoint
from ..options import Number, client_options
from ..output import Failed
from . import keyboard
from .samples import Sample, take_sample
from .screen import draw
from .view import View

SIZE = (80, 24)
"""Columns and lines, where the output is no terminal."""


@click.command
@client_options
@click.option(
    "--every",
    "period",
    type=Number(min=0.5, max=60),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="Time between two samples.",
)
@click.option("--once", is_flag=True, help="Print one screen with rates, and end; also if the output is no terminal.")
def top(node: Endpoint, period: float, once: bool) -> None:
    """Show a mesh live: nodes, links, rates, conditions, and the deepest queues.

    Keys change the order of the queues and open one, which shows its consumers. Asks one node about all. If that one
    ends, the next of --at is asked. Exit code 1 if none responds at the start.
    """
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        with node.connect() as client:
            before = take_sample(client, View().sort, None)
            time.sleep(period)
            now = take_sample(client, View().sort, None)
        lines = draw(now, before, View(selected=-1), shutil.get_terminal_size(SIZE).columns, SIZE[1] * 2)
        click.echo("\n".join(lines[:-1]).rstrip())
        return
    client = node.connect()
    with keyboard.keys():
        try:
            _run(node, client, period)
        except KeyboardInterrupt:
            pass


def _run(node: Endpoint, client: CommandClient, period: float) -> None:
    """Sample, draw, obey keys, until `q`. A node that ends is replaced by the next one that responds."""
    view = View()
    before: Sample | None = None
    now = take_sample(client, view.sort, None)
    due = now.at_seconds + period
    problem = ""
    while True:
        columns, height = shutil.get_terminal_size(SIZE)
        lines = draw(now, before, view, columns, height)
        keyboard.show([*lines[:-1], problem[:columns] or lines[-1]])
        key = keyboard.next_key(due - time.monotonic())
        if key == "q":
            client.close()
            return
        was, view = view, view if key is None else view.after(key, [str(row.get("destination")) for row in now.queues])
        if (view.sort, view.opened) == (was.sort, was.opened) and (key is not None or view.is_paused):
            due = max(due, time.monotonic() + (period if key is None else 0.0))
            continue
        try:
            before, now, problem = now, take_sample(client, view.sort, view.opened), ""
        except Failed as failure:
            problem = failure.message
            client.close()
            try:
                client = node.connect()
            except Failed as unreachable:
                problem = unreachable.message
        due = time.monotonic() + period
