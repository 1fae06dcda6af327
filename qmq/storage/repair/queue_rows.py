"""Repair of a damaged queue store: search for missing rows, first in the journal of this node, then in peers' stores.

The journal decides most cases: a message that it still has is either settled by a later record, or unsettled. Only
peers know of what the journal has dropped. A row of a peer may be settled here by a record that the peer does not have
yet. Therefore the search remembers settles of this journal. Before rows are restored, it also reads what the stores
have taken since. One search serves many missing messages of an origin: a damaged run names up to 256 of them.

Surprising: what the stores have not taken yet needs no search; the next checkpoint adds it, settles included.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.checkpoints.checkpoint import Checkpointer, Stored
from qmq.storage.format.batch import BatchHead, batch_records, record_slices, verify_batch
from qmq.storage.format.failure_records import unpack_attempts, unpack_dead
from qmq.storage.format.interfaces import Disk
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.format.record import (
    KIND_OFFSET,
    TIMED,
    Record,
    RecordKind,
    level_of,
    pack_envelope,
    pack_record,
    unpack_by_origin,
    unpack_record,
)
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.journal import Journal
from qmq.storage.log.quarantine import Quarantined, quarantined_bytes
from qmq.storage.queues.plan import missing_among, missing_key
from qmq.storage.repair.range_snapshot import RangeSnapshot

_READ_BYTES: Final = 1024 * 1024
_AT_ONCE: Final = 64
"""Single messages that one search is for: it holds the bodies that it has found."""
_NAMES_MESSAGES: Final = frozenset({RecordKind.SETTLE, RecordKind.DEAD, RecordKind.ATTEMPTS})
"""Kinds whose records name messages of any origin."""


class RowRepairer:
    """Of one store. It does one step at a time, may run during appends, and waits for checkpoints."""

    def __init__(
        self, queues: QueueStore, journal: Journal, checkpointer: Checkpointer, settings: StoreSettings
    ) -> None:
        self._queues = queues
        self._journal = journal
        self._checkpointer = checkpointer
        self._settings = settings
        self._lock = threading.Lock()
        self.row_lock = threading.RLock()
        """While it is held, no row is restored: so a caller reads rows and missing ranges of the same moment."""
        self._searches: dict[tuple[Origin, int, str], Search] = {}
        """The search of each missing range: the journal may drop a settle while peers are asked for the row."""

    def missing_ranges(self) -> list[MissingRange]:
        """Missing ranges up to the vector of the stores; the next checkpoints add what is beyond it."""
        vector = self._checkpointer.stored.vector
        found: list[MissingRange] = []
        for missing in self._queues.missing_ranges():
            through = min(missing.through, vector.get(missing.origin, 0))
            if missing.after < through:
                found.append(missing._replace(through=through))
        return found

    def search_journal(self, missing: MissingRange) -> MissingRange | None:
        """Restore what the journal has of `missing`; return what only peers may have, None for nothing.

        Raises LogBroken, and DiskFull.
        """
        with self._lock:
            search = self._search_of(missing)
            search.read(self._journal, self._queues.position())
            with self._checkpointer.working():
                search.read(self._journal, self._queues.position())
                left = search.left(missing)
                self._repair(missing, self._wanted(search.rows(missing)), left)
            search.forget_rows(missing)
            self._forget_searches()
            return left

    def _search_of(self, missing: MissingRange) -> "Search":
        """A search whose rows for `missing` were not used yet; a new one serves other messages, too."""
        known = self._searches.get(_name(missing))
        if known is not None and missing.sequence in known.unused:
            return known
        others = self._queues.missing_ranges() if missing.is_of_one else []
        others = [one for one in others if one.is_of_one and one.origin == missing.origin]
        others = [one for one in others if _name(one) not in self._searches][:_AT_ONCE]
        search = Search(self._settings, missing, others)
        self._searches.update({_name(one): search for one in (*others, missing)})
        return search

    def take(self, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> MissingRange | None:
        """Restore what a peer has after `after` of `missing`, which `search_journal` returned; return what is missing.

        If the peer did not know the beginning, or a part (`snapshot.lost`), that is still missing, and the next peer is
        asked for it.

        Raises CorruptLog when the records are invalid; LogBroken, and DiskFull.
        """
        failed = {sequence: count for _, sequence, count in snapshot.attempts}
        with self._lock:
            search = self._searches.get(_name(missing))
            if search is None or not search.covers(missing):
                search = self._searches[_name(missing)] = Search(self._settings, missing)
            search.read(self._journal, self._queues.position())
            rows: list[QueueRow] = []
            for packed in snapshot.records:
                record = unpack_record(packed)
                if record.kind == RecordKind.PUBLISH and after < record.sequence <= snapshot.through:
                    if record.destination.startswith(self._settings.queue_prefix):
                        row = search.row(record)
                        rows.append(row._replace(attempts=failed.get(record.sequence, 0)))
            left: MissingRange | None = missing
            if after == missing.after and not snapshot.lost:
                left = missing._replace(after=snapshot.through) if snapshot.through < missing.through else None
            elif snapshot.through >= missing.through and not snapshot.lost:
                left = missing._replace(through=after)
            elif missing.is_of_one and rows:
                left = None
            with self._checkpointer.working():
                search.read(self._journal, self._queues.position())
                self._repair(missing, self._wanted(search.unsettled(rows)), left)
            search.forget_rows(missing)
            self._forget_searches()
            return left

    def _forget_searches(self) -> None:
        """Drop the searches of ranges that are no longer missing."""
        still_missing = set(map(_name, self._queues.missing_ranges()))
        for key in self._searches.keys() - still_missing:
            del self._searches[key]

    def give_up(self, missing: MissingRange, through: int) -> bool:
        """Give up `missing` up to `through`: no member has it. False: it was settled meanwhile."""
        with self._lock, self._checkpointer.working():
            if not any(missing_key(known) == missing_key(missing) for known in self._queues.missing_ranges()):
                return False
            self._repair(missing, [], missing._replace(after=through) if through < missing.through else None)
            return True

    def _repair(self, missing: MissingRange, rows: list[QueueRow], left: MissingRange | None) -> None:
        """Restore `rows`, and remove the tombstones of messages that are no longer missing."""
        with self.row_lock:
            self._queues.repair(missing, rows, left)
        vector, tombstones = self._checkpointer.stored
        passed = missing_among(tombstones, [missing._replace(through=vector.get(missing.origin, 0))])
        if passed:
            passed -= missing_among(passed, self._queues.missing_ranges())
        if passed:
            self._queues.apply([], {}, [], passed, self._queues.position())
            self._checkpointer.stored = Stored(vector, tombstones - passed)

    def _wanted(self, rows: list[QueueRow]) -> list[QueueRow]:
        """Without the rows that have a tombstone."""
        tombstones = self._checkpointer.stored.tombstones
        return [row for row in rows if row.dot not in tombstones]


def _name(missing: MissingRange) -> tuple[Origin, int, str]:
    """The key of a missing range; it stays the same while the range becomes shorter."""
    return missing.origin, missing.sequence, missing.queue


def record_quarantined(disk: Disk, dot: Dot) -> bytes | None:
    """The packed record of a message, if the quarantine has a valid copy."""

    def is_wanted(entry: Quarantined) -> bool:
        return entry.origin == dot.origin and entry.first <= dot.sequence <= entry.last

    for _, data in quarantined_bytes(disk, is_wanted):
        with suppress(CorruptLog):  # the quarantine itself has rotted
            verify_batch(data)
            for record, packed in zip(batch_records(data), record_slices(data), strict=True):
                if record.sequence == dot.sequence:
                    return packed if record.kind == RecordKind.PUBLISH else _dead_letter(record)
    return None


def _dead_letter(record: Record) -> bytes | None:
    """A dead letter as if it had been published."""
    if record.kind != RecordKind.DEAD:
        return None
    head = (record.sequence, record.timestamp_us, RecordKind.PUBLISH, record.flags)
    return pack_record(*head, pack_envelope(record.destination, record.headers), unpack_dead(record.body)[2])


class Search:
    """What the journal holds of one `MissingRange`; it is read up to a position and later continued from there.

    If that is one message, the search is for `others` of the same origin, too.
    """

    def __init__(self, settings: StoreSettings, missing: MissingRange, others: Sequence[MissingRange] = ()) -> None:
        every = (missing, *others)
        self.unused = {one.sequence for one in every if missing.is_of_one}
        """Single messages of which no caller has used what was found."""
        self._single = frozenset(self.unused)
        self._origin = missing.origin
        self._after, self._through = min(one.after for one in every), max(one.through for one in every)
        self._settings = settings
        self._place = -1
        self._found: dict[int, QueueRow] = {}
        self._settled: set[int] = set()
        self._attempts: dict[int, int] = {}
        # The sequence up to which the journal was read, its dropped part included; and the holes in it.
        self._have = 0
        self._holes: list[tuple[int, int]] = []

    def covers(self, missing: MissingRange) -> bool:
        """Whether this search includes all of `missing`."""
        return self._after <= missing.after and self._is_missing(missing.through)

    def read(self, journal: Journal, end: int) -> None:
        """Continue up to the position `end`. Raises LogBroken."""
        if self._place < 0:
            self._place = journal.start
            self._hole(0, journal.base().get(self._origin, 0))
        while self._place < end and (batches := journal.read(self._place, _READ_BYTES)):
            for start, head, data in batches:
                if start < end:
                    self._take(head, data)
                self._place = start + head.size

    def left(self, missing: MissingRange) -> MissingRange | None:
        """What the journal cannot account for of `missing`, which is covered."""
        holes = list(self._holes)
        if self._have < missing.through:
            holes.append((self._have, missing.through))
        open_ = [hole for hole in holes if hole[0] < missing.through and hole[1] > missing.after]
        if not open_:
            return None
        after, through = max(open_[0][0], missing.after), min(open_[-1][1], missing.through)
        return missing._replace(after=after, through=through)

    def rows(self, missing: MissingRange) -> list[QueueRow]:
        """The unsettled messages of `missing` that the journal has."""
        return self.unsettled([row for one, row in self._found.items() if missing.after < one <= missing.through])

    def forget_rows(self, missing: MissingRange) -> None:
        """Drop the found rows, which are restored now; settles and failures of other rows are kept."""
        self.unused.discard(missing.sequence)
        for sequence in self._found.keys() - self.unused:
            del self._found[sequence]

    def unsettled(self, rows: Iterable[QueueRow]) -> list[QueueRow]:
        """Those of `rows` that no record of the journal settles, with their failures."""
        found: list[QueueRow] = []
        for row in rows:
            sequence = row.dot.sequence
            if sequence not in self._settled:
                found.append(row._replace(attempts=max(row.attempts, self._attempts.get(sequence, 0))))
        return found

    def row(self, record: Record) -> QueueRow:
        """A message as a row."""
        due_us = expires_us = 0
        level, exact = level_of(record.flags, record.headers)
        if record.flags & TIMED:
            due_us, expires_us = self._settings.times_of(record.headers, record.timestamp_us)
        return QueueRow(
            Dot(self._origin, record.sequence),
            record.destination,
            record.timestamp_us,
            record.flags,
            level,
            due_us,
            expires_us,
            record.headers,
            record.body,
            exact=exact,
        )

    def _hole(self, after: int, through: int) -> None:
        if after < through:
            self._holes.append((after, through))
        self._have = max(self._have, through)

    def _take(self, head: BatchHead, data: bytes) -> None:
        mine = head.origin == self._origin
        if mine:
            self._hole(self._have, head.first - 1)
            self._have = max(self._have, head.last)
        is_near = mine and head.first <= self._through and head.last > self._after
        for packed in record_slices(data):
            kind = packed[KIND_OFFSET]
            if kind in _NAMES_MESSAGES or (is_near and kind == RecordKind.PUBLISH):
                record = unpack_record(packed)
                self._note(record)
                if is_near and self._is_missing(record.sequence):
                    self._publish(record)

    def _is_missing(self, sequence: int) -> bool:
        return self._after < sequence <= self._through and (not self._single or sequence in self._single)

    def _publish(self, record: Record) -> None:
        if record.kind == RecordKind.DEAD:
            record.body = unpack_dead(record.body)[2]
        elif record.kind != RecordKind.PUBLISH:
            return
        if record.destination.startswith(self._settings.queue_prefix):
            self._found[record.sequence] = self.row(record)

    def _note(self, record: Record) -> None:
        """Note the settles and failures in this record for messages of the range."""
        if record.kind == RecordKind.SETTLE:
            for origin, sequences in unpack_by_origin(record.body):
                if origin == self._origin:
                    self._settled.update(filter(self._is_missing, sequences))
        elif record.kind == RecordKind.DEAD:
            dot = unpack_dead(record.body)[1]
            if dot.origin == self._origin and self._is_missing(dot.sequence):
                self._settled.add(dot.sequence)
        elif record.kind == RecordKind.ATTEMPTS:
            for dot, count in unpack_attempts(record.body).items():
                if dot.origin == self._origin and self._is_missing(dot.sequence):
                    self._attempts[dot.sequence] = max(count, self._attempts.get(dot.sequence, 0))
