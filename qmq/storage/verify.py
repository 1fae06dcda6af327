"""Verify a data directory from outside: every batch is whole, and every origin continues without holes.

For operators and `qmq log`. It reads files only, takes no lock and changes nothing, so the node may be running. Bytes
behind the last whole batch may be an append in progress; they look like a torn tail and are no damage. Nothing is
repaired here; a node repairs when it starts (`recovery`).

The two databases are verified as well, except a queue store on PostgreSQL: is the file whole, does each checksum fit.

Surprising: `verify` judges each segment by itself, from the vector in its head, so one damaged segment does not make
all later ones look wrong. A database without a log beside it belongs to no running node, and is read as a file that
cannot change; SQLite would otherwise want to make that log.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from qmq.errors import CorruptLog, FutureVersion
from qmq.model.dots import Origin, Vector
from qmq.storage.catalog.catalog import CATALOG_FILE, TABLES, row_checksum
from qmq.storage.disk.disk import ReadOnlyDisk
from qmq.storage.fanouts.log import FANOUT_DIRECTORY
from qmq.storage.format.batch import GAPS, BatchHead, batch_records
from qmq.storage.format.interfaces import File
from qmq.storage.format.record import RecordKind, unpack_gap
from qmq.storage.format.segment import SegmentHead, read_footer, read_segment_head, scan, segment_base
from qmq.storage.log.chain import Damage
from qmq.storage.log.quarantine import Quarantined, load_quarantined
from qmq.storage.log.recovery import JOURNAL_DIRECTORY
from qmq.storage.queues.choice import QUEUES_FILE
from qmq.storage.queues.plan import PartitionRow
from qmq.storage.queues.scan import walk
from qmq.storage.queues.sqlite_sql import POSITION

PREVIEW_BYTES: Final = 200
DAMAGED_SHOWN_MAX: Final = 1000


class Violation(NamedTuple):
    """A batch that does not continue its origin."""

    origin: Origin
    expected: int
    found: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """One file. Positions are those of its log."""

    path: str
    base: int
    batches: int
    records: int
    bytes: int
    end: int
    """Behind the last whole batch."""
    sealed: bool
    tail_bytes: int
    """Bytes behind the last whole batch of the last segment: torn by a crash, or being written."""
    bad: tuple[Damage, ...]
    """Where no batch could be read although valid ones follow."""
    violations: tuple[Violation, ...]
    error: str | None
    """The head cannot be read, or the index of a sealed segment contradicts its batches."""

    @property
    def damaged(self) -> bool:
        return bool(self.bad or self.violations or self.error)


class DatabaseReport(NamedTuple):
    """One database. `rows` is how many messages it has, where that was counted."""

    path: str
    rows: int
    damaged_rows: tuple[str, ...]
    """Those whose checksum does not fit; of more than `DAMAGED_SHOWN_MAX` the first ones."""
    error: str | None
    """What is wrong with the file itself."""

    @property
    def damaged(self) -> bool:
        return bool(self.damaged_rows or self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """All segments of a directory, journal first."""

    segments: tuple[SegmentReport, ...]
    quarantined: tuple[Quarantined, ...]
    """Known damage, quarantined when the node started; its bytes are not counted as bad again."""

    databases: tuple[DatabaseReport, ...] = ()
    """The catalog and the queue store, where they are files."""

    inconsistent: tuple[str, ...] = ()
    """Databases that are ahead of the journal. No node writes that: the files were copied one after the other while it
    ran.
    """

    @property
    def damaged(self) -> bool:
        damaged = any(one.damaged for one in self.segments) or any(one.damaged for one in self.databases)
        return damaged or bool(self.inconsistent)


class Dumped(NamedTuple):
    """One record of the journal, for display; `headers` and `body` are cut at `PREVIEW_BYTES` by default."""

    position: int
    """Of the batch that holds it."""
    origin: Origin
    sequence: int
    timestamp_us: int
    kind: str
    flags: int
    destination: str
    headers: bytes
    body: bytes


def verify(path: Path) -> VerifyReport:
    """Check every batch under the data directory `path`, its catalog, and every row of its queue store.

    Raises:
        FileNotFoundError: there is no data directory.
        FutureVersion: written by later software.
    """
    disk = _directory(path)
    quarantined = load_quarantined(disk)
    holes = [(entry.start, entry.end) for entry in quarantined]
    # Before the journal, which a running node writes first.
    positions = _positions(path)
    segments = _verify_log(disk, JOURNAL_DIRECTORY, holes, dense=True)
    end = max((segment.end for segment in segments), default=0)
    end = max([end, *(hole_end for _, hole_end in holes)])
    ahead = [f"{name} is at position {at}, and the journal ends at {end}" for name, at in positions if at > end]
    for name in disk.names(FANOUT_DIRECTORY):
        segments.extend(_verify_log(disk, f"{FANOUT_DIRECTORY}/{name}", [], dense=False))
    databases = (verify_catalog(path, CATALOG_FILE), verify_queue_store(path, QUEUES_FILE))
    return VerifyReport(
        segments=tuple(segments),
        quarantined=tuple(quarantined),
        databases=tuple(report for report in databases if report is not None),
        inconsistent=tuple(ahead),
    )


def _positions(path: Path) -> list[tuple[str, int]]:
    """Up to where in the journal each database is; none for one that cannot be read, of which `verify` says why."""
    asked = ((CATALOG_FILE, "SELECT position FROM positions WHERE name = 'checkpoint'"), (QUEUES_FILE, POSITION))
    found = []
    for name, question in asked:
        if (path / name).exists():
            with suppress(sqlite3.Error), closing(read_only(path / name)) as reader:
                found += [(name, row[0]) for row in reader.execute(question) if type(row[0]) is int]
    return found


def dump(path: Path, *, destination: str | None = None, whole: bool = False) -> Iterator[Dumped]:
    """Every record of the journal, in order; damage is skipped. Raises as `verify`, at the first `next`."""
    disk = _directory(path)
    holes = [(entry.start, entry.end) for entry in load_quarantined(disk)]
    size_max = None if whole else PREVIEW_BYTES
    for _, file, base, end in _segments(disk, JOURNAL_DIRECTORY):
        try:
            start = base + read_segment_head(file).size
        except CorruptLog:
            start = base
        for position, head, data in _batches(file, base, start, end, holes):
            if head is None:
                continue
            for record in batch_records(data):
                if destination is None or record.destination == destination:
                    yield Dumped(
                        position,
                        head.origin,
                        record.sequence,
                        record.timestamp_us,
                        _kind_name(record.kind),
                        record.flags,
                        record.destination,
                        record.headers[:size_max],
                        record.body[:size_max],
                    )


def _directory(path: Path) -> ReadOnlyDisk:
    disk = ReadOnlyDisk(path)
    if not (path / JOURNAL_DIRECTORY).is_dir():
        raise FileNotFoundError(f"{path} is not the data directory of a node: it has no journal")
    return disk


def _segments(disk: ReadOnlyDisk, directory: str) -> Iterator[tuple[str, File, int, int | None]]:
    """Path, file, base, and where the batches end (None: the last segment, wherever its file ends)."""
    named = [(base, name) for name in disk.names(directory) if (base := segment_base(name)) is not None]
    for index, (base, name) in enumerate(named):
        path = f"{directory}/{name}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue  # Retention of the running node dropped it meanwhile.
        with closing(file):
            yield path, file, base, named[index + 1][0] if index + 1 < len(named) else None


def _batches(
    file: File, base: int, start: int, end: int | None, holes: list[Damage]
) -> Iterator[tuple[int, BatchHead | None, bytes]]:
    """Position, head and bytes of each batch; ranges that are none have no head. Known holes are left out."""
    limit = base + file.size() if end is None else min(end, base + file.size())
    for hole_start, hole_end in [*holes, (limit, limit)]:
        if hole_end <= start or start >= limit:
            continue
        piece = file.read(start - base, min(hole_start, limit) - start) if hole_start > start else b""
        for span in scan(piece):
            yield start + span.start, span.head, piece[span.start : span.end]
        start = hole_end


def _verify_log(disk: ReadOnlyDisk, directory: str, holes: list[Damage], *, dense: bool) -> list[SegmentReport]:
    return [
        _verify_segment(path, file, base, end, holes, dense) for path, file, base, end in _segments(disk, directory)
    ]


def _verify_segment(
    path: str, file: File, base: int, end: int | None, holes: list[Damage], dense: bool
) -> SegmentReport:
    error: str | None = None
    head: SegmentHead | None = None
    sealed = False
    try:
        head = read_segment_head(file)
        # The last segment has no index: the node never seals it, and what looks like one there was sent by a client.
        footer = read_footer(file, end - base) if end is not None else None
        sealed = footer is not None
    except FutureVersion:
        raise
    except CorruptLog as problem:
        error = str(problem)
    vector: Vector = dict(head.vector) if head is not None else {}
    node = head.node if head is not None else ""
    batches = records = size = tail_bytes = 0
    last = base + head.size if head is not None else base
    bad: list[Damage] = []
    violations: list[Violation] = []
    known = [hole for hole in holes if hole[1] > base]
    for position, batch, data in _batches(file, base, base + head.size if head else base, end, known):
        if batch is None:
            bad.append((position, position + len(data)))
            continue
        batches += 1
        last = position + len(data)
        records += batch.count
        size += batch.size
        have = vector.get(batch.origin, 0)
        expected = have + 1 if dense else max(have + 1, batch.first)
        if batch.first != expected and head is not None:
            violations.append(Violation(batch.origin, expected, batch.first, position))
        vector[batch.origin] = batch.last
        if batch.attributes & GAPS and batch.origin.node == node:
            for record in batch_records(data):
                if record.kind == RecordKind.GAP:
                    origin, through = unpack_gap(record.body)
                    vector[origin] = max(vector.get(origin, 0), through)
    if bad and end is None and bad[-1][1] == base + file.size():
        tail_bytes = bad[-1][1] - bad.pop()[0]
    if sealed and footer is not None and len(footer.batches) != batches and not bad and not known:
        error = f"the index lists {len(footer.batches)} batches, there are {batches}"
    return SegmentReport(
        path=path,
        base=base,
        batches=batches,
        records=records,
        bytes=size,
        end=last,
        sealed=sealed,
        tail_bytes=tail_bytes,
        bad=tuple(bad),
        violations=tuple(violations),
        error=error,
    )


def _kind_name(kind: int) -> str:
    try:
        return RecordKind(kind).name
    except ValueError:
        return str(kind)


def verify_catalog(directory: Path, name: str) -> DatabaseReport | None:
    """None: there is no such file."""

    def whole(reader: sqlite3.Connection) -> str | None:
        error = _integrity(reader)
        for table in () if error else TABLES:
            found = reader.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in found.description]
            for values in found:
                row = dict(zip(names, values, strict=True))
                if row.get("checksum") != row_checksum(row):
                    return f"a row of {table} is damaged"
        return error

    return _verify(directory / name, whole, lambda: DatabaseReport(name, 0, (), None))


def verify_queue_store(directory: Path, name: str) -> DatabaseReport | None:
    """None: there is no such file."""
    rows = 0
    damaged: list[str] = []

    def note(partition: PartitionRow, sequences: Sequence[int]) -> None:
        if len(damaged) < DAMAGED_SHOWN_MAX:
            which = str(sequences[0]) if len(sequences) == 1 else f"{sequences[0]}-{sequences[-1]}"
            damaged.append(f"{partition.origin}:{which} of {partition.queue}")

    def look(reader: sqlite3.Connection) -> str | None:
        nonlocal rows
        rows = reader.execute("SELECT coalesce(sum(messages), 0) FROM lanes").fetchone()[0]
        return walk(reader, note)

    return _verify(directory / name, look, lambda: DatabaseReport(name, rows, tuple(damaged), None))


def _verify(
    path: Path, look: Callable[[sqlite3.Connection], str | None], report: Callable[[], DatabaseReport]
) -> DatabaseReport | None:
    if not path.exists():
        return None
    try:
        with closing(read_only(path)) as reader:
            reader.execute("BEGIN")
            error = look(reader)
    except (sqlite3.Error, TypeError, ValueError) as problem:
        error = str(problem)
    return report()._replace(error=error)


def read_only(path: Path) -> sqlite3.Connection:
    """A connection from outside the node, which may be running."""
    fixed = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro{fixed}", uri=True, isolation_level=None)


def _integrity(reader: sqlite3.Connection) -> str | None:
    found = str(reader.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if found == "ok" else found
