"""`qmq drain` and `qmq undrain`: take clients away from a node before it is stopped, and let them in again."""

import click

from qmq.verbs.nodes import Drain, Undrain

from ..output import print_json, printable
from .verb import Asked, verb_command


@verb_command(Drain)
def drain(asked: Asked) -> None:
    if _show(asked) == "draining" and not asked.is_dry_run:
        raise SystemExit(1)


@verb_command(Undrain)
def undrain(asked: Asked) -> None:
    _show(asked)


def _show(asked: Asked) -> str:
    """Print how far the node is; its state."""
    facts = asked.outcome()
    node, state, connections = (facts.get(name) for name in ("drained_node", "state", "connections"))
    if asked.as_json:
        print_json({"node": node, "state": state, "connections": connections})
    else:
        click.echo(printable(f"{node} is {state}; {connections} connections"))
    return str(state)
