"""The twin of the world of one node: clock, chance, network and blocking calls under one seed.

A blocking call takes a drawn time: it waits, happens in one instant, and waits again. So a crash finds a call not
begun, done and not yet answered, or (`die`) cut at any of its disk operations: a torn append, half a checkpoint.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio

from qmq.engine.runtime.clock import SteadyClock
from qmq.environment import Environment, Network
from qmq.errors import StorageError
from tests.fakes.disk import MemoryDisk
from tests.support.moments import sleep_uncancelled

T = TypeVar("T")

EPOCH_US = 1_700_000_000_000_000
DISK_OPERATIONS_MAX = 12
"""A call that a crash interrupts gets through fewer changing disk operations than this."""


def _passed_us() -> int:
    return int(trio.current_time() * 1_000_000)


class WorldEndedError(Exception):
    """A node that is dead asked its world for something. Nobody outside the dead node sees this."""


class SimulatedWorld:
    """One life of one node. `skew_us` is how wrong its wall clock is; `disk_seconds` how long a call takes at most.

    Both may be changed while the node lives: its clock steps, its disk becomes slow.
    """

    def __init__(
        self,
        network: Network,
        disk: MemoryDisk,
        rng: random.Random,
        skew_us: int,
        disk_seconds: float,
        tracer: Any = None,
    ) -> None:
        self._disk = disk
        self.skew_us = skew_us
        # Apart from the node's own chance, so that what the node draws does not depend on how often it used the disk.
        self._times = random.Random(rng.getrandbits(64))
        self.disk_seconds = disk_seconds
        self.is_disk_time_drawn = True
        self.lone_at_once = 0.0
        """The part of lone commits that is made at once."""
        self.slept_seconds = 0.0
        """For how long its machine was asleep in this life: time that the boot clock counts and trio's does not."""
        self._pending: dict[int, Callable[[], object]] = {}
        self._calls = 0
        self._asked = trio.Event()
        self.dead = False
        self.environment = Environment(
            network=network,
            rng=rng,
            now_us=SteadyClock(self.wall_us, _passed_us),
            run_blocking=self.run_blocking,
            run_commit=self.run_commit,
            boot_seconds=lambda: trio.current_time() + self.slept_seconds,
            tracer=tracer,
        )

    def wall_us(self) -> int:
        """What somebody has set the machine's clock to."""
        return EPOCH_US + self.skew_us + int(trio.current_time() * 1_000_000)

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """As the real one: a call that has begun is finished, also when the caller is cancelled."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._calls += 1
        number = self._calls
        if self.dead:
            raise WorldEndedError
        self._pending[number] = call
        self._asked.set()
        await sleep_uncancelled(self._disk_time())
        if self.dead:
            raise WorldEndedError
        del self._pending[number]
        result = call()
        await sleep_uncancelled(self._disk_time() / 4)
        if self.dead:
            raise WorldEndedError
        return result

    async def run_commit(self, call: Callable[[], T], *, is_lone: bool = False) -> T:
        """As the real one: some lone calls are made at once, before any other task of any node runs."""
        if is_lone and not self.dead and self._times.random() < self.lone_at_once:
            return call()
        with trio.CancelScope(shield=True):
            result = await self.environment.run_blocking(call)
        return result

    def _disk_time(self) -> float:
        drawn = self._times.random()
        return (drawn if self.is_disk_time_drawn else 1.0) * self.disk_seconds

    async def disk_asked(self) -> None:
        """Wait until the next blocking call is asked for."""
        self._asked = trio.Event()
        await self._asked.wait()

    def die(self, rng: random.Random) -> None:
        """The node ends in this instant. Calls that were asked for may get through a part of what they do."""
        self.dead = True
        for call in self._pending.values():
            # An append is two operations, a checkpoint many: both must be met in their midst.
            self._disk.fail_at(rng.randrange(rng.choice((1, 2, 3, DISK_OPERATIONS_MAX))))
            with suppress(StorageError, OSError):
                call()
            self._disk.heal()
        self._pending.clear()
