"""The commit path alone, with a disk whose calls return when the test says so."""

from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.engine.commit.commits import Commits
from qmq.engine.commit_path import CommitPath
from qmq.model.dots import Origin, Vector

pytestmark = pytest.mark.trio

A, B = Origin("a", 1), Origin("b", 1)
BOUND = 1000


class SlowDisk:
    """A journal and a world in one: nothing is appended before `answer`."""

    def __init__(self) -> None:
        self.end = 0
        self.is_short = False
        self.answer = trio.Event()

    def append(self, batches: list[bytes], settle_only: bool = False) -> int:
        self.end += sum(map(len, batches))
        return self.end

    def vector(self) -> Vector:
        return {}

    def now_us(self) -> int:
        return 0

    async def run_commit(self, call: Callable[[], Any]) -> Any:
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
