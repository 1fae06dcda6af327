"""Backlogs that outgrow memory: most of a queue is only in the queue store, and comes back in order, once."""

from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import DEAD_LETTER_COST, Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues import redelivery
from qmq.broker.queues.dispatch import expiry
from qmq.broker.queues.paging import backlog, pager
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.engine import deadline_timer
from qmq.engine.checkpoint import queue_pager
from qmq.storage.format.queue_store import QueueRow
from tests.fakes.queue_store import MemoryQueueStore
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.support.depths import depths

JOBS = "/queue/jobs"
SMALL = {"queue_messages_in_memory_max": 1000}


async def publish(client: Client, first: int, last: int, destination: str = JOBS, **headers: str) -> None:
    """Bodies `first` to `last`, receipted."""
    frames = [send(destination, str(number), **headers) for number in range(first, last + 1)]
    frames[-1] = send(destination, str(last), receipt="r", **headers)
    await client.send(*frames)
    await client.receipt()


async def consume(client: Client, count: int) -> list[int]:
    """Acknowledge `count` messages; their bodies in the order in which they came."""
    bodies = [int(body) for body in await client.consume(count)]
    await client.send("SEND\ndestination:/topic/done\nreceipt:done\n\n")
    await client.receipt()
    return bodies


def in_memory(rig: Rig) -> int:
    return rig.alive.broker.queues.owned.in_memory


async def test_a_backlog_without_a_consumer_leaves_memory_with_the_checkpoint_and_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 2000)
        assert in_memory(rig) == 2000

        await rig.alive.engine.checkpoints.checkpoint()

        assert in_memory(rig) == 0
        assert JOBS not in rig.alive.broker.queues.by_name


async def test_few_large_messages_leave_memory_as_many_small_ones_do(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"queue_bytes_in_memory_max": 1 << 20})
    async with rig.run():
        client = await rig.connect()
        bodies = [bytes([65 + number]) * 300_000 for number in range(5)]
        await client.send(*(send(JOBS, body.decode(), receipt="r") for body in bodies[:3]))
        for _ in range(3):
            await client.receipt()
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 3, "there is room for three"

        await client.send(*(send(JOBS, body.decode(), receipt="r") for body in bodies[3:]))
        for _ in range(2):
            await client.receipt()
        await rig.alive.engine.checkpoints.checkpoint()

        assert in_memory(rig) == 0
        await client.send(subscribe(JOBS, ack="auto"))
        assert [(await client.next("MESSAGE")).body for _ in range(5)] == bodies


async def test_a_backlog_of_many_pages_is_delivered_once_and_in_order(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 3500)
        await rig.alive.engine.checkpoints.checkpoint()
        await publish(client, 3501, 3600)

        await client.send(subscribe(JOBS, ack="client-individual", prefetch="10"))
        await client.receipt()

        assert await consume(client, 3600) == list(range(1, 3601))
        assert rig.alive.broker.queues.by_name[JOBS].depth == 0


async def test_checkpoints_in_the_middle_of_a_drain_neither_lose_nor_repeat_a_message(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 3000)
        await rig.alive.engine.checkpoints.checkpoint()
        await client.send(subscribe(JOBS, ack="client-individual", prefetch="7"))
        await client.receipt()
        bodies: list[int] = []
        for part in range(6):
            bodies += await consume(client, 500)
            await publish(client, 3001 + part * 10, 3010 + part * 10)
            await rig.alive.engine.checkpoints.checkpoint()

        bodies += await consume(client, 60)

        assert bodies == list(range(1, 3061))


async def test_a_restart_in_the_middle_of_a_drain_goes_on_where_the_acks_ended(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 1500)
        await rig.alive.engine.checkpoints.checkpoint()
        await client.send(subscribe(JOBS, ack="client-individual", prefetch="5"))
        await client.receipt()
        assert await consume(client, 700) == list(range(1, 701))
        await publish(client, 1501, 1510)
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe(JOBS, ack="client-individual", prefetch="5"))
        await client.receipt()

        assert await consume(client, 810) == list(range(701, 1511))


async def test_higher_priorities_come_first_out_of_the_store_too(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 600, priority="1")
        await publish(client, 601, 1200, priority="8")
        await publish(client, 1201, 1210)
        await rig.alive.engine.checkpoints.checkpoint()
        await publish(client, 1211, 1220, priority="8")
        await client.send(subscribe(JOBS, ack="client-individual", prefetch="1"))
        await client.receipt()

        bodies = await consume(client, 1220)

        assert bodies == [*range(601, 1201), *range(1211, 1221), *range(1201, 1211), *range(1, 601)]


async def test_a_delayed_message_that_is_only_in_the_store_comes_when_it_is_due(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 1100, delay="60000")
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0
        await client.send(subscribe(JOBS, ack="client-individual", prefetch="10"))
        await client.receipt()
        started = trio.current_time()

        bodies = await consume_until(client, 1100)

        assert bodies == list(range(1, 1101))
        assert trio.current_time() - started > 55


async def consume_until(client: Client, count: int) -> list[int]:
    with trio.fail_after(300):
        while not any(frame.head.command == "MESSAGE" for frame in client.frames):
            await client._read()
    return await consume(client, count)


async def test_an_expired_message_that_is_only_in_the_store_is_settled_without_a_consumer(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 1200, ttl="30000")
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0
        await trio.sleep(60)
        await rig.alive.engine.checkpoints.checkpoint()

        assert rig.alive.store.queues.is_empty("a")


async def test_what_is_only_in_the_store_expires_at_a_node_whose_first_checkpoint_left_nothing_there(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await rig.alive.engine.checkpoints.checkpoint()
        await publish(client, 1, 1200, ttl="30000")
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0
        await trio.sleep(60)
        await rig.alive.engine.checkpoints.checkpoint()

        assert rig.alive.store.queues.is_empty("a")


async def test_large_expired_messages_go_in_parts_until_none_is_left(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pager, "EXPIRED_BYTES", 4000)
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1001, 2200, ttl="30000")
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0
        await trio.sleep(600)
        await rig.alive.engine.checkpoints.checkpoint()

        assert rig.alive.store.queues.is_empty("a")


@pytest.mark.parametrize("subscribed", [True, False])
async def test_many_queues_of_one_message_each_leave_nothing_in_memory(
    autojump_clock: MockClock, subscribed: bool
) -> None:
    rig = Rig(limits={**SMALL, "subscriptions_max": 3000})
    async with rig.run():
        client = await rig.connect()
        await client.send(*(send(f"/queue/q{number}", str(number)) for number in range(1200)))
        await client.send(send("/topic/x", "", receipt="r"))
        await client.receipt()
        await rig.alive.engine.checkpoints.checkpoint()
        assert not rig.alive.broker.queues.by_name

        if subscribed:
            frames = [subscribe(f"/queue/q{number}", id=str(number), ack="client") for number in range(1200)]
            await client.send(*frames)
            bodies = await client.messages(1200)
            assert sorted(map(int, bodies)) == list(range(1200))


@pytest.mark.parametrize(("queues", "carried"), [(1, False), (1400, True)])
async def test_messages_that_have_a_queue_each_are_carried_into_the_store_sooner(
    autojump_clock: MockClock, queues: int, carried: bool
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        client = await rig.connect()
        await client.send(*(send(f"/queue/q{number % queues}", "x") for number in range(1400)))
        await client.send(send("/topic/x", "", receipt="r"))
        await client.receipt()

        if carried:
            await eventually(lambda: in_memory(rig) == 0)
        assert (rig.alive.engine.checkpoints.count > 0) is carried


async def test_clients_wait_before_they_fill_the_memory_during_a_long_checkpoint(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    most = 3 * 2500
    async with rig.run(), trio.open_nursery() as nursery:
        client = await rig.connect()
        carrying = rig.alive.engine.checkpoints._one
        await carrying.acquire()  # as a checkpoint that its disk keeps waiting
        rig.alive.engine.pager.checkpoint_begins()

        nursery.start_soon(publish, client, 1, 12_000)
        await eventually(lambda: in_memory(rig) > most)
        await trio.sleep(10)

        assert in_memory(rig) < most + 2000  # one read more
        rig.alive.engine.pager.checkpoint_ends()
        carrying.release()  # and its publisher gets its receipt


async def test_clients_with_large_messages_wait_sooner_during_a_long_checkpoint(autojump_clock: MockClock) -> None:
    rig = Rig(storage={"checkpoint_bytes": 1 << 20})
    async with rig.run(), trio.open_nursery() as nursery:
        client = await rig.connect()
        carrying = rig.alive.engine.checkpoints._one
        await carrying.acquire()  # as a checkpoint that its disk keeps waiting
        rig.alive.engine.pager.checkpoint_begins()

        nursery.start_soon(client.send, *(send(JOBS, "x" * 100_000) for _ in range(50)))
        await eventually(lambda: in_memory(rig) > 20)
        await trio.sleep(10)

        assert 20 < in_memory(rig) < 25
        rig.alive.engine.pager.checkpoint_ends()
        await eventually(lambda: in_memory(rig) == 50)
        carrying.release()


@pytest.mark.parametrize("_order", range(6))
async def test_an_ack_that_waited_for_a_long_checkpoint_is_not_late(_order: int, autojump_clock: MockClock) -> None:
    rig = Rig(storage={"checkpoint_bytes": 1 << 20})
    async with rig.run(), trio.open_nursery() as nursery:
        taker, client = await rig.connect(), await rig.connect()
        await taker.send(subscribe("/queue/work", ack="client-individual", ack_timeout="5"))
        await client.send(send("/queue/work", "one"))
        given = await taker.next("MESSAGE")
        carrying = rig.alive.engine.checkpoints._one
        await carrying.acquire()  # as a checkpoint that its disk keeps waiting
        rig.alive.engine.pager.checkpoint_begins()
        nursery.start_soon(client.send, *(send(JOBS, "x" * 100_000) for _ in range(50)))
        await eventually(lambda: in_memory(rig) > 20)

        await taker.send(f"ACK\nid:{given.head.headers['ack']}\n\n")
        await trio.sleep(10)
        rig.alive.engine.pager.checkpoint_ends()
        carrying.release()

        with trio.move_on_after(30) as patience:
            await taker.next("MESSAGE")
        assert patience.cancelled_caught


async def test_a_slot_that_is_free_delays_no_deadline(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        free = rig.alive.engine.path.slot

        async def slot(*session: int, **how: bool) -> None:
            autojump_clock.jump(0.000_01)  # as any call takes on a real clock
            await free(*session, **how)

        monkeypatch.setattr(rig.alive.engine.path, "slot", slot)
        client = await rig.connect()
        await client.send(subscribe(JOBS, ack="auto"))
        await client.send(send(JOBS, "later", delay="5000"))
        began = trio.current_time()

        await client.next("MESSAGE")

        assert 5 <= trio.current_time() - began < 5.1


async def test_a_selector_that_wants_none_of_a_backlog_of_large_messages_reads_it_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager, "PAGE_BYTES", 100_000)
    monkeypatch.setattr(backlog, "WINDOW_BYTES", 100_000)
    rig = Rig(limits={"queue_bytes_in_memory_max": 1 << 20})
    async with rig.run():
        client = await rig.connect()
        await client.send(*(send(JOBS, "x" * 20_000) for _ in range(99)), send(JOBS, "x" * 20_000, receipt="r"))
        await client.receipt()
        await client.send(subscribe(JOBS, ack="auto", selector="color = 'red'"))
        await client.send(send(JOBS, "red", color="red"))
        await client.next("MESSAGE")
        read = rig.alive.engine.pager.loaded

        for _ in range(3):
            await rig.alive.engine.checkpoints.checkpoint()
            await client.send(send(JOBS, "red", color="red"))
            await client.next("MESSAGE")

        assert rig.alive.engine.pager.loaded == read


async def test_large_messages_come_out_of_the_store_a_few_at_a_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    page = MemoryQueueStore.page

    def counted(*arguments: Any) -> list[QueueRow]:
        rows = page(*arguments)
        read.append(sum(len(row.body) for row in rows))
        return rows

    monkeypatch.setattr(MemoryQueueStore, "page", counted)
    monkeypatch.setattr(pager, "PAGE_BYTES", 100_000)
    rig = Rig(limits=SMALL)
    names = [f"/queue/large.{number}" for number in range(8)]
    async with rig.run():
        client = await rig.connect()
        for name in names:
            await client.send(*[send(name, "x" * 20_000) for _ in range(20)])
        await publish(client, 1, 1200)
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0

        for number, name in enumerate(names):
            await client.send(subscribe(name, ack="auto", id=str(number), prefetch="100"))

        got = [(await client.next("MESSAGE")).head.headers["destination"] for _ in range(160)]
        assert sorted(got) == sorted(names * 20)
        assert max(read) <= 100_000
        assert sum(read) == 160 * 20_000


async def test_queues_that_no_trip_to_the_store_had_room_for_are_served_by_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pager, "LOAD_BYTES", 1)
    rig = Rig(limits=SMALL)
    names = [f"/queue/many.{number}" for number in range(30)]
    async with rig.run():
        client = await rig.connect()
        for name in names:
            await publish(client, 1, 3, name)
        await publish(client, 1, 1200)
        await rig.alive.engine.checkpoints.checkpoint()
        assert in_memory(rig) == 0

        for number, name in enumerate(names):
            await client.send(subscribe(name, ack="auto", id=str(number)))

        got = [(await client.next("MESSAGE")).head.headers["destination"] for _ in range(90)]
        assert sorted(got) == sorted(names * 3)


async def test_what_expires_in_the_store_is_dead_lettered_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DestinationPolicy(pattern=JOBS, dead_letter="/queue/late")
    monkeypatch.setattr(redelivery, "COST_MAX", 3 * DEAD_LETTER_COST)
    rig = Rig(destinations=DestinationSettings(policies=(policy,)))
    async with rig.run():
        client, queues = await rig.connect(), rig.alive.broker.queues
        await publish(client, 1, 10, ttl="5000")
        await rig.alive.engine.checkpoints.checkpoint()
        assert queues.paging.evict(queues.by_name[JOBS]) == 10
        rig.alive.engine.pager.sweep_at(rig.alive.environment.now_us())
        turns: list[int] = []
        expire = queues.redelivery.expire_stored

        def counted(messages: list[Message], out: Outcome) -> bool:
            is_done = expire(messages, out)
            turns.append(len(out.records))
            return is_done

        monkeypatch.setattr(queues.redelivery, "expire_stored", counted)

        await eventually(lambda: depths(rig.alive) == {"/queue/late": 10})

        assert [one for one in turns if one] == [3, 3, 3, 1]


async def test_letters_of_what_expires_are_on_the_disk_and_others_have_as_long_before_the_next_ones_are_made(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DestinationPolicy(pattern=JOBS, dead_letter="/queue/late")
    for module in (redelivery, expiry, deadline_timer):
        monkeypatch.setattr(module, "COST_MAX", 3 * DEAD_LETTER_COST)
    rig = Rig(destinations=DestinationSettings(policies=(policy,)))
    async with rig.run():
        node = rig.alive
        await publish(await rig.connect(), 1, 10, ttl="5000")
        waiting: list[int] = []
        begun: list[float] = []
        tick = node.broker.tick

        def watched(out: Outcome) -> None:
            waiting.append(node.engine.commits.pending_bytes)
            begun.append(trio.current_time())
            tick(out)
            autojump_clock.jump(0.5)  # so long it takes

        monkeypatch.setattr(node.broker, "tick", watched)

        await eventually(lambda: depths(node) == {"/queue/late": 10})

        assert len(waiting) >= 4 and not any(waiting)
        assert all(later - sooner >= 1.0 for sooner, later in pairwise(begun[:4]))


async def test_nothing_of_the_store_expires_at_a_node_that_may_not_deliver_any_more(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = DestinationPolicy(pattern=JOBS, dead_letter="/queue/late")
    async with MeshRig("a", "b", destinations=DestinationSettings(policies=(policy,))).run() as rig:
        client, node = await rig.connect("a"), rig.nodes["a"]
        queues, run_blocking = node.broker.queues, node.environment.run_blocking
        await publish(client, 1, 1, ttl="5000")
        await node.engine.checkpoints.checkpoint()
        assert queues.paging.evict(queues.by_name[JOBS]) == 1
        node.engine.pager.sweep_at(node.environment.now_us())

        async def held_meanwhile(call: Any, *arguments: Any) -> Any:
            """Another node may serve the message when the store has answered."""
            found = await run_blocking(call, *arguments)
            if getattr(call, "func", None) is queue_pager._expired and found[0]:
                node.mesh_parts.start_hold.hold_back()
            return found

        monkeypatch.setattr(node.environment, "run_blocking", held_meanwhile)
        await trio.sleep(10)

        assert queues.held
        assert not node.broker.totals.node().dead_lettered
        monkeypatch.setattr(node.environment, "run_blocking", run_blocking)
        node.mesh_parts.start_hold.release()
        await eventually(lambda: node.broker.totals.node().dead_lettered == 1)


async def test_what_a_consumer_of_a_peer_has_since_before_the_start_does_not_expire(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern=JOBS, dead_letter="/queue/late")
    async with MeshRig("a", "b", "c", destinations=DestinationSettings(policies=(policy,))).run() as rig:
        worker = await rig.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual", prefetch_count="1"))
        await worker.receipt()
        await publish(await rig.connect("a"), 1, 1, ttl="30000")
        frame = await worker.next("MESSAGE")
        await rig.nodes["a"].engine.checkpoints.checkpoint()
        await rig.kill("a")
        await rig.start("a")
        await rig.until_linked()
        node = rig.nodes["a"]
        await eventually(lambda: not node.broker.queues.held)
        await node.engine.checkpoints.checkpoint()

        await trio.sleep(60)

        await worker.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:done\n\n")
        assert await worker.receipt() == "done"
        await trio.sleep(5)
        assert not node.broker.totals.node().dead_lettered


async def test_a_look_for_expired_messages_that_went_far_is_followed_by_small_ones(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    limits: list[int] = []

    def look(_: object, now_us: int, limit: int, bytes_max: int) -> tuple[list[QueueRow], bool, int]:
        limits.append(limit)
        return [], len(limits) < 3, 0  # Two times full of messages that consumers have.

    async with rig.run():
        monkeypatch.setattr(queue_pager, "_expired", look)
        rig.alive.broker.queues.owned.has_stored = True
        node = rig.alive
        node.engine.pager.sweep_at(node.environment.now_us())
        await eventually(lambda: len(limits) == 3)
        node.engine.pager.sweep_at(node.environment.now_us())
        await eventually(lambda: len(limits) == 4)

    assert limits[:4] == [1000, 4000, 16_000, 1000]
