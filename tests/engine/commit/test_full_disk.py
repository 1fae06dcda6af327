"""A full disk: what is refused, what goes on, and how the node notices that there is space again."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.engine.checkpoint.checkpoints import REFUSED_SECONDS_MAX
from qmq.engine.checkpoint.free_space import STORE_FULL
from qmq.errors import DiskFull
from qmq.model.dots import Vector
from qmq.storage.format.settings import Retention
from tests.admin.test_bulk_jobs import ask
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.conditions import present
from tests.support.depths import depths

RESERVE = 1 << 20
SMALL = StorageSettings(disk_reserve_bytes=RESERVE, checkpoint_bytes=4096)


def codes(rig: Rig) -> set[str]:
    return {one["code"] for one in present(rig.alive)}


def take_all_room(rig: Rig) -> None:
    """Others write until not one byte is left."""
    rig.disk.capacity_bytes = rig.disk.used_bytes() + rig.disk.reserved_bytes


def make_room(rig: Rig) -> None:
    rig.disk.capacity_bytes = rig.disk.used_bytes() + 8 * RESERVE


def refuse_checkpoints(rig: Rig, monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[], object]) -> None:
    """The store has no room for a checkpoint while `is_refused`; what that returns is in the reason."""
    checkpoint = rig.alive.store.checkpoint

    def short_of_room(
        end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
    ) -> object:
        if found := is_refused():
            raise DiskFull(f"no room for a checkpoint ({found})")
        return checkpoint(end, now_us, members, retention)

    monkeypatch.setattr(rig.alive.store, "checkpoint", short_of_room)


async def test_a_checkpoint_without_room_is_tried_again_and_ends_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    async with rig.run():
        refusals = iter([1, 1, 1])
        refuse_checkpoints(rig, monkeypatch, lambda: next(refusals, 0))
        client = await rig.connect()
        for n in range(20):
            await client.send(send("/queue/q", "x" * 1000, f"r{n}"))
            assert await client.receipt() == f"r{n}"

        await eventually(lambda: "checkpoint" in codes(rig))
        await eventually(lambda: rig.alive.engine.checkpoints.count > 0)
        assert "checkpoint" not in codes(rig)
        await client.send(send("/queue/q", "x", "still"))
        assert await client.receipt() == "still"


async def test_a_checkpoint_refused_for_several_reasons_is_tried_ever_later_and_leaves_no_condition(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    attempts: list[float] = []
    has_room = trio.Event()
    async with rig.run():

        def is_refused() -> int:
            attempts.append(trio.current_time())
            if len(attempts) <= 7:
                return len(attempts)
            has_room.set()
            return 0

        refuse_checkpoints(rig, monkeypatch, is_refused)
        client = await rig.connect()
        for n in range(20):
            await client.send(send("/queue/q", "x" * 1000, f"r{n}"))
            assert await client.receipt() == f"r{n}"

        await has_room.wait()
        await eventually(lambda: rig.alive.engine.checkpoints.count > 0)

        assert "checkpoint" not in codes(rig)
        assert [round(after - before) for before, after in pairwise(attempts)] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(("count", "size"), [(8_000, 1), (4, 1_000_000)])
async def test_messages_that_no_checkpoint_can_take_over_do_not_fill_the_memory(
    count: int, size: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has room, but the store, which may be that of a database server, has none."""
    limits = {"queue_messages_in_memory_max": 1000, "queue_bytes_in_memory_max": 1 << 20}
    rig = Rig(storage=SMALL, limits=limits)
    async with rig.run():
        has_room = False
        refuse_checkpoints(rig, monkeypatch, lambda: not has_room)
        client = await rig.connect(on_error="keep-open")
        for n in range(0, count, 1000):
            await client.send(*[send("/queue/q", "x" * size, f"r{m}") for m in range(n, min(n + 1000, count))])

        await eventually(lambda: rig.alive.broker.send_limits.disk_full)
        await client.send(send("/queue/q", "more", "refused"))
        assert (await client.next("ERROR")).head.headers["error-code"] == "disk-full"

        has_room = True
        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)
        assert not codes(rig) & {"checkpoint", "disk-full"}
        assert rig.alive.broker.queues.owned.in_memory <= 1000


async def test_memory_that_is_full_for_want_of_a_checkpoint_takes_messages_again_when_half_of_it_is_free(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=SMALL, limits={"queue_messages_in_memory_max": 1000})
    async with rig.run():
        refuse_checkpoints(rig, monkeypatch, lambda: True)
        client = await rig.connect(on_error="keep-open")
        await client.send(*[send("/queue/q", "x") for _ in range(8000)])
        limits, queues = rig.alive.broker.send_limits, rig.alive.broker.queues
        await eventually(lambda: limits.disk_full)
        full = queues.owned.in_memory

        await ask(await rig.connect(), "purge/queue/q", count=str(full // 5))
        await trio.sleep(60)

        assert queues.owned.in_memory < full
        assert STORE_FULL in {one["message"] for one in present(rig.alive)}
        assert not rig.alive.conditions.past()

        await ask(await rig.connect(), "purge/queue/q", count=str(full // 2))
        await eventually(lambda: not limits.disk_full)


async def test_a_stop_on_a_full_disk_is_orderly_and_loses_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        refuse_checkpoints(rig, monkeypatch, lambda: True)
        client = await rig.connect()
        await client.send(send("/queue/q", "job", "r"))
        await client.receipt()

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1


async def test_facts_that_find_no_room_at_the_stop_do_not_make_it_fail(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()

    def no_room(facts: Mapping[str, str | None]) -> None:
        raise DiskFull("no room for facts")

    async with rig.run():
        client = await rig.connect()
        await client.send(send("/queue/q", "one", "r"))
        await client.receipt()
        monkeypatch.setattr(rig.alive.store.catalog, "set_facts", no_room)

    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/q"))
        assert await client.messages(1) == [b"one"]


async def test_messages_are_taken_again_once_there_is_room(autojump_clock: MockClock) -> None:
    rig = Rig(storage=SMALL)
    rig.disk.capacity_bytes = 1 << 20
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        await eventually(lambda: rig.alive.broker.send_limits.disk_full)
        await client.send(send("/queue/q", "more", "refused"))
        assert (await client.next("ERROR")).head.headers["error-code"] == "disk-full"

        rig.disk.capacity_bytes = rig.disk.used_bytes() + (4 << 20)

        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)
        await client.send(send("/queue/q", "more", "taken"))
        assert await client.receipt() == "taken"


async def test_when_others_take_the_last_byte_settles_are_taken_and_messages_refused_until_there_is_room(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(storage=SMALL)
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        await eventually(lambda: rig.disk.reserved_bytes == RESERVE // 2)
        for n in range(20):
            await client.send(send("/queue/q", "x" * 1000, f"r{n}"))
            await client.receipt()
        worker = await rig.connect()
        await worker.send(subscribe("/queue/q", ack="client-individual", prefetch="20"))
        await worker.receipt()
        given = [await worker.next("MESSAGE") for _ in range(20)]

        take_all_room(rig)
        for number, frame in enumerate(given[:15]):
            await worker.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:a{number}\n\n")
            assert await worker.receipt() == f"a{number}"
        assert rig.disk.reserved_bytes < RESERVE // 2
        await client.send(send("/queue/q", "more", "refused"))
        assert (await client.next("ERROR")).head.headers["error-code"] == "disk-full"
        await trio.sleep(60)
        assert "disk-full" in codes(rig)

        make_room(rig)
        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)
        await trio.sleep(REFUSED_SECONDS_MAX)
        assert codes(rig).isdisjoint({"disk-full", "checkpoint"})
        await eventually(lambda: rig.disk.reserved_bytes == RESERVE // 2)
        await client.send(send("/queue/q", "more", "taken"))
        assert await client.receipt() == "taken"

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 6


async def test_what_does_not_fit_into_the_reserve_waits_for_room_and_is_confirmed_then(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=0))
    async with rig.run():
        client = await rig.connect()
        await client.send(send("/queue/q", "one", "first"))
        await client.receipt()

        take_all_room(rig)
        await client.send(send("/queue/q", "two", "second"))
        await trio.sleep(60)
        assert rig.alive.engine.commits.is_stuck
        assert "disk-full" in codes(rig)
        make_room(rig)

        assert await client.receipt() == "second"
        assert not rig.alive.engine.commits.is_stuck

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 2


async def test_a_follower_behind_its_buffer_survives_an_append_that_found_room_for_a_segment_head_only(
    autojump_clock: MockClock,
) -> None:
    bodies = [str(number) * 50_000 for number in range(10, 21)]
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=0), limits={"subscriber_buffer_bytes_default": 2000})
    async with rig.run():
        node = rig.alive
        slow, writer = await rig.connect(), await rig.connect()
        for body in bodies[:-2]:
            await writer.send(send("/fanout/f", body, "r"))
            await writer.receipt()
        await slow.send(subscribe("/fanout/f", x_stream_offset="next"))
        await slow.receipt()
        await writer.send(send("/fanout/f", bodies[-2], "r"))
        await writer.receipt()
        segments = node.store.journal.segments()

        rig.disk.capacity_bytes = rig.disk.used_bytes() + rig.disk.reserved_bytes + 300
        await writer.send(send("/fanout/f", bodies[-1], "r"))
        await eventually(lambda: node.engine.commits.is_stuck)
        assert node.store.journal.segments() == segments + 1
        make_room(rig)
        await writer.receipt()

        assert node.session_parts.fanout_subscribers.reading
        assert [body.decode() for body in await slow.messages(2)] == bodies[-2:]


async def test_a_node_that_waits_for_room_can_be_stopped(autojump_clock: MockClock) -> None:
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=0))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rig.run():
            client = await rig.connect()
            await client.send(send("/queue/q", "one", "first"))
            await client.receipt()
            take_all_room(rig)
            await client.send(send("/queue/q", "two", "second"))
            await eventually(lambda: rig.alive.engine.commits.is_stuck)
    assert caught.group_contains(DiskFull, depth=None)

    make_room(rig)
    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1


async def test_a_second_signal_ends_a_node_that_waits_for_room(autojump_clock: MockClock) -> None:
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=0), limits={"drain_seconds": 1000.0})
    with pytest.raises(BaseExceptionGroup) as caught, trio.fail_after(100):
        async with rig.run():
            client = await rig.connect()
            await client.send(send("/queue/q", "one", "first"))
            await client.receipt()
            take_all_room(rig)
            await client.send(send("/queue/q", "two", "second"), "BEGIN\ntransaction:open\n\n")
            await eventually(lambda: rig.alive.engine.commits.is_stuck)
            rig.alive.stop()
            await trio.sleep(1)
    assert caught.group_contains(DiskFull, depth=None)

    make_room(rig)
    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1


async def test_the_disk_is_looked_at_while_messages_come_and_not_while_none_do(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=SMALL)
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        looks: list[float] = []
        look = rig.alive.engine.checkpoints.check_space

        async def counted() -> None:
            looks.append(trio.current_time())
            await look()

        monkeypatch.setattr(rig.alive.engine.checkpoints, "check_space", counted)
        await trio.sleep(3600)
        idle = len(looks)
        take_all_room(rig)
        rig.disk.capacity_bytes += 1 << 14
        await client.send(send("/queue/q", "small", "r"))
        await client.receipt()

        await eventually(lambda: rig.alive.broker.send_limits.disk_full)
        assert idle == 0
