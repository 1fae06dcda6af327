"""The checkpoint: carries the journal into the stores, then drops what no member needs any more.

It reads the journal from the last checkpoint to a given end and compacts it; a message that was settled in between
never reaches a store. Each step is durable before the next one begins:

1. queue store (one transaction), 2. fanout logs, 3. catalog: position, vector, extents. **3 is the commit point.**

After a crash before 3, the whole range is repeated: fanout logs are cut to their committed extents, and the queue store
knows its own position, so it skips what it already has. Sealing and dropping come after 3; a crash may leave them
undone. The queue store comes first, because only its commit can find half-way that the disk is full. Then nothing has
changed yet.

A checkpoint runs in its own thread while another thread appends and others read. `retention` drops old segments,
`cleanup` removes what the catalog no longer needs. Surprising: a long range is carried over in slices with a commit
each, so memory stays bounded.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from qmq.errors import CorruptLog, DiskFull, LogBroken
from qmq.model.dots import Dot, Vector
from qmq.storage.catalog.facts import clock_of
from qmq.storage.checkpoints.cleanup import Cleanup
from qmq.storage.checkpoints.compaction import NEVER, Compaction
from qmq.storage.checkpoints.facts import CheckpointFacts
from qmq.storage.checkpoints.report import CheckpointReport
from qmq.storage.checkpoints.retention import LogRetention
from qmq.storage.fanouts.log import FanoutLog, RangeArrival, sync_all
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.delete_record import deletion_facts
from qmq.storage.format.interfaces import Catalog, CheckpointState, Disk, FanoutExtent
from qmq.storage.format.lost_record import lost_facts
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.log.journal import Journal
from qmq.storage.queues.plan import missing_among

SLICE_BYTES: Final = 4 * 1024 * 1024
"""What a slice reads, and again as much while the stores need less than three quarters of it: what is settled within a
slice never reaches them."""
SLICE_BYTES_MIN: Final = 1024 * 1024
"""Twice the largest batch: what a checkpoint on an almost full disk can still carry over safely."""
SHORT_SLICE_BYTES: Final = 32 * 1024 * 1024
"""The slice when there is no room for another: what is settled within it needs none, and frees its rows."""
SLICE_CHANGES: Final = 50_000
"""About how many rows a slice adds or deletes. A settle takes few bytes in the journal, but a page in a database."""
SLICE_CHANGES_MIN: Final = 500
"""The smallest slice that is tried when the queue store has no room for a larger one."""
COMMIT_BYTES: Final = 256 * 1024
"""What the databases' own logs may take for the smallest slice. The catalog's commit comes last and, unlike that of the
queue store, cannot be undone half-way. So a slice does not begin where that commit might have no room."""
_READ_BYTES: Final = 1024 * 1024


class Stored(NamedTuple):
    """The state of the queue store, read in one step. During a checkpoint it is ahead of the last committed one."""

    vector: Vector
    tombstones: set[Dot]


class Checkpointer:
    """Runs one checkpoint at a time. `lock` is held while a fanout log is opened or closed, also by readers."""

    def __init__(
        self,
        *,
        disk: Disk,
        catalog: Catalog,
        queues: QueueStore,
        journal: Journal,
        logs: FanoutLogs,
        settings: StoreSettings,
        node: str,
        tombstones: set[Dot],
        lock: threading.RLock,
        has_lost: bool = False,
    ) -> None:
        """`has_lost`: the queue store has taken journal that is lost, and that peers will send again."""
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
        self._facts = CheckpointFacts(catalog, logs)
        self.retention = LogRetention(disk, catalog, journal, logs, settings, lock)
        self._cleanup = Cleanup(catalog, queues, journal, logs, self._facts, self.retention, settings, lock)
        # Until the first checkpoint of this run: the time that the previous run noted last, or its last checkpoints.
        noted_us, _ = clock_of(catalog.facts())
        self._arrival = RangeArrival(max([noted_us, *(one.last_us for one in logs.extents.values())]), NEVER - 1)
        self.stored = Stored(self._vector_of_queues(), tombstones)
        # Journal of earlier runs may be carried over again, into a queue store with the intact rows of a damaged one.
        self._again_before = 0 if self.stored.vector == journal.vector() else journal.end
        self._has_lost = has_lost

    @property
    def state(self) -> CheckpointState:
        """The last committed checkpoint."""
        return self._logs.state

    def run(
        self, end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
    ) -> CheckpointReport:
        """Carry everything before journal position `end` into the stores, then drop. See `Store.checkpoint`."""
        with self.working():
            self.retention.retention = retention
            dropped = self.retention.drop_journal(now_us, members)
            self._arrival = RangeArrival(min(self._arrival.earliest_us, now_us), now_us)
            try:
                carried = self._carry(end)
            except DiskFull:
                # Retention needs little room, and may free what the next attempt needs.
                self.retention.drop_fanouts(now_us)
                raise
            self._arrival = RangeArrival(now_us, now_us)
            # A segment that was begun meanwhile gets its index when the next checkpoint has read it.
            sealed = self._journal.seal_full(self.state.position)
            dropped += self.retention.drop_journal(now_us, members)
            due_us = self.retention.drop_fanouts(now_us)
            self._cleanup.forget_subscriptions(now_us)
            obsolete = self._cleanup.forget_fanouts(now_us, members)
            tombstones = self._cleanup.forget_definitions(now_us, members)
            forgotten = self._cleanup.forget_dead({self._node, *members})
            released = self._cleanup.collectable(self._facts.seals.unreleased(self._node), now_us)
            vector = dict(self.state.vector)
            return CheckpointReport(
                end, *carried, dropped, sealed, vector, due_us, forgotten, released, obsolete, tombstones
            )

    def carry(self) -> None:
        """Carry the whole journal into the stores when a node opens; drop nothing, because peers' vectors are unknown.

        Raises DiskFull: what was carried so far is safe and the journal holds the remainder. Raises what `run` raises.
        """
        with self.working():
            self._carry(self._journal.end)

    def give_back(self) -> bool:
        """See `Store.give_back`."""
        with self.working():
            return self._queues.give_back()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold the checkpointer: one caller at a time, and none after a failure. Raises LogBroken then."""
        with self._one_at_a_time:
            if self._broken:
                raise LogBroken("a checkpoint failed before; restart to recover")
            try:
                yield
            except DiskFull:
                # Facts that were changed in memory and not committed are read again.
                self._facts.reload()
                raise
            except OSError as error:
                self._broken = True
                raise LogBroken(f"checkpoint failed: {error}") from error
            except BaseException:
                # Only recovery can find out how far the stores got.
                self._broken = True
                raise

    def _carry(self, end: int) -> tuple[int, int, int, int]:
        """Return journal bytes read, queue rows added and deleted, fanout records copied."""
        journal = self._journal
        if journal.synced_end < end:
            journal.sync()
        end = min(end, journal.synced_end)
        begin = place = self.state.position
        vector = self.state.vector
        if self._queues.position() < place and journal.start < place:
            # An older copy of the queue store, or a new one: it takes again what the other stores already have.
            place = max(self._queues.position(), journal.start)
            vector = journal.vector_at(place)
        added = deleted = copied = 0
        changes_max = SLICE_CHANGES
        while place < end:
            # A slice writes about as much as it reads; half of the free space is left for the stores' own needs.
            room = self._disk.free_bytes() // 2
            if room < SLICE_BYTES_MIN and room < end - place + COMMIT_BYTES:
                reduction, after = self._reduce(place, end, vector, SHORT_SLICE_BYTES, SHORT_SLICE_BYTES, NEVER)
                if reduction.live_bytes() + COMMIT_BYTES > room:
                    raise DiskFull("no room for a checkpoint")
            else:
                reduction, after = self._reduce(place, end, vector, SLICE_BYTES, room, changes_max)
            if reduction.vector == vector:
                break  # There was no batch left.
            try:
                self._apply(reduction, after)
            except DiskFull:
                # A transaction needs more room than its result; a smaller one needs less.
                changes_max //= 10
                if changes_max < SLICE_CHANGES_MIN:
                    raise
                continue
            copied += self._commit(reduction, after)
            place, vector = after, reduction.vector
            added += reduction.live_count()
            deleted += sum(map(len, reduction.deletes.values()))
        return max(end - begin, 0), added, deleted, copied

    def what_is_left(self) -> Compaction:
        """Compact what the journal holds beyond the stores, when there is no room to carry it; all in memory."""
        place = self._queues.position()
        reduction = Compaction(
            self._settings,
            self._node,
            self._vector_of_queues(),
            self.stored.tombstones,
            queue_position=place,
            fanout_position=NEVER,
            forgotten=self._facts.seals.forgotten,
            is_again=True,
        )
        while batches := self._journal.read(place, _READ_BYTES):
            for start, head, data in batches:
                reduction.take(start, head, data)
                place = start + head.size
        return reduction

    def _vector_of_queues(self) -> Vector:
        """The vector of the queue store; an old copy, a new one or a crash makes it differ from the checkpoint's."""
        place = self._queues.position()
        return dict(self.state.vector) if place == self.state.position else self._journal.vector_at(place)

    def _reduce(
        self, begin: int, end: int, vector: Vector, slice_bytes: int, room: int, changes_max: int
    ) -> tuple[Compaction, int]:
        """Compact one slice of the journal: at least one batch, and about `slice_bytes` or what adds as much to the
        stores. Also return the position after it.

        `vector` is the vector at `begin`. Raises DiskFull when the first batch takes more than `room`.
        """
        reduction = Compaction(
            self._settings,
            self._node,
            dict(vector),
            self.stored.tombstones,
            queue_position=self._queues.position(),
            fanout_position=self.state.position,
            forgotten=self._facts.seals.forgotten,
            is_again=self._has_lost or begin < self._again_before,
            has_lost=self._has_lost,
            deleted=self._facts.deletions,
        )
        journal = self._journal
        position = begin
        limit = min(end, begin + min(slice_bytes, room))
        while position < limit:
            batches = journal.read(position, min(_READ_BYTES, limit - position))
            if not batches or batches[0][0] >= end:
                position = end
            for start, head, data in batches:
                if start >= end:
                    break
                if head.size > room - (position - begin):
                    if position == begin:
                        raise DiskFull(f"no room to carry a batch of {head.size} bytes into the stores")
                    end = limit = position
                    break
                if records := reduction.take(start, head, data):
                    journal.note(start, head, records)
                position = start + head.size
                if reduction.changes >= changes_max:
                    end = limit = position
                    break
            if position >= limit and reduction.live_bytes() <= 3 * slice_bytes // 4:
                limit = min(end, begin + room, position + slice_bytes)
        if any(begin <= start < position for start, _ in journal.damage):
            raise CorruptLog("the journal was damaged since it was written; restart to recover")
        return reduction, position

    def _apply(self, reduction: Compaction, position: int) -> None:
        """Write the slice to the queue store. Raises DiskFull; nothing has changed then."""
        tombstones = self.stored.tombstones
        if position > self._queues.position():
            self._note_settled(reduction)
            self._queues.apply(
                reduction.runs(),
                reduction.deletes,
                reduction.tombstones_add,
                reduction.tombstones_del,
                position,
                reduction.attempts,
            )
            tombstones = reduction.tombstones()
        self.stored = Stored(reduction.vector, tombstones)

    def _note_settled(self, reduction: Compaction) -> None:
        """Add a tombstone for each message that is settled while its row may be missing.

        Otherwise a peer that does not know of the settle could restore it. `RowRepairer` removes the tombstone when the
        message is no longer missing. A missing range of one row needs none: its settle ends that range.
        """
        missing_ranges = [missing for missing in self._queues.missing_ranges() if not missing.is_of_one]
        if missing_ranges:
            reduction.tombstones_add |= missing_among(
                (d for dots in reduction.deletes.values() for d in dots), missing_ranges
            )

    def _commit(self, reduction: Compaction, position: int) -> int:
        """Commit the slice. Raises DiskFull; then only the queue store has taken the slice."""
        try:
            return self._commit_logs(reduction, position)
        except DiskFull:
            with self._lock:
                self._logs.release()
                for destination in [*reduction.fanouts, *reduction.deleted.by_name]:
                    self._logs.reopen(destination)
            raise

    def _delete(self, reduction: Compaction) -> None:
        """Delete from fanout logs what the slice deletes, with one commit for each log.

        The deletions are stored first. After a crash the slice is repeated, so nothing stays that should be deleted.
        """
        if not reduction.deletions:
            return
        names = reduction.deleted.by_name
        news = {one.destination for one in reduction.deletions if self._facts.deletions.add(one)}
        if news:
            self._catalog.set_facts(deletion_facts(self._facts.deletions, news))
        for destination in names:
            extent = self._logs.extents.get(destination)
            if extent is None:
                continue
            before = reduction.deleted.before(destination)
            with self._lock:
                log = self._logs.hold(destination)
            if log.is_covered(before):
                self._catalog.commit_checkpoint(self.state, {}, deleted=[destination])
                with self._lock:
                    self._logs.commit(self.state, {}, [destination])
                    self._logs.remove(destination)
                    self._logs.release()
                continue
            self.retention.commit_extent(
                destination, log.without_deleted(before, reduction.vector, self.retention.bounds(destination))
            )
            self._logs.replaced(destination)
            self._logs.damaged.pop(destination, None)
            log.drop()
            with self._lock:
                self._logs.release()

    def _commit_logs(self, reduction: Compaction, position: int) -> int:
        self._delete(reduction)
        extents: dict[str, FanoutExtent] = {}
        # A log of one segment has no full segment, so it need not be opened again; that matters with 100,000 logs.
        of_several: list[str] = []
        copied = 0
        held: dict[str, FanoutLog] = {}
        for destination, entries in reduction.fanouts.items():
            with self._lock:
                log = held[destination] = self._logs.hold(destination)
            extents[destination] = log.append(entries, self.retention.bounds(destination), self._arrival)
            if len(log.chain.segments) > 1:
                of_several.append(destination)
            copied += len(entries)
            if self._logs.holds_many:
                self._sync_logs(held, extents)
        self._sync_logs(held, extents)
        if position <= self.state.position:
            return copied  # Only the queue store was missing this.
        state = CheckpointState(position, reduction.vector)
        # Facts may be stored before the commit point, because they only grow.
        news = [origin for writer, seals in reduction.seals for origin in self._facts.seals.take(writer, seals)]
        if news:
            self._catalog.set_facts(self._facts.seals.facts(news))
        lost = {span.origin for span in reduction.lost if self._facts.lost.add(span.origin, span.last)}
        if lost:
            self._catalog.set_facts(lost_facts(self._facts.lost, lost))
        cursors = self._facts.move_cursors(reduction.moves)
        terms = [note for note in reduction.terms.values() if self._facts.terms.take(note)]
        changed = {one.key: one for one in reduction.definitions if self._facts.definitions.merge(one).is_news}
        self._catalog.commit_checkpoint(
            state, extents, cursors, reduction.given_up, terms, definitions=list(changed.values())
        )
        self._logs.commit(state, extents)
        for destination in of_several:
            with self._lock:
                log = self._logs.hold(destination)
            for start, after in log.seal_full():
                self._logs.damaged[destination] = f"its log is damaged from {start} to {after}"
            with self._lock:
                self._logs.release()
        return copied

    def _sync_logs(self, held: dict[str, FanoutLog], extents: Mapping[str, FanoutExtent]) -> None:
        """Make what was appended to the held logs durable, and release them."""
        if held:
            sync_all(self._disk, list(held.values()))
            with self._lock:
                self._logs.release({destination: extents[destination] for destination in held})
            held.clear()
