"""`qmq doctor`: the command."""

import sys
from pathlib import Path

import click

from ..client import Endpoint
from ..options import FILE, client_options, json_option
from ..output import counted, print_json, printable
from .facts import ask_mesh
from .findings import in_order, shown, summary
from .live import findings_of_mesh, totals_of


@click.command
@click.option("--config", "config_file", type=FILE, help="Check this node file and this machine, not a running mesh.")
@click.option("--peers", "peers_file", type=FILE, help="With --config: the peers file, if the node file names none.")
@click.option("--node", "node_name", metavar="NAME", help="With --config: the name of this node in the peers file.")
@client_options
@json_option
def doctor(
    config_file: Path | None, peers_file: Path | None, node_name: str | None, node: Endpoint, as_json: bool
) -> None:
    """Find what is wrong with a running mesh, or with the files of a node.

    Asks one node about the whole mesh: conditions, members, versions, clocks, links, disks, memory, queues without
    consumers, dead letters, policies that match nothing. With --config, no node is asked: checks the files, addresses,
    certificates, disk and limits of this machine. Each finding says what to do. Exit code 1 if one is an error.
    """
    totals: dict[str, int] = {}
    if config_file is None and peers_file is None:
        if node_name is not None:
            raise click.UsageError("--node is the name of a node in the files: give --config or --peers, too")
        checked = "mesh"
        facts = ask_mesh(node)
        findings, totals = in_order(findings_of_mesh(facts)), totals_of(facts)
    else:
        from .files import findings_of_files  # It loads what a node loads, which a question to a node does not need.

        _refuse_addresses()
        checked = "files"
        findings = in_order(findings_of_files(config_file, peers_file, node_name, None))
    if as_json:
        print_json({"checked": checked, **totals, "findings": [one._asdict() for one in findings]})
    else:
        for line in shown(findings):
            click.echo(printable(line))
        if totals:
            waiting = counted(totals["waiting"], "message")
            click.echo(f"{counted(totals['nodes'], 'node')}, {waiting} waiting, {totals['in_flight']} in flight")
        click.echo(summary(findings))
    if any(one.is_error for one in findings):
        sys.exit(1)


def _refuse_addresses() -> None:
    context = click.get_current_context()
    for name in ("at", "data"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} asks a running mesh, --config checks files: give one of the two")
