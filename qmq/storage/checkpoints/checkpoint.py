"""The checkpoint: carries the journal into the stores, then drops what nobody needs any more.

It reads the journal itself, from the last checkpoint to a given end, and reduces it; a message that was settled in
between never touches a store. Order, each step durable before the next:

1. queue store (one transaction), 2. fanout logs, 3. catalog: position, vector, extents. **3 is the commit point.**

A crash before 3 repeats the whole stretch: fanout logs are cut to their committed extents, and the queue store knows
its own position, so it skips what it already took. After 3 come sealing and dropping, which may be left undone. The
queue store comes first because it alone can find out half-way that the disk is full: then nothing has changed yet.

Runs in a thread of its own while another appends and others read. Surprising: long stretches are carried over in
slices with a commit each, so memory stays bounded.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from qmq.cursors import Cursor, Move, Name, surplus_deletions
from qmq.deletions import Deletion
from qmq.dots import Dot, Origin, Vector, covers
from qmq.errors import CorruptLog, DiskFull, LogBroken
from qmq.storage.catalog.incarnations import Seal, Seals
from qmq.storage.checkpoints.compaction import NEVER, Compaction
from qmq.storage.fanouts.log import FanoutLog, FanoutLogs, RangeArrival, sync_all
from qmq.storage.format.delete_record import deletion_facts, deletions_of
from qmq.storage.format.interfaces import (
    SEQUENCE_MAX,
    Catalog,
    CheckpointState,
    Disk,
    FanoutExtent,
    QueueStore,
    Retention,
    Shift,
    StoreSettings,
)
from qmq.storage.format.lost_record import gone_of, lost_facts
from qmq.storage.format.term_record import StoredTerms
from qmq.storage.log.journal import Journal
from qmq.storage.queues.plan import missing_among

SLICE_BYTES: Final = 4 * 1024 * 1024
SLICE_BYTES_MIN: Final = 1024 * 1024
"""Twice the largest batch: what a checkpoint on an almost full disk can still carry over safely."""
SLICE_CHANGES: Final = 50_000
"""Rows that a slice puts or deletes, about; settles take few bytes in the journal, but a page each in a database."""
SLICE_CHANGES_MIN: Final = 500
"""How far the slices shrink when the queue store finds no room for them."""
COMMIT_BYTES: Final = 256 * 1024
"""What the databases' own logs may take for the smallest slice. The catalog's commit comes last, and cannot be undone
half-way like that of the queue store; so it is not begun where it might not find room."""
POLL_AGAIN_SECONDS: Final = 60
"""Between two looks at what is left of dead incarnations, when something was."""
_READ_BYTES: Final = 1024 * 1024
_SECOND_US: Final = 1_000_000


_UNTOLD: Final = frozenset({"vector", "position", "forgotten", "released", "obsolete"})


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
    vector: Vector
    """What is in the stores now: messages up to it that are not settled are in the queue store."""
    retention_due_us: int = 0
    """When the next of what fanout logs hold now is too old to be kept; 0: they are empty."""
    forgotten: tuple[Origin, ...] = ()
    """Dead incarnations that have left the vectors."""
    released: tuple[Seal, ...] = ()
    """Sealed incarnations of which nothing is left here, which the mesh does not know yet."""
    obsolete: Mapping[str, Collection[Deletion]] = {}
    """Deletions of fanouts that are remembered no more."""

    def __str__(self) -> str:
        """For the log: what was done, without the vector."""
        facts = {name: value for name, value in self._asdict().items() if value and name not in _UNTOLD}
        return ", ".join(f"{name} {value}" for name, value in facts.items()) or "nothing to do"


class Stored(NamedTuple):
    """What the queue store knows, in one step: it is ahead of the last committed checkpoint while one is under way."""

    vector: Vector
    tombstones: set[Dot]


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
        settings: StoreSettings,
        node: str,
        tombstones: set[Dot],
        lock: threading.RLock,
    ) -> None:
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
        self._remember()
        self._next_look_us = 0
        self.shift = Shift()
        self._retention: Mapping[str, Retention] = {}
        # Until the first checkpoint of this life: what the last ones of the life before noted.
        self._arrival = RangeArrival(max((extent.last_us for extent in logs.extents.values()), default=0), NEVER - 1)
        self.stored = Stored(self._vector_of_queues(), tombstones)
        # What is left of earlier lives may be carried anew, into a queue store that has sound rows of a damaged one.
        self._again_before = 0 if self.stored.vector == journal.vector() else journal.end

    def _remember(self) -> None:
        """Go by what the catalog holds."""
        self._cursors = self._catalog.cursors()
        self._terms = StoredTerms.of(self._catalog.terms())
        facts = self._catalog.facts()
        self._seals = Seals.of(facts)
        self._gone = gone_of(facts)
        self._deletions = self._logs.deletions = deletions_of(facts)

    @property
    def state(self) -> CheckpointState:
        """The last committed checkpoint."""
        return self._logs.state

    @property
    def tombstones(self) -> set[Dot]:
        """Of the queue store, at its position."""
        return self.stored.tombstones

    def run(
        self, end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
    ) -> CheckpointReport:
        """Carry everything before journal position `end` into the stores, then drop. See `Store.checkpoint`."""
        with self.working():
            self._retention = retention
            dropped = self._drop(now_us, members)
            self._arrival = RangeArrival(min(self._arrival.earliest_us, now_us), now_us)
            carried = self._carry(end)
            self._arrival = RangeArrival(now_us, now_us)
            # What was begun meanwhile is read by the next checkpoint, and its index is made then.
            sealed = self._journal.seal_full(self.state.position)
            dropped += self._drop(now_us, members)
            due_us = self._drop_fanouts(now_us)
            self._forget_deletions(now_us)
            obsolete = self._forget_deleted_fanouts(now_us, members)
            forgotten = self._forget_dead({self._node, *members})
            released = self._without_rest(self._seals.unreleased(self._node), now_us)
            vector = dict(self.state.vector)
            return CheckpointReport(end, *carried, dropped, sealed, vector, due_us, forgotten, released, obsolete)

    def carry(self) -> None:
        """Bring the stores up to the journal when a node opens; drops nothing, for what peers have is not known yet.

        Raises DiskFull: what was carried so far is safe, the journal holds the rest; and what `run` raises.
        """
        with self.working():
            self._carry(self._journal.end)

    def give_back(self) -> bool:
        """See `Store.give_back`."""
        with self.working():
            return self._queues.give_back()

    @contextmanager
    def working(self) -> Iterator[None]:
        """One at a time, and none after one that failed."""
        with self._one_at_a_time:
            if self._broken:
                raise LogBroken("a checkpoint failed before; restart to recover")
            try:
                yield
            except DiskFull:
                # What was taken into account and not committed is taken again.
                self._remember()
                raise
            except OSError as error:
                self._broken = True
                raise LogBroken(f"checkpoint failed: {error}") from error
            except BaseException:
                # How far the stores got is only known again after recovery.
                self._broken = True
                raise

    def _carry(self, end: int) -> tuple[int, int, int, int]:
        """Journal bytes read, queue rows added and deleted, fanout records."""
        journal = self._journal
        if journal.synced_end < end:
            journal.sync()
        end = min(end, journal.synced_end)
        begin = place = self.state.position
        vector = self.state.vector
        if self._queues.position() < place and journal.start < place:
            # An older copy of the queue store, or a new one: it takes what the others have already, and they do not.
            place = max(self._queues.position(), journal.start)
            vector = journal.vector_at(place)
        added = deleted = copied = 0
        changes_max = SLICE_CHANGES
        while place < end:
            # A slice writes at most about what it reads; half of what is free leaves room for the stores' own needs.
            room = self._disk.free_bytes() // 2
            if room < SLICE_BYTES_MIN and room < end - place + COMMIT_BYTES:
                raise DiskFull("no room for a checkpoint")
            reduction, after = self._reduce(place, end, vector, room, changes_max)
            if reduction.vector == vector:
                break  # No batch was left.
            try:
                self._apply(reduction, after)
            except DiskFull:
                # A change needs more than it leaves behind, and a smaller one less.
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
        """What the journal holds beyond the stores, when there is no room to carry it: as large as that part is."""
        place = self._queues.position()
        reduction = Compaction(
            self._settings,
            self._node,
            self._vector_of_queues(),
            self.tombstones,
            queue_position=place,
            fanout_position=NEVER,
            forgotten=self._seals.forgotten,
            is_again=True,
        )
        while batches := self._journal.read(place, _READ_BYTES):
            for start, head, data in batches:
                reduction.take(start, head, data)
                place = start + head.size
        return reduction

    def _vector_of_queues(self) -> Vector:
        """That of the queue store, which an older copy, a new one or a crash has set apart from the last checkpoint."""
        place = self._queues.position()
        return dict(self.state.vector) if place == self.state.position else self._journal.vector_at(place)

    def _reduce(self, begin: int, end: int, vector: Vector, room: int, changes_max: int) -> tuple[Compaction, int]:
        """One slice of the journal, and the position after it: at least one batch, about SLICE_BYTES.

        `vector` is that at `begin`. Raises DiskFull when the first batch takes more than `room`.
        """
        reduction = Compaction(
            self._settings,
            self._node,
            dict(vector),
            self.tombstones,
            queue_position=self._queues.position(),
            fanout_position=self.state.position,
            forgotten=self._seals.forgotten,
            is_again=begin < self._again_before,
            deleted=self._deletions,
        )
        journal = self._journal
        position = begin
        limit = min(end, begin + min(SLICE_BYTES, room))
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
                    limit = position
                    break
                if records := reduction.take(start, head, data):
                    journal.note(start, head, records)
                position = start + head.size
                if reduction.changes >= changes_max:
                    limit = position
                    break
        if any(begin <= start < position for start, _ in journal.damage):
            raise CorruptLog("the journal was damaged since it was written; restart to recover")
        return reduction, position

    def _apply(self, reduction: Compaction, position: int) -> None:
        """Raises DiskFull; nothing has changed then."""
        tombstones = self.tombstones
        if position > self._queues.position():
            self._note_settled(reduction)
            self._queues.apply(
                reduction.rows(),
                reduction.deletes,
                reduction.tombstones_add,
                reduction.tombstones_del,
                position,
                reduction.attempts,
            )
            tombstones = reduction.tombstones()
        self.stored = Stored(reduction.vector, tombstones)

    def _note_settled(self, reduction: Compaction) -> None:
        """A message that is settled while it may be missing must not come back with what a peer has left, who may not
        know of it: until it is missing no more (`RowMender`) a tombstone stands for it. A single row is known to be."""
        missing_ranges = [missing for missing in self._queues.missing_ranges() if not missing.is_of_one]
        if missing_ranges:
            reduction.tombstones_add |= missing_among(
                (d for dots in reduction.deletes.values() for d in dots), missing_ranges
            )

    def _commit(self, reduction: Compaction, position: int) -> int:
        """Raises DiskFull; nothing of the slice counts then, but what the queue store has taken."""
        try:
            return self._commit_logs(reduction, position)
        except DiskFull:
            with self._lock:
                self._logs.release()
                for destination in [*reduction.fanouts, *reduction.deleted.by_name]:
                    self._logs.reopen(destination)
            raise

    def _delete(self, reduction: Compaction) -> None:
        """Delete what the slice deletes of fanout logs, each with a commit of its own.

        The deletions are remembered first. So a crash leaves nothing that is not deleted again: the slice is repeated.
        """
        if not reduction.deletions:
            return
        names = reduction.deleted.by_name
        news = {one.destination for one in reduction.deletions if self._deletions.add(one)}
        if news:
            self._catalog.set_facts(deletion_facts(self._deletions, news))
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
            self.commit_extent(destination, log.without_deleted(before, reduction.vector, self.bounds(destination)))
            self._logs.replaced(destination)
            self._logs.damaged.pop(destination, None)
            log.drop()
            with self._lock:
                self._logs.release()

    def _commit_logs(self, reduction: Compaction, position: int) -> int:
        self._delete(reduction)
        extents: dict[str, FanoutExtent] = {}
        # Logs of one segment have none that is full: they need not be opened once more, of a hundred thousand none.
        of_several: list[str] = []
        copied = 0
        held: dict[str, FanoutLog] = {}
        for destination, entries in reduction.fanouts.items():
            with self._lock:
                log = held[destination] = self._logs.hold(destination)
            extents[destination] = log.append(entries, self.bounds(destination), self._arrival)
            if len(log.chain.segments) > 1:
                of_several.append(destination)
            copied += len(entries)
            if self._logs.holds_many:
                self._sync_logs(held, extents)
        self._sync_logs(held, extents)
        if position <= self.state.position:
            return copied  # Only the queue store had lacked this.
        state = CheckpointState(position, reduction.vector)
        # Before the commit point as well: facts only grow.
        news = [origin for writer, seals in reduction.seals for origin in self._seals.take(writer, seals)]
        if news:
            self._catalog.set_facts(self._seals.facts(news))
        gone = {span.origin for span in reduction.gone if self._gone.add(span.origin, span.last)}
        if gone:
            self._catalog.set_facts(lost_facts(self._gone, gone))
        cursors = self._moved(reduction.moves)
        terms = [note for note in reduction.terms.values() if self._terms.take(note)]
        self._catalog.commit_checkpoint(state, extents, cursors, reduction.given_up, terms)
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
        """Make what was appended to the held logs durable, and let go of them."""
        if held:
            sync_all(self._disk, list(held.values()))
            with self._lock:
                self._logs.release({destination: extents[destination] for destination in held})
            held.clear()

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
            old = now_us - self.shift.of(ended_us) > settings.journal_age_seconds_max * _SECOND_US
            if not (spread or old or kept > settings.journal_bytes_max):
                break
            base = CheckpointState(end, vector)
        if base is None:
            return 0
        self._catalog.set_base(base)
        return journal.drop_before(base.position)

    def _forget_dead(self, members: set[str]) -> tuple[Origin, ...]:
        """Let go of the dead incarnations of which no member has anything left.

        The name is remembered first: whatever of the rest a crash leaves undone, the next opening does.
        """
        gone = self._dropped(self._seals.forgettable(members))
        if gone:
            self._gone.forget(gone)
            deleted = deletion_facts(self._deletions, self._deletions.forget_origins(gone))
            self._catalog.set_facts(self._seals.forget(gone) | lost_facts(self._gone, gone) | deleted)
            state = CheckpointState(self.state.position, self._seals.without(self.state.vector))
            changed = [cursor for cursor in self._cursors.values() if cursor.forget_origins(self._seals.forgotten)]
            self._catalog.commit_checkpoint(state, {}, changed)
            self._logs.commit(state, {})
            base = self._catalog.base()
            self._catalog.set_base(CheckpointState(base.position, self._seals.without(base.vector)))
            self._journal.forget(self._seals.without)
        return tuple(gone)

    def _dropped(self, sealed: Vector) -> list[Origin]:
        """Those of which nothing is in the journal any more."""
        base = self._journal.base() if sealed else {}
        return [origin for origin, last in sealed.items() if base.get(origin, 0) >= last]

    def _without_rest(self, sealed: Vector, now_us: int) -> tuple[Seal, ...]:
        """Those of which nothing is left here at all. Looks at fanout logs, and so not more often than it must."""
        found = self._dropped(sealed)
        if not found or now_us < self._next_look_us:
            return ()
        found = [origin for origin in found if not self._queues.standing(origin, 0, SEQUENCE_MAX, 1)]
        lacking = {missing.origin for missing in self._queues.missing_ranges()} if found else set()
        found = [origin for origin in found if origin not in lacking]
        waiting = len(found)
        for destination, extent in list(self._logs.extents.items()):
            if not found:
                break
            if extent.records:
                with self._lock:
                    chain = self._logs.get(destination).chain
                    for segment in chain.segments:
                        kept = chain.contents(segment)[0]
                        found = [origin for origin in found if origin not in kept]
        if len(found) < waiting:
            # What keeps the rest is in no hurry to go.
            self._next_look_us = now_us + POLL_AGAIN_SECONDS * _SECOND_US
        return tuple(Seal(origin, sealed[origin], True) for origin in found)

    def _moved(self, moves: list[Move]) -> list[Cursor]:
        """The cursors that `moves` change, with them."""
        changed: dict[Name, Cursor] = {}
        for move in moves:
            cursor = self._cursors.get(move.name)
            if cursor is None:
                cursor = self._cursors[move.name] = Cursor(move.name)
            cursor.apply(move)
            changed[move.name] = cursor
        return list(changed.values())

    def _forget_deletions(self, now_us: int) -> None:
        """Deleted durable subscriptions are remembered while a record from before may still come, up to a number."""
        oldest_us = now_us - self._settings.journal_age_seconds_max * _SECOND_US
        old = [c for c in self._cursors.values() if not c.created_us and self.shift.of(c.deleted_us) < oldest_us]
        for cursor in old:
            del self._cursors[cursor.name]
        surplus = surplus_deletions(self._cursors.values())
        for cursor in surplus:
            del self._cursors[cursor.name]
        old += surplus
        for cursor in old:
            cursor.deleted_us = 0
        if old:
            self._catalog.commit_checkpoint(self.state, {}, old)

    def _forget_deleted_fanouts(self, now_us: int, members: Mapping[str, Vector]) -> Mapping[str, Collection[Deletion]]:
        """A deletion is remembered while a message that it deletes may still come."""
        if not self._deletions.by_name:
            return {}
        oldest_us = now_us - self._settings.journal_age_seconds_max * _SECOND_US
        obsolete = self._deletions.obsolete(members.values(), oldest_us, self._seals.forgotten)
        if obsolete:
            self._deletions.forget(obsolete)
            self._catalog.set_facts(deletion_facts(self._deletions, obsolete))
        return obsolete

    def bounds(self, destination: str) -> Retention:
        """What retention keeps of `destination`, as the last checkpoint was told."""
        try:
            return self._retention[destination]
        except KeyError:
            return self._settings.fanout_retention

    def retention_due_us(self, retention: Mapping[str, Retention]) -> int:
        """When something in a fanout log may be too old for `retention`, at the earliest; 0 for never."""
        self._retention = retention
        extents = self._logs.extents.items()
        return min((self._due_us(name, extent) for name, extent in extents if extent.records), default=0)

    def _due_us(self, destination: str, extent: FanoutExtent) -> int:
        return self.shift.of(extent.first_us) + self.bounds(destination).age_seconds_max * _SECOND_US + 1

    def _drop_fanouts(self, now_us: int) -> int:
        """Drop what retention gives up. Returns when the next part of what is left will be too old, 0 for never."""
        due_us = 0
        for destination in list(self._logs.extents):
            bounds = self.bounds(destination)
            extent = self._logs.extents[destination]
            if not extent.records:
                continue
            next_us = self._due_us(destination, extent)
            # Nothing can be due before, so an idle log need not even be opened.
            if now_us >= next_us or now_us < extent.last_us or extent.end - extent.start > bounds.bytes_max:
                next_us = self._drop_expired(destination, extent, now_us, bounds)
            due_us = min(due_us or next_us, next_us or due_us)
        return due_us

    def commit_extent(self, destination: str, extent: FanoutExtent) -> None:
        """This counts from now on of the log of `destination`. For who is `working`."""
        self._catalog.commit_checkpoint(self.state, {destination: extent})
        self._logs.commit(self.state, {destination: extent})

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
