"""The storage of one node behind one class: open and recover, append through `journal`, checkpoint, read fanouts.

All calls block. One worker thread appends, another may run `checkpoint`, and any thread may read; each method says so
where it matters. The module does not depend on the broker or on STOMP. It distinguishes destinations by the two
prefixes in the settings; everything else about a message is opaque. `opening` recovers a data directory, and
`repair.source` answers peers that repair themselves.

Surprising: the node's own incarnation begins with `begin_incarnation`, not when the store opens. So a node can recover,
read and serve its log before it writes a record of its own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.storage.backup_files import withdraw
from qmq.storage.catalog.catalog import CATALOG_FILE, SqliteCatalog
from qmq.storage.catalog.facts import QUEUES_IN
from qmq.storage.checkpoints.report import CheckpointReport
from qmq.storage.disk.disk import RealDisk
from qmq.storage.fanouts.reader import FanoutBegin, FanoutInfo, FanoutPage, FanoutPosition, FanoutReader
from qmq.storage.format.batch import encode_batch
from qmq.storage.format.interfaces import Catalog, Disk
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record, pack_start
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.log.journal import Mark
from qmq.storage.opening import FORMAT_VERSION, recover
from qmq.storage.queues.choice import SQLITE, open_queue_store
from qmq.storage.repair.fanout_logs import FanoutRepairer, FoundRange
from qmq.storage.repair.queue_rows import RowRepairer, record_quarantined
from qmq.storage.repair.range_snapshot import SnapshotReader
from qmq.storage.repair.source import RepairSource

_START_BYTES: Final = 4 * 1024 * 1024
"""About what the databases' own logs and the START record need; a starting node takes it from the reserve."""
NO_RETENTION: Final[Mapping[str, Retention]] = {}


class Store:
    """See the module's opening. The owner may use the public attributes, too."""

    def __init__(
        self, disk: Disk, catalog: Catalog, queues: QueueStore, *, node: str, settings: StoreSettings, uuid: str = ""
    ) -> None:
        """Recover everything on `disk`; then the store is ready for use. The caller has locked the disk.

        If the directory is empty, it gets the name `uuid`. Damage is quarantined and reported; it is never an error.

        Raises:
            StorageError: the directory belongs to another node, or its queues are in another kind of store.
            FutureVersion: later software wrote the directory; nothing was changed.
            LogBroken: the disk failed.
        """
        journal, self.recovered, checkpointer, logs, lock = recover(disk, catalog, queues, node, settings, uuid)
        self.journal = journal
        self.catalog = catalog
        self.queues = queues
        self.disk = disk
        """The data directory."""
        self._node = node
        self._settings = settings
        self._checkpointer = checkpointer
        self.retention = checkpointer.retention
        self._logs = logs
        self._lock = lock
        self._deletions = deletions = self.recovered.deletions
        self._reader = FanoutReader(journal, logs, settings.fanout_prefix, deletions)
        self._repairer = FanoutRepairer(disk, journal, logs, lock, checkpointer)
        self.row_repairer = RowRepairer(queues, journal, checkpointer, settings)
        snapshots = SnapshotReader(queues, logs, lock, deletions, self.recovered.definitions)
        self.repair_source = RepairSource(queues, snapshots, checkpointer, self.row_repairer)

    def begin_incarnation(self, incarnation: int, timestamp_us: int) -> Origin:
        """Write the START record of this run, durable on return; the next record of the returned origin is number 2.

        Raises LogBroken.
        """
        origin = Origin(self._node, incarnation)
        identity = self.recovered.identity
        self.catalog.add_incarnation(origin, timestamp_us)
        body = pack_start(format_version=FORMAT_VERSION, software=self._settings.software, uuid=identity.uuid)
        record = pack_record(1, timestamp_us, RecordKind.START, 0, pack_envelope("", b""), body)
        self.journal.append([encode_batch(origin, [record], 1, 1, timestamp_us, timestamp_us)], settle_only=True)
        self.journal.sync()
        return origin

    def checkpoint(
        self,
        end: int,
        now_us: int,
        members: Mapping[str, Vector],
        retention: Mapping[str, Retention] = NO_RETENTION,
    ) -> CheckpointReport:
        """Carry the journal before position `end` into the stores, then drop what is due. Appends may run meanwhile.

        `members`: what each other member of the mesh has durably. If a member is absent or far behind, its segments are
        kept until the hard bounds. `retention` per fanout destination overrides the settings.

        Raises:
            DiskFull: no room; nothing has changed, and the caller can try again.
            LogBroken: a store failed. The process must stop and recover, as after CorruptLog.
            CorruptLog: the journal was damaged after it was written.
        """
        return self._checkpointer.run(end, now_us, members, retention)

    def give_back(self) -> bool:
        """Return some of the space of settled queue messages to the file system; True when more can be returned.

        One short step, but it waits for a running checkpoint. Raises DiskFull and LogBroken.
        """
        return self._checkpointer.give_back()

    @property
    def tombstones(self) -> set[Dot]:
        """Settled messages that the stores have not received yet."""
        return self._checkpointer.stored.tombstones

    @property
    def checkpoint_position(self) -> int:
        """Everything in the journal before this has reached the stores."""
        return self._checkpointer.state.position

    @property
    def stored_vector(self) -> Vector:
        """The vector of the queue store: it has every queue message up to this that no checkpoint saw settled."""
        return self._checkpointer.stored.vector

    def fanout_start(self, destination: str) -> FanoutPosition:
        """The position before the first kept record of `destination`."""
        return self._reader.start()

    def fanout_after(self, destination: str, vector: Vector) -> FanoutPosition:
        """The position before the first record of `destination` that `vector` does not cover."""
        with self._lock:
            return self._reader.after(destination, vector)

    def fanout_at(self, destination: str, mark: Mark) -> FanoutPosition:
        """The position before all records of `destination` whose batch begins at `mark` or later. Takes no lock.

        If the journal has dropped that position meanwhile, the vector of the mark says which records came before it.
        """
        return self._reader.at(destination, mark)

    def fanout_begin(self, destination: str, word: str, number: int) -> FanoutBegin:
        """Where a reader begins that asks for the `last` record, an `offset`, or a `timestamp` (µs).

        Or `behind` so many kept records.
        """
        with self._lock:
            if word == "behind":
                return self._reader.behind(destination, number)
            if word == "timestamp":
                return self._reader.since(destination, number)
            return self._reader.at_offset(destination, -1 if word == "last" else number)

    def fanout_before(self, destination: str, word: str, number: int) -> Vector:
        """The vector of what precedes the place that `fanout_begin` finds. Raises CorruptLog as `fanout_page` does."""
        with self._lock:
            return self._reader.before(destination, self.fanout_begin(destination, word, number))

    def fanout_page(self, destination: str, position: FanoutPosition, bytes_max: int) -> FanoutPage:
        """Records from `position` on, about `bytes_max` of log but at least one batch, and the position after them.

        At the end, all records up to the `journal.end` at the time of the call have been returned; that is the
        `journal_position` of the new position. If retention has dropped records before they were read, the page says up
        to which.

        Raises CorruptLog where the log is damaged: the records there are unknown, and later ones are not returned.
        """
        with self._lock:
            return self._reader.page(destination, position, bytes_max)

    def fanout_behind(self, destination: str, positions: Sequence[FanoutPosition | None]) -> list[int]:
        """How many kept records come behind each position; 0 for None. Raises CorruptLog and LogBroken."""
        with self._lock:
            return self._reader.counts_behind(destination, positions)

    def fanout_info(self, destination: str) -> FanoutInfo:
        """What `destination` holds now."""
        with self._lock:
            return self._reader.info(destination)

    def fanout_info_at_once(self, destination: str) -> FanoutInfo | None:
        """The same, if it is in memory and no other thread is reading; else None."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._reader.info(destination) if self._reader.reads_nothing(destination) else None
        finally:
            self._lock.release()

    def damage(self) -> list[str]:
        """The damage that reads have found since the start, as text. The list only grows. Takes no lock."""
        rows = list(self.queues.damage.lines)
        if not self.journal.damage and not self._logs.damaged:
            return rows
        journal = [f"the journal is damaged from {start} to {end}" for start, end in list(self.journal.damage)]
        return journal + [f"{name}: {what}" for name, what in list(self._logs.damaged.items())] + rows

    def missing_ranges(self) -> list[MissingRange]:
        """The ranges that the queue store is missing because it was damaged."""
        return self.row_repairer.missing_ranges()

    def read_quarantined(self, dot: Dot) -> bytes | None:
        """The packed record of this message, if it is in quarantine. Reads all of the quarantine."""
        return record_quarantined(self.disk, dot)

    def damaged_fanouts(self) -> list[str]:
        """Fanouts whose log was found damaged and is not repaired yet. Takes no lock."""
        return list(self._logs.damaged)

    def begin_repair(self, destination: str, given_up: Vector) -> FoundRange | None:
        """Find what the damaged log of `destination` is missing; the journal's part is filled in already.

        Reads all of the log. The caller closes the result. None: the fanout was deleted.
        """
        known = dict(given_up)
        merge(known, self._deletions.before(destination))
        return self._repairer.begin(destination, known)

    def finish_repair(self, destination: str, found: FoundRange) -> bool:
        """Rewrite the log with what was found. False: the repair must begin again, or there is no room."""
        if not self._repairer.finish(destination, found, self._settings.reserve_bytes):
            return False
        self.repair_source.forget_index()
        self._logs.damaged.pop(destination, None)
        return True

    def fanouts(self) -> list[str]:
        """Destinations that have a fanout log, sorted."""
        with self._lock:
            return sorted(self._logs.extents)

    def close(self) -> None:
        """Sync, close everything and unlock the directory. Raises LogBroken when the sync fails."""
        try:
            self.journal.close()
        finally:
            self._logs.close()
            self.queues.close()
            self.catalog.close()
            self.disk.unlock()


def open_store(
    path: Path,
    *,
    node: str,
    settings: StoreSettings | None = None,
    queue_store: str = "sqlite",
    queue_store_seconds_max: float = 30.0,
) -> Store:
    """The store of a real node in the directory `path`, which is created when it is missing.

    `queue_store`: `sqlite` for a file in the same directory, or the URL of a PostgreSQL database (`postgresql://…`),
    which may hang or be unreachable for `queue_store_seconds_max`.

    Raises DirectoryInUse, and what `Store` raises; StorageError also when PostgreSQL cannot be used.
    """
    disk = RealDisk(path)
    disk.lock()
    withdraw(path)
    if disk.free_bytes() < _START_BYTES:
        disk.give_up_reserve(_START_BYTES)
    opened: list[Catalog | QueueStore] = []
    try:
        catalog = SqliteCatalog(path / CATALOG_FILE)
        opened.append(catalog)
        last = catalog.facts().get(QUEUES_IN, SQLITE)
        queues = open_queue_store(path, queue_store, node, last=last, seconds_max=queue_store_seconds_max)
        opened.append(queues)
        # SQLite syncs its files; their names survive a power cut when the directory is synced.
        disk.sync_directory(".")
        return Store(disk, catalog, queues, node=node, settings=settings or StoreSettings())
    except BaseException:
        for part in opened:
            part.close()
        disk.unlock()
        raise
