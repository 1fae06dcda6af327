"""Damaged rows of the queue store: the queue goes on, the message is restored, and a lost one is reported."""

import json
from collections.abc import Collection
from copy import deepcopy
from threading import Lock
from typing import Any

import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.mesh.repair.queue_store import RowStatistics
from qmq.model.dots import Dot, Origin
from qmq.node.node import Node
from qmq.storage.format.queue_store import QueueRow
from tests.fakes.queue_store import MemoryQueueStore
from tests.mesh.repair.test_catch_up import JOBS, SHORT, forget_the_past, publish
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually, subscribe
from tests.support.conditions import reported

ONE_LIFE = {"segment_bytes_max": 4096, "journal_keep_bytes": 1 << 20, "journal_bytes_max": 1 << 22, "reserve_bytes": 0}
"""A journal that drops nothing."""


def rig(*names: str, stored: dict[str, int] = SHORT) -> MeshRig:
    return MeshRig(*names, stored=stored, storage=StorageSettings(checkpoint_bytes=4096))


async def bodies(mesh: MeshRig, node: str, count: int) -> list[bytes]:
    consumer = await mesh.connect(node)
    await consumer.send(subscribe(JOBS, id="jobs", ack="auto"))
    found = [(await consumer.next("MESSAGE")).body for _ in range(count)]
    await consumer.send("DISCONNECT\nreceipt:bye\n\n")
    await consumer.until_closed()
    return found


def spoil(node: Node, *texts: bytes) -> list[Dot]:
    """Bits flip in the rows with these bodies, which are in memory no more, unless a consumer has them."""
    for queue in list(node.broker.queues.by_name.values()):
        node.broker.queues.paging.evict(queue)
    store = node.store.queues
    assert isinstance(store, MemoryQueueStore)
    rows = [row for origin in store.origins() for row in store.unsettled(origin, 0, 1 << 40, 1000, 1 << 30)]
    dots = [row.dot for row in rows if row.body in texts]
    assert len(dots) == len(texts)
    store.spoil(dots)
    return dots


def standing(node: Node, origin: Origin, queue: str = JOBS) -> list[QueueRow]:
    """What the queue store of `node` has of a queue, of `origin`. Reads it."""
    return [row for row in node.store.queues.unsettled(origin, 0, 1 << 40, 1000, 1 << 30) if row.queue == queue]


def queued(node: Node, origin: Origin, queue: str = JOBS) -> list[bytes]:
    """Their bodies."""
    return [row.body for row in standing(node, origin, queue)]


def meet_damage(node: Node, origin: Origin) -> None:
    """Somebody reads its rows."""
    standing(node, origin)
    node.engine.damage.check()


def codes(node: Node) -> Collection[str]:
    return {str(one["code"]) for one in reported(node)}


async def test_a_node_alone_brings_a_damaged_row_back_from_its_journal(autojump_clock: MockClock) -> None:
    async with rig("a", stored=ONE_LIFE).run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await mesh.nodes["a"].engine.checkpoints.checkpoint()
        await mesh.stop("a")
        a = await mesh.start("a")
        spoil(a, b"two")

        assert sorted(await bodies(mesh, "a", 3)) == [b"one", b"three", b"two"]
        assert a.mesh_parts.row_repair.repaired == 1
        assert codes(a) == {"damage"}


async def test_what_no_member_has_is_reported_as_lost_and_the_queue_goes_on(autojump_clock: MockClock) -> None:
    async with rig("a").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        await mesh.stop("a")
        a = await mesh.start("a")
        (dot,) = spoil(a, b"two")

        assert await bodies(mesh, "a", 2) == [b"one", b"three"]
        await eventually(lambda: a.mesh_parts.row_repair.lost == 1)
        (lost,) = [one for one in reported(a) if one["code"] == "lost"]
        assert str(dot) in str(lost["message"])
        assert JOBS in str(lost["message"])
        assert a.mesh_parts.row_repair.statistics() == RowStatistics(repaired=0, lost=1)
        await a.engine.checkpoints.checkpoint()
        shown = json.loads(await a.admin.status.text(0))["queues"]
        assert JOBS not in [row["destination"] for row in shown if row["messages"]]


async def test_a_damaged_row_comes_back_from_a_peer(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        await mesh.nodes["b"].engine.checkpoints.checkpoint()
        await mesh.stop("a")
        a = await mesh.start("a")
        await mesh.until_linked()
        spoil(a, b"two")

        assert sorted(await bodies(mesh, "a", 3)) == [b"one", b"three", b"two"]
        assert (a.mesh_parts.row_repair.repaired, a.mesh_parts.row_repair.lost) == (1, 0)


async def test_a_damaged_row_waits_for_the_member_that_may_have_it(autojump_clock: MockClock) -> None:
    async with rig("a", "b", "c").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        for name in "abc":
            await forget_the_past(mesh, name)
        spoil(mesh.nodes["c"], b"two")
        await mesh.stop("b")
        await mesh.stop("a")
        a = await mesh.start("a")
        spoil(a, b"two")
        await eventually(lambda: mesh.link("a", "c") == "caught-up" and not a.broker.queues.held)

        assert sorted(await bodies(mesh, "a", 2)) == [b"one", b"three"]
        await trio.sleep(100)
        assert a.mesh_parts.row_repair.lost == 0
        await mesh.start("b")

        assert await bodies(mesh, "a", 1) == [b"two"]


async def test_a_damaged_message_is_not_reported_as_settled_to_a_peer(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        b = mesh.nodes["b"]
        await b.engine.checkpoints.checkpoint()
        (dot,) = spoil(b, b"two")
        mesh.cut("a", "b")

        known = b.store.repair_source.known_of([dot, Dot(dot.origin, dot.sequence + 1000)], {})

        assert known.done == []
        b.engine.damage.check()
        mesh.heal("a", "b")
        await eventually(lambda: b.mesh_parts.row_repair.repaired == 1 and not b.store.missing_ranges())


async def test_a_settle_that_only_this_node_has_holds_for_what_a_peer_brings_back(autojump_clock: MockClock) -> None:
    """The file was lost; a peer that was cut off still has what is done."""
    async with rig("a", "b", stored=ONE_LIFE).run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        for name in "ab":
            await mesh.nodes[name].engine.checkpoints.checkpoint()
        mesh.cut("a", "b")
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        frame = await consumer.next("MESSAGE")
        assert frame.body == b"one"
        await consumer.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
        await consumer.receipt()
        await consumer.send("DISCONNECT\nreceipt:bye\n\n")
        await consumer.until_closed()
        await mesh.nodes["a"].engine.checkpoints.checkpoint()
        await mesh.stop("a")
        store = MemoryQueueStore(mesh.disks["a"])
        store.reset()
        mesh.heal("a", "b")

        a = await mesh.start("a")
        await mesh.until_linked()

        assert sorted(await bodies(mesh, "b", 2)) == [b"three", b"two"]
        await a.engine.path.flushed()
        assert not a.store.missing_ranges()


async def test_a_lost_file_is_filled_by_peers_before_anything_is_handed_out(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, *[str(n) for n in range(50)])
        await forget_the_past(mesh, "a")
        await mesh.nodes["b"].engine.checkpoints.checkpoint()
        await mesh.stop("a")
        MemoryQueueStore(mesh.disks["a"]).reset()

        a = await mesh.start("a")
        assert a.mesh_parts.catch_up.is_stale
        await mesh.until_linked()

        assert await bodies(mesh, "a", 50) == [b"%d" % n for n in range(50)]
        assert (a.mesh_parts.row_repair.lost, a.store.missing_ranges()) == (0, [])


async def test_a_store_that_lost_its_last_commits_is_filled_by_peers_before_anything_is_handed_out(
    autojump_clock: MockClock,
) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, *[str(n) for n in range(30)])
        await mesh.nodes["a"].engine.checkpoints.checkpoint()
        state: Any = mesh.disks["a"].tables["queues"]
        old = deepcopy(state, {id(state.reading): Lock()})
        assert await bodies(mesh, "b", 30) == [b"%d" % n for n in range(30)]
        await publish(mesh, "a", JOBS, *[str(n) for n in range(30, 50)])
        await forget_the_past(mesh, "a")
        await mesh.nodes["b"].engine.checkpoints.checkpoint()
        await mesh.stop("a")
        mesh.disks["a"].tables["queues"] = old

        a = await mesh.start("a")
        assert a.mesh_parts.catch_up.is_stale
        await mesh.until_linked()

        assert await bodies(mesh, "a", 20) == [b"%d" % n for n in range(30, 50)]
        assert (a.mesh_parts.row_repair.lost, a.store.missing_ranges()) == (0, [])
        assert "damage" in codes(a)


async def test_a_node_alone_says_what_its_store_may_have_lost_and_goes_on(autojump_clock: MockClock) -> None:
    async with rig("a").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        (dropped,) = mesh.nodes["a"].store.journal.base().items()
        await mesh.stop("a")
        del mesh.disks["a"].tables["queues"]

        a = await mesh.start("a")

        await eventually(lambda: "lost" in codes(a))
        (lost,) = [one for one in reported(a) if one["code"] == "lost"]
        assert f"unsettled messages of {dropped[0]} after 0 up to {dropped[1]}" in str(lost["message"])
        assert "damage" in codes(a)
        await publish(mesh, "a", JOBS, "four")
        assert await bodies(mesh, "a", 1) == [b"four"]
        assert a.store.missing_ranges() == []


async def test_a_range_that_only_an_absent_member_may_have_stops_no_healthy_node(autojump_clock: MockClock) -> None:
    async with rig("a", "b", "c").run() as mesh:
        await publish(mesh, "a", JOBS, "waits")
        await mesh.stop("c")
        mesh.cut("a", "b")
        # What b drops here c could have: nobody but c can say that it has not.
        await forget_the_past(mesh, "b")
        await mesh.stop("b")
        MemoryQueueStore(mesh.disks["b"]).reset()
        mesh.heal("a", "b")
        await mesh.start("b")
        a = mesh.nodes["a"]
        await eventually(lambda: a.mesh_parts.catch_up.is_stale)

        with trio.fail_after(60):
            while a.mesh_parts.catch_up.is_stale or a.broker.queues.held:  # noqa: ASYNC110 (it has no event to offer)
                await trio.sleep(0.1)

        assert await bodies(mesh, "a", 1) == [b"waits"]
        assert mesh.nodes["b"].store.missing_ranges()
