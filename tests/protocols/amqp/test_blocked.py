"""connection.blocked and connection.unblocked: a publisher hears that the node has no room, and that it has again."""

from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from tests.node.rig import Rig, eventually
from tests.protocols.amqp.rig import AmqpClient, amqp_node, connect

NOTIFIED: dict[str, Any] = {"properties": {"capabilities": {"connection.blocked": True}}}


def fill(rig: Rig) -> None:
    rig.disk.capacity_bytes = rig.disk.used_bytes()


def free(rig: Rig) -> None:
    rig.disk.capacity_bytes = 1 << 40


async def full(rig: Rig) -> AmqpClient:
    """A client that has declared a durable queue, on a node whose disk is full then."""
    client = await connect(rig, **NOTIFIED)
    await client.declare()
    fill(rig)
    await eventually(lambda: rig.alive.broker.send_limits.disk_full)
    return client


async def test_a_publisher_is_blocked_while_the_disk_is_full_and_unblocked_once(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await full(rig)
        await client.nothing()
        await client.publish("jobs", b"1", b"2", delivery_mode=2)
        await client.publish("jobs", b"3", delivery_mode=2)

        assert (await client.next(commands.Connection.Blocked)).reason == "low on disk"
        await client.nothing()
        free(rig)
        await client.next(commands.Connection.Unblocked)
        await client.nothing()
        await client.publish("jobs", b"4", delivery_mode=2)
        assert (await client.declare()).message_count == 1

        fill(rig)
        await eventually(lambda: rig.alive.broker.send_limits.disk_full)
        await client.publish("jobs", b"5", delivery_mode=2)
        await client.next(commands.Connection.Blocked)
        free(rig)
        await client.next(commands.Connection.Unblocked)


async def test_a_client_without_publishes_or_without_the_capability_is_not_notified(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await full(rig)
        silent = await connect(rig)
        await silent.publish("jobs", b"1", delivery_mode=2)
        await client.consume()
        await client.publish("jobs", b"in memory")
        assert await client.bodies(1) == [b"in memory"]

        await client.nothing()
        await silent.nothing()
        free(rig)
        await client.nothing()


async def test_a_blocked_publisher_with_confirms_still_gets_them(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await full(rig)
        await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        await client.publish("jobs", b"1", delivery_mode=2)

        await client.next(commands.Connection.Blocked)
        assert (await client.next(commands.Basic.Nack)).delivery_tag == 1
        free(rig)
        await client.next(commands.Connection.Unblocked)


async def test_messages_in_memory_have_their_own_bound(autojump_clock: MockClock) -> None:
    async with amqp_node(limits={"queue_memory_bytes_max": 2000}) as rig:
        client = await connect(rig, **NOTIFIED)
        await client.declare()
        await client.publish("jobs", *[b"x" * 1000] * 4)

        assert (await client.next(commands.Connection.Blocked)).reason == "low on memory"
        await client.nothing()
        await client.call(1, commands.Queue.Purge(0, "jobs"), commands.Queue.PurgeOk)
        await client.next(commands.Connection.Unblocked)


async def test_a_publish_that_waits_long_is_announced(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, **NOTIFIED)
        await client.declare()
        held = trio.Event()
        slot = rig.alive.engine.commits.slot
        rig.alive.engine.commits.slot = held.wait  # type: ignore[method-assign]
        await client.publish("jobs", b"1", delivery_mode=2)

        assert (await client.next(commands.Connection.Blocked)).reason == "the node cannot keep up"
        await client.nothing()
        held.set()
        rig.alive.engine.commits.slot = slot  # type: ignore[method-assign]
        await client.next(commands.Connection.Unblocked)
        assert (await client.declare()).message_count == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_near_the_memory_budget_a_publisher_is_blocked(autojump_clock: MockClock, is_whole: bool) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, **NOTIFIED)
        await client.declare()
        budget = rig.alive.session_parts.host.budget
        near = budget.bytes_max * 4 // 5
        budget.bytes += near
        sent = client.publishing("jobs", b"1")
        await client.pipe.send_all(sent if is_whole else sent[:-9])

        assert (await client.next(commands.Connection.Blocked)).reason == "low on memory"
        budget.bytes -= near
        await client.next(commands.Connection.Unblocked)


async def test_a_blocked_client_that_leaves_is_forgotten(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        watched = len(rig.alive.beats)
        client = await full(rig)
        await client.publish("jobs", b"1", delivery_mode=2)
        await client.next(commands.Connection.Blocked)

        client.pipe.close()

        await eventually(lambda: len(rig.alive.beats) == watched)
        free(rig)
        await trio.sleep(2)
