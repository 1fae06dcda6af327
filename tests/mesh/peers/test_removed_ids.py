"""Dedup ids of messages that an operator has removed: sent again, such a message is stored again, on any node."""

from typing import Any

import pytest
from pamqp import commands

from tests.admin.test_bulk_jobs import ask, contents, until_alike
from tests.mesh.peers.test_dedup import F, Q, again, consumed, receipts
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.protocols.amqp.rig import amqp_node, connect

pytestmark = pytest.mark.trio


async def put(client: Client, *ids: str, queue: str = Q, **headers: str) -> list[bool]:
    """Send messages whose ids are their bodies; whether each was a duplicate."""
    await client.send(*(send(queue, id, id, dedup_id=id, **headers) for id in ids))
    return [is_known for _, is_known in await receipts(client, len(ids))]


@pytest.mark.parametrize("verb", ["purge", "delete"])
@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_what_an_operator_removes_is_stored_when_it_is_sent_again(
    verb: str, persistent: str, autojump_clock: Any
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await put(client, "1", "2", persistent=persistent)
        await ask(client, f"{verb}{Q}")

        assert await put(client, "1", "2", "2", persistent=persistent) == [False, False, True]
        assert await contents(client, Q) == ["1", "2"]


async def test_it_is_forgotten_after_a_restart_too_and_what_came_since_is_known(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await put(client, "1", "2", "3")
        await ask(client, f"purge{Q}")
        await put(client, "1")
    async with rig.run():
        client = await rig.connect()
        assert await put(client, "1", "2") == [True, False]


async def test_what_a_consumer_has_and_what_it_has_settled_stays_known(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client, worker = await rig.connect(), await rig.connect()
        await put(client, "settled", "in flight", "last")
        await worker.send(subscribe(Q, ack="client-individual", prefetch_count="2"))
        await worker.receipt()
        message = await worker.next("MESSAGE")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        await worker.receipt()
        second = await worker.next("MESSAGE")
        await worker.next("MESSAGE")

        assert second.body == b"in flight" and (await ask(client, f"purge{Q}"))["messages"] == "0"
        assert await put(client, "settled", "in flight", "last") == [True, True, True]


@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_every_node_forgets_it_also_one_that_was_killed_since(name: str, autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await put(await mesh.connect("a"), "1", "2")
        await until_alike(mesh)
        assert (await ask(await mesh.connect("b"), f"purge{Q}", scope="mesh"))["messages"] == "2"

        # At once: the answer has waited for the other nodes.
        assert await put(await mesh.connect(name), "1") == [False]
        await until_alike(mesh)
        await mesh.kill(name)
        await mesh.start(name)
        await mesh.until_linked()
        client = await mesh.connect(name)
        await client.send(again(Q, "2", "r", "2"), again(Q, "1", "s", "1"))

        assert await receipts(client, 2) == [("r", False), ("s", True)]
        await until_alike(mesh)
        assert sorted(await consumed(client)) == [b"1", b"2"]


async def test_it_is_forgotten_over_a_takeover(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await put(await mesh.connect("a"), "1")
        await until_alike(mesh)
        await mesh.kill("a")
        others = [mesh.nodes[name].mesh_parts.takeover for name in "bc"]
        await eventually(lambda: any("a" in takeover.terms_served for takeover in others))
        facts = {"messages": "0"}
        while facts["messages"] == "0":
            facts = await ask(await mesh.connect("b"), f"purge{Q}", scope="mesh")
        await mesh.start("a")
        await mesh.until_linked()
        await until_alike(mesh)

        assert await put(await mesh.connect("a"), "1") == [False]


async def test_a_deleted_fanout_takes_its_messages_again(autojump_clock: Any) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await put(await mesh.connect("a"), "1", "2", queue=F)
        await until_alike(mesh)
        await ask(await mesh.connect("a"), f"delete{F}")
        await until_alike(mesh)
        assert await put(await mesh.connect("b"), "1", queue=F) == [False]
        await until_alike(mesh)

        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()
        assert await put(await mesh.connect("a"), "1", "2", queue=F) == [True, False]


async def test_a_deleted_fanout_does_not_copy_again_what_its_queues_have(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await ask(client, f"bind{Q}", source=F)
        await put(client, "1", queue=F)
        await ask(client, f"delete{F}")

        assert await put(client, "1", "2", queue=F) == [False, False]
        assert await contents(client, Q) == ["1", "2"]


@pytest.mark.parametrize("source", ["/topic/t", "/exchange/amq.fanout", F])
@pytest.mark.parametrize("purged", ["/queue/a", "/queue/b"])
async def test_a_purged_queue_gets_its_copy_of_a_repeated_message(
    source: str, purged: str, autojump_clock: Any
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for queue in ("/queue/a", "/queue/b"):
            await ask(client, f"bind{queue}", source=source)
        await put(client, "1", "2", queue=source)
        await ask(client, f"purge{purged}")

        assert await put(client, "1", "1", queue=source) == [False, True]
    async with rig.run():
        client = await rig.connect()
        assert await put(client, "1", "2", "2", queue=source) == [True, False, True]
        assert await contents(client, "/queue/a") == await contents(client, "/queue/b") == ["1", "2"]
        assert len(await consumed(client, F)) == (2 if source == F else 0)


@pytest.mark.parametrize("source", ["/exchange/amq.fanout", F])
@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_a_purged_queue_gets_its_copy_on_any_node(source: str, name: str, autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = await mesh.connect("a")
        for queue in ("/queue/x", "/queue/y"):
            await ask(a, f"bind{queue}", source=source)
        await until_alike(mesh)
        await put(a, "1", "2", queue=source)
        await until_alike(mesh)
        assert (await ask(await mesh.connect("b"), "purge/queue/y", scope="mesh"))["messages"] == "2"

        assert await put(await mesh.connect(name), "1", queue=source) == [False]
        await until_alike(mesh)
        await mesh.kill(name)
        await mesh.start(name)
        await mesh.until_linked()
        client = await mesh.connect(name)
        await client.send(again(source, "2", "r", "2"), again(source, "1", "s", "1"), again(source, "2", "t", "2"))

        assert await receipts(client, 3) == [("r", False), ("s", True), ("t", True)]
        await until_alike(mesh)
        assert sorted(await consumed(client, "/queue/x")) == [b"1", b"2"]
        assert sorted(await consumed(await mesh.connect("a"), "/queue/y")) == [b"1", b"2"]


async def test_a_purged_queue_gets_its_copy_over_a_takeover(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = await mesh.connect("a")
        for queue in ("/queue/x", "/queue/y"):
            await ask(a, f"bind{queue}", source="/exchange/amq.fanout")
        await put(a, "1", queue="/exchange/amq.fanout")
        await until_alike(mesh)
        await mesh.kill("a")
        others = [mesh.nodes[name].mesh_parts.takeover for name in "bc"]
        await eventually(lambda: any("a" in takeover.terms_served for takeover in others))
        facts = {"messages": "0"}
        while facts["messages"] == "0":
            facts = await ask(await mesh.connect("b"), "purge/queue/y", scope="mesh")
        client = await mesh.connect("c")
        await client.send(again("/exchange/amq.fanout", "1", "r", "1"), again("/exchange/amq.fanout", "1", "s", "1"))

        assert await receipts(client, 2) == [("r", False), ("s", True)]
        assert await consumed(client, "/queue/x") == [b"1"]
        assert await consumed(await mesh.connect("c"), "/queue/y") == [b"1"]


async def test_amqp_publishes_again_what_was_purged(autojump_clock: Any) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for _ in range(2):
            await client.publish("jobs", b"1", delivery_mode=2, headers={"dedup-id": "x"})
            await client.next(commands.Basic.Ack)
            purged = await client.call(1, commands.Queue.Purge(0, "jobs"), commands.Queue.PurgeOk)

            assert purged.message_count == 1
