"""What stands behind damage in a journal, and no other node ever had, comes back without anybody's help."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.dots import Origin
from qmq.errors import Refused
from qmq.server.releasing import Releasing
from qmq.storage.memory import MemoryDisk
from tests.server.mesh_rig import MeshRig, isolate, rejoin
from tests.server.rig import eventually, send, subscribe
from tests.server.test_repairs import followed, forget_the_past, short_lived
from tests.support.depths import depths

F = "/fanout/f"
JOBS = "/queue/jobs"

LONG_SECONDS = 200.0
"""In which something would have come back, if it did."""


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
    await eventually(lambda: len({frozenset(mesh.nodes[name].durable_vector().items()) for name in names}) == 1)


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
        vectors = [mesh.nodes[name].durable_vector() for name in "abc"]
        assert [vector[origin] for vector in vectors] == [5, 5, 5], "one record begins the incarnation"
        for node in mesh.nodes.values():
            assert node.broker.durables.gone.ends == {origin: [3]}
            assert "gap" in {alarm["code"] for alarm in node.alarms.list()}
        await mesh.kill("a")
        assert depths(await mesh.start("a")) == {JOBS: 3}


async def test_a_fanout_tells_its_readers_the_gap_and_goes_on_behind_it(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        reader = await mesh.connect("b")
        await reader.send(subscribe(F, id="f", ack="client-individual", durable="true"))
        await reader.receipt()
        origin = await written_alone(mesh, "one", "two", "three", destination=F)
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")

        rejoin(mesh, "a")

        got = [await reader.next("MESSAGE") for _ in range(3)]
        assert [frame.head.headers.get("qmq-gap") for frame in got] == [None, f"{origin}=3-3", None]
        assert [got[0].body, got[2].body] == [b"one", b"three"]


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
        assert not any(node.broker.durables.gone.ends for node in mesh.nodes.values())


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
        bring_back = Releasing._bring_back

        async def slowly(releasing: Releasing, *args: Any) -> bool:
            if releasing is mesh.nodes["b"].releasing:
                await busy.wait()
            return await bring_back(releasing, *args)

        monkeypatch.setattr(Releasing, "_bring_back", slowly)

        rejoin(mesh, "a")
        rejoin(mesh, "c")

        await until_same(mesh, "abc")
        await trio.sleep(LONG_SECONDS)
        busy.set()
        assert await waiting(mesh, "c") == [b"four", b"one", b"three", b"two"]
        assert not any(node.broker.durables.gone.ends for node in mesh.nodes.values())


async def test_no_more_is_given_up_than_what_nobody_has(autojump_clock: MockClock) -> None:
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
        assert all(len(node.broker.durables.gone.ends) == 1 for node in mesh.nodes.values())


async def test_a_member_that_does_not_answer_may_have_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        silent = trio.Event()
        monkeypatch.setattr(mesh.nodes["c"].releasing, "answer", lambda question: silent.wait())
        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1} and not a.sealing.seals.last

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
        monkeypatch.setattr(mesh.nodes["c"].releasing, "answer", lambda question: silent.wait())
        b = await mesh.start("b")
        await mesh.until_linked()
        await until_same(mesh, "abc")
        b.sealing.look()
        await trio.sleep(LONG_SECONDS)
        assert dead not in b.sealing.seals.last

        monkeypatch.undo()
        silent.set()

        await trio.sleep(LONG_SECONDS)
        assert dead in b.sealing.seals.last


async def test_a_question_that_means_nothing_is_refused(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        for question in (b'{"aside"', b'{"aside": 5}', b'{"aside": [["a", 1]]}', b'{"aside": [["a", 1, "x"]]}'):
            with pytest.raises(Refused):
                await mesh.nodes["a"].releasing.answer(question)


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


async def test_a_full_disk_waits_until_it_has_room(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        a.broker.disk_full = True
        rejoin(mesh, "a")
        await mesh.until_linked()
        await trio.sleep(LONG_SECONDS)
        assert depths(a) == {JOBS: 1}

        a.broker.disk_full = False

        await eventually(lambda: depths(a) == {JOBS: 2})


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_reader_that_follows_live_is_told_the_gap_where_it_is(autojump_clock: MockClock, node: str) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three", destination=F)
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        reader = await followed(mesh, node, **{"qmq-resume": ""})
        follower = mesh.nodes[node].followers
        await eventually(lambda: follower.live == 1)

        rejoin(mesh, "a")

        got = [await reader.next("MESSAGE") for _ in range(3)]
        assert [frame.body for frame in got] == [b"one", b"", b"three"]
        assert got[1].head.headers["qmq-gap"] == f"{origin}=3-3"
        assert a.broker.durables.gone.ends == {origin: [3]}


@pytest.mark.parametrize("wiped", ["a", "c"])
async def test_a_disk_that_is_replaced_later_gets_all_but_what_is_gone(autojump_clock: MockClock, wiped: str) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three", "four")
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: all(node.durable_vector().get(origin) == 5 for node in mesh.nodes.values()))
        await eventually(lambda: all(node.broker.durables.gone.ends == {origin: [3]} for node in mesh.nodes.values()))
        await mesh.stop(wiped, wipe=True)
        for node in set("abc") - set(wiped):
            await forget_the_past(mesh, node)

        node = await mesh.start(wiped)

        await mesh.until_linked()
        await eventually(lambda: node.durable_vector().get(origin) == 5)
        assert await waiting(mesh, "b") == [b"four", b"one", b"three"]
        await node.checkpoints.checkpoint()
        assert [dot.sequence for _, dot, _ in node.store.standing(None, 1000) if dot.origin == origin] == [2, 4, 5]


async def test_a_log_that_rots_later_is_mended_with_what_came_before_the_gap(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        kept = {"durable": "true", "ack": "client-individual"}
        reader = await followed(mesh, "b", **kept)
        await reader.send("DISCONNECT\nreceipt:bye\n\n")
        await reader.until_closed()
        origin = await written_alone(mesh, "one", "two", "three", "four", destination=F)
        rot(mesh.disks["a"], b"two")
        await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: all(node.durable_vector().get(origin) == 5 for node in mesh.nodes.values()))
        for name, node in mesh.nodes.items():
            await node.checkpoints.checkpoint()
            await forget_the_past(mesh, name)
        await mesh.stop("b")
        rot(mesh.disks["b"], b"one")
        b = await mesh.start("b")
        await mesh.until_linked()
        await followed(mesh, "b")

        await eventually(lambda: b.mending.mended == 1)

        again = await followed(mesh, "b", **kept)
        assert await again.messages(4) == [b"one", b"", b"three", b"four"]


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
        assert a.mesh is not None and origin not in a.sealing.seals.last
        links = a.mesh
        await eventually(lambda: links.all_have("bc", origin, 4))
        a.sealing.look()
        await eventually(lambda: a.sealing.seals.last.get(origin) == 4)


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

        assert c.mesh is not None
        links = c.mesh
        await eventually(lambda: links.all_have("ab", origin, 4))
        assert origin not in c.sealing.seals.last
        c.sealing.look()
        await eventually(lambda: c.sealing.seals.last.get(origin) == 4)
        assert await waiting(mesh, "b") == [b"one", b"three"]


@pytest.mark.parametrize("died", [0.0, 0.002, 0.004, 0.006, 0.01])
async def test_a_death_in_the_midst_of_it_loses_nothing_more(autojump_clock: MockClock, died: float) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three", "four", "five")
        rot(mesh.disks["a"], b"two", b"four")
        a = await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: bool(a.broker.durables.gone.ends))
        await trio.sleep(died)
        await mesh.kill("a")

        await mesh.start("a")

        assert await waiting(mesh, "b") == [b"five", b"one", b"three"]
