"""Typed tables from JSON bodies: columns as the bodies have them, each message in one row, exactly once.

The first run infers a schema from the bodies and keeps it beside the data (`_qmq.json`); later runs add what is new in
the log and keep to it. What does not fit is not lost: `body` has every body as a VARIANT, `unparsed` the bytes of one
that is no JSON, and each run reports fields that are new, gone, or of another type, and bodies that do not parse.

Surprising: for Spark JSON ends where its first value does, whatever comes behind it, and capitals are the same letters.

A run writes the directory `run=N` whole, and then says so in `_qmq.json`, in one rename; a run that died is repeated
into the same directory. Readers take the directories that `_qmq.json` lists (`read_table`). Two runs at once would
write the same directory, so the second is refused.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from qmq.errors import QmqError
from qmq.model.dots import Vector, merge
from qmq.spark.jobs.tasks import utc_times
from qmq.spark.reading.options import local_path, read_options, vector_from_json, vector_to_json
from qmq.spark.reading.place import open_place

STATE: Final = "_qmq.json"
LOCK: Final = "_qmq.lock"
STATE_VERSION: Final = 1
OWN_COLUMNS: Final = ("message_id", "timestamp", "destination", "body", "unparsed")
BROKEN: Final = "\0"
"""What Spark is to call its column for broken lines: there are none, and bodies may have a field of the usual name."""
CHOOSING: Final = ("subscribe", "subscribePattern", "startingTimestamp", "endingTimestamp")
"""Options that say which messages a table is of."""
FieldPath: TypeAlias = tuple[str | None, ...]
"""Names of fields, from the outer one on; None is any element of a list."""


class TableError(QmqError):
    """The table is not one that this job can go on with."""


@dataclass(slots=True)
class Drift:
    """How this run's bodies differ from the kept schema. Fields by path, with the types that were found."""

    new: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    unparsed: int = 0

    @property
    def any(self) -> bool:
        return bool(self.new or self.changed or self.unparsed)


@dataclass(slots=True)
class Tabled:
    """What one run did."""

    rows: int = 0
    run: int = 0
    schema: str = ""
    drift: Drift = field(default_factory=Drift)


def tables(spark: SparkSession, given: dict[str, str], table: str) -> Tabled:
    """Add to `table` the messages that the log holds beyond it. `given` are options of `format("qmq")`.

    Raises:
        TableError: there is something else in `table`, it was started with other destinations, or another run is at it.
        DataLoss: the log does not hold any more what comes right after the table.
    """
    table = local_path(table)
    with _isolated(table):
        return _add(spark, given, table)


@contextmanager
def _isolated(table: str) -> Iterator[None]:
    """Lock the table against other runs. Raises TableError when another holds it; a lock ends with its process."""
    Path(table).mkdir(parents=True, exist_ok=True)
    with open(Path(table, LOCK), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TableError(f"another run is adding to {table}") from error
        yield


def _add(spark: SparkSession, given: dict[str, str], table: str) -> Tabled:
    with closing(open_place(read_options(given))) as place:
        have = place.available()
    choice: dict[str, str] = {name: given[name] for name in CHOOSING if name in given}
    state = _read_state(table, choice)
    start: Vector = vector_from_json(state["vector"])
    done = Tabled(run=state["runs"], schema=state["schema"] or "")
    # What is read now may be behind what was read before, or not know all of its origins: nothing is taken back.
    reached = dict(start)
    merge(reached, have)
    if reached == start:
        return done
    ends = {"startingOffsets": json.dumps(vector_to_json(start)), "endingOffsets": json.dumps(vector_to_json(have))}
    if not start:
        del ends["startingOffsets"]
    columns = "timestamp,destination,message_id,body"
    frame = spark.read.format("qmq").options(**{**given, **ends, "columns": columns}).load().cache()
    try:
        texts = frame.select(f.col("body").cast("string").alias("text"))
        found = _infer(spark, texts)
        kept = StructType.fromJson(json.loads(state["schema"])) if state["schema"] else _served_apart(found, texts)
        done.drift = drift(kept, found)
        done.rows, done.drift.unparsed = _write(spark, frame, kept, f"{table}/run={state['runs']}")
    finally:
        frame.unpersist()
    done.run = state["runs"] + 1
    # Bodies without a field say nothing about what others have: the first that have some decide.
    done.schema = kept.json() if kept.fields else ""
    _write_state(table, {**state, "runs": done.run, "schema": done.schema or None, "vector": vector_to_json(reached)})
    return done


def read_table(spark: SparkSession, table: str) -> DataFrame:
    """The rows of all finished runs. Raises TableError when there is no table."""
    table = local_path(table)
    state = _read_state(table, None)
    if not state["runs"]:
        raise TableError(f"there is no table at {table}")
    runs = [f"{table}/run={run}" for run in range(state["runs"])]
    # The first ones may be from before any body had a field: their columns are null.
    return spark.read.schema(spark.read.parquet(runs[-1]).schema).parquet(*runs)


def drift(kept: StructType, found: StructType) -> Drift:
    """What `found` has that `kept` has not, and the other way round."""
    before, now = _fields(kept), _fields(found)
    result = Drift()
    for path, kind in now.items():
        if path not in before:
            result.new[path] = kind
        elif before[path] != kind:
            result.changed[path] = (before[path], kind)
    result.removed = {path: kind for path, kind in before.items() if path not in now}
    return result


def _fields(schema: DataType, path: str = "") -> dict[str, str]:
    """Path → type of everything in a schema; elements of lists are `path[]`."""
    if isinstance(schema, StructType):
        found: dict[str, str] = {}
        for one in schema.fields:
            found.update(_fields(one.dataType, f"{path}.{one.name}" if path else one.name))
        return found
    if isinstance(schema, ArrayType):
        return _fields(schema.elementType, f"{path}[]")
    return {path: schema.simpleString()}


def _infer(spark: SparkSession, texts: DataFrame) -> StructType:
    """The schema of all bodies that are JSON objects."""
    # A list of objects would count as so many objects.
    lines = texts.where(_is_json(f.col("text")) & f.col("text").rlike(r"^\s*\{"))
    return spark.read.json(lines, mode="DROPMALFORMED", columnNameOfCorruptRecord=BROKEN).schema


def _is_json(text: Column) -> Column:
    """Whether a text is one JSON value and nothing else.

    What is behind its first value shows between brackets: only a comma could go on in a list and in an object, and
    then the list is longer.
    """
    alone = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]"))).cast("array<variant>")
    return (f.size(alone) == 1) & f.try_parse_json(f.concat(f.lit('{"":'), text, f.lit("}"))).isNotNull()


def _served_apart(found: StructType, texts: DataFrame) -> StructType:
    """A schema without fields that Spark cannot distinguish from a more frequent one; `body` has them."""
    rivals = list(_rivals(found))
    counts: dict[FieldPath, int] = {}
    if rivals:
        body = f.try_parse_json("text")
        counted = texts.where(_is_json(f.col("text"))).agg(*[f.count_if(_has(body, path)) for path in rivals])
        counts = dict(zip(rivals, counted.collect()[0], strict=True))
    return _without_rivals(found, counts)


def _rivals(kind: DataType, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Paths of fields that differ from another one of their object by capitals only."""
    if isinstance(kind, ArrayType):
        yield from _rivals(kind.elementType, (*path, None))
    if isinstance(kind, StructType):
        names = Counter(name.lower() for name in kind.fieldNames())
        for one in kind.fields:
            if names[one.name.lower()] > 1:
                yield (*path, one.name)
            yield from _rivals(one.dataType, (*path, one.name))


def _has(value: Column, path: FieldPath) -> Column:
    """Whether a VARIANT has something at a path."""
    if not path:
        return value.isNotNull()
    if path[0] is None:
        return f.exists(f.try_variant_get(value, "$", "array<variant>"), lambda one: _has(one, path[1:]))
    # Not by a path of Spark's, which has no way to write some names.
    return _has(f.try_element_at(f.try_variant_get(value, "$", "map<string,variant>"), f.lit(path[0])), path[1:])


def _without_rivals(kind: Any, counts: Mapping[FieldPath, int], path: FieldPath = ()) -> Any:
    if isinstance(kind, ArrayType):
        return ArrayType(_without_rivals(kind.elementType, counts, (*path, None)), kind.containsNull)
    if not isinstance(kind, StructType):
        return kind
    fields: dict[str, StructField] = {}
    for one in sorted(kind.fields, key=lambda one: -counts.get((*path, one.name), 0)):
        fields.setdefault(one.name.lower(), one)
    return StructType(
        [
            StructField(one.name, _without_rivals(one.dataType, counts, (*path, one.name)), one.nullable)
            for one in kind.fields
            if fields[one.name.lower()] is one
        ]
    )


def _write(spark: SparkSession, frame: DataFrame, schema: StructType, path: str) -> tuple[int, int]:
    """Write one run; returns its rows, and how many bodies are no JSON."""
    text = f.col("body").cast("string")
    # What is no UTF-8 would come out of a VARIANT with other bytes.
    is_kept = f.is_valid_utf8(text) & _is_json(text)
    variant = f.when(is_kept, f.try_parse_json(text))
    parsed = frame.select(
        "message_id",
        "timestamp",
        "destination",
        variant.alias("body"),
        f.when(variant.isNull(), f.col("body")).alias("unparsed"),
        f.from_json(f.when(is_kept, text), schema, {"columnNameOfCorruptRecord": BROKEN}).alias("parsed"),
    )
    columns = [f.col("parsed")[name].alias(column) for name, column in _column_names(schema.fieldNames()).items()]
    with utc_times(spark):
        parsed.select(*OWN_COLUMNS, *columns).write.mode("overwrite").parquet(path)
    counts = parsed.agg(f.count("*"), f.count("unparsed")).collect()[0]
    return counts[0], counts[1]


def _column_names(fields: Sequence[str]) -> dict[str, str]:
    """Field → column: a body may call a field as one of ours. For Spark capitals are the same letters."""
    ours = [name for name in fields if name.lower() in OWN_COLUMNS]
    names = {name: name for name in fields if name not in ours}
    taken = {*OWN_COLUMNS, *map(str.lower, names)}
    for name in ours:
        column = f"body_{name}"
        while column.lower() in taken:
            column = f"body_{column}"
        taken.add(column.lower())
        names[name] = column
    return names


def _read_state(table: str, choice: dict[str, str] | None) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(Path(table, STATE).read_text("utf-8"))
    except FileNotFoundError:
        if Path(table).exists() and any(
            not child.name.startswith(("run=", "_qmq.")) for child in Path(table).iterdir()
        ):
            raise TableError(f"there is something else in {table}") from None
        return {"version": STATE_VERSION, "choice": choice, "runs": 0, "schema": None, "vector": {}}
    except ValueError as error:
        raise TableError(f"{table}/{STATE} cannot be read: {error}") from error
    if state["version"] > STATE_VERSION:
        raise TableError(f"{table} was written by later software (version {state['version']})")
    if choice is not None and state["choice"] != choice:
        raise TableError(f"{table} was started with {state['choice']}, and this run is about {choice}")
    return state


def _write_state(table: str, state: dict[str, Any]) -> None:
    """Durable on return."""
    path = Path(table, STATE)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
