"""The simulated world of a node: blocking calls, and what is left of them when the node dies."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from tests.fakes.disk import MemoryDisk
from tests.support.network import Fabric
from tests.support.world import EPOCH_US, SimulatedWorld, WorldEndedError


def run(main: Callable[[SimulatedWorld, MemoryDisk], Awaitable[None]], seed: int = 1) -> None:
    async def whole() -> None:
        disk = MemoryDisk()
        network = Fabric(random.Random(0)).network("127.0.0.1")
        with trio.fail_after(60):
            await main(SimulatedWorld(network, disk, random.Random(seed), 5, 0.1), disk)

    trio.run(whole, clock=MockClock(autojump_threshold=0))


def test_the_clock_is_virtual_and_skewed() -> None:
    async def main(sim: SimulatedWorld, disk: MemoryDisk) -> None:
        await trio.sleep(1)

        assert sim.environment.now_us() == EPOCH_US + 5 + 1_000_000

    run(main)


def test_a_blocking_call_takes_time_and_hands_on_what_it_raises() -> None:
    async def main(sim: SimulatedWorld, disk: MemoryDisk) -> None:
        began = trio.current_time()
        assert await sim.environment.run_blocking(lambda: 7) == 7
        assert trio.current_time() > began
        with pytest.raises(KeyError):
            await sim.environment.run_blocking(lambda: {}["missing"])

    run(main)


def test_a_cancelled_call_is_finished_first() -> None:
    async def main(sim: SimulatedWorld, disk: MemoryDisk) -> None:
        done: list[int] = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sim.environment.run_blocking, lambda: done.append(1))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()

        assert done == [1]

    run(main)


def test_a_call_that_death_interrupts_gets_through_any_part_of_its_work() -> None:
    kept: set[int] = set()

    async def main(sim: SimulatedWorld, disk: MemoryDisk) -> None:
        file = disk.create("log/tail")
        disk.sync_directory("log")

        def work() -> None:
            for _ in range(3):
                file.write(b"x")
                file.sync()

        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                with pytest.raises(WorldEndedError):
                    await sim.environment.run_blocking(work)

            await trio.testing.wait_all_tasks_blocked()
            sim.die(rng)
        disk.crash(rng)
        kept.add(disk.open("log/tail").size())

    rng = random.Random(3)
    for _ in range(60):
        run(main)
    assert kept == {0, 1, 2, 3}


def test_the_dead_do_nothing() -> None:
    async def main(sim: SimulatedWorld, disk: MemoryDisk) -> None:
        sim.die(random.Random(1))

        with pytest.raises(WorldEndedError):
            await sim.environment.run_blocking(lambda: disk.create("log/late"))

        assert disk.contents() == {}

    run(main)
