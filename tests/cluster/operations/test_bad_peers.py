"""A node that does not belong to the mesh is refused with a condition, and the mesh goes on."""

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from qmq.testing.local import READY_SECONDS
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_fork import ForkedMesh
from tests.support.cluster_mesh import NODE_FILE, PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

ANSWER_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bad"), node_file=PATIENT_NODE_FILE) as made:
        yield made


@contextlib.contextmanager
def impostor(mesh: Cluster, name: str, peers_text: str) -> Iterator[ForkedMesh]:
    """In place of node `name`, which was killed, another that was given this peers file and has a disk of its own."""
    folder = mesh.folder / f"impostor-{random.randrange(1 << 32):08x}"
    folder.mkdir()
    for file, text in (("peers.toml", peers_text), ("node.toml", NODE_FILE)):
        (folder / file).touch(0o600)
        (folder / file).write_text(text, "utf-8")
    with ForkedMesh(folder / "peers.toml", folder, nodes=[name], config_file=folder / "node.toml") as other:
        other.start(name)
        other.wait_until_ready(timeout_seconds=READY_SECONDS)
        yield other


BAD_PEERS = {
    "wrong-mesh": ('mesh = "three"', 'mesh = "another"'),
    "bad-proof": ('secret = "three-nodes-on-one-machine"', 'secret = "a secret of somebody else"'),
}


@pytest.mark.parametrize("code", BAD_PEERS)
def test_a_node_that_does_not_belong_here_is_refused_and_learns_nothing(mesh: Cluster, code: str) -> None:
    before, after = BAD_PEERS[code]
    destination = f"/fanout/bad.{code}"
    mesh.client("a").publish(destination, b"secret")
    mesh.wait_until_same()
    mesh.kill("c")

    with impostor(mesh, "c", mesh.peers_text.replace(before, after)) as other:
        eventually(lambda: code in mesh.reported("a"), lambda: f"a reports {mesh.reported('a')}")
        eventually(lambda: code in mesh.reported("b"), lambda: f"b raised {mesh.reported('b')}")
        its = Client(other.nodes["c"].address)
        its.publish(destination, b"forged")
        eventually(lambda: said_by(its) & {code, f"refused-{code}"}, lambda: f"the impostor reports {said_by(its)}")
        facts = its.status()
        its.drop()
        got = mesh.client("b").subscribe(destination)
        mesh.client("a").publish(destination, b"after")
        eventually(lambda: len(got) >= 2, "the mesh does not go on beside the impostor")

    assert [message.body for message in got] == [b"secret", b"after"]
    assert {origin.partition("-")[0] for origin in facts["vector"]} == {"c"}
    assert all("up" not in (peer["out"], peer["in"]) for peer in facts["peers"])
    mesh.start("c")
    mesh.wait_for_links()
    again = mesh.client("c").subscribe(destination)
    eventually(lambda: len(again) >= 2, "the rightful node did not catch up")


def said_by(client: Client) -> set[str]:
    """Codes of the conditions and events of the node, now and before."""
    facts = client.status()
    return {one["code"] for one in (*facts["conditions"], *facts["past"])}


def test_a_node_that_the_peers_file_does_not_name_is_refused(mesh: Cluster) -> None:
    text = mesh.peers_text.replace('name = "c"', 'name = "d"')
    mesh.kill("c")

    with impostor(mesh, "d", text):
        eventually(lambda: "unknown-node" in mesh.reported("a"), lambda: f"a reports {mesh.reported('a')}")
        eventually(lambda: "unknown-node" in mesh.reported("b"), lambda: f"b raised {mesh.reported('b')}")

    mesh.wait_for_links(["a", "b"])


GARBAGE = {
    "random bytes": random.Random(5).randbytes(20_000),
    "a web browser": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a TLS client": bytes.fromhex("16030100a5010000a10303") + bytes(200),
    "an endless header": b"CONNECT\nx:" + b"y" * 200_000,
    "a frame before login": b"SEND\ndestination:/fanout/garbage\n\nx\0",
    "a bad length": b"CONNECT\naccept-version:1.2\ncontent-length:99999999999999999999\n\n\0",
    "zeros": bytes(10_000),
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("listener", ["client", "mesh"])
def test_garbage_is_disconnected_and_other_clients_are_unaffected(mesh: Cluster, listener: str, what: str) -> None:
    got = mesh.client("b").subscribe(f"/fanout/garbage.{listener}")
    publisher = mesh.client("a")
    address = mesh.address("a") if listener == "client" else mesh.mesh_address("a")

    answer = say(address, GARBAGE[what])

    assert answer == b"" or answer.startswith(b"ERROR\n")
    publisher.publish(f"/fanout/garbage.{listener}", what.encode())
    eventually(lambda: got and got[-1].body == what.encode(), f"b heard nothing after {what}")
    assert mesh.links("a") == {"b": ("up", "up"), "c": ("up", "up")}


def test_a_stock_client_at_a_mesh_address_is_refused(mesh: Cluster) -> None:
    with pytest.raises(LostError, match="clients have another"):
        Client(mesh.mesh_address("a"))


def test_one_bad_client_does_not_disturb_another_on_the_same_node(mesh: Cluster) -> None:
    good = mesh.client("a")
    got = good.consume("/queue/garbage.beside")
    bad = mesh.client("a")
    with pytest.raises(LostError):
        bad.publish("/queue/garbage.beside", b"x" * (2 << 20))  # over limits.body_bytes_max

    good.publish("/queue/garbage.beside", b"fine")

    eventually(lambda: [message.body for message in got] == [b"fine"], lambda: f"the good client has {len(got)}")


def say(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes to a node and return what it answered until it closed; it must close."""
    with socket.create_connection(address, ANSWER_SECONDS) as line:
        # A node that has heard enough may close while we still talk, and then its last words are lost.
        with contextlib.suppress(ConnectionError):
            line.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := line.recv(65536):
                answer += more
        return answer
