"""The queue store on SQLite: queue messages that were not settled when a checkpoint passed them.

Checkpoints write it over one connection, in one transaction each. Reads use another connection, so that no reader waits
for a checkpoint. Messages lie in one b-tree by partition (`plan`) and sequence: publishing and draining in order touch
neighbouring pages only. The row of each partition counts its messages and bytes in the same transaction, and is deleted
with the last of them. `database` has the part that is shared with PostgreSQL (`postgres_store`).

Surprising: statements carry hundreds of rows each, and results come back as one row (JSON, and the bytes in a single
blob). Every step of a statement releases the interpreter's lock, and under load a busy main thread delays getting it
back: a page of 500 rows took 145 ms row by row, and 5 ms in one piece.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from struct import error as StructError  # noqa: N812 (an exception should look like one)
from typing import Any, Final, TypeVar

from qmq.errors import LogBroken, Malformed
from qmq.model.dots import Origin
from qmq.storage.disk.sqlite import closed_by_an_error, is_damage, medium, open_migrated, open_reader
from qmq.storage.queues import sqlite_sql as sql
from qmq.storage.queues.database import DatabaseQueueStore, Value
from qmq.storage.queues.plan import origin_columns, unsigned
from qmq.storage.queues.rows import Raw, split_rows
from qmq.storage.queues.run_reads import Place
from qmq.storage.queues.scan import walk
from qmq.storage.queues.stored_run import RawRun, split_runs

T = TypeVar("T")

MOVABLE: Final = "PRAGMA auto_vacuum=2"
"""Its pages can be moved. Execute it before the first page of a file is written."""

STEP_PAGES: Final = 512
"""4 MiB; some milliseconds in a worker thread."""

FREE_PAGES_KEPT: Final = 2048
"""16 MiB, for the next messages."""

FREE_PARTS_KEPT: Final = 4
"""Or one part in so many of the used pages: a store that is mostly full is not reordered for little."""


def shrink(connection: sqlite3.Connection, free_pages_kept: int = FREE_PAGES_KEPT) -> bool:
    """Return some of the space of settled messages to the file system: True if more can be returned.

    SQLite uses free pages again but keeps them, so the file would stay as large as the largest backlog. A step moves
    the last pages of the file into gaps before them, and cuts the file. Durable with the next commit; not inside a
    transaction.
    """
    pages, free = _value(connection, "page_count"), _value(connection, "freelist_count")
    used = pages - free
    surplus = free - max(free_pages_kept, used // FREE_PARTS_KEPT)
    if surplus <= 0:
        return False
    # A script: otherwise a statement without columns is stepped once, and each step of this one frees one page.
    connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, STEP_PAGES)})")
    # This cuts the file. It does not wait for readers; the next step cuts what they hold now.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return surplus > STEP_PAGES


def _value(connection: sqlite3.Connection, pragma: str) -> int:
    found: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return found


_CHUNKS: Final = (256, 32, 4, 1)
"""Rows of one statement. There are few sizes, so that each statement is compiled once."""
_WAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""The size to which the write-ahead log is cut after a large transaction."""
_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest result that is read in one piece; larger messages are read one by one."""

MARK_SUFFIX: Final = ".damaged"
"""Of the file beside the database in which a read or a write notes damage for the next opening."""


class SqliteQueueStore(DatabaseQueueStore[sqlite3.Connection]):
    """See `interfaces.QueueStore`."""

    kind = "sqlite"
    statements = sql

    def __init__(self, path: Path | None) -> None:
        """Open or create the file, and migrate it. Raises FutureVersion, LogBroken.

        Without a `path` it is in memory, and has one connection (`qmq.storage.volatile_store`).
        """
        super().__init__()
        self._mark = path and path.with_name(path.name + MARK_SUFFIX)
        self._reading = threading.Lock()
        self._sql: dict[tuple[str, int], str] = {}
        with self._making_sense(), self._medium():
            self._database = open_migrated(path, sql.migrations, sql.KNOWN_MIGRATIONS, first=MOVABLE)
            with closed_by_an_error(self._database.conn):
                self._database.conn.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
                rows = self._database.conn.execute(sql.ALL_ORIGINS).fetchall()
                self._ids = {Origin(node, unsigned(incarnation)): number for number, node, incarnation in rows}
                self._reader = self._database.conn if path is None else open_reader(path)

    # Writing

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._medium(), self._database.atomic():
            yield self._database.conn

    def give_back(self) -> bool:
        with self._medium():
            return shrink(self._database.conn)

    def _open_partitions(self, partitions: list[tuple[Value, ...]]) -> list[tuple[int, int]]:
        self._run_rows(sql.OPEN_PARTITIONS, partitions)
        wanted = [(index, *partition[:4]) for index, partition in enumerate(partitions)]
        found = {index: (id, messages) for index, id, messages in self._ask_rows(sql.PARTITION_IDS, wanted)}
        return [found[index] for index in range(len(partitions))]

    def _add_rows(self, flat: Sequence[Value]) -> bool:
        width = sql.WIDTHS[sql.INSERT]
        return self._run(sql.INSERT, width, flat) == len(flat) // width

    def _delete_run(self, partition: int, first: int, last: int) -> list[tuple[int, int, int]]:
        count, size = self._database.conn.execute(sql.COUNT_RUN, (partition, first, last)).fetchone()
        if not count:
            return []
        self._database.conn.execute(sql.DELETE_RUN, (partition, first, last))
        return [(partition, count, size)]

    def _delete_rows(self, places: Sequence[Place]) -> list[list[int]]:
        flat = list(chain.from_iterable(places))
        counted = self._ask(sql.COUNT, 2, flat)
        self._run(sql.DELETE, 2, flat)
        return counted

    def _add_origin(self, origin: Origin) -> int:
        cursor = self._database.conn.execute(
            "INSERT INTO origins (node, incarnation) VALUES (?, ?)", origin_columns(origin)
        )
        return int(cursor.lastrowid or 0)

    def _run_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> None:
        self._run(statement, len(rows[0]) if rows else 1, list(chain.from_iterable(rows)))

    def _ask_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> list[list[int]]:
        return self._ask(statement, len(rows[0]) if rows else 1, list(chain.from_iterable(rows)))

    def _run(self, template: str, width: int, flat: Sequence[Value]) -> int:
        """Execute `template` for `flat`, rows of `width` values one after another. Return how many rows changed."""
        changed = 0
        for statement, part in self._parts(template, width, flat):
            changed += self._database.conn.execute(statement, part).rowcount
        return changed

    def _ask(self, template: str, width: int, flat: Sequence[Value]) -> list[list[int]]:
        """What `template` finds for `flat`, inside the open transaction."""
        found: list[list[int]] = []
        for statement, part in self._parts(template, width, flat):
            found += json.loads(self._database.conn.execute(statement, part).fetchone()[0])
        return found

    def _parts(self, template: str, width: int, flat: Sequence[Value]) -> Iterator[tuple[str, Sequence[Value]]]:
        place = 0
        for size in _CHUNKS:
            while len(flat) - place >= size * width:
                statement = self._sql.get((template, size))
                if statement is None:
                    row = f"({', '.join('?' * width)})"
                    statement = self._sql[template, size] = template.format(", ".join([row] * size))
                yield statement, flat[place : place + size * width]
                place += size * width

    # Reading

    def _head_rows(
        self, reader: sqlite3.Connection, node: str, queues: Sequence[str]
    ) -> Iterator[tuple[str, int, int, bool, int, int]]:
        names = list(dict.fromkeys(queues))
        for statement, part in self._parts(sql.HEADS, 2, list(chain.from_iterable(enumerate(names)))):
            answer = reader.execute(statement, (*part, node)).fetchone()[0]
            for index, *numbers in json.loads(answer):
                yield names[index], *numbers

    def _sizes(self, reader: sqlite3.Connection, statement: str, parameters: tuple[int, ...]) -> list[int]:
        sizes: list[int] = json.loads(reader.execute(sql.SIZES.format(statement), parameters).fetchone()[0])
        return sizes

    def check(self) -> str | None:
        """Check every row. Return what is wrong with the file beyond single rows; None: nothing.

        Reads all of it, and keeps other readers waiting. Raises Malformed.
        """
        with self._snapshot() as reader:
            return walk(reader, self._meet)

    def _rows(
        self, reader: sqlite3.Connection, statement: str, parameters: tuple[int, ...], size: int | None = None
    ) -> list[Raw]:
        if size is None:
            size = reader.execute(sql.SIZE.format(statement), parameters).fetchone()[0]
        if size is None or size > _PIECE_BYTES_MAX:
            return reader.execute(statement, parameters).fetchall()
        return self._in_one(reader, sql.IN_ONE, split_rows, statement, parameters)

    def _raw_runs(self, connection: sqlite3.Connection, statement: str, parameters: tuple[int, ...]) -> list[RawRun]:
        return self._in_one(connection, sql.RUNS_IN_ONE, split_runs, statement, parameters)

    def _in_one(
        self,
        connection: sqlite3.Connection,
        template: str,
        split: Callable[[list[Any], bytes], list[T]],
        statement: str,
        parameters: tuple[int, ...],
    ) -> list[T]:
        columns, data = connection.execute(template.format(statement), parameters).fetchone()
        try:
            return split(json.loads(columns), data or b"")
        except (TypeError, ValueError) as error:
            raise self._broken(f"rows of the queue store cannot be read: {error}") from error

    def _one(self, connection: sqlite3.Connection, place: Place) -> Raw | None:
        found: Raw | None = connection.execute(sql.ONE, place).fetchone()
        return found

    def _broken(self, what: str) -> Exception:
        return sqlite3.DatabaseError(what)

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._reading, self._making_sense(), self._medium():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    @contextmanager
    def _medium(self) -> Iterator[None]:
        """As `medium`. A damaged file is marked, so that the next opening checks it (`rescue`)."""
        try:
            with medium():
                yield
        except LogBroken as error:
            if not is_damage(error.__cause__):
                raise
            raise self._malformed(error) from error

    @contextmanager
    def _making_sense(self) -> Iterator[None]:
        """Inside, values that are never written count as damage, too."""
        try:
            yield
        except (TypeError, ValueError, LookupError, OverflowError, StructError) as error:
            raise self._malformed(error) from error

    def _malformed(self, error: Exception) -> Malformed:
        if self._mark is not None:
            with suppress(OSError):
                self._mark.write_text(str(error))
        return Malformed(f"the queue store is damaged; the next start replaces it: {error}")

    def close(self) -> None:
        with self._reading, medium():
            self._reader.close()
            self._database.close()
