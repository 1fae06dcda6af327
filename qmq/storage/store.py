"""The storage of one node behind one class: open and recover, append through `journal`, checkpoint, read fanouts.

Synchronous. One worker thread appends, another may run `checkpoint`, and reads may come from any thread; each method
says so where it matters. Knows nothing of brokers or STOMP: destinations are told apart by the two prefixes in the
settings, and everything else about a message is opaque.

Surprising: the own incarnation begins with `begin_incarnation`, not with opening. A node can thus recover, read and
serve its log before it writes a record of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qmq.dots import Dot, Origin, Vector, merge
from qmq.storage.catalog.catalog import CATALOG_FILE, SqliteCatalog
from qmq.storage.catalog.facts import QUEUES_IN
from qmq.storage.checkpoints.checkpoint import CheckpointReport
from qmq.storage.disk.disk import RealDisk
from qmq.storage.disk.memory import MemoryDisk
from qmq.storage.fanouts.reader import FanoutBegin, FanoutInfo, FanoutPage, FanoutPosition, FanoutReader
from qmq.storage.format.batch import encode_batch
from qmq.storage.format.interfaces import (
    Catalog,
    Disk,
    MissingRange,
    QueueStore,
    Retention,
    Shift,
    StoreSettings,
)
from qmq.storage.format.record import Record, RecordKind, pack_envelope, pack_record, pack_start
from qmq.storage.log.journal import Mark
from qmq.storage.opening import FORMAT_VERSION, Opened, recover
from qmq.storage.queues.choice import SQLITE, open_queue_store
from qmq.storage.queues.memory_stores import MemoryCatalog, MemoryQueueStore
from qmq.storage.repair.fanout_logs import FanoutRepairer, FoundRange
from qmq.storage.repair.queue_rows import RowRepairer, record_quarantined
from qmq.storage.repair.range_snapshot import Known, RangeSnapshot, SnapshotReader
from qmq.storage.repair.source import RepairSource

_START_BYTES: Final = 4 * 1024 * 1024
"""What the databases' own logs and the mark of a new life need, about; a start takes it of the reserve."""
NO_RETENTION: Final[Mapping[str, Retention]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatistics:
    """A snapshot. Positions are journal positions; bytes are bytes on disk."""

    journal_start: int
    journal_end: int
    journal_synced_end: int
    journal_segments: int
    checkpoint_position: int
    fanouts: int
    fanout_bytes: int
    tombstones: int
    damaged_ranges: int
    """Found by reads since the start, and passed over."""
    quarantined_ranges: int
    free_bytes: int


class Store:
    """See the module's opening. `journal` and `recovered` are for the owner to use."""

    def __init__(
        self,
        *,
        disk: Disk,
        catalog: Catalog,
        queues: QueueStore,
        node: str,
        settings: StoreSettings,
        opened: Opened,
    ) -> None:
        journal, logs, lock = opened.journal, opened.logs, opened.lock
        self.journal = journal
        self.recovered = opened.recovered
        self.catalog = catalog
        self.queues = queues
        self._disk = disk
        self._node = node
        self._settings = settings
        self._checkpointer = checkpointer = opened.checkpointer
        self._logs = logs
        self._lock = lock
        self._deletions = deletions = opened.recovered.deletions
        self._reader = FanoutReader(journal, logs, settings.fanout_prefix, deletions)
        self._repairer = FanoutRepairer(disk, journal, logs, lock, checkpointer)
        self._row_repairer = RowRepairer(queues, journal, checkpointer, settings)
        self._repair_source = RepairSource(
            queues, SnapshotReader(queues, logs, lock, deletions), checkpointer, self._row_repairer
        )

    @classmethod
    def open(
        cls,
        disk: Disk,
        catalog: Catalog,
        queues: QueueStore,
        *,
        node: str,
        settings: StoreSettings,
        uuid: str = "",
    ) -> "Store":
        """Recover everything on `disk` and return it ready for use. The caller has locked the disk.

        `uuid` names the directory when it is fresh. Damage is quarantined and reported, never a reason to fail.

        Raises:
            StorageError: the directory belongs to another node, or its queues are in another kind of store.
            FutureVersion: it was written by later software; nothing was changed.
            LogBroken: the disk refused.
        """
        opened = recover(disk, catalog, queues, node, settings, uuid)
        return cls(disk=disk, catalog=catalog, queues=queues, node=node, settings=settings, opened=opened)

    def begin_incarnation(self, incarnation: int, timestamp_us: int) -> Origin:
        """Write the START record of this run, durable on return; records of the returned origin go on at sequence 2.

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
        """Carry the journal before position `end` into the stores, then drop what is due. May run beside appends.

        `members`: what each other member of the mesh has durably; an absent or far behind one keeps segments until
        the hard bounds. `retention` per fanout destination overrides the settings.

        Raises:
            DiskFull: no room; nothing has changed, and it can be tried again.
            LogBroken: a store failed; like CorruptLog, the process must stop and recover.
            CorruptLog: the journal was damaged since it was written.
        """
        return self._checkpointer.run(end, now_us, members, retention)

    def give_back(self) -> bool:
        """Let the file system have some of what settled queue messages have left; whether there is more.

        One short step, but it waits for a checkpoint under way. Raises DiskFull and LogBroken.
        """
        return self._checkpointer.give_back()

    def retention_due_us(self, retention: Mapping[str, Retention]) -> int:
        """When a checkpoint may find something in a fanout log too old, at the earliest (µs); 0: they are empty."""
        return self._checkpointer.retention_due_us(retention)

    @property
    def shift(self) -> Shift:
        """How times from before the start count where age decides; what is set counts from the next checkpoint on."""
        return self._checkpointer.shift

    @shift.setter
    def shift(self, shift: Shift) -> None:
        self._checkpointer.shift = shift

    @property
    def disk(self) -> Disk:
        """Where it lies."""
        return self._disk

    @property
    def tombstones(self) -> set[Dot]:
        """Settles in the stores whose message has not come."""
        return self._checkpointer.tombstones

    @property
    def checkpoint_position(self) -> int:
        """Everything in the journal before this has reached the stores."""
        return self._checkpointer.state.position

    @property
    def stored_vector(self) -> Vector:
        """What the queue store has: every queue message up to this that was not settled when it came there."""
        return self._checkpointer.stored.vector

    def fanout_start(self, destination: str) -> FanoutPosition:
        """Before the first record of `destination` that is kept."""
        return self._reader.start()

    def fanout_after(self, destination: str, vector: Vector) -> FanoutPosition:
        """Before the first record of `destination` that `vector` does not cover."""
        with self._lock:
            return self._reader.after(destination, vector)

    def fanout_at(self, destination: str, mark: Mark) -> FanoutPosition:
        """Before everything of `destination` whose batch begins at `mark` or later. Waits for no lock.

        The journal may have dropped that position meanwhile: the vector of the mark tells what came before it.
        """
        return self._reader.at(destination, mark)

    def fanout_begin(self, destination: str, word: str, number: int) -> FanoutBegin:
        """Where a reader begins who asks for the `last` record, an `offset`, or a `timestamp` (µs)."""
        with self._lock:
            if word == "timestamp":
                return self._reader.since(destination, number)
            return self._reader.at_offset(destination, -1 if word == "last" else number)

    def fanout_page(self, destination: str, position: FanoutPosition, bytes_max: int) -> FanoutPage:
        """As `read_fanout`; it says when records that retention dropped are left out, and up to which.

        Raises CorruptLog where the log is damaged: what stood there is unknown, and nothing behind it is returned.
        """
        with self._lock:
            return self._reader.page(destination, position, bytes_max)

    def read_fanout(
        self, destination: str, position: FanoutPosition, bytes_max: int
    ) -> tuple[list[tuple[Origin, Record]], FanoutPosition, bool]:
        """Records from `position` on, the position after them, and whether that is the end.

        At the end, everything up to the `journal.end` of the time of the call was returned; the new position's
        `journal_position` says which. Records that retention dropped before they were read are left out.
        """
        with self._lock:
            return self._reader.read(destination, position, bytes_max)

    def fanout_info(self, destination: str) -> FanoutInfo:
        """What `destination` holds now."""
        with self._lock:
            return self._reader.info(destination)

    def damage(self) -> list[str]:
        """What reads found damaged since the start, in words; grows only. Waits for no lock."""
        rows = list(self.queues.damage.told)
        if not self.journal.damage and not self._logs.damaged:
            return rows
        journal = [f"the journal is damaged from {start} to {end}" for start, end in list(self.journal.damage)]
        return journal + [f"{name}: {what}" for name, what in list(self._logs.damaged.items())] + rows

    def missing_ranges(self) -> list[MissingRange]:
        """What the queue store should have and has not, because it was damaged."""
        return self._row_repairer.missing_ranges()

    def repair_from_journal(self, missing: MissingRange) -> MissingRange | None:
        """Put back what the own journal knows of `missing`; returns what only others may know. See `row_mending`."""
        return self._row_repairer.search_journal(missing)

    def repair_from_snapshot(self, missing: MissingRange, after: int, rest: RangeSnapshot) -> MissingRange | None:
        """Put back what a peer has left of what `repair_from_journal` returned; returns what is still lacking."""
        return self._row_repairer.take(missing, after, rest)

    def give_up_rows(self, missing: MissingRange, through: int) -> bool:
        """Nobody has what is lacking there up to `through`. False: nothing was lacking any more."""
        return self._row_repairer.give_up(missing, through)

    def read_snapshot(
        self,
        origin: Origin,
        after: int,
        through: int,
        given_up: int,
        fanout: str = "",
        gone: Sequence[int] = (),
        searched_for: Collection[MissingRange] | None = None,
    ) -> RangeSnapshot:
        """What the stores still hold of a stretch, for a peer that lacks it. See `SnapshotReader.read`.

        A part ends where the queue store lacks something; CorruptLog when that is at once. For a peer that looks for
        damaged rows, `searched_for` says what this node itself has looked for in its journal, in vain: there, and where
        it gave up, it knows nothing but the records that are returned (`rest.lost`). A part ends where such a stretch
        begins or ends; no fanout log is read for it. What may still be in the journal says nothing new.
        """
        return self._repair_source.read(origin, after, through, given_up, fanout, gone, searched_for)

    def read_quarantined(self, dot: Dot) -> bytes | None:
        """The record of this message, packed, if it was put aside with damage in a journal. Reads all of that."""
        return record_quarantined(self._disk, dot)

    def damaged_fanouts(self) -> list[str]:
        """Fanouts whose log was found damaged and is not mended. Waits for no lock."""
        return list(self._logs.damaged)

    def begin_repair(self, destination: str, given_up: Vector) -> FoundRange | None:
        """What the damaged log of `destination` lacks that the journal has not; to be closed. Reads all of the log.

        None: the fanout was deleted.
        """
        known = dict(given_up)
        merge(known, self._deletions.before(destination))
        return self._repairer.begin(destination, known)

    def finish_repair(self, destination: str, found: FoundRange) -> bool:
        """Write the log anew with what was found. False: it must be begun again, or there is no room."""
        if not self._repairer.finish(destination, found, self._settings.reserve_bytes):
            return False
        self._repair_source.forget_index()
        self._logs.damaged.pop(destination, None)
        return True

    def known_of(self, dots: list[Dot], given_up: Vector, forgotten: Collection[Origin] = ()) -> Known:
        """Which of these messages are known here to be done, or to fail; of what this node gave up it knows nothing."""
        return self._repair_source.known_of(dots, given_up, forgotten)

    def standing(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """Up to `limit` messages in the queue store, by dot, each with its queue and how often it has failed; only what
        comes after `after`."""
        return self._repair_source.standing(after, limit)

    def in_doubt(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """As `standing`, with the messages of damaged rows: they may come back from peers that know no better."""
        return self._repair_source.in_doubt(after, limit)

    def fanouts(self) -> list[str]:
        """Destinations that have a fanout log, sorted."""
        with self._lock:
            return sorted(self._logs.extents)

    def statistics(self) -> StorageStatistics:
        """A frozen snapshot."""
        journal = self.journal
        with self._lock:
            return StorageStatistics(
                journal_start=journal.start,
                journal_end=journal.end,
                journal_synced_end=journal.synced_end,
                journal_segments=journal.segments(),
                checkpoint_position=self._checkpointer.state.position,
                fanouts=len(self._logs.extents),
                fanout_bytes=sum(extent.end - extent.start for extent in self._logs.extents.values()),
                tombstones=len(self._checkpointer.tombstones),
                damaged_ranges=len(journal.damage) + len(self._logs.damaged),
                quarantined_ranges=len(self.recovered.quarantined) + len(self.recovered.quarantined_before),
                free_bytes=self._disk.free_bytes(),
            )

    def close(self) -> None:
        """Final sync, then everything is closed and the directory free. Raises LogBroken when the sync fails."""
        try:
            self.journal.close()
        finally:
            self._logs.close()
            self.queues.close()
            self.catalog.close()
            self._disk.unlock()


def open_memory_store(disk: MemoryDisk, *, node: str, settings: StoreSettings | None = None) -> Store:
    """The store of a simulated or memory-only node. All that is durable lives on `disk`, whatever it goes through."""
    disk.lock()
    try:
        return Store.open(
            disk,
            MemoryCatalog(disk),
            MemoryQueueStore(disk),
            node=node,
            settings=settings or StoreSettings(),
            uuid=f"{node}-{disk.wipes}",
        )
    except BaseException:
        disk.unlock()
        raise


def open_store(
    path: Path,
    *,
    node: str,
    settings: StoreSettings | None = None,
    queue_store: str = "sqlite",
    queue_store_seconds_max: float = 30.0,
) -> Store:
    """The store of a real node in the directory `path`, made when it is missing.

    `queue_store`: `sqlite` for a file in the same directory, or the URL of a PostgreSQL database (`postgresql://…`),
    which may hang or be away for `queue_store_seconds_max`.

    Raises DirectoryInUse, and what `Store.open` raises; StorageError also when PostgreSQL cannot be used.
    """
    disk = RealDisk(path)
    disk.lock()
    if disk.free_bytes() < _START_BYTES:
        disk.give_up_reserve(_START_BYTES)
    opened: list[Catalog | QueueStore] = []
    try:
        catalog = SqliteCatalog(path / CATALOG_FILE)
        opened.append(catalog)
        last = catalog.facts().get(QUEUES_IN, SQLITE)
        queues = open_queue_store(path, queue_store, node, last=last, seconds_max=queue_store_seconds_max)
        opened.append(queues)
        # SQLite syncs its files; that their names survive is this directory's matter.
        disk.sync_directory(".")
        return Store.open(disk, catalog, queues, node=node, settings=settings or StoreSettings())
    except BaseException:
        for part in opened:
            part.close()
        disk.unlock()
        raise
