"""Statistics of destinations, per window of time: how much, how big, how fast done with, what still waits.

Everything comes from the log: messages, and the records by which they were settled. A message's time is that of the
node that accepted it, a settle's that of the node whose consumer acknowledged; clocks that differ can make a time to
settle negative, which counts as 0. Settles of messages that came before what is read count in their windows, and the
times of these are not known.

A message counts in the window of its acceptance, all else in the window in which it happened: a settle, a failed
delivery, a dead letter. How these events are counted is `windows`.
"""

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from qmq.spark.jobs.messages import is_chosen
from qmq.spark.jobs.windows import Total, Window, event, totals_of, windows_of
from qmq.spark.reading.options import read_options

WINDOW: Final = "1 minute"
DEAD_LETTER_HEADER: Final = "dead-letter-from"
COLUMNS: Final = "origin,sequence,timestamp,kind,destination,message_id,body,settled,headers"


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
    chosen = records.where(f.col("chosen") | f.col("dead_letter_of").isNotNull())
    is_message, is_failure = f.col("kind").isin("PUBLISH", "DEAD"), f.col("kind") == "ATTEMPTS"
    # Without bodies they are few bytes, and to read them again would take the whole log again.
    facts = chosen.select(
        *("kind", "destination", "message_id", "timestamp", "origin", "settled", "chosen", "dead_letter_of"),
        f.when(is_message, f.length("body")).alias("size"),
        f.when(is_failure, f.col("body")).alias("attempts"),
    ).cache()
    events = _events(facts).cache()
    try:
        windows, is_cut = windows_of(events, window)
        return DestinationStatistics(windows, totals_of(events, end_us), is_cut)
    finally:
        events.unpersist()
        facts.unpersist()


def _events(facts: DataFrame) -> DataFrame:
    messages = facts.where("size is not null").drop("kind", "origin", "settled", "attempts")
    queue = f.when(f.col("chosen"), f.col("destination"))
    settles = facts.where("settled is not null").select(
        f.explode("settled").alias("message_id"),
        f.col("timestamp").alias("settled_at"),
        # Each life of a node is another origin.
        f.regexp_replace("origin", "-[0-9a-f]{16}$", "").alias("settled_by"),
        f.when(f.col("kind") == "DEAD", f.col("dead_letter_of")).otherwise(queue).alias("queue"),
    )
    # A message may be settled on two nodes, or by its own node once more: the first time counts.
    first = settles.groupBy("message_id").agg(
        f.min("settled_at").alias("settled_at"),
        f.min_by("settled_by", "settled_at").alias("settled_by"),
        f.min_by("queue", "settled_at").alias("queue"),
    )
    name, came, settled_at = f.col("destination"), f.col("timestamp"), f.col("settled_at")
    waits = f.when(name.startswith("/queue/") & settled_at.isNull(), came)
    is_known, is_unknown = f.col("chosen") & settled_at.isNotNull(), came.isNull() & f.col("queue").isNotNull()
    # By clocks that differ a message may be settled before it came: it counts as settled at once.
    settled = {"at": f.greatest(settled_at, came), "settled_by": f.col("settled_by"), "accepted": came}
    happened = f.array(
        f.when(f.col("chosen"), event(name, came, size=f.col("size"), waits_from=waits)),
        f.when(is_known | is_unknown, event(f.coalesce(name, "queue"), **settled)),
        f.when(f.col("dead_letter_of").isNotNull(), event(f.col("dead_letter_of"), came, dead_letters=f.lit(1))),
    )
    each = messages.join(first, "message_id", "full").select(f.explode(happened).alias("one"))
    failures = _failures(facts.where("chosen and attempts is not null"), messages)
    return each.where("one is not null").select("one.*").unionByName(failures, allowMissingColumns=True)


def _failures(noted: DataFrame, messages: DataFrame) -> DataFrame:
    """Events of failed deliveries. ATTEMPTS records hold absolute counts per message, so what a record adds to the one
    before counts.

    Of a message that is not among `messages` (message_id), because it came before what is read, the first record may
    count failures of that time, too: it is one of them, for there is no record without.
    """
    each = noted.select("destination", "timestamp", f.explode(_noted("attempts")).alias("noted"))
    highest = Over.partitionBy("destination", "noted.dot").orderBy("noted.count", "timestamp")
    is_read = f.col("message_id").isNotNull()
    before = f.coalesce(f.lag("noted.count").over(highest), f.when(is_read, 0).otherwise(f.col("noted.count") - 1))
    each = each.join(messages.select("message_id"), f.col("noted.dot") == f.col("message_id"), "left")
    failures = f.col("noted.count") - before
    return each.select("destination", f.col("timestamp").alias("at"), failures.alias("failures")).where("failures > 0")


def _noted(body: str) -> Column:
    return f.udf(_attempts, "array<struct<dot: string, count: long>>", useArrow=False)(body)


def _attempts(body: bytes) -> list[tuple[str, int]]:
    from qmq.storage.format.failure_records import unpack_attempts

    return [(str(dot), count) for dot, count in unpack_attempts(bytes(body)).items()]
