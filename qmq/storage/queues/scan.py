"""Check a whole queue store on SQLite: its structure, the partition of each row, and all checksums.

Other reads use keys, and a key that has changed is not found. So rows are read here in the order of the table, and
compared with the counts of their partitions. A node does this when it opens a small file, `qmq log verify` always.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Final

from qmq.model.dots import Dot, Origin
from qmq.storage.format.row_checksum import number_checksum
from qmq.storage.queues.database_reads import partition_of
from qmq.storage.queues.plan import PartitionRow, unsigned
from qmq.storage.queues.rows import Raw
from qmq.storage.queues.sqlite_sql import COLUMNS, PLAIN, WIDTHS

PARTITIONS_ALL: Final = """SELECT messages, bytes, lanes.id, queue, rank, delayed, origin, node, incarnation, checksum
    FROM lanes LEFT JOIN origins ON origins.id = lanes.origin"""
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


def is_partition_sound(partition: PartitionRow) -> bool:
    """Whether the stored checksum (`partition_of`) fits the other columns."""
    made = PartitionRow(
        partition.id, partition.queue, partition.rank, partition.delayed, partition.number, partition.origin
    )
    return partition.checksum == made.checksum


def _compile_all(reader: sqlite3.Connection) -> None:
    """Names of columns and indexes may be damaged, too. Raises sqlite3.DatabaseError when one is not known."""
    formatted = [text.format(f"({', '.join('?' * width)})") for text, width in WIDTHS.items()]
    for statement in (*formatted, *PLAIN):
        reader.execute(f"EXPLAIN {statement}", [None] * statement.count("?")).fetchall()


def walk(reader: sqlite3.Connection, is_sound: Callable[[PartitionRow, Raw], bool]) -> str | None:
    """What is wrong with the file beyond single rows, which `is_sound` checks; None: nothing.

    Raises sqlite3.DatabaseError when SQLite cannot read it.
    """
    for (found,) in reader.execute("PRAGMA integrity_check(1)").fetchall():
        if found != "ok":
            return str(found)
    _compile_all(reader)
    read_position(reader)
    read_tombstones(reader)
    partitions: dict[int, PartitionRow] = {}
    said: dict[int, tuple[int, int]] = {}
    for messages, size, *remainder in reader.execute(PARTITIONS_ALL).fetchall():
        if remainder[5] is None:
            return f"partition {remainder[0]} has no origin"
        partition = partition_of(remainder)
        if not is_partition_sound(partition):
            return f"the checksum of partition {partition.id} does not fit"
        partitions[partition.id] = PartitionRow(
            partition.id, partition.queue, partition.rank, partition.delayed, partition.number, partition.origin
        )
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
    for partition_id, (messages, size) in said.items():
        if messages != counts[partition_id] or (size != sizes[partition_id] and partition_id not in hurt):
            return f"partition {partition_id} has {counts[partition_id]} messages, and says {messages}"
    return None
