"""The storage of one node behind one class: open and recover, append through `journal`, checkpoint, read fanouts.

Synchronous. One worker thread appends, another may run `checkpoint`, and reads may come from any thread; each method
says so where it matters. Knows nothing of brokers or STOMP: destinations are told apart by the two prefixes in the
settings, and everything else about a message is opaque.

Surprising: the own incarnation begins with `begin_incarnation`, not with opening. A node can thus recover, read and
serve its log before it writes a record of its own.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qmq.dots import Dot, Origin, Vector
from qmq.errors import StorageError
from qmq.storage.batch import BATCH_VERSION, encode_batch
from qmq.storage.catalog import SqliteCatalog
from qmq.storage.checkpoint import Checkpointer, CheckpointReport
from qmq.storage.disk import RealDisk, new_uuid
from qmq.storage.fanout import FanoutLogs
from qmq.storage.fanout_reader import FanoutInfo, FanoutPosition, FanoutReader
from qmq.storage.journal import Journal
from qmq.storage.memory import MemoryDisk
from qmq.storage.memory_stores import MemoryCatalog, MemoryQueueStore
from qmq.storage.ports import Catalog, CheckpointState, Disk, Identity, QueueStore, Retention, StorageSettings
from qmq.storage.queue_store import SqliteQueueStore
from qmq.storage.record import Kind, Record, pack_envelope, pack_record, pack_start
from qmq.storage.recovery import JournalRecovery, Quarantined, load_quarantined, recover_journal
from qmq.storage.reduce import NEVER, Reduction

FORMAT_VERSION: Final = BATCH_VERSION
CATALOG_FILE: Final = "catalog.sqlite"
QUEUES_FILE: Final = "queues.sqlite"
_PAGE_ROWS: Final = 1000
_READ_BYTES: Final = 1024 * 1024
NO_RETENTION: Final[Mapping[str, Retention]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What opening found. All of it is durable."""

    identity: Identity
    fresh: bool
    """The directory was empty: this node remembers nothing it may have promised."""
    vector: Vector
    messages: list[tuple[Dot, Record]]
    """Live queue messages that this node accepted, oldest incarnation first, each in order of sequence."""
    tombstones: set[Dot]
    """Settled messages that have not come yet."""
    torn_bytes: int
    """Cut from the tail: bytes of appends that never returned."""
    quarantined: list[Quarantined]
    """Found by this opening: damage, and what of the same origins came after it."""
    quarantined_before: list[Quarantined]
    lost_positions: int
    """More than 0: the log ended before the checkpoint, so the disk lost what it had synced."""


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
        settings: StorageSettings,
        journal: Journal,
        recovered: Recovered,
        checkpointer: Checkpointer,
        logs: FanoutLogs,
        lock: threading.RLock,
    ) -> None:
        self.journal = journal
        self.recovered = recovered
        self.catalog = catalog
        self.queues = queues
        self._disk = disk
        self._node = node
        self._settings = settings
        self._checkpointer = checkpointer
        self._logs = logs
        self._lock = lock
        self._reader = FanoutReader(journal, logs, settings.fanout_prefix)

    @classmethod
    def open(
        cls,
        disk: Disk,
        catalog: Catalog,
        queues: QueueStore,
        *,
        node: str,
        settings: StorageSettings,
        uuid: str = "",
    ) -> "Store":
        """Recover everything on `disk` and return it ready for use. The caller has locked the disk.

        `uuid` names the directory when it is fresh. Damage is quarantined and reported, never a reason to fail.

        Raises:
            StorageError: the directory belongs to another node.
            FutureVersion: it was written by later software; nothing was changed.
            LogBroken: the disk refused.
        """
        identity = catalog.identity()
        fresh = identity is None
        if identity is None:
            identity = Identity(node, uuid or new_uuid(), FORMAT_VERSION)
            catalog.set_identity(identity)
        elif identity.node != node:
            raise StorageError(f"this data directory belongs to node {identity.node}, not to {node}")
        quarantined_before = load_quarantined(disk)
        state = catalog.checkpoint()
        journal, found = recover_journal(disk, node, settings, state, catalog.base())
        if journal.start > state.position:
            # The catalog is older than the log, or new: the stores take what is still there.
            state = CheckpointState(journal.start, journal.base())
        reduction = Reduction(
            settings,
            node,
            dict(state.vector),
            queues.tombstones(),
            queue_position=queues.position(),
            fanout_position=NEVER,
        )
        position = state.position
        while batches := journal.read(position, _READ_BYTES):
            for start, head, data in batches:
                reduction.take(start, head, data)
                position = start + head.size
        recovered = _recovered(identity, fresh, journal, found, quarantined_before, queues, reduction)
        lock = threading.RLock()
        logs = FanoutLogs(disk, node, settings, state, catalog.fanouts())
        checkpointer = Checkpointer(
            disk=disk,
            catalog=catalog,
            queues=queues,
            journal=journal,
            logs=logs,
            settings=settings,
            node=node,
            tombstones=queues.tombstones(),
            lock=lock,
        )
        return cls(
            disk=disk,
            catalog=catalog,
            queues=queues,
            node=node,
            settings=settings,
            journal=journal,
            recovered=recovered,
            checkpointer=checkpointer,
            logs=logs,
            lock=lock,
        )

    def begin_incarnation(self, incarnation: int, timestamp_us: int) -> Origin:
        """Write the START record of this run, durable on return; records of the returned origin go on at sequence 2.

        Raises LogBroken.
        """
        origin = Origin(self._node, incarnation)
        identity = self.recovered.identity
        self.catalog.add_incarnation(origin, timestamp_us)
        body = pack_start(format_version=FORMAT_VERSION, software=self._settings.software, uuid=identity.uuid)
        record = pack_record(1, timestamp_us, Kind.START, 0, pack_envelope("", b""), body)
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

    @property
    def checkpoint_position(self) -> int:
        """Everything in the journal before this has reached the stores."""
        return self._checkpointer.state.position

    def fanout_start(self, destination: str) -> FanoutPosition:
        """Before the first record of `destination` that is kept."""
        return self._reader.start()

    def fanout_after(self, destination: str, vector: Vector) -> FanoutPosition:
        """Before the first record of `destination` that `vector` does not cover."""
        return self._reader.after(vector)

    def fanout_at(self, destination: str, journal_position: int) -> FanoutPosition:
        """Before everything of `destination` whose batch begins at `journal_position` or later. Waits for no lock.

        For a journal position that was dropped meanwhile, records may come twice, but none is left out.
        """
        return self._reader.at(destination, journal_position)

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
                damaged_ranges=len(journal.damage),
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


def _recovered(
    identity: Identity,
    fresh: bool,
    journal: Journal,
    found: JournalRecovery,
    quarantined_before: list[Quarantined],
    queues: QueueStore,
    reduction: Reduction,
) -> Recovered:
    """Live messages of this node: rows that the journal has not settled since, then what it published since."""
    gone = set(reduction.deletes)
    messages: dict[Dot, Record] = {}
    after = None
    while True:
        rows, after = queues.load(identity.node, after, _PAGE_ROWS)
        for row in rows:
            if row.dot not in gone:
                messages[row.dot] = Record(
                    row.dot.sequence, row.timestamp_us, Kind.PUBLISH, row.flags, row.queue, row.headers, row.body
                )
        if after is None:
            break
    messages.update((dot, record) for dot, record in reduction.live.items() if dot.origin.node == identity.node)
    # Pages come by queue and priority; the broker wants the order of acceptance. An incarnation is as old as its
    # oldest message, for runs of one node never overlap.
    oldest: dict[Origin, int] = {}
    for dot, record in messages.items():
        oldest[dot.origin] = min(oldest.get(dot.origin, record.timestamp_us), record.timestamp_us)
    ordered = sorted(messages.items(), key=lambda item: (oldest[item[0].origin], item[0]))
    return Recovered(
        identity=identity,
        fresh=fresh,
        vector=journal.vector(),
        messages=ordered,
        tombstones=reduction.tombstones(),
        torn_bytes=found.torn_bytes,
        quarantined=found.quarantined,
        quarantined_before=quarantined_before,
        lost_positions=found.lost_positions,
    )


def open_memory_store(disk: MemoryDisk, *, node: str, settings: StorageSettings | None = None) -> Store:
    """The store of a simulated or memory-only node. All that is durable lives on `disk`, whatever it goes through."""
    disk.lock()
    try:
        return Store.open(
            disk,
            MemoryCatalog(disk),
            MemoryQueueStore(disk),
            node=node,
            settings=settings or StorageSettings(),
            uuid=f"{node}-{disk.wipes}",
        )
    except BaseException:
        disk.unlock()
        raise


def open_store(path: Path, *, node: str, settings: StorageSettings | None = None) -> Store:
    """The store of a real node in the directory `path`, made when it is missing.

    Raises DirectoryInUse, and what `Store.open` raises.
    """
    disk = RealDisk(path)
    disk.lock()
    opened: list[Catalog | QueueStore] = []
    try:
        catalog = SqliteCatalog(path / CATALOG_FILE)
        opened.append(catalog)
        queues = SqliteQueueStore(path / QUEUES_FILE)
        opened.append(queues)
        # SQLite syncs its files; that their names survive is this directory's matter.
        disk.sync_directory(".")
        return Store.open(disk, catalog, queues, node=node, settings=settings or StorageSettings())
    except BaseException:
        for part in opened:
            part.close()
        disk.unlock()
        raise
