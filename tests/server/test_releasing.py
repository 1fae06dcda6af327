"""What stands behind damage in a journal, and no other node ever had, comes back without anybody's help."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.dots import Origin
from qmq.server.releasing import AGREED_SECONDS
from qmq.storage.memory import MemoryDisk
from qmq.storage.release import what_is_aside
from tests.server.mesh_rig import MeshRig, isolate, rejoin
from tests.server.rig import eventually, send, subscribe
from tests.support.depths import depths

F = "/fanout/f"
JOBS = "/queue/jobs"


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
            assert node.broker.durables.given_up == {origin: 3}
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
        await trio.sleep(100 * AGREED_SECONDS)
        assert depths(a) == {JOBS: 1}

        await mesh.start("c")

        await eventually(lambda: depths(a) == {JOBS: 3})
        assert await waiting(mesh, "b") == [b"one", b"three", b"two"]
        assert not any(node.broker.durables.given_up for node in mesh.nodes.values())


async def test_a_node_that_never_comes_back_is_waited_for_until_it_is_retired(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three")
        await mesh.stop("c")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: mesh.link("b", "a") == "caught-up")
        await trio.sleep(100 * AGREED_SECONDS)
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


async def test_what_another_has_put_aside_itself_comes_from_there(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are damaged, at different places: together they have all of it."""
    async with mesh_of("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        await publish(mesh, "a", JOBS, "one", "two", "three", "four")
        await until_same(mesh, "ab")
        await mesh.kill("a")
        await mesh.kill("b")
        rot(mesh.disks["a"], b"three")
        rot(mesh.disks["b"], b"two")
        isolate(mesh, "a")
        await mesh.start("a")
        b = await mesh.start("b")
        run_blocking = b.world.run_blocking

        async def slowly(call: Callable[[], object]) -> object:
            if getattr(call, "func", None) is what_is_aside:
                await trio.sleep(AGREED_SECONDS / 2)  # a hears meanwhile that nobody has more than it has
            return await run_blocking(call)

        monkeypatch.setattr(b.world, "run_blocking", slowly)

        rejoin(mesh, "a")
        rejoin(mesh, "c")

        assert await waiting(mesh, "c") == [b"four", b"one", b"three", b"two"]
        assert not any(node.broker.durables.given_up for node in mesh.nodes.values())


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
        await trio.sleep(100 * AGREED_SECONDS)

        assert depths(a) == {JOBS: 1}
        await publish(mesh, "a", JOBS, "later")
        assert await waiting(mesh, "b") == [b"later", b"one"]


async def test_the_end_of_the_incarnation_is_not_fixed_before_it(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        origin = await written_alone(mesh, "one", "two", "three")
        rot(mesh.disks["a"], b"two")
        a = await mesh.start("a")
        rejoin(mesh, "a")
        assert a.mesh is not None
        links = a.mesh
        await eventually(lambda: links.all_have("bc", origin, 2))

        a.sealing.look()
        assert origin not in a.sealing.seals.last
        await eventually(lambda: depths(a) == {JOBS: 2})
        await eventually(lambda: links.all_have("bc", origin, 4))
        a.sealing.look()

        assert a.sealing.seals.last[origin] == 4


@pytest.mark.parametrize("died", [0.0, 0.002, 0.004, 0.006, 0.01])
async def test_a_death_in_the_midst_of_it_loses_nothing_more(autojump_clock: MockClock, died: float) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await written_alone(mesh, "one", "two", "three", "four", "five")
        rot(mesh.disks["a"], b"two", b"four")
        a = await mesh.start("a")
        rejoin(mesh, "a")
        await eventually(lambda: bool(a.broker.durables.given_up))
        await trio.sleep(died)
        await mesh.kill("a")

        await mesh.start("a")

        assert await waiting(mesh, "b") == [b"five", b"one", b"three"]
