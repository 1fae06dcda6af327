"""A node that was killed and starts again delivers no message that a consumer of a peer still has."""

import pytest
import trio
from trio.testing import MockClock

from qmq.mesh.membership.start_hold import SPARE_SECONDS
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

JOBS = "/queue/jobs"
COUNT = 5


async def consumer(rig: MeshRig, name: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual"))
    await client.receipt()
    return client


async def in_hand_at_c(rig: MeshRig) -> Client:
    """A consumer at c that holds COUNT messages of a; all of it is on every disk."""
    producer = await rig.connect("a")
    await producer.send(*(send(JOBS, str(number)) for number in range(COUNT - 1)), send(JOBS, "last", "r"))
    await producer.receipt()
    worker = await consumer(rig, "c")
    for _ in range(COUNT):
        await worker.next("MESSAGE")
    nodes = rig.nodes.values()
    await eventually(
        lambda: all(n.engine.path.durable_vector() == rig.nodes["a"].engine.path.durable_vector() for n in nodes)
    )
    return worker


async def count_within(client: Client, seconds: float) -> int:
    count = 0
    with trio.move_on_after(seconds):
        while True:
            await client.next("MESSAGE")
            count += 1
    return count


@pytest.mark.parametrize("late_seconds", [0.0, 1.5, 3.0])
async def test_what_a_live_consumer_of_a_peer_holds_is_not_given_to_another_after_a_quick_restart(
    autojump_clock: MockClock, late_seconds: float
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await in_hand_at_c(rig)
        other = await consumer(rig, "b")

        await rig.kill("a")
        rig.cut("a", "c")
        await rig.start("a")
        await trio.sleep(late_seconds)
        rig.heal("a", "c")

        assert await count_within(other, 20.0) == 0


async def test_what_a_dead_peer_held_is_given_to_another_after_a_dial_would_have_been_answered(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await in_hand_at_c(rig)
        other = await consumer(rig, "b")

        await rig.kill("c")
        await rig.kill("a")
        began = trio.current_time()
        await rig.start("a")

        assert await count_within(other, 10.0) == COUNT
        most = rig.settings("a").mesh.redial_seconds_max + SPARE_SECONDS
        await eventually(lambda: not rig.nodes["a"].broker.queues.held)
        assert trio.current_time() - began >= most


async def test_nothing_is_held_longer_than_its_peers_take_to_answer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await in_hand_at_c(rig)
        await rig.kill("c")
        await rig.start("c")
        await rig.kill("a")
        began = trio.current_time()

        await rig.start("a")
        await eventually(lambda: not rig.nodes["a"].broker.queues.held)

        assert trio.current_time() - began < SPARE_SECONDS  # peers redial within two seconds
