"""Columns of records, gathered from batches without touching a record: numpy finds the places, Arrow copies the bytes.

A record's first three integers stand at fixed offsets, and what follows is a short msgpack string and two byte strings
(docs/storage-format.md), so sequence, time, kind, destination, headers and body of a whole segment are a few array
operations. Only headers as a map are parsed, each distinct block once. Where a body is shared, a row has the place of
the body that its record refers to.

Surprising: `Columns` holds the mapped file; what it returns are copies, so the file may go away afterwards.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from qmq.errors import CorruptLog
from qmq.storage.format.batch import (
    BATCH_BYTES_MAX,
    HEAD_BYTES,
    SHARED_VERSION,
    BatchHead,
    checksum_holds,
    read_head,
)
from qmq.storage.format.record import KIND_OFFSET, PREFIX_BYTES, PRIORITY_DEFAULT, RecordKind
from qmq.storage.format.shared_bodies import REFERENCE_MARK

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_INLINE_BYTES: Final = 12
"""A view of so few bytes holds them itself (Arrow's variable-size binary view layout)."""
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])


EVERYTHING: Final = 1 << 62
"""Above every sequence and every time."""


class Piece(NamedTuple):
    """One whole batch in a buffer, and what of it is wanted: sequences above `after` up to `through`.

    `head`: of the batch, if the caller has read it.
    """

    offset: int
    after: int
    through: int
    head: BatchHead | None = None


class Columns:
    """Records of some batches of one buffer, chosen row by row; every method returns one value per chosen row."""

    def __init__(self, buffer: Any, pieces: Sequence[Piece], *, check: bool = True) -> None:
        """Find the records of `pieces`; with `check`, each batch must agree with its checksum.

        `buffer` is anything with the buffer protocol and must stay as long as this object.

        Raises:
            CorruptLog: no whole batch begins at one of the offsets.
            FutureVersion: one is of a later version.
        """
        view = memoryview(buffer)
        self._bytes: Bytes = np.frombuffer(view, np.uint8)
        self._buffer = pa.py_buffer(view)
        self.heads: list[BatchHead] = [_head_at(view, piece, check) for piece in pieces]
        counts = np.array([head.count for head in self.heads], np.int64)
        self._starts = self._record_starts(np.array([piece.offset for piece in pieces], np.int64), counts)
        self.batch: Numbers = np.repeat(np.arange(len(pieces)), counts)
        """Index of each row's piece."""
        self.sequence: Numbers = self._u64(self._starts + 2)
        # Only where bodies are shared: the beginning of every record, chosen or not, and which of them each row is.
        self._record_places: tuple[Numbers, Numbers] | None = None
        if any(head.version == SHARED_VERSION for head in self.heads):
            self._record_places = (self._starts, np.arange(len(self._starts)))
        self._places: dict[str, tuple[Numbers, Numbers]] = {}
        pairs = zip(pieces, self.heads, strict=True)
        if any(piece.after >= head.first or piece.through < head.last for piece, head in pairs):
            after: Numbers = np.repeat(np.array([piece.after for piece in pieces], np.int64), counts)
            through: Numbers = np.repeat(np.array([piece.through for piece in pieces], np.int64), counts)
            self.choose((self.sequence > after) & (self.sequence <= through))

    def _record_starts(self, offsets: Numbers, counts: Numbers) -> Numbers:
        """Where the records of batches at `offsets` begin. Raises CorruptLog when their lengths do not add up."""
        if not len(offsets):
            return np.empty(0, np.int64)
        tables: Numbers = offsets + HEAD_BYTES
        rows = np.arange(counts.sum())
        # Of each batch: its first row among all, and how many rows stand before those of the others.
        first: Numbers = np.cumsum(counts) - counts
        window = np.ndarray((len(self._bytes) - 3,), ">u4", self._bytes, strides=(1,))
        lengths = window[np.repeat(tables - 4 * first, counts) + 4 * rows].astype(np.int64)
        ends: Numbers = np.cumsum(lengths)
        before = ends - lengths
        sizes = np.array([head.size for head in self.heads], np.int64) - HEAD_BYTES - 4 * counts
        if (ends[first + counts - 1] - before[first] != sizes).any():
            raise CorruptLog("record lengths do not add up")
        return before + np.repeat(tables + 4 * counts - before[first], counts)

    def __len__(self) -> int:
        return len(self._starts)

    def choose(self, rows: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
        """Keep only the rows where `rows` is true."""
        self._starts = self._starts[rows]
        self.batch = self.batch[rows]
        self.sequence = self.sequence[rows]
        if self._record_places is not None:
            self._record_places = (self._record_places[0], self._record_places[1][rows])
        self._places = {name: (at[rows], size[rows]) for name, (at, size) in self._places.items()}

    @property
    def timestamp_us(self) -> Numbers:
        return self._u64(self._starts + 11)

    @property
    def kind(self) -> Bytes:
        return self._bytes[self._starts + 20]

    @property
    def priority(self) -> Numbers:
        marked = (self._bytes[self._starts + 21] >> 4).astype(np.int64)
        return np.where(marked == 0, PRIORITY_DEFAULT, marked - 1)

    def destination(self) -> pa.Array:
        """Strings."""
        return self._text("destination")

    def headers(self) -> pa.Array:
        """Header blocks as they were sent (binary)."""
        return self._text("headers")

    def body(self) -> pa.Array:
        """Binary."""
        return self._text("body")

    def _text(self, name: str) -> pa.Array:
        kind = pa.string() if name == "destination" else pa.binary()
        return _copied(self._buffer, self._bytes, *self._place(name), kind)

    def _place(self, name: str) -> tuple[Numbers, Numbers]:
        """Where the bytes of one field are, and how many: right behind those of the field before it."""
        known = self._places.get(name)
        if known is None:
            if name == "destination":
                known = _string_at(self._bytes, self._starts + PREFIX_BYTES)
            else:
                at, size = self._place("headers" if name == "body" else "destination")
                known = _binary_at(self._bytes, at + size)
                if name == "body" and self._record_places is not None:
                    self._resolve(at + size, *known, *self._record_places)
            self._places[name] = known
        return known

    def _resolve(self, elements: Numbers, at: Numbers, size: Numbers, starts: Numbers, numbers: Numbers) -> None:
        """Put the place of the shared body into `at` and `size` where a row has a reference instead of a body.

        `elements`: where the body or reference of each row begins. Raises CorruptLog when a reference is wrong.
        """
        shared = np.array([head.version == SHARED_VERSION for head in self.heads])
        rows = np.flatnonzero(
            (self._bytes[elements] == REFERENCE_MARK) & (self.kind == RecordKind.PUBLISH) & shared[self.batch]
        )
        if not len(rows):
            return
        window = np.ndarray((len(self._bytes) - 3,), ">u4", self._bytes, strides=(1,))
        back = window[elements[rows] + 1].astype(np.int64)
        counts = np.array([head.count for head in self.heads], np.int64)
        first = (np.cumsum(counts) - counts)[self.batch[rows]]
        sources = numbers[rows] - back
        if (back < 1).any() or (sources < first).any():
            raise CorruptLog("a record refers to a body outside its batch")
        begin, length = _string_at(self._bytes, starts[sources] + PREFIX_BYTES)
        begin, length = _binary_at(self._bytes, begin + length)
        begin = begin + length
        marks = self._bytes[begin]
        if (self._bytes[starts[sources] + KIND_OFFSET] != RecordKind.PUBLISH).any() or not (
            (marks >= 0xC4) & (marks <= 0xC6)
        ).all():
            raise CorruptLog("a record refers to one that is no message with a body")
        at[rows], size[rows] = _binary_at(self._bytes, begin)
        if (np.bincount(self.batch[rows], size[rows]) > BATCH_BYTES_MAX).any():
            raise CorruptLog(f"a batch has over {BATCH_BYTES_MAX} bytes with all shared bodies in their places")

    def _u64(self, at: Numbers) -> Numbers:
        """Big-endian integers at any offsets. All of ours are below 2^63."""
        if not len(at):
            return np.empty(0, np.int64)
        window = np.ndarray((len(self._bytes) - 7,), ">u8", self._bytes, strides=(1,))
        return window[at].astype(np.int64)


def _head_at(view: memoryview, piece: Piece, check: bool) -> BatchHead:
    head = piece.head or read_head(view, piece.offset)
    if head is None or piece.offset + head.size > len(view):
        raise CorruptLog(f"no whole batch begins at {piece.offset}")
    if check and not checksum_holds(view, piece.offset, head.size):
        raise CorruptLog(f"the batch at {piece.offset}: its checksum differs")
    return head


def _string_at(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Where the text of the msgpack string at `at` begins, and its length."""
    mark = data[at]
    short = mark < 0xC0
    if short.all():
        return at + 1, (mark & 0x1F).astype(np.int64)
    one = mark == 0xD9
    size = np.where(short, mark & 0x1F, data[at + 1]).astype(np.int64)
    size = np.where(short | one, size, size << 8 | data[at + 2])
    return at + np.where(short, 1, np.where(one, 2, 3)), size


def _binary_at(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Where the bytes of the msgpack byte string at `at` begin, and how many."""
    mark = data[at]
    size: Numbers = data[at + 1].astype(np.int64)
    if (mark == 0xC4).all():
        return at + 2, size
    two = mark >= 0xC5
    size[two] = size[two] << 8 | data[at[two] + 2]
    four = mark == 0xC6
    size[four] = size[four] << 16 | data[at[four] + 3].astype(np.int64) << 8 | data[at[four] + 4]
    return at + np.where(four, 5, np.where(two, 3, 2)), size


def _copied(buffer: pa.Buffer, data: Bytes, at: Numbers, size: Numbers, kind: pa.DataType) -> pa.Array:
    """The bytes at `at` as an Arrow array of their own: described as views, then copied by Arrow in one go."""
    count = len(at)
    if not count:
        return pa.array([], kind)
    views: Any = np.zeros(count, _VIEW)
    views["size"] = size
    small = size <= _INLINE_BYTES
    long = ~small
    if long.any():
        where = at[long]
        window = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
        views["prefix"][long] = window[where]
        views["offset"][long] = where
    if small.any():
        inline: Any = views.view(np.uint8).reshape(count, 16)
        for index in range(_INLINE_BYTES):
            rows = np.flatnonzero(small & (size > index))
            if not len(rows):
                break
            inline[rows, 4 + index] = data[at[rows] + index]
    text = pa.string_view() if pa.types.is_string(kind) else pa.binary_view()
    return pa.Array.from_buffers(text, count, [None, pa.py_buffer(views), buffer]).cast(kind)
