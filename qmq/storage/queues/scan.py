"""Check a whole queue store on SQLite: its structure, the partition of each row, and all checksums.

Other reads use keys, and a key that has changed is not found. So rows are read here in the order of the table, and
compared with the counts of their partitions. A node does this when it opens a small file, `qmq log verify` always.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from qmq.storage.format.row_checksum import is_in_place, partition_checksum
from qmq.storage.queues.plan import PartitionRow
from qmq.storage.queues.rows import position_of, rows_of, tombstones_of
from qmq.storage.queues.sqlite_sql import COLUMNS, PLAIN, POSITION, RUN_NUMBERS, TOMBSTONES, WIDTHS
from qmq.storage.queues.stored_run import read_run

PARTITIONS_ALL: Final = """SELECT messages, bytes, lanes.id, queue, rank, delayed, origin, node, incarnation, checksum
    FROM lanes LEFT JOIN origins ON origins.id = lanes.origin"""
WALK_RUNS: Final = f"""SELECT runs.lane, {RUN_NUMBERS}, places, waiting, headers, body FROM runs
    LEFT JOIN settled ON settled.lane = runs.lane AND settled.sequence = runs.sequence"""
NOTED: Final = "SELECT count(*) FROM settled"
WALK: Final = f"SELECT origin, {COLUMNS} FROM messages ORDER BY lane, sequence"


def is_partition_sound(row: PartitionRow) -> bool:
    """Whether the stored checksum fits the other columns."""
    return row.checksum == partition_checksum(row.queue, row.rank, row.delayed, row.origin)


PLAIN_BEFORE_RUNS: Final = tuple(text for text in PLAIN if " runs" not in text)


def _compile_all(reader: sqlite3.Connection, has_runs: bool) -> None:
    """Names of columns and indexes may be damaged, too. Raises sqlite3.DatabaseError when one is not known."""
    formatted = [text.format(f"({', '.join('?' * width)})") for text, width in WIDTHS.items()]
    for statement in (*formatted, *PLAIN) if has_runs else PLAIN_BEFORE_RUNS:
        reader.execute(f"EXPLAIN {statement}", [None] * statement.count("?")).fetchall()


def walk(reader: sqlite3.Connection, damaged: Callable[[PartitionRow, Sequence[int]], None]) -> str | None:
    """What is wrong with the file beyond single rows and the bytes of runs; None: nothing. `damaged` gets the messages
    of each of these that is damaged.

    Raises sqlite3.DatabaseError when SQLite cannot read it, and ValueError or TypeError for what is never written.
    """
    for (found,) in reader.execute("PRAGMA integrity_check(1)").fetchall():
        if found != "ok":
            return str(found)
    # A file that older software has written, and that no node has opened since.
    has_runs = bool(reader.execute("SELECT 1 FROM sqlite_schema WHERE name IN ('runs', 'settled')").fetchall())
    _compile_all(reader, has_runs)
    position_of(*reader.execute(POSITION).fetchone())
    tombstones_of(reader.execute(TOMBSTONES))
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
        known = partitions.get(raw[0])
        if known is None or known.number != origin:
            return f"row {raw[1]} of partition {raw[0]} belongs to no partition of its origin"
        counts[known.id] += 1
        _, bad = rows_of(known, [raw])
        for row, _ in bad:
            if not is_in_place(known.checksum, row, raw[8]):
                return f"a row of partition {known.id} is not in its place"
            damaged(known, [row.dot.sequence])
            hurt.add(known.id)
        sizes[known.id] += 0 if bad else len(raw[-1])
    noted = 0
    for partition_id, *raw_run in reader.execute(WALK_RUNS) if has_runs else ():
        known = partitions.get(partition_id)
        if known is None:
            return f"run {raw_run[0]} belongs to no partition"
        run = read_run(known.checksum, tuple(raw_run))
        if not run.is_sound():
            damaged(known, run.waiting_sequences())
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
