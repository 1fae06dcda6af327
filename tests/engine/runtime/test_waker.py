"""The wake-up of a task that works in rounds."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.engine.runtime.waker import Waker


async def test_wake_up_between_two_waits_ends_the_next_wait_and_no_later_one(autojump_clock: MockClock) -> None:
    waker = Waker()
    began = trio.current_time()
    waker.wake()
    waker.wake()

    await waker.wait(5.0)
    assert trio.current_time() == began
    await waker.wait(5.0)
    assert trio.current_time() == began + 5.0


async def test_wake_up_ends_a_wait_without_a_bound(autojump_clock: MockClock) -> None:
    waker = Waker()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        while True:
            await waker.wait()
            rounds += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        waker.wake()
        await wait_all_tasks_blocked()
        waker.wake()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert rounds == 2


async def test_cleared_wake_up_ends_no_wait(autojump_clock: MockClock) -> None:
    waker = Waker()
    deadline = trio.current_time() + 3.0
    waker.wake()

    waker.clear()
    await waker.wait_until(deadline)

    assert trio.current_time() == deadline


async def test_deadline_in_the_past_does_not_wait_for_a_wake_up(autojump_clock: MockClock) -> None:
    waker = Waker()
    now = trio.current_time()

    await waker.wait_until(now - 1.0)

    assert trio.current_time() == now
