"""Check a whole queue store on SQLite: its structure, the partition of each row, and all checksums.

Other reads use keys, and a key that has changed is not found. So rows are read here in the order of the table, and
compared with the counts of their partitions. A node does this when it opens a small file, `qmq log verify` always.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Final

from qmq.model.dots import Dot, Origin
from qmq.storage.format.row_checksum import number_checksum, partition_checksum
from qmq.storage.queues.plan import PartitionRow, unsigned
from qmq.storage.queues.rows import Raw
from qmq.storage.queues.sqlite_sql import COLUMNS, PLAIN, RUN_NUMBERS, WIDTHS
from qmq.storage.queues.stored_run import StoredRun, read_run

PARTITIONS_ALL: Final = """SELECT messages, bytes, lanes.id, queue, rank, delayed, origin, node, incarnation, checksum
    FROM lanes LEFT JOIN origins ON origins.id = lanes.origin"""
WALK_RUNS: Final = f"""SELECT runs.lane, {RUN_NUMBERS}, places, waiting, headers, body FROM runs
    LEFT JOIN settled ON settled.lane = runs.lane AND settled.sequence = runs.sequence"""
NOTED: Final = "SELECT count(*) FROM settled"
WALK: Final = f"SELECT origin, {COLUMNS} FROM messages ORDER BY lane, sequence"


def read_position(reader: sqlite3.Connection) -> int:
    """Raises sqlite3.DatabaseError when its checksum does not fit."""
    position: int
    position, checksum = reader.execute("SELECT position, checksum FROM progress").fetchone()
    if checksum != number_checksum(position):
        raise sqlite3.DatabaseError("the position is damaged")
    return position


def read_tombstones(reader: sqlite3.Connection) -> set[Dot]:
    """Raises sqlite3.DatabaseError when a checksum does not fit."""
    found: set[Dot] = set()
    for node, incarnation, sequence, checksum in reader.execute(
        "SELECT node, incarnation, sequence, tombstones.checksum FROM tombstones LEFT JOIN origins"
        " ON origins.id = origin"
    ).fetchall():
        dot = Dot(Origin(node or "", unsigned(incarnation or 0)), unsigned(sequence))
        if checksum != number_checksum(dot.sequence, *dot.origin):
            raise sqlite3.DatabaseError(f"the tombstone of {dot} is damaged")
        found.add(dot)
    return found


def is_partition_sound(row: PartitionRow) -> bool:
    """Whether the stored checksum fits the other columns."""
    return row.checksum == partition_checksum(row.queue, row.rank, row.delayed, row.origin)


PLAIN_BEFORE_RUNS: Final = tuple(text for text in PLAIN if " runs" not in text)


def _compile_all(reader: sqlite3.Connection, has_runs: bool) -> None:
    """Names of columns and indexes may be damaged, too. Raises sqlite3.DatabaseError when one is not known."""
    formatted = [text.format(f"({', '.join('?' * width)})") for text, width in WIDTHS.items()]
    for statement in (*formatted, *PLAIN) if has_runs else PLAIN_BEFORE_RUNS:
        reader.execute(f"EXPLAIN {statement}", [None] * statement.count("?")).fetchall()


def walk(
    reader: sqlite3.Connection,
    is_sound: Callable[[PartitionRow, Raw], bool],
    is_run_sound: Callable[[PartitionRow, StoredRun], bool],
) -> str | None:
    """What is wrong with the file beyond single rows and the bytes of runs, which `is_sound` and `is_run_sound` check;
    None: nothing.

    Raises sqlite3.DatabaseError when SQLite cannot read it, and ValueError when what lies beside the bytes of a run is
    damaged.
    """
    for (found,) in reader.execute("PRAGMA integrity_check(1)").fetchall():
        if found != "ok":
            return str(found)
    # A file that older software has written, and that no node has opened since.
    has_runs = bool(reader.execute("SELECT 1 FROM sqlite_schema WHERE name IN ('runs', 'settled')").fetchall())
    _compile_all(reader, has_runs)
    read_position(reader)
    read_tombstones(reader)
    partitions: dict[int, PartitionRow] = {}
    said: dict[int, tuple[int, int]] = {}
    for messages, size, *remainder in reader.execute(PARTITIONS_ALL).fetchall():
        if remainder[5] is None:
            return f"partition {remainder[0]} has no origin"
        partition = PartitionRow(*remainder)
        if not is_partition_sound(partition):
            return f"the checksum of partition {partition.id} does not fit"
        partitions[partition.id] = partition
        said[partition.id] = messages, size
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    hurt: set[int] = set()
    for origin, *raw in reader.execute(WALK):
        row: Raw = tuple(raw)
        known = partitions.get(row[0])
        if known is None or known.number != origin:
            return f"row {row[1]} of partition {row[0]} belongs to no partition of its origin"
        counts[known.id] += 1
        if is_sound(known, row):
            sizes[known.id] += len(row[-1])
        else:
            hurt.add(known.id)
    noted = 0
    for partition_id, *raw_run in reader.execute(WALK_RUNS) if has_runs else ():
        known = partitions.get(partition_id)
        if known is None:
            return f"run {raw_run[0]} belongs to no partition"
        run = read_run(known.checksum, tuple(raw_run))
        is_run_sound(known, run)
        messages, size = run.totals(run.waiting)
        counts[known.id] += messages
        sizes[known.id] += size
        noted += messages < len(run.sequences)
    if has_runs and noted != reader.execute(NOTED).fetchone()[0]:
        return "it is noted as settled what is in no run"
    for partition_id, (messages, size) in said.items():
        if messages != counts[partition_id] or (size != sizes[partition_id] and partition_id not in hurt):
            return f"partition {partition_id} has {counts[partition_id]} messages, and says {messages}"
    return None
