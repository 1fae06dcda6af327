"""The checkpoint: carries the journal into the stores, then drops what nobody needs any more.

It reads the journal itself, from the last checkpoint to a given end, and reduces it; a message that was settled in
between never touches a store. Order, each step durable before the next:

1. fanout logs, 2. queue store (one transaction), 3. catalog: position, vector, extents. **3 is the commit point.**

A crash before 3 repeats the whole stretch: fanout logs are cut to their committed extents, and the queue store knows
its own position, so it skips what it already took. After 3 come sealing and dropping, which may be left undone.

Runs in a thread of its own while another appends and others read. Surprising: long stretches are carried over in
slices with a commit each, so memory stays bounded.
"""

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from qmq.dots import Dot, Vector, covers
from qmq.errors import CorruptLog, DiskFull, LogBroken
from qmq.storage.fanout import FanoutLogs
from qmq.storage.journal import Journal
from qmq.storage.ports import Catalog, CheckpointState, Disk, FanoutExtent, QueueStore, Retention, StorageSettings
from qmq.storage.reduce import Reduction

SLICE_BYTES: Final = 4 * 1024 * 1024
SLICE_BYTES_MIN: Final = 1024 * 1024
"""Twice the largest batch: what a checkpoint on an almost full disk can still carry over safely."""
_READ_BYTES: Final = 1024 * 1024
_SECOND_US: Final = 1_000_000


class CheckpointReport(NamedTuple):
    """What one checkpoint did. Bytes are bytes of files."""

    position: int
    read_bytes: int
    queue_rows_added: int
    queue_rows_deleted: int
    fanout_records: int
    dropped_bytes: int
    """Of the journal."""
    sealed: int
    """Journal segments that got their index."""


class Checkpointer:
    """One at a time. `lock` is held while a fanout log is opened or closed, as readers do it too."""

    def __init__(
        self,
        *,
        disk: Disk,
        catalog: Catalog,
        queues: QueueStore,
        journal: Journal,
        logs: FanoutLogs,
        settings: StorageSettings,
        node: str,
        tombstones: set[Dot],
        lock: threading.RLock,
    ) -> None:
        self.tombstones = tombstones
        """Of the queue store, at its position."""
        self._disk = disk
        self._catalog = catalog
        self._queues = queues
        self._journal = journal
        self._logs = logs
        self._settings = settings
        self._node = node
        self._lock = lock
        self._one_at_a_time = threading.Lock()
        self._broken = False

    @property
    def state(self) -> CheckpointState:
        """The last committed checkpoint."""
        return self._logs.state

    def run(
        self, end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
    ) -> CheckpointReport:
        """Carry everything before journal position `end` into the stores, then drop. See `Store.checkpoint`."""
        with self._one_at_a_time:
            if self._broken:
                raise LogBroken("a checkpoint failed before; restart to recover")
            try:
                return self._run(end, now_us, members, retention)
            except DiskFull:
                raise
            except OSError as error:
                self._broken = True
                raise LogBroken(f"checkpoint failed: {error}") from error
            except BaseException:
                # How far the stores got is only known again after recovery.
                self._broken = True
                raise

    def _run(
        self, end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
    ) -> CheckpointReport:
        journal = self._journal
        if journal.synced_end < end:
            journal.sync()
        end = min(end, journal.synced_end)
        begin = self.state.position
        dropped = self._drop(now_us, members)
        added = deleted = copied = 0
        while self.state.position < end:
            # A slice writes at most about what it reads; half of what is free leaves room for the stores' own needs.
            size_max = min(SLICE_BYTES, self._disk.free_bytes() // 2)
            if size_max < SLICE_BYTES_MIN and size_max < end - self.state.position:
                raise DiskFull("no room for a checkpoint")
            reduction, position = self._reduce(end, size_max)
            copied += self._commit(reduction, position)
            added += len(reduction.live)
            deleted += len(reduction.deletes)
        sealed = journal.seal_full()
        dropped += self._drop(now_us, members)
        self._drop_fanouts(now_us, retention)
        return CheckpointReport(end, end - begin, added, deleted, copied, dropped, sealed)

    def _reduce(self, end: int, size_max: int) -> tuple[Reduction, int]:
        """One slice of the journal, about `size_max` bytes but at least one batch, and the position after it."""
        state = self.state
        reduction = Reduction(
            self._settings,
            self._node,
            dict(state.vector),
            self.tombstones,
            queue_position=self._queues.position(),
            fanout_position=state.position,
        )
        begin = position = state.position
        limit = min(end, position + size_max)
        while position < limit:
            batches = self._journal.read(position, min(_READ_BYTES, limit - position))
            if not batches or batches[0][0] >= end:
                position = end
            for start, head, data in batches:
                if start >= end:
                    break
                reduction.take(start, head, data)
                position = start + head.size
        if any(begin <= start < position for start, _ in self._journal.damage):
            raise CorruptLog("the journal was damaged since it was written; restart to recover")
        return reduction, position

    def _commit(self, reduction: Reduction, position: int) -> int:
        extents: dict[str, FanoutExtent] = {}
        copied = 0
        for destination, entries in reduction.fanouts.items():
            with self._lock:
                log = self._logs.hold(destination)
            extents[destination] = log.append(entries)
            with self._lock:
                self._logs.release(extents[destination])
            copied += len(entries)
        if position > self._queues.position():
            self._queues.apply(
                reduction.rows(), reduction.deletes, reduction.tombstones_add, reduction.tombstones_del, position
            )
            self.tombstones = reduction.tombstones()
        state = CheckpointState(position, reduction.vector)
        self._catalog.commit_checkpoint(state, extents)
        self._logs.commit(state, extents)
        for destination in extents:
            with self._lock:
                log = self._logs.hold(destination)
            log.seal_full()
            with self._lock:
                self._logs.release()
        return copied

    def _drop(self, now_us: int, members: Mapping[str, Vector]) -> int:
        """Drop old segments below the checkpoint: all members have them, or a hard bound was passed.

        When the disk is nearly full, nothing is kept that all members have.
        """
        settings = self._settings
        scarce = self._disk.free_bytes() < 2 * settings.reserve_bytes
        journal = self._journal
        base: CheckpointState | None = None
        for end, ended_us, vector in journal.segment_bounds():
            if end > self.state.position:
                break
            kept = journal.end - (base.position if base else journal.start)
            spread = (scarce or kept > settings.journal_keep_bytes) and all(
                covers(has, vector) for has in members.values()
            )
            old = now_us - ended_us > settings.journal_age_seconds_max * _SECOND_US
            if not (spread or old or kept > settings.journal_bytes_max):
                break
            base = CheckpointState(end, vector)
        if base is None:
            return 0
        self._catalog.set_base(base)
        return journal.drop_before(base.position)

    def _drop_fanouts(self, now_us: int, retention: Mapping[str, Retention]) -> None:
        for destination in list(self._logs.extents):
            bounds = retention.get(destination, self._settings.fanout_retention)
            extent = self._logs.extents[destination]
            young = now_us - extent.first_us <= bounds.age_seconds_max * _SECOND_US
            if young and extent.end - extent.start <= bounds.bytes_max:
                continue  # Nothing can be due, so an idle log need not even be opened.
            with self._lock:
                log = self._logs.hold(destination)
            kept = log.without_expired(now_us, bounds)
            if kept.start != extent.start:
                self._catalog.commit_checkpoint(self.state, {destination: kept})
                self._logs.commit(self.state, {destination: kept})
                log.drop()
            with self._lock:
                self._logs.release()
