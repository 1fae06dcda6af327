"""Retention: drops old segments of the journal and of fanout logs, as the settings and the policies of fanouts say.

The checkpointer calls it, one call at a time. Only what checkpoints have committed is dropped.
"""

import threading
from collections.abc import Mapping
from typing import Final

from qmq.model.dots import Vector, covers
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.interfaces import Catalog, CheckpointState, Disk, FanoutExtent, Shift
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.log.journal import Journal

_SECOND_US: Final = 1_000_000


class LogRetention:
    """`retention` and `shift` are what the last call of the owner set; `lock` guards the open fanout logs."""

    def __init__(
        self,
        disk: Disk,
        catalog: Catalog,
        journal: Journal,
        logs: FanoutLogs,
        settings: StoreSettings,
        lock: threading.RLock,
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._journal = journal
        self._logs = logs
        self._settings = settings
        self._lock = lock
        self.shift = Shift()
        """Corrects times from before the start; a new value takes effect at the next checkpoint."""
        self.retention: Mapping[str, Retention] = {}

    def drop_journal(self, now_us: int, members: Mapping[str, Vector]) -> int:
        """Drop old segments before the checkpoint that all members have, or that exceed a hard bound.

        If the disk is nearly full, everything that all members have is dropped. Returns the bytes freed.
        """
        settings = self._settings
        scarce = self._disk.free_bytes() < 2 * settings.reserve_bytes
        journal = self._journal
        base: CheckpointState | None = None
        for end, ended_us, vector in journal.segment_bounds():
            if end > self._logs.state.position:
                break
            kept = journal.end - (base.position if base else journal.start)
            spread = (scarce or kept > settings.journal_keep_bytes) and all(
                covers(has, vector) for has in members.values()
            )
            old = now_us - self.shift.of(ended_us) > settings.journal_age_seconds_max * _SECOND_US
            if not (spread or old or kept > settings.journal_bytes_max):
                break
            base = CheckpointState(end, vector)
        if base is None:
            return 0
        self._catalog.set_base(base)
        return journal.drop_before(base.position)

    def bounds(self, destination: str) -> Retention:
        """What retention keeps of `destination`, as given to the last checkpoint."""
        try:
            return self.retention[destination]
        except KeyError:
            return self._settings.fanout_retention

    def due_us(self, retention: Mapping[str, Retention]) -> int:
        """The earliest time (µs) at which a fanout log may hold something too old for `retention`; 0: all are empty."""
        self.retention = retention
        extents = self._logs.extents.items()
        return min((self._due_us(name, extent) for name, extent in extents if extent.records), default=0)

    def _due_us(self, destination: str, extent: FanoutExtent) -> int:
        return self.shift.of(extent.first_us) + self.bounds(destination).age_seconds_max * _SECOND_US + 1

    def drop_fanouts(self, now_us: int) -> int:
        """Drop what retention does not keep. Return when the next part will be too old; 0: never."""
        due_us = 0
        for destination in list(self._logs.extents):
            bounds = self.bounds(destination)
            extent = self._logs.extents[destination]
            if not extent.records:
                continue
            next_us = self._due_us(destination, extent)
            # Before that time nothing is due, so an idle log need not be opened.
            if now_us >= next_us or now_us < extent.last_us or extent.end - extent.start > bounds.bytes_max:
                next_us = self._drop_expired(destination, extent, now_us, bounds)
            due_us = min(due_us or next_us, next_us or due_us)
        return due_us

    def commit_extent(self, destination: str, extent: FanoutExtent) -> None:
        """Commit what counts of the log of `destination`. The caller holds `Checkpointer.working`."""
        self._catalog.commit_checkpoint(self._logs.state, {destination: extent})
        self._logs.commit(self._logs.state, {destination: extent})

    def _drop_expired(self, destination: str, extent: FanoutExtent, now_us: int, bounds: Retention) -> int:
        with self._lock:
            log = self._logs.hold(destination)
        kept, due_us = log.without_expired(now_us, bounds, self.shift)
        if kept != extent:
            self.commit_extent(destination, kept)
        if kept.start != extent.start:
            log.drop()
        with self._lock:
            self._logs.release()
        return due_us
