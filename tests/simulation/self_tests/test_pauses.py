"""A paused host does nothing until it goes on, and then everything at once."""

import trio
from trio.testing import MockClock

from tests.simulation.pauses import HOST, Pauses

pauses = Pauses()


def test_a_paused_host_does_nothing_and_catches_up_at_once() -> None:
    ticks: dict[str, list[float]] = {"a": [], "b": []}

    async def tick(host: str) -> None:
        HOST.set(host)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def child() -> None:
                for _ in range(6):
                    await trio.sleep(1)
                    ticks[host].append(trio.current_time())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, "a")
            nursery.start_soon(tick, "b")
            await trio.sleep(1.5)
            pauses.begin("a")
            await trio.sleep(3)
            pauses.end("a")

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert ticks["a"] == [1, 4.5, 5.5, 6.5, 7.5, 8.5]
    assert ticks["b"] == [1, 2, 3, 4, 5, 6]


def test_a_cancelled_task_of_a_paused_host_ends_when_the_host_goes_on() -> None:
    ended: list[float] = []

    async def sleep(scope: trio.CancelScope) -> None:
        HOST.set("a")
        with scope:
            await trio.sleep_forever()
        ended.append(trio.current_time())

    async def main() -> None:
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep, scope)
            await trio.sleep(1)
            pauses.begin("a")
            scope.cancel()
            await trio.sleep(2)
            pauses.end("a")

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert ended == [3]


def test_ending_a_pause_that_never_began_is_harmless() -> None:
    async def main() -> None:
        pauses.end("a")
        await trio.sleep(1)

    trio.run(main, clock=MockClock(autojump_threshold=0))
