"""A data directory is copied: started twice under one name, or put back later. Neither loses or repeats anything."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.testing.local import READY_SECONDS
from qmq.testing.ports import free_ports
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client
from tests.support.cluster_fork import ForkedMesh
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


class Twin:
    """Another process that calls itself a, on a copy of a's directory and with addresses of its own."""

    def __init__(self, mesh: Cluster, folder: Path) -> None:
        text = mesh.peers_text
        peer = mesh.fleet.peers.peer("a")
        assert peer is not None
        addresses = peer.addresses
        for address, port in zip(addresses, free_ports(len(addresses)), strict=True):
            text = text.replace(str(address), f"127.0.0.1:{port}")
        folder.mkdir()
        peers = folder / "peers-twin.toml"
        peers.touch(0o600)
        peers.write_text(text, "utf-8")
        self.fleet = ForkedMesh(peers, folder, nodes=["a"], config_file=mesh.write_node_file("a"))
        mesh.pause("a")  # as a snapshot of its volume is: of one moment
        shutil.copytree(mesh.fleet.nodes["a"].data, folder / "a", ignore=shutil.ignore_patterns("*.sock"))
        mesh.resume("a")
        mesh.wait_for_links()  # a long copy may have cost some

    def client(self) -> Client:
        host, port = self.fleet.nodes["a"].address
        return Client((host, port))

    def reported(self, client: Client) -> set[str]:
        status = client.status(seconds=5.0)
        return {one["code"] for one in (*status["conditions"], *status["past"])}


def counts_and_delivers(mesh: Cluster, name: str) -> bool:
    status = mesh.status(name)
    return bool(status) and not status["membership"]["learner"] and not status["held"]


@pytest.fixture
def twin(mesh: Cluster, tmp_path: Path) -> Iterator[Twin]:
    """Made while a runs, and not started."""
    mesh.client("a").publish("/queue/twice", *numbered("before", 20))
    mesh.wait_until_same()
    made = Twin(mesh, tmp_path / "twin")
    with made.fleet:
        yield made


def test_a_second_process_on_a_copy_is_refused_by_all_and_hands_out_nothing(mesh: Cluster, twin: Twin) -> None:
    twin.fleet.start("a")
    twin.fleet.wait_until_ready(timeout_seconds=READY_SECONDS)
    at_twin = twin.client()
    stolen = at_twin.subscribe("/queue/twice")

    eventually(
        lambda: "refused-duplicate-node" in twin.reported(at_twin),
        lambda: f"the twin reports: {twin.reported(at_twin)}",
    )
    eventually(
        lambda: all("duplicate-node" in mesh.reported(name) for name in "bc"),
        lambda: f"b: {mesh.reported('b')}, c: {mesh.reported('c')}",
    )
    more = numbered("after", 20)
    mesh.client("a").publish("/queue/twice", *more)
    got = mesh.client("c").consume("/queue/twice")
    eventually(lambda: len(got) >= 40, lambda: f"c has {len(got)} of 40")

    assert bodies(got) == [*numbered("before", 20), *more]
    assert stolen == []
    at_twin.drop()


def test_a_copy_that_is_started_when_the_first_has_died_is_that_node_with_an_old_disk(
    mesh: Cluster, twin: Twin
) -> None:
    """It was made before most of this happened, and learns it from the others before it counts."""
    consumer = mesh.client("c")
    settled = consumer.consume("/queue/twice")
    eventually(lambda: len(settled) >= 20, lambda: f"c has {len(settled)} of 20")
    consumer.leave()
    kept = numbered("kept", 30)
    mesh.client("a").publish("/fanout/copied", *kept)
    mesh.wait_until_same()
    mesh.kill("a")

    # Put back where the first one was, as an operator restores a backup.
    data = mesh.fleet.nodes["a"].data
    shutil.rmtree(data)
    shutil.copytree(twin.fleet.nodes["a"].data, data)
    mesh.start("a")
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: "old-disk" in mesh.reported("a"), lambda: f"a: {mesh.reported('a')}")
    eventually(lambda: counts_and_delivers(mesh, "a"), "a does not get over its old disk")
    read = mesh.client("a").subscribe("/fanout/copied", headers={"x-stream-offset": "first"})
    eventually(lambda: len(read) >= 30, lambda: f"a has {len(read)} of 30")
    again = mesh.client("a").consume("/queue/twice")
    mesh.client("a").publish("/queue/twice", b"new")
    eventually(lambda: len(again) >= 1, "nothing comes from a's queue")
    assert bodies(read) == kept
    assert bodies(again) == [b"new"]
