"""`spark.read.format("qmq")`: what Spark calls. Planning happens in the driver, decoding in the workers.

Spark's Python data sources have no way to get columns or filters that works (a reader that merely has
`pushFilters` fails or gives wrong results, up to 4.3), so columns are chosen by `.schema(...)` or the option
`columns`, and rows by options.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from qmq.dots import Vector
from qmq.spark.reading.options import BadOption, Options, read_options
from qmq.spark.reading.partitions import PartOf, rows_of_part
from qmq.spark.reading.place import open_place
from qmq.spark.reading.views import arrow_schema, columns_of, ddl, table_rows

TABLES = ("ranges", "segments", "nodes")
"""Views that are made while planning."""


class QmqSource(DataSource):
    """The data source `qmq`. Options are in `qmq.spark.reading.options`, columns in `qmq.spark.reading.views`."""

    @classmethod
    def name(cls) -> str:
        return "qmq"

    def schema(self) -> str:
        options = read_options(self.options)
        return ddl(options.view, columns_of(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.records_per_trigger is not None or options.bytes_per_trigger is not None:
            raise BadOption("maxRecordsPerTrigger and maxBytesPerTrigger are of streams; this query reads all at once")
        return LogReader(options, schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from qmq.spark.stream import LogStream

        return LogStream(read_options(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from qmq.spark.sink import Sink, read_sink_options

        return Sink(read_sink_options(self.options, schema.fieldNames(), overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from qmq.spark.sink import StreamSink, read_sink_options

        return StreamSink(read_sink_options(self.options, schema.fieldNames(), overwrite=overwrite))


class LogReader(DataSourceReader):
    """One batch query. Partitions are listed once per `load()`: load again for what came later."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)
        arrow_schema(options.view, self._columns)  # raises for columns that the view does not have

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with closing(open_place(options)) as place:
            if options.view in TABLES:
                return [PartOf(place.rows(options.view))]
            if options.view == "log":
                return [PartOf(part) for part in place.plan_nodes()]
            start, end = offsets(options, place.available())
            strict = isinstance(options.starting, dict)
            return [PartOf(part) for part in place.plan(start, end, strict=strict)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        if not isinstance(partition, PartOf):
            return  # Spark's word for no partitions: nothing was found.
        if isinstance(partition.part, list):
            yield table_rows(self._options.view, self._columns, partition.part)
            return
        yield from rows_of_part(partition.part, self._options, self._columns)


def offsets(options: Options, have: Vector) -> tuple[Vector, Vector]:
    """Where reading starts and ends, when `have` is there. Raises BadOption for ends that no node has."""
    start: Vector = {}
    if isinstance(options.starting, dict):
        start = options.starting
    elif options.starting == "latest":
        start = dict(have)
    if not isinstance(options.ending, dict):
        return start, dict(have)
    for origin, last in options.ending.items():
        if have.get(origin, 0) < last and options.fail_on_data_loss:
            raise BadOption(f"endingOffsets: {origin} goes up to {have.get(origin, 0)}, not to {last}")
    return start, options.ending
