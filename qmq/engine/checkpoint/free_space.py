"""The free space of the disk: near its end the node refuses new durable messages, and takes them again by itself.

`qmq.broker.send_limits` refuses them; here is decided when. Settles, and whatever makes room, go on.
"""

import logging

import trio

from qmq.broker.send_limits import SendLimits
from qmq.config import StorageSettings
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Reporting
from qmq.environment import Environment
from qmq.storage.store import Store

SPACE_CHECK_BYTES = 4 << 20
"""Journal written between two checks of the free space, at most; far below the reserve."""

SPACE_CHECK_SECONDS = 1.0
"""Between two checks while anything is written: other programs may take the space."""

RESERVE_PARTS = 2
"""A file holds one part in so many of the reserve: other programs cannot take that part."""

DISK_FULL = "the disk is nearly full: new messages are refused, consuming goes on"

STORE_FULL = "the queue store has no room, and memory has no more: new messages are refused, consuming goes on"

log = logging.getLogger("qmq.checkpoint")


class FreeSpace:
    """Of the disk of one node, and of its queue store."""

    def __init__(
        self,
        commits: Commits,
        pager: QueuePager,
        limits: SendLimits,
        store: Store,
        environment: Environment,
        reports: Reporting,
        settings: StorageSettings,
    ) -> None:
        self._commits = commits
        self._pager = pager
        self._limits = limits
        self._store = store
        self._environment = environment
        self._settings = settings
        self._short = ConditionGroup(reports, "disk-full")
        self._is_memory_full = False
        self._calm = trio.CancelScope()

    @property
    def is_short(self) -> bool:
        """Whether new durable messages are refused."""
        return self._limits.disk_full

    async def until_due(self, position: int) -> None:
        """Wait until the journal has grown since `position`, and space may be short."""
        with trio.CancelScope() as self._calm:
            await self._commits.grew(position)
            with trio.move_on_after(SPACE_CHECK_SECONDS):
                await self._commits.grew(position + min(SPACE_CHECK_BYTES, self._settings.unnoticed_bytes_max))

    async def check(self, *, is_refused: bool) -> None:
        """Decide whether new durable messages are refused, from the space that is free now. `is_refused`: the last
        checkpoint found no room."""
        free = await self._environment.run_blocking(self._room)
        commits, pager = self._commits, self._pager
        # A store may have less room than the journal. Once full, memory must have much room: else consumers and
        # producers would begin and end this state each second.
        self._is_memory_full = is_refused and (pager.is_full or (self._is_memory_full and not pager.has_much_room))
        # A quota may allow less than is free.
        if commits.is_stuck or free < self._settings.disk_reserve_bytes + commits.pending_bytes:
            self._refuse(DISK_FULL)
        elif self._is_memory_full:
            self._refuse(STORE_FULL)
        elif self._limits.disk_full:
            self._store.journal.is_short = self._limits.disk_full = False
            self._short.show([])
            log.info("= %d bytes are free: this node takes messages again", free)

    def ran_short(self) -> None:
        """Refuse new durable messages from now on, until there is room again."""
        if not self._limits.disk_full:
            self._refuse(DISK_FULL)

    def _refuse(self, why: str) -> None:
        self._short.show([why])
        if not self._limits.disk_full:
            self._limits.disk_full = True
            self._calm.cancel()

    def _room(self) -> int:
        """Bytes that are free, or held by the reserve file, which is restored when there is room for all of it."""
        disk = self._store.disk
        reserve = self._settings.disk_reserve_bytes
        if disk.reserved_bytes != reserve // RESERVE_PARTS and disk.free_bytes() + disk.reserved_bytes >= reserve:
            disk.hold_reserve(reserve // RESERVE_PARTS)
        return disk.free_bytes() + disk.reserved_bytes
