"""When the stores take over from the journal, and how full the disk is.

A checkpoint runs in a worker thread beside the commits, whenever enough journal has been written since the last one,
and at an orderly stop. It reads the journal itself, so it needs nothing of the broker. A node without traffic is never
woken by this.
"""

import logging
from functools import partial
from math import inf
from typing import Protocol

import trio

from qmq.broker.broker import Broker
from qmq.config import StorageSettings
from qmq.dots import Vector
from qmq.errors import DiskFull
from qmq.server.commits import Commits
from qmq.storage.store import Store
from qmq.world import World

FULL_CHECK_SECONDS = 1.0
"""Between two looks at a full disk."""

SPACE_CHECK_BYTES = 4 << 20
"""Journal written between two looks at the free space; far below the reserve."""

log = logging.getLogger("qmq.checkpoint")


class CheckpointDesk(Protocol):
    """What checkpoints need of the node."""

    broker: Broker
    commits: Commits
    store: Store
    world: World

    def alarm(self, code: str, message: str) -> None: ...


class Checkpoints:
    """`members` holds what each peer has durably, as its link told; it decides which journal may go."""

    def __init__(self, desk: CheckpointDesk, settings: StorageSettings) -> None:
        self._desk = desk
        self._settings = settings
        self._done = desk.store.journal.end
        self.members: dict[str, Vector] = {}
        self.count = 0

    async def run(self) -> None:
        """Checkpoint, sync and look at the disk as the journal grows; for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_space)
            if self._settings.sync_interval_ms is not None:
                nursery.start_soon(self._sync_every, self._settings.sync_interval_ms / 1000)
            while True:
                await self._desk.commits.grew(self._done + self._settings.checkpoint_bytes)
                if not await self._checkpoint_if_room():
                    await trio.sleep(FULL_CHECK_SECONDS)

    async def _checkpoint_if_room(self) -> bool:
        """False when the disk has no room for it: nothing has changed then, the journal still holds everything."""
        try:
            await self.checkpoint()
        except DiskFull as error:
            self._desk.alarm("checkpoint", f"the journal cannot be carried into the stores: {error}")
            return False
        return True

    async def checkpoint(self) -> None:
        """Bring the stores up to everything told so far."""
        desk = self._desk
        end = desk.commits.told_end
        call = partial(desk.store.checkpoint, end, desk.world.now_us(), dict(self.members))
        report = await desk.world.run_blocking(call)
        self._done = end
        self.count += 1
        log.info("= checkpoint at %d: %s", end, report)

    async def final(self) -> None:
        """The last one, at an orderly stop: the next start replays nothing (or all, when there is no room for it)."""
        with trio.CancelScope(shield=True):
            if self._desk.commits.told_end > self._done:
                await self._checkpoint_if_room()

    async def _sync_every(self, seconds: float) -> None:
        desk = self._desk
        while True:
            position = desk.commits.told_end
            await desk.world.run_blocking(desk.store.journal.sync)
            await desk.commits.grew(position)
            await trio.sleep(seconds)

    async def _watch_space(self) -> None:
        desk = self._desk
        while True:
            position = desk.commits.told_end
            await self.look_at_space()
            # While it is full nothing may grow, so only the time can tell that somebody has made room.
            with trio.move_on_after(FULL_CHECK_SECONDS if desk.broker.disk_full else inf):
                await desk.commits.grew(position + SPACE_CHECK_BYTES)

    async def look_at_space(self) -> None:
        """Decide whether new durable messages are refused, from what is free now."""
        desk = self._desk
        free = (await desk.world.run_blocking(desk.store.statistics)).free_bytes
        full = free < self._settings.disk_reserve_bytes + desk.commits.pending_bytes
        if full and not desk.broker.disk_full:
            desk.alarm("disk-full", f"only {free} bytes are free: new messages are refused, consuming goes on")
        desk.broker.disk_full = full
