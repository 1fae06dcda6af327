"""One segment file of a node: its batches, and which sequences of which origins they have.

A sealed segment lists its content in its index; an open one is scanned, and a later look continues where the last one
ended. Bytes behind the last whole batch of the last segment are not there yet; elsewhere what cannot be read is damage,
unless the node has quarantined it already.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from qmq.errors import CorruptLog
from qmq.spark.reading.ranges import RangeMap
from qmq.storage.disk.disk import DiskFile, ReadOnlyDisk
from qmq.storage.format.batch import GAPS, HEAD_BYTES, REST, BatchHead, read_head, unpack_records, verify_batch
from qmq.storage.format.record import RecordKind
from qmq.storage.format.segment import (
    JOURNAL,
    BatchEntry,
    BatchSpan,
    Footer,
    SegmentHead,
    is_sealed,
    read_footer,
    read_segment_head,
    scan,
)

T = TypeVar("T")

PIECE_BYTES: Final = 1 << 20
"""Of a segment without an index that are read at once."""


class NotBegun(CorruptLog):
    """The last segment has no readable head, and no batch: its head is not written yet."""


class Extent(NamedTuple):
    """Whole batches of one file, for a worker to read: offsets `start` to `end`, without the `holes` between.

    `path` is empty for what a live node has sent.
    """

    path: str
    node: str
    base: int
    start: int
    end: int
    holes: tuple[tuple[int, int], ...] = ()


class SegmentListing(NamedTuple):
    """What is known of one segment's batches; `end` is the offset behind the last one."""

    entries: list[BatchEntry]
    end: int
    sealed: bool
    damage: tuple[tuple[int, int], ...]
    """Offsets (start, end) where no batch can be read although some follow, here or in the next segment, and that are
    not put aside."""
    footer: Footer | None = None
    compacted: tuple[BatchEntry, ...] = ()
    """Those of `entries` that have fewer records than sequences, or a mark in the place of the last one. In a journal
    they stand for a range of which only a part was left when the node asked for it."""
    noted: tuple[BatchEntry, ...] = ()
    """Those of `entries` that may say what was given up or lost; of a segment without an index."""

    @property
    def reach(self) -> int:
        """The offset behind the last batch, or behind damage that follows it."""
        return max([self.end, *(stop for _, stop in self.damage)])

    def ranges(self) -> RangeMap:
        """The sequences from the first to the last of each batch.

        An index lists the records of sparse batches one by one: a part that names them so would read each batch once
        for each of its records.
        """
        if self.footer is not None and not self.compacted:
            listed = self.footer.ranges.items()
            return RangeMap({origin: [(first - 1, last) for first, last in ranges] for origin, ranges in listed})
        return ranges_of(self.entries)

    def whole_entries(self) -> list[BatchEntry]:
        """The entries that are no compacted ranges."""
        if not self.compacted:
            return self.entries
        compacted = {entry.offset for entry in self.compacted}
        return [entry for entry in self.entries if entry.offset not in compacted]


def is_compacted(entry: BatchEntry) -> bool:
    """Whether it shows by itself that it stands for records of which some are missing: fewer are there, or a mark of
    the end without time. See `has_mark`, too.
    """
    return entry.records <= entry.last - entry.first or not entry.last_us


def has_mark(head: BatchHead, batch: bytes) -> bool:
    """Whether the last record of a rest is the mark of its end, and no record of its origin (`snapshot_batch`)."""
    return bool(head.attributes & REST) and unpack_records(head, batch)[-1][2] >> 56 == RecordKind.GAP


def notes_of(head: BatchHead, batch: bytes, kind: RecordKind, unpack: Callable[[bytes], T]) -> Iterator[T]:
    """As `SegmentFile.notes`, of one batch that was verified. Raises CorruptLog when a record is none."""
    if _mark_of(kind) in batch:
        for record in unpack_records(head, batch):
            if record[2] >> 56 == kind:
                yield unpack(record[5])


def _mark_of(kind: RecordKind) -> bytes:
    """How every record writes its kind: the mark of a msgpack integer, and its highest byte."""
    return bytes([0xCF, kind])


def ranges_of(entries: Iterable[BatchEntry]) -> RangeMap:
    """The sequences from the first to the last of each of `entries`."""
    found = RangeMap()
    for entry in entries:
        found.add(entry.origin, entry.first - 1, entry.last)
    return found


class SegmentFile:
    """One segment file. `list` looks at it again if it can have grown.

    `batches_end`: the offset where its batches end, as the next one's base says; None for the last one. What looks like
    an index there may be a message's body. `over_damage`: a head that cannot be read counts as put aside.
    """

    def __init__(
        self, path: Path, base: int, node: str, holes: list[tuple[int, int]], *, over_damage: bool = False
    ) -> None:
        self.path = path
        self.base = base
        self.node = node
        self.batches_end: int | None = None
        self.holes = tuple((max(start - base, 0), end - base) for start, end in holes if end > base)
        self._over_damage = over_damage
        self._head: SegmentHead | None = None
        self._listing = SegmentListing([], 0, False, ())

    def list(self) -> SegmentListing:
        """Its batches. What cannot be read at the end of the last segment is not there yet, instead of damage.

        Raises:
            CorruptLog: its head cannot be read; NotBegun when that is not written yet.
            FutureVersion: written by later software.
            FileNotFoundError: the node has dropped it meanwhile.
        """
        known = self._listing
        if known.sealed:
            return known
        with closing(ReadOnlyDisk(self.path.parent).open(self.path.name)) as descriptor:
            if self._head is None:
                # At once: retention may drop the file before its head is read.
                with suppress(CorruptLog):  # `head` will say so
                    self._head = self._read_head(descriptor)
            index = read_footer(descriptor, self.batches_end) if self.batches_end is not None else None
            if index is not None:
                index = self._without_holes(index)
                compacted = tuple(_compacted_of(descriptor, index))
                self._listing = SegmentListing(index.batches, index.batches_end, True, (), index, compacted)
            else:
                self._listing = self._scan(descriptor, known)
        return self._listing

    def head(self) -> SegmentHead:
        """What it says of itself, and no vector if not `knows_vector`. Raises as `list`."""
        if self._head is None:
            with closing(ReadOnlyDisk(self.path.parent).open(self.path.name)) as descriptor:
                self._head = self._read_head(descriptor)
        return self._head

    @property
    def knows_vector(self) -> bool:
        """Whether its head says what the log held before it: a quarantined one does not."""
        return not self.in_hole(0)

    def _read_head(self, file: DiskFile) -> SegmentHead:
        for start, stop in self.holes:
            if start == 0:
                return SegmentHead(self.base, JOURNAL, self.node, 0, {}, stop)
        with suppress(CorruptLog):
            return read_segment_head(file)
        data = file.read(0, file.size())
        first = next((found.start for found in scan(data) if found.head is not None), self.batches_end)
        try:
            return read_segment_head(file)  # It may have been written since.
        except CorruptLog as error:
            if first is None:
                raise NotBegun(f"{self.path}: {error}") from error
            if not self._over_damage:
                raise CorruptLog(f"{self.path}: {error}") from error
        self.holes = ((0, first), *self.holes)
        return SegmentHead(self.base, JOURNAL, self.node, 0, {}, first)

    def notes(self, listing: SegmentListing, kind: RecordKind, unpack: Callable[[bytes], T]) -> Iterator[T]:
        """What its node has noted in it about itself, by records of one kind: GAP (what it will not get) or GONE (what
        is lost). Damaged batches say nothing.

        Raises FutureVersion, and FileNotFoundError as `list`.
        """
        index = listing.footer
        if index is not None and not any(one == kind and origin.node == self.node for origin, one in index.kinds):
            return
        with open(self.path, "rb") as file:
            for entry in listing.noted if index is None else listing.entries:
                if entry.origin.node == self.node:
                    with suppress(CorruptLog):  # reported by the reader of that batch
                        file.seek(entry.offset)
                        head = read_head(file.read(HEAD_BYTES))
                        if head is not None and (kind != RecordKind.GAP or head.attributes & GAPS):
                            file.seek(entry.offset)
                            batch = file.read(head.size)
                            yield from notes_of(verify_batch(batch), batch, kind, unpack)

    def extent(self, start: int, end: int) -> Extent:
        return Extent(str(self.path), self.node, self.base, start, end, self.holes)

    def _without_holes(self, index: Footer) -> Footer:
        """The index without what the node has quarantined since it was made: peers send that again."""
        entries = [entry for entry in index.batches if not self.in_hole(entry.offset)] if self.holes else index.batches
        if len(entries) == len(index.batches):
            return index
        ranges = {origin: [(after + 1, last) for after, last in found] for origin, found in ranges_of(entries).items()}
        return index._replace(batches=entries, ranges=ranges)

    def in_hole(self, offset: int) -> bool:
        """Whether that range of the file is quarantined."""
        return any(start <= offset < end for start, end in self.holes)

    def _scan(self, file: DiskFile, known: SegmentListing) -> SegmentListing:
        begin = known.end or self.head().size
        entries, noted, compacted = list(known.entries), list(known.noted), list(known.compacted)
        damage = [found for found in known.damage if found[0] < begin]  # what is behind that is looked at once more
        end = begin
        # What a sealing left behind the batches, or was left of an index, counts as nothing.
        limit = file.size() if self.batches_end is None else min(file.size(), self.batches_end)
        for start, stop in [*self.holes, (limit, limit)]:
            if stop <= begin:
                continue
            for at, piece, found in _spans(file, begin, min(start, limit)):
                if found.head is None:
                    damage.append((at + found.start, at + found.end))
                    continue
                head = found.head
                entries.append(
                    BatchEntry(
                        at + found.start, head.origin, head.first, head.last, head.count, head.first_us, head.last_us
                    )
                )
                end = at + found.end
                batch = piece[found.start : found.end]
                if is_compacted(entries[-1]) or has_mark(head, batch):
                    compacted.append(entries[-1])
                if head.attributes & GAPS or _mark_of(RecordKind.GONE) in batch:
                    noted.append(entries[-1])
            begin = stop
        # An index right behind the last batch: the file that came next is lost, and this one is whole.
        if self.batches_end is None or damage and damage[-1][0] >= end and is_sealed(file, end):
            damage = [(start, stop) for start, stop in damage if start < end]
        return SegmentListing(entries, end, False, tuple(damage), None, tuple(compacted), tuple(noted))


def _spans(file: DiskFile, begin: int, end: int) -> Iterator[tuple[int, bytes, BatchSpan]]:
    """What `scan` finds from `begin` to `end`, each with the bytes that it was found in and the offset of these.

    Bytes are read piece by piece: they stay in the processor's caches from the reading to the checksum.
    """
    size = PIECE_BYTES
    while begin < end:
        wanted = min(size, end - begin)
        piece = file.read(begin, wanted)
        is_last = len(piece) < wanted or wanted == end - begin
        at = begin
        for found in scan(piece):
            if found.head is None and not is_last:
                break  # What the piece cuts off is whole in the next one.
            yield at, piece, found
            begin = at + found.end
        if is_last:
            return
        # A batch longer than a piece, or damage: only what follows can show which.
        size = PIECE_BYTES if begin > at else end - begin


def spans_in(data: Any, extent: Extent) -> Iterator[tuple[int, bytes, BatchSpan]]:
    """The same of `extent`, whose file is `data`, without its holes."""
    begin = extent.start
    for start, stop in [*extent.holes, (extent.end, extent.end)]:
        piece = data[begin : max(begin, min(start, extent.end))]
        for found in scan(piece):
            yield begin, piece, found
        begin = max(begin, stop)


def _compacted_of(file: DiskFile, index: Footer) -> Iterator[BatchEntry]:
    """The rests among the batches of an index. Those that only a mark shows are read: a mark is a GAP record."""
    marked = {origin for origin, kind in index.kinds if kind == RecordKind.GAP}
    for entry in index.batches:
        if is_compacted(entry):
            yield entry
        elif entry.origin in marked:
            with suppress(CorruptLog):  # reported by the reader of that batch
                head = read_head(file.read(entry.offset, HEAD_BYTES))
                if head is not None and head.attributes & REST:
                    batch = file.read(entry.offset, head.size)
                    if has_mark(verify_batch(batch), batch):
                        yield entry
