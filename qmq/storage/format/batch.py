"""The batch: unit of storage, checksum, replication and column reading. Records of one origin, in order.

`FIELDS` is the one description of a batch's head: writing, reading and docs/storage-format.md all follow it. After
the head come the records' lengths (`count` × u32) and then the records. A peer appends the same bytes it received,
so nothing in a batch depends on the node that holds it. All integers are big-endian, as in msgpack.

Journal batches are dense: sequences `first`…`last` without holes. Fanout logs keep a selection of an origin's
records, and say so with `SPARSE`. Pure: no clock, no I/O; files are `segment`'s business.

A body that several messages of a batch have is written once (`shared_bodies`). Such a batch has version 2, and stands
for the batch of version 1 with all bodies in their places. All readers here return what that one would give.

Surprising: the checksum distinguishes a batch of a later version from a damaged one. Magic, checksum, version and size
therefore keep their places in every version to come.
"""

import struct
import sys
import zlib
from array import array
from typing import Any, Final, NoReturn

import msgpack

from qmq.errors import CorruptLog, FutureVersion
from qmq.model.dots import Origin
from qmq.storage.format.record import KIND_OFFSET, PREFIX_BYTES, REFERENCE_BYTES, Record, RecordKind, unpack_record
from qmq.storage.format.shared_bodies import Reference, find_references

BATCH_VERSION: Final = 1
SHARED_VERSION: Final = 2
"""Version of a batch in which records refer to the body of another one. Batches without references have version 1."""
BATCH_MAGIC: Final = b"QMQ\xb1"
BATCH_BYTES_MAX: Final = 48 * 1024 * 1024
"""Hard bound of one batch, so that a damaged length cannot ask for more; a single message must fit. With all shared
bodies in their places it must hold, too: then a copy of the records takes no more memory, and fits into a batch."""
BATCH_BYTES_TARGET: Final = 1024 * 1024
"""Where writers of many records begin the next batch."""

_ARRAY_32: Final = b"\xdd"
"""Mark of msgpack before an array; four bytes of its length follow."""

SPARSE: Final = 1
"""Attribute: sequences grow but have holes (fanout logs)."""
MEMORY: Final = 2
"""Attribute: carried by links, journalled by no node."""
GAPS: Final = 4
"""Attribute: holds at least one GAP record, so the journal has to look inside."""
REST: Final = 8
"""Attribute, with SPARSE: what a peer's stores had left of a range whose journal is dropped. It stands in the journal
for the whole range, and never goes over a link."""

FIELDS: Final = (
    ("magic", "4s", "`51 4d 51 b1`"),
    ("checksum", "I", "CRC-32 (zlib) of every byte of the batch after this field"),
    ("version", "H", "1; 2 if a body is shared"),
    ("attributes", "H", "1 SPARSE, 2 MEMORY, 4 GAPS, 8 REST"),
    ("size", "I", "bytes of the whole batch, this head included"),
    ("count", "I", "number of records"),
    ("reserved", "I", "0; aligns what follows to 8 bytes"),
    ("node", "32s", "the origin's node name, ASCII, filled up with NUL"),
    ("incarnation", "Q", "the origin's incarnation"),
    ("first", "Q", "sequence of the first record"),
    ("last", "Q", "sequence of the last record"),
    ("first_us", "Q", "timestamp of the first record, µs since 1970"),
    ("last_us", "Q", "timestamp of the last record, µs since 1970"),
)
_HEAD = struct.Struct(">" + "".join(code for _, code, _ in FIELDS))
_SEALED_HEAD = struct.Struct(">" + "".join(code for _, code, _ in FIELDS[2:]))
"""The part of the head that the checksum covers."""

HEAD_BYTES: Final = _HEAD.size
_UNSEALED_BYTES = HEAD_BYTES - _SEALED_HEAD.size
_SWAP = sys.byteorder == "little"


class BatchHead:
    """What a batch says of itself. `size` is in bytes, head included; timestamps are µs since 1970."""

    __slots__ = ("origin", "first", "last", "first_us", "last_us", "count", "size", "attributes", "version")

    def __init__(
        self,
        origin: Origin,
        first: int,
        last: int,
        first_us: int,
        last_us: int,
        count: int,
        size: int,
        attributes: int,
        version: int,
    ) -> None:
        self.origin = origin
        self.first = first
        self.last = last
        self.first_us = first_us
        self.last_us = last_us
        self.count = count
        self.size = size
        self.attributes = attributes
        self.version = version

    def __repr__(self) -> str:
        return f"BatchHead({self.origin}, {self.first}–{self.last}, {self.count} records, {self.size} bytes)"


def encode_batch(
    origin: Origin,
    records: list[bytes],
    first: int,
    last: int,
    first_us: int,
    last_us: int,
    attributes: int = 0,
    version: int = BATCH_VERSION,
) -> bytes:
    """One batch of packed records. Raises ValueError, before anything is built, when it would break the format.

    `version` is `SHARED_VERSION` if a record was made by `pack_reference`.
    """
    count = len(records)
    node = origin.node.encode("ascii")
    if not 0 < len(node) <= 32:
        raise ValueError(f"a node name has 1–32 characters: {origin.node!r}")
    if count == 0 or first < 1 or (last - first + 1 != count and not (attributes & SPARSE and last - first >= count)):
        raise ValueError(f"{count} records cannot be {first}–{last}")
    lengths = array("I", map(len, records))
    size = HEAD_BYTES + 4 * count + sum(lengths)
    if size > BATCH_BYTES_MAX:
        raise ValueError(f"a batch of {size} bytes is over {BATCH_BYTES_MAX}")
    if _SWAP:
        lengths.byteswap()
    sealed = _SEALED_HEAD.pack(
        version, attributes, size, count, 0, node, origin.incarnation, first, last, first_us, last_us
    )
    remainder = b"".join([sealed, lengths.tobytes(), *records])
    return b"".join((BATCH_MAGIC, zlib.crc32(remainder).to_bytes(4, "big"), remainder))


def is_journal(attributes: int) -> bool:
    """Whether a batch with these attributes may stand in a journal."""
    return not attributes & MEMORY and (not attributes & SPARSE or attributes & REST != 0)


def read_head(data: bytes | memoryview, offset: int = 0) -> BatchHead | None:
    """The head at `offset`, unchecked against the checksum; None when `data` ends before its end.

    Raises:
        CorruptLog: these bytes cannot begin a batch.
        FutureVersion: a whole batch, with a valid checksum, of a later version.
    """
    if len(data) - offset < HEAD_BYTES:
        return None
    (
        magic,
        checksum,
        version,
        attributes,
        size,
        count,
        _reserved,
        node,
        incarnation,
        first,
        last,
        first_us,
        last_us,
    ) = _HEAD.unpack_from(data, offset)
    if magic != BATCH_MAGIC:
        raise CorruptLog("no batch begins here: wrong magic")
    if not HEAD_BYTES < size <= BATCH_BYTES_MAX:
        raise CorruptLog(f"a batch cannot have {size} bytes")
    if version != BATCH_VERSION and version != SHARED_VERSION:
        if len(data) - offset < size:
            return None
        _refuse_version(data, offset, version, size, checksum)
    if HEAD_BYTES + 4 * count >= size:
        raise CorruptLog(f"{count} records do not fit into {size} bytes")
    if count == 0 or first < 1 or (last - first + 1 != count and not (attributes & SPARSE and last - first >= count)):
        raise CorruptLog(f"{count} records cannot be {first}–{last}")
    name = node.rstrip(b"\0")
    if not name or not name.isascii():
        raise CorruptLog("no node name in the batch")
    return BatchHead(
        Origin(name.decode("ascii"), incarnation), first, last, first_us, last_us, count, size, attributes, version
    )


def _refuse_version(data: bytes | memoryview, offset: int, version: int, size: int, checksum: int) -> NoReturn:
    """Distinguish a later version from damage: only the checksum can."""
    if zlib.crc32(memoryview(data)[offset + _UNSEALED_BYTES : offset + size]) == checksum:
        raise FutureVersion(f"a batch of version {version}; this software reads up to {SHARED_VERSION}")
    raise CorruptLog("batch checksum differs")


def verify_batch(data: bytes | memoryview) -> BatchHead:
    """The head of exactly one whole batch whose checksum and structure hold.

    The records' own sequences are compared with the head when they are decoded (`batch_records`).

    Raises:
        CorruptLog: magic, length, sequences or checksum are wrong, or bytes are missing or left over.
        FutureVersion: the batch is whole, and of a later version.
    """
    head = read_head(data)
    if head is None or head.size != len(data):
        raise CorruptLog("not exactly one batch")
    view = memoryview(data)
    if not checksum_holds(view, 0, head.size):
        raise CorruptLog("batch checksum differs")
    if not lengths_hold(view, 0, head):
        raise CorruptLog("record lengths do not add up")
    return head


def checksum_holds(data: memoryview, offset: int, size: int) -> bool:
    """Whether the batch of `size` bytes at `offset` agrees with its checksum; for callers that have read its head."""
    expected = int.from_bytes(data[offset + 4 : offset + _UNSEALED_BYTES], "big")
    return zlib.crc32(data[offset + _UNSEALED_BYTES : offset + size]) == expected


def lengths_hold(data: memoryview, offset: int, head: BatchHead) -> bool:
    """Whether the records of the batch at `offset` are as long together as its head says."""
    return sum(_lengths(data[offset:], head.count)) == head.size - HEAD_BYTES - 4 * head.count


def batch_records(data: bytes | memoryview) -> list[Record]:
    """All records of one batch, kinds unknown to this version included.

    Trusts the checksum (`verify_batch` first); raises CorruptLog when the records do not fit the head.
    """
    head = read_head(data)
    if head is None or head.size > len(data):
        raise CorruptLog("not a whole batch")
    view = memoryview(data)
    records: list[Record] = []
    sparse = head.attributes & SPARSE != 0
    expected = head.first
    sources = {reference.place: reference.source for reference in _references(head, view)}
    start = HEAD_BYTES + 4 * head.count
    for length in _lengths(view, head.count):
        end = start + length
        if sources and len(records) in sources:
            record = unpack_record(view[start:end], records[sources[len(records)]].body)
        else:
            record = unpack_record(view[start:end])
        if record.sequence != expected and (not sparse or record.sequence < expected or record.sequence > head.last):
            raise CorruptLog(f"record {record.sequence} where {expected} was expected")
        expected = record.sequence + 1
        records.append(record)
        start = end
    return records


Unpacked = tuple[int, int, int, str, bytes, bytes]
"""A record as msgpack has it: sequence, timestamp µs, kind << 56 | flags << 32, destination, headers, body."""


def unpack_records(head: BatchHead, data: bytes | memoryview) -> list[Unpacked]:
    """All records of a whole batch, five times faster than `batch_records`, for callers that read millions.

    Trusts the checksum, and that the lengths in front of the records are theirs, as was seen when the batch was taken
    in. Raises CorruptLog when the records do not fit the head.
    """
    # As one array: a reader of a stream takes longer to make than a short batch to read.
    packed = _ARRAY_32 + head.count.to_bytes(4, "big") + data[HEAD_BYTES + 4 * head.count : head.size]
    try:
        unpacked: list[Any] = list(msgpack.unpackb(packed, use_list=False))
        whole = set(map(len, unpacked)) == {6}
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not the {head.count} records that the batch announces: {error}") from error
    if not whole:
        raise CorruptLog(f"not the {head.count} records that the batch announces")
    first, last = unpacked[0][0], unpacked[-1][0]
    if not head.attributes & SPARSE and [first, last] != [head.first, head.last]:
        raise CorruptLog(f"records {first}–{last} where {head.first}–{head.last} were expected")
    for reference in _references(head, memoryview(data)):
        unpacked[reference.place] = (*unpacked[reference.place][:5], unpacked[reference.source][5])
    found: list[Unpacked] = unpacked
    return found


def record_slices(data: bytes | memoryview) -> list[bytes]:
    """The packed records of one batch, for a reader that copies some of them on. Trusts the checksum.

    Each has its own body: a record that refers to another one means nothing outside its batch.
    """
    head = read_head(data)
    if head is None or head.size > len(data):
        raise CorruptLog("not a whole batch")
    view = memoryview(data)
    slices: list[bytes] = []
    start = HEAD_BYTES + 4 * head.count
    for length in _lengths(view, head.count):
        slices.append(bytes(view[start : start + length]))
        start += length
    for reference in _references(head, view):
        own, shared = slices[reference.place], slices[reference.source]
        slices[reference.place] = own[:-REFERENCE_BYTES] + shared[reference.body_offset :]
    return slices


def _references(head: BatchHead, view: memoryview) -> list[Reference]:
    """The records that have no body of their own. Raises CorruptLog when a reference is wrong."""
    if head.version != SHARED_VERSION:
        return []
    return find_references(view, HEAD_BYTES + 4 * head.count, _lengths(view, head.count), BATCH_BYTES_MAX)


def claimed_end(data: bytes, offset: int) -> int:
    """Where the batch at `offset` says it ends, damaged or not; `offset` itself when head and lengths disagree."""
    try:
        head = read_head(data, offset)
    except CorruptLog:
        return offset
    if head is None or offset + HEAD_BYTES + 4 * head.count > len(data):
        return offset
    lengths = sum(_lengths(memoryview(data)[offset:], head.count))
    return offset + head.size if HEAD_BYTES + 4 * head.count + lengths == head.size else offset


def published_destinations(data: bytes) -> dict[str, int]:
    """Destination → PUBLISH records of one batch, without decoding anything else. Trusts the checksum."""
    head = read_head(data)
    if head is None or head.size > len(data):
        raise CorruptLog("not a whole batch")
    counted: dict[bytes, int] = {}
    start = HEAD_BYTES + 4 * head.count
    for length in _lengths(memoryview(data), head.count):
        if data[start + KIND_OFFSET] == RecordKind.PUBLISH:
            mark = data[start + PREFIX_BYTES]
            text = start + PREFIX_BYTES + 1
            if mark < 0xC0:
                end = text + (mark & 0x1F)
            elif mark == 0xD9:
                text += 1
                end = text + data[text - 1]
            else:
                text += 2
                end = text + int.from_bytes(data[text - 2 : text], "big")
            name = data[text:end]
            counted[name] = counted.get(name, 0) + 1
        start += length
    return {name.decode(): count for name, count in counted.items()}


def _lengths(view: memoryview, count: int) -> "array[int]":
    lengths = array("I")
    lengths.frombytes(view[HEAD_BYTES : HEAD_BYTES + 4 * count])
    if _SWAP:
        lengths.byteswap()
    return lengths
