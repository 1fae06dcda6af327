"""`spark.read.format("qmq")`: what Spark calls. Planning happens in the driver, decoding in the workers.

Spark's Python data sources have no way to get columns or filters that works (a reader that merely has
`pushFilters` fails or gives wrong results, up to 4.3), so columns are chosen by `.schema(...)` or the option
`columns`, and rows by options.
"""

import time
from collections.abc import Callable, Iterator, Sequence
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from qmq.model.dots import Vector
from qmq.spark.reading.options import (
    BEGAN_AT,
    ONE_READ,
    STREAMING,
    BadOption,
    Options,
    read_options,
    refuse,
    vector_from_json,
    vector_to_json,
)
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.place import Place, open_place
from qmq.spark.reading.plan import Part
from qmq.spark.reading.views import arrow_schema, columns_of, ddl, table_rows

RECORD_BYTES = 200
"""What a record is taken for when a batch is bounded by bytes."""


class PartOf(InputPartition):
    """One task's work; pickled to a worker. Rows that are known already stand here themselves."""

    def __init__(self, part: Part | list[dict[str, Any]]) -> None:
        self.part = part


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query over `messages` or `records`: offsets are vectors, a micro-batch is what lies between two.

    The offset `{"a-00c1…": 4711, …}` says for each origin the last sequence that was read; it lies readable in Spark's
    checkpoint. New nodes and new lives of nodes are new entries. Nothing is ever taken back: an origin that no node of
    the moment knows keeps its offset. Spark keeps where each micro-batch ends, and after a restart it asks again where
    the first one begins, unless that one was done. So the offset after it also says where it began (`BEGAN_AT`).

    The driver has one reader for as long as the query runs; workers get copies of it that were made before it began, so
    everything they need travels in their partition.
    """

    def __init__(self, options: Options, columns: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        if options.view not in ("messages", "records"):
            raise BadOption(f"a stream has the view messages or records, not {options.view}")
        if options.ending != "latest":
            raise BadOption("a stream has no endingOffsets; stop it with the trigger availableNow")
        self._options = options
        self._columns = list(columns)
        arrow_schema(options.view, self._columns)
        self._opened: Place | None = None
        self._clock = clock
        self._triggered_at: float | None = None
        self._target: Vector | None = None
        self._began_at: dict[str, int] | None = None
        """Where the query began, if it began now."""
        self._earliest: Vector | None = None
        """Where the query began, if it began now, and with what there is."""

    @property
    def _place(self) -> Place:
        if self._opened is None:
            self._opened = open_place(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name, as those below
        self._began_at = self._beginning()
        return self._began_at

    def _beginning(self) -> dict[str, int]:
        starting = self._options.starting
        if isinstance(starting, dict):
            return vector_to_json(starting)
        if starting == "earliest":
            self._earliest = self._place.base()
            return vector_to_json(self._earliest)
        return vector_to_json(self._place.available())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        records, size = self._options.records_per_trigger, self._options.bytes_per_trigger
        if size is not None and (records is None or size // RECORD_BYTES < records):
            return ReadMaxBytes(size)
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._place.available()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = vector_from_json(start)
        have = self._place.available() if self._target is None else self._target
        if self._target is None and self._waits(begin, have):
            return start
        end = advance(begin, have, _records(limit))
        if end == begin:
            return start  # as it is: any other one would be an empty micro-batch
        return vector_to_json(end) | ({BEGAN_AT: start} if start == self._began_at else {})

    def _waits(self, begin: Vector, have: Vector) -> bool:
        """Whether there are too few records for a micro-batch, so soon after the last one. The first waits for none.

        Spark has no limit with both bounds for Python sources, so they are not in `getDefaultReadLimit`.
        """
        least, now = self._options.records_min, self._clock()
        count = sum(_waiting(begin, have).values())
        is_soon = self._triggered_at is not None and now - self._triggered_at < self._options.trigger_delay_seconds
        if least is not None and count < least and is_soon:
            return True
        if count:
            self._triggered_at = now
        return False

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return vector_to_json(self._place.available())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = vector_from_json(end.get(BEGAN_AT, start)), vector_from_json(end)
        if begin == until:
            return []
        self._place.available()  # looks again: after a restart nothing was looked at yet
        # Retention may drop something between the first look and the first micro-batch: that was never promised.
        strict = begin != self._earliest
        return [PartOf(part) for part in self._place.plan(begin, until, strict=strict)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        if partition is None:
            return iter(())  # Spark's word for no partitions
        assert isinstance(partition, PartOf) and not isinstance(partition.part, list)
        return rows_of_part(partition.part, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._place.report(vector_from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers: no connections."""
        return {**self.__dict__, "_opened": None}


def advance(start: Vector, have: Vector, records_max: int | None) -> Vector:
    """The next offset: all of `have`, or so many records of it, every origin in proportion to what it has to give."""
    waiting = _waiting(start, have)
    total = sum(waiting.values())
    end = dict(start)
    if records_max is None or total <= records_max:
        for origin in waiting:
            end[origin] = have[origin]
        return end
    left = records_max
    for origin in sorted(waiting):
        share = min(left, -(-waiting[origin] * records_max // total))
        if share:
            end[origin] = start.get(origin, 0) + share
            left -= share
    return end


def _waiting(start: Vector, have: Vector) -> Vector:
    """Records of each origin that has some to give."""
    return {origin: last - start.get(origin, 0) for origin, last in have.items() if last > start.get(origin, 0)}


def _records(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return max(1, limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return max(1, limit.max_bytes // RECORD_BYTES)
    return None


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
        refuse(self.options, STREAMING, ONE_READ)
        return LogReader(read_options(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
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
