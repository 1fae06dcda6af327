"""A node that stands still as a whole, for an append in the event loop that hangs, or by SIGSTOP.

Another node serves its queue messages meanwhile. When it goes on, it sends nothing that it had decided to deliver.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from qmq.engine.commit.commits import LONE_BYTES_MAX
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, eventually, send, subscribe
from tests.protocols.beanstalk.mesh import BeanstalkMesh
from tests.simulation.pauses import Pauses
from tests.support.network import FabricPipe

JOBS: Final = "/queue/jobs"
HANG_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 25.0

pytestmark = pytest.mark.trio


def hang_once(node: Node, pauses: Pauses, nursery: trio.Nursery, *, is_lone: bool) -> trio.Event:
    """In the next append of the node, a lone one in its event loop or a large one in a thread, the whole node stands
    still for HANG_SECONDS. Set when it has begun.
    """
    environment, name = node.environment, node.origin.node
    run_commit, hangs = environment.run_commit, trio.Event()

    async def end() -> None:
        await hangs.wait()
        await trio.sleep(HANG_SECONDS)
        pauses.end_first(name)  # the commit: no other task of the node has looked at a clock before it
        await trio.lowlevel.checkpoint()
        pauses.end(name)

    async def commit(call: Callable[[], Any], *, is_lone: bool = False) -> Any:
        result = await run_commit(call, is_lone=is_lone)
        if is_lone is wanted and not hangs.is_set():
            hangs.set()
            pauses.begin(name)
            await trio.lowlevel.cancel_shielded_checkpoint()
        return result

    wanted = is_lone
    nursery.start_soon(end)
    environment.run_commit = commit  # type: ignore[method-assign]
    return hangs


async def consumer(rig: MeshRig, name: str, ack: str = "client-individual") -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack=ack))
    await client.receipt()
    return client


async def served(client: Client, *, acknowledges: bool = True) -> list[tuple[bytes, str | None]]:
    """What comes until nothing does for QUIET_SECONDS: bodies, and whether they are marked. Acknowledges each."""
    came = []
    while True:
        with trio.move_on_after(QUIET_SECONDS) as quiet:
            message = await client.next("MESSAGE")
            came.append((message.body, message.head.headers.get("redelivered")))
            if acknowledges:
                await client.send(f"ACK\nid:{message.head.headers['ack']}\n\n")
        if quiet.cancelled_caught:
            return came


async def until_same(rig: MeshRig) -> None:
    vectors = [node.engine.path for node in rig.nodes.values()]
    await eventually(lambda: all(path.durable_vector() == vectors[0].durable_vector() for path in vectors))


async def until_taken_over(rig: MeshRig) -> None:
    others = [rig.nodes[name] for name in ("b", "c")]
    await eventually(lambda: any("a" in other.mesh_parts.takeover.terms_served for other in others))


async def until_back(rig: MeshRig) -> None:
    others = [rig.nodes[name] for name in ("b", "c")]
    await eventually(lambda: not any("a" in other.mesh_parts.takeover.terms_served for other in others))


@pytest.mark.parametrize("ack", ["client-individual", "client"])
@pytest.mark.parametrize("is_lone", [True, False], ids=["in the event loop", "in a thread"])
async def test_a_node_that_stood_still_serves_nothing_that_another_serves(
    autojump_clock: MockClock, is_lone: bool, ack: str
) -> None:
    pauses = Pauses()
    async with MeshRig("a", "b", "c").run() as rig, trio.open_nursery() as nursery:
        publisher = await rig.connect("a")
        await publisher.send(send(JOBS, "one", "first"))
        await publisher.receipt()
        here, there = await consumer(rig, "a", ack), await consumer(rig, "b")
        await here.next("MESSAGE")
        await until_same(rig)
        await trio.sleep(1)  # until nothing else is decided
        hangs = hang_once(rig.nodes["a"], pauses, nursery, is_lone=is_lone)

        two = "two" if is_lone else "two" * LONE_BYTES_MAX
        await publisher.send(send(JOBS, two, "second"))
        with trio.fail_after(1):
            await hangs.wait()
        began = trio.current_time()
        isolate(rig, "a")
        await until_taken_over(rig)
        one, *at_b = await served(there)
        assert one == (b"one", "true")

        assert trio.current_time() > began + HANG_SECONDS
        assert await publisher.receipt() == "second"
        # Decided before the hang, its delivery is over when that ends. No consumer has it until a serves again.
        assert await served(here) == at_b == []
        rejoin(rig, "a")
        assert [body for body, _ in [*await served(here), *await served(there)]] == [two.encode()]
        await until_back(rig)
        nursery.cancel_scope.cancel()


async def test_a_client_that_did_not_read_gets_only_what_was_on_its_way_when_its_node_stood_still(
    autojump_clock: MockClock,
) -> None:
    """The others wait for it in the node, and are another's meanwhile."""
    rig_of = MeshRig("a", "b", "c", limits={"outbox_bytes_max": 1 << 20, "body_bytes_max": 1 << 18})
    async with rig_of.run() as rig:
        here = await rig.connect("a")
        await here.send(subscribe(JOBS, ack="client-individual", **{"prefetch-count": "20"}))
        await here.receipt()
        publisher = await rig.connect("a")
        for number in range(20):
            await publisher.send(send(JOBS, f"{number:02}" * (60 << 9), f"r{number}"))
            await publisher.receipt()
        await until_same(rig)
        deliveries = rig.nodes["a"].broker.queues.deliveries
        on_way = [one.message.body[:2] for one in deliveries.values() if one.sent]
        assert 0 < len(on_way) < len(deliveries) == 20
        isolate(rig, "a")
        rig.sleep_machine("a", HANG_SECONDS)

        assert [body[:2] for body, _ in await served(here, acknowledges=False)] == on_way

        at_b = [body[:2] for body, _ in await served(await consumer(rig, "b"))]
        assert sorted(at_b) == [b"%02d" % number for number in range(20)]
        rejoin(rig, "a")
        await until_back(rig)
        assert await served(here) == []


@pytest.mark.parametrize("ack", ["auto", "client-individual"])
async def test_a_node_that_stood_still_between_two_sends_ends_the_connection_that_it_had_not_served(
    autojump_clock: MockClock, ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both deliveries are made in one turn of its event loop."""
    async with MeshRig("a", "b", "c").run() as rig:
        first, second = await consumer(rig, "a", ack), await consumer(rig, "a", ack)
        publisher = await rig.connect("a")
        await until_same(rig)
        send_now, sent = FabricPipe.send_now, list[bytes]()

        def send_and_stand_still(pipe: FabricPipe, data: bytes) -> int:
            if data.startswith(b"MESSAGE"):
                sent.append(data)
                if len(sent) == 1:
                    rig.sleep_machine("a", HANG_SECONDS)
            return send_now(pipe, data)

        monkeypatch.setattr(FabricPipe, "send_now", send_and_stand_still)
        await publisher.send(send(JOBS, "0"), send(JOBS, "1"))

        frames = await second.until_closed()
        assert [(one.head.command, one.head.headers.get("error-code")) for one in frames] == [("ERROR", "node-paused")]
        # It has left with the message, so that comes as one that was delivered.
        assert await served(first, acknowledges=False) == [(b"0", None), (b"1", "true")]


async def test_a_client_that_takes_one_message_waits_on_when_its_node_stood_still(autojump_clock: MockClock) -> None:
    """A `reserve` without a time has no other end than a job."""
    pauses = Pauses()
    async with BeanstalkMesh("a", "b", "c").run() as rig, trio.open_nursery() as nursery:
        worker, sender = await rig.client("a"), await rig.client("a")
        await worker.send("reserve")
        await until_same(rig)
        await trio.sleep(1)
        hangs = hang_once(rig.nodes["a"], pauses, nursery, is_lone=True)

        await sender.send("put 1024 0 60 3", b"two")
        await hangs.wait()
        await until_taken_over(rig)
        await trio.sleep(HANG_SECONDS)

        _, job = (await sender.reply()).split()
        assert await worker.reply() == b"RESERVED %b 3\ntwo" % job
        nursery.cancel_scope.cancel()
