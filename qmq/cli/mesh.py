"""`qmq mesh`: every node of a peers file on this machine, for trying things out and for tests.

A real mesh has one `qmq serve` per host under a service manager; what these commands show is the same for it, since
`status` only needs the addresses of the peers file.
"""

import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from ..config import PeersFile, is_open_to_others, load_peers
from .client import Client, ServerError
from .launch import PROBE_SECONDS, Mesh, Node, exit_text, recorded, stop_recorded
from .mesh_members import check, retire
from .mesh_serving import serving_table, who_serves
from .options import FILE, FOLDER, json_option, login_options
from .output import Failed, print_json, printable, table
from .serve import LOG_LEVELS
from .status import ask, links_of

REFRESH_SECONDS = 0.5
LOG_READ_BYTES_MAX = 64 << 10
CLEAR_BELOW = "\x1b[J"
LOG_ENTRY = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ([A-Z]+) ")
"""The beginning of a line as `qmq serve` logs it."""
QUIET_LEVELS = (b"DEBUG", b"INFO")

data_option = click.option("--data", type=FOLDER, help="Where nodes keep their data.  [default: .mesh/MESH-ID]")
nodes_option = click.option("--nodes", metavar="A,B", help="Only these nodes of the file.")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of one node from outside."""

    node: str
    address: str
    pid: int | None
    state: str
    """starting, ready, silent, or how it ended."""
    links_up: int | None
    """Links to and from peers; None when the node does not tell."""
    links: int | None
    notes: str = ""
    """That it is a learner, goes by another version of the peers file, or has other policies than its peers."""


@click.group
def mesh() -> None:
    """Start, stop and show a mesh on this machine."""


mesh.add_command(check)
mesh.add_command(retire)


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@nodes_option
@click.option("--config", "config_file", type=FILE, help="A node file for every node; its name is overruled.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="Of the nodes.")
@click.option("--verbose", "-v", is_flag=True, help="Show all that the nodes log, not warnings and errors alone.")
@login_options
def up(
    peers: Path,
    data: Path | None,
    nodes: str | None,
    config_file: Path | None,
    log_level: str,
    verbose: bool,
    login: str | None,
    passcode: str | None,
) -> None:
    """Start a node for each of the peers file; Ctrl-C stops all.

    Shows the warnings of the nodes, and below them (on a terminal) a table with their live state. Each node keeps its
    data in DATA/NAME and its whole log in DATA/NAME.log. Exit code 1 when a node ends before it answers (with the end
    of its log), or did not end in order.
    """
    file = load_peers(peers)
    where = data or default_data(file)
    if file.secret is not None and is_open_to_others(peers):
        _keep_to_oneself(peers)
    fleet = Mesh(peers, where, nodes=_names(nodes), config_file=config_file, log_level=log_level)
    with stop_signals() as stopping, fleet:
        logs = [LogFollower(node, verbose) for node in fleet.nodes.values()]
        screen = Screen(sys.stdout)
        fleet.start_all()
        watcher = Watcher(fleet, login, passcode)
        was_ready = False
        while not stopping.is_set():
            states = watcher.look()
            lines = [line for log in logs for line in log.fresh()]
            screen.show(lines, states)
            if not was_ready:
                for node in fleet.nodes.values():
                    fleet.check_alive(node.name)
                was_ready = all(state.state == "ready" for state in states)
                if was_ready:
                    screen.say(f"mesh {fleet.peers.mesh}: {len(states)} nodes ready; Ctrl-C stops all")
            if all(node.exit_code is not None for node in fleet.nodes.values()):
                break  # `mesh down` in another shell
            stopping.wait(REFRESH_SECONDS)
        screen.say("stopping …")
        fleet.stop_all()
        screen.show([line for log in logs for line in log.fresh()], None)
        for node in fleet.nodes.values():
            screen.say(f"node {node.name} ended with {exit_text(node.exit_code or 0)}")
        if any(node.exit_code for node in fleet.nodes.values()):
            sys.exit(1)


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@nodes_option
def down(peers: Path, data: Path | None, nodes: str | None) -> None:
    """Stop the nodes that `qmq mesh up` started from the same folder.

    SIGTERM first, so that they drain; SIGKILL to those that take too long. Their data stays.
    """
    where = data or default_data(load_peers(peers))
    wanted = _names(nodes)
    running = [one for one in recorded(where) if one.is_alive and (wanted is None or one.name in wanted)]
    if not running:
        raise Failed(f"no node runs from {where}")
    killed = stop_recorded(running)
    for one in running:
        click.echo(f"node {one.name} {'killed: it did not stop in time' if one.name in killed else 'stopped'}")


@mesh.command
@click.argument("peers", type=FILE)
@data_option
@login_options
@json_option
def status(peers: Path, data: Path | None, login: str | None, passcode: str | None, as_json: bool) -> None:
    """Show every node of a peers file: whether it answers, its links, and who serves whose queue messages.

    Works for nodes on other hosts too. Nodes with users tell it to those whose `control` is "read" or "admin". Exit
    code 1 when one of them does not answer.
    """
    file = load_peers(peers)
    pids = {one.name: one.pid for one in recorded(data or default_data(file)) if one.is_alive}
    states = []
    pictures = {}
    for peer in file.nodes:
        probe = Probe(Node(peer.name, peer.client, Path()), file.version, login, passcode)
        states.append(probe.look(pids.get(peer.name), "silent"))
        if probe.takeover is not None:
            pictures[peer.name] = probe.takeover
        probe.close()
    owners = who_serves(pictures)
    if as_json:
        nodes = [asdict(state) for state in states]
        served = [asdict(owner) for owner in owners]
        print_json({"mesh": file.mesh, "version": file.version, "nodes": nodes, "queues": served})
    else:
        lines = [*state_table(states), *(["", *serving_table(owners)] if owners else [])]
        click.echo("\n".join(printable(line) for line in lines))
    if any(state.state != "ready" for state in states):
        sys.exit(1)


def _keep_to_oneself(peers: Path) -> None:
    """Nodes take no secret that others can read, and that of a fresh checkout always is."""
    try:
        peers.chmod(0o600)
    except OSError as error:
        raise Failed(
            f"{peers}: other users can read the secret in it, and chmod 600 failed: {error.strerror}"
        ) from error
    click.echo(f"{peers}: others could read the secret in it; only you can now (chmod 600)")


def default_data(peers: PeersFile) -> Path:
    return Path(".mesh") / peers.mesh


def _names(nodes: str | None) -> list[str] | None:
    return None if nodes is None else [name.strip() for name in nodes.split(",") if name.strip()]


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and, unless it is ignored (`nohup`), SIGHUP set, instead of ending this process
    with nodes left behind: they have sessions of their own, and would not hear of a terminal that is closed."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Probe:
    """Asks one node for its status over one connection that it keeps, so that asking twice a second costs little."""

    def __init__(self, node: Node, version: int = 0, login: str | None = None, passcode: str | None = None) -> None:
        """`version` of the peers file that it should go by; 0 for any."""
        self.node = node
        self._version = version
        self._login = login
        self._passcode = passcode
        self._client: Client | None = None
        self.takeover: Mapping[str, Any] | None = None
        """What the node said last about who serves whom; None when it said nothing."""

    def look(self, pid: int | None, unanswered: str) -> NodeState:
        """The node's state now; `unanswered` is what to call it when it does not answer."""
        state, up, links, notes = unanswered, None, None, ""
        try:
            if self._client is None:
                self._client = Client(
                    self.node.address, login=self._login, passcode=self._passcode, timeout_seconds=PROBE_SECONDS
                )
            state = "ready"
            facts = ask(self._client)
            up, links = links_of(facts)
            told = facts.get("takeover")
            self.takeover = told if isinstance(told, dict) else None
            notes = _notes(facts.get("membership"), self._version)
        except ServerError as refused:
            # It answers, only not to this user: a login is missing or wrong, or the user may not read the status.
            state = "ready"
            notes = f"refuses its status: {refused.code or refused.message}"
            self.close()
        except Failed:
            self.close()
        return NodeState(self.node.name, str(self.node.address), pid, state, up, links, notes)

    def close(self) -> None:
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None


class Watcher:
    """The states of all nodes of a mesh that runs here."""

    def __init__(self, fleet: Mesh, login: str | None = None, passcode: str | None = None) -> None:
        self._probes = [Probe(node, 0, login, passcode) for node in fleet.nodes.values()]
        self._answered: set[str] = set()

    def look(self) -> list[NodeState]:
        states = []
        for probe in self._probes:
            node = probe.node
            pid = node.process.pid if node.process is not None else None
            if node.exit_code is not None:
                probe.close()
                ended = f"ended: {exit_text(node.exit_code)}"
                states.append(NodeState(node.name, str(node.address), None, ended, None, None))
                continue
            state = probe.look(pid, "silent" if node.name in self._answered else "starting")
            if state.state == "ready":
                self._answered.add(node.name)
            states.append(state)
        return states


class LogFollower:
    """New lines of a node's log, each with the node's name; all of them, or without DEBUG and INFO."""

    def __init__(self, node: Node, is_verbose: bool) -> None:
        self._node = node
        self._is_verbose = is_verbose
        self._at = node.log.stat().st_size if node.log.exists() else 0
        self._rest = b""

    def fresh(self) -> list[str]:
        """Whole lines written since the last call, at most LOG_READ_BYTES_MAX of them."""
        if not self._node.log.exists():
            return []
        with self._node.log.open("rb") as file:
            file.seek(self._at)
            data = file.read(LOG_READ_BYTES_MAX)
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        shown = [printable(line.decode("utf-8", "backslashreplace")) for line in lines if self._is_shown(line)]
        return [f"{self._node.name} | {line}" for line in shown]

    def _is_shown(self, line: bytes) -> bool:
        entry = LOG_ENTRY.match(line)
        return self._is_verbose or entry is None or entry[1] not in QUIET_LEVELS


class Screen:
    """Log lines that scroll, and on a terminal a table that stays below them; elsewhere a line per change."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._table: list[str] = []
        self._states: list[NodeState] = []

    def show(self, lines: Sequence[str], states: Sequence[NodeState] | None) -> None:
        """Print `lines`, and `states` where they differ from before; None takes the table away."""
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
        """Print one line of our own, above the table."""
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
    differing = membership.get("destinations_differ")
    if isinstance(differing, dict) and differing:
        notes.append(f"other policies than {', '.join(map(str, sorted(differing)))}")
    return ", ".join(notes)


def _links(state: NodeState) -> str:
    return "-" if state.links is None else f"{state.links_up}/{state.links}"


def _state_line(state: NodeState) -> str:
    return f"node {state.node}  {state.address}  pid {state.pid or '-'}  {state.state}  links {_links(state)}"
