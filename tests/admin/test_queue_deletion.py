"""Deleting a queue, and the retained message of a topic."""

import pytest
from trio.testing import MockClock

from qmq.admin.bulk_jobs import BulkJob
from qmq.mesh.peers.calls import Facts
from tests.admin.test_bulk_jobs import Q, ask, contents, depth, fill, refusal, until_alike
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually, nothing_more, send, subscribe

LAST = "/topic/last"


async def test_a_deleted_queue_is_empty_on_every_node_and_its_name_is_forgotten(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        for name in "ab":
            await fill(await mesh.connect(name), f"{name}1", f"{name}2")
            await mesh.nodes[name].engine.checkpoints.checkpoint()

        answer = await ask(await mesh.connect("a"), "delete/queue/q")

        assert (answer["messages"], answer["nodes-missing"]) == ("4", "")
        await until_alike(mesh)
        for name, node in mesh.nodes.items():
            assert await contents(await mesh.connect(name)) == []
            assert Q not in node.broker.queues.by_name
            assert node.broker.send_limits.destinations == 0


async def test_a_queue_with_consumers_on_any_node_is_not_deleted(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b")
        await fill(client, "1", "2", "3")
        await worker.send(subscribe(Q, ack="client-individual", prefetch_count="1"))
        message = await worker.next("MESSAGE")

        assert await refusal(client, "delete/queue/q") == "has-consumers"
        client = await mesh.connect("a")
        assert depth(mesh.nodes["a"]) == 3

        assert (await ask(client, "delete/queue/q", force="true"))["messages"] == "2"
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        while await worker.receipt() != "a":
            pass
        await fill(client, "new")
        assert await worker.messages(1) == [b"new"]


@pytest.mark.parametrize("consuming", ["a", "b"])
async def test_a_consumer_counts_although_a_node_may_not_deliver(autojump_clock: MockClock, consuming: str) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect(consuming)
        await client.send(send("/control/declare/queue/q", "", "d"))
        await client.receipt()
        await eventually(lambda: all(Q in node.settings_parts.declared_queues.texts for node in mesh.nodes.values()))
        await worker.send(subscribe(Q, ack="client-individual"))
        await worker.receipt()
        mesh.nodes["a"].broker.queues.held = True

        assert await refusal(client, "delete/queue/q") == "has-consumers"

        assert Q in mesh.nodes["a"].settings_parts.declared_queues.texts


async def test_a_consumer_that_comes_during_a_deletion_keeps_its_declaration(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        await client.send(send("/control/declare/queue/q", "", "d"))
        await client.receipt()
        jobs = rig.alive.admin.jobs
        everywhere = jobs.everywhere

        async def everywhere_after_a_subscribe(job: BulkJob) -> Facts:
            if not job.is_dry_run:
                await worker.send(subscribe(Q))
                await worker.receipt()
            return await everywhere(job)

        monkeypatch.setattr(jobs, "everywhere", everywhere_after_a_subscribe)

        assert await refusal(client, "delete/queue/q") == "has-consumers"

        assert Q in rig.alive.settings_parts.declared_queues.texts


async def test_a_dry_run_of_a_deletion_changes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1")

        assert (await ask(client, "delete/queue/q", dry_run="true"))["messages"] == "1"

        assert await contents(client) == ["1"]


async def test_the_last_value_of_a_topic_is_deleted_on_every_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await client.send(send(LAST, "value", "r", retain="set"))
        await client.receipt()
        await eventually(lambda: mesh.nodes["b"].broker.retained.topics == 1)

        assert (await ask(await mesh.connect("b"), "delete/topic/last", dry_run="true"))["messages"] == "1"
        assert mesh.nodes["b"].broker.retained.topics == 1
        assert (await ask(await mesh.connect("b"), "delete/topic/last"))["messages"] == "1"

        await eventually(lambda: mesh.nodes["a"].broker.retained.topics == 0)
        later = await mesh.connect("a")
        await later.send(subscribe(LAST))
        assert await later.receipt() == "sub-0"
        await nothing_more(later)
