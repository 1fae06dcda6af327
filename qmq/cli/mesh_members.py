"""`qmq mesh check` and `retire`: change the members of a mesh. The rules are in `qmq.config.peers`."""

from pathlib import Path
from typing import Final

import click

from ..config import load_node, load_peers
from ..config.difference import peers_difference
from ..config.load import check_together
from ..config.peers import check_change
from ..errors import ConfigError
from .client import Endpoint, ask, headers_of
from .options import FILE, client_options, json_option
from .output import print_json, printable

FACTS: Final = ("retired", "adopter", "sealed", "still-on-the-way")
"""Of the response to `retire`, as --json prints them."""


@click.command
@click.argument("peers", type=FILE)
@click.option("--was", type=FILE, help="The peers file that the nodes use now.")
@click.option("--config", "config_file", type=FILE, help="A node file of the mesh, which says whether links use TLS.")
def check(peers: Path, was: Path | None, config_file: Path | None) -> None:
    """Check a peers file, and whether running nodes would accept it.

    With --was, prints what would change and refuses what a node would refuse at SIGHUP. Only a running node knows which
    nodes are retired, so a node that is left out is named. Exit code 2 if there is an error.
    """
    new = load_peers(peers)
    diagnostics: list[str] = []
    for peer in new.nodes if new.is_loopback else ():
        found = check_together(load_node(config_file, {"name": peer.name}), new, str(peers))
        diagnostics += [line for line in found if line not in diagnostics]
    if was is not None:
        old = load_peers(was)
        stays = next((peer.name for peer in old.nodes if new.peer(peer.name)), "")
        left_out = {peer.name for peer in old.nodes} - {peer.name for peer in new.nodes}
        diagnostics += check_change(old, new, stays, left_out)
        for change in peers_difference(old, new):
            click.echo(printable(f"{change}  [needs a restart]" if change.needs_restart else str(change)))
        for name in sorted(left_out):
            click.echo(f"{name} is left out: it must have been retired (`qmq mesh retire {name}`)")
    if diagnostics:
        raise ConfigError(diagnostics)
    click.echo(f"{peers}: ok")


@click.command
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@client_options
@click.option(
    "--force", is_flag=True, help="Also if another node can reach it; then it stops as soon as it gets the record."
)
@click.option(
    "--majority-lost",
    is_flag=True,
    help="Too few nodes are left to decide: NODE... names all lost nodes, and none of them comes back.",
)
@json_option
def retire(
    nodes: tuple[str, ...],
    node: Endpoint,
    force: bool,
    majority_lost: bool,
    as_json: bool,
) -> None:
    """Remove NODE from the mesh for good; several nodes only with --majority-lost.

    Stop NODE first. The node that --at names adopts its queue messages and serves them from now on. NODE no longer
    counts for majorities. Its name and its disk must not come back: a later return is refused. Then remove it from the
    peers file. Exit code 1 if it is refused: NODE can still be reached, or too few of the other nodes can.
    """
    if majority_lost and force:
        raise click.UsageError("--majority-lost is for nodes that no node can reach: --force has no meaning with it")
    if len(nodes) > 1 and not majority_lost:
        raise click.UsageError("retire one node after the other, unless a majority is lost for good (--majority-lost)")
    facts = ask(node, f"retire/{','.join(nodes)}", headers_of(force=force, majority_lost=majority_lost))
    if as_json:
        print_json({name: facts.get(name.replace("-", "_")) for name in FACTS})
        return
    names = facts["retired"].split(",")
    retired = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} retired"
    left = "it left" if len(names) == 1 else "they left"
    click.echo(printable(f"{retired}; {facts['adopter']} adopts the queue messages that {left}"))
    for origin, last in facts["still_on_the_way"].items():
        click.echo(printable(f"records of {origin} up to {last} are still on their way to {facts['adopter']}"))
