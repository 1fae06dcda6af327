"""Statistics of destinations, per window of time: how much, how big, how fast done with, what still waits.

Everything comes from the log: messages, and the records by which they were settled. A message's time is that of the
node that accepted it, a settle's that of the node whose consumer acknowledged; clocks that differ can make a time to
ack negative, which counts as 0. Settles of messages that came before what is read are counted, and their times are not
known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from qmq.spark.jobs.messages import is_chosen
from qmq.spark.options import read_options
from qmq.spark.tables import time_of

WINDOW: Final = "1 minute"
DESTINATIONS_MAX: Final = 10_000
"""Rows that are brought to the driver per window list; of more destinations the busiest are shown."""
WINDOWS_MAX: Final = 100_000
DEAD_LETTER_HEADER: Final = "dead-letter-from"

COLUMNS: Final = "origin,sequence,timestamp,kind,destination,message_id,body,settled,headers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One destination in one window. Seconds, bytes; None where nothing was settled."""

    start: datetime
    destination: str
    messages: int
    bytes: int
    settled: int
    ack_p50: float | None
    ack_p99: float | None


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
    ack_p50: float | None
    ack_p99: float | None
    waiting: int
    oldest_seconds: float | None
    dead_letters: int
    failures: int
    consumers: int


@dataclass(slots=True)
class Statistics:
    """What came of it."""

    windows: list[Window] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    window: str = WINDOW
    seconds: float = 60.0
    """Length of one window."""


def read_records(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """Every record once, with what statistics need of it; `chosen`: whether it is of the destinations in `given`."""
    options = read_options({**given, "view": "records"})
    everything = {name: value for name, value in given.items() if not name.lower().startswith("subscribe")}
    records = spark.read.format("qmq").options(**{**everything, "view": "records", "columns": COLUMNS}).load()
    return records.withColumn("chosen", is_chosen(options))


def stats(records: DataFrame, *, window: str = WINDOW) -> Statistics:
    """Statistics of a frame of records (`read_records`). `window` as Spark writes intervals, such as `10 minutes`."""
    records = records.where("kind in ('PUBLISH', 'DEAD', 'SETTLE', 'ATTEMPTS')")
    # However long ago the chosen destinations had something: until then their messages wait.
    end_us = records.agg(f.unix_micros(f.max("timestamp"))).collect()[0][0]
    # Dead letters elsewhere, too: they settle messages of the chosen destinations.
    records = records.where(f.col("chosen") | f.element_at("headers", DEAD_LETTER_HEADER).isNotNull())
    messages = records.where("kind in ('PUBLISH', 'DEAD')").select(
        "destination",
        "message_id",
        "timestamp",
        f.length("body").alias("size"),
        f.element_at("headers", DEAD_LETTER_HEADER).alias("letter_of"),
        "chosen",
    )
    settles = records.where("settled is not null").select(
        f.explode("settled").alias("message_id"),
        f.col("timestamp").alias("settled_at"),
        # The node: each of its lives is another origin.
        f.regexp_replace("origin", "-[0-9a-f]{16}$", "").alias("settled_by"),
    )
    # A message may be settled on two nodes, or by its own node once more: the first time counts.
    first = settles.groupBy("message_id").agg(
        f.min("settled_at").alias("settled_at"), f.min_by("settled_by", "settled_at").alias("settled_by")
    )
    took = (f.unix_micros("settled_at") - f.unix_micros("timestamp")) / 1e6
    # `greatest` passes over nulls: what is not settled must not count as settled at once.
    seconds = f.when(f.col("settled_at").isNotNull(), f.greatest(f.lit(0.0), took))
    joined = messages.join(first, "message_id", "left").withColumn("ack_seconds", seconds)
    joined = joined.cache()
    try:
        found = Statistics(window=window)
        _add_windows(found, joined.where("chosen"))
        found.totals = _totals(joined.where("chosen"), _letters(joined), _failures(records), end_us)
        return found
    finally:
        joined.unpersist()


def _add_windows(found: Statistics, joined: DataFrame) -> None:
    frame = (
        joined.groupBy(f.window("timestamp", found.window).alias("window"), "destination")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            f.count("settled_at").alias("settled"),
            f.percentile_approx("ack_seconds", f.array(f.lit(0.5), f.lit(0.99))).alias("ack"),
        )
        .orderBy("window", f.desc("messages"), "destination")
        .limit(WINDOWS_MAX)
        # Numbers, because Spark makes times of this machine's zone of its own, and does not say so.
        .withColumns({"start": f.unix_micros("window.start"), "end": f.unix_micros("window.end")})
        .drop("window")
    )
    for row in frame.collect():
        found.seconds = (row.end - row.start) / 1e6
        window = Window(
            start=time_of(row.start),
            destination=row.destination,
            messages=row.messages,
            bytes=row.bytes,
            settled=row.settled,
            ack_p50=row.ack[0] if row.ack else None,
            ack_p99=row.ack[1] if row.ack else None,
        )
        found.windows.append(window)


def _letters(joined: DataFrame) -> dict[str, int]:
    rows = joined.where("letter_of is not null").groupBy("letter_of").count().limit(DESTINATIONS_MAX).collect()
    return {row.letter_of: row["count"] for row in rows}


def _totals(joined: DataFrame, letters: dict[str, int], failures: dict[str, int], end_us: int | None) -> list[Total]:
    is_queue = f.col("destination").startswith("/queue/")
    waits = is_queue & f.col("settled_at").isNull()
    frame = (
        joined.groupBy("destination")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            f.percentile_approx("size", f.array(f.lit(0.5), f.lit(0.99))).alias("sizes"),
            f.max("size").alias("size_max"),
            f.count("settled_at").alias("settled"),
            f.percentile_approx("ack_seconds", f.array(f.lit(0.5), f.lit(0.99))).alias("ack"),
            f.sum(f.when(waits, 1).otherwise(0)).alias("waiting"),
            f.min(f.when(waits, f.unix_micros("timestamp"))).alias("oldest_us"),
            f.count_distinct("settled_by").alias("consumers"),
        )
        .orderBy(f.desc("messages"), "destination")
        .limit(DESTINATIONS_MAX)
    )
    return [
        Total(
            destination=row.destination,
            messages=row.messages,
            bytes=row.bytes,
            size_p50=row.sizes[0],
            size_p99=row.sizes[1],
            size_max=row.size_max,
            settled=row.settled,
            ack_p50=row.ack[0] if row.ack else None,
            ack_p99=row.ack[1] if row.ack else None,
            waiting=row.waiting,
            oldest_seconds=None if row.oldest_us is None or end_us is None else (end_us - row.oldest_us) / 1e6,
            dead_letters=letters.get(row.destination, 0),
            failures=failures.get(row.destination, 0),
            consumers=row.consumers,
        )
        for row in frame.collect()
    ]


def _failures(records: DataFrame) -> dict[str, int]:
    """Failed deliveries per queue. ATTEMPTS records hold absolute counts, so the highest of a message counts."""
    rows = records.where("kind = 'ATTEMPTS'").select("destination", "body").rdd.map(tuple)
    counted = rows.flatMap(_attempts).reduceByKey(max).map(lambda item: (item[0][0], item[1])).reduceByKey(_add)
    return dict(counted.collect())


def _attempts(row: Sequence[Any]) -> list[tuple[tuple[str, str], int]]:
    from qmq.storage.failure_records import unpack_attempts

    return [((row[0], str(dot)), count) for dot, count in unpack_attempts(bytes(row[1])).items()]


def _add(one: int, other: int) -> int:
    return one + other


def follow(
    spark: SparkSession, given: dict[str, str], out: str, checkpoint: str, *, window: str, lateness: str, every: str
) -> StreamingQuery:
    """Windows as they end, appended to Parquet files in `out`: messages, bytes and sizes per destination.

    A window ends when the newest record is `lateness` beyond it. Exactly once, also when it is killed.
    """
    stream = spark.readStream.format("qmq").options(**{**given, "columns": "timestamp,destination,body"}).load()
    windows = (
        stream.withWatermark("timestamp", lateness)
        .groupBy(f.window("timestamp", window).alias("window"), "destination")
        .agg(
            f.count("*").alias("messages"),
            f.sum(f.length("body")).alias("bytes"),
            f.percentile_approx(f.length("body"), 0.99).alias("size_p99"),
        )
        .select("window.start", "window.end", "destination", "messages", "bytes", "size_p99")
    )
    return (
        windows.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=every)
        .start()
    )
