"""The storage of one node behind one class: open and recover, append through `journal`, checkpoint, read fanouts.

Synchronous. One worker thread appends, another may run `checkpoint`, and reads may come from any thread; each method
says so where it matters. Knows nothing of brokers or STOMP: destinations are told apart by the two prefixes in the
settings, and everything else about a message is opaque.

Surprising: the own incarnation begins with `begin_incarnation`, not with opening. A node can thus recover, read and
serve its log before it writes a record of its own.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qmq.cursors import Cursor, Name
from qmq.deletions import Deletions
from qmq.dots import Dot, Origin, Vector, merge
from qmq.errors import CorruptLog, DiskFull, StorageError
from qmq.lost_ranges import LostRanges
from qmq.storage.catalog.catalog import CATALOG_FILE, SqliteCatalog
from qmq.storage.catalog.facts import LEARNER, QUEUES_IN, UNCHECKED
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.catalog.replay import replay_cursors
from qmq.storage.checkpoints.checkpoint import Checkpointer, CheckpointReport
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.disk.disk import RealDisk, new_uuid
from qmq.storage.disk.memory import MemoryDisk
from qmq.storage.fanouts.log import FanoutLogs
from qmq.storage.fanouts.reader import FanoutBegin, FanoutInfo, FanoutPage, FanoutPosition, FanoutReader
from qmq.storage.format.batch import BATCH_VERSION, encode_batch
from qmq.storage.format.delete_record import deletions_of
from qmq.storage.format.interfaces import (
    SEQUENCE_MAX,
    Catalog,
    CheckpointState,
    DirectoryIdentity,
    Disk,
    MissingRange,
    QueueStore,
    Retention,
    Shift,
    StoreSettings,
)
from qmq.storage.format.record import Record, RecordKind, pack_envelope, pack_record, pack_start
from qmq.storage.format.term_record import TermNote
from qmq.storage.log.journal import Journal, Mark
from qmq.storage.log.recovery import JournalRecovery, Quarantined, load_quarantined, recover_journal
from qmq.storage.queues.choice import SQLITE, open_queue_store
from qmq.storage.queues.memory_stores import MemoryCatalog, MemoryQueueStore
from qmq.storage.repair.fanout_logs import SPOOL, FanoutRepairer, FoundRange
from qmq.storage.repair.queue_rows import RowRepairer, record_quarantined
from qmq.storage.repair.range_snapshot import Known, RangeSnapshot, SnapshotReader, known_of

FORMAT_VERSION: Final = BATCH_VERSION
_READ_BYTES: Final = 1024 * 1024
_START_BYTES: Final = 4 * 1024 * 1024
"""What the databases' own logs and the mark of a new life need, about; a start takes it of the reserve."""
NO_RETENTION: Final[Mapping[str, Retention]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What opening found. All of it is durable."""

    identity: DirectoryIdentity
    fresh: bool
    """The directory was empty: this node remembers nothing it may have promised."""
    vector: Vector
    messages: list[tuple[Dot, Record]]
    """Live queue messages that this node accepted and that are not in the queue store, in order of acceptance.

    Empty, unless the disk had no room to carry the journal into the stores. Then `settled` may say something too.
    """
    settled: Mapping[str, Sequence[Dot]]
    """Queue → messages that are in the queue store although they are settled; the next checkpoint deletes them."""
    attempts: Mapping[Dot, int]
    """How often messages of these have failed, where the queue store does not say so yet."""
    tombstones: set[Dot]
    """Settled messages that have not come yet."""
    torn_bytes: int
    """Cut from the tail: bytes of appends that never returned."""
    quarantined: list[Quarantined]
    """Found by this opening: damage, and what of the same origins came after it."""
    quarantined_before: list[Quarantined]
    lost_positions: int
    """More than 0: the log ended before the checkpoint, so the disk lost what it had synced."""
    cursors: dict[Name, Cursor]
    """Durable subscriptions of fanouts, and deletions of them that are still remembered."""
    terms: list[TermNote]
    """Who serves whose queue messages, and this node's votes, as far as they were written down."""
    given_up: Vector
    """Per origin, up to where this node gave up on records that no peer kept."""
    gone: LostRanges
    """What is nowhere any more, besides."""
    deletions: Deletions
    """Of fanouts. The owner adds to it what is decided from now on, and readers of fanouts go by it."""


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
        self._deletions = recovered.deletions
        self._reader = FanoutReader(journal, logs, settings.fanout_prefix, recovered.deletions)
        self._rest = SnapshotReader(queues, logs, lock, recovered.deletions)
        self._repairer = FanoutRepairer(disk, journal, logs, lock, checkpointer)
        self._resting = threading.Lock()
        self._row_repairer = RowRepairer(queues, journal, checkpointer, settings)

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
        identity = catalog.identity()
        fresh = identity is None
        if identity is None:
            identity = DirectoryIdentity(node, uuid or new_uuid(), FORMAT_VERSION)
            # First: a directory that has an identity and lacks this is one that forgot nothing.
            catalog.set_facts({LEARNER: "began empty"})
            catalog.set_identity(identity)
        elif identity.node != node:
            raise StorageError(f"this data directory belongs to node {identity.node}, not to {node}")
        with suppress(FileNotFoundError):
            disk.remove(SPOOL)
        quarantined_before = load_quarantined(disk)
        # What was forgotten stays so, whatever a crash left undone of it.
        without = Seals.of(catalog.facts()).without
        state = _stripped(catalog.checkpoint(), without)
        base = _stripped(catalog.base(), without)
        journal, found = recover_journal(disk, node, settings, state, base, queues.position(), without)
        if queues.position() < journal.start or _is_damaged(journal, queues.position(), state.position):
            _begin_anew(catalog, queues, journal, state)
        if catalog.facts().get(QUEUES_IN) != queues.kind:
            catalog.set_facts({QUEUES_IN: queues.kind})
        if journal.start > state.position:
            # The catalog is older than the log, or new: the stores take what is still there.
            state = CheckpointState(journal.start, journal.base())
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
        left = None
        try:
            checkpointer.carry()
        except DiskFull:
            left = checkpointer.what_is_left()
        logs.remove_left_over(deletions_of(catalog.facts()).by_name)
        cursors, given_up, gone, terms, deletions = replay_cursors(journal, catalog, logs.state.position)
        recovered = _recovered(
            identity,
            fresh,
            journal,
            found,
            quarantined_before,
            left,
            checkpointer.tombstones,
            cursors,
            terms,
            given_up,
            gone,
            deletions,
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
        with self._resting, self._row_repairer.still:
            known = given_up if searched_for is None else 0
            if not fanout and known <= after:
                # A queue store that began anew may be behind the logs.
                through = max(after, min(through, self._checkpointer.stored.vector.get(origin, 0)))
            rows_only = searched_for is not None
            rest = self._rest.read(origin, after, through, known, fanout, gone, rows_only)
            if fanout or rest.lost:
                return rest
            # Only now: reading may have met damage.
            missing_ranges = [
                missing for missing in self.missing_ranges() if missing.origin == origin and missing.through > after
            ]
            missing_ranges = [missing for missing in missing_ranges if missing.after < rest.through]
            if searched_for is not None:
                if not all(missing in searched_for for missing in missing_ranges):
                    return RangeSnapshot(after, 0, 0, [])
                if missing_ranges:
                    first = min(missing_ranges, key=lambda missing: missing.after)
                    is_lost = first.after <= after
                    end = min(first.through if is_lost else first.after, rest.through)
                    rest = self._rest.read(origin, after, end, known, fanout, gone, rows_only)
                    if is_lost:
                        return rest._replace(lost=rest.through)
                reached = rest.through if rest.through > after else through
                lost = min(given_up, reached)
                return rest._replace(lost=lost) if lost > after else rest
            if not missing_ranges:
                return rest
            end = min(missing.after for missing in missing_ranges)
            if end > after:
                return self._rest.read(origin, after, end, given_up, fanout, gone)
        raise CorruptLog(f"the queue store is damaged behind {end} of {origin}")

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
        with self._resting:
            self._rest.forget()
        self._logs.damaged.pop(destination, None)
        return True

    def known_of(self, dots: list[Dot], given_up: Vector, forgotten: Collection[Origin] = ()) -> Known:
        """Which of these messages are known here to be done, or to fail; of what this node gave up it knows nothing."""
        vector, tombstones = self._checkpointer.stored
        with self._row_repairer.still:
            known = known_of(self.queues, vector, tombstones, given_up, forgotten, dots)
            missing_ranges = self.missing_ranges()
        for missing in missing_ranges:
            known = known._replace(done=[dot for dot in known.done if not _is_in(dot, missing) or dot in tombstones])
        return known

    def standing(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """Up to `limit` messages in the queue store, by dot, each with its queue and how often it has failed; only what
        comes after `after`."""
        found: list[tuple[str, Dot, int]] = []
        for origin in self.queues.origins():
            if len(found) < limit and (after is None or origin >= after.origin):
                beyond = after.sequence if after is not None and origin == after.origin else 0
                rows = self.queues.standing(origin, beyond, SEQUENCE_MAX, limit - len(found))
                found += [(queue, Dot(origin, sequence), attempts) for sequence, queue, attempts in rows]
        return found

    def in_doubt(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """As `standing`, with the messages of damaged rows: they may come back from peers that know no better."""
        with self._row_repairer.still:
            found = self.standing(after, limit)
            missing_ranges = [missing for missing in self.missing_ranges() if missing.sequence]
        last = found[-1][1] if len(found) == limit else None
        for missing in missing_ranges:
            dot = Dot(missing.origin, missing.sequence)
            if (after is None or dot > after) and (last is None or dot < last):
                found.append((missing.queue, dot, 0))
        return sorted(found, key=lambda one: one[1])[:limit]

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


def _is_in(dot: Dot, missing: MissingRange) -> bool:
    return dot.origin == missing.origin and missing.after < dot.sequence <= missing.through


def _begin_anew(catalog: Catalog, queues: QueueStore, journal: Journal, state: CheckpointState) -> None:
    """The queue store was damaged and begins with what was sound of it, or has lost its last commits: the journal says
    the rest, as far as it goes back, and of what was before it everything may be lacking. What is there may be done,
    too.

    Raises StorageError where it has lost nothing: the node used another kind of store last.
    """
    ends = queues.position()
    last = catalog.facts().get(QUEUES_IN, queues.kind)
    if ends >= 0 and last != queues.kind:
        raise StorageError(
            f"the queues of this node were in {last} last, and {queues.kind} has nothing newer than position {ends},"
            f" while the journal begins at {journal.start}: set storage.queue_store to what it was"
        )
    catalog.set_facts({UNCHECKED: ""})
    if ends >= 0:
        why = f"begins at {journal.start}" if ends < journal.start else "is damaged behind that"
        queues.damage.told.append(
            f"the queue store is older than the journal: it ends at position {ends}, and the journal {why}"
        )
    begin, vector = journal.start, journal.base()
    if _is_damaged(journal, begin, state.position):
        # It cannot be carried over once more. What can be read of it is looked up instead.
        begin, vector = state.position, state.vector
    queues.missing([MissingRange(origin, 0, last) for origin, last in vector.items() if last], begin)


def _is_damaged(journal: Journal, place: int, end: int) -> bool:
    """Whether damage stands in the journal from `place` to `end`. A start scans only what is behind the checkpoint."""
    begin = place
    while place < end and (batches := journal.read(place, _READ_BYTES)):
        place = batches[-1][0] + batches[-1][1].size
    return any(begin <= start < end for start, _ in journal.damage)


def _stripped(state: CheckpointState, without: Callable[[Vector], Vector]) -> CheckpointState:
    return CheckpointState(state.position, without(state.vector))


def _recovered(
    identity: DirectoryIdentity,
    fresh: bool,
    journal: Journal,
    found: JournalRecovery,
    quarantined_before: list[Quarantined],
    left: Compaction | None,
    tombstones: set[Dot],
    cursors: dict[Name, Cursor],
    terms: list[TermNote],
    given_up: Vector,
    gone: LostRanges,
    deletions: Deletions,
) -> Recovered:
    """`left` is what could not be carried into the stores."""
    messages: list[tuple[Dot, Record]] = []
    attempts: dict[Dot, int] = {}
    for counts in left.attempts.values() if left is not None else ():
        attempts.update(counts)
    for row in left.rows() if left is not None else ():
        dot = row.dot
        if dot.origin.node == identity.node:
            record = Record(
                dot.sequence, row.timestamp_us, RecordKind.PUBLISH, row.flags, row.queue, row.headers, row.body
            )
            messages.append((dot, record))
            if row.attempts:
                attempts[dot] = row.attempts
    return Recovered(
        identity=identity,
        fresh=fresh,
        vector=journal.vector(),
        messages=messages,
        settled=left.deletes if left is not None else {},
        attempts=attempts,
        tombstones=left.tombstones() if left is not None else tombstones,
        torn_bytes=found.torn_bytes,
        quarantined=found.quarantined,
        quarantined_before=quarantined_before,
        lost_positions=found.lost_positions,
        cursors=cursors,
        terms=terms,
        given_up=given_up,
        gone=gone,
        deletions=deletions,
    )


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
