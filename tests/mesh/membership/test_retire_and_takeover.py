"""A node is retired while another serves its messages: the adopter delivers each of them once."""

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from tests.mesh.membership.test_decommission import knows_retired, retire
from tests.mesh.membership.test_members import all_count
from tests.mesh.membership.test_takeover import JOBS, consumer, everywhere, publish, serves, settle, silence
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually

QUIET_SECONDS = 25.0


def owners_by_hand(rig: MeshRig) -> list[set[str]]:
    return [serves(rig, name) for name in rig.nodes]


async def taken_over(rig: MeshRig, *bodies: str, **headers: str) -> None:
    """Messages of a, which has stopped; b serves them."""
    await eventually(lambda: all_count(rig))
    await publish(rig, "a", *bodies, **headers)
    await everywhere(rig)
    await rig.stop("a")
    await eventually(lambda: serves(rig, "b") == {"a", "b"})


async def finish(client: Client, id: str) -> None:
    await client.send(f"ACK\nid:{id}\nreceipt:done\n\n")
    await client.receipt()


async def settle_all(client: Client, bodies: list[str]) -> None:
    """Whatever comes; who of two consumers is quicker gets more."""
    while True:
        bodies.append(await settle(client))


@pytest.mark.parametrize("adopter", ["b", "c"])
async def test_the_server_of_a_retired_node_delivers_nothing_that_the_adopter_does(
    autojump_clock: MockClock, adopter: str
) -> None:
    async with MeshRig("a", "b", "c", "d").run() as rig:
        await taken_over(rig, "one", "two", "three", "four")
        holders = [await consumer(rig, name, prefetch="1") for name in ("b", "d")]
        held = [await holder.next("MESSAGE") for holder in holders]

        assert (await retire(await rig.connect(adopter), "a"))["adopter"] == adopter
        await eventually(lambda: rig.nodes[adopter].mesh_parts.adoption.adopted == 2)
        for holder, message in zip(holders, held, strict=True):
            await finish(holder, message.head.headers["ack"])
        rest: list[str] = []
        async with trio.open_nursery() as workers:
            for holder in holders:
                workers.start_soon(settle_all, holder, rest)
            await eventually(lambda: len(rest) == 2)
            workers.cancel_scope.cancel()

        assert sorted([*rest, *(message.body.decode() for message in held)]) == ["four", "one", "three", "two"]
        for holder in holders:
            await silence(holder, QUIET_SECONDS)
        assert owners_by_hand(rig) == [{"b"}, {"c"}, {"d"}]


async def test_two_nodes_that_are_left_go_on_with_what_the_retired_one_had(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await taken_over(rig, "one", "two")

        await retire(await rig.connect("c"), "a")

        worker = await consumer(rig, "b")
        assert sorted([await settle(worker), await settle(worker)]) == ["one", "two"]
        await silence(worker, QUIET_SECONDS)
        await publish(rig, "b", "of b")
        await publish(rig, "c", "of c")
        assert sorted([await settle(worker), await settle(worker)]) == ["of b", "of c"]


async def test_a_node_that_is_retired_in_the_midst_of_a_takeover_is_not_taken_over(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as rig:
        await eventually(lambda: all_count(rig))
        await publish(rig, "a", "one")
        await everywhere(rig)
        b = rig.nodes["b"]
        checkpoint, retired = b.engine.checkpoints.checkpoint, trio.Event()

        async def slow() -> None:
            await retired.wait()
            await checkpoint()

        b.engine.checkpoints.checkpoint = slow  # type: ignore[method-assign]
        await rig.stop("a")
        await eventually(lambda: next(iter(b.mesh_parts.takeover.statistics().owners)).place == "arriving")

        await retire(await rig.connect("c"), "a")
        await eventually(lambda: knows_retired(b, "a", "c"))
        retired.set()

        worker = await consumer(rig, "b")
        assert await settle(worker) == "one"
        await silence(worker, QUIET_SECONDS)
        assert owners_by_hand(rig) == [{"b"}, {"c"}, {"d"}]


async def test_counts_of_failures_and_times_go_with_what_is_adopted(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern=JOBS, delivery_limit=9, redelivery_seconds_min=0.1, redelivery_seconds_max=0.1)
    rig = MeshRig("a", "b", "c", destinations=DestinationSettings(policies=(policy,)))
    rig.skews_us = {"a": 3600 * 1_000_000, "c": -3600 * 1_000_000}
    async with rig.run():
        await eventually(lambda: all_count(rig))
        await publish(rig, "a", "late", ttl="5000")
        await publish(rig, "a", "poison", ttl="90000")
        await trio.sleep(6)
        worker = await consumer(rig, "b")
        for _ in range(2):
            message = await worker.next("MESSAGE")
            await worker.send(f"NACK\nid:{message.head.headers['ack']}\nreceipt:n\n\n")
            await worker.receipt()
        worker.pipe.close()
        await trio.sleep(1)
        await everywhere(rig)
        await rig.stop("a")

        await retire(await rig.connect("c"), "a")
        again = await (await consumer(rig, "b")).next("MESSAGE")

        assert again.body == b"poison"
        assert int(again.head.headers["delivery-count"]) >= 3


async def test_two_nodes_that_are_left_give_back_what_was_taken_over_when_they_were_three(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await eventually(lambda: all_count(rig))
        await publish(rig, "c", "one")
        await everywhere(rig)
        await rig.stop("c")
        await eventually(lambda: serves(rig, "a") == {"a", "c"})
        await rig.stop("b")
        await rig.start("c")
        await eventually(lambda: rig.link("a", "c") == rig.link("c", "a") == "caught-up")
        assert serves(rig, "c") == set()

        await retire(await rig.connect("a"), "b")

        await eventually(lambda: owners_by_hand(rig) == [{"a"}, {"c"}])
        assert await settle(await consumer(rig, "a")) == "one"
