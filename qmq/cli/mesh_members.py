"""`qmq mesh check` and `retire`: changing who is in a mesh. The rules are `qmq.config.peers_change` and the node's."""

import json
from pathlib import Path

import click

from ..config import Address, check_change, check_together, load_node, load_peers, peers_difference
from ..errors import ConfigError
from .client import Client
from .options import FILE, client_options, json_option
from .output import print_json, printable


@click.command
@click.argument("peers", type=FILE)
@click.option("--was", type=FILE, help="The peers file that the nodes go by now.")
def check(peers: Path, was: Path | None) -> None:
    """Check a peers file, and whether running nodes could take it up.

    With --was, prints what would change and refuses what a node would refuse at SIGHUP, except that only a running node
    knows who is retired: a node that is left out is named. Exit code 2 when there is a mistake.
    """
    new = load_peers(peers)
    mistakes: list[str] = []
    for peer in new.nodes if new.is_loopback else ():
        found = check_together(load_node(None, {"name": peer.name}), new, str(peers))
        mistakes += [mistake for mistake in found if mistake not in mistakes]
    if was is not None:
        old = load_peers(was)
        stays = next((peer.name for peer in old.nodes if new.peer(peer.name)), "")
        left_out = {peer.name for peer in old.nodes} - {peer.name for peer in new.nodes}
        mistakes += check_change(old, new, stays, left_out)
        for change in peers_difference(old, new):
            click.echo(printable(f"{change}  [needs a restart]" if change.needs_restart else str(change)))
        for name in sorted(left_out):
            click.echo(f"{name} is left out: it must have been retired (`qmq mesh retire {name}`)")
    if mistakes:
        raise ConfigError(mistakes)
    click.echo(f"{peers}: ok")


@click.command
@click.argument("node")
@client_options
@click.option("--force", is_flag=True, help="Also while another node can reach it; it stops as soon as it hears of it.")
@json_option
def retire(
    node: str, at: Address, login: str | None, passcode: str | None, patience: float, force: bool, as_json: bool
) -> None:
    """Let NODE leave the mesh for good.

    Stop it first. The node that --at names adopts the queue messages that it left and serves them from now on; the
    others count it no more. Its name and its disk must not come back: a later return is refused. Then take it out of
    the peers file. Exit code 1 when it is refused: the node can still be reached, or too few of the others can.
    """
    with Client(at, login=login, passcode=passcode, timeout_seconds=patience) as client:
        headers = [("destination", f"/control/retire/{node}"), *([("force", "true")] if force else ())]
        said = client.request("SEND", headers).head.headers
    facts = {name: said.get(name, "") for name in ("retired", "adopter")}
    vectors = {name: json.loads(said.get(name, "{}")) for name in ("sealed", "still-on-the-way")}
    if as_json:
        print_json({**facts, **vectors})
        return
    click.echo(printable(f"{facts['retired']} is retired; {facts['adopter']} adopts the queue messages that it left"))
    for origin, last in vectors["still-on-the-way"].items():
        click.echo(printable(f"records of {origin} up to {last} are still on their way to {facts['adopter']}"))
