"""Compaction: what a range of the journal means for the stores after settles have removed their messages.

Pure. It takes batches in log order. The result is the queue messages that are unsettled at the end, the rows that the
queue store must delete, and the records of each fanout. Recovery and checkpoint use the same rules, so a replay and an
undisturbed run cannot disagree.

Surprising: whether a settle's message is already known is decided by the vector at that point of the log, not by a
search for the row. So the result depends on the log alone, however often it is computed. Messages stay undecoded
records until the end of the range (`runs`), because most messages of a busy queue are settled within it.
"""

from collections.abc import Collection
from typing import Any, Final

from qmq.definitions.definition import Definition
from qmq.model.cursors import Move
from qmq.model.deletions import Deletion, Deletions
from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.storage.catalog.incarnations import Seal, unpack_seals
from qmq.storage.format.batch import GAPS, BatchHead, Unpacked, record_slices, unpack_records
from qmq.storage.format.cursor_record import unpack_move
from qmq.storage.format.definition_record import readable_definition
from qmq.storage.format.delete_record import unpack_delete
from qmq.storage.format.failure_records import unpack_attempts, unpack_dead
from qmq.storage.format.lost_record import LostRange, unpack_lost
from qmq.storage.format.queue_store import RowRun
from qmq.storage.format.record import (
    EXACT,
    FLAGS_MAX,
    TIMED,
    FanoutEntry,
    RecordKind,
    level_of,
    priority_of,
    unpack_by_origin,
    unpack_gap,
)
from qmq.storage.format.settings import StoreSettings
from qmq.storage.format.term_record import StoredTerms, is_term, unpack_term

NEVER: Final = 1 << 63
"""A position that no journal reaches: that kind of store is not changed."""
_new: Final = tuple.__new__
_PUBLISH: Final = int(RecordKind.PUBLISH)


class Compaction:
    """`vector` and `tombstones` describe the point where the range begins; `vector` advances with each batch.

    `queue_position` and `fanout_position`: where each kind of store begins to need the journal. Batches before such a
    position advance the vector and do not change that store. `is_again`: the queue store may already have rows of
    messages that the range publishes, so their settles delete rows too. `has_lost`: it may also have rows of messages
    that are still to come. `deleted`: earlier deletions of fanouts.
    """

    def __init__(
        self,
        settings: StoreSettings,
        node: str,
        vector: Vector,
        tombstones: set[Dot],
        *,
        queue_position: int,
        fanout_position: int,
        forgotten: Collection[Origin] = (),
        is_again: bool = False,
        has_lost: bool = False,
        deleted: Deletions | None = None,
    ) -> None:
        self.vector = vector
        self.live: dict[Origin, dict[int, Unpacked]] = {}
        """Origin → sequence → queue message published here and not settled, in log order."""
        self._failed: dict[Dot, int] = {}
        """How often messages of `live` have failed, of those that have."""
        self.deletes: dict[str, list[Dot]] = {}
        """Queue → settled messages that were published before this range."""
        self.tombstones_add: set[Dot] = set()
        self.tombstones_del: set[Dot] = set()
        self.fanouts: dict[str, list[FanoutEntry]] = {}
        self.attempts: dict[str, dict[Dot, int]] = {}
        """Queue → messages published before this range that failed in it → how often they have failed in all."""
        self.changes = 0
        """About how many rows of the stores the range changes: none for a message that is settled within it."""
        self.moves: list[Move] = []
        """Moves of durable subscriptions, in log order."""
        self.terms = StoredTerms()
        """The terms and votes of the range that count at its end."""
        self.given_up: Vector = {}
        """What this node gave up in the range."""
        self.seals: list[tuple[str, list[Seal]]] = []
        """SEAL records: what nodes reported of dead incarnations."""
        self.lost: list[LostRange] = []
        """The ranges that this node recorded as lost."""
        self.deletions: list[Deletion] = []
        """Deletions of fanouts, in log order."""
        self.deleted = Deletions()
        """The same, by fanout."""
        self.definitions: list[Definition] = []
        """Changes of definitions, in log order."""
        self._deleted_before = Deletions() if deleted is None else deleted
        self._forgotten = forgotten
        self._known_tombstones = tombstones
        self._settings = settings
        self._node = node
        self._queue_position = queue_position
        self._fanout_position = fanout_position
        self._is_again = is_again
        self._has_lost = has_lost

    def take(self, position: int, head: BatchHead, data: bytes) -> list[Unpacked]:
        """Take the next batch of the log. Return its records; an empty list if no store needs them.

        Raises CorruptLog when its records are not what its head says.
        """
        origin = head.origin
        queues = position >= self._queue_position
        fanouts = position >= self._fanout_position
        if not queues and not fanouts and not head.attributes & GAPS:
            self.vector[origin] = head.last
            return []
        records = unpack_records(head, data)
        slices: list[bytes] = []
        live = self.live.setdefault(origin, {})
        name = ""
        is_queue = is_fanout = False
        known = kind = -1
        deleted: Vector = {}
        for place, record in enumerate(records):
            sequence, timestamp_us, what, destination, headers, body = record
            if what != known:
                known = what
                kind = what >> 56
            if kind == _PUBLISH:
                if destination != name:
                    name = destination
                    is_queue = queues and name.startswith(self._settings.queue_prefix)
                    is_fanout = fanouts and name.startswith(self._settings.fanout_prefix)
                    deleted = self._deleted_of(name) if is_fanout else deleted
                if is_queue:
                    if not (self._known_tombstones or self.tombstones_add) or not self._waited(Dot(origin, sequence)):
                        live[sequence] = record
                elif is_fanout:
                    if deleted and sequence <= deleted.get(origin, 0):
                        continue
                    slices = slices or record_slices(data)
                    self.fanouts.setdefault(name, []).append(FanoutEntry(origin, sequence, timestamp_us, slices[place]))
            elif kind == RecordKind.SETTLE and queues:
                self.vector[origin] = sequence
                for of, sequences in unpack_by_origin(body):
                    self._settle(destination, of, sequences)
            elif kind == RecordKind.DEAD and queues:
                self.vector[origin] = sequence
                queue, dead, dead_letter = unpack_dead(body)
                self._settle(queue, dead.origin, [dead.sequence])
                if not self._waited(Dot(origin, sequence)):
                    live[sequence] = (sequence, timestamp_us, what, destination, headers, dead_letter)
            elif kind == RecordKind.ATTEMPTS and queues:
                self.vector[origin] = sequence
                self._fail(destination, unpack_attempts(body))
            elif kind == RecordKind.CURSOR and fanouts:
                self.moves.append(unpack_move(destination, body))
            elif kind == RecordKind.SEAL and fanouts:
                self.seals.append((origin.node, unpack_seals(body)))
            elif fanouts and is_term(kind, origin.node, self._node):
                self.terms.take(unpack_term(kind, body))
            elif kind == RecordKind.GONE and fanouts and origin.node == self._node:
                self.lost.append(unpack_lost(body))
            elif kind == RecordKind.DELETE and fanouts:
                self._delete(Deletion(destination, Dot(origin, sequence), timestamp_us, unpack_delete(body)))
                name = ""
            elif kind == RecordKind.DEFINITION and fanouts:
                change = readable_definition(body)
                if change is not None:
                    self.definitions.append(change)
            elif kind == RecordKind.GAP and head.attributes & GAPS and origin.node == self._node:
                self._give_up(*unpack_gap(body), queues)
        self.vector[origin] = head.last
        self.changes += head.count
        return records

    def runs(self) -> list[RowRun]:
        """`live` as the queue store wants it."""
        runs: list[RowRun] = []
        for origin, live in self.live.items():
            shared: dict[tuple[str, int], list[Unpacked]] = {}
            records: list[Unpacked] = []
            # Without their type: to append a typed tuple, compiled code makes a new one.
            untyped: dict[int, Any] = live
            name = ""
            known = flags = -1
            is_alone = False
            for record in untyped.values():
                what, destination = record[2], record[3]
                if what != known or destination != name:
                    known, name = what, destination
                    flags = what >> 32 & FLAGS_MAX
                    is_alone = bool(flags & (EXACT | TIMED))
                    if not is_alone:
                        found = shared.get((name, flags))
                        if found is None:
                            found = shared[name, flags] = []
                            # Its own constructor would take twice as long.
                            runs.append(_new(RowRun, (origin, name, flags, priority_of(flags), found, 0, 0, 0, 0)))
                        records = found
                if is_alone or (self._failed and (origin, record[0]) in self._failed):
                    runs.append(self._alone(origin, flags, record))
                else:
                    records.append(record)
        return [run for run in runs if run.records] if self._failed else runs

    def _alone(self, origin: Origin, flags: int, record: Unpacked) -> RowRun:
        """A message with times, a number or failures of its own."""
        sequence, timestamp_us, _, queue, headers, _ = record
        due_us = expires_us = 0
        level, exact = level_of(flags, headers)
        if flags & TIMED:
            due_us, expires_us = self._settings.times_of(headers, timestamp_us)
        attempts = self._failed.get(Dot(origin, sequence), 0)
        return RowRun(origin, queue, flags, level, [record], due_us, expires_us, attempts, exact)

    def live_count(self) -> int:
        return sum(map(len, self.live.values()))

    def live_bytes(self) -> int:
        """About how many bytes the range adds to the stores: bodies of queue messages, and records of fanouts."""
        bodies = sum(len(record[5]) for live in self.live.values() for record in live.values())
        return bodies + sum(len(entry.packed) for entries in self.fanouts.values() for entry in entries)

    def tombstones(self) -> set[Dot]:
        """Settles whose message has not arrived by the end of the range."""
        return (self._known_tombstones | self.tombstones_add) - self.tombstones_del

    def _waited(self, dot: Dot) -> bool:
        """Remove the tombstone of this message; whether there was one."""
        if dot in self.tombstones_add:
            self.tombstones_add.discard(dot)
        elif dot in self._known_tombstones:
            self.tombstones_del.add(dot)
        else:
            return False
        return True

    def _settle(self, queue: str, origin: Origin, sequences: list[int]) -> None:
        if origin in self._forgotten:
            return  # They were settled before, else their origin would not be forgotten.
        have = self.vector.get(origin, 0)
        live = self.live.get(origin, {})
        before = len(live)
        for sequence in sequences:
            if sequence > have:
                dot = Dot(origin, sequence)
                if dot not in self._known_tombstones:
                    self.tombstones_add.add(dot)
                if origin.node == self._node or self._has_lost:
                    # Only when the disk lost journal that the queue store had taken: the row is there all the same.
                    self.deletes.setdefault(queue, []).append(dot)
            elif live.pop(sequence, None) is None or self._is_again:
                self.deletes.setdefault(queue, []).append(Dot(origin, sequence))
        # Those that were live counted when they came, too.
        self.changes += len(sequences) - (0 if self._is_again else 2 * (before - len(live)))

    def _deleted_of(self, destination: str) -> Vector:
        """What is deleted of a fanout at this point of the log."""
        before = self._deleted_before.before(destination)
        now = self.deleted.before(destination)
        if not (before and now):
            return before or now
        both = dict(before)
        merge(both, now)
        return both

    def _delete(self, deletion: Deletion) -> None:
        """Apply a deletion to earlier records of this range; the fanout log deletes what it already holds itself."""
        self.deletions.append(deletion)
        self.deleted.add(deletion)
        name, before = deletion.destination, deletion.before
        entries = self.fanouts.pop(name, None)
        if entries is not None:
            kept = [entry for entry in entries if entry.sequence > before.get(entry.origin, 0)]
            if kept:
                self.fanouts[name] = kept

    def _fail(self, queue: str, counts: dict[Dot, int]) -> None:
        self.changes += len(counts)
        for dot, count in counts.items():
            origin, sequence = dot
            if sequence > self.vector.get(origin, 0):
                continue
            is_live = sequence in self.live.get(origin, {})
            if is_live:
                self._failed[dot] = max(count, self._failed.get(dot, 0))
            if not is_live or self._is_again:
                known = self.attempts.setdefault(queue, {})
                known[dot] = max(count, known.get(dot, 0))

    def _give_up(self, origin: Origin, through: int, queues: bool) -> None:
        """Records that will not arrive need no tombstone."""
        self.vector[origin] = max(self.vector.get(origin, 0), through)
        merge(self.given_up, {origin: through})
        if queues:
            for dot in list(self.tombstones_add):
                if dot.origin == origin and dot.sequence <= through:
                    self.tombstones_add.discard(dot)
            for dot in self._known_tombstones:
                if dot.origin == origin and dot.sequence <= through:
                    self.tombstones_del.add(dot)
