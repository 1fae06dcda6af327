"""Sending messages of the past again: from logs, live nodes or an archive, by time, filter and rate, or by a list.

A replayed message is a new one: same body, same headers of its sender, and `qmq-replayed-from` with the old message's
id. Headers that say when it ends or begins (`expires`, `expiration`, `ttl`, delays) are left out, because they meant
another day; so are those that a dead letter was given. Its `dedup-id` is made of the replay's name and the old id: a
replay that is run again under its name appends nothing twice, within the nodes' bound (docs/guarantees.md).

Messages of one origin to one destination are sent in their order, by one task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from qmq.spark.reading.tables import time_of

REPLAYED: Final = "qmq-replayed-from"
LEFT_OUT: Final = ("expires", "expiration", "ttl", "delay", "AMQ_SCHEDULED_DELAY", "receipt-level", REPLAYED)
LEFT_OUT_PREFIX: Final = "dead-letter-"
SAMPLES: Final = 5


@dataclass(slots=True)
class Plan:
    """What a replay would send: messages and bytes by destination, and some of them."""

    messages: int = 0
    bytes: int = 0
    by_destination: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


def choose(
    messages: DataFrame,
    *,
    listed: Sequence[tuple[str, int, str]] | None = None,
    where: str | None = None,
    to: str | None = None,
) -> DataFrame:
    """Messages that `where` (an SQL expression over their columns) is true of, with their new destination.

    `listed`: only those that are on this list of (origin, sequence, destination), each to where it says, unless `to`
    does.
    """
    target = f.col("destination") if to is None else f.lit(to)
    if listed is not None:
        columns = "origin string, sequence long, listed_to string"
        wanted = messages.sparkSession.createDataFrame(list(listed), columns)
        messages = messages.join(f.broadcast(wanted), ["origin", "sequence"])
        target = f.col("listed_to") if to is None else target
    if where is not None:
        messages = messages.where(where)
    return messages.withColumn("to", target).drop("listed_to")


def plan(chosen: DataFrame) -> Plan:
    """What would be sent; nothing is."""
    found = Plan()
    for row in chosen.groupBy("to").agg(f.count("*").alias("count"), f.sum(f.length("body")).alias("size")).collect():
        found.by_destination[row.to] = row["count"]
        found.messages += row["count"]
        found.bytes += row.size or 0
    samples = chosen.orderBy("timestamp", "origin", "sequence").limit(SAMPLES)
    # A number, because Spark makes a time of this machine's zone of its own, and does not say so.
    for row in samples.withColumn("timestamp", f.unix_micros("timestamp")).collect():
        id, time = f"{row.origin}-{row.sequence}", time_of(row.timestamp)
        found.samples.append({"id": id, "to": row.to, "time": time, "body": bytes(row.body)})
    return found


def send(chosen: DataFrame, given: dict[str, str], *, name: str, rate: float | None = None, tasks: int = 2) -> None:
    """Publish `chosen` through the nodes that `given` names (servers, login, …); returns when all is receipted.

    `rate`: messages per second of all tasks together. Raises Spark's error with the node's when one refuses; what was
    sent until then stays, and running it again under the same `name` adds the rest.
    """
    old_id = f.concat_ws("-", "origin", "sequence")
    rows = (
        chosen.repartition(tasks, "origin", "to")
        .sortWithinPartitions("origin", "sequence")
        .select(
            f.col("to").alias("destination"),
            "body",
            f.map_concat(_kept("headers"), f.create_map(f.lit(REPLAYED), old_id)).alias("headers"),
            f.concat_ws("-", f.lit(name), old_id).alias("dedup"),
        )
    )
    writer = rows.write.format("qmq").mode("append").options(**given).option("dedup", "dedup")
    if rate is not None:
        writer = writer.option("rate", str(rate / tasks))
    writer.save()


def _kept(headers: str) -> Column:
    """Headers of the sender that still mean something."""

    def keep(key: Column, value: Column) -> Column:
        return ~key.isin(*LEFT_OUT) & ~key.startswith(LEFT_OUT_PREFIX)

    return f.coalesce(f.map_filter(headers, keep), f.create_map().cast("map<string,string>"))
