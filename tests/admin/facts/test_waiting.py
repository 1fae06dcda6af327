"""How many messages of a node wait: in memory, only in the store, or both, without what consumers and peers have."""

import random
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts import waiting
from qmq.admin.facts.waiting import WAIT_SECONDS
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig
from tests.node.rig import send, subscribe
from tests.protocols.http.rig import dial, web_rig

NAMES = [f"/queue/q{number}" for number in range(5)]


async def count(node: Node) -> int:
    return await node.admin.facts.waiting.count()


async def by_queue(node: Node) -> int:
    """What the lists of queues say."""
    return sum([int(row["messages"]) - int(row["in_flight"]) for row in await node.admin.catalog.rows(NAMES)])


@pytest.mark.parametrize("seed", range(8))
async def test_what_waits_is_what_the_queues_have_that_is_not_in_flight(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(waiting, "TURN_MESSAGES", 7)
    chance = random.Random(seed)
    rig = web_rig()
    left = 0
    for _ in range(4):
        async with rig.run():
            node, producer = rig.alive, await rig.connect()
            of_memory = 0
            for _ in range(12):
                name, many = chance.choice(NAMES), chance.randrange(1, 30)
                match chance.choice(["send", "send", "memory", "consume", "checkpoint", "evict"]):
                    case "send" | "memory" as kind:
                        persistent = str(kind == "send").lower()
                        await producer.send(*[send(name, "x", "r", persistent=persistent) for _ in range(many)])
                        for _ in range(many):
                            await producer.receipt()
                        left += many
                        of_memory += many * (kind == "memory")
                    case "consume" if not of_memory:
                        consumer = await rig.connect()
                        taken = min(await node.admin.catalog.depth(name), many)
                        await consumer.send(subscribe(name, ack="client-individual"))
                        await consumer.consume(taken)
                        left -= taken
                        await trio.sleep(1)
                        in_flight = len(node.broker.queues.deliveries)
                        assert await count(node) == await by_queue(node) == left - in_flight
                        await consumer.send("DISCONNECT\n\n")
                        await trio.sleep(1)
                    case "checkpoint" | "evict" as kind:
                        await node.engine.checkpoints.checkpoint()
                        for queue in list(node.broker.queues.by_name.values()) if kind == "evict" else ():
                            node.broker.queues.paging.evict(queue)
                assert await count(node) == await by_queue(node) == left
        left -= of_memory


async def test_checkpoint_under_way_counts_nothing_twice(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(*[send(NAMES[0], "x", "r", persistent="true") for _ in range(10)])
        for _ in range(10):
            await client.receipt()
    async with rig.run():
        node, environment = rig.alive, rig.alive.environment
        client = await rig.connect()
        await client.send(subscribe(NAMES[0], ack="client-individual", **{"prefetch-count": "1"}))
        await client.consume(4)
        await client.messages(1)
        run_blocking, is_stored, ends = environment._run_blocking, trio.Event(), trio.Event()

        async def late(call: Any) -> Any:
            environment._run_blocking = run_blocking
            found = await run_blocking(call)
            is_stored.set()
            await ends.wait()
            return found

        environment._run_blocking = late
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.engine.checkpoints.checkpoint)
            await is_stored.wait()
            found = [await count(node)]
            # These come and go while the store has neither.
            other = await rig.connect()
            await other.send(*[send(NAMES[1], "x", "r", persistent="true") for _ in range(3)])
            for _ in range(3):
                await other.receipt()
            await other.send(subscribe(NAMES[1], ack="client-individual", **{"prefetch-count": "1"}))
            await other.consume(2)
            await other.messages(1)
            found.append(await count(node))
            ends.set()
        assert [*found, await count(node), await by_queue(node)] == [5] * 4


async def test_of_a_node_that_is_silent_its_messages_wait_at_the_node_that_serves_them(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        client = await rig.connect("c")
        await client.send(*[send(NAMES[0], "x", "r", persistent="true", copies="2") for _ in range(9)])
        for _ in range(9):
            await client.receipt()
        assert [await count(rig.nodes[name]) for name in "abc"] == [0, 0, 9]
        consumer = await rig.connect("a")
        await consumer.send(subscribe(NAMES[0], ack="client-individual", **{"prefetch-count": "4"}))
        await consumer.messages(4)
        assert [await count(rig.nodes[name]) for name in "abc"] == [0, 0, 5]

        await rig.kill("c")
        await trio.sleep(60)

        assert sum([await count(rig.nodes[name]) for name in "ab"]) == 5


async def test_store_that_does_not_answer_leaves_the_number_before(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(send(NAMES[0], "x", "r", persistent="true"))
        await client.receipt()
    async with rig.run():
        assert await count(rig.alive) == 1
        client = await rig.connect()
        await client.send(send(NAMES[1], "x", "r", persistent="false"))
        await client.receipt()
        environment = rig.alive.environment
        run_blocking = environment._run_blocking

        async def fail(call: Any) -> Any:
            raise OSError("no database")

        async def stick(call: Any) -> Any:
            await trio.sleep(WAIT_SECONDS + 1)
            return await run_blocking(call)

        for broken in (fail, stick):
            with suppress(OSError):
                environment._run_blocking = broken
                assert await count(rig.alive) == 1
        environment._run_blocking = run_blocking
        await trio.sleep(60)
        assert await count(rig.alive) == 2


async def test_each_list_of_a_node_has_what_waits(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stomp = await rig.connect()
        await stomp.send(*[send(NAMES[0], "x", "r") for _ in range(3)])
        for _ in range(3):
            await stomp.receipt()
        await stomp.send(subscribe(NAMES[0], ack="client", **{"prefetch-count": "1"}))
        await stomp.messages(1)
        await trio.sleep(15)
        web = await dial(rig)

        for verb in ("overview", "history"):
            (facts,) = (await web.get(f"/v1/control/{verb}")).facts["nodes"].values()
            shown = facts["waiting"], facts["in_flight"]
            assert shown in ((2, 1), ([2], [1]))
        status = (await web.get("/v1/control/status")).facts
        assert (status["waiting"], status["in_flight"]) == (2, 1)
        assert "\nqmq_messages_waiting 2.0\n" in (await web.get("/metrics")).body.decode()
