"""The segment file: a head, batches one after another, and once it is sealed an index at its end.

A position is the segment's base plus the offset in the file, so positions grow over all segments of one log. The head
carries the vector of everything before it: each segment can be understood, and recovery can begin, without the older
ones. A segment ends where the next one's base says; the footer and whatever a crashed sealing left behind come after
that and never count as batches.

Surprising: bytes of a segment never change once written; sealing only appends. Readers may therefore map it. What is
damaged is found (`scan`) but never repaired in place.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgpack

from qmq.errors import CorruptLog, FutureVersion
from qmq.model.dots import Origin, Vector
from qmq.storage.format.batch import (
    BATCH_MAGIC,
    BatchHead,
    Unpacked,
    checksum_holds,
    claimed_end,
    lengths_hold,
    read_head,
    unpack_records,
)
from qmq.storage.format.interfaces import File

SEGMENT_VERSION: Final = 1
SEGMENT_MAGIC: Final = b"QMQ\xb2"
FOOTER_MAGIC: Final = b"QMQ\xb3"
SEGMENT_SUFFIX: Final = ".qmq"
JOURNAL: Final = 1
FANOUT: Final = 2
_HEAD_BYTES_MAX: Final = 16 * 1024 * 1024
DESTINATIONS_MAX: Final = 10_000
"""An index that would list more destinations lists none: it would be half as large as its segment, and so would what
makes it."""

HEAD_FIELDS: Final = (
    ("magic", "4s", "`51 4d 51 b2`"),
    ("checksum", "I", "CRC-32 (zlib) of every byte of the head after this field, the vector included"),
    ("version", "H", "1"),
    ("content", "H", "1 journal, 2 fanout log"),
    ("size", "I", "bytes of the whole head; the first batch begins there"),
    ("base", "Q", "position of byte 0 of this file"),
    ("node", "32s", "name of the node that wrote the file, ASCII, filled up with NUL"),
    ("created_us", "Q", "newest timestamp up to the first batch, µs since 1970"),
)
"""After these fields: a msgpack array of [node, incarnation, sequence], the vector at `base` (empty in fanout logs)."""

TRAILER_FIELDS: Final = (
    ("batches_end", "Q", "offset where the batches end"),
    ("size", "I", "bytes of the index that stands right before this trailer"),
    ("version", "H", "1"),
    ("reserved", "H", "0"),
    ("checksum", "I", "CRC-32 (zlib) of the index and of the trailer's fields before this one"),
    ("magic", "4s", "`51 4d 51 b3`"),
)
_HEAD = struct.Struct(">" + "".join(code for _, code, _ in HEAD_FIELDS))
_SEALED_HEAD = struct.Struct(">" + "".join(code for _, code, _ in HEAD_FIELDS[2:]))
_TRAILER = struct.Struct(">" + "".join(code for _, code, _ in TRAILER_FIELDS))
_TRAILER_SEALED = struct.Struct(">" + "".join(code for _, code, _ in TRAILER_FIELDS[:4]))


class SegmentHead(NamedTuple):
    """What a segment says of itself; `size` is the offset of the first batch."""

    base: int
    content: int
    node: str
    created_us: int
    vector: Vector
    size: int


class BatchSpan(NamedTuple):
    """One part of a scanned range, `start` to `end`: a valid batch, or (no head) bytes that are not one."""

    start: int
    end: int
    head: BatchHead | None


class BatchEntry(NamedTuple):
    """A batch as the footer lists it; `offset` counts from the file's beginning."""

    offset: int
    origin: Origin
    first: int
    last: int
    records: int
    first_us: int
    last_us: int


class Footer(NamedTuple):
    """The index of a sealed segment: planning, audits and seeking read this and not the records."""

    batches_end: int
    batches: list[BatchEntry]
    kinds: dict[tuple[Origin, int], int]
    """(origin, kind) → records."""
    destinations: dict[str, tuple[int, int]]
    """Destination → records, bytes of bodies; empty when there are too many to list."""
    ranges: dict[Origin, list[tuple[int, int]]]
    """Origin → sequence ranges (first, last), ends included."""


def segment_name(base: int) -> str:
    """File names sort as positions do."""
    return f"{base:016x}{SEGMENT_SUFFIX}"


def segment_base(name: str) -> int | None:
    """The inverse of `segment_name`; None for other files."""
    stem, dot, suffix = name.partition(".")
    if dot + suffix != SEGMENT_SUFFIX or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_head(base: int, content: int, node: str, created_us: int, vector: Vector) -> bytes:
    packed: bytes = msgpack.packb([[origin.node, origin.incarnation, last] for origin, last in vector.items()])
    size = _HEAD.size + len(packed)
    remainder = _SEALED_HEAD.pack(SEGMENT_VERSION, content, size, base, node.encode("ascii"), created_us) + packed
    return SEGMENT_MAGIC + zlib.crc32(remainder).to_bytes(4, "big") + remainder


def read_segment_head(file: File) -> SegmentHead:
    """Raises CorruptLog (also when the file ends inside the head) and FutureVersion."""
    fixed = file.read(0, _HEAD.size)
    if len(fixed) < _HEAD.size:
        raise CorruptLog("the file ends inside its head")
    magic, checksum, version, content, size, base, node, created_us = _HEAD.unpack(fixed)
    if magic != SEGMENT_MAGIC or not _HEAD.size < size <= _HEAD_BYTES_MAX:
        raise CorruptLog("not the head of a segment")
    packed = file.read(_HEAD.size, size - _HEAD.size)
    if zlib.crc32(packed, zlib.crc32(fixed[8:])) != checksum or len(packed) < size - _HEAD.size:
        raise CorruptLog("segment head checksum differs")
    if version != SEGMENT_VERSION:
        raise FutureVersion(f"a segment of version {version}; this software reads up to {SEGMENT_VERSION}")
    vector: Vector = {Origin(name, incarnation): last for name, incarnation, last in msgpack.unpackb(packed)}
    return SegmentHead(base, content, node.rstrip(b"\0").decode("ascii"), created_us, vector, size)


def scan(data: bytes) -> Iterator[BatchSpan]:
    """All bytes of `data`, in order, as valid batches and ranges that are none. `data` starts at a batch's beginning.

    After damage the scan continues at the next whole batch with a valid checksum: at the end that the damaged batch
    claims, else at the next magic. Raises FutureVersion, because nothing after that can be understood; but not for
    bytes that may be the body of a damaged message.
    """
    place = 0
    while place < len(data):
        head = _batch_at(data, place)
        if head is not None:
            yield BatchSpan(place, place + head.size, head)
            place += head.size
        else:
            after = _resync(data, place)
            yield BatchSpan(place, after, None)
            place = after


def _batch_at(data: bytes, place: int) -> BatchHead | None:
    try:
        head = read_head(data, place)
    except CorruptLog:
        return None
    if head is None or place + head.size > len(data):
        return None
    view = memoryview(data)
    return head if checksum_holds(view, place, head.size) and lengths_hold(view, place, head) else None


def _resync(data: bytes, place: int) -> int:
    """Where the next whole batch begins, or the end.

    Bodies may hold whole batches (a log sent as messages, or forged by a client), and nothing inside a damaged batch
    may pass for one. So when its head and record lengths agree on where it ends, the search begins there; beyond the
    end of the file that is a torn append, and nothing of it counts. For the same reason one of a later version counts
    only where the damaged one ends.
    """
    expected = claimed_end(data, place)
    candidate = data.find(BATCH_MAGIC, max(place + 1, expected))
    while candidate >= 0:
        try:
            if _batch_at(data, candidate) is not None:
                return candidate
        except FutureVersion:
            if candidate == expected:
                raise
        candidate = data.find(BATCH_MAGIC, candidate + 1)
    return len(data)


class IndexBuilder:
    """The index of one segment, batch by batch. It grows with each, and with each record of a sparse one."""

    __slots__ = ("batches", "_kinds", "_destinations", "_is_listed", "_ranges")

    def __init__(self) -> None:
        self.batches: list[BatchEntry] = []
        self._kinds: dict[tuple[Origin, int], int] = {}
        self._destinations: dict[str, tuple[int, int]] = {}
        self._is_listed = True
        self._ranges: dict[Origin, list[tuple[int, int]]] = {}

    def add(self, offset: int, head: BatchHead, records: list[Unpacked]) -> None:
        """The next batch of the file; `offset` counts from the file's beginning."""
        origin = head.origin
        entry = BatchEntry(offset, origin, head.first, head.last, head.count, head.first_us, head.last_us)
        self.batches.append(entry)
        self._count(origin, records)
        if len(self._destinations) > DESTINATIONS_MAX:
            self._is_listed = False
            self._destinations = {}
        _extend_ranges(self._ranges.setdefault(origin, []), head, records)

    def _count(self, origin: Origin, records: list[Unpacked]) -> None:
        """In runs of one kind and destination, as they come from busy clients."""
        kind = known = -1
        destination = ""
        first = bytes_before = body_bytes = 0
        for place, (_, _, what, name, _, body) in enumerate(records):
            if name != destination or what != known:
                self._add(origin, kind, destination, place - first, body_bytes - bytes_before)
                first, bytes_before = place, body_bytes
                destination, known, kind = name, what, what >> 56
            body_bytes += len(body)
        self._add(origin, kind, destination, len(records) - first, body_bytes - bytes_before)

    def _add(self, origin: Origin, kind: int, destination: str, count: int, body_bytes: int) -> None:
        if count:
            self._kinds[origin, kind] = self._kinds.get((origin, kind), 0) + count
            if self._is_listed:
                known_count, known_bytes = self._destinations.get(destination, (0, 0))
                self._destinations[destination] = (known_count + count, known_bytes + body_bytes)

    def footer(self, batches_end: int) -> Footer:
        """`batches_end`: offset where the batches end."""
        return Footer(batches_end, self.batches, self._kinds, self._destinations, self._ranges)


def make_footer(batches_end: int, batches: Iterable[tuple[int, BatchHead, bytes]]) -> Footer:
    """The index over whole `batches` (offset in the file, head, bytes). Decodes every record: a checkpoint's work."""
    index = IndexBuilder()
    for offset, head, data in batches:
        index.add(offset, head, unpack_records(head, data))
    return index.footer(batches_end)


def _extend_ranges(known: list[tuple[int, int]], head: BatchHead, records: list[Unpacked]) -> None:
    """Add the sequences of one more batch to the ranges of its origin."""
    if head.last - head.first + 1 == head.count:
        found = [(head.first, head.last)]
    else:
        found = [(record[0], record[0]) for record in records]
    for first, last in found:
        if known and known[-1][1] + 1 == first:
            known[-1] = (known[-1][0], last)
        else:
            known.append((first, last))


def encode_footer(footer: Footer) -> bytes:
    """The index and its trailer, as they stand behind the batches."""
    origins = {origin: index for index, origin in enumerate(footer.ranges)}
    index: bytes = msgpack.packb(
        {
            "origins": [[origin.node, origin.incarnation] for origin in origins],
            "batches": [[entry.offset, origins[entry.origin], *entry[2:]] for entry in footer.batches],
            "kinds": [[origins[origin], kind, count] for (origin, kind), count in footer.kinds.items()],
            "destinations": footer.destinations,
            "ranges": [[origins[origin], known] for origin, known in footer.ranges.items()],
        }
    )
    sealed = _TRAILER_SEALED.pack(footer.batches_end, len(index), SEGMENT_VERSION, 0)
    return index + sealed + zlib.crc32(sealed, zlib.crc32(index)).to_bytes(4, "big") + FOOTER_MAGIC


def read_footer(file: File, batches_end: int) -> Footer | None:
    """None when the segment is not sealed, or its index is damaged: an index can always be made again.

    `batches_end` is the offset that the next segment's base speaks of. Only what stands behind it is the node's own:
    before it, at the end of a segment that is not sealed, stands a message's body, which may be anything, an index too.

    Raises FutureVersion.
    """
    data = _read_index(file, batches_end)
    if data is None:
        return None
    index = msgpack.unpackb(data)
    origins = [Origin(node, incarnation) for node, incarnation in index["origins"]]
    return Footer(
        batches_end,
        [BatchEntry(entry[0], origins[entry[1]], *entry[2:]) for entry in index["batches"]],
        {(origins[number], kind): count for number, kind, count in index["kinds"]},
        {name: (records, size) for name, (records, size) in index["destinations"].items()},
        {origins[number]: [(first, last) for first, last in known] for number, known in index["ranges"]},
    )


class Summary(NamedTuple):
    """The index without its list of batches; for readers of thousands of segments.

    Ranges stand in the order of the batches, so a batch that came twice or too early shows in them.
    """

    batches: int
    kinds: dict[tuple[Origin, int], int]
    ranges: dict[Origin, list[tuple[int, int]]]


def read_summary(file: File, batches_end: int) -> Summary | None:
    """As `read_footer`, several times faster."""
    data = _read_index(file, batches_end)
    if data is None:
        return None
    index = msgpack.unpackb(data, use_list=False)
    origins = [Origin(node, incarnation) for node, incarnation in index["origins"]]
    return Summary(
        len(index["batches"]),
        {(origins[number], kind): count for number, kind, count in index["kinds"]},
        {origins[number]: list(known) for number, known in index["ranges"]},
    )


def is_sealed(file: File, batches_end: int) -> bool:
    """Whether `read_footer` has something to read. Raises FutureVersion."""
    return _read_index(file, batches_end) is not None


def _read_index(file: File, batches_end: int) -> bytes | None:
    """The bytes of the index; None when it is missing or damaged."""
    end = file.size() - _TRAILER.size
    if end < batches_end:
        return None
    committed_end, size, version, _reserved, checksum, magic = _TRAILER.unpack(file.read(end, _TRAILER.size))
    if magic != FOOTER_MAGIC or committed_end != batches_end or end - size < batches_end:
        return None
    index = file.read(end - size, size)
    sealed = _TRAILER_SEALED.pack(committed_end, size, version, _reserved)
    if zlib.crc32(sealed, zlib.crc32(index)) != checksum:
        return None
    if version != SEGMENT_VERSION:
        raise FutureVersion(f"a segment index of version {version}; this software reads up to {SEGMENT_VERSION}")
    return index
