"""The Parquet files of a table: what is made of parts of the logs, one file per day.

A file counts only once a commit of the table names it (`table`); others are rubbish that `vacuum` removes.
"""

import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qmq.spark.archive.storage import create, make_durable, remove
from qmq.spark.reading.options import Options
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.plan import Part
from qmq.spark.reading.ranges import Lacking
from qmq.spark.reading.views import arrow_schema

COLUMNS: Final = ("origin", "sequence", "timestamp", "destination", "priority", "headers", "body")
"""What the table has, besides `day`. A message's id is its origin, a hyphen and its sequence."""
PARTITION: Final = "day"
ROWS_PER_GROUP: Final = 131_072
BYTES_PER_GROUP: Final = 64 << 20
"""Of rows that wait to be written, of all days: parts of live nodes are made by numbers of records, of any size."""
SCHEMA: Final = arrow_schema("messages", COLUMNS)
LACKING: Final = "lacking"
BOUND_CHARS: Final = 32
"""Of the bounds of text, which may be long."""
LAST_MS: Final = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
"""No whole ms is behind it."""
HIGHEST: Final = "\U0010ffff"
"""No text is behind one that begins with it."""


def write_parts(parts: Iterable[Part], options: Options, table: str, name: str) -> list[dict[str, Any]]:
    """The rows of some parts as files of an archive, and what these lack; see `write_rows` and `missing_entries`."""
    lacking = Lacking()
    rows = (rows for part in parts for rows in rows_of_part(part, options, COLUMNS, lacking))
    return [*write_rows(rows, SCHEMA, table, name), *missing_entries(lacking)]


def missing_entries(lacking: Lacking) -> list[dict[str, Any]]:
    """What no node had, in the place of a file: known where rows are read, and needed where they are committed."""
    return [{LACKING: lacking}] if lacking.missing else []


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str, name: str) -> list[dict[str, Any]]:
    """Rows as Parquet files, one per day, and what a commit must know of them. Durable on return.

    After an error, or a cancel, the files are removed. No two attempts write the same file: one that Spark has given up
    may still run, and write or remove its files long after those of another one were committed.
    """
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    files: dict[str, DayFile] = {}
    try:
        for batch in batches:
            days = pc.strftime(batch.column("timestamp"), "%Y-%m-%d")
            distinct = days.unique().to_pylist()
            for day in distinct:
                rows = batch if len(distinct) == 1 else batch.filter(pc.equal(days, day))
                if day not in files:
                    files[day] = DayFile(table, day, name, schema)
                files[day].add(rows)
                if sum(file.bytes_waiting for file in files.values()) >= BYTES_PER_GROUP:
                    max(files.values(), key=lambda file: file.bytes_waiting).write()
        return [file.finish() for file in files.values()]
    except BaseException:
        for file in files.values():
            file.abandon()
        raise


class DayFile:
    """One Parquet file that is being written."""

    def __init__(self, table: str, day: str, name: str, schema: pa.Schema = SCHEMA) -> None:
        self._table = table
        self._path = f"{PARTITION}={day}/{name}.parquet"
        self._day = day
        self._file = create(table, self._path)
        self._schema = schema
        self._bounded = {field.name: field.type for field in schema if _has_bounds(field.type)}
        self._written: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["origin", "destination", "priority", "headers.key_value.key", "headers.key_value.value"],
            write_statistics=list(self._bounded),
            metadata_collector=self._written,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows_waiting = 0
        self.bytes_waiting = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows_waiting += batch.num_rows
        self.bytes_waiting += batch.nbytes
        if self._rows_waiting >= ROWS_PER_GROUP:
            self.write()

    def finish(self) -> dict[str, Any]:
        """Close the file, durable, and return what is in it."""
        self.write()
        self._writer.close()
        size = self.size()
        self._file.close()
        make_durable(self._table, self._path)
        (written,) = self._written
        return {
            "path": self._path,
            "day": self._day,
            "size": size,
            "rows": written.num_rows,
            "modified_ms": int(time.time() * 1000),
            "stats": _stats(written, self._bounded),
        }

    def size(self) -> int:
        """Bytes that are written: without rows that wait."""
        written: int = self._file.tell()
        return written

    def abandon(self) -> None:
        """Remove what was written."""
        # What cannot be completed is not there, and what cannot be removed is removed by `vacuum`.
        with suppress(OSError, ValueError):
            self._writer.close()
            self._file.close()
        with suppress(OSError):
            remove(self._table, self._path)

    def write(self) -> None:
        """Write the rows that wait."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=ROWS_PER_GROUP)
            self._waiting, self._rows_waiting, self.bytes_waiting = [], 0, 0


def _has_bounds(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind)


def _stats(written: pq.FileMetaData, bounded: Mapping[str, pa.DataType]) -> str:
    """What the file says of its columns, as Delta's log has it.

    Readers choose files by it. Some take a bound that is missing for null, and then skip the file: so each column of
    `bounded` has both, unless all of it is null.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = dict.fromkeys(bounded, 0)
    for group in map(written.row_group, range(written.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name, seen = chunk.path_in_schema, chunk.statistics
            if name in bounded:
                nulls[name] += seen.null_count
                if seen.null_count < group.num_rows:
                    # Parquet leaves out the bounds of long text.
                    least, most = (seen.min, seen.max) if seen.has_min_max else ("", HIGHEST)
                    low[name] = min(low.get(name, least), least)
                    high[name] = max(high.get(name, most), most)
    bounds = {
        "minValues": {name: _lower(value) for name, value in low.items()},
        "maxValues": {name: _upper(value) for name, value in high.items()},
    }
    return json.dumps({"numRecords": written.num_rows, **bounds, "nullCount": nulls})


def _lower(value: Any) -> Any:
    """A bound as Delta's log has it, and not above `value`."""
    if isinstance(value, str):
        return value[:BOUND_CHARS]
    return math.floor(value) if isinstance(value, Decimal) else _in_ms(value)


def _upper(value: Any) -> Any:
    """The same, not below it."""
    if isinstance(value, str):
        return value if len(value) <= BOUND_CHARS else value[:BOUND_CHARS] + HIGHEST
    if isinstance(value, Decimal):
        return math.ceil(value)
    if isinstance(value, datetime) and value > LAST_MS:
        return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}"
    return _in_ms(value + timedelta(microseconds=999) if isinstance(value, datetime) else value)


def _in_ms(value: Any) -> Any:
    """A time as text, which has ms in Delta; any other value as it is."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"  # `%Y` has no zeros before a year
    return value.isoformat() if isinstance(value, date) else value
