"""Readers of Delta and Parquet that are not ours × filters, on an archive: every cell is what the filter says.

Each chooses files by what the log or the files say about a column, and takes what is not said in its own way.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import QueryBuilder

from qmq.spark.archive.table import open_table
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import read_archive
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from tests.spark.archive.test_files_and_table import Run
from tests.spark.rig import A, B, batch, node

MIDNIGHT = datetime(2023, 11, 15, tzinfo=UTC)
NAMES = ("/queue/jobs", "/queue/jobs.Ünïcode", "/fanout/" + "o" * 240, "/topic/~")

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Row(NamedTuple):
    origin: str
    sequence: int
    timestamp: datetime
    destination: str
    priority: int
    body: bytes

    @property
    def day(self) -> str:
        return self.timestamp.strftime("%Y-%m-%d")


class Filter(NamedTuple):
    column: str
    sign: str
    value: Any

    def keeps(self, row: Row) -> bool:
        return bool(COMPARE[self.sign](getattr(row, self.column), self.value))

    @property
    def sql(self) -> str:
        """As SQL of any kind has it."""
        match self.value:
            case datetime():
                value = f"timestamp '{self.value:%Y-%m-%d %H:%M:%S.%f}+00:00'"
            case int():
                value = str(self.value)
            case _:
                value = f"'{self.value}'"
        return f'"{self.column}" {self.sign} {value}'


def made_rows(origin: Any, first: int, last: int) -> list[Row]:
    """Around a midnight, with µs that are no whole ms; each has another of four destinations and ten priorities."""
    return [
        Row(
            str(origin),
            number,
            MIDNIGHT + timedelta(microseconds=999_999 * (number - 20) + (1 if origin == B else 0)),
            NAMES[number // 7 % 4],
            number // 5 % 10,
            b"body %d" % number,
        )
        for number in range(first, last + 1)
    ]


ROWS = [*made_rows(A, 1, 40), *made_rows(B, 1, 10)]
FILTERS = [
    *(
        Filter(column, sign, value)
        for column in ("origin", "sequence", "timestamp", "destination", "priority", "day")
        for sign in COMPARE
        for value in sorted({getattr(row, column) for row in (ROWS[0], ROWS[9], ROWS[19], ROWS[39], ROWS[-1])})
    ),
    *(Filter("timestamp", sign, MIDNIGHT) for sign in COMPARE),
    *(Filter("body", sign, b"body 7") for sign in COMPARE),
]


def records(rows: Iterable[Row]) -> list[bytes]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [
        pack_record(
            row.sequence,
            (row.timestamp - epoch) // timedelta(microseconds=1),
            RecordKind.PUBLISH,
            row.priority + 1 << 20,
            pack_envelope(row.destination, b"shop:x\n"),
            row.body,
        )
        for row in rows
    ]


@pytest.fixture(params=["as it was written", "put together"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Three commits, of two days."""
    node(tmp_path, "a").segment(
        [batch(A, first, records(made_rows(A, first, first + 4))) for first in range(1, 41, 5)]
        + [batch(B, 1, records(made_rows(B, 1, 10)))]
    )
    run = Run(tmp_path)
    run.add({}, {A: 10})
    run.add({A: 10}, {A: 30})
    run.add({A: 30}, {A: 40, B: 10})
    if request.param == "put together":
        assert compact(run.table).removed > 1
    return run.table


Found = Iterable[tuple[Any, Any]]


def pairs(table: Any) -> Found:
    """Of an Arrow table."""
    return zip(table["origin"].to_pylist(), table["sequence"].to_pylist(), strict=True)


def dataset_of_deltalake(table: str) -> Iterator[tuple[Filter, Found]]:
    dataset = open_table(table).to_pyarrow_dataset()
    for one in FILTERS:
        yield one, pairs(dataset.to_table(filter=COMPARE[one.sign](ds.field(one.column), one.value)))


def filters_of_deltalake(table: str) -> Iterator[tuple[Filter, Found]]:
    delta = open_table(table)
    for one in FILTERS:
        yield one, pairs(delta.to_pyarrow_table(filters=[one]))


def sql_of_deltalake(table: str) -> Iterator[tuple[Filter, Found]]:
    query = QueryBuilder().register("archive", open_table(table))
    for one in FILTERS:
        if one.column != "body":
            batches = query.execute(f"select origin, sequence from archive where {one.sql}")
            yield one, pairs(pa.table(batches.read_all()))


def polars(table: str) -> Iterator[tuple[Filter, Found]]:
    import polars as pl

    frame = pl.scan_delta(table)
    for one in FILTERS:
        found = frame.filter(COMPARE[one.sign](pl.col(one.column), one.value)).select("origin", "sequence").collect()
        yield one, found.rows()


def duckdb_over_the_dataset(table: str) -> Iterator[tuple[Filter, Found]]:
    yield from _duckdb("archive", archive=open_table(table).to_pyarrow_dataset())


def duckdb_over_the_files(table: str) -> Iterator[tuple[Filter, Found]]:
    yield from _duckdb(
        f"read_parquet({open_table(table).file_uris()}, hive_partitioning=true, hive_types_autocast=false)"
    )


def _duckdb(source: str, **tables: Any) -> Iterator[tuple[Filter, Found]]:
    import duckdb

    with duckdb.connect() as database:
        for name, there in tables.items():
            database.register(name, there)
        for one in FILTERS:
            where = f'"{one.column}" {one.sign} ?'
            found = database.execute(f"select origin, sequence from {source} where {where}", [one.value])
            yield one, found.fetchall()


def pyiceberg(table: str) -> Iterator[tuple[Filter, Found]]:
    """The files in a table of a catalog of its own. They have no day: it is in their paths."""
    from pyiceberg import expressions
    from pyiceberg.catalog.sql import SqlCatalog

    signs = {
        "=": expressions.EqualTo,
        "<": expressions.LessThan,
        "<=": expressions.LessThanOrEqual,
        ">": expressions.GreaterThan,
        ">=": expressions.GreaterThanOrEqual,
    }
    files = open_table(table).file_uris()
    catalog = SqlCatalog("here", uri="sqlite:///:memory:", warehouse=f"file://{table}.iceberg")
    catalog.create_namespace("qmq")
    made = catalog.create_table("qmq.messages", pq.read_schema(files[0]))
    made.add_files(files)
    for one in FILTERS:
        if one.column != "day":
            value = one.value.isoformat() if isinstance(one.value, datetime) else one.value
            yield one, pairs(made.scan(row_filter=signs[one.sign](one.column, value)).to_arrow())


OTHERS = [
    dataset_of_deltalake,
    filters_of_deltalake,
    sql_of_deltalake,
    polars,
    duckdb_over_the_dataset,
    duckdb_over_the_files,
    pyiceberg,
]


def wrong(cells: Iterable[tuple[Filter, Found]]) -> list[str]:
    """The filters for which something else was found than there is."""
    found_wrong, seen = [], set()
    for one, found in cells:
        seen.add(one.column)
        have, want = sorted(found), sorted((row.origin, row.sequence) for row in ROWS if one.keeps(row))
        if have != want:
            found_wrong.append(f"{one.column} {one.sign} {one.value}: {len(have)} rows of {len(want)}")
    assert seen >= {"origin", "sequence", "timestamp", "destination", "priority"}
    return found_wrong


@pytest.mark.parametrize("reader", OTHERS, ids=lambda reader: str(reader.__name__))
def test_every_reader_finds_in_an_archive_what_its_filter_says(
    table: str, reader: Callable[[str], Iterator[tuple[Filter, Found]]]
) -> None:
    assert wrong(reader(table)) == []


def test_spark_finds_in_an_archive_what_its_filter_says(table: str, spark: Any) -> None:
    frame = read_archive(spark, table)

    def cells() -> Iterator[tuple[Filter, Found]]:
        for one in FILTERS:
            if one.column != "body":
                found = frame.where(one.sql.replace('"', "`")).select("origin", "sequence").collect()
                yield one, [tuple(row) for row in found]

    assert wrong(cells()) == []
