"""Messages that no consumer can process, while nodes and consumers fail because of them or for other reasons."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.support.depths import depths

JOBS = "/queue/jobs"
DEAD = "/queue/dead-letters"
LIMIT = 6


@asynccontextmanager
async def mesh(*names: str, **settings: Any) -> AsyncIterator[MeshRig]:
    policy = DestinationPolicy(
        pattern=JOBS, delivery_limit=LIMIT, redelivery_seconds_min=0.2, redelivery_seconds_max=0.2
    )
    rig = MeshRig(*names, destinations=DestinationSettings(policies=(policy,)), **settings)
    async with rig.run():
        yield rig


async def publish(rig: MeshRig, *bodies: str) -> None:
    client = await rig.connect("a")
    for body in bodies:
        await client.send(send(JOBS, body, body))
        await client.receipt()
    client.pipe.close()
    await eventually(lambda: not rig.nodes["a"].sessions)


async def consumer(rig: MeshRig, name: str, destination: str = JOBS) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(destination, ack="client-individual"))
    await client.receipt()
    return client


async def given(client: Client) -> int:
    """Wait for the message; returns its delivery-count."""
    message = await client.next("MESSAGE")
    return int(message.head.headers.get("delivery-count", "1"))


async def nack(client: Client) -> int:
    message = await client.next("MESSAGE")
    await client.send(f"NACK\nid:{message.head.headers['ack']}\nreceipt:n\n\n")
    await client.receipt()
    return int(message.head.headers.get("delivery-count", "1"))


async def letter(rig: MeshRig, name: str) -> dict[str, str]:
    """What the one dead letter says; there is only one, and its message is nowhere else."""
    reader = await consumer(rig, name, DEAD)
    headers = (await reader.next("MESSAGE")).head.headers
    counts = [depths(node) for node in rig.nodes.values()]
    assert sum(count.get(JOBS, 0) for count in counts) == 0
    assert sum(count.get(DEAD, 0) for count in counts) == 1
    return dict(headers)


async def test_the_count_goes_on_when_the_owner_is_killed(autojump_clock: MockClock) -> None:
    async with mesh("a") as rig:
        await publish(rig, "poison")
        seen = []
        for _ in range(LIMIT):
            client = await consumer(rig, "a")
            seen.append(await nack(client))
            await rig.kill("a")
            await rig.start("a")

        assert seen == [1, 2, 3, 4, 5, 6]
        assert (await letter(rig, "a"))["dead-letter-deliveries"] == str(LIMIT)


async def test_the_count_goes_on_through_checkpoints_and_orderly_restarts(autojump_clock: MockClock) -> None:
    async with mesh("a") as rig:
        await publish(rig, "poison")
        seen = []
        for turn in range(LIMIT):
            client = await consumer(rig, "a")
            seen.append(await nack(client))
            client.pipe.close()
            await rig.nodes["a"].engine.checkpoints.bring_up()
            if turn % 2:
                rig.nodes["a"].stop()
                await rig.nodes["a"].ended.wait()
                await rig.start("a")

        assert seen == [1, 2, 3, 4, 5, 6]
        assert (await letter(rig, "a"))["dead-letter-reason"] == "delivery-limit"


async def test_a_consumer_that_dies_of_the_message_counts_also_when_the_owner_dies_next(
    autojump_clock: MockClock,
) -> None:
    async with mesh("a") as rig:
        await publish(rig, "poison")
        seen = []
        for _ in range(LIMIT):
            client = await consumer(rig, "a")
            seen.append(await given(client))
            client.pipe.close()
            await eventually(lambda: rig.nodes["a"].engine.commits.pending_bytes == 0 and not rig.nodes["a"].sessions)
            await rig.kill("a")
            await rig.start("a")

        assert seen == [1, 2, 3, 4, 5, 6]
        assert (await letter(rig, "a"))["dead-letter-deliveries"] == str(LIMIT)


async def test_a_borrower_that_is_killed_with_the_message_counts_as_a_delivery(autojump_clock: MockClock) -> None:
    async with mesh("a", "b") as rig:
        await publish(rig, "poison")
        seen = []
        for _ in range(LIMIT):
            client = await consumer(rig, "b")
            seen.append(await given(client))
            await rig.kill("b")
            await rig.start("b")
            await rig.until_linked()

        assert seen == [1, 2, 3, 4, 5, 6]
        assert (await letter(rig, "b"))["dead-letter-deliveries"] == str(LIMIT)


@pytest.mark.parametrize("killed", [["a"], ["b"], ["a", "b"]])
async def test_whichever_node_is_killed_between_failures_the_message_reaches_its_limit(
    autojump_clock: MockClock, killed: list[str]
) -> None:
    """The consumer is at b, the owner is a. What was recorded is never forgotten; what was in flight may be."""
    async with mesh("a", "b") as rig:
        await publish(rig, "poison")
        seen: list[int] = []
        deaths = 0
        with trio.fail_after(600):
            while not depths(rig.nodes["a"]).get(DEAD, 0):
                client = await consumer(rig, "b")
                seen.append(await nack(client))
                # In order: what an owner that is back at once sends to a lost connection would count as a failure.
                await client.send("DISCONNECT\n\n")
                client.pipe.close()
                if len(seen) % 2:
                    # The word of b may still be on its way to a.
                    deaths += 1
                    for name in killed:
                        await rig.kill(name)
                    for name in killed:
                        await rig.start(name)
                    await rig.until_linked()
                else:
                    await trio.sleep(0.5)

        assert LIMIT <= len(seen) <= LIMIT + deaths
        assert seen == sorted(seen)
        assert (await letter(rig, "b"))["dead-letter-deliveries"] == str(LIMIT)


async def test_letter_and_message_are_one_on_every_node_after_the_owner_is_killed(autojump_clock: MockClock) -> None:
    async with mesh("a", "b") as rig:
        await publish(rig, "poison")
        client = await consumer(rig, "b")
        message = await client.next("MESSAGE")
        await client.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\n\n")
        await eventually(lambda: depths(rig.nodes["a"]).get(DEAD, 0) == 1)
        await rig.nodes["a"].engine.path.flushed()
        await rig.kill("a")
        await rig.start("a")
        await rig.until_linked()

        assert (await letter(rig, "b"))["dead-letter-reason"] == "rejected"
        for node in rig.nodes.values():
            await node.engine.checkpoints.bring_up()
            listed = node.store.queues.listing("a", None, 9)
            assert [(name, count) for name, count, _ in listed] == [(DEAD, 1)]


async def test_other_nodes_know_how_often_a_message_has_failed(autojump_clock: MockClock) -> None:
    """Whoever takes the queue over goes on counting."""
    async with mesh("a", "b") as rig:
        await publish(rig, "poison", "good")
        client = await consumer(rig, "a")
        for _ in range(4):
            assert (await client.next("MESSAGE")).head.command == "MESSAGE"
            client.pipe.close()
            client = await consumer(rig, "a")
        client.pipe.close()
        have = rig.nodes["a"].engine.path.received_vector
        await eventually(lambda: rig.nodes["b"].engine.path.received_vector() == have() and not rig.nodes["a"].sessions)

        await rig.nodes["b"].engine.path.flushed()
        await rig.nodes["b"].engine.checkpoints.checkpoint()

        rows = rig.nodes["b"].store.queues.page("a", JOBS, 4, None, 0, 9)
        assert [row.attempts for row in rows] == [5, 5]


async def test_messages_that_are_settled_the_first_time_add_no_record(autojump_clock: MockClock) -> None:
    async with mesh("a") as rig:
        await publish(rig, "1", "2", "3")
        client = await consumer(rig, "a")
        before = rig.nodes["a"].broker.next_sequence

        for _ in range(3):
            message = await client.next("MESSAGE")
            await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:r\n\n")
            await client.receipt()

        assert rig.nodes["a"].broker.next_sequence - before <= 3
