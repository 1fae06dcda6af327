"""When the stores take over from the journal, and how full the disk is.

A checkpoint runs in a worker thread beside the commits, whenever enough journal has been written since the last one,
and at an orderly stop. It reads the journal itself, so it needs nothing of the broker. Time alone brings one too, when
something in a fanout becomes too old to be kept: a node that holds nothing of the kind is never woken by this.
"""

import logging
from functools import partial
from math import inf
from typing import Protocol

import trio

from qmq.broker.broker import Broker
from qmq.config import NodeSettings, StorageSettings
from qmq.dots import Vector
from qmq.errors import DiskFull
from qmq.server.clerk import Clerk
from qmq.server.commits import Commits
from qmq.server.memory import give_back_memory
from qmq.server.retention import Retentions
from qmq.server.sealing import Sealing
from qmq.storage.store import Store
from qmq.world import World

FULL_CHECK_SECONDS = 1.0
"""Between two looks at a full disk."""

TRIM_BYTES = 4 << 20
"""Journal carried over by one checkpoint, from which on its memory is given back to the system."""

SPACE_CHECK_BYTES = 4 << 20
"""Journal written between two looks at the free space; far below the reserve."""

QUIET_SECONDS_MIN = 1.0
"""Between two checkpoints that only time asks for."""

TIDY_PAUSE_SECONDS = 0.05
"""Between two steps in which the queue store gives space back: whoever reads its disk has a turn."""

RETENTION_PARTS = 8
"""What is new in the journal comes under its retention within this part of the shortest one."""

log = logging.getLogger("qmq.checkpoint")


class CheckpointDesk(Protocol):
    """What checkpoints need of the node."""

    broker: Broker
    clerk: Clerk
    sealing: Sealing
    settings: NodeSettings
    commits: Commits
    store: Store
    world: World

    def alarm(self, code: str, message: str) -> None: ...
    def look_at_damage(self) -> None: ...


class Checkpoints:
    """`members` holds what each peer has durably, as its link told; it decides which journal may go."""

    def __init__(self, desk: CheckpointDesk, settings: StorageSettings) -> None:
        self._desk = desk
        self._settings = settings
        self._done = desk.store.journal.end
        self._due_us = desk.store.retention_due_us(Retentions(desk.settings))
        self._patience = trio.CancelScope()
        self._is_stale = False
        self.members: dict[str, Vector] = {}
        self.count = 0
        self._one = trio.Lock()
        self._untidy = trio.Event()

    async def run(self) -> None:
        """Checkpoint, sync and look at the disk as the journal grows; for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_space)
            nursery.start_soon(self._tidy)
            if self._settings.sync_interval_ms is not None:
                nursery.start_soon(self._sync_every, self._settings.sync_interval_ms / 1000)
            while True:
                await self._until_due()
                if not await self._checkpoint_if_room():
                    await trio.sleep(FULL_CHECK_SECONDS)

    async def _until_due(self) -> None:
        """Wait until there is enough to carry over, or something to drop."""
        desk = self._desk
        left = max(QUIET_SECONDS_MIN, (self._due_us - desk.world.now_us()) / 1e6) if self._due_us else inf
        with trio.move_on_after(0 if self._is_stale else left) as self._patience:
            await desk.commits.grew(self._done)
            patience = Retentions(desk.settings).shortest_seconds / RETENTION_PARTS
            with trio.move_on_after(max(QUIET_SECONDS_MIN, patience)):
                await desk.commits.grew(self._done + self._settings.checkpoint_bytes)

    def soon(self) -> None:
        """Do not wait for the journal to grow: memory is short, or new policies keep less."""
        self._is_stale = True
        self._patience.cancel()

    async def _checkpoint_if_room(self) -> bool:
        """False when the disk has no room for it: nothing has changed then, the journal still holds everything."""
        try:
            await self.checkpoint()
        except DiskFull as error:
            self._desk.alarm("checkpoint", f"the journal cannot be carried into the stores: {error}")
            return False
        return True

    async def bring_up(self) -> bool:
        """Bring the stores up to everything told before this call; False: there is no room for what is new."""
        is_up = self._desk.commits.told_end <= self._desk.store.checkpoint_position
        return is_up or await self._checkpoint_if_room()

    async def checkpoint(self) -> None:
        """Bring the stores up to everything told so far."""
        async with self._one:
            try:
                await self._checkpoint()
            finally:
                self._desk.clerk.checkpoint_ends()

    async def _checkpoint(self) -> None:
        desk = self._desk
        desk.clerk.checkpoint_begins()
        await desk.commits.all_told()
        end = desk.commits.told_end
        self._is_stale = False
        call = partial(desk.store.checkpoint, end, desk.world.now_us(), dict(self.members), Retentions(desk.settings))
        # Whoever gives up waiting for it does so when what is in memory goes by the stores as they are then.
        with trio.CancelScope(shield=True):
            report = await desk.world.run_blocking(call)
            self._done = end
            self._due_us = report.retention_due_us
            self.count += 1
            log.info("= checkpoint at %d: %s", end, report)
            await desk.clerk.checkpoint_done(report.vector)
            desk.sealing.checkpoint_done(report)
            desk.look_at_damage()
        self._untidy.set()
        if report.read_bytes >= TRIM_BYTES:
            await desk.world.run_blocking(give_back_memory)

    async def _tidy(self) -> None:
        """Give back what drained queues have left in the store, when a checkpoint has passed; for ever."""
        desk = self._desk
        while True:
            await self._untidy.wait()
            self._untidy = trio.Event()
            has_more = True
            while has_more:
                try:
                    async with self._one:
                        has_more = await desk.world.run_blocking(desk.store.give_back)
                except DiskFull:
                    break  # It takes room to give room back; a next checkpoint will have found some.
                await trio.sleep(TIDY_PAUSE_SECONDS)

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
