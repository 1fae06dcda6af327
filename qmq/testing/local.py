"""A mesh of real node processes on loopback that a test may kill, stop and cut: the blocking style.

Everything is in one folder: peers files, node files, data and logs. Lines between nodes that may be cut go through
proxies: each end finds the address of a proxy in its peers file. The calls of one mesh are for one thread at a time.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from qmq.cli.client import CommandClient, ask_over
from qmq.cli.launch import LocalMesh
from qmq.cli.output import Failed
from qmq.protocols import declarations
from qmq.testing.ports import free_ports
from qmq.testing.proxy import Proxy

READY_SECONDS: Final = 60.0
"""For a node to answer, and for links to be up, where other programs have most of the machine. A node that ends is
noticed at once."""

POLL_SECONDS: Final = 0.03

NODES_MAX: Final = 8

QUICK: Final = """\
[mesh]
redial_seconds_max = 0.5
beat_seconds = 0.5
suspicion_seconds = 2.0
redeliver_after_seconds = 3.0
"""
"""Quicker than the defaults, so that tests wait less; what is promised is the same."""

TAKEOVER: Final = "takeover_after_seconds = 3.0\n"

Launch = Callable[[Path, Path], LocalMesh]
"""Makes the processes of a peers file, with their data in a folder."""


def bound_processes(peers: Path, data: Path) -> LocalMesh:
    """Those that end with this process, in every case."""
    return LocalMesh(peers, data, bound=True)


class MeshUnderTest:
    """Nodes on this machine, by name. `close` ends their processes.

    All calls block. `kill`, `cut` and the like raise KeyError for a name that the mesh does not have. After an error of
    `start` (click.ClickException, with the end of the node's log) the other nodes run on.
    """

    def __init__(
        self,
        folder: Path,
        peers: str,
        *,
        node_files: Mapping[str, str] | str = "",
        cuttable: Iterable[tuple[str, str]] = (),
        launch: Launch = bound_processes,
    ) -> None:
        """Start nothing yet. `peers` is the text of the peers file; `node_files` that of the node files.

        `cuttable`: pairs of nodes whose links, both ways, go through proxies that can cut, and count.
        """
        self.folder = folder
        self.peers_text = peers
        self.peers_path = self.write("peers.toml", peers)
        self.fleet = launch(self.peers_path, folder / "data")
        self.names: list[str] = list(self.fleet.nodes)
        """The nodes that belong to the mesh."""
        given = dict.fromkeys(self.names, node_files) if isinstance(node_files, str) else node_files
        self.node_files = dict(given)
        """What the node file of each says when it starts next."""
        self.proxies: dict[tuple[str, str], Proxy] = {}
        for one, other in cuttable:
            self._put_proxy(one, other)
            self._put_proxy(other, one)

    def close(self) -> None:
        """End all processes."""
        self.fleet.stop_all()
        for proxy in self.proxies.values():
            proxy.close()

    # Addresses

    def at(self, name: str) -> str:
        """Where STOMP clients find a node, as `connect` and `--at` take it."""
        return str(self.fleet.nodes[name].address)

    @property
    def addresses(self) -> list[str]:
        """That of each node."""
        return [self.at(name) for name in self.names]

    def served(self, name: str, protocol: str) -> tuple[str, int]:
        """Host and port for clients of another protocol: `http`, `amqp` or `beanstalk`."""
        host, port = self._peer(name).served[protocol]
        return host, port

    def mesh_address(self, name: str) -> tuple[str, int]:
        """Where the other nodes go."""
        host, port = self._peer(name).mesh
        return host, port

    def _peer(self, name: str) -> Any:
        return next(peer for peer in self.fleet.peers.nodes if peer.name == name)

    # Nodes

    def start(self, *names: str) -> None:
        """Start nodes, and wait until they answer."""
        self.start_soon(*names)
        self.fleet.wait_until_ready(names, READY_SECONDS)

    def start_soon(self, *names: str) -> None:
        """Start nodes without waiting for them."""
        for name in names:
            self.fleet.config_file = self.write(f"node-{name}.toml", self.node_files[name])
            self.fleet.start(name)

    def restart(self, *names: str) -> None:
        """Stop nodes in order, if they run, and start them again, with their data. Waits until they have links."""
        for name in names:
            self.stop(name)
        self.start(*names)
        running = [name for name in self.names if self.fleet.nodes[name].is_alive]
        self.wait_for_links(running)

    def kill(self, *names: str) -> None:
        """`kill -9`."""
        for name in names:
            self.fleet.kill(name)

    def stop(self, name: str) -> int | None:
        """SIGTERM; the exit code."""
        return self.fleet.stop(name)

    def pause(self, name: str) -> None:
        """The process stands still, with its connections open (SIGSTOP)."""
        self.fleet.pause(name)

    def resume(self, name: str) -> None:
        """It runs again."""
        self.fleet.resume(name)

    # Lines between nodes

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two, in either direction, as behind a firewall that drops."""
        self.proxies[one, other].cut()
        self.proxies[other, one].cut()

    def heal(self, one: str, other: str) -> None:
        """What was cut passes again."""
        self.proxies[one, other].heal()
        self.proxies[other, one].heal()

    # What nodes say

    def status(self, name: str) -> dict[str, Any]:
        """What `qmq status` says of the node; {} when it does not answer."""
        with suppress(Failed), CommandClient(self.fleet.nodes[name].address, timeout_seconds=5.0) as client:
            return ask_over(client, "status")
        return {}

    def links(self, name: str) -> dict[str, tuple[str, str]]:
        """Peer → how the links to it and from it are."""
        return {peer["name"]: (peer["out"], peer["in"]) for peer in self.status(name).get("peers", ())}

    def wait_for_links(self, names: Sequence[str] | None = None) -> None:
        """Return once `names` (all) are linked with each other both ways, and deliver. Raises TimeoutError."""
        wanted = list(names or self.names)
        deadline = time.monotonic() + READY_SECONDS
        while not all(self._is_linked(name, wanted) for name in wanted):
            if time.monotonic() > deadline:
                raise TimeoutError(f"links are not up: { {name: self.links(name) for name in wanted} }")
            time.sleep(POLL_SECONDS)

    def _is_linked(self, name: str, wanted: Sequence[str]) -> bool:
        links = self.links(name)
        return all(links.get(other) == ("up", "up") for other in wanted if other != name)

    # Files

    def _put_proxy(self, caller: str, callee: str) -> None:
        """Let `caller` reach `callee` through a proxy: its peers file gives the proxy's address for it."""
        (port,) = free_ports(1)
        self.proxies[caller, callee] = Proxy(port, self.mesh_address(callee))
        self.write_peers(caller, self.peers_text)

    def write_peers(self, caller: str, text: str) -> None:
        """The peers file of one node: the others behind its proxies, where it has some."""
        for (one, callee), proxy in self.proxies.items():
            if one == caller:
                host, real = self.mesh_address(callee)
                text = text.replace(f'mesh = "{host}:{real}"', f'mesh = "{host}:{proxy.address[1]}"')
        self.fleet.peers_files[caller] = self.write(f"peers-{caller}.toml", text)

    def write(self, name: str, text: str) -> Path:
        """A file in the folder; its path."""
        path = self.folder / name
        path.touch(0o600)  # the secret of the mesh may be in it
        path.write_text(text, "utf-8")
        return path


def peers_of(count: int) -> str:
    """The peers file of so many nodes a, b, …, each with a port for every protocol. Raises ValueError."""
    if not 1 <= count <= NODES_MAX:
        raise ValueError(f"a mesh has 1 to {NODES_MAX} nodes, not {count}")
    text = 'mesh = "testing"\nversion = 1\nsecret = "nodes-of-a-test-on-one-machine"\n'
    keys = ["client", "mesh", *(one.name for one in declarations() if one.name != "stomp")]
    for name in "abcdefgh"[:count]:
        lines = [f'{key} = "127.0.0.1:{port}"\n' for key, port in zip(keys, free_ports(len(keys)), strict=True)]
        text += f'\n[[nodes]]\nname = "{name}"\n{"".join(lines)}'
    return text


@contextmanager
def mesh(count: int = 3, *, folder: Path | None = None, config: str = QUICK + TAKEOVER) -> Iterator[MeshUnderTest]:
    """So many nodes a, b, …, all linked, each pair of which can be cut; stopped at the end.

    `config` is the node file of each. `folder`, which must exist, keeps data and logs; by default they are temporary.
    """
    with TemporaryDirectory(prefix="qmq-testing-") as temporary:
        made = MeshUnderTest(
            folder or Path(temporary),
            peers_of(count),
            node_files=config,
            cuttable=combinations("abcdefgh"[:count], 2),
        )
        try:
            made.start(*made.names)
            made.wait_for_links()
            yield made
        finally:
            made.close()


class NodeUnderTest:
    """A mesh of one node."""

    def __init__(self, mesh: MeshUnderTest) -> None:
        self.mesh = mesh
        self.at = mesh.at("a")
        """Where STOMP clients find it."""

    def served(self, protocol: str) -> tuple[str, int]:
        """Host and port for clients of `http`, `amqp` or `beanstalk`."""
        return self.mesh.served("a", protocol)

    def kill(self) -> None:
        """`kill -9`."""
        self.mesh.kill("a")

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        self.mesh.stop("a")

    def restart(self) -> None:
        """Stop it in order, if it runs, and start it again, with its data."""
        self.mesh.restart("a")


@contextmanager
def node(*, folder: Path | None = None, config: str = QUICK) -> Iterator[NodeUnderTest]:
    """One node; `folder` and `config` as for `mesh`."""
    with mesh(1, folder=folder, config=config) as made:
        yield NodeUnderTest(made)
