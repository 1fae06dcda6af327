"""Python work in Spark's workers, a task for each item.

It works on a Spark of this process and through Spark Connect alike. A session of Spark Connect has no `sparkContext`
and no RDDs; a DataFrame that runs Python over a range of numbers does the same.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

TASKS_MAX: Final = 10_000

T = TypeVar("T")
R = TypeVar("R")


def frame_of(
    spark: SparkSession, items: Sequence[T], work: Callable[[T], Iterable[pa.RecordBatch]], schema: str | StructType
) -> DataFrame:
    """The rows that `work` makes of each of `items`. There is at least one; all of them travel to every task."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(items[number])

    return spark.range(0, len(items), 1, min(len(items), TASKS_MAX)).mapInArrow(rows, schema)


def results_of(spark: SparkSession, items: Sequence[T], work: Callable[[T], Iterable[R]]) -> list[R]:
    """What `work` returns for each of `items`, together; anything that can be pickled."""

    def pickled(item: T) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"found": [pickle.dumps(list(work(item)))]})

    rows = frame_of(spark, items, pickled, "found binary").collect()
    return [one for row in rows for one in pickle.loads(row.found)]
