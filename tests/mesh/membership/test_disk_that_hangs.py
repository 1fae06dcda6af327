"""An append in the event loop that hangs: the whole node stands still for as long, as after SIGSTOP."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.simulation.pauses import Pauses

JOBS: Final = "/queue/jobs"
HANG_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 25.0

pytestmark = pytest.mark.trio


def hang_once(node: Node, pauses: Pauses, nursery: trio.Nursery) -> trio.Event:
    """The next lone append of the node is made in its event loop, and takes HANG_SECONDS. Set when it has begun."""
    environment, name = node.environment, node.origin.node
    run_commit, hangs = environment.run_commit, trio.Event()

    async def end() -> None:
        await hangs.wait()
        await trio.sleep(HANG_SECONDS)
        pauses.end(name)

    async def commit(call: Callable[[], Any], *, is_lone: bool = False) -> Any:
        if is_lone and not hangs.is_set():
            hangs.set()
            pauses.begin(name)
            await trio.lowlevel.cancel_shielded_checkpoint()
        return await run_commit(call, is_lone=is_lone)

    nursery.start_soon(end)
    environment.run_commit = commit  # type: ignore[method-assign]
    return hangs


async def consumer(rig: MeshRig, name: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual"))
    await client.receipt()
    return client


async def served(client: Client) -> list[tuple[bytes, str | None]]:
    """Acknowledge what comes, until nothing comes for QUIET_SECONDS: bodies, and whether they are marked."""
    came = []
    while True:
        with trio.move_on_after(QUIET_SECONDS) as quiet:
            message = await client.next("MESSAGE")
            came.append((message.body, message.head.headers.get("redelivered")))
            await client.send(f"ACK\nid:{message.head.headers['ack']}\n\n")
        if quiet.cancelled_caught:
            return came


async def test_a_node_that_stood_still_for_its_disk_serves_nothing_that_another_serves(
    autojump_clock: MockClock,
) -> None:
    pauses = Pauses()
    async with MeshRig("a", "b", "c").run() as rig, trio.open_nursery() as nursery:
        a, others = rig.nodes["a"], [rig.nodes["b"], rig.nodes["c"]]
        publisher = await rig.connect("a")
        await publisher.send(send(JOBS, "one", "first"))
        await publisher.receipt()
        here, there = await consumer(rig, "a"), await consumer(rig, "b")
        await here.next("MESSAGE")
        await eventually(
            lambda: all(other.engine.path.durable_vector() == a.engine.path.durable_vector() for other in others)
        )
        await trio.sleep(1)  # until nothing else is decided
        hangs = hang_once(a, pauses, nursery)

        await publisher.send(send(JOBS, "two", "second"))
        with trio.fail_after(1):
            await hangs.wait()
        began = trio.current_time()
        await eventually(lambda: any("a" in other.mesh_parts.takeover.terms_served for other in others))
        one, *at_b = await served(there)
        assert one == (b"one", "true")

        assert trio.current_time() > began + HANG_SECONDS
        assert await publisher.receipt() == "second"
        # Decided before the hang, it is sent when that ends. Until b has stopped serving for a, it may deliver it, too.
        assert await served(here) == [(b"two", None)]
        assert at_b in ([], [(b"two", "true")])
        assert await served(there) == []
        await eventually(lambda: not any("a" in other.mesh_parts.takeover.terms_served for other in others))
        nursery.cancel_scope.cancel()
