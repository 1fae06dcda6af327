"""A mesh of `qmq.testing` whose peers files are those in cluster/, with free ports in place of the fixed ones.

Its nodes are forks, its clients are stomp.py's, and it can be made healthy: every node runs and every link is up, which
is where each test begins.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qmq.cli.launch import tail
from qmq.testing.local import QUICK, READY_SECONDS, MeshUnderTest
from qmq.testing.ports import free_ports
from qmq.testing.proxy import BACK, FORTH

from .cluster_client import Client, LostError
from .cluster_fork import ForkedMesh
from .cluster_wait import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).parents[2]

LOG_LINES = 40
"""Of each node, beside a failure."""

NODE_FILE = QUICK
PATIENT_NODE_FILE = NODE_FILE.replace("suspicion_seconds = 2.0", "suspicion_seconds = 10.0")
"""For chapters that neither pause nor cut a node: on a busy machine, a slow node is not taken for one that is away. The
end of a process is still noticed at once."""

QUICK_TAKEOVER = """\
takeover_after_seconds = 3.0
receipt_degrade_seconds = 15.0
"""
"""More for the node files of tests that go on without a node: what it has confirmed must be on a second disk. By the
default a node confirms after one second without a copy, and says so in ways that few clients look at."""


def with_secret(peers: str) -> str:
    """A peers file of cluster/ with a secret of its own, in place of that of the clone."""
    return re.sub(r'^secret_file = "(.*)\.secret"$', r'secret = "\1-nodes-on-one-machine"', peers, flags=re.MULTILINE)


class Cluster(MeshUnderTest):
    """Nodes of one file in cluster/. Used in a `with`: at its end every process is gone."""

    def __init__(
        self,
        folder: Path,
        template: str = "three.toml",
        *,
        members: Sequence[str] | None = None,
        cuttable: Iterable[tuple[str, str]] = (),
        secret: bool = True,
        node_files: Mapping[str, str] | None = None,
        node_file: str = NODE_FILE,
    ) -> None:
        """`cuttable` are pairs of nodes whose links, both ways, go through proxies that can cut, and count.

        With `members` only these nodes of the file belong to the mesh, until `change_peers` says otherwise. Without
        `secret` the peers file has none. `node_file` is what the node files begin with; `node_files` gives text to add
        to those of single nodes.
        """
        text = with_secret((ROOT / "cluster" / template).read_text("utf-8"))
        if not secret:
            text = re.sub(r"^secret = .*\n", "", text, flags=re.MULTILINE)
        addresses = sorted(set(re.findall(r"127\.0\.0\.1:\d+", text)))
        for address, port in zip(addresses, free_ports(len(addresses)), strict=True):
            text = text.replace(address, f"127.0.0.1:{port}")
        super().__init__(folder, text, node_files=node_file, cuttable=cuttable, launch=ForkedMesh)
        for name, more in (node_files or {}).items():
            self.node_files[name] += more
        self.logins: dict[str, tuple[str, str]] = {}
        """Of nodes that have users: name and passcode of one who may read, for `status`."""
        self.names = list(members or self.names)
        self.peers_version = 1
        if members is not None:
            self.change_peers(self.names, version=1)
        self._clients: list[Client] = []
        self._probes: dict[str, Client] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_clients()
        for probe in self._probes.values():
            probe.drop()
        self.close()

    def address(self, name: str) -> tuple[str, int]:
        """Where clients of that node go."""
        host, port = self.fleet.nodes[name].address
        return host, port

    def web_address(self, name: str) -> tuple[str, int]:
        """Where HTTP clients go."""
        return self.served(name, "http")

    def amqp_port(self, name: str) -> int:
        """Where AMQP clients go, on this machine."""
        return self.served(name, "amqp")[1]

    def beanstalk_address(self, name: str) -> tuple[str, int]:
        """Where beanstalkd clients go."""
        return self.served(name, "beanstalk")

    # Clients

    def client(self, name: str, version: str = "1.2", **options: Any) -> Client:
        """A stomp.py connection to a node; closed at the end of the test."""
        client = Client(self.address(name), version, **options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            client.drop()

    # Nodes

    def wipe(self, name: str) -> None:
        """Take away the data of a node that does not run, as a burnt disk would."""
        assert not self.fleet.nodes[name].is_alive
        shutil.rmtree(self.fleet.nodes[name].data)

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target`, whoever of them has dialled."""
        self.proxies[source, target].cut(FORTH)
        self.proxies[target, source].cut(BACK)

    def hold(self, one: str, other: str) -> None:
        """What the two send to each other waits, and arrives when it heals."""
        self.proxies[one, other].hold()
        self.proxies[other, one].hold()

    def slow(self, one: str, other: str, bytes_per_second: float) -> None:
        """Each connection between the two passes on no more than that in each direction."""
        self.proxies[one, other].slow(bytes_per_second)
        self.proxies[other, one].slow(bytes_per_second)

    def bytes_between(self, one: str, other: str) -> int:
        """What has crossed the line between the two so far, both ways."""
        return self.proxies[one, other].bytes_passed + self.proxies[other, one].bytes_passed

    def make_healthy(self, delivers_within: float = PATIENCE_SECONDS) -> None:
        """Every node runs and delivers, every line is whole, every link is up.

        A node with a new disk delivers when it has caught up.
        """
        for proxy in self.proxies.values():
            proxy.heal()
        for name in self.names:
            if self.fleet.nodes[name].is_alive:
                self.fleet.resume(name)
            else:
                self.start_soon(name)
        self.fleet.wait_until_ready(self.names, READY_SECONDS)
        self.wait_for_links()
        eventually(
            lambda: not any(self.status(name).get("held", True) for name in self.names),
            lambda: f"held: { {name: self.status(name).get('held') for name in self.names} }",
            delivers_within,
        )

    # What nodes say

    def status(self, name: str) -> dict[str, Any]:
        """The node's status; {} when it does not answer."""
        try:
            probe = self._probes.get(name)
            if probe is None or probe.ended.is_set():
                probe = self._probes[name] = Client(self.address(name), login=self.logins.get(name))
            return probe.status(seconds=5.0)
        except LostError:
            lost = self._probes.pop(name, None)
            if lost is not None:
                lost.drop()
            return {}

    def misses(self, name: str, peer: str) -> bool:
        """Whether node `name` says that both links with `peer` are not up."""
        states = self.links(name).get(peer)
        return states is not None and "up" not in states

    def conditions(self, name: str) -> set[str]:
        """Codes of the node's conditions now."""
        return {one["code"] for one in self.status(name).get("conditions", ())}

    def reported(self, name: str) -> set[str]:
        """Codes of the node's conditions now, of its events, and of the conditions that are over."""
        return self.conditions(name) | {one["code"] for one in self.status(name).get("past", ())}

    def depth(self, name: str, queue: str) -> int:
        """Unsettled messages of `queue` that the node owns; -1 when it does not answer."""
        rows = self.status(name).get("queues")
        if rows is None:
            return -1
        return sum(row["messages"] for row in rows if row["destination"] == queue)

    def wait_until_same(self, names: Sequence[str] | None = None) -> None:
        """Return once `names` (all) have the same vector: what one node holds, all hold.

        What one of them has forgotten is left out: all have had it, and each forgets in its own time.
        """
        wanted = list(names or self.names)

        def vectors() -> list[dict[str, int]]:
            pictures = [self.status(name) for name in wanted]
            forgotten = {origin for picture in pictures for origin in picture.get("collected", ())}
            return [
                {origin: last for origin, last in picture.get("vector", {}).items() if origin not in forgotten}
                for picture in pictures
            ]

        def same() -> bool:
            first, *others = vectors()
            return bool(first) and all(other == first for other in others)

        eventually(same, lambda: f"nodes {wanted} do not hold the same records: {vectors()}")

    def wait_until_copied(self, name: str) -> None:
        """Return once every other node has what `name` has now: as much is safe when it is killed."""

        def own(picture: Mapping[str, Any]) -> dict[str, int]:
            return {origin: last for origin, last in picture.get("vector", {}).items() if origin.startswith(f"{name}-")}

        wanted = eventually(lambda: own(self.status(name)), f"{name} does not say what it has")

        def has_all(other: str) -> bool:
            got = own(self.status(other))
            return all(got.get(origin, 0) >= last for origin, last in wanted.items())

        others = [other for other in self.names if other != name]
        eventually(lambda: all(map(has_all, others)), lambda: f"{others} do not have {wanted}")

    def wait_until_clear(self, names: Sequence[str] | None = None) -> None:
        """Return once none of `names` (all) has a condition."""
        wanted = list(names or self.names)

        def found() -> dict[str, Any]:
            statuses = {name: self.status(name) for name in wanted}
            return {name: one.get("conditions", "no answer") for name, one in statuses.items()}

        eventually(lambda: not any(found().values()), lambda: f"conditions are left: {found()}")

    def log_tails(self) -> list[tuple[str, str]]:
        """The end of every node's log."""
        return [(name, tail(node.log, LOG_LINES)) for name, node in self.fleet.nodes.items()]

    def write_node_file(self, name: str) -> Path:
        """Put what `node_files` says into the file of the node."""
        return self.write(f"node-{name}.toml", self.node_files[name])

    def change_peers(self, names: Sequence[str], *, version: int | None = None) -> None:
        """From now on these belong to the mesh: a peers file for each, of the next version. Nobody is told of it."""
        self.names = list(names)
        self.peers_version = self.peers_version + 1 if version is None else version
        head, *nodes = self.peers_text.split("[[nodes]]")
        head = head.replace("version = 1", f"version = {self.peers_version}")
        chosen = [text for name, text in zip(self.fleet.nodes, nodes, strict=True) if name in names]
        for name in names:
            self.write_peers(name, "[[nodes]]".join([head, *chosen]))
