"""The first queues of a node in each order: in memory, only in the store, or both; and their rows."""

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts import queue_search
from qmq.admin.facts.queue_catalog import KEPT_FROM_SECONDS, KEPT_MAX
from qmq.admin.facts.queue_search import DEPTH, NAME, OLDEST, SORTS, Found, QueueSearch, first_queues
from qmq.engine.runtime.listed_parts import TURN_ITEMS
from qmq.engine.runtime.single_flight import PAUSE_FACTOR
from tests.node.rig import Rig, eventually, send, subscribe
from tests.protocols.http.rig import dial, web_rig

ORDERS = pytest.mark.parametrize("is_reversed", [False, True])


def fill(rig: Rig, depths: dict[str, int]) -> None:
    """Queues with so many messages, as far as counters can say so."""
    for name, messages in depths.items():
        rig.alive.broker.queues.get(f"/queue/{name}").held = messages


async def store(rig: Rig, depths: dict[str, int]) -> None:
    """Queues with so many durable messages, a second between two queues."""
    stomp = await rig.connect()
    for name, messages in depths.items():
        await stomp.send(*[send(f"/queue/{name}", "x", "r", persistent="true") for _ in range(messages)])
        for _ in range(messages):
            await stomp.receipt()
        await trio.sleep(1)


async def first(rig: Rig, sort: str, is_reversed: bool, count: int = 50, text: str = "") -> Found:
    found, _ = await rig.alive.admin.catalog.first(QueueSearch(sort, is_reversed, count, text))
    return [(name.removeprefix("/queue/"), value) for name, value in found]


def in_order(depths: dict[str, int], is_reversed: bool, count: int) -> Found:
    sign = -1 if is_reversed else 1
    return sorted(depths.items(), key=lambda one: (sign * one[1], one[0]))[:count]


@pytest.mark.parametrize("text", ["", "7"])
@pytest.mark.parametrize("count", [1, 20, 70, 300])
@ORDERS
async def test_order_by_age_has_queues_without_messages_by_name(
    autojump_clock: MockClock, is_reversed: bool, count: int, text: str
) -> None:
    chance = random.Random(7)
    async with web_rig().run() as rig:
        names = [f"q{number}" for number in range(100)]
        chance.shuffle(names)
        stomp = await rig.connect()
        for name in names:
            if chance.randrange(2):
                await stomp.send(send(f"/queue/{name}", "x", "r"))
                await stomp.receipt()
                await trio.sleep(chance.choice([0, 10]))
            else:
                fill(rig, {name: 1})
        await trio.sleep(10)
        now_us = rig.alive.environment.now_us()

        found = await first_queues(rig.alive.engine, QueueSearch(OLDEST, is_reversed, count, text), [])

        queues = rig.alive.broker.queues.listed
        ages = {one.name: sum((now_us - message.timestamp_us) // 1_000_000 for message in one.ready) for one in queues}
        sign = -1 if is_reversed else 1
        wanted = sorted([name for name in ages if text in name], key=lambda name: (sign * ages[name], name))
        assert found == [(name, ages[name]) for name in wanted[:count]]


@ORDERS
async def test_order_by_depth_decides_between_equal_depths_by_name(
    autojump_clock: MockClock, is_reversed: bool
) -> None:
    chance = random.Random(7)
    async with web_rig().run() as rig:
        depths = {f"q{number}": chance.randrange(5) for number in range(3 * TURN_ITEMS)}
        fill(rig, depths)

        found = await first(rig, DEPTH, is_reversed, count=60)

        assert found == in_order(depths, is_reversed, 60)


@ORDERS
async def test_order_by_depth_has_a_queue_once_that_is_declared_and_paused(
    autojump_clock: MockClock, is_reversed: bool
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        for verb in ("declare", "pause"):
            assert (await client.post(f"/v1/control/{verb}/queue/a")).status == 200
        fill(rig, {"b": 0})

        assert await first(rig, DEPTH, is_reversed, count=2) == [("a", 0), ("b", 0)]


@ORDERS
@pytest.mark.parametrize("text", ["", "1"])
@pytest.mark.parametrize("pages", [1, 4])
async def test_queues_in_memory_and_in_the_store_are_in_one_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_reversed: bool, text: str, pages: int
) -> None:
    stored = {f"s{number}": 1 + number * 7 % 10 for number in range(16)}
    monkeypatch.setattr(queue_search, "STORED_AT_ONCE", len(stored) // pages)
    rig = web_rig()
    async with rig.run():
        await store(rig, stored)
    async with rig.run():
        # Some are in both: of these memory knows only what came since the start.
        memory = {f"m{number}": number for number in range(12)}
        fill(rig, {**memory, "s3": 2, "s11": 30})
        assert not rig.alive.broker.queues.by_name["/queue/s3"].is_counted
        depths = {**memory, **stored, "s3": stored["s3"] + 2, "s11": stored["s11"] + 30}
        depths = {name: depth for name, depth in depths.items() if text in name}
        names = sorted(depths, reverse=is_reversed)

        for count in (3, 9, 50):
            assert await first(rig, DEPTH, is_reversed, count, text) == in_order(depths, is_reversed, count)
            assert [name for name, _ in await first(rig, NAME, is_reversed, count, text)] == names[:count]


async def test_order_by_age_has_the_deepest_queues_of_the_store(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_search, "AGES_MAX", 2)
    rig = web_rig()
    async with rig.run():
        await store(rig, {"old": 2, "deep": 3, "flat": 1})
        await trio.sleep(100)
    async with rig.run():
        stomp = await rig.connect()
        await stomp.send(send("/queue/new", "x", "r"))
        await stomp.receipt()
        await trio.sleep(10)

        oldest = await first(rig, OLDEST, is_reversed=True)
        youngest = await first(rig, OLDEST, is_reversed=False)

        assert [name for name, _ in oldest] == ["old", "deep", "new", "flat"]
        assert [name for name, _ in youngest] == ["flat", "new", "deep", "old"]
        assert oldest[-1] == ("flat", 0)


async def test_order_by_depth_looks_behind_stored_queues_that_were_drained(autojump_clock: MockClock) -> None:
    depths = {"a": 9, "b": 8, "c": 7, "d": 3, "e": 2}
    rig = web_rig()
    async with rig.run():
        await store(rig, depths)
        await rig.alive.engine.checkpoints.checkpoint()
    async with rig.run():
        stomp = await rig.connect()
        for name in "abc":
            await stomp.send(subscribe(f"/queue/{name}", id=name))
            await stomp.messages(depths[name])
        await eventually(lambda: rig.alive.broker.queues.by_name["/queue/c"].held == 0)

        assert await first(rig, DEPTH, is_reversed=True, count=2) == [("d", 3), ("e", 2)]


async def test_depth_has_what_a_queue_in_memory_has_in_the_store(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {"flat": 1, "middle": 2})
        queues = rig.alive.broker.queues
        queues.by_name["/queue/flat"].stored = 3
        queues.owned.has_stored = True

        assert await first(rig, DEPTH, is_reversed=True) == [("flat", 4), ("middle", 2)]


@pytest.mark.parametrize("sort", [NAME, DEPTH])
@pytest.mark.parametrize("turns", range(6))
async def test_no_queue_is_missed_when_others_end_meanwhile(autojump_clock: MockClock, sort: str, turns: int) -> None:
    async with web_rig().run() as rig:
        queues = rig.alive.broker.queues
        fill(rig, {f"q{number}": 1 for number in range(2 * TURN_ITEMS)})
        fill(rig, {"a": 2})
        found: Found = []

        async def find() -> None:
            found.extend(await first(rig, sort, is_reversed=sort == DEPTH, count=1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(find)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            # The first queues, so that those from the end of the list take their places.
            for number in range(TURN_ITEMS // 2):
                queues.drop(queues.by_name[f"/queue/q{number}"])

        assert queues.by_name["/queue/a"].listed_at == 0
        assert all(queues.listed[queue.listed_at] is queue for queue in queues.by_name.values())
        assert found[0][0] == "a"


@pytest.mark.parametrize("sort", SORTS)
async def test_search_takes_turns_with_other_tasks(autojump_clock: MockClock, sort: str) -> None:
    async with web_rig().run() as rig:
        fill(rig, {f"q{number}": 1 for number in range(10 * TURN_ITEMS)})
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            await first_queues(rig.alive.engine, QueueSearch(sort, is_reversed=True, count=50), [])
            nursery.cancel_scope.cancel()

        assert turns >= 5


async def test_search_that_took_long_is_kept_and_a_short_one_is_not(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        await store(rig, {"stored": 1})
    async with rig.run():
        fill(rig, {"a": 5})
        assert (await first(rig, DEPTH, is_reversed=True))[0] == ("a", 5)
        fill(rig, {"b": 6})
        assert (await first(rig, DEPTH, is_reversed=True))[0] == ("b", 6)
        environment = rig.alive.environment
        run_blocking = environment._run_blocking

        async def slow(call: Any) -> Any:
            await trio.sleep(KEPT_FROM_SECONDS)
            return await run_blocking(call)

        environment._run_blocking = slow
        assert (await first(rig, DEPTH, is_reversed=True))[0] == ("b", 6)
        fill(rig, {"c": 7})

        assert (await first(rig, DEPTH, is_reversed=True))[0] == ("b", 6)
        await trio.sleep(4 * PAUSE_FACTOR * KEPT_FROM_SECONDS)
        assert (await first(rig, DEPTH, is_reversed=True))[0] == ("c", 7)


async def test_few_searches_are_kept(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {"a": 1})

        for number in range(2 * KEPT_MAX):
            assert await first(rig, NAME, is_reversed=False, text=str(number)) == []

        assert len(rig.alive.admin.catalog._kept) <= KEPT_MAX


async def test_names_with_a_prefix_follow_each_other(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        await store(rig, {"job": 1, "jobs.1": 1, "job.3": 1, "other": 1})
    async with rig.run():
        fill(rig, {"job.2": 1, "jo": 1, "job.3": 2})
        catalog = rig.alive.admin.catalog

        names, after = await catalog.names("/queue/job", "", 2)
        more, end = await catalog.names("/queue/job", after, 2)

        assert (names, after) == (["/queue/job", "/queue/job.2"], "/queue/job.2")
        assert (more, end) == (["/queue/job.3", "/queue/jobs.1"], "")
