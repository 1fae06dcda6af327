"""The archive: every message of the mesh in a Delta table of Parquet, each exactly once, for as long as you like.

Workers decode the log and write Parquet with pyarrow, so rows never pass through the JVM; the driver makes one Delta
commit that holds the files and, per origin, the last sequence in them. The table is its own checkpoint: the next run
begins where the last commit ended, from wherever it is started, and of two runs at once the second commit is refused.
A run that dies leaves files that no reader sees; `vacuum` removes them.

The files are `archive_files`, the commits `archive_table`; here is what is read when, and put together.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from qmq.errors import NotConnected, QmqError
from qmq.model.dots import Vector, merge
from qmq.spark.jobs.archive_files import COLUMNS, PARTITION, write_part
from qmq.spark.jobs.archive_table import (
    ArchiveError,
    Overtaken,
    choice_of,
    commit,
    open_table,
    require_same,
    table_vector,
)
from qmq.spark.jobs.tasks import ProgressReport, results_of, watched
from qmq.spark.reading.options import BadOption, Options, local_path, vector_to_json
from qmq.spark.reading.place import Place, open_place
from qmq.spark.reading.plan import DataLoss, Part, ranges_text
from qmq.spark.reading.ranges import NOTHING, RangeMap
from qmq.spark.reading.views import ddl

_PATTERN_MARKS: Final = re.compile(r"[\\{}\[\]*?]")
"""What means something to Spark in the path of a file."""
FILES_PER_COMMIT: Final = 512
"""Parts of one commit: a first run over years of log is many commits, each of which counts when a later one fails."""
FOLLOW_FAILURES_MAX: Final = 10
"""Runs in a row that may fail while `follow` goes on: a worker may be killed, a disk full for an hour."""
FOLLOW_PAUSE_SECONDS_MAX: Final = 600.0
"""Between such runs, unless they are further apart in any case. It grows from the usual one."""


@dataclass(slots=True)
class Archived:
    """What one run did. `vector` is how far the table goes now."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    seconds: float = 0.0
    vector: Vector = field(default_factory=dict)
    missing: str = ""
    """Of a first run: ranges that no node had any more when it began."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3), "vector": vector_to_json(self.vector)}


def archive(spark: SparkSession, options: Options, table: str, *, report: ProgressReport | None = None) -> Archived:
    """Add to `table` everything that the logs hold beyond it. Durable on return.

    The first run makes the table, and with it the choice of destinations; later runs must make the same.

    Raises:
        ArchiveError: the table is another kind of table, or was started with other destinations.
        Overtaken: another run has added to it meanwhile.
        DataLoss: the logs do not hold any more what comes right after the table.
        BadOption: `table` is an address, and no path.
    """
    began = time.monotonic()
    table = local_path(table)
    chosen = choice_of(options)
    done = Archived()
    with closing(open_place(options)) as place:
        have = place.available()
        start = _begin(table, have, chosen)
        done.vector = dict(start or {})
        if start is None:
            done.missing = ranges_text(_nowhere(place, {}, have))
        merge(have, done.vector)  # what is read now may be behind what was read before: nothing is taken back
        for end, parts in _steps(place, start, have):
            _add(spark, options, table, done, end, parts, chosen, report)
    done.seconds = time.monotonic() - began
    return done


def follow(
    spark: SparkSession,
    options: Options,
    table: str,
    *,
    every_seconds: float,
    on_run: Callable[[Archived], bool],
    failed: Callable[[Exception, float], None],
) -> None:
    """Archive repeatedly, until `on_run`, which is called after each run, returns False.

    After a run that has failed, `failed` is called with the seconds until the next one. Nodes that do not answer, and
    other runs that were first, are waited for without end. After other failures the pause grows, and the last of
    `FOLLOW_FAILURES_MAX` in a row is raised.

    Raises at once what no later run can mend: ArchiveError, BadOption, DataLoss, and the loss of Spark itself.
    """
    failures = 0
    while True:
        began, pause = time.monotonic(), every_seconds
        try:
            if not on_run(archive(spark, options, table)):
                return
            failures = 0
        except (NotConnected, Overtaken) as error:
            failed(error, pause)
        except (ArchiveError, BadOption, DataLoss, ConnectionError):
            raise
        except (QmqError, PySparkException, Py4JJavaError, DeltaError, OSError) as error:
            failures += 1
            if failures == FOLLOW_FAILURES_MAX:
                raise
            pause = max(pause, min(pause * 2 ** (failures - 1), FOLLOW_PAUSE_SECONDS_MAX))
            failed(error, pause)
        time.sleep(max(0.0, pause - (time.monotonic() - began)))


def compact(table: str, *, target_bytes: int = 256 << 20) -> dict[str, Any]:
    """Put small files of the table together. Readers of the old ones are not disturbed until `vacuum`.

    Raises ArchiveError when another one does the same.
    """
    try:
        found: dict[str, Any] = open_table(table).optimize.compact(target_size=target_bytes)
    except CommitFailedError as error:
        raise ArchiveError(f"another run has put files of {table} together meanwhile: {error}") from error
    return found


def vacuum(table: str, *, hours: int = 168, dry_run: bool = False) -> list[str]:
    """Remove files that no version of the last `hours` needs, and those of runs that died; returns their names."""
    removed: list[str] = open_table(table).vacuum(
        retention_hours=hours, dry_run=dry_run, enforce_retention_duration=hours >= 168, full=True
    )
    return removed


def read_archive(spark: SparkSession, table: str, *, delta: DeltaTable | None = None) -> DataFrame:
    """The rows of the table's last version, without a Delta jar: by the list of its files. Raises ArchiveError.

    `delta`: the table as it was opened before, for the rows of that version.
    """
    delta = delta or open_table(table)
    # Names of files are ours, but that of the table may have what addresses and patterns give a meaning to.
    base = str(Path(local_path(table)).resolve())
    root = _PATTERN_MARKS.sub(r"\\\g<0>", base)
    files = [f"{root}/{uri[uri.rindex(f'{PARTITION}=') :]}" for uri in delta.file_uris()]
    # Spark would read a day as a date; the table has text.
    kinds = ddl("messages", COLUMNS) + f", {PARTITION} string"
    if not files:
        return spark.createDataFrame([], kinds)
    return spark.read.schema(kinds).option("basePath", base).parquet(*files)


def _begin(table: str, have: Vector, chosen: Mapping[str, Any]) -> Vector | None:
    """How far the table goes of what there is, which may be nothing when all nodes have begun again; None: no table."""
    try:
        delta = DeltaTable(table)
    except TableNotFoundError:
        return None
    require_same(delta, table, chosen)
    return table_vector(delta, have)


def _steps(place: Place, begun: Vector | None, have: Vector) -> Iterator[tuple[Vector, list[Part]]]:
    """Parts of one commit at a time, and the vector after it. `begun`: what `_begin` returned."""
    # A first run takes what is left of the past, whatever that lacks; from then on nothing may.
    is_first = begun is None
    start = begun or {}
    anything = RangeMap.between({}, have) if is_first else NOTHING
    parts = place.plan(start, have, strict=not is_first, but_for=anything)
    if len(parts) <= FILES_PER_COMMIT:
        if have != start:
            yield have, parts
        return
    # Too much for one commit: what journals still hold is divided evenly, origin by origin.
    pieces = -(-len(parts) // FILES_PER_COMMIT)
    base = place.base()
    begin = dict(start)
    low = {origin: max(start.get(origin, 0), min(base.get(origin, 0), last)) for origin, last in have.items()}
    nowhere = _nowhere(place, low, have) if is_first else NOTHING
    for piece in range(1, pieces + 1):
        end = {origin: low[origin] + (last - low[origin]) * piece // pieces for origin, last in have.items()}
        # All else was there when the run began: what has gone since is no distant past.
        strict = not is_first or piece > 1
        yield end, place.plan(begin, end, strict=strict, but_for=nowhere, over_holes=is_first)
        begin = end


def _nowhere(place: Place, start: Vector, end: Vector) -> RangeMap:
    """What no node has of everything above `start` up to `end`."""
    try:
        place.plan(start, end, strict=True)
    except DataLoss as loss:
        return loss.missing
    return NOTHING


def _add(
    spark: SparkSession,
    options: Options,
    table: str,
    done: Archived,
    end: Vector,
    parts: list[Part],
    chosen: Mapping[str, Any],
    report: ProgressReport | None,
) -> None:
    Path(table).mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    if parts:
        run = uuid.uuid4().hex
        with watched(spark, report):
            try:
                entries = results_of(
                    spark,
                    list(enumerate(parts)),
                    lambda item: write_part(item[1], options, table, f"{run}-{item[0]:05d}"),
                )
            except (PySparkException, Py4JJavaError) as error:
                raise _not_connected(error) or error from None
    commit(table, done.vector, end, entries, chosen)
    done.rows += sum(entry["rows"] for entry in entries)
    done.bytes += sum(entry["size"] for entry in entries)
    done.files += len(entries)
    done.commits += 1
    done.vector.update(end)


def _not_connected(error: Exception) -> NotConnected | None:
    """The error of a worker for which no node has answered, if it is one: Spark has only its text."""
    name = f"{NotConnected.__module__}.{NotConnected.__qualname__}: "
    said = [line.strip() for line in str(error).splitlines()]
    return next((NotConnected(line.removeprefix(name)) for line in said if line.startswith(name)), None)
