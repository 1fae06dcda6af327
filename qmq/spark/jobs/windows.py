"""What happened to each destination in each window of time, and what waited at its end.

A message counts in the window of its acceptance, all else in the window in which it happened: a settle, a failed
delivery, a dead letter. Counted apart and put together here, because a message and its settle are in different windows.
What waited at the end of a window follows from both: so many messages more were accepted by then than settled, and the
oldest of them is the first of those that are settled only later, or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from qmq.spark.reading.tables import time_of

WINDOWS_MAX: Final = 100_000
"""Rows that are brought to the driver, of each kind; the first ones, by time and then by destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One destination in one window. Seconds and bytes; None where there was nothing to measure.

    `settled`, with `settle_p50` and `settle_p99`: what was settled in this window, whenever it was accepted. `waiting`:
    queue messages that were not settled at its end, and `oldest_seconds` how long the first of them had waited then.
    `consumers`: nodes whose consumers settled something.
    """

    start: datetime
    destination: str
    messages: int = 0
    bytes: int = 0
    size_p50: float | None = None
    size_p99: float | None = None
    size_max: int | None = None
    settled: int = 0
    settle_p50: float | None = None
    settle_p99: float | None = None
    failures: int = 0
    dead_letters: int = 0
    consumers: int = 0
    waiting: int = 0
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """All of them, by time, the busiest destination first. `is_cut`: there are more."""

    rows: list[Window]
    is_cut: bool


@dataclass(slots=True)
class _Facts:
    """What is known of one destination in one window, from one frame after another."""

    of: dict[str, Any]
    known: int = 0
    """Settled in it, of messages that were read as well."""
    first_us: float = inf
    """When the oldest of these was accepted."""


def windows_of(
    messages: DataFrame, settles: DataFrame, dead_letters: DataFrame, failures: DataFrame, *, window: str
) -> Windows:
    """Put together what happened.

    `messages`: destination, timestamp, size, settled_at (null: waits). `settles`: destination, settled_at, settled_by,
    timestamp and settle_seconds (null where the message was not read). `dead_letters`: destination, timestamp, one row
    each. `failures`: destination, timestamp, count. `window` as Spark writes intervals.
    """
    accepted = _collect(
        messages.groupBy(_in("timestamp", window), "destination").agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            median_and_p99("size").alias("size"),
            f.max("size").alias("size_max"),
        )
    )
    settled = _collect(
        # By clocks that differ a message may be settled before it came: it counts as settled at once.
        settles.withColumn("settled_at", f.greatest("settled_at", "timestamp"))
        .groupBy(_in("settled_at", window), "destination")
        .agg(
            f.count("*").alias("settled"),
            f.count("timestamp").alias("known"),
            median_and_p99("settle_seconds").alias("settle"),
            f.count_distinct("settled_by").alias("consumers"),
            f.unix_micros(f.min("timestamp")).alias("first_us"),
        )
    )
    dead = _collect(
        dead_letters.groupBy(_in("timestamp", window), "destination").agg(f.count("*").alias("dead_letters"))
    )
    failed = _collect(failures.groupBy(_in("timestamp", window), "destination").agg(f.sum("count").alias("failures")))
    end = min(
        (_key(part[WINDOWS_MAX]) for part in (accepted, settled, dead, failed) if len(part) > WINDOWS_MAX), default=None
    )
    unsettled = messages.where(_waits_at(end, window)).groupBy("destination")
    waiting = unsettled.agg(f.unix_micros(f.min("timestamp")).alias("first_us")).collect()

    known: dict[tuple[int, str], _Facts] = {}
    seconds = 60.0
    for row in (*accepted, *settled, *dead, *failed):
        said = row.asDict()
        start, stop, destination = said.pop("start"), said.pop("end"), said.pop("destination")
        seconds = (stop - start) / 1e6
        facts = known.setdefault((start, destination), _Facts({}))
        for name in ("size", "settle"):
            if name in said:
                said[f"{name}_p50"], said[f"{name}_p99"] = said.pop(name) or (None, None)
        if "known" in said:
            facts.known, first_us = said.pop("known"), said.pop("first_us")
            facts.first_us = inf if first_us is None else first_us
        facts.of.update(said)
    _send_waiting(known, {row.destination: row.first_us for row in waiting}, round(seconds * 1e6))
    rows = [
        Window(start=time_of(start), destination=destination, **facts.of)
        for (start, destination), facts in sorted(known.items())
    ]
    # At least so many come before `end`, and of these everything is known.
    shown = sorted(rows[:WINDOWS_MAX], key=lambda row: (row.start, -row.messages, row.destination))
    return Windows(rows=shown, is_cut=end is not None or len(rows) > WINDOWS_MAX)


def _key(row: Any) -> tuple[int, str]:
    """As `_collect` orders rows."""
    return row.start, row.destination


def _waits_at(end: tuple[int, str] | None, window: str) -> Column:
    """Whether a message is settled in no window before `end`: in those it waited, wherever it was settled later."""
    unsettled = f.col("settled_at").isNull()
    if end is None:
        return unsettled
    start = f.unix_micros(f.window(f.greatest("settled_at", "timestamp"), window)["start"])
    return unsettled | (f.struct(start, "destination") >= f.struct(f.lit(end[0]), f.lit(end[1])))


def median_and_p99(column: str) -> Column:
    """An array of both."""
    return f.percentile_approx(column, f.array(f.lit(0.5), f.lit(0.99)))


def node_of(origin: str) -> Column:
    """The node of an origin: each of its lives is another one."""
    return f.regexp_replace(origin, "-[0-9a-f]{16}$", "")


def _in(column: str, window: str) -> Column:
    return f.window(column, window).alias("window")


def _collect(frame: DataFrame) -> Sequence[Any]:
    """The first rows, and one more where there are too many."""
    # Numbers, because Spark makes times of this machine's zone of its own, and does not say so.
    bounds = {"start": f.unix_micros("window.start"), "end": f.unix_micros("window.end")}
    return frame.orderBy("window", "destination").limit(WINDOWS_MAX + 1).withColumns(bounds).drop("window").collect()


def _send_waiting(known: dict[tuple[int, str], _Facts], unsettled: dict[str, int], length_us: int) -> None:
    by_destination: dict[str, list[int]] = {}
    for start, destination in sorted(known):
        if destination.startswith("/queue/"):
            by_destination.setdefault(destination, []).append(start)
    for destination, starts in by_destination.items():
        waiting = 0
        for start in starts:
            facts = known[start, destination]
            waiting += facts.of.get("messages", 0) - facts.known
            facts.of["waiting"] = waiting
        first_us: float = unsettled.get(destination, inf)
        for start in reversed(starts):
            facts = known[start, destination]
            if first_us < start + length_us:
                facts.of["oldest_seconds"] = (start + length_us - first_us) / 1e6
            first_us = min(first_us, facts.first_us)


def failures_of(records: DataFrame, messages: DataFrame) -> DataFrame:
    """destination, timestamp, count: failed deliveries. ATTEMPTS records hold absolute counts per message, so what a
    record adds to the one before counts.

    Of a message that is not among `messages` (message_id), because it came before what is read, the first record may
    count failures of that time, too: it is one of them, for there is no record without.
    """
    noted = records.where("kind = 'ATTEMPTS'").select("destination", "timestamp", f.explode(_noted()).alias("noted"))
    highest = Over.partitionBy("destination", "noted.dot").orderBy("noted.count", "timestamp")
    is_read = f.col("message_id").isNotNull()
    before = f.coalesce(f.lag("noted.count").over(highest), f.when(is_read, 0).otherwise(f.col("noted.count") - 1))
    noted = noted.join(messages.select("message_id"), f.col("noted.dot") == f.col("message_id"), "left")
    return noted.select("destination", "timestamp", (f.col("noted.count") - before).alias("count")).where("count > 0")


_ATTEMPTS: Final = "array<struct<dot: string, count: long>>"


def _noted() -> Column:
    # Spark asks Python about every row, whatever condition stands around it.
    body = f.when(f.col("kind") == "ATTEMPTS", f.col("body"))
    return f.udf(_attempts, _ATTEMPTS, useArrow=False)(body)


def _attempts(body: bytes | None) -> list[tuple[str, int]]:
    if body is None:
        return []
    from qmq.storage.format.failure_records import unpack_attempts

    return [(str(dot), count) for dot, count in unpack_attempts(bytes(body)).items()]


def streamed(records: DataFrame, *, window: str, lateness: str, dead_letter_of: str) -> DataFrame:
    """The windows of a stream of records, each when the newest record is `lateness` beyond its end.

    Without what takes a message and its settle together: times to settle, and what waits. A message that two nodes
    settled counts twice, and so does a failure that another node notes once more, because it heard of it.
    `dead_letter_of`: the header that says whose dead letter a message is.
    """
    node = node_of("origin")
    kind, destination, settled = f.col("kind"), f.col("destination"), f.size("settled")
    # What found no room in its queue was never in it: its dead letter settles nothing.
    source = f.when(kind.isin("PUBLISH", "DEAD"), f.element_at("headers", dead_letter_of))
    dead = {"settled": f.when(kind == "DEAD", settled), "settled_by": f.when(kind == "DEAD", node)}
    happened = f.array(
        f.when(kind.isin("PUBLISH", "DEAD"), _happened(destination, size=f.length("body"))),
        f.when(kind == "SETTLE", _happened(destination, settled=settled, settled_by=node)),
        f.when(source.isNotNull(), _happened(source, **dead, dead_letters=f.lit(1))),
        f.when(kind == "ATTEMPTS", _happened(destination, failures=f.size(_noted()))),
    )
    each = records.withWatermark("timestamp", lateness).select("timestamp", f.explode(happened).alias("one"))
    each = each.where("one is not null").select("timestamp", "one.*")
    counted = each.groupBy(_in("timestamp", window), "destination").agg(
        f.count("size").alias("messages"),
        f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"),
        median_and_p99("size").alias("sizes"),
        f.max("size").alias("size_max"),
        f.coalesce(f.sum("settled"), f.lit(0)).alias("settled"),
        f.coalesce(f.sum("failures"), f.lit(0)).alias("failures"),
        f.coalesce(f.sum("dead_letters"), f.lit(0)).alias("dead_letters"),
        f.size(f.collect_set("settled_by")).alias("consumers"),
    )
    sizes = [f.col("sizes")[0].alias("size_p50"), f.col("sizes")[1].alias("size_p99"), f.col("size_max")]
    return counted.select(
        f.col("window.start"), f.col("window.end"), "destination", "messages", "bytes", *sizes,
        "settled", "failures", "dead_letters", "consumers",
    )  # fmt: skip


_SAID: Final = {
    "size": "long",
    "settled": "long",
    "settled_by": "string",
    "dead_letters": "long",
    "failures": "long",
}


def _happened(destination: Column, **values: Column) -> Column:
    """One event of a destination; what it does not say is null."""
    said = [values.get(name, f.lit(None)).cast(kind).alias(name) for name, kind in _SAID.items()]
    return f.struct(destination.alias("destination"), *said)
