"""Clients that do not read: what the node holds for them is bounded, whatever they asked for."""

from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.broker.queues.paging.pager import PAGE_BYTES
from qmq.storage.format.queue_store import QueueRow
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.depths import depths
from tests.support.network import FabricPipe

LIMITS = {"outbox_bytes_max": 400_000, "body_bytes_max": 20_000}


async def test_queue_messages_wait_as_messages_while_their_consumer_does_not_read(autojump_clock: MockClock) -> None:
    async with Rig(limits={**LIMITS, "prefetch_default": 1000}).run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        for n in range(400):
            await writer.send(send("/queue/q", f"{n} {'x' * 10_000}", "r"))
            await writer.receipt()

        await slow.send(subscribe("/queue/q", ack="client-individual"))
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")
        await eventually(lambda: session.outbox.size > 0)
        held = session.outbox.size
        for n in range(400, 500):
            await writer.send(send("/queue/q", f"{n} {'x' * 10_000}", "r"))
            await writer.receipt()

        assert held < LIMITS["outbox_bytes_max"]
        assert session.outbox.size < LIMITS["outbox_bytes_max"]
        assert [int(body.split()[0]) for body in await slow.messages(500)] == list(range(500))


async def test_auto_messages_that_waited_are_settled_once_they_are_written(autojump_clock: MockClock) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        slow, writer = await rig.connect(), await rig.connect()
        for n in range(300):
            await writer.send(send("/queue/q", f"{n} {'x' * 10_000}", "r"))
            await writer.receipt()

        await slow.send(subscribe("/queue/q"))

        assert [int(body.split()[0]) for body in await slow.messages(300)] == list(range(300))
        await eventually(lambda: depths(rig.alive)["/queue/q"] == 0)


@pytest.mark.parametrize("node", ["a", "b"], ids=["here", "borrowed"])
@pytest.mark.parametrize(
    ("destination", "headers"),
    [("/queue/q", {}), ("/fanout/f", {}), ("/fanout/f", {"durable": "true"})],
    ids=["queue", "fanout", "durable"],
)
async def test_the_largest_message_comes_in_its_turn_however_little_room_the_small_ones_leave(
    destination: str, headers: dict[str, str], node: str, autojump_clock: MockClock
) -> None:
    mesh = MeshRig("a", "b", limits={"outbox_bytes_max": 80_000, "body_bytes_max": 20_000, "prefetch_default": 1000})
    async with mesh.run():
        slow, writer = await mesh.connect(node), await mesh.connect("a")
        await slow.send(subscribe(destination, ack="client-individual" if headers else "auto", **headers))
        await slow.receipt()
        sizes = [size for left in range(1, 14) for size in (*[500] * left, 20_000)]

        await writer.send(*[send(destination, f"{n} ".ljust(size, "x"), "r") for n, size in enumerate(sizes)])
        for _ in sizes:
            await writer.receipt()
        if headers:
            bodies = await slow.consume(len(sizes))
        else:
            bodies = await slow.messages(len(sizes))

        assert [len(body) for body in bodies] == sizes
        assert [int(body.split()[0]) for body in bodies] == list(range(len(sizes)))


async def test_a_browser_that_does_not_read_is_given_about_a_quarter_of_a_mib(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        for n in range(100):
            await writer.send(send("/queue/q", f"{n} {'x' * 100_000}", "r", persistent=str(n % 5 > 0).lower()))
            await writer.receipt()
        store = rig.alive.store.queues
        pages: list[int] = []
        page = store.page

        def counted(*asked: Any) -> list[QueueRow]:
            rows = page(*asked)
            pages.append(sum(len(row.body) for row in rows))
            return rows

        monkeypatch.setattr(store, "page", counted)

        await slow.send(subscribe("/queue/q", browser="true"))
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")
        most = 0
        told: list[int] = []
        while len(told) < 100:
            await eventually(lambda: session.outbox.size > 0 or len(slow.frames) > 0)
            most = max(most, session.outbox.size)
            told += [int(body.split()[0]) for body in await slow.messages(1)]

        assert most < 400_000
        assert max(pages) <= PAGE_BYTES
        assert sorted(told) == list(range(100))


async def test_a_sender_that_never_reads_its_receipts_is_disconnected_with_a_reason(autojump_clock: MockClock) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        client = await rig.connect()
        (session,) = rig.alive.sessions.values()
        receipt = "r" * 4000
        for _ in range(300):
            if session.finishing:
                break
            await client.send(send("/topic/t", "", receipt))

        frames = await client.until_closed()

        assert frames[-1].head.headers["error-code"] == "slow-consumer"


async def test_the_reason_is_the_next_that_a_dropped_client_reads(autojump_clock: MockClock) -> None:
    async with Rig(
        limits={"outbox_bytes_max": 4_000_000, "body_bytes_max": 1_000_000, "farewell_seconds": 0.5}
    ).run() as rig:
        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe("/topic/t"))
        await slow.receipt()
        for _ in range(100):
            await writer.send(send("/topic/t", "x" * 100_000, "r"))
            await writer.receipt()

        frames = await slow.until_closed()

        assert frames[-1].head.headers["error-code"] == "slow-consumer"
        assert sum(len(frame.body) for frame in frames) < 1_000_000


async def test_nothing_that_a_silent_client_said_is_kept_for_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: set[int] = set()

    class Read(bytes):
        def __init__(self, data: bytes) -> None:
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    receive = FabricPipe.receive_some

    async def receive_some(pipe: FabricPipe, bytes_max: int) -> bytes:
        data = await receive(pipe, bytes_max)
        return Read(data) if pipe.peer_address == "10.0.0.2" else data

    monkeypatch.setattr(FabricPipe, "receive_some", receive_some)
    async with Rig().run() as rig:
        client = await rig.connect("10.0.0.2")
        await client.send(*[send("/topic/t", "x" * 4000) for _ in range(10)], send("/topic/t", "last", "r"))
        await client.receipt()
        await wait_all_tasks_blocked()

        assert not alive
