"""Dead incarnations are forgotten: hundreds of restarts leave vectors as they were, and nothing comes back."""

import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.mesh.repair.incarnation_gc import ASK_SECONDS
from qmq.model.dots import Dot, Origin
from qmq.node.node import Node
from qmq.replication.anti_entropy.acceptance import Acceptance
from tests.mesh.repair.test_catch_up import publish, short_lived
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually, send, subscribe
from tests.replication.rig import batch_of

JOBS = "/queue/jobs"


def knows(node: Node, origin: Origin) -> bool:
    """Whether any vector of the node, in memory or on its disk, has the origin."""
    journal, catalog = node.store.journal, node.store.catalog
    vectors = [node.engine.path.received_vector(), journal.vector(), journal.base(), catalog.checkpoint().vector]
    return any(origin in vector for vector in [*vectors, catalog.base().vector])


async def age(mesh: MeshRig, rounds: int = 6) -> None:
    """Let all that stands in the journals now be dropped, and what follows from it be said and heard."""
    for _ in range(rounds):
        for name in mesh.nodes:
            await settle_some(mesh, name)
            await mesh.nodes[name].engine.checkpoints.checkpoint()


async def age_until_unknown(mesh: MeshRig, origin: Origin) -> None:
    """As long as any node knows `origin`, a number of rounds at most: who hears whom first is not fixed."""
    for _ in range(10):
        await age(mesh, 2)
        if not any(knows(node, origin) for node in mesh.nodes.values()):
            return
        await trio.sleep(ASK_SECONDS)  # A request that was lost with a link is made again.
    raise AssertionError(f"{[name for name, node in mesh.nodes.items() if knows(node, origin)]} know {origin}")


async def settle_some(mesh: MeshRig, name: str) -> None:
    client = await mesh.connect(name)
    await client.send(subscribe("/queue/noise", id="n"))
    for _ in range(6):
        await client.send(send("/queue/noise", "x" * 1000))
    await client.messages(6)
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    await client.until_closed()


async def test_an_incarnation_of_which_nothing_is_left_leaves_every_vector(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        dead = mesh.nodes["b"].origin
        await publish(mesh, "b", JOBS, "work")
        await mesh.until_linked()
        await mesh.stop("b")
        await mesh.start("b")
        await mesh.until_linked()

        await age(mesh)
        assert all(knows(node, dead) for node in mesh.nodes.values()), "its message still waits"
        consumer = await mesh.connect("a")
        await consumer.send(subscribe(JOBS, id="c"))
        assert await consumer.messages(1) == [b"work"]
        await age_until_unknown(mesh, dead)

        assert all(dead in node.mesh_parts.incarnation_gc.seals.forgotten for node in mesh.nodes.values())
        for name in ("a", "b", "c"):
            await mesh.stop(name)
            again = await mesh.start(name)
            assert not knows(again, dead)
        await mesh.until_linked()


async def test_a_member_that_is_away_keeps_the_end_open(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        dead = mesh.nodes["b"].origin
        await mesh.stop("c")
        await mesh.stop("b")
        await mesh.start("b")

        await age(mesh, 20)

        assert all(dead not in node.mesh_parts.incarnation_gc.seals.last for node in mesh.nodes.values())
        assert all(knows(node, dead) for node in mesh.nodes.values())


async def test_a_peer_without_the_last_records_keeps_the_end_open(autojump_clock: MockClock) -> None:
    async with short_lived("a", "b", "c").run() as mesh:
        dead = mesh.nodes["b"].origin
        # c takes what comes, but has it on its disk much later.
        mesh.slow_disk("c", 60.0, exactly=True)
        await publish(mesh, "b", JOBS, "work")
        last = mesh.nodes["b"].engine.path.received_vector()[dead]
        await mesh.stop("b")
        b = await mesh.start("b")
        await eventually(lambda: mesh.nodes["c"].engine.path.received_vector().get(dead) == last)

        for _ in range(3):
            await settle_some(mesh, "b")
            await b.engine.checkpoints.checkpoint()
            await trio.sleep(5)
        assert mesh.nodes["c"].engine.path.durable_vector().get(dead, 0) < last
        assert dead not in b.mesh_parts.incarnation_gc.seals.last

        mesh.slow_disk("c", 0.002)
        await trio.sleep(200)
        await age(mesh, 2)
        assert dead in b.mesh_parts.incarnation_gc.seals.last


async def test_nothing_of_a_forgotten_incarnation_is_taken_again(autojump_clock: MockClock) -> None:
    async with short_lived("a").run() as mesh:
        dead = mesh.nodes["a"].origin
        await mesh.stop("a")
        a = await mesh.start("a")
        await age_until_unknown(mesh, dead)
        assert dead in a.mesh_parts.incarnation_gc.seals.forgotten
        acceptance = Acceptance(a.origin, frozenset({"a", "b"}), a.engine.replay)
        acceptance.forgotten = a.mesh_parts.incarnation_gc.seals.forgotten
        have = a.engine.path.received_vector()
        out = Outcome()

        assert acceptance.take(batch_of(dead, 1, 5), have, out) == {}
        assert not acceptance.check_gap(dead, 9, have)
        a.broker.accept_settles(JOBS, [Dot(dead, 3)], have, Dot(Origin("b", 1), 1))

        assert out.batches == [] and dead not in have
        assert not a.broker.queues.owned.settled_early


async def test_after_hundreds_of_restarts_the_vector_is_small(autojump_clock: MockClock) -> None:
    async with short_lived("a").run() as mesh:
        most = 0
        for life in range(300):
            await mesh.stop("a")
            await mesh.start("a")
            if life % 20 == 19:
                await age(mesh, 3)
                most = max(most, len(mesh.nodes["a"].engine.path.received_vector()))

        # What the last rounds have said is forgotten with the next ones.
        assert most <= 2, most
        assert len(mesh.nodes["a"].store.journal.vector()) == most
        assert len(mesh.nodes["a"].mesh_parts.incarnation_gc.seals.forgotten) >= 200
