"""The queue store on SQLite: what waits in queues and was not settled before a checkpoint passed it.

Written by checkpoints, one transaction each; read when a node starts or takes over. Plain SQL over one connection,
because a checkpoint can carry hundreds of thousands of rows. PostgreSQL can take this module's place (`ports`).

Surprising: origins are numbered in the order they were met, and rows name the number. That keeps rows small and
gives pages the order of acceptance among the runs of a node.
"""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import sqlite_utils
from sqlite_utils.migrations import Migrations

from qmq.dots import Dot, Origin
from qmq.storage.ports import PageKey, QueueRow
from qmq.storage.sqlite import medium, open_migrated, origin_columns, signed, unsigned

migrations = Migrations("qmq-queues")


@migrations()
def m001_first(database: sqlite_utils.Database) -> None:
    """`rank` is the priority with its sign turned, so that pages come in one direction of one index."""
    database.executescript(
        """
        CREATE TABLE origins (
            id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL, UNIQUE (node, incarnation)
        ) STRICT;
        CREATE TABLE messages (
            origin INTEGER NOT NULL, sequence INTEGER NOT NULL, queue TEXT NOT NULL, timestamp_us INTEGER NOT NULL,
            flags INTEGER NOT NULL, rank INTEGER NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL,
            PRIMARY KEY (origin, sequence)
        ) STRICT;
        CREATE INDEX messages_by_queue ON messages (queue, rank, origin, sequence);
        CREATE TABLE tombstones (
            origin INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (origin, sequence)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE progress (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL) STRICT;
        INSERT INTO progress VALUES (1, 0);
        """
    )


KNOWN_MIGRATIONS: Final = frozenset({"m001_first"})


class SqliteQueueStore:
    """See `ports.QueueStore`."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, brought to this version. Raises FutureVersion, LogBroken."""
        self._lock = threading.Lock()
        self._database = open_migrated(path, migrations, KNOWN_MIGRATIONS)
        with medium():
            rows = self._database.conn.execute("SELECT id, node, incarnation FROM origins").fetchall()
        self._ids = {Origin(node, unsigned(incarnation)): number for number, node, incarnation in rows}
        self._origins = {number: origin for origin, number in self._ids.items()}

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Iterable[Dot],
        tombstones_add: Iterable[Dot],
        tombstones_del: Iterable[Dot],
        position: int,
    ) -> None:
        connection = self._database.conn
        with self._lock, medium():
            added: dict[Origin, int] = {}
            with self._database.atomic():
                connection.executemany(
                    "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        (
                            self._number(row.dot.origin, added),
                            signed(row.dot.sequence),
                            row.queue,
                            signed(row.timestamp_us),
                            row.flags,
                            -row.priority,
                            row.headers,
                            row.body,
                        )
                        for row in upserts
                    ),
                )
                for statement, dots in (
                    ("DELETE FROM messages WHERE origin = ? AND sequence = ?", deletes),
                    ("INSERT OR IGNORE INTO tombstones VALUES (?, ?)", tombstones_add),
                    ("DELETE FROM tombstones WHERE origin = ? AND sequence = ?", tombstones_del),
                ):
                    connection.executemany(
                        statement, ((self._number(dot.origin, added), signed(dot.sequence)) for dot in dots)
                    )
                connection.execute("UPDATE progress SET position = ?", (position,))
            # Only now: numbers given out in a transaction that failed do not exist.
            self._ids.update(added)
            self._origins.update({number: origin for origin, number in added.items()})

    def position(self) -> int:
        with self._lock, medium():
            found: int = self._database.conn.execute("SELECT position FROM progress").fetchone()[0]
            return found

    def load(self, node: str, after: PageKey | None, limit: int) -> tuple[list[QueueRow], PageKey | None]:
        where = ""
        numbers = [number for origin, number in self._ids.items() if origin.node == node]
        parameters: list[str | int] = list(numbers)
        if after is not None:
            where = "AND (queue, rank, origin, sequence) > (?, ?, ?, ?)"
            parameters.extend(after)
        with self._lock, medium():
            rows = self._database.conn.execute(
                # The plus keeps SQLite from going by origin and sorting everything again for each page.
                "SELECT queue, rank, origin, sequence, timestamp_us, flags, headers, body FROM messages"
                f" WHERE +origin IN ({', '.join('?' * len(numbers))}) {where}"
                " ORDER BY queue, rank, origin, sequence LIMIT ?",
                [*parameters, limit + 1],
            ).fetchall()
        more = len(rows) > limit
        rows = rows[:limit]
        return [self._row(row) for row in rows], tuple(rows[-1][:4]) if more else None

    def queues(self) -> dict[str, int]:
        with self._lock, medium():
            return dict(self._database.conn.execute("SELECT queue, count(*) FROM messages GROUP BY queue").fetchall())

    def get(self, dots: Iterable[Dot]) -> dict[Dot, QueueRow]:
        found: dict[Dot, QueueRow] = {}
        with self._lock, medium():
            for dot in dots:
                row = self._database.conn.execute(
                    "SELECT queue, rank, origin, sequence, timestamp_us, flags, headers, body FROM messages"
                    " WHERE origin = ? AND sequence = ?",
                    (self._ids.get(dot.origin, 0), signed(dot.sequence)),
                ).fetchone()
                if row is not None:
                    found[dot] = self._row(row)
        return found

    def tombstones(self) -> set[Dot]:
        with self._lock, medium():
            rows = self._database.conn.execute("SELECT origin, sequence FROM tombstones").fetchall()
        return {Dot(self._origins[number], unsigned(sequence)) for number, sequence in rows}

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _number(self, origin: Origin, added: dict[Origin, int]) -> int:
        """The number of `origin`, given out on first sight, inside the open transaction."""
        number = self._ids.get(origin) or added.get(origin)
        if number is None:
            cursor = self._database.conn.execute(
                "INSERT INTO origins (node, incarnation) VALUES (?, ?)", origin_columns(origin)
            )
            number = added[origin] = int(cursor.lastrowid or 0)
        return number

    def _row(self, row: tuple[str, int, int, int, int, int, bytes, bytes]) -> QueueRow:
        queue, rank, origin, sequence, timestamp_us, flags, headers, body = row
        dot = Dot(self._origins[origin], unsigned(sequence))
        return QueueRow(dot, queue, unsigned(timestamp_us), flags, -rank, headers, body)
