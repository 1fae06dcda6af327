"""The commit path alone, with a disk whose calls return when the test says so."""

from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.engine.commit.commits import CALM_US, LONE_BYTES_MAX, Commits, Growth
from qmq.engine.commit_path import CommitPath
from qmq.model.dots import Origin, Vector

pytestmark = pytest.mark.trio

A, B = Origin("a", 1), Origin("b", 1)
BOUND = 1000


class SlowDisk:
    """A journal and a world in one: nothing is appended before `answer`."""

    def __init__(self) -> None:
        self.end = 0
        self.is_short = self.is_writing = False
        self.answer = trio.Event()
        self.lone: list[bool] = []
        """Of each append, whether it was lone."""

    def append(self, batches: list[bytes], settle_only: bool = False) -> int:
        self.end += sum(map(len, batches))
        return self.end

    def vector(self) -> Vector:
        return {}

    def now_us(self) -> int:
        return int(trio.current_time() * 1_000_000)

    async def run_commit(self, call: Callable[[], Any], *, is_lone: bool = False) -> Any:
        self.lone.append(is_lone)
        await self.answer.wait()
        return call()


def commits_on(disk: Any) -> tuple[Commits, CommitPath]:
    other: Any = Mock()
    other.slot = AsyncMock()
    other.needs_checkpoint.return_value = False
    commits = Commits(disk, BOUND)
    path = CommitPath(Broker(B, 1), disk, commits, other, other, other, other)
    path.deliver_to(other)
    return commits, path


async def test_records_of_a_fast_peer_wait_for_a_slow_disk_and_not_in_memory() -> None:
    disk = SlowDisk()
    commits, path = commits_on(disk)
    last = 0

    async def link() -> None:
        nonlocal last
        while last < 100:
            await path.slot()
            last += 1
            out = Outcome()
            out.batches.append((A, last, bytes(BOUND)))
            path.submit(out)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        nursery.start_soon(link)
        await wait_all_tasks_blocked()
        assert last == 1

        disk.answer.set()
        await wait_all_tasks_blocked()
        assert last == 100
        assert commits.pending_bytes == 0
        nursery.cancel_scope.cancel()


def decided(last: int, size: int = 100) -> Outcome:
    out = Outcome()
    out.batches.append((A, last, bytes(size)))
    return out


async def test_a_decision_without_company_is_lone(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    disk.answer.set()
    commits, path = commits_on(disk)

    async def commit(*outs: Outcome) -> bool:
        for out in outs:
            path.submit(out)
        await path.flushed()
        return disk.lone.pop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        assert await commit(decided(1))
        assert not await commit(decided(2), decided(3))
        assert await commit(decided(4))
        assert not await commit(decided(5, LONE_BYTES_MAX))

        # A decision without a commit is company as well, as long as it is not past.
        assert not await commit(Outcome(), decided(6))
        path.submit(Outcome())
        await trio.sleep(2 * CALM_US / 1e6)
        assert await commit(decided(7))

        disk.is_writing = True
        assert not await commit(decided(8))
        commits.stop()


async def test_what_a_session_decides_without_a_commit_is_no_company_of_its_next_decision(
    autojump_clock: MockClock,
) -> None:
    disk = SlowDisk()
    disk.answer.set()
    commits, path = commits_on(disk)

    async def commit(*sessions: int) -> bool:
        for session in sessions[:-1]:
            path.submit(Outcome(session))
        out = Outcome(sessions[-1])
        out.batches.append((A, commits.groups + 1, bytes(100)))
        path.submit(out)
        await path.flushed()
        return disk.lone.pop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        assert await commit(1)
        assert await commit(1, 1)
        assert await commit(2, 2, 2)
        assert not await commit(1, 2)
        assert not await commit(2, 1, 2)
        # Several links decide without a session.
        assert not await commit(0, 0)
        commits.stop()


async def test_a_decision_that_adds_nothing_to_the_journal_waits_only_for_those_before_it() -> None:
    disk = SlowDisk()
    commits, path = commits_on(disk)
    delivered: list[int] = []
    path._delivery.after_commit = lambda group, begin: delivered.extend(out.session for out in group)  # type: ignore[method-assign]

    def delivery(session: int) -> Outcome:
        out = Outcome(session)
        out.deliveries_after[Mock()] = []
        assert out.needs_commit
        return out

    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        path.submit(delivery(1))
        assert delivered == [1]
        assert not disk.lone

        path.submit(decided(1))
        path.submit(delivery(2))
        await wait_all_tasks_blocked()
        path.submit(delivery(3))
        assert delivered == [1]

        disk.answer.set()
        await path.flushed()
        assert delivered == [1, 0, 2, 3]
        path.submit(delivery(4))
        assert delivered == [1, 0, 2, 3, 4]
        commits.stop()


async def test_what_a_delivery_decides_follows_the_group_that_is_delivered() -> None:
    disk = SlowDisk()
    disk.answer.set()
    commits, path = commits_on(disk)
    delivered: list[int] = []

    def deliver(group: list[Outcome], begin: int) -> None:
        if group[0].session == 1:
            again = Outcome(2)
            again.deliveries_after[Mock()] = []
            path.submit(again)
        delivered.append(group[0].session)

    path._delivery.after_commit = deliver  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        out = Outcome(1)
        out.batches.append((A, 1, bytes(100)))
        path.submit(out)
        await path.flushed()
        await wait_all_tasks_blocked()
        assert delivered == [1, 2]
        commits.stop()


async def test_a_lone_commit_whose_delivery_decides_more_leaves_a_turn_to_others(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    commits, path = commits_on(disk)
    others = Steps()

    async def at_once(call: Callable[[], Any], *, is_lone: bool = False) -> Any:
        others.seen.append(others.steps)
        return call()

    def decide_again(group: list[Outcome], begin: int) -> None:
        if len(others.seen) < 5:
            path.submit(decided(len(others.seen) + 1))

    disk.run_commit = at_once  # type: ignore[method-assign]
    path._delivery.after_commit = decide_again  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(path.run)
        nursery.start_soon(others.run)
        path.submit(decided(1))
        await path.flushed()
        await wait_all_tasks_blocked()
        commits.stop()
        others.scope.cancel()

    assert len(set(others.seen)) == 5


class Steps:
    """A task that always has something to do."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen: list[int] = []
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            while len(self.seen) < 5:
                self.steps += 1
                await trio.lowlevel.checkpoint()


async def test_a_commit_wakes_only_tasks_that_wait_for_no_more_than_it_has_reached() -> None:
    growth, woken = Growth(), []

    async def wait_for(position: int) -> None:
        await growth.beyond(position)
        woken.append(position)

    async with trio.open_nursery() as nursery:
        for position in (300, 100, 200):
            nursery.start_soon(wait_for, position)
        with trio.move_on_after(0):
            await growth.beyond(50)  # This task gives up.
        await wait_all_tasks_blocked()
        for end, reached in ((100, []), (101, [100]), (300, [100, 200]), (301, [100, 200, 300])):
            growth.reached(end)
            await wait_all_tasks_blocked()
            assert woken == reached
