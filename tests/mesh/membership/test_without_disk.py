"""A node without a disk in a mesh: it serves its own messages, and nothing of the mesh relies on what it has."""

import pytest
import trio
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.support.conditions import reported


async def receipt_of(client: Client, frame: str) -> dict[str, str]:
    await client.send(frame)
    return dict((await client.next("RECEIPT")).head.headers)


async def forget(mesh: MeshRig, name: str) -> None:
    """It is killed, and has nothing any more."""
    await mesh.kill(name)
    mesh.disks[name].wipe()
    del mesh.nodes[name]


def codes(mesh: MeshRig, name: str) -> set[str]:
    return {one["code"] for one in reported(mesh.nodes[name])} - {"definitions-behind"}


async def test_a_receipt_does_not_count_it_as_a_copy(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "x").forget_at_end("x").run() as mesh:
        client = await mesh.connect("a")
        await eventually(lambda: mesh.nodes["a"].mesh.has_caught_up_with("b"))
        await mesh.kill("b")
        await eventually(lambda: mesh.nodes["a"].mesh.linked() == {"x"})

        said = await receipt_of(client, send("/queue/q", "one", "r", receipt_level="replicas=1"))

    assert said == {"receipt-id": "r", "receipt-level": "fsync", "copies": "1"}


async def test_two_nodes_with_disks_promise_one_disk_by_default(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "x").forget_at_end("x").run() as mesh:
        await mesh.kill("b")
        client, other = await mesh.connect("a"), await mesh.connect("x")

        assert await receipt_of(client, send("/queue/q", "one", "r")) == {"receipt-id": "r"}
        assert (await receipt_of(other, send("/queue/q", "one", "r")))["receipt-level"] == "accepted"
        await client.send(send("/queue/q", "one", "r", receipt_level="replicas=2"))
        assert (await client.any()).head.headers["error-code"] == "bad-receipt-level"


async def test_what_it_has_passed_on_is_served_when_it_is_back_with_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "x").forget_at_end("x").run() as mesh:
        client = await mesh.connect("x")
        await receipt_of(client, send("/queue/q", "from x", "r"))
        durable = mesh.nodes["a"].engine.path.durable_vector
        await eventually(lambda: any(origin.node == "x" for origin in durable()))
        await eventually(lambda: durable().get(mesh.nodes["x"].origin, 0) >= mesh.nodes["x"].broker.next_sequence - 1)

        await forget(mesh, "x")
        await mesh.start("x")
        consumer = await mesh.connect("b")
        await consumer.send(subscribe("/queue/q"))

        assert await consumer.messages(1) == [b"from x"]
        assert codes(mesh, "x") == {"no-disk"}
        assert "new-disk" not in codes(mesh, "a")


@pytest.mark.parametrize("silent", ["x", "c"])
async def test_a_majority_of_disks_serves_for_a_silent_node_and_it_serves_for_none(
    autojump_clock: MockClock, silent: str
) -> None:
    async with MeshRig("a", "b", "c", "x").forget_at_end("x").run() as mesh:
        client = await mesh.connect(silent)
        await receipt_of(client, send("/queue/q", "kept", "r"))
        await trio.sleep(15)
        await mesh.kill(silent)
        del mesh.nodes[silent]

        consumer = await mesh.connect("b")
        await consumer.send(subscribe("/queue/q"))
        assert await consumer.messages(1) == [b"kept"]
        served = {name for name, node in mesh.nodes.items() if silent in node.broker.queues.owned.serves}
        assert len(served) == 1 and "x" not in served


async def test_it_has_no_vote(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d", "x").forget_at_end("x").run() as mesh:
        await trio.sleep(15)
        await mesh.kill("c")
        await mesh.kill("d")

        # Two disks of four are left, and x with them.
        await trio.sleep(60)

        for name in ("a", "b", "x"):
            queues = mesh.nodes[name].broker.queues
            assert queues.owned.serves == {name}
            assert queues.held


async def test_it_adopts_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "x").forget_at_end("x").run() as mesh:
        client = await mesh.connect("x")

        await client.send("SEND\ndestination:/control/retire/node/c\nreceipt:r\n\n")

        error = (await client.any()).head.headers
        assert (error["error-code"], error["message"]) == (
            "bad-node",
            "This node has no disk to adopt messages: ask another one.",
        )
