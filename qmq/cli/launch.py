"""Nodes as processes on this machine: start, stop, kill, pause, resume, and check whether they answer.

`qmq mesh` is its command line, and tests/cluster uses the same code. Calls block; there are no threads. The output of a
node goes to DATA/NAME.log and its data to DATA/NAME, so both outlive the process that started it. DATA/mesh.json holds
the process ids with the start time of each process, so an id that the system has given to another process is never
signalled.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..config import Address, PeersFile, load_peers
from ..config.secrecy import draw_secret
from ..protocols import declarations
from ..unix_socket import SOCKET_NAME
from .client import CommandClient, ServerError
from .options import DEFAULT_AT
from .output import Failed, printable

PROGRAM: Sequence[str] = (sys.executable, "-m", "qmq")
"""The command that runs a node; `serve` and its options follow."""

READY_SECONDS = 20.0
PROBE_SECONDS = 1.0
LOGIN_SECONDS = 3.0
"""For a probe with a login: a node refuses a wrong passcode after `FAILED_LOGIN_SECONDS`."""
POLL_SECONDS = 0.05
STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL: the default `limits.drain_seconds`, the last frames and records, and a little more."""
TAIL_LINES = 15
TAIL_BYTES = 16 << 10


class NodeDied(Failed):
    """A node ended before it answered; the message contains the end of its log."""


LOG_READ_BYTES_MAX = 64 << 10
LOG_ENTRY = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ([A-Z]+) ")
"""The beginning of a line as `qmq serve` logs it."""
QUIET_LEVELS = (b"DEBUG", b"INFO")


@dataclass(frozen=True, slots=True)
class Running:
    """A process as mesh.json names it."""

    name: str
    pid: int
    started: str
    """Start time in clock ticks of the system; together with `pid` it names one process."""

    @property
    def is_alive(self) -> bool:
        return start_mark(self.pid) == self.started


class NodeProcess:
    """One node of a mesh and, once started here, its process."""

    def __init__(self, name: str, address: Address, data: Path) -> None:
        self.name = name
        self.address = address
        self.data = data / name
        self.socket = self.data / SOCKET_NAME
        self.log = data / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or if it was never started; negative for the signal that ended it."""
        return self.process.poll() if self.process is not None else None

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class LocalMesh:
    """The nodes of one peers file, each a process on this machine. The end of its `with` block stops them."""

    def __init__(
        self,
        peers_file: Path,
        data: Path,
        *,
        nodes: Sequence[str] | None = None,
        config_file: Path | None = None,
        peers_files: Mapping[str, Path] | None = None,
        log_level: str = "info",
        bound: bool = False,
    ) -> None:
        """Start nothing yet. `nodes` None means all nodes of the file. If `bound`, they end with this process.

        `peers_files` gives single nodes a peers file of their own, for example to send a link through a proxy.
        Raises ConfigError for a bad peers file, Failed for a name that is not in it.
        """
        self.peers_file = peers_file
        self.peers: PeersFile = load_peers(peers_file)
        if self.peers.secret is None and self.peers.secret_file is not None:
            draw_secret(self.peers.secret_file)
        self.data = data
        self.config_file = config_file
        self.peers_files = dict(peers_files or {})
        self.log_level = log_level
        self.bound = bound
        self.nodes: dict[str, NodeProcess] = {}
        for name in nodes if nodes is not None else [peer.name for peer in self.peers.nodes]:
            peer = self.peers.peer(name)
            if peer is None:
                known = ", ".join(peer.name for peer in self.peers.nodes)
                raise Failed(f"{peers_file}: no node is named {name!r}; there are {known}")
            self.nodes[name] = NodeProcess(name, peer.client, data)

    def __enter__(self) -> "LocalMesh":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(self, name: str) -> NodeProcess:
        """Start one node; return at once. Raises Failed if it is already running or its address is in use."""
        node = self.nodes[name]
        if node.is_alive:
            raise Failed(f"node {name} is already running")
        if is_taken(node.address):
            raise Failed(f"node {name} cannot use {node.address}: another process listens there")
        make_directory(self.data)
        make_directory(node.data)
        arguments = ["serve", "--node", name, "--data", str(node.data)]
        arguments += ["--peers", str(self.peers_files.get(name, self.peers_file)), "--log-level", self.log_level]
        if self.config_file is not None:
            arguments += ["--config", str(self.config_file)]
        if self.bound:
            arguments.append("--until-eof")
        node.process = self.spawn(arguments, node.log)
        running = Running(name, node.process.pid, start_mark(node.process.pid) or "")
        record(self.data, add=[running], addresses=[str(peer.client) for peer in self.peers.nodes])
        return node

    def spawn(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Run PROGRAM with these arguments, its output appended to `log`. Raises OSError."""
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            # With a session of its own, Ctrl-C in the terminal reaches only this process, which then stops the nodes.
            return subprocess.Popen(
                [*PROGRAM, *arguments],
                stdin=subprocess.PIPE if self.bound else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_all(self) -> None:
        """Start every node that is not running. Raises Failed, with none started, if mesh.json names a live one."""
        busy = [running for running in recorded(self.data) if running.name in self.nodes and running.is_alive]
        if busy:
            names = ", ".join(f"{running.name} (pid {running.pid})" for running in busy)
            raise Failed(f"already running: {names}; stop them with `qmq mesh down {self.peers_file}`")
        for name, node in self.nodes.items():
            if not node.is_alive:
                self.start(name)

    def is_ready(self, name: str, timeout_seconds: float = PROBE_SECONDS) -> bool:
        """Whether the node answers STOMP now. A refused login is an answer, too."""
        node = self.nodes[name]
        if answers(node.address, timeout_seconds):
            return True
        return is_taken(node.address) and answers(node.socket, timeout_seconds)  # with TLS, or only for other clients

    def wait_until_ready(self, names: Sequence[str] | None = None, timeout_seconds: float = READY_SECONDS) -> None:
        """Return when all (or `names`) answer. Raises NodeDied if one ends before, Failed at the timeout."""
        deadline = time.monotonic() + timeout_seconds
        for name in names if names is not None else list(self.nodes):
            while not self.is_ready(name):
                self.check_alive(name)
                if time.monotonic() > deadline:
                    raise Failed(f"node {name} did not answer within {timeout_seconds:g} s{self._tail_text(name)}")
                time.sleep(POLL_SECONDS)

    def check_alive(self, name: str) -> None:
        """Raise NodeDied, with the end of its log, if the node has ended."""
        code = self.nodes[name].exit_code
        if code is not None:
            raise NodeDied(f"node {name} ended with {exit_text(code)}{self._tail_text(name)}")

    def stop(self, name: str, timeout_seconds: float = STOP_SECONDS) -> int | None:
        """Send SIGTERM, and SIGKILL at the timeout. Returns its exit code, None if it never ran."""
        self.ask_to_stop(name)
        return self._reap(name, timeout_seconds)

    def stop_all(self, timeout_seconds: float = STOP_SECONDS) -> None:
        """Send SIGTERM to all at once, and SIGKILL at the timeout."""
        for name in self.nodes:
            self.ask_to_stop(name)
        deadline = time.monotonic() + timeout_seconds
        for name in self.nodes:
            self._reap(name, deadline - time.monotonic())

    def ask_to_stop(self, name: str) -> None:
        """Send SIGTERM without waiting."""
        self._signal(name, signal.SIGTERM)
        self._signal(name, signal.SIGCONT)  # a paused process would not handle it

    def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._signal(name, signal.SIGKILL)
        self._reap(name, STOP_SECONDS)

    def pause(self, name: str) -> None:
        """Send SIGSTOP: the process is paused with its connections open."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Send SIGCONT after `pause`."""
        self._signal(name, signal.SIGCONT)

    def log_tail(self, name: str) -> str:
        """The last lines of the log of the node."""
        return tail(self.nodes[name].log)

    def _tail_text(self, name: str) -> str:
        text = self.log_tail(name)
        return f"; end of {self.nodes[name].log}:\n{text}" if text else " and wrote nothing"

    def _signal(self, name: str, number: signal.Signals) -> None:
        node = self.nodes[name]
        if node.process is not None and node.is_alive:
            node.process.send_signal(number)

    def _reap(self, name: str, timeout_seconds: float) -> int | None:
        node = self.nodes[name]
        if node.process is None:
            return None
        try:
            node.process.wait(max(timeout_seconds, 0))
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
        if node.process.stdin is not None:
            node.process.stdin.close()
        record(self.data, remove=[name])
        return node.process.returncode


def what_to_try(fleet: LocalMesh) -> list[str]:
    """Where the console is, and a command for another shell."""
    started = [peer for peer in fleet.peers.nodes if peer.name in fleet.nodes]
    pages = [(one, peer.served[one.name]) for one in declarations() for peer in started if one.name in peer.served]
    program = Path(sys.argv[0]).absolute()
    is_installed = program.name == "qmq" and shutil.which("qmq") != str(program)
    command = os.path.relpath(program) if is_installed else "qmq"
    lines = [f"{one.page}: http://{at}/" for one, at in pages if one.page][:1] if fleet.config_file is None else []
    at = "" if str(started[0].client) == DEFAULT_AT else f" --at {started[0].client}"
    return [*lines, f'try, in another shell here: {command} send /queue/hello "hello, mesh"{at}']


def answers(address: Address | Path, timeout_seconds: float = PROBE_SECONDS) -> bool:
    """Whether a STOMP node answers there now. A refused login is an answer, too."""
    try:
        with CommandClient(address, timeout_seconds=timeout_seconds):
            return True
    except ServerError:
        return True
    except Failed:
        return False


def is_taken(address: Address) -> bool:
    """Whether anything accepts connections there."""
    try:
        socket.create_connection(address, PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def stop_recorded(running: Sequence[Running], timeout_seconds: float = STOP_SECONDS) -> list[str]:
    """Stop processes that another shell started: SIGTERM, then SIGKILL. Returns the names of killed nodes.

    Raises Failed for processes that this user may not stop, after the others have stopped.
    """
    alive, refused = [], []
    for process in [process for process in running if process.is_alive]:
        try:
            _signal_recorded(process, signal.SIGTERM)
            _signal_recorded(process, signal.SIGCONT)
            alive.append(process)
        except OSError as error:
            refused.append(f"node {process.name} (pid {process.pid}) cannot be stopped: {error.strerror}")
    deadline = time.monotonic() + timeout_seconds
    while any(process.is_alive for process in alive) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    killed = [process for process in alive if process.is_alive]
    for process in killed:
        _signal_recorded(process, signal.SIGKILL)
    if refused:
        raise Failed("; ".join(refused))
    return [process.name for process in killed]


def _signal_recorded(process: Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def recorded(data: Path) -> list[Running]:
    """The processes in mesh.json, alive or not; none if there is no such file. Raises Failed if it is damaged."""
    path = data / "mesh.json"
    try:
        found = [Running(**entry) for entry in json.loads(path.read_text("utf-8"))["nodes"]]
        for one in found:
            # A signal to -1 goes to all processes, and to 0 to those of this group.
            if type(one.pid) is not int or one.pid < 1 or type(one.started) is not str:
                raise ValueError(f"pid {one.pid!r}, started {one.started!r}")
        return found
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Failed(f"{path}: cannot be used ({error}); stop the nodes by hand and remove it") from error


def record(
    data: Path, *, add: Sequence[Running] = (), remove: Sequence[str] = (), addresses: Sequence[str] | None = None
) -> None:
    """Change mesh.json; two shells may do so at once. Ended processes are removed from it. `addresses`: where clients
    find the nodes of the mesh; None: as before.
    """
    make_directory(data)
    with _lock(data / "mesh.lock"):
        removed = {*remove, *(running.name for running in add)}
        nodes = [running for running in recorded(data) if running.name not in removed and running.is_alive]
        path = data / "mesh.json"
        if addresses is None:
            addresses = json.loads(path.read_text("utf-8")).get("addresses", ()) if path.exists() else ()
        facts = {"nodes": [asdict(running) for running in [*nodes, *add]], "addresses": list(addresses)}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        new.replace(path)


def make_directory(path: Path) -> None:
    """Create the directory, for this user alone, and its missing parents. Raises Failed."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{error.filename or path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_mark(pid: int) -> str | None:
    """When process `pid` started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before the bracket may contain blanks
    return None if fields[0] in ("Z", "X") else fields[19]


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a file; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except OSError:
        return ""


class LogTail:
    """New lines of the log of a node, each with its name; all lines, or without DEBUG and INFO."""

    def __init__(self, node: NodeProcess, is_verbose: bool) -> None:
        self._node = node
        self._is_verbose = is_verbose
        self._at = node.log.stat().st_size if node.log.exists() else 0
        self._partial_line = b""

    def new_lines(self) -> list[str]:
        """Whole lines written since the last call, at most LOG_READ_BYTES_MAX of them."""
        if not self._node.log.exists():
            return []
        with self._node.log.open("rb") as file:
            file.seek(self._at)
            data = file.read(LOG_READ_BYTES_MAX)
        self._at += len(data)
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        shown = [printable(line.decode("utf-8", "backslashreplace")) for line in lines if self._is_shown(line)]
        return [f"{self._node.name} | {line}" for line in shown]

    def _is_shown(self, line: bytes) -> bool:
        entry = LOG_ENTRY.match(line)
        return self._is_verbose or entry is None or entry[1] not in QUIET_LEVELS


def exit_text(code: int) -> str:
    """`exit code 1`, or the name of the signal."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
