"""The views of `format("qmq")`: which columns they have, and how a worker makes their rows (docs/spark.md).

`messages` and `log` are decoded from batches by columns; only the columns that were asked for are made. The other
views are small tables that planning has made already.
"""

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qmq.errors import CorruptLog
from qmq.spark.reading.columns import EVERYTHING, Columns, Piece
from qmq.spark.reading.options import BadOption, Options
from qmq.spark.reading.plan import GO_ON_WITHOUT, DataLoss, Part
from qmq.spark.reading.ranges import RangeMap
from qmq.spark.reading.segments import Extent, spans_in
from qmq.storage.format.batch import SHARED_VERSION, BatchHead, read_head
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import RecordKind, unpack_dots

ROWS_PER_BATCH: Final = 32_768
"""Rows handed to Spark at once."""
SHARED_BATCHES_MAX: Final = 16
"""Batches with shared bodies that become one batch of rows. Each row has a copy of its body, and with all of them in
their places a batch may have `BATCH_BYTES_MAX`."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.string())
_STRING: Final = (pa.string(), "string")
_LONG: Final = (pa.int64(), "bigint")

# Column → its type in Arrow and in Spark: the same in each view.
_TYPES: Final[dict[str, tuple[pa.DataType, str]]] = {
    **dict.fromkeys(("origin", "destination", "message_id", "kind", "node", "path", "content", "source"), _STRING),
    **dict.fromkeys(("sequence", "position", "first", "last", "base", "bytes", "batches", "records"), _LONG),
    **dict.fromkeys(("origins", "damaged"), _LONG),
    **dict.fromkeys(("timestamp", "first_timestamp", "last_timestamp"), (_TIME, "timestamp")),
    "priority": (pa.int32(), "int"),
    "body": (pa.binary(), "binary"),
    "headers": (_HEADERS, "map<string,string>"),
    "settled": (pa.list_(pa.string()), "array<string>"),
    "sealed": (pa.bool_(), "boolean"),
    "vector": (pa.map_(pa.string(), pa.int64()), "map<string,bigint>"),
}

_NAME: Final = ("origin", "sequence", "timestamp")
_TIMES: Final = ("first_timestamp", "last_timestamp")

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "messages": (*_NAME, "destination", "message_id", "priority", "body", "headers"),
    "records": (*_NAME, "kind", "destination", "message_id", "priority", "body", "settled", "headers"),
    "log": ("node", "position", *_NAME, "kind", "destination", "priority", "body", "settled", "headers"),
    "ranges": ("node", "origin", "first", "last", *_TIMES),
    "segments": ("node", "path", "content", "base", "bytes", "batches", "records", "sealed", *_TIMES),
    "nodes": ("node", "source", "origins", "records", "bytes", "damaged", "vector"),
}
"""View → its columns, in this order."""


def columns_of(options: Options) -> list[str]:
    """The columns that a reader with these options has. Raises BadOption for one that does not exist."""
    there = COLUMNS[options.view]
    if options.columns is None:
        return [name for name in there if name != "headers" or options.include_headers]
    return arrow_schema(options.view, options.columns).names


def ddl(view: str, columns: Sequence[str]) -> str:
    """A schema as Spark writes it."""
    return ", ".join(f"{name} {_TYPES[name][1]}" for name in columns)


def arrow_schema(view: str, columns: Sequence[str]) -> pa.Schema:
    """The same as Arrow has it. Raises BadOption for a column that the view does not have."""
    there = COLUMNS[view]
    for name in columns:
        if name not in there:
            raise BadOption(f"the view {view} has no column {name!r}; it has {', '.join(there)}")
    return pa.schema([(name, _TYPES[name][0]) for name in columns])


def table_rows(view: str, columns: Sequence[str], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of a view that is no log, with the wanted columns."""
    chosen = [{name: row[name] for name in columns} for row in rows]
    return pa.RecordBatch.from_pylist(chosen, arrow_schema(view, columns))


def read_part(part: Part, options: Options, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one part. Every batch that is read must agree with its checksum.

    Raises:
        CorruptLog: one does not, and `options` call that an error, or the file has changed; names the file.
        DataLoss: the node has dropped a segment since it was planned, and `options` call that an error; names the file.
        FileNotFoundError: this machine does not see the directory at all.
    """
    for extent in part.extents:
        try:
            with open(extent.path, "rb") as file:
                data = mmap.mmap(file.fileno(), extent.end, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            if not Path(extent.path).parent.is_dir():
                raise
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{extent.path}: the node has dropped this segment since it was planned to be read; read again "
                    f"what is left, or {GO_ON_WITHOUT} it"
                ) from error
            continue
        except ValueError:
            raise CorruptLog(f"{extent.path} is shorter than when it was planned: load again") from None
        if not options.fail_on_data_loss:
            # An index does not show damage.
            spans = [(at + found.start, at + found.end) for at, _, found in spans_in(data, extent) if not found.head]
            extent = extent._replace(holes=(*extent.holes, *spans))
        try:
            yield from read_batches(data, extent, part.wanted, options, columns)
        except CorruptLog as error:
            raise CorruptLog(f"{extent.path}: {error}") from error


def read_batches(
    data: Any,
    extent: Extent,
    wanted: RangeMap | None,
    options: Options,
    columns: Sequence[str],
    got: RangeMap | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of whole batches in `data`, which begins where the file of `extent` does; `got` learns what was there.

    Raises CorruptLog.
    """
    schema = arrow_schema(options.view, columns)
    for pieces in _groups(data, extent.start, extent.end, extent.holes, wanted):
        found = Columns(data, pieces)
        if got is not None:
            for head in found.heads:
                got.add(head.origin, head.first - 1, head.last)
        _choose(found, options)
        if len(found):
            made = _Maker(found, extent, pieces)
            yield pa.RecordBatch.from_arrays([made.column(name) for name in columns], schema=schema)


def _groups(
    data: Any, start: int, end: int, holes: tuple[tuple[int, int], ...], wanted: RangeMap | None
) -> Iterator[list[Piece]]:
    """Batches from `start` to `end`, so many at a time as make one batch of rows."""
    group: list[Piece] = []
    rows = shared = 0
    offset = start
    while offset < end:
        if holes:
            hole = next((stop for begin, stop in holes if begin <= offset < stop), None)
            if hole is not None:
                offset = hole
                continue
        head = read_head(data, offset)
        if head is None or offset + head.size > end:
            raise CorruptLog(f"no whole batch begins at offset {offset}")
        group.extend(_pieces(offset, head, wanted))
        rows += head.count
        shared += head.version == SHARED_VERSION
        offset += head.size
        if rows >= ROWS_PER_BATCH or shared >= SHARED_BATCHES_MAX:
            yield group
            group, rows, shared = [], 0, 0
    if group:
        yield group


def _pieces(offset: int, head: BatchHead, wanted: RangeMap | None) -> Iterator[Piece]:
    if wanted is None:
        yield Piece(offset, 0, EVERYTHING, head)
        return
    for after, through in wanted.overlapping(head.origin, head.first, head.last):
        yield Piece(offset, after, through, head)


def _choose(found: Columns, options: Options) -> None:
    """Keep what the options ask for."""
    if options.view == "messages":
        kinds = found.kind
        rows = (kinds == RecordKind.PUBLISH) | (kinds == RecordKind.DEAD)
        if not rows.all():
            found.choose(rows)
    if options.starting_us is not None or options.ending_us is not None:
        time = found.timestamp_us
        ending_us = EVERYTHING if options.ending_us is None else options.ending_us
        found.choose((time >= (options.starting_us or 0)) & (time < ending_us))
    if not options.is_unfiltered and len(found):
        names = found.destination()
        chosen = [name for name in names.unique().to_pylist() if options.includes(name)]
        rows = pc.is_in(names, pa.array(chosen, pa.string())).to_numpy(zero_copy_only=False)
        if not rows.all():
            found.choose(rows)


class _Maker:
    """Columns by name. What several of them need is made once."""

    def __init__(self, found: Columns, extent: Extent, pieces: list[Piece]) -> None:
        self._found = found
        self._extent = extent
        self._pieces = pieces

    def column(self, name: str) -> pa.Array:
        found = self._found
        match name:
            case "origin":
                return self._origin()
            case "sequence":
                return pa.array(found.sequence)
            case "timestamp":
                return pa.array(found.timestamp_us).view(_TIME)
            case "destination":
                return found.destination()
            case "message_id":
                return pc.binary_join_element_wise(self._origin(), pc.cast(pa.array(found.sequence), pa.string()), "-")
            case "priority":
                return pa.array(found.priority.astype(np.int32))
            case "body":
                return self._bodies()
            case "headers":
                return parse_headers(found.headers())
            case "node":
                return pa.repeat(pa.scalar(self._extent.node), len(found))
            case "position":
                if not self._extent.path:
                    return pa.nulls(len(found), pa.int64())  # A live node does not report it.
                offsets = np.array([piece.offset for piece in self._pieces], np.int64) + self._extent.base
                return pa.array(offsets[found.batch])
            case "kind":
                return _kinds(found.kind)
            case "settled":
                return self._settled()
        raise AssertionError(f"no column {name}")

    def _origin(self) -> pa.Array:
        names = pa.array([str(head.origin) for head in self._found.heads], pa.string())
        return names.take(pa.array(self._found.batch))

    def _bodies(self) -> pa.Array:
        """Bodies; of a record that is a dead letter and a settle in one, the dead letter's."""
        bodies = self._found.body()
        dead = np.flatnonzero(self._found.kind == RecordKind.DEAD)
        if not len(dead):
            return bodies
        plain = bodies.to_pylist()
        for row in dead:
            plain[row] = unpack_dead(plain[row])[2]
        return pa.array(plain, pa.binary())

    def _settled(self) -> pa.Array:
        """Message ids of what a record settles, null for records that settle nothing."""
        kinds, bodies = self._found.kind, self._found.body()
        rows: list[list[str] | None] = [None] * len(kinds)
        for row in np.flatnonzero(kinds == RecordKind.SETTLE):
            rows[row] = [str(dot) for dot in unpack_dots(bodies[int(row)].as_py())]
        for row in np.flatnonzero(kinds == RecordKind.DEAD):
            rows[row] = [str(unpack_dead(bodies[int(row)].as_py())[1])]
        return pa.array(rows, pa.list_(pa.string()))


def _kinds(kinds: "np.ndarray[Any, np.dtype[np.uint8]]") -> pa.Array:
    known = {kind.value: kind.name for kind in RecordKind}
    names = pa.array([known.get(number, str(number)) for number in range(256)], pa.string())
    return names.take(pa.array(kinds))


def parse_headers(blocks: pa.Array) -> pa.Array:
    """Header blocks (STOMP 1.2, escaped) as maps; of a repeated header the first one counts. Each block once."""
    coded = blocks.dictionary_encode()
    maps = [list(_headers(block.as_py()).items()) for block in coded.dictionary]
    return pa.array(maps, _HEADERS).take(coded.indices)


def _headers(block: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(_unescape(name), _unescape(value))
    return found


_ESCAPES: Final = {r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\c": ":"}


def _unescape(text: str) -> str:
    """What is no escape stays as it is."""
    return re.sub(r"\\[\\nrc]", lambda found: _ESCAPES[found[0]], text)
