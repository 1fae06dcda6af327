"""The archive with Spark: workers decode the log and write Parquet with pyarrow, the driver commits.

Rows never pass through the JVM. What a run does is `qmq.spark.archive.run`; here are its workers, and how Spark reads
the table.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qmq.errors import NotConnected
from qmq.spark.archive import run
from qmq.spark.archive.files import write_parts
from qmq.spark.archive.following import FOLLOW_FAILURES_MAX, MENDED_LATER
from qmq.spark.archive.following import follow as follow_runs
from qmq.spark.archive.live_files import LiveFile, live_files, rows_of_file
from qmq.spark.archive.run import Archived
from qmq.spark.archive.storage import directory_of, place_of, settings, with_settings
from qmq.spark.archive.table import ArchiveError, open_table
from qmq.spark.jobs.known_files import KnownFile, frame_of_files
from qmq.spark.jobs.tasks import ProgressReport, frame_of, results_of, watched
from qmq.spark.reading.options import BadOption, Options
from qmq.spark.reading.place import open_place
from qmq.spark.reading.plan import DataLoss, Part


def archive(spark: SparkSession, options: Options, table: str, *, report: ProgressReport | None = None) -> Archived:
    """`run.archive` with Spark's workers, a file of each part and day. Raises as that one, and errors of Spark."""

    def write(parts: Sequence[Part]) -> list[dict[str, Any]]:
        name, place, keys = uuid.uuid4().hex, place_of(table), settings()

        def work(item: tuple[int, Part]) -> list[dict[str, Any]]:
            with with_settings(keys):
                return write_parts([item[1]], options, place, f"{name}-{item[0]:05d}")

        with watched(spark, report):
            try:
                return results_of(spark, list(enumerate(parts)), work)
            except (PySparkException, Py4JJavaError) as error:
                raise _not_connected(error) or error from None

    with closing(open_place(options)) as place:
        return run.archive(place, options, table, write)


def follow(
    spark: SparkSession,
    options: Options,
    table: str,
    *,
    every_seconds: float,
    on_run: Callable[[Archived], bool],
    failed: Callable[[Exception, float], None],
) -> None:
    """Archive repeatedly, until `on_run`, which is called after each run, returns False.

    The last of `FOLLOW_FAILURES_MAX` failures in a row is raised, but for nodes that do not answer and other runs that
    were first. Raises at once what no later run can mend: ArchiveError, BadOption, DataLoss, and the loss of Spark
    itself.
    """
    follow_runs(
        lambda: archive(spark, options, table),
        every_seconds=every_seconds,
        on_run=on_run,
        failed=failed,
        mended_later=(*MENDED_LATER, PySparkException, Py4JJavaError),
        final=(ArchiveError, BadOption, DataLoss, ConnectionError),
        failures_max=FOLLOW_FAILURES_MAX,
    )


def read_archive(
    spark: SparkSession,
    table: str,
    *,
    delta: DeltaTable | None = None,
    options: Options | None = None,
    columns: Collection[str] | None = None,
) -> DataFrame:
    """The rows of the table's last version, without a Delta jar; also of a typed one. Raises ArchiveError, BadOption.

    `delta`: the table as it was opened before, for the rows of that version. `options`: files are left out that have no
    row which these choose. The other files have such rows and others. `columns`: those that are needed.

    Spark's own reader reads a directory. From an object store, workers read by the address and the environment of the
    driver: Spark would need jars, another address and keys of its own.
    """
    place = place_of(table)
    delta = delta or open_table(place)
    files = live_files(delta, options)
    # Delta writes schemas as Spark does. Spark would read a day as a date; the table has text.
    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    directory = directory_of(place)
    if directory is not None:
        root = directory.resolve()
        known = [KnownFile(root / file.path, file.size, file.modified_ms) for file in files]
        return frame_of_files(spark, root, known, schema)
    schema = StructType([field for field in schema if columns is None or field.name in columns])
    stored, names, keys = pa.schema(delta.schema()), schema.names, settings()

    def rows(file: LiveFile) -> Iterator[pa.RecordBatch]:
        with with_settings(keys):
            yield from rows_of_file(place, file, stored, names, options)

    return frame_of(spark, files, rows, schema) if files else spark.createDataFrame([], schema)


def _not_connected(error: Exception) -> NotConnected | None:
    """The error of a worker for which no node has answered, if it is one: Spark has only its text."""
    name = f"{NotConnected.__module__}.{NotConnected.__qualname__}: "
    said = [line.strip() for line in str(error).splitlines()]
    return next((NotConnected(line.removeprefix(name)) for line in said if line.startswith(name)), None)
