"""Statistics of destinations, per window of time: how much, how big, how fast done with, what still waits.

Everything comes from the log: messages, and the records by which they were settled. A message's time is that of the
node that accepted it, a settle's that of the node whose consumer acknowledged; clocks that differ can make a time to
settle negative, which counts as 0. Settles of messages that came before what is read count in their windows, and the
times of these are not known.
"""

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from qmq.spark.jobs.messages import is_chosen
from qmq.spark.jobs.tasks import utc_times
from qmq.spark.jobs.windows import Window, failures_of, median_and_p99, node_of, streamed, windows_of
from qmq.spark.reading.options import read_options

WINDOW: Final = "1 minute"
DESTINATIONS_MAX: Final = 10_000
"""Rows that are brought to the driver per window list; of more destinations the busiest are shown."""
DEAD_LETTER_HEADER: Final = "dead-letter-from"

FOLLOWED: Final = "origin,timestamp,kind,destination,body,settled,headers"
COLUMNS: Final = "origin,sequence,timestamp,kind,destination,message_id,body,settled,headers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One destination over all that was read. `waiting`: not settled at the end; `oldest_seconds`: the oldest of them
    then. `dead_letters`: of its messages; `failures`: deliveries that failed; `consumers`: nodes that settled messages.
    """

    destination: str
    messages: int
    bytes: int
    size_p50: float
    size_p99: float
    size_max: int
    settled: int
    settle_p50: float | None
    settle_p99: float | None
    waiting: int
    oldest_seconds: float | None
    dead_letters: int
    failures: int
    consumers: int


@dataclass(slots=True)
class DestinationStatistics:
    """What came of it."""

    windows: list[Window] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    is_cut: bool = False
    """There are more windows than these."""


def read_records(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """Every record once, with what statistics need of it.

    `chosen`: whether it is of the destinations in `given`; `dead_letter_of`: of which of these it is a dead letter.
    """
    options = read_options({**given, "view": "records"})
    everything = {name: value for name, value in given.items() if not name.lower().startswith("subscribe")}
    records = spark.read.format("qmq").options(**{**everything, "view": "records", "columns": COLUMNS}).load()
    source = f.element_at("headers", DEAD_LETTER_HEADER)
    records = records.withColumn("chosen", is_chosen(options))
    return records.withColumn("dead_letter_of", f.when(is_chosen(options, source), source))


def stats(records: DataFrame, *, window: str = WINDOW) -> DestinationStatistics:
    """Statistics of a frame of records (`read_records`). `window` as Spark writes intervals, such as `10 minutes`."""
    records = records.where("kind in ('PUBLISH', 'DEAD', 'SETTLE', 'ATTEMPTS')")
    # However long ago the chosen destinations had something: until then their messages wait.
    end_us = records.agg(f.unix_micros(f.max("timestamp"))).collect()[0][0]
    # Dead letters elsewhere, too: they settle messages of the chosen destinations.
    records = records.where(f.col("chosen") | f.col("dead_letter_of").isNotNull())
    messages = records.where("kind in ('PUBLISH', 'DEAD')").select(
        "destination",
        "message_id",
        "timestamp",
        f.length("body").alias("size"),
        "dead_letter_of",
        "chosen",
    )
    settles = records.where("settled is not null").select(
        f.explode("settled").alias("message_id"),
        f.col("timestamp").alias("settled_at"),
        node_of("origin").alias("settled_by"),
        f.when(f.col("kind") == "DEAD", f.col("dead_letter_of"))
        .otherwise(f.when(f.col("chosen"), f.col("destination")))
        .alias("queue"),
    )
    # A message may be settled on two nodes, or by its own node once more: the first time counts.
    first = settles.groupBy("message_id").agg(
        f.min("settled_at").alias("settled_at"),
        f.min_by("settled_by", "settled_at").alias("settled_by"),
        f.min_by("queue", "settled_at").alias("queue"),
    )
    took = (f.unix_micros("settled_at") - f.unix_micros("timestamp")) / 1e6
    # `greatest` passes over nulls: what is not settled must not count as settled at once.
    seconds = f.when(f.col("settled_at").isNotNull(), f.greatest(f.lit(0.0), took))
    joined = messages.join(first, "message_id", "full").withColumn("settle_seconds", seconds)
    joined = joined.cache()
    failures = failures_of(records.where("chosen"), joined.where("timestamp is not null")).cache()
    try:
        known = joined.where("chosen")
        unknown = joined.where("timestamp is null and queue is not null").withColumn("destination", f.col("queue"))
        dead_letters = joined.where("dead_letter_of is not null").withColumn("destination", f.col("dead_letter_of"))
        settled = known.where("settled_at is not null").unionByName(unknown)
        windows = windows_of(known, settled, dead_letters, failures, window=window)
        counted = (_counted(dead_letters, "dead_letters", f.count("*")), _counted(failures, "failures", f.sum("count")))
        totals = _totals(known, counted, end_us)
        return DestinationStatistics(windows.rows, totals, windows.is_cut)
    finally:
        joined.unpersist()
        failures.unpersist()


def _counted(frame: DataFrame, name: str, count: Column) -> DataFrame:
    return frame.groupBy("destination").agg(count.alias(name))


def _totals(joined: DataFrame, counted: tuple[DataFrame, ...], end_us: int | None) -> list[Total]:
    """`counted`: destination and one more column each."""
    is_queue = f.col("destination").startswith("/queue/")
    waits = is_queue & f.col("settled_at").isNull()
    frame = (
        joined.groupBy("destination")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            median_and_p99("size").alias("sizes"),
            f.max("size").alias("size_max"),
            f.count("settled_at").alias("settled"),
            median_and_p99("settle_seconds").alias("settle"),
            f.sum(f.when(waits, 1).otherwise(0)).alias("waiting"),
            f.min(f.when(waits, f.unix_micros("timestamp"))).alias("oldest_us"),
            f.count_distinct("settled_by").alias("consumers"),
        )
        .orderBy(f.desc("messages"), "destination")
        .limit(DESTINATIONS_MAX)
    )
    for more in counted:
        frame = frame.join(more, "destination", "left")
    frame = frame.orderBy(f.desc("messages"), "destination")
    return [
        Total(
            destination=row.destination,
            messages=row.messages,
            bytes=row.bytes,
            size_p50=row.sizes[0],
            size_p99=row.sizes[1],
            size_max=row.size_max,
            settled=row.settled,
            settle_p50=row.settle[0] if row.settle else None,
            settle_p99=row.settle[1] if row.settle else None,
            waiting=row.waiting,
            oldest_seconds=None if row.oldest_us is None or end_us is None else (end_us - row.oldest_us) / 1e6,
            dead_letters=row.dead_letters or 0,
            failures=row.failures or 0,
            consumers=row.consumers,
        )
        for row in frame.collect()
    ]


def follow(
    spark: SparkSession, given: dict[str, str], out: str, checkpoint: str, *, window: str, lateness: str, every: str
) -> StreamingQuery:
    """Windows as they end, appended to Parquet files in `out`; which columns, `windows.streamed` says.

    A window ends when the newest record is `lateness` beyond it. Exactly once, also when it is killed.
    """
    options = read_options({**given, "view": "records"})
    everything = {name: value for name, value in given.items() if not name.lower().startswith("subscribe")}
    asked = {**everything, "view": "records", "columns": FOLLOWED}
    stream = spark.readStream.format("qmq").options(**asked).load()
    windows = streamed(stream, window=window, lateness=lateness, dead_letter_of=DEAD_LETTER_HEADER)
    windows = windows.where(is_chosen(options))
    files = windows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    with utc_times(spark):
        return files.trigger(processingTime=every).start()
