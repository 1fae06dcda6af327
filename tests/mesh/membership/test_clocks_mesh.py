"""Nodes whose wall clocks are hours apart, and jump."""

import trio
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.support.depths import depths

JOBS = "/queue/jobs"
HOUR_US = 3600 * 1_000_000


def apart() -> MeshRig:
    """a is an hour ahead, b an hour behind."""
    rig = MeshRig("a", "b")
    rig.skews_us = {"a": HOUR_US, "b": -HOUR_US}
    return rig


async def consumer(rig: MeshRig, name: str, **headers: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual", **headers))
    await client.receipt()
    return client


async def ack(client: Client, id: str) -> None:
    await client.send(f"ACK\nid:{id}\nreceipt:s\n\n")
    await client.receipt()


async def publish(rig: MeshRig, name: str, *bodies: str, **headers: str) -> None:
    client = await rig.connect(name)
    await client.send(*(send(JOBS, body, **headers) for body in bodies[:-1]), send(JOBS, bodies[-1], "r", **headers))
    await client.receipt()


async def test_a_ttl_is_as_long_as_it_says_whatever_the_clocks_show(autojump_clock: MockClock) -> None:
    async with apart().run() as rig:
        for owner, other in (("a", "b"), ("b", "a")):
            await publish(rig, owner, "short", ttl="1000")
            await publish(rig, owner, "long", ttl="60000")
            await trio.sleep(2)

            client = await consumer(rig, other)

            message = await client.next("MESSAGE")
            assert message.body == b"long"
            await ack(client, message.head.headers["ack"])
            await eventually(lambda owner=owner: depths(rig.nodes[owner]) == {})
            client.pipe.close()


async def test_a_delay_is_as_long_as_it_says(autojump_clock: MockClock) -> None:
    async with apart().run() as rig:
        client = await consumer(rig, "b")
        await publish(rig, "a", "later", delay="5000")
        began = trio.current_time()

        await client.next("MESSAGE")

        assert 4.9 < trio.current_time() - began < 6


async def test_what_waits_on_another_node_for_its_consumer_is_not_given_late(autojump_clock: MockClock) -> None:
    async with apart().run() as rig:
        client = await consumer(rig, "b", **{"prefetch-count": "1"})
        await publish(rig, "a", "first", JMSXGroupID="g")
        first = await client.next("MESSAGE")
        await publish(rig, "a", "late", JMSXGroupID="g", ttl="2000")
        await publish(rig, "a", "in time", JMSXGroupID="g", ttl="60000")
        await trio.sleep(5)

        await ack(client, first.head.headers["ack"])

        second = await client.next("MESSAGE")
        assert second.body == b"in time"
        await ack(client, second.head.headers["ack"])
        await eventually(lambda: depths(rig.nodes["a"]) == {})


async def test_a_jump_of_the_wall_clock_expires_nothing_early_and_keeps_nothing_for_long(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as rig:
        for jump_us in (HOUR_US, -HOUR_US):
            await publish(rig, "a", "short", ttl="10000")
            await publish(rig, "a", "long", ttl="60000")
            rig.step_clock("a", jump_us)
            await trio.sleep(12)

            client = await consumer(rig, "b")
            message = await client.next("MESSAGE")
            assert message.body == b"long"
            await ack(client, message.head.headers["ack"])
            await eventually(lambda: depths(rig.nodes["a"]) == {})
            client.pipe.close()


async def test_browsing_shows_of_another_node_what_is_in_time_there(autojump_clock: MockClock) -> None:
    async with apart().run() as rig:
        await publish(rig, "a", "gone", ttl="1000")
        await publish(rig, "a", "here", ttl="60000")
        have = rig.nodes["a"].engine.path.received_vector
        await eventually(lambda: rig.nodes["b"].engine.path.received_vector() == have())
        await trio.sleep(2)

        client = await rig.connect("b")
        await client.send(subscribe(JOBS, browser="true"))

        shown = [await client.next("MESSAGE") for _ in range(2)]
        assert [frame.body for frame in shown] == [b"here", b""]
