"""How what happened to destinations is counted: over all that was read, and in each window of time.

Each row that is counted is one event of one destination: a message that came, one that was settled, one that became a
dead letter, or deliveries that failed. What waited at the end of a window follows from the events: so many messages
more were accepted by then than settled, and the oldest of them is the first of those that are settled only later, or
not at all.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from qmq.spark.reading.tables import time_of

WINDOWS_MAX: Final = 100_000
"""Rows that are brought to the driver: the first ones, by time and then by destination."""
DESTINATIONS_MAX: Final = 10_000
"""The same of destinations: the busiest ones."""

# What an event may say, besides its destination and when it happened (`at`). `waits_from`: when a queue message came
# that is not settled; `accepted`: when one came that was read and is settled by `settled_by`.
_SAID: Final = {
    "size": "long",
    "waits_from": "timestamp",
    "accepted": "timestamp",
    "settled_by": "string",
    "dead_letters": "long",
    "failures": "long",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One destination over all that was read. Seconds and bytes; None where there was nothing to measure.

    `waiting`: queue messages that are not settled at the end; `oldest_seconds`: how long the first of them has waited
    then. `dead_letters`: of its messages; `failures`: deliveries that failed; `consumers`: nodes whose consumers
    settled something.
    """

    destination: str
    messages: int
    bytes: int
    size_p50: float | None
    size_p99: float | None
    size_max: int | None
    settled: int
    settle_p50: float | None
    settle_p99: float | None
    waiting: int
    oldest_seconds: float | None
    dead_letters: int
    failures: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Total):
    """The same in one window of time, and at its end. `settled`, with its times: what was settled in this window,
    whenever it was accepted.
    """

    start: datetime


def event(destination: Column, at: Column, **said: Column) -> Column:
    """One event of a destination; what it does not say is null."""
    more = [said.get(name, f.lit(None)).cast(kind).alias(name) for name, kind in _SAID.items()]
    return f.struct(destination.alias("destination"), at.alias("at"), *more)


def totals_of(events: DataFrame, end_us: int | None) -> list[Total]:
    """The busiest destinations first. `end_us`: until when messages wait."""
    # Of a message that was not read, only its window can say that it was settled.
    counted = _counted(events.where("accepted is not null or settled_by is null"), "destination").where("messages > 0")
    age = (f.lit(end_us) - f.col("waits_us")) / 1e6
    chosen = counted.withColumn("oldest_seconds", age).orderBy(f.desc("messages"), "destination")
    return [Total(**_fields(row)) for row in chosen.limit(DESTINATIONS_MAX).drop(*_INNER).collect()]


def windows_of(events: DataFrame, window: str) -> tuple[list[Window], bool]:
    """By time, the busiest destination first, and whether there are more. `window` as Spark writes intervals."""
    in_order = Over.partitionBy("destination").orderBy("window")
    behind = in_order.rowsBetween(1, Over.unboundedFollowing)
    waits_us = f.least(f.min("first_us").over(behind), f.min("waits_us").over(Over.partitionBy("destination")))
    end_us = f.unix_micros("window.end")
    is_queue = f.col("destination").startswith("/queue/")
    waiting = f.sum(f.col("messages") - f.col("known")).over(in_order)
    counted = _counted(events, f.window("at", window).alias("window"), "destination").withColumns(
        {
            "waiting": f.when(is_queue, waiting).otherwise(0),
            "oldest_seconds": f.when(is_queue & (waits_us < end_us), (end_us - waits_us) / 1e6),
            # A number, because Spark makes times of this machine's zone of its own, and does not say so.
            "start": f.unix_micros("window.start"),
        }
    )
    first = counted.orderBy("start", "destination").limit(WINDOWS_MAX + 1).drop("window", *_INNER).collect()
    rows = [Window(**{**_fields(row), "start": time_of(row.start)}) for row in first[:WINDOWS_MAX]]
    return sorted(rows, key=lambda row: (row.start, -row.messages, row.destination)), len(first) > WINDOWS_MAX


_INNER: Final = ("known", "first_us", "waits_us")
"""Columns that only others are made of."""


def _counted(events: DataFrame, *by: Column | str) -> DataFrame:
    took = (f.unix_micros("at") - f.unix_micros("accepted")) / 1e6
    return events.groupBy(*by).agg(
        f.count("size").alias("messages"),
        f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"),
        _median_and_p99("size").alias("size"),
        f.max("size").alias("size_max"),
        f.count("settled_by").alias("settled"),
        _median_and_p99(took).alias("settle"),
        f.coalesce(f.sum("dead_letters"), f.lit(0)).alias("dead_letters"),
        f.coalesce(f.sum("failures"), f.lit(0)).alias("failures"),
        f.size(f.collect_set("settled_by")).alias("consumers"),
        f.count("waits_from").alias("waiting"),
        f.unix_micros(f.min("waits_from")).alias("waits_us"),
        f.count("accepted").alias("known"),
        f.unix_micros(f.min("accepted")).alias("first_us"),
    )


def _median_and_p99(of: Column | str) -> Column:
    return f.percentile_approx(of, f.array(f.lit(0.5), f.lit(0.99)))


def _fields(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict()
    for name in ("size", "settle"):
        found[f"{name}_p50"], found[f"{name}_p99"] = found.pop(name) or (None, None)
    return found
