"""A node without a disk in a mesh, as processes: what it has counts as no copy, and it gets back what it forgets."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.testing.ports import free_ports
from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_wait import eventually

NAMES = "abc"
WITHOUT_DISK = "c"


class Machine:
    """Three nodes of this machine, of which the last one has no disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: list[Client] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(2 * len(NAMES))
        self.ports = dict(zip(NAMES, ports, strict=False))
        peers = ['mesh = "forgetful"', "version = 1", 'secret = "of-three-nodes-on-one-machine"']
        for name, mesh_port in zip(NAMES, ports[len(NAMES) :], strict=True):
            (folder / name).mkdir()
            data = "memory" if name == WITHOUT_DISK else "data"
            (folder / name / "node.toml").write_text(
                f'name = "{name}"\npeers = "../peers.toml"\ndata = "{data}"\n[mesh]\nsuspicion_seconds = 5\n', "utf-8"
            )
            addresses = [f'client = "127.0.0.1:{self.ports[name]}"', f'mesh = "127.0.0.1:{mesh_port}"']
            peers += ["[[nodes]]", f'name = "{name}"', *addresses, *["memory = true"] * (name == WITHOUT_DISK)]
        (folder / "peers.toml").write_text("\n".join(peers), "utf-8")
        (folder / "peers.toml").chmod(0o600)

    def start(self, *names: str) -> None:
        for name in names:
            config = str(self.folder / name / "node.toml")
            with (self.folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "qmq", "serve", "--config", config]
                self._running[name] = subprocess.Popen(command, stdout=log, stderr=log)
        for name in names:
            eventually(lambda n=name: self.links(n) is not None, lambda n=name: f"{n} does not answer: {self.log(n)}")

    def kill(self, *names: str) -> None:
        for name in names:
            self._running[name].kill()
            self._running.pop(name).wait()

    def client(self, name: str) -> Client:
        made = Client(("127.0.0.1", self.ports[name]))
        self._clients.append(made)
        return made

    def links(self, name: str) -> dict[str, str] | None:
        """Peer → the state of both links; None while the node does not answer."""
        with contextlib.suppress(LostError, OSError):
            return {peer["name"]: f"{peer['out']} {peer['in']}" for peer in self.client(name).status()["peers"]}
        return None

    def wait_for_links(self, *names: str) -> None:
        wanted = {name: dict.fromkeys(set(names) - {name}, "up up") for name in names}

        def are_up() -> bool:
            found = {name: self.links(name) or {} for name in names}
            return all(found[name].items() >= wanted[name].items() for name in names)

        eventually(are_up, lambda: f"links: { {name: self.links(name) for name in names} }")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")[-2000:]

    def close(self) -> None:
        for client in self._clients:
            client.drop()
        self.kill(*self._running)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        made.start(*NAMES)
        made.wait_for_links(*NAMES)
        yield made
    finally:
        made.close()


def test_what_it_has_is_no_copy(machine: Machine) -> None:
    client = machine.client("a")
    machine.kill("b")

    receipt = client.send("/queue/q", b"one", receipt=True, receipt_level="replicas=1")
    got = machine.client("c").subscribe("/queue/q")

    # Node c has it, and has confirmed that it does: it delivers it.
    eventually(lambda: bodies(got) == [b"one"], lambda: f"c has {bodies(got)}")
    client.wait_receipts([receipt])
    assert client.receipts[receipt]["copies"] == "1", client.receipts[receipt]


def test_it_says_accepted_and_gets_back_what_others_have(machine: Machine, tmp_path: Path) -> None:
    forgetful = machine.client("c")
    for destination in ("/queue/kept", "/fanout/kept"):
        receipt = forgetful.send(destination, b"of c", receipt=True)
        forgetful.wait_receipts([receipt])
        assert forgetful.receipts[receipt]["receipt-level"] == "accepted"
    machine.client("a").publish("/fanout/kept", b"of a")
    at_b = machine.client("b").subscribe("/fanout/kept", headers={"x-stream-offset": "first"})
    eventually(lambda: set(bodies(at_b)) == {b"of a", b"of c"}, lambda: f"b has {bodies(at_b)}")

    machine.kill("c")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["node.toml"]
    machine.start("c")
    machine.wait_for_links(*NAMES)

    kept = machine.client("c").subscribe("/fanout/kept", headers={"x-stream-offset": "first"})
    eventually(lambda: set(bodies(kept)) == {b"of a", b"of c"}, lambda: f"c has {bodies(kept)} again")
    jobs = machine.client("a").consume("/queue/kept")
    eventually(lambda: bodies(jobs) == [b"of c"], lambda: f"a gets {bodies(jobs)}")


def test_with_one_of_two_disks_gone_no_other_node_serves_its_messages(machine: Machine) -> None:
    machine.client("b").publish("/queue/of-b", b"waits")
    machine.kill("b")

    got = [machine.client(name).subscribe("/queue/of-b") for name in "ac"]
    machine.client("a").publish("/queue/of-b", b"of a")
    eventually(lambda: sum(map(len, got)) == 1, lambda: f"{[bodies(one) for one in got]}")
    assert [body for one in got for body in bodies(one)] == [b"of a"]

    assert machine.client("a").status()["takeover"]["active"] is False
    machine.start("b")
    eventually(lambda: sum(map(len, got)) == 2, lambda: f"{[bodies(one) for one in got]}")
