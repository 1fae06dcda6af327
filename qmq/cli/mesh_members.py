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
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@client_options
@click.option("--force", is_flag=True, help="Also while another node can reach it; it stops as soon as it hears of it.")
@click.option(
    "--majority-lost",
    is_flag=True,
    help="Too few nodes are left to decide: NODE... names all that are gone, and none of them comes back.",
)
@json_option
def retire(
    nodes: tuple[str, ...],
    at: Address,
    login: str | None,
    passcode: str | None,
    patience: float,
    force: bool,
    majority_lost: bool,
    as_json: bool,
) -> None:
    """Let NODE leave the mesh for good; several only with --majority-lost.

    Stop it first. The node that --at names adopts the queue messages that it left and serves them from now on; the
    others count it no more. Its name and its disk must not come back: a later return is refused. Then take it out of
    the peers file. Exit code 1 when it is refused: the node can still be reached, or too few of the others can.
    """
    if majority_lost and force:
        raise click.UsageError("--majority-lost is for nodes that nobody can reach: --force has no meaning with it")
    if len(nodes) > 1 and not majority_lost:
        raise click.UsageError("one node after the other, unless a majority is gone for good (--majority-lost)")
    with Client(at, login=login, passcode=passcode, timeout_seconds=patience) as client:
        headers = [("destination", f"/control/retire/{','.join(nodes)}")]
        headers += [(name, "true") for name, is_set in (("force", force), ("majority-lost", majority_lost)) if is_set]
        said = client.request("SEND", headers).head.headers
    facts = {name: said.get(name, "") for name in ("retired", "adopter")}
    vectors = {name: json.loads(said.get(name, "{}")) for name in ("sealed", "still-on-the-way")}
    if as_json:
        print_json({**facts, **vectors})
        return
    gone = facts["retired"].split(",")
    whose = f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} retired"
    left = "it left" if len(gone) == 1 else "they left"
    click.echo(printable(f"{whose}; {facts['adopter']} adopts the queue messages that {left}"))
    for origin, last in vectors["still-on-the-way"].items():
        click.echo(printable(f"records of {origin} up to {last} are still on their way to {facts['adopter']}"))
