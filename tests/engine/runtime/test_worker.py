"""The thread of the commits."""

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.engine.runtime.worker import Worker

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
