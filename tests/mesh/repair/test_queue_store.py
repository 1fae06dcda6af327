"""What peers are asked for damaged rows, and what of their answers is believed."""

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.config import StorageSettings
from qmq.model.dots import Vector
from qmq.node.node import Node
from qmq.storage.repair.range_snapshot import RangeSnapshot
from qmq.wire.stomp import Frame
from tests.fakes.queue_store import MemoryQueueStore
from tests.mesh.repair.test_catch_up import JOBS, SHORT, forget_the_past, publish
from tests.mesh.repair.test_quarantine_restore import rot
from tests.mesh.repair.test_rotten_rows import ONE_LIFE, codes, meet_damage, queued, rig, spoil, standing
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, subscribe
from tests.support.conditions import reported

OTHER = "/queue/other"
NEVER = StorageSettings(checkpoint_bytes=1 << 30)


async def in_two_queues(mesh: MeshRig, *names: str) -> None:
    """j1, o1, j2, o2, j3, o3, from a: neighbours in their queues, and none otherwise. Only the stores have them."""
    for number in range(1, 4):
        await publish(mesh, "a", JOBS, f"j{number}")
        await publish(mesh, "a", OTHER, f"o{number}")
    for name in names:
        await forget_the_past(mesh, name)
    await same_everywhere(mesh)


async def same_everywhere(mesh: MeshRig) -> None:
    """Every node has what the others have, and so have its stores."""
    nodes = list(mesh.nodes.values())
    await eventually(
        lambda: all(node.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for node in nodes)
    )
    for node in nodes:
        await node.engine.checkpoints.checkpoint()


def lost(node: Node) -> list[str]:
    """What its operator is told to be lost."""
    return [str(one["message"]) for one in reported(node) if one["code"] == "lost"]


def by_its_stores(*nodes: Node) -> None:
    """What these have in memory is of no help to them."""
    for node in nodes:
        node.mesh_parts.row_repair._in_memory = lambda missing: None  # type: ignore[method-assign]


async def settle(mesh: MeshRig, node: str, body: bytes) -> None:
    """A consumer there takes jobs, and acknowledges only this one."""
    consumer = await mesh.connect(node)
    await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
    while (frame := await consumer.next("MESSAGE")).body != body:
        pass
    await last_word(consumer, frame)


async def last_word(consumer: Client, frame: Frame, command: str = "ACK") -> None:
    """The consumer acknowledges this message, or says otherwise, and goes."""
    await consumer.send(f"{command}\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
    await consumer.receipt()
    await consumer.send("DISCONNECT\nreceipt:bye\n\n")
    await consumer.until_closed()


async def no_more_checkpoints(mesh: MeshRig, name: str) -> None:
    """None is due at this node any more; the one that is waited for comes first."""
    node = mesh.nodes[name]
    node.engine.checkpoints._settings = NEVER
    count = node.engine.checkpoints.count
    await publish(mesh, name, "/queue/elsewhere", *["x" * 500] * 10)
    await eventually(lambda: node.engine.checkpoints.count > count)


async def put_aside_and_back(mesh: MeshRig, damaged: bytes) -> Node:
    """What stands behind this body in the journal of a is put aside there, and b brings all of it back. Then only the
    stores of both have it. Returns the new life of a."""
    a, b = mesh.nodes["a"], mesh.nodes["b"]
    await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
    await mesh.kill("a")
    rot(mesh.disks["a"], damaged)
    a = await mesh.start("a")
    assert "quarantine" in codes(a)
    await mesh.until_linked()
    for name in "ab":
        await forget_the_past(mesh, name)
    await same_everywhere(mesh)
    return a


async def test_what_no_peer_ever_had_is_lost_and_holds_up_nothing_else(autojump_clock: MockClock) -> None:
    """The peer waits for what is left of the stretch, and this node for what the peer may have of the row."""
    async with rig("a", "b").run() as mesh:
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        a = mesh.nodes["a"]
        (dot,) = spoil(a, b"two")

        b = await mesh.start("b")
        await eventually(lambda: b.engine.path.received_vector() == a.engine.path.received_vector())
        await b.engine.checkpoints.checkpoint()

        await eventually(lambda: (a.mesh_parts.row_repair.lost, a.store.missing_ranges()) == (1, []))
        assert queued(b, dot.origin) == [b"one", b"three"]


async def test_what_a_peer_has_but_cannot_report_yet_is_not_lost(autojump_clock: MockClock) -> None:
    """Its disk is full, so its stores do not reach what it has."""
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
        (dot,) = spoil(a, b"two")
        lags = RangeSnapshot(dot.sequence - 1, 0, 0, [])
        b.store.repair_source.read = lambda *args: lags  # type: ignore[method-assign]
        meet_damage(a, dot.origin)
        await trio.sleep(100)

        assert (a.mesh_parts.row_repair.lost, a.mesh_parts.row_repair.repaired) == (0, 0)
        del b.store.repair_source.read
        await eventually(lambda: a.mesh_parts.row_repair.repaired == 1)


async def test_two_nodes_that_lack_the_same_row_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        for name in "ab":
            await forget_the_past(mesh, name)
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
        await b.engine.checkpoints.checkpoint()
        (dot,) = spoil(a, b"two")
        spoil(b, b"two")
        for node in (a, b):
            meet_damage(node, dot.origin)

        await eventually(lambda: not a.store.missing_ranges() and not b.store.missing_ranges())

        await eventually(lambda: a.mesh_parts.row_repair.lost + b.mesh_parts.row_repair.lost > 0)
        assert queued(b, dot.origin) == [b"one", b"three"]


async def test_what_a_peer_gave_up_says_nothing_of_what_it_has_behind(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        await same_everywhere(mesh)
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        origin = a.origin
        first = standing(b, origin)[0].dot
        b.store.queues.apply([], {JOBS: [first]}, [], [], b.store.queues.position())
        b.broker.durable_subscriptions.given_up[origin] = first.sequence
        await mesh.stop("a")
        MemoryQueueStore(mesh.disks["a"]).reset()

        a = await mesh.start("a")
        await eventually(lambda: not a.store.missing_ranges() and bool(lost(a)))

        assert queued(a, origin) == [b"two", b"three"]
        (text,) = lost(a)
        assert f"after 0 up to {first.sequence}" in text


@pytest.mark.parametrize("is_file", [False, True])
async def test_what_stands_at_a_peer_before_what_it_gave_up_comes_back(
    autojump_clock: MockClock, is_file: bool
) -> None:
    async with rig("a", "b").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        await same_everywhere(mesh)
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        origin = a.origin
        b.broker.durable_subscriptions.given_up[origin] = max(row.dot.sequence for row in standing(b, origin))
        if is_file:
            await mesh.stop("a")
            MemoryQueueStore(mesh.disks["a"]).reset()
            a = await mesh.start("a")
        else:
            spoil(a, b"two")
            meet_damage(a, origin)

        await eventually(lambda: not a.store.missing_ranges())

        assert queued(a, origin) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("peer_lacks_it", [False, True])
async def test_what_was_settled_meanwhile_does_not_come_back_from_a_peer_whose_stores_lag(
    autojump_clock: MockClock, peer_lacks_it: bool
) -> None:
    """This node has forgotten the record that settles it."""
    async with rig("a", "b").run() as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        by_its_stores(a, b)
        await publish(mesh, "a", JOBS, "one", "two", "three", "four")
        await forget_the_past(mesh, "b")
        await same_everywhere(mesh)
        await no_more_checkpoints(mesh, "b")
        await settle(mesh, "a", b"two")
        await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
        await forget_the_past(mesh, "a")

        for node in (b, a) if peer_lacks_it else (a,):
            spoil(node, b"three")
            meet_damage(node, a.origin)
        await trio.sleep(60)

        assert a.store.missing_ranges() == []
        assert queued(a, a.origin) == [b"one", *([] if peer_lacks_it else [b"three"]), b"four"]


@pytest.mark.parametrize("peer_lacks_it", [False, True])
async def test_what_was_settled_meanwhile_does_not_come_back_from_a_peer_that_was_cut_off(
    autojump_clock: MockClock, peer_lacks_it: bool
) -> None:
    """This node has dropped the settle from its journal, and the peer is about to ask what it has missed."""
    async with rig("a", "b").run() as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        by_its_stores(a, b)
        await publish(mesh, "a", JOBS, "one", "two", "three", "four")
        await same_everywhere(mesh)
        await forget_the_past(mesh, "b")
        mesh.cut("a", "b")
        await settle(mesh, "a", b"two")
        await forget_the_past(mesh, "a")
        spoil(a, b"three")
        meet_damage(a, a.origin)
        if peer_lacks_it:
            spoil(b, b"three")
            meet_damage(b, a.origin)
        await trio.sleep(5)

        mesh.heal("a", "b")
        await eventually(lambda: not a.store.missing_ranges())
        await eventually(
            lambda: (
                b.engine.path.received_vector() == a.engine.path.received_vector()
                and not b.mesh_parts.catch_up.is_stale
            )
        )

        assert queued(a, a.origin) == [b"one", *([] if peer_lacks_it else [b"three"]), b"four"]


@pytest.mark.parametrize("in_b", [b"j3", b"o2"])
async def test_nodes_whose_damaged_ranges_overlap_help_each_other(autojump_clock: MockClock, in_b: bytes) -> None:
    async with rig("a", "b").run() as mesh:
        await in_two_queues(mesh, "a", "b")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        spoil(a, b"j2")
        spoil(b, in_b)
        for node in (a, b):
            meet_damage(node, a.origin)

        await eventually(lambda: not a.store.missing_ranges() and not b.store.missing_ranges())

        for node in (a, b):
            assert queued(node, a.origin) == [b"j1", b"j2", b"j3"]
            assert queued(node, a.origin, OTHER) == [b"o1", b"o2", b"o3"]
            assert lost(node) == []


async def test_what_the_journal_brings_back_is_not_reported_as_lost(autojump_clock: MockClock) -> None:
    """The row is the first of its queue, and the journal has dropped what came long before it."""
    async with rig("a").run() as mesh:
        await publish(mesh, "a", JOBS, "first")
        await forget_the_past(mesh, "a")
        a = mesh.nodes["a"]
        await publish(mesh, "a", OTHER, "young")
        await a.engine.checkpoints.checkpoint()
        spoil(a, b"young")
        meet_damage(a, a.origin)

        await eventually(lambda: not a.store.missing_ranges())

        assert queued(a, a.origin, OTHER) == [b"young"]
        assert lost(a) == []


async def test_damage_is_repaired_also_when_no_more_of_it_is_reported(autojump_clock: MockClock) -> None:
    async with rig("a", stored=ONE_LIFE).run() as mesh:
        await publish(mesh, "a", JOBS, *[str(n) for n in range(30)])
        a = mesh.nodes["a"]
        await a.engine.checkpoints.checkpoint()
        for n in range(25):
            spoil(a, b"%d" % n)
            meet_damage(a, a.origin)
            await eventually(lambda: not a.store.missing_ranges())

        assert len(queued(a, a.origin)) == 30


async def test_many_rows_that_both_lack_are_not_waited_for_one_after_the_other(autojump_clock: MockClock) -> None:
    async with rig("a", "b").run() as mesh:
        texts = [str(n) for n in range(40)]
        await publish(mesh, "a", JOBS, *texts)
        for name in "ab":
            await forget_the_past(mesh, name)
        await same_everywhere(mesh)
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        for node in (a, b):
            spoil(node, *[text.encode() for text in texts[1::2]])
        for node in (a, b):
            meet_damage(node, a.origin)
        await trio.sleep(10)

        assert (a.store.missing_ranges(), b.store.missing_ranges()) == ([], [])


async def test_what_is_in_quarantine_here_comes_back(autojump_clock: MockClock) -> None:
    """It was put aside once, and came back from the peer, who lacks it too now."""
    async with MeshRig("a", "b", stored=SHORT, storage=NEVER).run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        origin = a.origin
        a = await put_aside_and_back(mesh, b"one")

        for node in (a, b):
            spoil(node, b"two")
            meet_damage(node, origin)
        await eventually(lambda: not a.store.missing_ranges() and not b.store.missing_ranges())

        assert queued(a, origin) == queued(b, origin) == [b"one", b"two", b"three"]


async def test_what_a_peer_has_in_quarantine_comes_back(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", stored=SHORT, storage=NEVER).run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
        await mesh.kill("b")
        rot(mesh.disks["b"], b"one")
        await forget_the_past(mesh, "a")
        spoil(a, b"two")
        meet_damage(a, a.origin)

        b = await mesh.start("b")
        await mesh.until_linked()
        await eventually(lambda: b.engine.path.received_vector() == a.engine.path.received_vector())
        await b.engine.checkpoints.checkpoint()

        assert a.mesh_parts.row_repair.repaired == 1
        assert queued(a, a.origin) == queued(b, a.origin) == [b"one", b"two", b"three"]


async def test_a_dead_letter_in_quarantine_comes_back(autojump_clock: MockClock) -> None:
    """It stands in the journal as the record that moves it."""
    async with MeshRig("a", "b", stored=SHORT, storage=NEVER).run() as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await publish(mesh, "a", JOBS, "one", "two")
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        frame = await consumer.next("MESSAGE")
        await last_word(consumer, frame, "NACK\nrequeue:false")
        origin = a.origin
        a = await put_aside_and_back(mesh, b"two")

        for node in (a, b):
            spoil(node, b"one")
            meet_damage(node, origin)
        await eventually(lambda: not a.store.missing_ranges() and not b.store.missing_ranges())

        for node in (a, b):
            assert queued(node, origin, DEAD_LETTERS) == [b"one"]
            assert lost(node) == []


async def test_what_is_settled_while_it_is_missing_is_not_reported_as_lost(autojump_clock: MockClock) -> None:
    """A consumer has it already when its row is found damaged, and acknowledges it. A member is away."""
    async with rig("a", "b").run() as mesh:
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "one")
        await forget_the_past(mesh, "a")
        a = mesh.nodes["a"]
        by_its_stores(a)
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        frame = await consumer.next("MESSAGE")
        spoil(a, b"one")
        meet_damage(a, a.origin)
        await trio.sleep(5)
        assert a.store.missing_ranges()

        await consumer.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
        await consumer.receipt()
        await forget_the_past(mesh, "a")
        await mesh.start("b")
        await mesh.until_linked()
        await trio.sleep(60)

        assert (a.store.missing_ranges(), lost(a)) == ([], [])


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_what_is_settled_beside_a_damaged_row_is_settled_for_a_returning_node(
    autojump_clock: MockClock, owner: str
) -> None:
    """Both lack the row, and c, who may have it, is away."""
    async with rig("a", "b", "c").run() as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        by_its_stores(a, b)
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        await consumer.receipt()
        await publish(mesh, owner, JOBS, "one", "two", "three", "four")
        origin = mesh.nodes[owner].origin
        got = [await consumer.next("MESSAGE") for _ in range(4)]
        two = next(frame for frame in got if frame.body == b"two")
        await mesh.stop("c")
        await same_everywhere(mesh)
        await forget_the_past(mesh, "b")
        await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
        spoil(b, b"three")
        await mesh.stop("b")
        await last_word(consumer, two)
        await forget_the_past(mesh, "a")
        spoil(a, b"three")
        meet_damage(a, origin)

        b = await mesh.start("b")
        await eventually(lambda: mesh.link("b", "a") == "caught-up" and not b.mesh_parts.catch_up.is_stale)
        await trio.sleep(60)
        await b.engine.checkpoints.checkpoint()

        assert queued(a, origin) == queued(b, origin) == [b"one", b"four"]


async def test_of_a_lost_file_what_a_member_has_aside_is_waited_for(autojump_clock: MockClock) -> None:
    """It comes back there once what stands before it is accounted for."""
    async with rig("a", "b").run() as mesh:
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "one", "two", "three")
        await forget_the_past(mesh, "a")
        a = mesh.nodes["a"]
        dead, two = a.origin, standing(a, a.origin)[1].dot.sequence
        await mesh.stop("a")
        MemoryQueueStore(mesh.disks["a"]).reset()
        a = await mesh.start("a")
        aside = {dead: two}

        async def anywhere(after: Vector) -> Vector | None:
            return aside

        a.mesh_parts.quarantine_restore.anywhere = anywhere  # type: ignore[method-assign]
        await mesh.start("b")
        await trio.sleep(60)
        assert [(missing.origin, missing.after) for missing in a.store.missing_ranges()] == [(dead, two - 1)]
        aside.clear()

        await eventually(lambda: not a.store.missing_ranges() and a.mesh_parts.row_repair.lost == 2)


async def test_the_last_message_of_a_lost_file_does_not_come_back_settled(autojump_clock: MockClock) -> None:
    """b has all but that, so c is asked for nothing else. c's stores lag behind its journal, which has the settle."""
    async with rig("a", "b", "c").run() as mesh:
        a, c = mesh.nodes["a"], mesh.nodes["c"]
        dead = a.origin
        await publish(mesh, "a", JOBS, "one")
        await same_everywhere(mesh)
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "two")
        await mesh.stop("a")
        a = await mesh.start("a")
        await eventually(lambda: c.engine.path.durable_vector() == a.engine.path.durable_vector())
        await forget_the_past(mesh, "c")
        await c.engine.checkpoints.checkpoint()
        await no_more_checkpoints(mesh, "c")
        await settle(mesh, "a", b"two")
        await eventually(lambda: c.engine.path.durable_vector() == a.engine.path.durable_vector())
        await forget_the_past(mesh, "a")
        for name in "ab":
            mesh.cut(name, "c")
        await mesh.stop("a")
        MemoryQueueStore(mesh.disks["a"]).reset()

        a = await mesh.start("a")
        await mesh.start("b")
        await trio.sleep(60)
        assert [missing.through - missing.after for missing in a.store.missing_ranges() if missing.origin == dead] == [
            1
        ]
        for name in "ab":
            mesh.heal(name, "c")
        await eventually(lambda: not a.store.missing_ranges())

        assert queued(a, dead) == [b"one"]


async def test_what_was_settled_while_this_node_was_away_does_not_come_back_for_a_damaged_row(
    autojump_clock: MockClock,
) -> None:
    """b knows that it is done, and has dropped the settle. a was away as well, cannot reach b, and is asked first."""
    async with rig("a", "b", "c").run() as mesh:
        consumer = await mesh.connect("b")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        await consumer.receipt()
        await publish(mesh, "c", JOBS, "one", "two")
        got = [await consumer.next("MESSAGE") for _ in range(2)]
        await same_everywhere(mesh)
        dead = mesh.nodes["c"].origin
        spoil(mesh.nodes["c"], b"one")
        for name in "ac":
            await mesh.stop(name)
        for frame in got:
            await consumer.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
            await consumer.receipt()
        await consumer.send("DISCONNECT\nreceipt:bye\n\n")
        await consumer.until_closed()
        await forget_the_past(mesh, "b")
        for name in "ac":
            mesh.cut(name, "b")
        await mesh.start("a")
        c = await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == "caught-up")

        mesh.heal("b", "c")
        await eventually(lambda: mesh.link("c", "b") == "caught-up" and not c.mesh_parts.catch_up.is_stale)
        await eventually(lambda: not c.broker.queues.held)
        await trio.sleep(30)
        await c.engine.checkpoints.checkpoint()

        assert (queued(c, dead), lost(c)) == ([], [])


async def test_what_is_in_memory_is_not_lost(autojump_clock: MockClock) -> None:
    """Nobody else has it, and it is with a consumer when its row is found damaged. The next life has it, too."""
    async with rig("a").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two")
        await forget_the_past(mesh, "a")
        a = mesh.nodes["a"]
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="client-individual"))
        await consumer.messages(2)
        spoil(a, b"two")
        meet_damage(a, a.origin)
        await eventually(lambda: not a.store.missing_ranges())
        assert lost(a) == []
        await mesh.stop("a")

        await mesh.start("a")

        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="jobs", ack="auto"))
        assert await consumer.messages(2) == [b"one", b"two"]


async def test_what_comes_late_for_a_lost_file_is_not_handed_out_when_another_knows_that_it_is_done(
    autojump_clock: MockClock,
) -> None:
    """b lacks a row of that stretch, so a waits for c, goes on without it, and asks it when it is back. c was away when
    b heard of the settle, and cannot reach b."""
    async with rig("a", "b", "c").run() as mesh:
        await publish(mesh, "a", JOBS, "one", "two", "three", "four")
        await same_everywhere(mesh)
        await mesh.stop("c")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        dead = a.origin
        await settle(mesh, "a", b"two")
        for name in "ab":
            await forget_the_past(mesh, name)
        await same_everywhere(mesh)
        spoil(b, b"three")
        await mesh.stop("a")
        MemoryQueueStore(mesh.disks["a"]).reset()
        a = await mesh.start("a")
        await eventually(lambda: not a.mesh_parts.catch_up.is_stale and not a.broker.queues.held)
        assert queued(a, dead) == [b"one", b"four"]
        assert dead in [missing.origin for missing in a.store.missing_ranges()]

        mesh.cut("b", "c")
        await mesh.start("c")
        await eventually(lambda: b"three" in queued(a, dead))
        await trio.sleep(60)

        assert queued(a, dead) == [b"one", b"three", b"four"]
