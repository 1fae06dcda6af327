"""Look at the databases of a data directory from outside, for `verify`: is the file whole, does each checksum fit.

Opened for reading only. Surprising: a database without a log beside it belongs to no running node, and is read as a
file that cannot change; SQLite would otherwise want to make that log.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from qmq.dots import Dot
from qmq.storage.catalog.catalog import TABLES, row_checksum
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.row_checksum import is_sound
from qmq.storage.queues.plan import PartitionRow, Raw, unsigned
from qmq.storage.queues.scan import walk

DAMAGED_SHOWN_MAX = 1000


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

    def look(partition: PartitionRow, raw: Raw) -> bool:
        nonlocal rows
        _, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, headers, body = raw
        rows += 1
        try:
            dot = Dot(partition.origin, unsigned(sequence))
            times = (unsigned(timestamp_us), flags, -partition.rank, due_us, expires_us)
            sound = is_sound(
                partition.checksum, QueueRow(dot, partition.queue, *times, headers, body, attempts, exact), checksum
            )
        except TypeError:
            sound = False
        if not sound and len(damaged) < DAMAGED_SHOWN_MAX:
            damaged.append(f"{partition.origin}:{sequence} of {partition.queue}")
        return sound

    return _verify(
        directory / name, lambda reader: walk(reader, look), lambda: DatabaseReport(name, rows, tuple(damaged), None)
    )


def _verify(
    path: Path, look: Callable[[sqlite3.Connection], str | None], report: Callable[[], DatabaseReport]
) -> DatabaseReport | None:
    if not path.exists():
        return None
    fixed = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    try:
        uri = f"file:{quote(str(path))}?mode=ro{fixed}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            error = look(reader)
    except (sqlite3.Error, TypeError, ValueError) as problem:
        error = str(problem)
    return report()._replace(error=error)


def _integrity(reader: sqlite3.Connection) -> str | None:
    found = str(reader.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if found == "ok" else found
