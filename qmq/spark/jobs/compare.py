"""Are two nodes, or a node and an archive, equal? By hashes of ranges, then record by record where they differ.

Only what both can have is compared: a node's journal begins somewhere, and both end somewhere. What one of them has
beyond that is reported and is no difference, unless requested. If retention drops records meanwhile, the comparison
begins again with the remaining ones. Two nodes are compared in all their records; with an archive, in their messages,
of the destinations and times that the archive was started with.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from qmq.model.dots import parse_origin
from qmq.spark.archive.storage import directory_of, place_of
from qmq.spark.archive.table import DELTA_LOG, archive_choice, open_table, table_vector
from qmq.spark.jobs.messages import only, options_of, read_messages
from qmq.spark.reading.options import CHOOSING, read_options, vector_to_json
from qmq.spark.reading.place import open_place
from qmq.spark.reading.ranges import RangeMap

RECORDS_PER_RANGE: Final = 10_000
DIFFERENCES_MAX: Final = 1000
"""Records that are listed one by one."""
TRIES: Final = 5
"""Of one comparison: retention drops a segment at a time, and reading takes less than writing one."""


class Difference(NamedTuple):
    """One record. `how`: only left, only right, or different."""

    origin: str
    sequence: int
    how: str


@dataclass(slots=True)
class Comparison:
    """What came of it. `outside`: origin → what left and right have that the other cannot have."""

    records: int = 0
    ranges: int = 0
    ranges_different: int = 0
    differences: list[Difference] = field(default_factory=list)
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.ranges_different == 0


class Side:
    """A data directory, a live node (`host:port`), or an archive; `given` are the options to reach nodes."""

    def __init__(self, where: str, given: Mapping[str, str]) -> None:
        self.where = where = place_of(where)
        directory = directory_of(where)
        self.is_archive = directory is None or (directory / DELTA_LOG).is_dir()
        is_server = not Path(where).exists() and ":" in where
        self._given = dict(given) if self.is_archive else {**given, "servers" if is_server else "path": where}
        self.options = read_options(self._given, of_archive=self.is_archive)
        """What a node or its directory is opened with."""

    def choice(self) -> dict[str, str]:
        """Options that choose what an archive is of."""
        return archive_choice(open_table(self.where), self.where) if self.is_archive else {}

    def held(self, spark: SparkSession) -> RangeMap:
        """What it has: one range of each origin."""
        if self.is_archive:
            rows = self._archive(spark, {}).groupBy("origin").agg(f.min("sequence"), f.max("sequence")).collect()
            # It goes as far as it says: behind its last message there may be settles.
            ends = table_vector(open_table(self.where), [row[0] for row in rows])
            return RangeMap({parse_origin(row[0]): [(row[1] - 1, max(row[2], ends.get(row[0], 0)))] for row in rows})
        with closing(open_place(self.options)) as place:
            have = place.available()
            return RangeMap.between(place.base(), have)

    def hashes(
        self, spark: SparkSession, choices: Sequence[Mapping[str, str]], needed: RangeMap | None, messages_only: bool
    ) -> DataFrame:
        """`origin`, `sequence`, `hash` of every record that all of `choices` (options) ask for. What a node lacks of
        `needed`, if that is given, is an error of the query.
        """
        chosen = choices[0] if choices else {}
        if self.is_archive:
            frame = self._archive(spark, chosen).withColumn("kind", f.lit("PUBLISH"))
        else:
            columns = "origin,sequence,timestamp,kind,destination,priority,body,headers"
            options = {**chosen, **_offsets(needed), **self._given, "view": "records", "columns": columns}
            frame = spark.read.format("qmq").options(**options).load()
            if messages_only:
                frame = frame.where("kind in ('PUBLISH', 'DEAD')").withColumn("kind", f.lit("PUBLISH"))
        for choice in choices[1:]:
            frame = only(frame, options_of(dict(choice), self.where))
        headers = f.to_json(f.array_sort(f.map_entries("headers")))
        parts = ["sequence", f.unix_micros("timestamp"), "kind", "destination", "priority", "body", headers]
        return frame.select("origin", "sequence", f.xxhash64(*parts).alias("hash"))

    def _archive(self, spark: SparkSession, chosen: Mapping[str, str]) -> DataFrame:
        return read_messages(spark, dict(chosen), self.where)


def compare(
    spark: SparkSession, left: str, right: str, *, everything: bool = False, given: Mapping[str, str] | None = None
) -> Comparison:
    """Compare two sides. With `everything`, what only one of them can have is a difference as well.

    `given`: options of `format("qmq")` that say which records (`CHOOSING`), and how to log in at live nodes.
    """
    login = {name: value for name, value in (given or {}).items() if name not in CHOOSING}
    one, other = Side(left, login), Side(right, login)
    asked_for = {name: value for name, value in (given or {}).items() if name in CHOOSING}
    # One narrows the other: an archive has nothing but what it was started with, whatever is asked for.
    choices = [choice for choice in (asked_for, one.choice(), other.choice()) if choice]
    messages_only = one.is_archive or other.is_archive
    for left_tries in reversed(range(TRIES)):
        found, both = _begin(spark, one, other)
        asked = None if everything else both
        try:
            frames = [side.hashes(spark, choices, asked, messages_only) for side in (one, other)]
            if not everything:
                frames = [_within(spark, frame, both) for frame in frames]
            _compare(frames[0], frames[1], found)
            return found
        except (PySparkException, Py4JJavaError):
            now = _begin(spark, one, other)[1]
            if not left_tries or both.bounds()[0].items() <= now.bounds()[0].items():
                raise
    raise AssertionError("the last try returns or raises")


def _begin(spark: SparkSession, one: Side, other: Side) -> tuple[Comparison, RangeMap]:
    """A comparison that says what only one side can have, and what both can have."""
    here, there = one.held(spark), other.held(spark)
    both = here.common(there)
    only_here, only_there = here.minus(both), there.minus(both)
    outside = sorted({origin for side in (only_here, only_there) for origin, ranges in side.items() if ranges})
    counts = {str(origin): (only_here.count(origin), only_there.count(origin)) for origin in outside}
    return Comparison(outside=counts), both


def _offsets(needed: RangeMap | None) -> dict[str, str]:
    if needed is None:
        return {}
    starts, ends = needed.bounds()
    return {
        "startingOffsets": json.dumps(vector_to_json(starts)),
        "endingOffsets": json.dumps(vector_to_json(ends)),
    }


def _compare(left: DataFrame, right: DataFrame, found: Comparison) -> None:
    joined = _ranges(left, "l").join(_ranges(right, "r"), ["origin", "range"], "full_outer").cache()
    same = f.col("l_hash").eqNullSafe(f.col("r_hash")) & f.col("l_count").eqNullSafe(f.col("r_count"))
    try:
        counts = joined.agg(
            f.count("*"), f.sum(f.when(same, 0).otherwise(1)), f.sum(f.coalesce("l_count", "r_count"))
        ).collect()[0]
        found.ranges, found.ranges_different, found.records = counts[0], counts[1] or 0, counts[2] or 0
        if found.ranges_different:
            wrong = joined.where(~same).select("origin", "range")
            found.differences = list(_records(left, right, wrong))
    finally:
        joined.unpersist()


def _ranges(frame: DataFrame, side: str) -> DataFrame:
    """Count and hash of each range; the order of records does not matter, their number does."""
    number = f.floor(f.col("sequence") / RECORDS_PER_RANGE)
    return frame.groupBy("origin", number.alias("range")).agg(
        f.count("*").alias(f"{side}_count"), f.bit_xor("hash").alias(f"{side}_hash")
    )


def _records(left: DataFrame, right: DataFrame, wrong: DataFrame) -> Iterator[Difference]:
    sides = []
    for side, frame in (("l", left), ("r", right)):
        number = f.floor(f.col("sequence") / RECORDS_PER_RANGE).alias("range")
        chosen = frame.select("*", number).join(f.broadcast(wrong), ["origin", "range"])
        # A record that stands twice differs from one that stands once.
        sides.append(chosen.groupBy("origin", "sequence").agg(f.sort_array(f.collect_list("hash")).alias(side)))
    joined = sides[0].join(sides[1], ["origin", "sequence"], "full_outer").where("not (l <=> r)")
    for row in joined.orderBy("origin", "sequence").limit(DIFFERENCES_MAX).collect():
        how = "only left" if row.r is None else "only right" if row.l is None else "different"
        yield Difference(row.origin, row.sequence, how)


def _within(spark: SparkSession, frame: DataFrame, both: RangeMap) -> DataFrame:
    rows = [(str(origin), after + 1, through) for origin, ranges in both.items() for after, through in ranges]
    known = spark.createDataFrame(rows, "origin string, first long, last long")
    return frame.join(f.broadcast(known), "origin").where("sequence between first and last").drop("first", "last")


def as_json(found: Comparison) -> dict[str, Any]:
    """For `--json`."""
    return {
        "equal": found.equal,
        **asdict(found),
        "differences": [difference._asdict() for difference in found.differences],
        "outside": {origin: {"left": left, "right": right} for origin, (left, right) in found.outside.items()},
    }
