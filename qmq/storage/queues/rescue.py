"""Opens a queue store on SQLite. A damaged file is moved to quarantine, and a new one takes its intact rows.

The whole file is checked (`scan`) if it has at most `CHECKED_BYTES_MAX`, or if a read or a write of an earlier run has
found damage and marked it. Single damaged rows are no reason for a new file: the store leaves them out, and reports
what is missing.

A run whose `settled` row is damaged is taken with all of its messages: the journal or a peer may know which are
settled, and a settled message that is delivered again does less harm than one that is lost.

The new file begins at `NOWHERE`. The node that opens it carries the whole journal into it again, and asks its peers for
the remainder. After a crash on the way the next opening continues: the mark says where the old file goes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from qmq.errors import LogBroken, Malformed
from qmq.model.dots import Dot
from qmq.storage.disk.disk import write_durably
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.log.quarantine import QUARANTINE_DIRECTORY
from qmq.storage.queues.plan import PartitionRow
from qmq.storage.queues.rows import put_rows, rows_of, tombstones_of
from qmq.storage.queues.scan import PARTITIONS_ALL, WALK_RUNS, is_partition_sound
from qmq.storage.queues.sqlite_sql import COLUMNS, TOMBSTONES
from qmq.storage.queues.sqlite_store import MARK_SUFFIX, SqliteQueueStore
from qmq.storage.queues.stored_run import read_run

CHECKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""About a second at the start."""

NOWHERE: Final = -1
"""The position of a store that has begun again."""

_BESIDE: Final = ("-wal", "-shm", "")
"""Files of a database; the file itself is moved last, so that all are moved when it is."""
_BEGUN: Final = "put aside as "


def open_sqlite(path: Path) -> SqliteQueueStore:
    """The store in the file `path`; a new one if that is damaged. Raises FutureVersion, LogBroken."""
    mark = path.with_name(path.name + MARK_SUFFIX)
    why = _read(mark)
    if why is not None and why.startswith(_BEGUN):
        return _replace_store(path, mark, path.parent / why.removeprefix(_BEGUN), "an earlier start was interrupted")
    is_small = not path.exists() or path.stat().st_size <= CHECKED_BYTES_MAX
    store: SqliteQueueStore | None = None
    try:
        store = SqliteQueueStore(path)
        found = store.check() if is_small or why is not None else None
    except Malformed as error:
        found = str(error.__cause__ or error)
    except BaseException:
        if store is not None:
            store.close()
        raise
    if found is None and store is not None:
        mark.unlink(missing_ok=True)
        return store
    if store is not None:
        with suppress(LogBroken):
            store.close()
    return _replace_store(path, mark, _free_name(path), found or "")


def _replace_store(path: Path, mark: Path, damaged_path: Path, why: str) -> SqliteQueueStore:
    try:
        damaged_path.parent.mkdir(mode=0o700, exist_ok=True)
        # Without its text, a new file with a part of the rows would be taken for a whole one.
        write_durably(mark, f"{_BEGUN}{damaged_path.relative_to(path.parent)}")
        for suffix in _BESIDE:
            found = path.with_name(path.name + suffix)
            if found.exists():
                if damaged_path.exists():
                    found.unlink()  # A new one that was cut off.
                else:
                    found.rename(damaged_path.with_name(damaged_path.name + suffix))
    except OSError as error:
        raise LogBroken(f"the damaged queue store cannot be moved away: {error}") from error
    store = SqliteQueueStore(path)
    try:
        store.missing([], NOWHERE)
        count, unsure = _rescue(damaged_path, store)
        store.damage.lines.append(
            f"the queue store is damaged ({why}): it was moved to {damaged_path.relative_to(path.parent)},"
            f" and a new one begun with {count} sound rows of it"
            + (f"; which of these {unsure} were settled is damaged" if unsure else "")
        )
        mark.unlink()
    except BaseException:
        store.close()
        raise
    return store


def _free_name(path: Path) -> Path:
    number = 1
    while (found := path.parent / QUARANTINE_DIRECTORY / f"{path.stem}-{number}{path.suffix}").exists():
        number += 1
    return found


def _read(mark: Path) -> str | None:
    try:
        return mark.read_text(errors="replace")
    except OSError:
        return None


def _rescue(old: Path, new: SqliteQueueStore) -> tuple[int, int]:
    """Copy every readable row of `old` whose checksum fits to `new`.

    Return how many, and of how many of them it cannot be read whether they were settled.
    """
    tombstones, unsure = set[Dot](), set[Dot]()
    count = 0
    with suppress(sqlite3.Error), closing(sqlite3.connect(old, isolation_level=None)) as reader:
        count = put_rows(new, _sound_rows(reader, unsure), NOWHERE)
        # The journal may have dropped settles whose messages come later.
        with suppress(TypeError, ValueError):
            tombstones = tombstones_of(reader.execute(TOMBSTONES))
    new.apply([], {}, tombstones, [], NOWHERE)
    return count, len(unsure)


def _sound_rows(reader: sqlite3.Connection, unsure: set[Dot]) -> Iterator[QueueRow]:
    partitions: list[PartitionRow] = []
    with suppress(sqlite3.Error, TypeError, ValueError):
        for _, _, *found in reader.execute(PARTITIONS_ALL):
            with suppress(TypeError, ValueError):
                partition = PartitionRow(*found)
                if is_partition_sound(partition):
                    partitions.append(partition)
    for partition in partitions:
        seen: set[int] = set()
        # A message that has failed is in a run, too, settled there: its own row comes first, it has the count.
        for statement, rows_in in ((OF_MESSAGES, _rows_of_one), (OF_RUNS, partial(_rows_of_run, unsure))):
            for direction in ("ASC", "DESC"):
                try:
                    for raw in reader.execute(f"{statement} {direction}", (partition.id,)):
                        with suppress(TypeError, ValueError, OverflowError):
                            new = [row for row in rows_in(partition, raw) if row.dot.sequence not in seen]
                            seen.update(row.dot.sequence for row in new)
                            yield from new
                    break
                except sqlite3.Error:
                    continue  # Read from the other end, as far as possible.


OF_MESSAGES: Final = f"SELECT {COLUMNS} FROM messages WHERE lane = ? ORDER BY sequence"
OF_RUNS: Final = f"{WALK_RUNS} WHERE runs.lane = ? ORDER BY runs.sequence"


def _rows_of_one(partition: PartitionRow, raw: Any) -> list[QueueRow]:
    return rows_of(partition, [raw])[0]


def _rows_of_run(unsure: set[Dot], partition: PartitionRow, raw: Any) -> list[QueueRow]:
    try:
        run = read_run(partition.checksum, raw[1:])
    except ValueError:
        # The same run as if nothing of it was settled.
        run = read_run(partition.checksum, raw[1:8] + (None, None, None, raw[11], None) + raw[13:])
        if run.is_sound():
            unsure.update(Dot(partition.origin, sequence) for sequence in run.sequences)
    return run.rows(partition) if run.is_sound() else []
