"""The queue messages of a retired node: its adopter has all of them, once, and leaves alone what is with consumers."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.errors import DiskFull
from qmq.mesh.membership.adopt_queues import POLL_SECONDS, HeldCall
from qmq.model.dots import Dot, Vector, covers
from qmq.model.members import Retirement
from qmq.node.node import Node
from qmq.replication.protocol.frames import PeerRequest
from tests.mesh.membership.test_decommission import knows_retired, retire
from tests.mesh.membership.test_members import all_count
from tests.mesh.repair.test_catch_up import short_lived
from tests.mesh.repair.test_incarnation_gc import age, knows
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, nothing_more, send, subscribe

JOBS = "/queue/jobs"


async def left_by_c(mesh: MeshRig, count: int, **headers: str) -> None:
    """So many messages that c has accepted and that are everywhere; then c is gone."""
    await sent_by_c(mesh, count, **headers)
    await mesh.stop("c")


async def sent_by_c(mesh: MeshRig, count: int, **headers: str) -> None:
    await eventually(lambda: all_count(mesh))
    client = await mesh.connect("c")
    for number in range(count):
        await client.send(send(JOBS, str(number), f"r{number}", **headers))
        await client.receipt()
    vector = mesh.nodes["c"].engine.path.durable_vector()
    await eventually(lambda: all(_has(node, vector) for node in mesh.nodes.values()))


def _has(node: Node, vector: Vector) -> bool:
    have = node.engine.path.durable_vector()
    return all(have.get(origin, 0) >= last for origin, last in vector.items() if origin.node == "c")


async def drain(client: Client, count: int) -> list[bytes]:
    await client.send(subscribe(JOBS, ack="client-individual"))
    assert await client.receipt() == "sub-0"
    bodies = []
    for _ in range(count):
        frame = await client.next("MESSAGE")
        bodies.append(frame.body)
        await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:a{len(bodies)}\n\n")
        assert await client.receipt() == f"a{len(bodies)}"
    return bodies


async def test_what_a_retired_node_left_is_delivered_in_order_and_once(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 5)
        await retire(await mesh.connect("a"), "c")

        worker = await mesh.connect("b")
        bodies = await drain(worker, 5)
        await trio.sleep(30)

        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        await nothing_more(worker)
        a = mesh.nodes["a"]
        await a.engine.checkpoints.checkpoint()
        assert a.store.queues.is_empty("c")


async def test_priorities_headers_and_times_stay_what_they_were(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 1, priority="8", colour="red", ttl="60000")
        await retire(await mesh.connect("a"), "c")
        worker = await mesh.connect("b")

        await worker.send(subscribe(JOBS))
        headers = (await worker.next("MESSAGE")).head.headers

        assert (headers["priority"], headers["colour"]) == ("8", "red")
        assert headers["message-id"].startswith("a-")


async def test_what_has_expired_meanwhile_is_not_adopted_into_a_new_life(autojump_clock: MockClock) -> None:
    # With takeover a would drop it under its old name before it could be adopted: as good, and another rule's test.
    async with MeshRig("a", "b", "c", mesh={"takeover": False}).run() as mesh:
        await left_by_c(mesh, 1, ttl="20000")
        await trio.sleep(30)
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: mesh.nodes["a"].mesh_parts.adoption.adopted == 1)
        worker = await mesh.connect("b")

        await worker.send(subscribe(JOBS))
        await worker.receipt()
        await trio.sleep(10)

        await nothing_more(worker)


async def test_a_message_that_a_consumer_still_has_is_left_to_it(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        worker = await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual", prefetch_count="1"))
        client = await mesh.connect("c")
        await client.send(send(JOBS, "held", "r1"))
        held = await worker.next("MESSAGE")
        await client.receipt()
        await client.send(send(JOBS, "waits", "r2"))
        await client.next("RECEIPT")
        c = mesh.nodes["c"].origin
        await eventually(lambda: mesh.nodes["a"].engine.path.durable_vector().get(c, 0) >= 3)
        await mesh.stop("c")

        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: mesh.nodes["a"].mesh_parts.adoption.adopted == 1)
        await worker.send(f"ACK\nid:{held.head.headers['ack']}\nreceipt:acked\n\n")

        assert (await worker.next("MESSAGE")).body == b"waits"
        await trio.sleep(60)
        assert mesh.nodes["a"].mesh_parts.adoption.adopted == 1
        await nothing_more(worker)


async def test_a_consumer_that_has_a_message_in_memory_only_keeps_nothing_from_being_adopted(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        worker = await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual", prefetch_count="1"))
        client = await mesh.connect("c")
        await client.send(send(JOBS, "held", persistent="false"))
        assert (await worker.next("MESSAGE")).body == b"held"

        await left_by_c(mesh, 1)
        await retire(await mesh.connect("a"), "c")

        await eventually(lambda: mesh.nodes["a"].mesh_parts.adoption.adopted == 1)


async def test_what_was_settled_for_good_is_not_adopted_before_its_settle_is_here(autojump_clock: MockClock) -> None:
    """The adopter is linked with the node that has the settle, and has not caught up with it."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await sent_by_c(mesh, 1)
        b, worker = mesh.nodes["b"], await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual"))
        message = await worker.next("MESSAGE")
        await eventually(lambda: all(_has(mesh.nodes[name], b.engine.path.durable_vector()) for name in "ac"))
        mesh.cut("a", "b")
        mesh.cut("a", "c")
        await eventually(lambda: mesh.link("a", "b") == mesh.link("b", "a") == "down")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nack-level:quorum\nreceipt:r\n\n")
        assert "ack-level" not in (await worker.next("RECEIPT")).head.headers
        await eventually(lambda: not b.broker.borrowing.borrowed_from("c"))
        await mesh.kill("c")
        del mesh.nodes["c"]
        run_blocking, go_on = b.environment._run_blocking, trio.Event()

        async def seek_late(call: Any) -> Any:
            if getattr(getattr(call, "func", None), "__name__", "") == "_seek":
                await go_on.wait()
            return await run_blocking(call)

        b.environment._run_blocking = seek_late  # type: ignore[method-assign]
        mesh.heal("a", "b")
        await eventually(lambda: mesh.link("a", "b") in ("up", "caught-up"))
        await mesh.nodes["a"].mesh_parts.decommission.retire("c", force=False)

        again = await mesh.connect("a")
        await again.send(subscribe(JOBS, id="again"))
        with trio.move_on_after(20):
            raise AssertionError(f"handed out after it was settled for good: {(await again.next('MESSAGE')).body}")
        go_on.set()


async def test_a_former_adopter_leaves_everything_to_the_present_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes were told to retire the same one: the lesser name stays."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 3)
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        ask = b.peer_rpc.ask

        async def overtaken(call: Any, *rest: Any) -> Any:
            answers = await ask(call, *rest)
            if isinstance(call, HeldCall):
                for node in (a, b):
                    node.mesh_parts.members.retired(Retirement(node="c", adopter="a", sealed={}))
            return answers

        monkeypatch.setattr(b.peer_rpc, "ask", overtaken)
        await retire(await mesh.connect("b"), "c")
        await eventually(lambda: a.mesh_parts.adoption.adopted == 3)
        await trio.sleep(20)

        assert b.mesh_parts.adoption.adopted == 0


async def test_a_node_that_would_adopt_itself_does_not_say_what_is_held(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 1)
        await retire(await mesh.connect("a"), "c")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await eventually(lambda: knows_retired(b, "c", "a"))

        assert b.mesh_parts.adoption.answer(HeldCall("c")).holds == []
        assert a.mesh_parts.adoption.answer(HeldCall("c")).holds is None


async def test_a_learner_does_not_vouch_for_what_is_settled(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d", mesh={"takeover": False}).run() as mesh:
        await sent_by_c(mesh, 1)
        worker = await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual"))
        message = await worker.next("MESSAGE")
        for other in "bcd":
            mesh.cut("a", other)
        await eventually(lambda: not mesh.nodes["a"].mesh.linked())  # type: ignore[union-attr]
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nack-level:quorum\nreceipt:r\n\n")
        assert "ack-level" not in (await worker.next("RECEIPT")).head.headers
        for name in "cd":
            await mesh.kill(name)
            del mesh.nodes[name]
        await mesh.stop("b", wipe=True)
        await mesh.start("b")
        mesh.heal("a", "b")
        await eventually(lambda: mesh.link("a", "b") == mesh.link("b", "a") == "caught-up")

        await mesh.nodes["a"].mesh_parts.decommission.retire("c", force=False)
        await trio.sleep(120)

        assert mesh.nodes["a"].mesh_parts.adoption.adopted == 0


async def test_what_a_retired_node_left_is_adopted_while_others_are_busy(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh, trio.open_nursery() as nursery:
        await left_by_c(mesh, 2)
        mesh.slow_disk("a", 0.5)
        busy = await mesh.connect("b")

        async def publish() -> None:
            while True:
                await busy.send(send("/queue/other", "more"))
                await trio.sleep(0.02)

        nursery.start_soon(publish)
        await retire(await mesh.connect("a"), "c")

        with trio.fail_after(60):
            await eventually(lambda: mesh.nodes["a"].mesh_parts.adoption.adopted == 2)
        nursery.cancel_scope.cancel()


async def test_a_message_whose_consumer_goes_away_is_adopted_then(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        worker = await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual"))
        client = await mesh.connect("c")
        await client.send(send(JOBS, "held", "r1"))
        await worker.next("MESSAGE")
        await client.receipt()
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))

        worker.pipe.close()
        other = await mesh.connect("a")

        assert await drain(other, 1) == [b"held"]


async def test_an_adopter_that_dies_in_the_midst_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 20)
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: mesh.nodes["a"].mesh_parts.adoption.adopted > 0)

        await mesh.stop("a")
        await mesh.start("a")
        await mesh.until_linked()
        bodies = await drain(await mesh.connect("b"), 20)
        await trio.sleep(20)

        assert sorted(bodies, key=int) == [str(number).encode() for number in range(20)]


async def test_what_is_settled_is_not_adopted_while_no_checkpoint_finds_room(autojump_clock: MockClock) -> None:
    """The queue store may be on another disk than the one that is looked at."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await sent_by_c(mesh, 1)
        a = mesh.nodes["a"]
        await a.engine.checkpoints.checkpoint()
        assert await drain(await mesh.connect("b"), 1) == [b"0"]
        vector = mesh.nodes["b"].engine.path.durable_vector()
        await eventually(lambda: covers(a.engine.path.durable_vector(), vector))

        def no_room(*_: object) -> Any:
            raise DiskFull("no room in the queue store")

        a.store.checkpoint = no_room  # type: ignore[method-assign]
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")
        await trio.sleep(60)

        assert a.mesh_parts.adoption.adopted == 0


async def test_an_adopter_that_starts_again_adopts_although_nothing_else_happens(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 5)
        before = mesh.nodes["a"]

        def no_room(*_: object) -> Any:
            raise DiskFull("no room in the queue store")

        before.store.checkpoint = no_room  # type: ignore[method-assign]
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))
        await mesh.stop("a")
        assert before.mesh_parts.adoption.adopted == 0

        after = await mesh.start("a")

        await eventually(lambda: after.mesh_parts.adoption.adopted == 5)


async def test_what_an_adopter_left_undone_when_it_was_retired_itself_is_adopted(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d", "e").run() as mesh:
        await left_by_c(mesh, 5)

        def no_room(*_: object) -> Any:
            raise DiskFull("no room in the queue store")

        mesh.nodes["a"].store.checkpoint = no_room  # type: ignore[method-assign]
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: all(knows_retired(node, "c", "a") for node in mesh.nodes.values()))
        await mesh.stop("a")
        await retire(await mesh.connect("b"), "a")

        assert await drain(await mesh.connect("d"), 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_nothing_is_adopted_twice_while_no_checkpoint_finds_room(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 5)
        checkpoints, queue_adoption = mesh.nodes["a"].engine.checkpoints, mesh.nodes["a"].mesh_parts.adoption
        bring_up = checkpoints.bring_up

        async def no_room_later() -> None:
            if queue_adoption.adopted:
                await trio.lowlevel.checkpoint()
            else:
                await bring_up()

        monkeypatch.setattr(checkpoints, "bring_up", no_room_later)
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: queue_adoption.adopted == 5)
        await trio.sleep(20)

        assert queue_adoption.adopted == 5


async def test_an_adopter_that_has_adopted_everything_makes_no_more_checkpoints_than_others(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 1)
        client, a = await mesh.connect("a"), mesh.nodes["a"]
        await retire(client, "c")
        await eventually(lambda: a.mesh_parts.adoption.adopted == 1)
        await a.engine.checkpoints.checkpoint()
        count = a.engine.checkpoints.count

        for number in range(10):
            await client.send(send("/queue/other", "x", f"r{number}"))
            await client.receipt()
            await trio.sleep(POLL_SECONDS)

        assert a.engine.checkpoints.count == count


@pytest.mark.parametrize("count", [1, 3])
async def test_records_that_turn_up_later_are_adopted_too(count: int, autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await eventually(lambda: all_count(mesh))
        for name in "ab":
            mesh.cut(name, "c")
            mesh.cut(name, "d")
        await eventually(lambda: mesh.link("a", "c") == mesh.link("a", "d") == mesh.link("b", "d") == "down")
        client = await mesh.connect("c")
        for number in range(count):
            await client.send(send(JOBS, str(number), f"r{number}", receipt_level="replicas=1"))
            assert "copies" not in (await client.next("RECEIPT")).head.headers  # d has it, and nobody else
        await mesh.stop("c")
        assert (await retire(await mesh.connect("a"), "c"))["retired"] == "c"

        for name in "ab":
            mesh.heal(name, "d")

        assert await drain(await mesh.connect("b"), count) == [str(number).encode() for number in range(count)]


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff",
        b"[]",
        b'{"holds": 5}',
        b'{"holds": [["x", 1]]}',
        b'{"holds": [[1]]}',
        b'{"holds": [], "has": [["b", 1, "x"]]}',
        b'{"holds": [], "has": [["b", [], 1]]}',
        b'{"holds": [], "has": 5}',
        pytest.param(b"[" * 10_000, id="deep"),
    ],
)
async def test_a_peer_with_an_invalid_answer_is_asked_again(
    answer: bytes, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await left_by_c(mesh, 1)
        a, rpc = mesh.nodes["a"], mesh.nodes["b"].peer_rpc
        respond = rpc._answer

        async def nonsense(request: PeerRequest) -> bytes:
            return answer if request.kind == "held" else await respond(request)

        monkeypatch.setattr(rpc, "_answer", nonsense)
        await retire(await mesh.connect("a"), "c")
        await trio.sleep(20)
        assert a.mesh_parts.adoption.adopted == 0
        monkeypatch.setattr(rpc, "_answer", respond)

        await eventually(lambda: a.mesh_parts.adoption.adopted == 1)


async def test_held_messages_are_named_by_their_dots(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        worker = await mesh.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual"))
        client = await mesh.connect("a")
        await client.send(send(JOBS, "1", "r1"))
        await worker.next("MESSAGE")

        held = mesh.nodes["b"].broker.borrowing.borrowed_from("a")

        assert held == [Dot(mesh.nodes["a"].origin, 2)]


async def test_when_the_last_message_is_settled_the_mesh_forgets_the_retired_node(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        origin = mesh.nodes["c"].origin
        await left_by_c(mesh, 2)
        await retire(await mesh.connect("b"), "c")
        await eventually(lambda: mesh.nodes["b"].mesh_parts.adoption.adopted == 2)
        await eventually(lambda: knows_retired(mesh.nodes["a"], "c", "b"))

        await age(mesh)

        assert not any(knows(node, origin) for node in mesh.nodes.values())
        assert await drain(await mesh.connect("a"), 2) == [b"0", b"1"]  # they are b's by now
