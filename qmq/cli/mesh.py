"""`qmq mesh`: every node of a peers file on this machine, for trials and tests.

A mesh in production has one `qmq serve` per host under a service manager. `status` works for it, too, because it only
needs the addresses of the peers file. `up` and `status` are one module, because both show the same states of nodes.
"""

import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from ..config import PeersFile, load_peers
from ..config.secrecy import is_open_to_others
from . import launch
from .client import CommandClient, Endpoint, Login, ServerError
from .mesh_members import check, retire
from .mesh_serving import SERVING, Served, merge_serving, serving_table
from .options import FILE, FOLDER, json_option, login_options
from .output import Failed, counted, print_json, printable, table
from .serve import LOG_LEVELS
from .status import ask, links_of

REFRESH_SECONDS = 0.5
CLEAR_BELOW = "\x1b[J"

data_option = click.option("--data", type=FOLDER, help="Data directory of the nodes.  [default: .mesh/MESH-ID]")
nodes_option = click.option("--nodes", metavar="A,B", help="Only these nodes of the peers file.")


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node, as seen from outside."""

    node: str
    address: str
    pid: int | None
    state: str
    """starting, ready, silent, retired, or how its process ended."""
    links_up: int | None
    """Links to and from peers; None if the node does not say."""
    links: int | None
    notes: str = ""
    """Why it does not answer or refuses; whether it is a learner, or has another peers file or other policies."""


@click.group
def mesh() -> None:
    """Show and change a mesh; start and stop one on this machine."""


mesh.add_command(check)
mesh.add_command(retire)


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@nodes_option
@click.option("--config", "config_file", type=FILE, help="A node file for every node; its name is ignored.")
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="Log level of the nodes."
)
@click.option("--verbose", "-v", is_flag=True, help="Show all log lines, not only warnings and errors.")
@login_options
def up(
    peers: Path,
    data: Path | None,
    nodes: str | None,
    config_file: Path | None,
    log_level: str,
    verbose: bool,
    login: Login,
) -> None:
    """Start a process for each node of a peers file; Ctrl-C stops all.

    Shows the warnings of the nodes and, on a terminal, a table with their live state below. Each node keeps its data in
    DATA/NAME and its whole log in DATA/NAME.log. Exit code 1 if a node ends before it answers (the end of its log is
    shown), or does not stop in order.
    """
    file = load_peers(peers)
    where = data or default_data(file)
    if file.secret is not None and file.secret_file is None and is_open_to_others(peers):
        _make_private(peers)
    fleet = launch.LocalMesh(peers, where, nodes=_names(nodes), config_file=config_file, log_level=log_level)
    with stop_signals() as stopping, fleet:
        logs = [launch.LogTail(node, verbose) for node in fleet.nodes.values()]
        screen = Screen(sys.stdout)
        fleet.start_all()
        watcher = Watcher(fleet, login)
        was_ready = False
        while not stopping.is_set():
            states = watcher.poll()
            lines = [line for log in logs for line in log.new_lines()]
            screen.show(lines, states)
            if not was_ready:
                for node in fleet.nodes.values():
                    fleet.check_alive(node.name)
                was_ready = all(state.state == "ready" for state in states)
                if was_ready:
                    ready = f"mesh {fleet.peers.mesh}: {counted(len(states), 'node')} ready; Ctrl-C stops all"
                    screen.say("\n".join([ready, *launch.what_to_try(fleet)]))
            if all(node.exit_code is not None for node in fleet.nodes.values()):
                break  # `mesh down` in another shell
            stopping.wait(REFRESH_SECONDS)
        screen.say("stopping …")
        killed = {name for name, node in fleet.nodes.items() if (node.exit_code or 0) < 0}  # In a trial, before.
        fleet.stop_all()
        screen.show([line for log in logs for line in log.new_lines()], None)
        for node in fleet.nodes.values():
            screen.say(f"node {node.name} ended with {launch.exit_text(node.exit_code or 0)}")
        if any(node.exit_code for name, node in fleet.nodes.items() if name not in killed):
            sys.exit(1)


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@nodes_option
def down(peers: Path, data: Path | None, nodes: str | None) -> None:
    """Stop the nodes that `qmq mesh up` started with the same data directory.

    Sends SIGTERM, so that they drain, and SIGKILL to nodes that take too long. Their data stays.
    """
    where = data or default_data(load_peers(peers))
    wanted = _names(nodes)
    running = [one for one in launch.recorded(where) if one.is_alive and (wanted is None or one.name in wanted)]
    if not running:
        raise Failed(f"no node runs from {where}")
    killed = launch.stop_recorded(running)
    for one in running:
        click.echo(f"node {one.name} {'killed: it did not stop in time' if one.name in killed else 'stopped'}")


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@click.option("--wait", type=click.FloatRange(0), default=0, metavar="SECONDS", help="Wait so long for exit code 0.")
@login_options
@json_option
def status(peers: Path, data: Path | None, wait: float, login: Login, as_json: bool) -> None:
    """Show every node of a peers file: whether it answers, its links, and whose queue messages it serves.

    Works for nodes on other hosts, too. If users are configured, log in as one of the group `observer`. Exit code 1
    if a node does not answer or refuses its status, if a link is down, or if the queue messages of a node are not
    served. A retired node need not answer.
    """
    file = load_peers(peers)
    where = data or default_data(file)
    deadline = time.monotonic() + wait
    states, owners = _poll(file, where, login)
    while not (is_healthy := _is_healthy(states, owners)) and time.monotonic() < deadline:
        time.sleep(REFRESH_SECONDS)
        states, owners = _poll(file, where, login)
    if as_json:
        nodes = [asdict(state) for state in states]
        served = [asdict(owner) for owner in owners]
        print_json({"mesh": file.mesh, "version": file.version, "nodes": nodes, "queues": served})
    else:
        lines = [*state_table(states), *(["", *serving_table(owners)] if owners else [])]
        click.echo("\n".join(printable(line) for line in lines))
    if not is_healthy:
        sys.exit(1)


def _poll(file: PeersFile, where: Path, login: Login) -> tuple[list[NodeState], list[Served]]:
    """What each node of the file says now."""
    pids = {one.name: one.pid for one in launch.recorded(where) if one.is_alive}
    states = []
    reports = {}
    retired: dict[str, str] = {}
    for peer in file.nodes:
        probe = StatusProbe(launch.NodeProcess(peer.name, peer.client, where), file.version, login)
        states.append(probe.poll(pids.get(peer.name), "silent"))
        if probe.takeover is not None:
            reports[peer.name] = probe.takeover
        retired |= probe.retired
        probe.close()
    return [_with_retirement(state, retired) for state in states], merge_serving(reports)


def _is_healthy(states: Sequence[NodeState], owners: Sequence[Served]) -> bool:
    members = [state for state in states if state.state != "retired"]
    return all(
        state.state == "ready" and state.links_up is not None and state.links_up == state.links for state in members
    ) and all(owner.state == SERVING for owner in owners)


def _with_retirement(state: NodeState, retired: Mapping[str, str]) -> NodeState:
    """A node that does not answer because its mesh has retired it is as it should be."""
    if state.state != "silent" or state.node not in retired:
        return state
    notes = f"{retired[state.node]} has adopted its messages; take it out of the peers file"
    return replace(state, state="retired", notes=notes)


def _make_private(peers: Path) -> None:
    """Nodes refuse a secret that other users can read, and the file of a fresh checkout is readable."""
    try:
        peers.chmod(0o600)
    except OSError as error:
        raise Failed(
            f"{peers}: other users can read the secret in it, and chmod 600 failed: {error.strerror}"
        ) from error
    click.echo(f"{peers}: other users could read the secret in it; now only you can (chmod 600)")


def default_data(peers: PeersFile) -> Path:
    return Path(".mesh") / peers.mesh


def _names(nodes: str | None) -> list[str] | None:
    return None if nodes is None else [name.strip() for name in nodes.split(",") if name.strip()]


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that is set by SIGINT, SIGTERM and, unless it is ignored (`nohup`), SIGHUP.

    Without it, the signal would end this process and leave its nodes behind: they have sessions of their own, so a
    closed terminal does not signal them.
    """
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StatusProbe:
    """Asks one node for its status, over one connection, so that asking twice a second costs little."""

    def __init__(self, node: launch.NodeProcess, version: int = 0, login: Login | None = None) -> None:
        """`version`: the version of the peers file that the node should use; 0 for any."""
        self.node = node
        self._version = version
        self._login = login or Login()
        self._client: CommandClient | None = None
        self.retired: dict[str, str] = {}
        """Retired nodes by its last status, and the adopter of each."""
        self.takeover: Mapping[str, Any] | None = None
        """The last `takeover` of its status; None if it had none."""

    def poll(self, pid: int | None, unanswered: str) -> NodeState:
        """The state of the node now; `unanswered` is the state to show if it does not answer."""
        state, up, links, notes = unanswered, None, None, ""
        try:
            if self._client is None:
                self._client = self._connect()
            state = "ready"
            facts = ask(self._client)
            up, links = links_of(facts)
            takeover = facts.get("takeover")
            self.takeover = takeover if isinstance(takeover, dict) else None
            notes = _notes(facts.get("membership"), self._version)
            self.retired = _retired(facts.get("membership"))
        except ServerError as refused:
            # It answers, but refuses this user: a login is missing or wrong, or the user may not read the status.
            state = "ready"
            notes = f"refuses its status: {refused.code or refused.message}"
            self.close()
        except Failed as failed:
            if unanswered != "starting":
                notes = str(failed).removeprefix(f"{self.node.address}: ")
            self.close()
        return NodeState(self.node.name, str(self.node.address), pid, state, up, links, notes)

    def _connect(self) -> CommandClient:
        """By its Unix socket if it has one here, which needs no login; else by its address."""
        if self.node.socket.exists():
            with suppress(Failed):
                return Endpoint([self.node.socket], Login(), launch.PROBE_SECONDS).connect()
        patience = launch.PROBE_SECONDS if self._login.name is None else launch.LOGIN_SECONDS
        return Endpoint([self.node.address], self._login, patience).connect()

    def close(self) -> None:
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None


class Watcher:
    """The states of all nodes of a mesh on this machine."""

    def __init__(self, fleet: launch.LocalMesh, login: Login | None = None) -> None:
        self._probes = [StatusProbe(node, 0, login) for node in fleet.nodes.values()]
        self._answered: set[str] = set()

    def poll(self) -> list[NodeState]:
        states = []
        for probe in self._probes:
            node = probe.node
            pid = node.process.pid if node.process is not None else None
            if node.exit_code is not None:
                probe.close()
                ended = f"ended: {launch.exit_text(node.exit_code)}"
                states.append(NodeState(node.name, str(node.address), None, ended, None, None))
                continue
            state = probe.poll(pid, "silent" if node.name in self._answered else "starting")
            if state.state == "ready":
                self._answered.add(node.name)
            states.append(state)
        return states


class Screen:
    """Log lines that scroll, with a table below them on a terminal; elsewhere one line per change."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._table: list[str] = []
        self._states: list[NodeState] = []

    def show(self, lines: Sequence[str], states: Sequence[NodeState] | None) -> None:
        """Print `lines`, and `states` if they differ from before; None removes the table."""
        changed = list(states or ()) != self._states
        if not self._live:
            known = {state.node: state for state in self._states}
            lines = [*lines, *(_state_line(state) for state in states or () if known.get(state.node) != state)]
        elif lines or changed:
            if self._table:
                self._out.write(f"\x1b[{len(self._table)}A\r{CLEAR_BELOW}")
            width = shutil.get_terminal_size().columns
            self._table = [line[: width - 1] for line in ("", *state_table(states))] if states else []
            lines = [*lines, *self._table]
        self._states = list(states or ())
        if lines:
            self._out.write("".join(line + "\n" for line in lines))
        self._out.flush()

    def say(self, line: str) -> None:
        """Print one line of this command, above the table."""
        if self._live and self._table:
            self._out.write(f"\x1b[{len(self._table)}A\r{CLEAR_BELOW}")
        self._out.write("".join(text + "\n" for text in (line, *self._table)))
        self._out.flush()


def state_table(states: Sequence[NodeState]) -> list[str]:
    rows = [[state.node, state.address, state.pid or "-", state.state, _links(state)] for state in states]
    heads = ["NODE", "ADDRESS", "PID", "STATE", "LINKS"]
    if any(state.notes for state in states):
        heads.append("NOTES")
        rows = [[*row, state.notes] for row, state in zip(rows, states, strict=True)]
    return table(heads, rows)


def _notes(membership: object, version: int) -> str:
    if not isinstance(membership, dict):
        return ""
    notes = ["learner"] if membership.get("learner") else []
    if version and membership.get("peers_version") != version:
        notes.append(f"peers file {membership.get('peers_version')}")
    return ", ".join(notes)


def _retired(membership: object) -> dict[str, str]:
    rows = membership.get("retired") if isinstance(membership, dict) else None
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {str(row.get("node")): str(row.get("adopter")) for row in found}


def _links(state: NodeState) -> str:
    return "-" if state.links is None else f"{state.links_up}/{state.links}"


def _state_line(state: NodeState) -> str:
    return f"node {state.node}  {state.address}  pid {state.pid or '-'}  {state.state}  links {_links(state)}"
