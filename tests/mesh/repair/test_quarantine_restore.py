"""Intact batches behind damage in a journal that no other node ever had are restored without an operator."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.engine.checkpoint.free_space import FreeSpace
from qmq.errors import Refused
from qmq.mesh.repair import catch_up
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.model.dots import Origin
from qmq.node.node import Node
from qmq.replication.protocol.frames import PeerRequest
from qmq.storage.catalog import incarnations
from tests.fakes.disk import MemoryDisk
from tests.mesh.repair.test_catch_up import forget_the_past, short_lived
from tests.mesh.repair.test_incarnation_gc import age_until_unknown
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import eventually, send, subscribe
from tests.support.conditions import reported
from tests.support.depths import depths

F = "/fanout/f"
JOBS = "/queue/jobs"

LONG_SECONDS = 60.0
"""In which something would have come back, if it did: some sixty attempts."""


def lost_ranges(node: Node) -> dict[Origin, list[int]]:
    """Where lost ranges end, as `node` has noted."""
    return dict(node.broker.durable_subscriptions.lost_ranges.ends)


def mesh_of(*names: str) -> MeshRig:
    """Nodes whose journals no checkpoint passes by itself, so that the next start meets what is damaged."""
    return MeshRig(*names, storage=StorageSettings(checkpoint_bytes=1 << 30))


async def publish(mesh: MeshRig, node: str, destination: str, *bodies: str) -> None:
    client = await mesh.connect(node)
    for body in bodies:
        await client.send(send(destination, body, "r"))
        await client.receipt()


async def until_same(mesh: MeshRig, names: str) -> None:
    """Each of these nodes has what the others have."""
    await eventually(
        lambda: len({frozenset(mesh.nodes[name].engine.path.durable_vector().items()) for name in names}) == 1
    )


async def written_alone(mesh: MeshRig, *bodies: str, destination: str = JOBS) -> Origin:
    """The node `a` is cut off, receipts these, and is killed. Returns the incarnation that wrote them."""
    isolate(mesh, "a")
    await publish(mesh, "a", destination, *bodies)
    origin = mesh.nodes["a"].origin
    await mesh.kill("a")
    return origin


def rot(disk: MemoryDisk, *bodies: bytes) -> None:
    """Let a bit flip in each of these bodies, wherever it stands. The node is down."""
    for path, data in disk.contents().items():
        for body in bodies:
            if body in data:
                data = data.replace(body, bytes([body[0] ^ 1]) + body[1:])
                disk.put(path, data)


async def waiting(mesh: MeshRig, node: str) -> list[bytes]:
    """What a consumer of this node gets of the jobs; it gives everything back."""
    consumer = await mesh.connect(node)
    await consumer.send(subscribe(JOBS, id="c", ack="client-individual"))
    await consumer.receipt()
    got: list[bytes] = []
    with trio.move_on_after(30):
        while True:
            got.append((await consumer.next("MESSAGE")).body)
    await consumer.send("DISCONNECT\nreceipt:bye\n\n")
    await consumer.until_closed()
    return sorted(got)


async def test_it_comes_back_and_only_what_is_damaged_is_given_up(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three", "four")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        assert depths(a) == {JOBS: 1}

        rejoin(mesh, "a")

        await eventually(lambda: depths(a) == {JOBS: 3})
        assert await waiting(mesh, "c") == [b"four", b"one", b"three"]
        vectors = [mesh.nodes[name].engine.path.durable_vector() for name in "abc"]
        assert [vector[origin] for vector in vectors] == [5, 5, 5], "one record begins the incarnation"
        for node in mesh.nodes.values():
            assert lost_ranges(node) == {origin: [3]}
            assert "gap" in {one["code"] for one in reported(node)}
        await mesh.kill("a")
        assert depths(await mesh.start("a")) == {JOBS: 3}


async def test_nothing_is_given_up_before_every_member_was_heard(autojump_clock: MockClock) -> None:
    """The one that is away may have what is damaged here, and then nothing is lost."""
    async with mesh_of("a", "b", "c").run() as mesh:
        await publish(mesh, "a", JOBS, "one")
        await until_same(mesh, "abc")
        isolate(mesh, "b")
        await publish(mesh, "a", JOBS, "two")
        await until_same(mesh, "ac")
        await mesh.stop("c")
        await publish(mesh, "a", JOBS, "three")
        await mesh.kill("a")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        rejoin(mesh, "b")
        await eventually(lambda: mesh.link("b", "a") == mesh.link("a", "b") == "caught-up")
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1}

        await mesh.start("c")

        await eventually(lambda: depths(a) == {JOBS: 3})
        assert await waiting(mesh, "b") == [b"one", b"three", b"two"]
        assert not any(node.broker.durable_subscriptions.lost_ranges.ends for node in mesh.nodes.values())


async def test_a_node_that_never_comes_back_is_waited_for_until_it_is_retired(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        await mesh.stop("c")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: mesh.link("b", "a") == "caught-up")
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1}

        operator = await mesh.connect("b")
        await operator.send(send("/control/retire/c", "", "r"))

        await eventually(lambda: depths(a) == {JOBS: 2})


async def test_damage_in_two_places_gives_up_exactly_these(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three", "four", "five", "six")
        rot(mesh.disks["a"], b"two", b"four", b"five")
        await mesh.start("a")

        rejoin(mesh, "a")

        assert await waiting(mesh, "b") == [b"one", b"six", b"three"]


async def both_damaged(mesh: MeshRig, in_a: tuple[bytes, ...], in_b: tuple[bytes, ...]) -> None:
    """What a wrote is on the disks of a and b only, and rots there; both are up again, a without links."""
    isolate(mesh, "c")
    await publish(mesh, "a", JOBS, "one", "two", "three", "four")
    await until_same(mesh, "ab")
    await mesh.kill("a")
    await mesh.kill("b")
    rot(mesh.disks["a"], *in_a)
    rot(mesh.disks["b"], *in_b)
    isolate(mesh, "a")
    await mesh.start("a")
    await mesh.start("b")


async def test_what_another_has_put_aside_itself_comes_from_there(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are damaged, at different places: together they have all of it, however long one of them takes."""
    async with mesh_of("a", "b", "c").run() as mesh:
        await both_damaged(mesh, (b"three",), (b"two",))
        busy = trio.Event()
        bring_back = QuarantineRestore._bring_back

        async def slowly(quarantine_restore: QuarantineRestore, *args: Any) -> bool:
            if quarantine_restore is mesh.nodes["b"].mesh_parts.quarantine_restore:
                await busy.wait()
            return await bring_back(quarantine_restore, *args)

        monkeypatch.setattr(QuarantineRestore, "_bring_back", slowly)

        rejoin(mesh, "a")
        rejoin(mesh, "c")

        await until_same(mesh, "abc")
        await trio.sleep(LONG_SECONDS)
        busy.set()
        assert await waiting(mesh, "c") == [b"four", b"one", b"three", b"two"]
        assert not any(node.broker.durable_subscriptions.lost_ranges.ends for node in mesh.nodes.values())


async def test_no_more_is_given_up_than_what_no_member_has(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await both_damaged(mesh, (b"two", b"three"), (b"two",))
        rejoin(mesh, "a")
        rejoin(mesh, "c")

        await eventually(lambda: depths(mesh.nodes["a"]) == {JOBS: 3})
        assert await waiting(mesh, "c") == [b"four", b"one", b"three"]


async def test_of_two_that_have_the_same_aside_one_brings_it_back(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await both_damaged(mesh, (b"two",), (b"two",))
        rejoin(mesh, "a")
        rejoin(mesh, "c")

        assert await waiting(mesh, "c") == [b"four", b"one", b"three"]
        assert all(len(node.broker.durable_subscriptions.lost_ranges.ends) == 1 for node in mesh.nodes.values())


async def test_a_member_that_does_not_answer_may_have_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        silent = trio.Event()
        monkeypatch.setattr(mesh.nodes["c"].mesh_parts.quarantine_restore, "answer", lambda question: silent.wait())
        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1} and not a.mesh_parts.incarnation_gc.seals.last

        monkeypatch.undo()
        silent.set()
        await trio.sleep(LONG_SECONDS)

        assert depths(a) == {JOBS: 2}


async def test_no_end_is_fixed_while_a_member_does_not_answer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        dead = mesh.nodes["b"].origin
        await mesh.stop("b")
        silent = trio.Event()
        monkeypatch.setattr(mesh.nodes["c"].mesh_parts.quarantine_restore, "answer", lambda question: silent.wait())
        b = await mesh.start("b")
        await mesh.until_linked()
        await until_same(mesh, "abc")
        b.mesh_parts.incarnation_gc.wake()
        await trio.sleep(LONG_SECONDS)
        assert dead not in b.mesh_parts.incarnation_gc.seals.last

        monkeypatch.undo()
        silent.set()

        await trio.sleep(LONG_SECONDS)
        assert dead in b.mesh_parts.incarnation_gc.seals.last


async def test_a_question_that_means_nothing_is_refused(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        for question in (b'{"aside"', b'{"aside": 5}', b'{"aside": [["a", 1]]}', b'{"aside": [["a", 1, "x"]]}'):
            with pytest.raises(Refused):
                await mesh.nodes["a"].peer_rpc._answer(PeerRequest("quarantine", question))


async def test_a_gap_of_another_incarnation_holds_up_nothing(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        await publish(mesh, "a", JOBS, "one", "two", "three", "four")
        await until_same(mesh, "ab")
        await mesh.kill("a")
        await publish(mesh, "b", JOBS, "papa", "quebec", "romeo", "sierra", "tango")
        await mesh.kill("b")
        rot(mesh.disks["a"], b"three")
        rot(mesh.disks["b"], b"two", b"quebec", b"sierra")
        isolate(mesh, "a")
        await mesh.start("a")
        await mesh.start("b")
        rejoin(mesh, "a")
        rejoin(mesh, "c")

        every = [b"four", b"one", b"papa", b"romeo", b"tango", b"three", b"two"]
        assert await waiting(mesh, "c") == every


async def test_a_full_disk_waits_until_it_has_room(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        # Every look at this disk finds it full, from the first one on: a later one must not end the shortage.
        room = FreeSpace._room
        monkeypatch.setattr(
            FreeSpace, "_room", lambda one: 0 if one is mesh.nodes["a"].engine.checkpoints.space else room(one)
        )
        a = await mesh.start("a")
        await eventually(lambda: a.broker.send_limits.disk_full)
        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1}

        monkeypatch.undo()

        await eventually(lambda: depths(a) == {JOBS: 2})


@pytest.mark.parametrize("wiped", ["a", "c"])
async def test_a_disk_that_is_replaced_later_gets_all_but_what_is_gone(autojump_clock: MockClock, wiped: str) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three", "four")
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(
            lambda: all(node.engine.path.durable_vector().get(origin) == 5 for node in mesh.nodes.values())
        )
        await eventually(lambda: all(lost_ranges(node) == {origin: [3]} for node in mesh.nodes.values()))
        await mesh.stop(wiped, wipe=True)
        for node in set("abc") - set(wiped):
            await forget_the_past(mesh, node)

        node = await mesh.start(wiped)

        await mesh.until_linked()
        await eventually(lambda: node.engine.path.durable_vector().get(origin) == 5)
        assert await waiting(mesh, "b") == [b"four", b"one", b"three"]
        await node.engine.checkpoints.checkpoint()
        assert [
            dot.sequence for _, dot, _ in node.store.repair_source.unsettled(None, 1000) if dot.origin == origin
        ] == [2, 4, 5]


async def test_what_has_rotted_in_the_quarantine_too_is_given_up_with_the_rest(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three", "four")
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")
        await mesh.kill("a")
        rot(mesh.disks["a"], b"three")
        await mesh.start("a")

        rejoin(mesh, "a")

        assert await waiting(mesh, "b") == [b"four", b"one"]


async def test_what_rots_while_it_is_brought_back_ends_the_attempt(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        rot(mesh.disks["a"], b"three")

        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(LONG_SECONDS)

        assert depths(a) == {JOBS: 1}
        await publish(mesh, "a", JOBS, "later")
        assert await waiting(mesh, "b") == [b"later", b"one"]


async def test_the_end_of_the_incarnation_is_not_fixed_before_it(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")

        rejoin(mesh, "a")

        await eventually(lambda: depths(a) == {JOBS: 2})
        links = a.mesh
        await eventually(lambda: links.all_have("bc", origin, 4))
        assert a.mesh_parts.incarnation_gc.seals.last.get(origin, 4) == 4
        a.mesh_parts.incarnation_gc.wake()
        await eventually(lambda: a.mesh_parts.incarnation_gc.seals.last.get(origin) == 4)


async def test_nor_while_another_member_has_some_of_it_aside(autojump_clock: MockClock) -> None:
    """The node of the incarnation has lost its disk, and what was copied to one peer is damaged there."""
    async with mesh_of("a", "b", "c").run() as mesh:
        isolate(mesh, "b")
        await publish(mesh, "c", JOBS, "one", "two", "three")
        origin = mesh.nodes["c"].origin
        await until_same(mesh, "ac")
        await mesh.kill("a")
        await mesh.kill("c")
        rot(mesh.disks["a"], b"two")
        mesh.disks["c"] = MemoryDisk()
        await mesh.start("a")
        c = await mesh.start("c")

        rejoin(mesh, "b")

        links = c.mesh
        await eventually(lambda: links.all_have("ab", origin, 4))
        assert c.mesh_parts.incarnation_gc.seals.last.get(origin, 4) == 4
        c.mesh_parts.incarnation_gc.wake()
        await eventually(lambda: c.mesh_parts.incarnation_gc.seals.last.get(origin) == 4)
        assert await waiting(mesh, "b") == [b"one", b"three"]


async def begun_to_come_back(mesh: MeshRig) -> None:
    """Of five messages of `a` two are gone, and the first of these is known to be."""
    await written_alone(mesh, "one", "two", "three", "four", "five")
    rot(mesh.disks["a"], b"two", b"four")
    a = await mesh.start("a")
    rejoin(mesh, "a")
    await eventually(lambda: bool(lost_ranges(a)))


@pytest.mark.parametrize("died", [0.0, 0.002, 0.004, 0.006, 0.01])
async def test_a_death_in_the_midst_of_it_loses_nothing_more(autojump_clock: MockClock, died: float) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await begun_to_come_back(mesh)
        await trio.sleep(died)
        await mesh.kill("a")

        await mesh.start("a")

        assert await waiting(mesh, "b") == [b"five", b"one", b"three"]


async def never(*_: object) -> None:
    await trio.sleep_forever()


async def drained(mesh: MeshRig, node: str, queue: str, count: int) -> list[bytes]:
    client = await mesh.connect(node)
    await client.send(subscribe(queue, id="d", ack="client-individual"))
    got = []
    for _ in range(count):
        frame = await client.next("MESSAGE")
        got.append(frame.body)
        await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:k\n\n")
        await client.receipt()
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    await client.until_closed()
    return got


@pytest.mark.parametrize("healed_by", ["release", "peers"])
async def test_what_was_settled_and_forgotten_does_not_come_back_when_its_name_is_forgotten_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, healed_by: str
) -> None:
    """The names of what is forgotten are remembered up to a number; the quarantine is kept for ever."""
    async with short_lived("a", "b", "c").run() as mesh:
        count = 2 if healed_by == "release" else 3
        if healed_by == "release":
            origin = await written_alone(mesh, "one", "two", "three")
        else:
            await publish(mesh, "a", JOBS, "one", "two", "three")
            await until_same(mesh, "abc")
            origin = mesh.nodes["a"].origin
            await mesh.kill("a")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        assert a.store.recovered.quarantined
        rejoin(mesh, "a")
        await eventually(lambda: depths(a) == {JOBS: count})
        await mesh.until_linked()
        assert sorted(await drained(mesh, "a", JOBS, count)) == [b"one", b"three", b"two"][:count]
        await age_until_unknown(mesh, origin)
        # Ten thousand restarts later (two here).
        monkeypatch.setattr(incarnations, "FORGOTTEN_MAX", 1)
        for _ in range(2):
            dead = mesh.nodes["b"].origin
            await mesh.stop("b")
            await mesh.start("b")
            await mesh.until_linked()
            await age_until_unknown(mesh, dead)
        await mesh.stop("a")
        a = await mesh.start("a")
        await mesh.until_linked()
        await trio.sleep(100)
        assert await waiting(mesh, "a") == []


@pytest.mark.parametrize("what", ["removed", "unreadable"])
async def test_a_node_starts_although_the_bytes_of_its_quarantine_are_gone(
    autojump_clock: MockClock, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")
        await mesh.kill("a")
        disk = mesh.disks["a"]
        (path,) = [path for path in disk.contents() if path.endswith(".bad")]
        if what == "removed":
            disk.remove(path)
        else:
            opened = disk.open

            class Bad:
                def __init__(self, file: Any) -> None:
                    self._file = file

                def read(self, offset: int, size: int) -> bytes:
                    raise OSError(5, "cannot read")

                def __getattr__(self, name: str) -> Any:
                    return getattr(self._file, name)

            monkeypatch.setattr(disk, "open", lambda name: Bad(opened(name)) if name == path else opened(name))
        a = await mesh.start("a")
        await trio.sleep(5)
        assert depths(a) == {JOBS: 1}


async def test_a_quarantined_range_snapshot_comes_back_when_its_sender_is_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` was away, got the rest of what b's journal had dropped, and b burnt down."""
    big = MeshRig(
        "a",
        "b",
        "c",
        stored={"segment_bytes_max": 4096, "journal_keep_bytes": 0, "journal_bytes_max": 8192, "reserve_bytes": 0},
        storage=StorageSettings(checkpoint_bytes=1 << 30),
    )
    async with big.run() as mesh:
        a = mesh.nodes["a"]
        isolate(mesh, "c")
        await publish(mesh, "b", JOBS, "first")
        await until_same(mesh, "ab")
        isolate(mesh, "a")
        await trio.sleep(100)
        await publish(mesh, "b", JOBS, "second", "third")
        origin = mesh.nodes["b"].origin
        await forget_the_past(mesh, "b")
        monkeypatch.setattr(catch_up.CatchUp, "_check", never)  # a is killed before it has asked about what it holds
        mesh.heal("a", "b")
        await eventually(
            lambda: a.engine.path.durable_vector().get(origin) == mesh.nodes["b"].engine.path.durable_vector()[origin]
        )
        await mesh.kill("a")
        await mesh.kill("b")
        mesh.disks["b"].wipe()
        rot(mesh.disks["a"], b"first")
        monkeypatch.undo()
        a = await mesh.start("a")
        await mesh.start("b")
        rejoin(mesh, "c")
        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(200)
        got = await waiting(mesh, "a")
        assert b"second" in got and b"third" in got


@pytest.mark.parametrize("when", range(6))
async def test_a_peer_may_die_at_any_moment_of_it(autojump_clock: MockClock, when: int) -> None:
    """Whatever dies in between: what is whole comes back once, everywhere."""
    async with mesh_of("a", "b", "c").run() as mesh:
        await begun_to_come_back(mesh)
        await trio.sleep(0.004 * when)
        await mesh.kill("b")
        await trio.sleep(0.5)
        await mesh.start("b")
        await mesh.until_linked()
        assert await waiting(mesh, "b") == [b"five", b"one", b"three"]
        await until_same(mesh, "abc")
        ends = [node.broker.durable_subscriptions.lost_ranges.ends for node in mesh.nodes.values()]
        assert ends[0] == ends[1] == ends[2], ends


async def test_the_first_record_of_all_may_be_damaged_too(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        isolate(mesh, "a")
        await mesh.kill("a")
        await mesh.start("a")
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"software", b"two")
        await mesh.start("a")
        rejoin(mesh, "a")
        await mesh.until_linked()
        assert await waiting(mesh, "b") == [b"one", b"three"]
        await until_same(mesh, "abc")


async def test_the_condition_of_damage_is_still_to_be_seen_when_much_stood_behind_it(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", *[f"later {number}" for number in range(50)])
        rot(mesh.disks["a"], b"one")

        a = await mesh.start("a")

        told = [str(one["message"]) for one in reported(a) if one["code"] == "quarantine"]
        assert len(told) == 2
        assert "cannot be read" in told[1]
        assert f"records 3 to 52 of {origin}, intact but behind such a place" in told[0]
