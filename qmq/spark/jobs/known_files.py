"""A frame of Parquet files that are known already, which Spark does not look for.

Given paths, Spark asks the file system for each of them: above 32 in a job with a task for each, 25 ms of CPU a file.
The list that its own file sink writes beside its files (`_spark_metadata`) it believes, whatever directory the files
are in. So such a list is written into a temporary directory, and removed once the driver has read it.

Through Spark Connect the server would need the list, on a disk that is not this one: it gets the paths.
"""

import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

IGNORES_LISTS: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
"""Of a session in which Spark does not believe such lists."""
LIST_VERSION: Final = "v1"
_PATTERN_MARKS: Final = re.compile(r"[\\{}\[\]*?]")
"""What means something to Spark in a path, and nothing in a list."""


class KnownFile(NamedTuple):
    """`path` is absolute."""

    path: Path
    size: int
    modified_ms: int


def frame_of_files(spark: SparkSession, root: Path, files: Iterable[KnownFile], schema: StructType) -> DataFrame:
    """The rows of the files, which are in directories of partitions (`day=…`) below `root`."""
    chosen = list(files)
    reader = spark.read.schema(schema)
    if not chosen:
        return spark.createDataFrame([], schema)
    if getattr(spark, "sparkContext", None) is None or spark.conf.get(IGNORES_LISTS, "false") == "true":
        paths = [_PATTERN_MARKS.sub(r"\\\g<0>", str(file.path)) for file in chosen]
        return reader.option("basePath", str(root)).parquet(*paths)
    with tempfile.TemporaryDirectory(prefix="qmq-files-") as folder:
        listed = Path(folder) / "_spark_metadata" / "0"
        listed.parent.mkdir()
        listed.write_text("\n".join([LIST_VERSION, *map(_entry, chosen)]), "utf-8")
        return reader.parquet(Path(folder).as_uri())


def _entry(file: KnownFile) -> str:
    """As `SinkFileStatus` of Spark has it. A block is what a file system says of its own; local ones say 32 MiB."""
    found = {"path": file.path.as_uri(), "size": file.size, "isDir": False, "modificationTime": file.modified_ms}
    return json.dumps({**found, "blockReplication": 1, "blockSize": 32 << 20, "action": "add"})
