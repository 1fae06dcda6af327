"""Which nodes count in a running mesh: nodes with an empty disk learn first, and old copies of a disk are detected."""

import copy
import random
import threading

import trio
from trio.testing import MockClock

from qmq.admin.facts.status import membership_of, peers_of
from qmq.broker.messages.send_options import times_of
from qmq.config import Address, ListenerSettings
from qmq.model.members import Membership
from qmq.node.node import Node
from qmq.storage.catalog.facts import LEARNER
from qmq.storage.format.settings import StoreSettings
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.node.mesh_rig import CLIENT_PORT, MeshRig, isolate
from tests.node.rig import eventually, send, subscribe
from tests.support.conditions import reported
from tests.support.world import SimulatedWorld


def codes(node: Node) -> list[str]:
    """What was reported about members: a node that starts alone also waits for the definitions of the mesh."""
    return [one["code"] for one in reported(node) if one["code"] != "definitions-behind"]


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    """As an image of it is, put aside for bad times."""
    (lock,) = [table.reading for table in disk.tables.values() if hasattr(table, "reading")]
    return copy.deepcopy(disk, {id(lock): threading.Lock()})


def all_count(mesh: MeshRig) -> bool:
    memberships: dict[str, Membership] = {name: node.membership for name, node in mesh.nodes.items()}
    return all(m.may_vote and all(m.counts(peer) for peer in m.peers) for m in memberships.values())


async def test_a_new_mesh_counts_whole_as_soon_as_its_nodes_have_met(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))

        client = await mesh.connect("a")
        await client.send(send("/queue/jobs", "1", "r1"))

        receipt = await client.next("RECEIPT")
        assert "copies" not in receipt.head.headers
        assert not membership_of(mesh.nodes["a"].membership).learner
        assert codes(mesh.nodes["a"]) == []


async def test_an_empty_disk_of_a_known_name_does_not_count_until_it_has_met_a_majority_of_the_others(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c", wipe=True)
        mesh.cut("b", "c")

        c = await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == "caught-up" and mesh.link("a", "c") == "caught-up")

        assert not c.membership.may_vote
        assert not mesh.nodes["a"].membership.counts("c")
        assert peers_of(mesh.nodes["a"].mesh, mesh.nodes["a"].membership)[1].learner
        assert codes(c) == codes(mesh.nodes["a"]) == ["new-disk"]

        mesh.heal("b", "c")
        await eventually(lambda: all_count(mesh))
        assert LEARNER not in c.store.catalog.facts()


async def test_a_replaced_disk_that_counts_again_already_is_no_condition_on_a_node_that_was_away(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("a")
        await mesh.stop("c", wipe=True)
        c = await mesh.start("c")
        await eventually(lambda: c.membership.may_vote)

        a = await mesh.start("a")
        await eventually(lambda: all_count(mesh) and a.membership.standing_of("c") is not None)

        assert codes(a) == []


async def test_a_learner_is_still_one_after_a_restart(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c", wipe=True)
        mesh.cut("b", "c")
        await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == "caught-up")

        await mesh.stop("c")
        c = await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == "caught-up")

        assert not c.membership.may_vote
        assert codes(c) == ["new-disk"]


async def test_a_receipt_does_not_count_the_disk_of_a_learner(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("b")
        await mesh.stop("c", wipe=True)
        client = await mesh.connect("a")

        c = await mesh.start("c")
        await eventually(lambda: mesh.link("a", "c") == "caught-up")
        await client.send(send("/queue/jobs", "1", "r1"))

        receipt = await client.next("RECEIPT")
        assert (receipt.head.headers["receipt-level"], receipt.head.headers["copies"]) == ("fsync", "1")
        assert (
            c.engine.path.durable_vector()[mesh.nodes["a"].origin] >= 2
        )  # it has it, and might have forgotten other things

        await mesh.start("b")
        await eventually(lambda: all_count(mesh))


async def test_a_disk_that_was_put_back_from_an_old_copy_is_found_out_and_learns_again(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        old = copy_of(mesh.disks["c"])
        await mesh.start("c")
        await mesh.until_linked()
        await mesh.stop("c")
        mesh.disks["c"] = old

        c = await mesh.start("c")
        await eventually(lambda: "old-disk" in codes(c))
        await eventually(lambda: all_count(mesh))

        assert LEARNER not in c.store.catalog.facts()


async def test_an_old_copy_that_starts_again_while_it_learns_is_no_empty_disk(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        old = copy_of(mesh.disks["c"])
        await mesh.start("c")
        await mesh.until_linked()
        await mesh.stop("c")
        mesh.disks["c"] = old
        mesh.cut("b", "c")
        c = await mesh.start("c")
        await eventually(lambda: LEARNER in c.store.catalog.facts())

        await mesh.stop("c")
        c = await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == "caught-up")

        assert codes(c) == ["old-disk"]


async def test_an_old_copy_that_only_the_second_peer_finds_out_learns_from_the_first_too(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        old = copy_of(mesh.disks["c"])
        isolate(mesh, "b")
        await mesh.start("c")
        client = await mesh.connect("c")
        await client.send(send("/queue/jobs", "kept by a", "r"))
        await client.receipt()
        await eventually(
            lambda: (
                mesh.nodes["a"].engine.path.durable_vector().items()
                >= mesh.nodes["c"].engine.path.durable_vector().items()
            )
        )
        await mesh.kill("c")
        mesh.cut("a", "c")
        mesh.disks["c"] = old

        c = await mesh.start("c")
        mesh.heal("b", "c")
        await eventually(lambda: mesh.link("c", "b") == "caught-up")
        assert "old-disk" not in codes(c)
        mesh.heal("a", "c")
        await eventually(lambda: "old-disk" in codes(c))
        mesh.heal("a", "b")

        await eventually(lambda: all_count(mesh))
        worker = await mesh.connect("b")
        await worker.send(subscribe("/queue/jobs", id="w"))
        assert await worker.messages(1) == [b"kept by a"]


async def test_a_restart_on_its_own_disk_is_no_news(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))

        for life in range(3):
            client = await mesh.connect("c")
            await client.send(send("/queue/jobs", "1", f"r{life}"))
            await client.receipt()
            await (mesh.stop("c") if life else mesh.kill("c"))
            c = await mesh.start("c")
            await mesh.until_linked()
            await trio.sleep(1)

            assert c.membership.may_vote
            assert codes(c) == []


async def test_a_cloned_disk_is_refused_while_the_first_lives_and_learns_when_it_is_alone(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        first = mesh.nodes["c"]
        clone = clone_of(mesh, "c", "127.0.1.99")
        async with trio.open_nursery() as nursery:
            await nursery.start(clone.run)

            await eventually(lambda: "refused-duplicate-node" in codes(clone))
            await eventually(lambda: all("duplicate-node" in codes(mesh.nodes[name]) for name in "ab"))
            assert mesh.link("a", "c") == mesh.link("b", "c") == "caught-up"
            assert first.membership.may_vote and codes(first) == []
            await trio.sleep(10)
            assert "refused-duplicate-node" not in [one.code for one in clone.conditions.past()]

            client = await mesh.connect("c")
            await client.send(send("/queue/jobs", "what the clone never had", "r1"))
            await client.receipt()
            await mesh.stop("c")
            await eventually(lambda: "old-disk" in codes(clone))
            await eventually(lambda: clone.membership.may_vote)
            clone.stop()


def clone_of(mesh: MeshRig, name: str, host: str) -> Node:
    """A second live node of that name, on a copy of its disk and with a peers file that has its own address."""
    disk = copy_of(mesh.disks[name])
    disk.unlock()
    peers = mesh.peers.replace(
        {
            "nodes": tuple(
                peer.replace({"mesh": peer.mesh._replace(host=host)}) if peer.name == name else peer
                for peer in mesh.peers.nodes
            )
        }
    )
    listener = ListenerSettings(address=Address(host, CLIENT_PORT))
    settings = mesh.settings(name).replace({"stomp": (listener,), "http": ()})
    environment = SimulatedWorld(mesh.fabric.network(host), disk, random.Random("a clone"), 0, 0.002)
    store = open_memory_store(disk, node=name, settings=StoreSettings(times_of=times_of))
    return Node(settings, peers, store, environment.environment)
