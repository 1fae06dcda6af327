"""Dead letters: which queues gave up messages, why, how often, what was in them, and a list to send them again by.

A dead letter is an ordinary message with headers of the broker in front of the sender's (docs/queues.md):
`dead-letter-reason`, `dead-letter-from`, `dead-letter-id`, `dead-letter-deliveries`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from qmq.errors import QmqError
from qmq.spark.jobs.messages import is_chosen, options_of, read_messages
from qmq.spark.reading.tables import time_of

EXAMPLES: Final = 3
EXAMPLE_BYTES: Final = 200
GROUPS_MAX: Final = 10_000
REDRIVE_MAX: Final = 1_000_000
"""Lines of one list."""


class BadList(QmqError):
    """A list of messages to send again is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one queue for one reason. `examples`: beginnings of some bodies."""

    queue: str
    reason: str
    dead_letters: int
    first: datetime
    last: datetime
    deliveries_most: int
    examples: tuple[bytes, ...]


def read_dead_letters(spark: SparkSession, given: dict[str, str], archive: str | None = None) -> DataFrame:
    """The dead letters as `messages.read_messages` has them: of queues that `given` chooses, or kept in them.

    Raises BadOption, and ArchiveError when `archive` is none.
    """
    options = options_of(given, archive)
    everything = {name: value for name, value in given.items() if not name.lower().startswith("subscribe")}
    messages = read_messages(spark, everything, archive).where(_header("reason").isNotNull())
    return messages.where(is_chosen(options) | is_chosen(options, _header("from")))


def dead_letters_of(messages: DataFrame) -> DataFrame:
    """Only the dead letters, with `queue`, `reason`, `deliveries` and the old message's id as columns."""
    return messages.where(_header("reason").isNotNull()).select(
        "*",
        _header("from").alias("queue"),
        _header("reason").alias("reason"),
        f.coalesce(_header("deliveries").try_cast("int"), f.lit(0)).alias("deliveries"),
        _header("id").alias("message_id"),
    )


def _header(name: str) -> Column:
    return f.element_at("headers", f"dead-letter-{name}")


def dead_letters(messages: DataFrame) -> list[DeadLetterGroup]:
    """Dead letters by queue and reason, the most first."""
    rows = (
        dead_letters_of(messages)
        .groupBy("queue", "reason")
        .agg(
            f.count("*").alias("dead_letters"),
            # Numbers, because Spark makes times of this machine's zone of its own, and does not say so.
            f.unix_micros(f.min("timestamp")).alias("first_us"),
            f.unix_micros(f.max("timestamp")).alias("last_us"),
            f.max("deliveries").alias("deliveries"),
            # The newest bodies: present failures matter most.
            f.max_by(f.substring("body", 1, EXAMPLE_BYTES), "timestamp", EXAMPLES).alias("examples"),
        )
        .orderBy(f.desc("dead_letters"), "queue", "reason")
        .limit(GROUPS_MAX)
    )
    return [
        DeadLetterGroup(
            queue=row.queue or "",
            reason=row.reason,
            dead_letters=row.dead_letters,
            first=time_of(row.first_us),
            last=time_of(row.last_us),
            deliveries_most=row.deliveries,
            examples=tuple(bytes(body) for body in row.examples),
        )
        for row in rows.collect()
    ]


def redrive_lines(messages: DataFrame) -> Iterator[str]:
    """A line of JSON per dead letter: its own `id`, and the queue to send it `to`. Lines may be taken out by hand."""
    chosen = dead_letters_of(messages).orderBy("timestamp", "origin", "sequence").limit(REDRIVE_MAX)
    for row in chosen.select("origin", "sequence", "queue", "reason", "message_id").toLocalIterator():
        facts = {"id": f"{row.origin}-{row.sequence}", "to": row.queue, "reason": row.reason, "was": row.message_id}
        yield json.dumps(facts, ensure_ascii=False)


def read_list(lines: Iterator[str]) -> list[tuple[str, int, str]]:
    """Origin, sequence and destination of each line. Raises BadList, with the number of the line."""
    found: list[tuple[str, int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            facts = json.loads(line)
            origin, _, sequence = str(facts["id"]).rpartition("-")
            found.append((origin, int(sequence), str(facts["to"])))
        except (ValueError, KeyError, TypeError):
            raise BadList(f'line {number} is not {{"id": "ORIGIN-SEQUENCE", "to": "/queue/NAME"}}: {line!r}') from None
        if not origin or not facts["to"]:
            raise BadList(f"line {number} names no message or no destination")
    return found
