"""The thread of the commits."""

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.engine.runtime.worker import DOUBT_AFTER_SLOW, DOUBT_AT_START, DOUBT_MAX, Worker

pytestmark = pytest.mark.trio


async def test_each_call_has_its_own_answer_from_one_thread() -> None:
    with Worker("commits") as worker:
        threads = [await worker.run(threading.current_thread) for _ in range(3)]
        answers = [await worker.run(lambda number=number: number * 2) for number in range(3)]

    assert {thread.name for thread in threads} == {"commits"}
    assert answers == [0, 2, 4]


async def test_what_a_call_raises_its_caller_gets_and_the_next_call_is_made() -> None:
    def fail() -> None:
        raise OSError("no disk")

    with Worker("commits") as worker:
        with pytest.raises(OSError, match="no disk"):
            await worker.run(fail)

        assert await worker.run(lambda: "next") == "next"


async def test_the_loop_goes_on_while_a_call_blocks() -> None:
    free, answers = threading.Event(), []

    async def wait_for_it(worker: Worker) -> None:
        answers.append(await worker.run(free.wait))

    with Worker("commits") as worker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_it, worker)
            await wait_all_tasks_blocked()
            assert not answers

            free.set()

    assert answers == [True]


async def test_a_cancelled_caller_waits_for_its_answer_and_the_next_one_gets_its_own() -> None:
    free, answers = threading.Event(), []

    async def wait_for_it(worker: Worker) -> None:
        answers.append(await worker.run(free.wait))
        await trio.lowlevel.checkpoint()
        answers.append("not cancelled")

    with Worker("commits") as worker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_it, worker)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            assert not answers
            free.set()

        assert answers == [True]
        assert await worker.run(lambda: "its own") == "its own"


async def test_its_thread_ends_with_it() -> None:
    with Worker("commits") as worker:
        thread = await worker.run(threading.current_thread)
        assert thread.is_alive()

    assert not thread.is_alive()


class Disk:
    """A clock, and calls that take as long as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def answer_after(self, seconds: float) -> str:
        self.now += seconds
        return threading.current_thread().name


async def threads_of(worker: Worker, disk: Disk, seconds: list[float], *, is_lone: bool = True) -> list[str]:
    """In which threads lone calls were made that took so long."""
    names = [await worker.run(lambda took=took: disk.answer_after(took), is_lone=is_lone) for took in seconds]
    return ["commits" if name == "commits" else "caller" for name in names]


async def test_lone_calls_need_no_thread_while_most_are_quick() -> None:
    disk = Disk()
    with Worker("commits", disk) as worker:
        assert await threads_of(worker, disk, [0.0005] * (DOUBT_AT_START - DOUBT_MAX)) == ["commits"] * 10
        assert await threads_of(worker, disk, [0.0005] * 30) == ["caller"] * 30
        one_in_ten = [0.003, *[0.0005] * 9]
        assert await threads_of(worker, disk, one_in_ten * 10) == ["caller"] * 100
        assert "commits" in await threads_of(worker, disk, [0.003, 0.0005] * 10)


async def test_calls_with_company_go_to_the_thread_however_quick_the_disk_is() -> None:
    disk = Disk()
    with Worker("commits", disk) as worker:
        assert await threads_of(worker, disk, [0.0005] * 50, is_lone=False) == ["commits"] * 50
        assert await threads_of(worker, disk, [0.0005]) == ["caller"]


async def test_a_disk_that_hangs_stops_its_caller_once_and_again_only_after_many_quick_answers() -> None:
    disk = Disk()
    with Worker("commits", disk) as worker:
        await threads_of(worker, disk, [0.0005] * 50)
        assert await threads_of(worker, disk, [30.0]) == ["caller"]

        assert await threads_of(worker, disk, [30.0, 30.0]) == ["commits"] * 2
        many = DOUBT_AFTER_SLOW - DOUBT_MAX
        assert await threads_of(worker, disk, [0.0005] * (many + 1)) == ["commits"] * many + ["caller"]


async def test_a_lone_call_in_the_callers_thread_is_made_without_a_checkpoint() -> None:
    disk, order = Disk(), []

    async def other() -> None:
        order.append("other")

    with Worker("commits", disk) as worker:
        await threads_of(worker, disk, [0.0005] * 50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await worker.run(lambda: order.append("call"), is_lone=True)
            await trio.lowlevel.checkpoint()

    assert order == ["call", "other"]
