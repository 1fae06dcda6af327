"""The work of one Spark task: a part of the log, or rows that are known already, and the Arrow batches made of it."""

import gc
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from qmq.spark.reading.options import Options
from qmq.spark.reading.place import read
from qmq.spark.reading.plan import Part


class PartOf(InputPartition):
    """One task's work; pickled to a worker. Rows that are known already stand here themselves."""

    def __init__(self, part: Part | list[dict[str, Any]]) -> None:
        self.part = part


def rows_of_part(part: Part, options: Options, columns: Sequence[str]) -> Iterator[Any]:
    """Arrow batches of one task."""
    # Millions of short-lived objects that never form a cycle: collecting them halves the speed.
    gc.disable()
    try:
        yield from read(part, options, columns)
    finally:
        gc.enable()
