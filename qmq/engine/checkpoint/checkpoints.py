"""When the stores take over from the journal, and how full the disk is.

A checkpoint runs in a worker thread, in parallel with the commits. It runs whenever enough journal has been written
since the last one, and at an orderly stop. It reads the journal itself, so it needs nothing of the broker. Time alone
causes a checkpoint, too, when something in a fanout becomes too old. A node without such data never wakes for this.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from math import ceil, inf

import trio

from qmq.broker.broker import Broker
from qmq.config import NodeSettings
from qmq.engine.checkpoint.free_space import FreeSpace
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Configured, Reporting
from qmq.engine.runtime.malloc_trim import give_back_memory
from qmq.engine.runtime.retry_until_space import SPACE_SECONDS
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment
from qmq.errors import DiskFull, LogBroken
from qmq.model.dots import Vector
from qmq.storage.checkpoints.report import CheckpointReport
from qmq.storage.format.settings import Retention
from qmq.storage.store import Store

TRIM_BYTES = 4 << 20
"""After a checkpoint of at least so much journal, its memory is returned to the system."""

QUIET_SECONDS_MIN = 1.0
"""Between two checkpoints that only the passing of time causes."""

REFUSED_SECONDS_MAX = 30.0
"""Between two attempts of a checkpoint for which there is no room, at most. The pause doubles up to this."""

SLOW_SECONDS = 10.0
"""A checkpoint that takes longer raises a condition."""

SLOW = "a checkpoint has been under way for 10 seconds: the queue store, or its disk, is slow or hangs"

TIDY_PAUSE_SECONDS = 0.05
"""Between two steps in which the queue store frees space, so that readers of its disk get a turn."""

RETENTION_PARTS = 8
"""New records in the journal come under their retention within this part of the shortest one."""

log = logging.getLogger("qmq.checkpoint")


class Retentions(dict[str, Retention]):
    """Destination → how long the log of this fanout is kept: as its policy says, or else as `[storage]` says for all.

    The checkpoint's thread reads it; the first read of a fanout looks it up in the policies. One table serves one
    checkpoint, so a changed configuration applies from the next one on.
    """

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__()
        self._settings = settings

    def __missing__(self, destination: str) -> Retention:
        policy = self._settings.destinations.policy_of(destination)
        seconds, size = policy.retention_seconds, policy.retention_bytes
        storage = self._settings.storage
        found = self[destination] = Retention(
            age_seconds_max=ceil(storage.fanout_age_seconds_max if seconds is None else seconds),
            bytes_max=storage.fanout_bytes_max if size is None else size,
        )
        return found

    @property
    def shortest_seconds(self) -> int:
        """The shortest time for which any fanout, existing or not, is kept."""
        named = [p.retention_seconds for p in self._settings.destinations.policies if p.retention_seconds is not None]
        return ceil(min([self._settings.storage.fanout_age_seconds_max, *named]))


class Checkpoints:
    """`members` has what is durable on each peer, as its link reports; it decides which segments are dropped."""

    def __init__(
        self,
        commits: Commits,
        pager: QueuePager,
        broker: Broker,
        store: Store,
        environment: Environment,
        reports: Reporting,
        configured: Configured,
        storage_now_us: Callable[[], int],
    ) -> None:
        self._commits = commits
        self._pager = pager
        self._broker = broker
        self._store = store
        self._environment = environment
        self._reports = reports
        self._configured = configured
        self._storage_now_us = storage_now_us
        self._followers: list[Callable[[CheckpointReport], None]] = []
        self._settings = configured.settings.storage
        self._done = store.journal.end
        self._due_us = store.retention.due_us(Retentions(configured.settings))
        self._patience = trio.CancelScope()
        self._is_stale = False
        self.members: dict[str, Vector] = {}
        self.count = 0
        self._one = trio.Lock()
        self._untidy = Waker()
        self._refused = ConditionGroup(reports, "checkpoint")
        self.space = FreeSpace(
            commits, pager, broker.send_limits, store, environment, reports, configured.settings.storage
        )
        self._began = Waker()
        self._ended = trio.Event()

    def members_changed(self, names: Iterable[str]) -> None:
        """These are the other members from now on; a new one has nothing."""
        self.members = {name: self.members.get(name, {}) for name in names}

    def follow(self, done: Callable[[CheckpointReport], None]) -> None:
        """Call `done` after each checkpoint from now on."""
        self._followers.append(done)

    async def run(self) -> None:
        """Checkpoint, sync and check the disk as the journal grows, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_space)
            nursery.start_soon(self._tidy)
            nursery.start_soon(self._watch_checkpoints)
            if self._settings.sync_interval_ms is not None:
                nursery.start_soon(self._sync_every, self._settings.sync_interval_ms / 1000)
            pause = SPACE_SECONDS
            while True:
                await self._until_due()
                if await self._checkpoint_if_room():
                    pause = SPACE_SECONDS
                else:
                    # Each attempt reads journal and writes what does not fit.
                    await trio.sleep(pause)
                    pause = min(2 * pause, REFUSED_SECONDS_MAX)

    async def _until_due(self) -> None:
        """Wait until there is enough to checkpoint, or something to drop."""
        left = max(QUIET_SECONDS_MIN, (self._due_us - self._storage_now_us()) / 1e6) if self._due_us else inf
        with trio.move_on_after(0 if self._is_stale else left) as self._patience:
            await self._commits.grew(self._done)
            patience = Retentions(self._configured.settings).shortest_seconds / RETENTION_PARTS
            with trio.move_on_after(max(QUIET_SECONDS_MIN, patience)):
                await self._commits.grew(self._done + self._settings.checkpoint_bytes)

    def schedule(self) -> None:
        """Checkpoint without waiting for the journal to grow: memory is short, or new policies keep less."""
        self._is_stale = True
        self._patience.cancel()

    async def _checkpoint_if_room(self) -> bool:
        """False when the disk has no room for it: then nothing has changed, and the journal still has everything."""
        try:
            await self.checkpoint()
        except DiskFull as error:
            # The next attempt may be refused for another reason.
            self._refused.show([f"the journal cannot be carried into the stores: {error}"])
            # What it was for may not come again while nothing is written.
            self.schedule()
            await self.check_space()
            return False
        self._refused.show([])
        return True

    async def bring_up(self) -> bool:
        """Bring the stores up to everything committed before this call. False: there is no room for it."""
        is_up = self._commits.committed_end <= self._store.checkpoint_position
        return is_up or await self._checkpoint_if_room()

    async def checkpoint(self) -> None:
        """Bring the stores up to everything committed so far."""
        async with self._one:
            self._ended = trio.Event()
            self._began.wake()
            ends_node = False
            try:
                await self._checkpoint()
            except LogBroken:
                ends_node = True
                raise
            finally:
                if not ends_node:
                    self._ended.set()
                self._pager.checkpoint_ends()

    async def _checkpoint(self) -> None:
        self._pager.checkpoint_begins()
        await self._commits.flushed()
        end = self._commits.committed_end
        self._is_stale = False
        call = partial(
            self._store.checkpoint,
            end,
            self._storage_now_us(),
            dict(self.members),
            Retentions(self._configured.settings),
        )
        # If a caller gives up waiting, it does so when the pages in memory match the stores as they are then.
        with trio.CancelScope(shield=True):
            report = await self._environment.run_blocking(call)
            self._done = end
            self._due_us = report.retention_due_us
            self.count += 1
            log.info("= checkpoint at %d: %s", end, report)
            await self._pager.checkpoint_done(report.vector)
            for done in self._followers:
                done(report)
            self._broker.deletions.forget(report.obsolete)
            self._store.recovered.definitions.forget(report.obsolete_definitions)
        self._untidy.wake()
        await self.check_space()
        if report.read_bytes >= TRIM_BYTES:
            await self._environment.run_blocking(give_back_memory)

    async def _watch_checkpoints(self) -> None:
        """Log each checkpoint that takes long, until cancelled."""
        while True:
            await self._began.wait()
            ended = self._ended
            with trio.move_on_after(SLOW_SECONDS):
                await ended.wait()
            if not ended.is_set():
                self._reports.raise_condition("checkpoint", SLOW)
                await ended.wait()
                self._reports.clear_condition("checkpoint", SLOW)

    async def _tidy(self) -> None:
        """After each checkpoint, free the space that drained queues have left in the store, until cancelled."""
        while True:
            await self._untidy.wait()
            has_more = True
            while has_more:
                try:
                    async with self._one:
                        has_more = await self._environment.run_blocking(self._store.give_back)
                except DiskFull:
                    break  # Freeing space needs space itself; a later checkpoint will have found some.
                await trio.sleep(TIDY_PAUSE_SECONDS)

    async def _sync_every(self, seconds: float) -> None:
        while True:
            position = self._commits.committed_end
            await self._environment.run_blocking(self._store.journal.sync)
            await self._commits.grew(position)
            await trio.sleep(seconds)

    async def _watch_space(self) -> None:
        while True:
            position = self._commits.committed_end
            await self.check_space()
            if self.space.is_short:
                # Little is written, so only waiting can show that space was freed, and only a checkpoint frees what is
                # settled.
                if self._commits.committed_end > self._done:
                    self.schedule()
                await trio.sleep(SPACE_SECONDS)
                continue
            await self.space.until_due(position)

    async def check_space(self) -> None:
        """Decide whether new durable messages are refused; see `FreeSpace.check`."""
        await self.space.check(is_refused=self._refused.is_shown)
