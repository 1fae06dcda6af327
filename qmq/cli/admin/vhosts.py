"""`qmq vhosts`: virtual hosts of AMQP clients. The rules are in docs/amqp.md."""

from typing import Any

import click

from ...routing_names import VHOST_DEFAULT, vhost_name, vhost_prefix
from ..output import show_table
from .request import DefinitionChange, change_options, list_command


@click.group
def vhosts() -> None:
    """List, declare and delete the virtual hosts of a mesh.

    A virtual host is a prefix of names: the queue `orders` in `shop` is `/queue/shop~orders`.
    """


@list_command(vhosts, "definitions/list/vhost")
def list_vhosts(facts: dict[str, Any]) -> None:
    """List the virtual hosts, and what their names begin with."""
    names = [VHOST_DEFAULT, *(row["name"] for row in facts["definitions"])]
    show_table(["NAME", "PREFIX"], [[name, vhost_prefix(name) or "-"] for name in names])


@vhosts.command
@click.argument("name")
@change_options
def declare(name: str, change: DefinitionChange) -> None:
    """Declare a virtual host.

    Clients may open it from then on. To declare it again changes nothing.
    """
    change.put(f"vhost/{vhost_name(name)}", {}, "declared")


@vhosts.command
@click.argument("name")
@change_options
def delete(name: str, change: DefinitionChange) -> None:
    """Delete a virtual host.

    Exit code 1 if there is none, or if a queue, an exchange or a binding is in it.
    """
    change.delete(f"vhost/{vhost_name(name)}")
