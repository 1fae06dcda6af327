"""One run of an archive: what is read when, and put together. The same with Spark's workers and in one process.

A run asks the nodes how far they are, plans what the table lacks of that, and makes commits of so many parts each. The
table is its own checkpoint: the next run begins where the last commit ended, from wherever it is started, and of two
runs at once the second commit is refused. A run that dies leaves files that no reader sees; `vacuum` removes them.

What writes the files is an argument, `write`. The files are `files`, the commits `table`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from qmq.errors import CorruptLog
from qmq.model.dots import Vector, merge, parse_origin
from qmq.spark.archive.files import LACKING
from qmq.spark.archive.losses import Losses, TableLoss, all_ranges, losses_of
from qmq.spark.archive.storage import directory_of, place_of
from qmq.spark.archive.table import begin, choice_of, commit, lost_of, open_table
from qmq.spark.reading.options import Options, vector_to_json
from qmq.spark.reading.place import Place
from qmq.spark.reading.plan import DataLoss, Part, ranges_text
from qmq.spark.reading.ranges import NOTHING, RangeMap

PARTS_PER_COMMIT: Final = 512
"""A first run over years of log is many commits, each of which counts when a later one fails."""

Write = Callable[[Sequence[Part]], list[dict[str, Any]]]
"""Makes the files of the parts of one commit, and returns what `files.write_parts` returns."""


@dataclass(slots=True)
class Archived:
    """What one run did. `vector` is how far the table goes now."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    seconds: float = 0.0
    vector: Vector = field(default_factory=dict)
    lost: Losses = ()
    """All that the table lacks now of what it goes over."""
    missing: str = ""
    """What no node had any more, and this run went on without."""
    found: str = ""
    """What earlier runs had gone on without, and this one has added."""

    def as_json(self) -> dict[str, Any]:
        plain = {"vector": vector_to_json(self.vector), "lost": [one._asdict() for one in self.lost]}
        return {**asdict(self), "seconds": round(self.seconds, 3), **plain}


def archive(
    place: Place,
    options: Options,
    table: str,
    write: Write,
    *,
    chosen: Mapping[str, Any] | None = None,
    make_commit: Callable[..., None] = commit,
    parts_per_commit: int = PARTS_PER_COMMIT,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Archived:
    """Add to `table` everything that the logs hold beyond it. Durable on return.

    The first run makes the table, and with it the choice of destinations; later runs must make the same. `chosen`:
    what the table is of, if it is no archive; `make_commit` is called as `table.commit`, with its arguments in order.
    Once `is_stopping`, the run returns after the commit that it is at: what it has not done is left to the next one.

    Raises:
        ArchiveError: the table is another kind of table, or was started with other destinations.
        Overtaken: another run has added to it meanwhile.
        DataLoss: the logs do not hold any more what comes right after the table.
        BadOption: `table` is no address of a table.
        NotConnected: no node answers.
        OSError: a file cannot be written.
    """
    began = time.monotonic()
    run = _ArchiveRun(place, place_of(table), write, chosen or choice_of(options), make_commit)
    done, have = run.done, place.available()
    start = begin(run.table, have, run.chosen)
    done.vector = dict(start or {})
    before = done.lost = () if start is None else lost_of(open_table(run.table))
    merge(have, done.vector)  # what is read now may be behind what was read before: nothing is taken back
    for end, parts in steps(place, start, have, parts_per_commit):
        if is_stopping():
            break
        run.add(end, parts)
    base = place.base() if before else {}
    for lost in before:
        if not (lost.partly or is_stopping()) and lost.last > base.get(parse_origin(lost.origin), 0):
            run.look_again(lost)
    was, now = all_ranges(before), all_ranges(done.lost)
    done.missing, done.found = ranges_text(now.minus(was)), ranges_text(was.minus(now))
    done.seconds = time.monotonic() - began
    return done


def steps(
    place: Place, begun: Vector | None, have: Vector, parts_per_commit: int
) -> Iterator[tuple[Vector, list[Part]]]:
    """Parts of one commit at a time, and the vector after it. `begun`: what `begin` returned."""
    # A first run takes what is left of the past, whatever that lacks; from then on nothing may.
    is_first = begun is None
    start = begun or {}
    anything = RangeMap.between({}, have) if is_first else NOTHING
    parts = place.plan(start, have, strict=not is_first, but_for=anything)
    if len(parts) <= parts_per_commit:
        if have != start:
            yield have, parts
        return
    # Too much for one commit: what journals still hold is divided evenly, origin by origin.
    pieces = -(-len(parts) // parts_per_commit)
    base = place.base()
    behind = dict(start)
    low = {origin: max(start.get(origin, 0), min(base.get(origin, 0), last)) for origin, last in have.items()}
    nowhere = NOTHING
    if is_first:
        place.plan(low, have, strict=True, but_for=anything)
        nowhere = place.lacking.missing
    for piece in range(1, pieces + 1):
        end = {origin: low[origin] + (last - low[origin]) * piece // pieces for origin, last in have.items()}
        # All else was there when the run began: what has gone since is no distant past.
        strict = not is_first or piece > 1
        yield end, place.plan(behind, end, strict=strict, but_for=nowhere, over_holes=is_first)
        behind = end


@dataclass(slots=True)
class _ArchiveRun:
    place: Place
    table: str
    write: Write
    chosen: Mapping[str, Any]
    make_commit: Callable[..., None]
    done: Archived = field(default_factory=Archived)

    def add(self, end: Vector, parts: Sequence[Part], again: TableLoss | None = None) -> None:
        """One commit of what was planned last. `again`: it is what an earlier run went on without."""
        done, lacking = self.done, self.place.lacking
        entries = self.write(parts) if parts else []
        for read in (entry[LACKING] for entry in entries if LACKING in entry):
            lacking.add(read.missing, read.partly)
        lost: Losses = ()
        if lacking.missing:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            lost = losses_of(lacking, self.place.base(), self.place.silent, at)
        if again is not None:
            lost = tuple(one._replace(why=again.why, at=again.at) for one in lost)
            if lost == (again,):
                return
        lost = (*(one for one in done.lost if one != again), *lost)
        files = [entry for entry in entries if LACKING not in entry]
        directory = directory_of(self.table)
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self.make_commit(self.table, done.vector, end, files, self.chosen, (done.lost, lost))
        done.lost = lost
        done.rows += sum(entry["rows"] for entry in files)
        done.bytes += sum(entry["size"] for entry in files)
        done.files += len(files)
        done.commits += 1
        done.vector.update(end)

    def look_again(self, lost: TableLoss) -> None:
        """Add what nodes have now of a range that an earlier run went on without."""
        nowhere = all_ranges([lost])
        start, end = nowhere.bounds()
        # Damage there has been reported, if it comes after the table.
        with suppress(DataLoss, CorruptLog):
            parts = self.place.plan(start, end, strict=True, but_for=nowhere)
            self.add({}, parts, lost)
