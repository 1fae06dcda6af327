"""A node that was away longer than its peers keep their journals gets what is left; settled messages stay settled."""

from collections.abc import Awaitable, Callable, Mapping

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings, StorageSettings
from qmq.config.limits import BODY_BYTES_CEILING
from qmq.mesh.peers.rpc import REPAIR_SECONDS
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.facts import UNCHECKED
from tests.fakes.catalog import MemoryCatalog
from tests.fakes.disk import MemoryDisk
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.support.conditions import reported
from tests.support.depths import depths

F = "/fanout/f"
JOBS = "/queue/jobs"
SHORT = {"segment_bytes_max": 4096, "journal_keep_bytes": 0, "journal_bytes_max": 8192, "reserve_bytes": 0}
"""A journal of two small segments, whatever the members lack."""


def short_lived(*names: str, **settings: object) -> MeshRig:
    return MeshRig(*names, stored=SHORT, storage=StorageSettings(checkpoint_bytes=4096), **settings)


async def publish(mesh: MeshRig, node: str, destination: str, *bodies: str) -> None:
    client = await mesh.connect(node)
    for body in bodies:
        await client.send(send(destination, body, "r"))
        await client.receipt()
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    await client.until_closed()


async def forget_the_past(mesh: MeshRig, node: str) -> None:
    """Let `node` write until everything that stood in its journal is dropped."""
    journal = mesh.nodes[node].store.journal
    end = journal.end
    while journal.start < end:
        await publish(mesh, node, "/queue/elsewhere", *["x" * 500] * 8)
        await mesh.nodes[node].engine.checkpoints.checkpoint()


async def followed(mesh: MeshRig, node: str, **headers: str) -> Client:
    client = await mesh.connect(node)
    await client.send(subscribe(F, id="f", **headers))
    await client.receipt()
    return client


async def test_what_is_left_of_a_dropped_journal_reaches_a_node_that_comes_back(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        await publish(mesh, "a", F, "before")
        await mesh.until_linked()
        await mesh.stop("b")
        await publish(mesh, "a", F, "while", "away")
        await publish(mesh, "a", JOBS, "first", "second")
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()

        reader = await followed(mesh, "b")
        assert await reader.messages(3) == [b"before", b"while", b"away"]
        b = mesh.nodes["b"]
        assert b.mesh_parts.catch_up.taken > 4
        assert "gap" not in {one["code"] for one in reported(b)}
        await b.engine.checkpoints.checkpoint()
        waiting = {queue for queue, dot, _ in b.store.repair_source.unsettled(None, 1000) if dot.origin.node == "a"}
        assert waiting == {JOBS, "/queue/elsewhere"}


async def test_the_largest_message_of_a_dropped_journal_reaches_a_node_that_comes_back(
    autojump_clock: MockClock,
) -> None:
    largest = {"body_bytes_max": BODY_BYTES_CEILING, "outbox_bytes_max": 4 * BODY_BYTES_CEILING}
    async with short_lived(limits=largest).run() as mesh:
        await mesh.until_linked()
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "x" * BODY_BYTES_CEILING)
        await forget_the_past(mesh, "a")

        b = await mesh.start("b")
        await mesh.until_linked()

        assert "gap" not in {one["code"] for one in reported(b)}
        await b.engine.checkpoints.checkpoint()
        assert JOBS in {queue for queue, _, _ in b.store.repair_source.unsettled(None, 1000)}


@pytest.mark.parametrize("has_it", [True, False])
async def test_a_node_that_comes_back_knows_how_often_a_message_has_failed(
    autojump_clock: MockClock, has_it: bool
) -> None:
    async with short_lived().run() as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        if not has_it:
            await mesh.stop("b")
        await publish(mesh, "a", JOBS, "poison")
        if has_it:
            await eventually(lambda: b.engine.path.durable_vector() == a.engine.path.durable_vector())
            await mesh.stop("b")
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="c", ack="client-individual"))
        for _ in range(3):
            frame = await consumer.next("MESSAGE")
            await consumer.send(f"NACK\nid:{frame.head.headers['ack']}\nreceipt:n\n\n")
            await consumer.receipt()
        await consumer.send("DISCONNECT\nreceipt:bye\n\n")
        await consumer.until_closed()
        await forget_the_past(mesh, "a")

        b = await mesh.start("b")
        await mesh.until_linked()
        await eventually(lambda: not b.broker.queues.held)
        await b.engine.checkpoints.checkpoint()

        rows = b.store.queues.unsettled(a.origin, 0, 1000, 1000, 1 << 20)
        assert [row.attempts for row in rows if row.queue == JOBS] == [3]


async def test_a_message_that_was_settled_meanwhile_is_not_handed_out_again(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="c", ack="client-individual"))
        await consumer.receipt()
        await publish(mesh, "b", JOBS, "lent", "lent too")
        got = [await consumer.next("MESSAGE") for _ in range(2)]
        await publish(mesh, "b", "/queue/other", "waits")
        await mesh.until_linked()
        await mesh.stop("b")
        for frame in got:
            await consumer.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
            await consumer.receipt()
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()

        b = mesh.nodes["b"]
        await eventually(lambda: not b.broker.queues.held)
        assert depths(b) == {"/queue/other": 1}
        assert b.mesh_parts.catch_up.settled == 2
        late = await mesh.connect("b")
        await late.send(subscribe("/queue/other", id="late"), subscribe(JOBS, id="c2"))
        assert await late.messages(1) == [b"waits"]


async def test_a_wiped_node_gets_its_own_past_back_from_what_its_peers_have_left(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        await publish(mesh, "b", JOBS, "mine", "mine too")
        await publish(mesh, "b", F, "told")
        await mesh.until_linked()
        await mesh.stop("b", wipe=True)
        for node in ("a", "c"):
            await forget_the_past(mesh, node)

        await mesh.start("b")
        await mesh.until_linked()

        b = mesh.nodes["b"]
        await eventually(lambda: not b.broker.queues.held)
        await eventually(lambda: depths(b)[JOBS] == 2)
        consumer = await mesh.connect("c")
        await consumer.send(subscribe(JOBS, id="c"))
        assert sorted(await consumer.messages(2)) == [b"mine", b"mine too"]
        reader = await followed(mesh, "b")
        assert await reader.messages(1) == [b"told"]


async def test_a_resumed_reader_gets_the_gap_of_what_retention_has_dropped(autojump_clock: MockClock) -> None:
    policy = DestinationSettings(policies=(DestinationPolicy(pattern=F, retention_bytes=2000),))
    async with short_lived(destinations=policy).run() as mesh:
        await publish(mesh, "a", F, "seen")
        reader = await followed(mesh, "b", **{"qmq-resume": ""})
        seen = await reader.next("MESSAGE")
        await reader.send("DISCONNECT\nreceipt:bye\n\n")
        await reader.until_closed()
        await mesh.stop("b")
        await publish(mesh, "a", F, *["gone" + "x" * 1000] * 20)
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()

        origin, _, sequence = seen.head.headers["message-id"].rpartition("-")
        again = await followed(mesh, "b", **{"qmq-resume": f"{origin}={sequence}"})
        first = await again.next("MESSAGE")
        assert "qmq-gap" in first.head.headers
        assert "gap" in {one["code"] for one in reported(mesh.nodes["b"])}


async def test_a_node_with_that_snapshot_has_the_queue_messages_of_that_range_for_others(
    autojump_clock: MockClock,
) -> None:
    """Only fanout messages are gone there: whoever asks later gets the rest of it."""
    policy = DestinationSettings(policies=(DestinationPolicy(pattern=F, retention_bytes=2000),))
    async with short_lived(destinations=policy).run() as mesh:
        await mesh.stop("b")
        await publish(mesh, "a", JOBS, "work")
        await publish(mesh, "a", F, *["gone" + "x" * 1000] * 20)
        await forget_the_past(mesh, "a")
        await mesh.start("b")
        await mesh.until_linked()
        await eventually(
            lambda: mesh.nodes["b"].engine.path.durable_vector() == mesh.nodes["a"].engine.path.durable_vector()
        )
        assert "gap" in {one["code"] for one in reported(mesh.nodes["b"])}
        await forget_the_past(mesh, "b")

        await mesh.stop("a", wipe=True)
        await mesh.start("a")
        await mesh.until_linked()

        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="c"))
        assert await consumer.messages(1) == [b"work"]


async def test_durable_subscriptions_that_moved_meanwhile_are_known_again(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        client = await mesh.connect("a")
        await client.send(subscribe(F, id="mail", ack="client-individual", durable="true"))
        await client.receipt()
        await mesh.until_linked()
        await publish(mesh, "a", F, "one", "two")
        got = [await client.next("MESSAGE") for _ in range(2)]
        await eventually(
            lambda: mesh.nodes["b"].engine.path.durable_vector() == mesh.nodes["a"].engine.path.durable_vector()
        )
        await mesh.stop("b")
        await client.send(f"ACK\nid:{got[0].head.headers['ack']}\nreceipt:done\n\n")
        await client.receipt()
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until_closed()
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()
        await eventually(lambda: not mesh.nodes["b"].broker.queues.held)

        client = await mesh.connect("b")
        await client.send(subscribe(F, id="mail", ack="client-individual", durable="true"))
        await client.receipt()
        assert (await client.next("MESSAGE")).body == b"two"


async def test_a_node_in_the_middle_brings_what_another_has_dropped(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        mesh.cut("a", "c")
        await publish(mesh, "a", JOBS, *[f"{n}" for n in range(10)])
        await eventually(
            lambda: mesh.nodes["c"].engine.path.durable_vector() == mesh.nodes["a"].engine.path.durable_vector()
        )
        await mesh.stop("c")
        await publish(mesh, "a", JOBS, *[f"{n}" for n in range(10, 20)])
        for node in ("a", "b"):
            await forget_the_past(mesh, node)

        await mesh.start("c")
        await eventually(lambda: mesh.link("c", "b") == "caught-up")

        c = mesh.nodes["c"]
        await c.engine.checkpoints.checkpoint()
        assert sum(queue == JOBS for queue, _, _ in c.store.repair_source.unsettled(None, 10_000)) == 20


async def test_a_life_that_was_cut_off_before_it_had_asked_leaves_the_question_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with short_lived().run() as mesh:
        await publish(mesh, "b", JOBS, "waits")
        await mesh.until_linked()
        await mesh.stop("a")
        await mesh.stop("b")
        MemoryCatalog(mesh.disks["b"]).set_facts({UNCHECKED: ""})

        b = await mesh.start("b")
        await trio.sleep(60)
        assert b.broker.queues.held, "nobody could be asked yet"
        await mesh.start("a")
        await eventually(lambda: not b.broker.queues.held)

        assert UNCHECKED not in b.store.catalog.facts()
        assert depths(b) == {JOBS: 1}


async def test_a_peer_that_dies_while_it_is_asked_is_not_waited_for_when_another_has_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        await publish(mesh, "c", JOBS, "waits")
        await mesh.until_linked()
        await mesh.stop("a")
        await mesh.stop("b")
        await mesh.stop("c")
        MemoryCatalog(mesh.disks["c"]).set_facts({UNCHECKED: ""})
        asked: list[str] = []

        def deaf_when_second(name: str, answer: Callable[[bytes], Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
            async def answers(question: bytes) -> bytes:
                if name not in asked:
                    asked.append(name)
                if asked[0] != name:
                    await trio.sleep_forever()
                return await answer(question)

            return answers

        # Nobody is asked before both can be: c would else be content with the first one.
        reachable = Mesh.reachable
        monkeypatch.setattr(Mesh, "reachable", lambda links: found if len(found := reachable(links)) == 2 else [])
        for name in "ab":
            responder = (await mesh.start(name)).mesh_parts.responder
            monkeypatch.setattr(responder, "answer", deaf_when_second(name, responder.answer))
        await eventually(lambda: mesh.link("a", "b") == mesh.link("b", "a") == "caught-up")

        c = await mesh.start("c")
        await eventually(lambda: len(asked) == 2)
        assert c.broker.queues.held
        await mesh.kill(asked[1])
        await eventually(lambda: not c.broker.queues.held)

        assert depths(c) == {JOBS: 1}


async def test_a_peer_that_does_not_answer_is_not_waited_for_when_another_has_answered(
    autojump_clock: MockClock,
) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        await publish(mesh, "a", JOBS, "waits")
        await mesh.stop("a")
        for name in "bc":
            await forget_the_past(mesh, name)
        busy = mesh.nodes["c"]
        bring_up = busy.engine.checkpoints.bring_up

        async def too_late() -> bool:
            is_up = await bring_up()
            await trio.sleep(REPAIR_SECONDS + 1)
            return is_up

        busy.engine.checkpoints.bring_up = too_late  # type: ignore[method-assign]
        await mesh.start("a")

        client = await mesh.connect("a")
        await client.send(subscribe(JOBS, id="c"))
        assert await client.messages(1) == [b"waits"]


async def test_nothing_is_handed_out_while_a_node_writes_down_that_it_has_to_ask(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        worker = await mesh.connect("c")
        await worker.send(subscribe(JOBS, id="c", ack="client-individual"))
        await worker.receipt()
        await publish(mesh, "a", JOBS, "done")
        message = await worker.next("MESSAGE")
        await mesh.stop("a")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:r\n\n")
        await worker.receipt()
        for name in "cb":
            await forget_the_past(mesh, name)
        await eventually(
            lambda: mesh.nodes["b"].engine.path.durable_vector() == mesh.nodes["c"].engine.path.durable_vector()
        )
        mesh.cut("a", "c")
        set_facts = MemoryCatalog.set_facts

        def slowly(catalog: MemoryCatalog, facts: Mapping[str, str | None]) -> None:
            set_facts(catalog, facts)
            if UNCHECKED in facts:
                is_slow = facts[UNCHECKED] is not None
                mesh.slow_disk("a", 300.0 if is_slow else 0.002, exactly=is_slow)

        monkeypatch.setattr(MemoryCatalog, "set_facts", slowly)
        a = await mesh.start("a")
        again = await mesh.connect("a")
        await again.send(subscribe(JOBS, id="c"))
        await again.receipt()

        with trio.move_on_after(20):
            raise AssertionError(f"settled while the node was away: {(await again.any()).body!r}")
        mesh.slow_disk("a", 0.002)
        assert a.mesh_parts.catch_up.is_stale or a.mesh_parts.catch_up.settled == 1


def rot(disk: MemoryDisk, directory: str, *bodies: bytes) -> None:
    """Let a bit flip in each of these bodies, wherever it stands below `directory`. The node is down."""
    for path, data in disk.contents().items():
        for body in bodies:
            if path.startswith(directory) and body in data:
                data = data.replace(body, bytes([body[0] ^ 1]) + body[1:])
                disk.put(path, data)


async def test_what_only_a_node_with_a_damaged_journal_has_reaches_its_peers_from_its_stores(
    autojump_clock: MockClock,
) -> None:
    """The last records of an earlier life: nothing stands behind them that would show the hole."""
    async with MeshRig().run() as mesh:
        await mesh.stop("b")
        await publish(mesh, "a", F, "fanout message")
        await publish(mesh, "a", JOBS, "queue message")
        await mesh.stop("a")
        rot(mesh.disks["a"], "journal/", b"fanout message", b"queue message")

        await mesh.start("a")
        await mesh.start("b")
        await mesh.until_linked()

        reader = await followed(mesh, "b")
        assert await reader.messages(1) == [b"fanout message"]
        b = mesh.nodes["b"]
        await b.engine.checkpoints.checkpoint()
        assert [queue for queue, _, _ in b.store.repair_source.unsettled(None, 10)] == [JOBS]
        vectors = [mesh.nodes[name].engine.path.durable_vector() for name in "ab"]
        await eventually(lambda: vectors[0].items() <= mesh.nodes["b"].engine.path.durable_vector().items())


async def test_a_damaged_fanout_log_is_made_whole_by_asking_peers(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        bodies = [b"message %d" % number for number in range(20)]
        for node, part in (("a", bodies[:10]), ("b", bodies[10:])):
            await publish(mesh, node, F, *[body.decode() for body in part])
        await mesh.until_linked()
        for node in "ab":
            await forget_the_past(mesh, node)
        await mesh.stop("b")
        rot(mesh.disks["b"], "fanout/", bodies[3], bodies[12])

        b = await mesh.start("b")
        await mesh.until_linked()
        refused = await followed(mesh, "b")
        assert (await refused.next("ERROR")).head.headers["error-code"] == "log-unreadable"
        await eventually(lambda: b.mesh_parts.fanout_repair.repaired == 1)

        reader = await followed(mesh, "b")
        assert sorted(await reader.messages(20)) == sorted(bodies)


async def test_damage_that_no_reader_meets_is_repaired_when_its_segment_is_full(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        await publish(mesh, "a", F, "one", "two", "three")
        await eventually(
            lambda: mesh.nodes["a"].engine.path.durable_vector() == mesh.nodes["b"].engine.path.durable_vector()
        )
        await mesh.nodes["b"].engine.checkpoints.checkpoint()
        for path, data in mesh.disks["b"].contents().items():
            if path.startswith("fanout/"):
                mesh.disks["b"]._files[path].data[data.index(b"two")] ^= 1

        await publish(mesh, "a", F, "x" * 70_000)
        await eventually(
            lambda: mesh.nodes["a"].engine.path.durable_vector() == mesh.nodes["b"].engine.path.durable_vector()
        )
        await mesh.nodes["b"].engine.checkpoints.checkpoint()
        await eventually(lambda: mesh.nodes["b"].mesh_parts.fanout_repair.repaired == 1)

        reader = await followed(mesh, "b")
        assert (await reader.messages(4))[:3] == [b"one", b"two", b"three"]


async def test_a_log_that_no_peer_can_repair_stays_refused_until_one_can(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        await publish(mesh, "a", F, "one", "two", "three")
        await mesh.until_linked()
        for node in "ab":
            await forget_the_past(mesh, node)
        await mesh.stop("b")
        await mesh.stop("a")
        rot(mesh.disks["b"], "fanout/", b"two")

        b = await mesh.start("b")
        for _ in range(2):
            refused = await followed(mesh, "b")
            assert (await refused.next("ERROR")).head.headers["error-code"] == "log-unreadable"
            await trio.sleep(100)
        assert b.mesh_parts.fanout_repair.repaired == 0
        await mesh.start("a")
        await eventually(lambda: b.mesh_parts.fanout_repair.repaired == 1)

        reader = await followed(mesh, "b")
        assert await reader.messages(3) == [b"one", b"two", b"three"]
