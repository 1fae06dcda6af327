"""Liveness fails when the disk hangs; readiness follows the start and the stop of a node, and no peer."""

from typing import Any

import trio
from trio.testing import MockClock

from qmq.node.node import Node
from qmq.protocols.http.health import APPEND_SECONDS_MAX, Health, HealthChecks
from qmq.settings.definitions.sync import START_SECONDS
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually, send, subscribe
from tests.node.stuck_rig import three


def livez(node: Node) -> Health:
    return HealthChecks(node, node.engine, node.settings_parts.sync, node.session_parts.draining).livez()


def readyz(node: Node) -> Health:
    return HealthChecks(node, node.engine, node.settings_parts.sync, node.session_parts.draining).readyz()


async def test_running_node_is_live_and_ready(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        assert livez(rig.alive) == (200, {"status": "live", "node": "a", "append_seconds": 0.0, "ended": False})
        assert readyz(rig.alive) == (
            200,
            {
                "status": "ready",
                "node": "a",
                "recovered": True,
                "definitions": "in",
                "peers_asked": True,
                "listening": True,
                "stopping": False,
                "draining": False,
                "queues_held": False,
                "disk_full": False,
            },
        )


async def test_node_whose_listeners_are_not_open_is_not_ready(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        rig.alive.is_listening = False

        assert readyz(rig.alive)[0] == 503
        assert livez(rig.alive)[0] == 200


async def test_append_that_hangs_ends_liveness_until_the_disk_is_back(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        node = rig.nodes["a"]
        client = await rig.connect("a")
        rig.stick("a")
        await client.send(send("/queue/q", "x", "r"))
        await eventually(lambda: node.engine.commits.append_began is not None)

        await trio.sleep(APPEND_SECONDS_MAX - 1)
        assert livez(node)[0] == 200
        await trio.sleep(2)
        status, facts = livez(node)
        assert (status, facts["status"]) == (503, "not live")
        assert facts["append_seconds"] > APPEND_SECONDS_MAX

        rig.free.set()
        await client.receipt()
        await node.engine.path.flushed()
        assert livez(node)[0] == 200


async def test_full_disk_leaves_a_node_live_and_ready(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        rig.disk.capacity_bytes = rig.disk.used_bytes()
        await client.send(send("/queue/q", "x" * 10_000, "r"), subscribe("/queue/other"))
        await trio.sleep(2 * APPEND_SECONDS_MAX)

        assert rig.alive.broker.send_limits.disk_full
        assert livez(rig.alive)[0] == 200
        status, facts = readyz(rig.alive)
        assert (status, facts["disk_full"]) == (200, True)
        rig.disk.capacity_bytes = 1 << 40


async def test_condition_of_a_slow_checkpoint_leaves_a_node_live(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        rig.alive.raise_condition("checkpoint", "the queue store hangs")

        assert livez(rig.alive)[0] == readyz(rig.alive)[0] == 200


async def test_node_is_ready_only_when_its_listeners_are_open(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c")
    seen: list[tuple[int, Any, Any]] = []

    async def watch() -> None:
        await eventually(lambda: "a" in rig.nodes)
        while not (facts := readyz(rig.nodes["a"])[1])["listening"]:
            seen.append((readyz(rig.nodes["a"])[0], facts["definitions"], livez(rig.nodes["a"])[0]))
            await trio.sleep(START_SECONDS / 10)

    # Its peers are dead: it waits for them for a bounded time, then it is ready.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with rig.run_apart("a"):
            await eventually(lambda: rig.nodes["a"].is_listening)
            status, facts = readyz(rig.nodes["a"])
            assert (status, facts["definitions"], facts["queues_held"]) == (200, "behind", True)

    assert len(seen) > 5
    assert set(seen) == {(503, "asked", 200)}


async def test_stopping_node_is_live_and_not_ready_and_then_ended(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await rig.connect()
        node = rig.alive
        node.stop()

        status, facts = readyz(node)
        assert (status, facts["status"], facts["stopping"]) == (503, "not ready", True)
        assert livez(node)[0] == 200
        await eventually(lambda: readyz(node)[1]["listening"] is False)

    assert livez(node) == (503, {"status": "not live", "node": "a", "append_seconds": 0.0, "ended": True})
    assert readyz(node)[0] == 503
