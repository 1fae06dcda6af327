"""The peers file changes while the mesh runs: nodes are added and moved, and what would cut the mesh is refused."""

from dataclasses import asdict

import pytest
from trio.testing import MockClock

from qmq.admin.facts.status import membership_of
from qmq.config import PeersFile
from qmq.node.node import Node
from tests.mesh.membership.test_members import all_count, codes
from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import eventually, send, subscribe
from tests.support.conditions import present


async def test_a_fourth_node_is_dialled_learns_and_then_counts(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        await client.send(send("/queue/jobs", "before", "r1"))
        assert await client.receipt() == "r1"
        larger = mesh.peers_file("a", "b", "c", "d", version=2)

        for name in "abc":
            assert await mesh.reload(name, larger)
        d = await mesh.start("d", larger)
        await mesh.until_linked()
        await eventually(lambda: all_count(mesh))

        worker = await mesh.connect("d")
        await worker.send(subscribe("/queue/jobs"))
        assert await worker.messages(1) == [b"before"]
        assert asdict(membership_of(d.membership)) == {
            "peers_version": 2,
            "members": ["a", "b", "c", "d"],
            "learner": False,
            "lists": 1,
            "retired": [],
        }
        assert all("old-disk" not in codes(node) for node in mesh.nodes.values())


async def test_while_one_node_has_not_read_the_new_file_it_gets_the_newcomers_records_through_the_others(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        larger = mesh.peers_file("a", "b", "c", "d", version=2)
        for name in "ab":
            assert await mesh.reload(name, larger)
        d = await mesh.start("d", larger)
        await eventually(lambda: mesh.link("d", "a") == mesh.link("a", "d") == "caught-up")
        client = await mesh.connect("d")

        await client.send(send("/fanout/log", "news", "r1"))
        await client.receipt()

        c = mesh.nodes["c"]
        await eventually(lambda: c.engine.path.durable_vector().get(d.origin, 0) >= 2)
        assert "unknown-origin" not in codes(c)
        assert not mesh.nodes["a"].membership.is_majority({"a", "d"})
        assert mesh.nodes["a"].membership.is_majority({"a", "b", "c"})
        assert membership_of(mesh.nodes["a"].membership).lists == 2

        assert await mesh.reload("c", larger)
        await mesh.until_linked()
        await eventually(lambda: membership_of(mesh.nodes["a"].membership).lists == 1)


async def test_a_newcomers_records_go_on_through_nodes_that_only_know_of_it_from_others(
    autojump_clock: MockClock,
) -> None:
    """Only a and d have read the new file. c hears nothing of a, and e nothing but of c."""
    async with MeshRig("a", "b", "c", "e").run() as mesh:
        for one, other in ("ac", "ae", "be"):
            mesh.cut(one, other)
        larger = mesh.peers_file("a", "b", "c", "e", "d", version=2)
        assert await mesh.reload("a", larger)
        d = await mesh.start("d", larger)
        await eventually(lambda: mesh.link("d", "a") == mesh.link("a", "d") == "caught-up")
        client = await mesh.connect("d")

        await client.send(send("/fanout/log", "news", "r1"))
        await client.receipt()

        e = mesh.nodes["e"]
        await eventually(lambda: e.engine.path.durable_vector().get(d.origin, 0) >= 2)
        assert all("unknown-origin" not in codes(node) for node in mesh.nodes.values())


async def test_a_peer_with_another_address_is_dialled_there(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        moved = _with_address(mesh.peers_file("a", "b", version=2), "b", "127.0.1.77")
        await mesh.stop("b")

        assert await mesh.reload("a", moved)

        a = mesh.nodes["a"].mesh
        assert a is not None
        await eventually(lambda: "127.0.1.77" in a.statistics().peers[0].last_error)

        assert await mesh.reload("a", mesh.peers_file("a", "b", version=3))
        await mesh.start("b")
        await mesh.until_linked()


async def test_a_link_that_is_up_ends_when_its_peer_has_another_address(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        assert mesh.link("a", "b") == "caught-up"

        assert await mesh.reload("a", _with_address(mesh.peers_file("a", "b", version=2), "b", "127.0.1.77"))

        await eventually(lambda: mesh.link("a", "b") == "down")
        assert mesh.link("b", "a") == "caught-up"  # b dials a where it was


@pytest.mark.parametrize(
    ("names", "version", "sentence"),
    [("ab", 2, "qmq mesh retire c"), ("abcd", 1, "must be more than 1"), ("abcde", 2, "each version")],
)
async def test_a_file_that_must_not_follow_changes_nothing_and_says_why(
    names: str, version: int, sentence: str, autojump_clock: MockClock
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = mesh.nodes["a"]

        assert not await mesh.reload("a", mesh.peers_file(*names, version=version))

        (one,) = [one for one in present(a) if one["code"] == "reload"]
        assert sentence in one["message"]
        assert a.membership.peers == ["b", "c"]
        assert mesh.link("a", "c") == "caught-up"


async def test_receipts_count_the_disks_of_added_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        larger = mesh.peers_file("a", "b", "c", version=2)
        assert _level(mesh.nodes["a"]) == 0
        for name in "ab":
            assert await mesh.reload(name, larger)
        await mesh.start("c", larger)
        await mesh.until_linked()
        await eventually(lambda: all_count(mesh))

        assert _level(mesh.nodes["a"]) == 1
        client = await mesh.connect("a")
        await client.send(send("/queue/jobs", "1", "r1", receipt_level="replicas=2"))

        assert "copies" not in (await client.next("RECEIPT")).head.headers


def _level(node: Node) -> int:
    """How many other disks a receipt waits for that asks for nothing."""
    return node.settings_parts.rules.level("/queue/jobs")


def _with_address(peers: PeersFile, name: str, host: str) -> PeersFile:
    assert host_of(0) != host
    nodes = [
        peer.replace({"mesh": peer.mesh._replace(host=host)})
        if hasattr(peer.mesh, "_replace") and peer.name == name
        else peer
        for peer in peers.nodes
    ]
    return peers.replace({"nodes": tuple(nodes)})
