"""Range snapshots: what the stores still hold of a range of one origin, for a peer that is missing it.

A peer asks for them when the range has left the journal. Unsettled queue messages come from the queue store, fanout
records from the fanout logs. All other records of the range are settled, expired or dropped. So an answer accounts for
the whole range, and the vector of the peer may advance over it (`snapshot_batch`). An answer never covers what the
stores have not reached, nor what this node itself gave up.

Surprising: the index of an origin's batches in the fanout logs is kept between two calls, because a peer asks for the
ranges of one origin one after another. It takes about 200 bytes per batch; sealed segments supply it without a scan.
"""

import threading
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from qmq.definitions.table import DefinitionTable
from qmq.errors import CorruptLog, LogBroken
from qmq.model.deletions import Deletions
from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.batch import HEAD_BYTES, REST, SPARSE, batch_records, encode_batch, record_slices, verify_batch
from qmq.storage.format.definition_record import packed_record
from qmq.storage.format.delete_record import packed_deletion
from qmq.storage.format.interfaces import FanoutExtent
from qmq.storage.format.queue_store import UNSETTLED_ROWS, QueueRow, QueueStore, unsettled_rows
from qmq.storage.format.record import RecordKind, pack_envelope, pack_gap, pack_record, unpack_record
from qmq.storage.log.chain import Damage, Segment
from qmq.storage.queues.plan import is_page_full

SNAPSHOT_BYTES: Final = 256 * 1024
"""About how many bytes of records one answer has; at least one record if there is one."""


class RangeSnapshot(NamedTuple):
    """What is left of an origin after a sequence. `records` account for everything up to `through`."""

    through: int
    lost: int
    """Not 0: this node knows nothing up to this sequence, and `through` says nothing new."""
    dropped: int
    """Not 0: retention had dropped fanout records of the requested range, up to this sequence."""
    records: list[bytes]
    """Packed, sequences ascending."""
    attempts: Sequence[tuple[str, int, int]] = ()
    """Queue messages among them that have failed: queue, sequence, how often."""


def nothing_left(through: int) -> RangeSnapshot:
    """A snapshot without records: nothing is left up to `through`."""
    return RangeSnapshot(through, 0, 0, [])


class _Place(NamedTuple):
    first: int
    last: int
    destination: str
    position: int


class SnapshotReader:
    """`lock` is the one under which fanout logs are opened. One caller at a time."""

    def __init__(
        self,
        queues: QueueStore,
        logs: FanoutLogs,
        lock: threading.RLock,
        deletions: Deletions | None = None,
        definitions: DefinitionTable | None = None,
    ) -> None:
        self._queues = queues
        self._deletions = Deletions() if deletions is None else deletions
        self._definitions = DefinitionTable() if definitions is None else definitions
        self._logs = logs
        self._lock = lock
        self._of: tuple[Origin, str] | None = None
        self._indexed = 0
        self._places: list[_Place] = []
        self._dropped = 0

    def read(
        self,
        origin: Origin,
        after: int,
        through: int,
        given_up: int,
        fanout: str = "",
        lost_ends: Sequence[int] = (),
        rows_only: bool = False,
    ) -> RangeSnapshot:
        """The next part of (`after`, `through`]; `given_up`: up to where this node gave up records of the origin.

        `lost_ends`: the ends of lost ranges, ascending. A part ends where such a range ends, and reports it as dropped.
        With `fanout`, only messages of that fanout are returned. With `rows_only`, only queue messages are returned,
        and no log is read. If the stores have not passed `after`, the answer says nothing new; a checkpoint must come
        first.

        Raises:
            CorruptLog: a fanout log is damaged there, so what is left is unknown.
            LogBroken: the disk failed.
        """
        if given_up > after:
            return RangeSnapshot(after, min(given_up, through), 0, [])
        wanted = through
        through = min(through, self._logs.state.vector.get(origin, 0))
        if through <= after:
            return RangeSnapshot(after, 0, 0, [])
        end = next((end for end in lost_ends if end > after), 0)
        through = min(through, end) if end else through
        if not rows_only and (self._of != (origin, fanout) or self._indexed < through):
            self._index(origin, fanout)
        dropped = 0 if rows_only else min(self._dropped, wanted)
        rows, cut = ([], through) if fanout else self._waiting(origin, after, through)
        found = {row.dot.sequence: _packed(row) for row in rows}
        cut = cut if rows_only else self._kept(origin, after, cut, found)
        if not (fanout or rows_only):
            # The peer needs the deletions, or deleted messages that it gets from other nodes would stay.
            for deletion in self._deletions.of_origin(origin):
                if after < deletion.dot.sequence <= cut:
                    found[deletion.dot.sequence] = packed_deletion(deletion)
            for change in self._definitions.of_origin(origin):
                if after < change.version.sequence <= cut:
                    found[change.version.sequence] = packed_record(change, change.version.time_us)
        records: list[bytes] = []
        size = 0
        for sequence in sorted(found):
            if sequence > cut:
                break
            if records and size + len(found[sequence]) > SNAPSHOT_BYTES:
                cut = sequence - 1
                break
            records.append(found[sequence])
            size += len(found[sequence])
        failed = [row for row in rows if row.attempts and row.dot.sequence <= cut]
        attempts = [(row.queue, row.dot.sequence, row.attempts) for row in failed]
        dropped = end if cut == end else dropped
        return RangeSnapshot(cut, 0, dropped if dropped > after else 0, records, attempts)

    def _waiting(self, origin: Origin, after: int, through: int) -> tuple[list[QueueRow], int]:
        """Queue messages after `after`, and the sequence up to which these are all."""
        rows = self._queues.unsettled(origin, after, through, UNSETTLED_ROWS, SNAPSHOT_BYTES)
        return rows, rows[-1].dot.sequence if is_page_full(rows, UNSETTLED_ROWS, SNAPSHOT_BYTES) else through

    def _kept(self, origin: Origin, after: int, cut: int, found: dict[int, bytes]) -> int:
        """Add fanout records after `after` up to `cut` to `found`; return the sequence up to which these are all."""
        size = 0
        for place in self._places:
            if place.first > cut:
                break
            if place.last <= after:
                continue
            if size > SNAPSHOT_BYTES and place.first > after + 1:
                return place.first - 1
            data = self._batch(place, origin)
            size += len(data)
            for record, packed in zip(batch_records(data), record_slices(data), strict=True):
                deleted = self._deletions.covers(place.destination, origin, record.sequence)
                if after < record.sequence <= cut and not deleted:
                    found[record.sequence] = packed
        return cut

    def _batch(self, place: _Place, origin: Origin) -> bytes:
        with self._lock:
            log = self._logs.get(place.destination)
            bad: list[Damage] = []
            try:
                read = log.chain.read(place.position, HEAD_BYTES, [], bad)
            except OSError as error:
                raise LogBroken(f"cannot read the log of {place.destination}: {error}") from error
        if not read or read[0][0] != place.position or read[0][1].origin != origin:
            self.forget()
            for start, end in bad:
                self._logs.refuse(place.destination, f"its log is damaged from {start} to {end}")
            # Retention may have dropped the batch meanwhile; the next call builds a new index.
            raise CorruptLog(f"{place.destination} has nothing to read at {place.position}")
        return read[0][2]

    def forget(self) -> None:
        """Drop the index; the next call builds it again."""
        self._of = None

    def _index(self, origin: Origin, fanout: str) -> None:
        self.forget()
        places: list[_Place] = []
        self._dropped = 0
        indexed = self._logs.state.vector.get(origin, 0)
        for destination, extent in list(self._logs.extents.items()):
            if fanout not in ("", destination):
                continue
            self._dropped = max(self._dropped, dict(extent.dropped).get(origin, 0))
            with self._lock:
                log = self._logs.get(destination)
                for begin, end in log.missing:
                    self._logs.refuse(destination, f"its log has no file from {begin} to {end}")
                for segment in log.chain.segments:
                    if segment.base >= extent.start and segment.first < extent.end:
                        places += self._places_in(destination, segment, extent, origin)
        places.sort()
        self._of, self._indexed, self._places = (origin, fanout), indexed, places

    def _places_in(self, destination: str, segment: Segment, extent: FanoutExtent, origin: Origin) -> list[_Place]:
        try:
            bad: list[Damage] = []
            listed = self._logs.get(destination).chain.index_of(segment, bad)
        except OSError as error:
            raise LogBroken(f"cannot read the log of {destination}: {error}") from error
        if bad and bad[0][0] < extent.end:
            self._logs.refuse(destination, f"its log is damaged from {bad[0][0]} to {bad[0][1]}")
        return [
            _Place(entry.first, entry.last, destination, segment.base + entry.offset)
            for entry in listed
            if entry.origin == origin and segment.base + entry.offset < extent.end
        ]


def snapshot_batch(origin: Origin, after: int, snapshot: RangeSnapshot) -> bytes:
    """The batch that replaces, in a journal, all records of `origin` after `after` up to `snapshot.through`."""
    records = list(snapshot.records)
    known = [unpack_record(packed) for packed in records]
    if not known or known[-1].sequence < snapshot.through:
        # A batch has at least one record; this one says where the range ends.
        timestamp_us = known[-1].timestamp_us if known else 0
        end = (
            snapshot.through,
            timestamp_us,
            RecordKind.GAP,
            0,
            pack_envelope("", b""),
            pack_gap(origin, snapshot.through),
        )
        records.append(pack_record(*end))
    first_us = known[0].timestamp_us if known else 0
    last_us = known[-1].timestamp_us if known else 0
    return encode_batch(origin, records, after + 1, snapshot.through, first_us, last_us, SPARSE | REST)


def snapshot_of(batch: bytes) -> RangeSnapshot:
    """The inverse of `snapshot_batch`: the snapshot that `batch` holds."""
    head = verify_batch(batch)
    records = zip(batch_records(batch), record_slices(batch), strict=True)
    return RangeSnapshot(head.last, 0, 0, [packed for record, packed in records if record.kind != RecordKind.GAP])


class Known(NamedTuple):
    """What a node knows of messages that a peer asks about."""

    done: list[Dot]
    failed: dict[Dot, int]
    """Unsettled messages that have failed, and how often."""


def known_of(
    queues: QueueStore,
    vector: Vector,
    tombstones: Collection[Dot],
    given_up: Vector,
    forgotten: Collection[Origin],
    dots: list[Dot],
) -> Known:
    """Which of `dots` this node knows to be settled: it has all of their origin up to there, and no such row.

    Everything of a collected origin is settled, else a member would not have released it. `tombstones` are settled
    too: this node has their settle and has not received the messages themselves in its journal.
    """
    done: list[Dot] = []
    by_origin: dict[Origin, list[int]] = {}
    for dot in dots:
        origin, sequence = dot
        if origin in forgotten or dot in tombstones:
            done.append(dot)
        elif given_up.get(origin, 0) < sequence <= vector.get(origin, 0):
            by_origin.setdefault(origin, []).append(sequence)
    failed: dict[Dot, int] = {}
    for origin, sequences in by_origin.items():
        rows = unsettled_rows(queues, origin, min(sequences) - 1, max(sequences))
        unsettled = {row.dot.sequence: row.attempts for row in rows}
        done += [Dot(origin, sequence) for sequence in sequences if sequence not in unsettled]
        failed.update((Dot(origin, sequence), unsettled[sequence]) for sequence in sequences if unsettled.get(sequence))
    return Known(done, failed)


def _packed(row: QueueRow) -> bytes:
    envelope = pack_envelope(row.queue, row.headers)
    return pack_record(row.dot.sequence, row.timestamp_us, RecordKind.PUBLISH, row.flags, envelope, row.body)
