"""`qmq vhosts`: virtual hosts of AMQP clients. The rules are in docs/amqp.md."""

import click

from ...routing_names import VHOST_DEFAULT, vhost_name, vhost_prefix
from ..client import Endpoint
from ..options import client_options, json_option
from ..output import print_json, show_table
from .change import DefinitionChange, change_options
from .request import ask


@click.group
def vhosts() -> None:
    """List, declare and delete the virtual hosts of a mesh.

    A virtual host is a prefix of names: the queue `orders` in `shop` is `/queue/shop~orders`.
    """


@vhosts.command("list")
@client_options
@json_option
def list_vhosts(node: Endpoint, as_json: bool) -> None:
    """List the virtual hosts, and what their names begin with."""
    facts = ask(node, "definitions/list/vhost")
    if as_json:
        print_json(facts)
        return
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
