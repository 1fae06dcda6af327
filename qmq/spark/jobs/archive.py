"""The archive with Spark: workers decode the log and write Parquet with pyarrow, the driver commits.

Rows never pass through the JVM. What a run does is `qmq.spark.archive.run`; here are its workers, and how Spark reads
the table.
"""

import json
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qmq.spark.archive import run
from qmq.spark.archive.files import write_parts
from qmq.spark.archive.live_files import LiveFile, live_files, rows_of_file
from qmq.spark.archive.run import Archived
from qmq.spark.archive.storage import directory_of, place_of, settings, with_settings
from qmq.spark.archive.table import open_table
from qmq.spark.jobs.known_files import KnownFile, frame_of_files
from qmq.spark.jobs.tasks import frame_of, results_of
from qmq.spark.reading.options import Options
from qmq.spark.reading.place import open_place
from qmq.spark.reading.plan import Part


def archive(spark: SparkSession, options: Options, table: str) -> Archived:
    """`run.archive` with Spark's workers, a file of each part and day. Raises as that one, and errors of Spark."""

    def write(parts: Sequence[Part]) -> list[dict[str, Any]]:
        name, place, keys = uuid.uuid4().hex, place_of(table), settings()

        def work(item: tuple[int, Part]) -> list[dict[str, Any]]:
            with with_settings(keys):
                return write_parts([item[1]], options, place, f"{name}-{item[0]:05d}")

        return results_of(spark, list(enumerate(parts)), work)

    with closing(open_place(options)) as place:
        return run.archive(place, options, table, write)


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
