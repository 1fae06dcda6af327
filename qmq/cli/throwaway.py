"""A temporary node or mesh for a measurement or a demonstration, on loopback, with a temporary data directory.

The nodes hold the other end of a pipe of this process (`--until-eof`), so they end with it, even if it is killed. The
log of a node is kept until then, so the error of a node that does not start can be shown.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from ..address import Address
from .launch import POLL_SECONDS, PROGRAM, READY_SECONDS, STOP_SECONDS, LocalMesh, answers, exit_text, tail
from .output import Failed

NODE_FILE = """\
name = "bench"
data = "{data}"

[[stomp]]
address = "{address}"

[limits]
{limits}
"""

HTTP = """
[[http]]
address = "{address}"
"""

PEERS_FILE = """\
mesh = "bench"
version = 1
secret = "throwaway-nodes-on-one-machine"
"""

PEER = """
[[nodes]]
name = "{name}"
client = "{client}"
mesh = "{mesh}"
"""

PEER_HTTP = 'http = "{http}"\n'

MESH_NODE_FILE = """\
{sections}
[limits]
{limits}
"""

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

NODES_MAX = 8
"""The largest mesh."""


class Throwaway:
    """A node in `place`. Its data outlives its process, so it can be killed and started again."""

    def __init__(self, place: Path, limits: Mapping[str, int], core: int | None, *, has_web: bool = False) -> None:
        """`limits` are those of the node file that differ from the defaults; all its threads run on `core`."""
        self.address, self.web_address = free_addresses(2)
        self._core = core
        self._log = place / "node.log"
        self._node_file = place / "node.toml"
        text = NODE_FILE.format(data=place / "data", address=self.address, limits=_lines(limits))
        self._node_file.write_text(text + (HTTP.format(address=self.web_address) if has_web else ""), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    def start(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Start it and wait until it answers. Raises Failed when it does not."""
        command = [*PROGRAM, "serve", "--config", str(self._node_file), "--log-level", "warning", "--until-eof"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        if self._core is not None:
            os.sched_setaffinity(process.pid, {self._core})  # before it has threads: they inherit it
        deadline = time.monotonic() + timeout_seconds
        while not answers(self.address):
            code = process.poll()
            if code is not None:
                raise Failed(f"the throwaway node ended with {exit_text(code)}:\n{tail(self._log)}")
            if time.monotonic() > deadline:
                raise Failed(f"the throwaway node did not answer within {timeout_seconds:g} s:\n{tail(self._log)}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kill its process, as a crash would. Idempotent."""
        if self._process is not None:
            with self._process:  # This waits for it and closes its pipe.
                self._process.kill()

    def stop(self) -> None:
        """Stop its process, and kill it at the timeout. Idempotent."""
        if self._process is None:
            return
        with self._process:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()


def exit_on_signals() -> None:
    """From now on, SIGTERM, and SIGHUP unless it is ignored, raise SystemExit, so that throwaway nodes are stopped."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    # A closed terminal sends SIGHUP more than once; the second one would interrupt the clean-up.
    for other in ENDING_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def throwaway(
    folder: Path | None, limits: Mapping[str, int], core: int | None, *, has_web: bool = False
) -> Iterator[Throwaway]:
    """A started node with its data in `folder`, or in the default of the system. Raises Failed if it does not start."""
    with _place(folder) as place:
        node = Throwaway(Path(place), limits, core, has_web=has_web)
        try:
            node.start()
            yield node
        finally:
            node.stop()


@contextlib.contextmanager
def throwaway_mesh(
    folder: Path | None,
    limits: Mapping[str, int],
    core: int | None,
    nodes: int,
    *,
    has_web: bool = False,
    sections: str = "",
) -> Iterator[LocalMesh]:
    """Started nodes a, b, …, each with `limits` and other `sections` of a node file, all on `core` if it is given.

    They answer clients; their links may not be up yet. Raises Failed if one does not start.
    """
    names = "abcdefgh"[:nodes]
    addresses = free_addresses(3 * nodes)
    with _place(folder) as place:
        peers, config = Path(place, "peers.toml"), Path(place, "node.toml")
        text = "".join(
            PEER.format(name=name, client=client, mesh=link) + (PEER_HTTP.format(http=http) if has_web else "")
            for name, client, link, http in zip(names, addresses[::3], addresses[1::3], addresses[2::3], strict=True)
        )
        peers.touch(0o600)
        peers.write_text(PEERS_FILE + text, "utf-8")
        config.write_text(MESH_NODE_FILE.format(sections=sections, limits=_lines(limits)), "utf-8")
        with LocalMesh(peers, Path(place, "data"), config_file=config, log_level="warning", bound=True) as mesh:
            mesh.start_all()
            for node in mesh.nodes.values():
                if core is not None and node.process is not None:
                    os.sched_setaffinity(node.process.pid, {core})
            mesh.wait_until_ready()
            yield mesh


def _place(folder: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A temporary directory in `folder`. Raises Failed if it cannot be created."""
    try:
        return tempfile.TemporaryDirectory(prefix="qmq-bench-", dir=folder)
    except OSError as error:
        raise Failed(f"{folder or tempfile.gettempdir()}: {error.strerror or error}") from error


def free_addresses(count: int) -> list[Address]:
    """Different loopback addresses that are free now."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [Address(*server.getsockname()) for server in servers]


def _lines(limits: Mapping[str, int]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in limits.items())
