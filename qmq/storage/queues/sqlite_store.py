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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import error as StructError  # noqa: N812  # it is an exception, and shall look like one
from typing import Final

from qmq.dots import Dot, Origin
from qmq.errors import LogBroken, Malformed
from qmq.storage.disk.sqlite import is_damage, medium, open_migrated, open_reader
from qmq.storage.format.interfaces import QueueHead, QueueRow
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.row_checksum import number_checksum, partition_checksum
from qmq.storage.queues import sqlite_sql as sql
from qmq.storage.queues import vacuum
from qmq.storage.queues.database import DatabaseQueueStore, Place, UnsettledRow, by_due_time, by_sequence
from qmq.storage.queues.plan import (
    SIGN,
    PartitionKey,
    PartitionRow,
    Raw,
    expired_within,
    missing_columns,
    missing_key,
    missing_of,
    origin_columns,
    row_values,
    runs,
    signed,
    unsigned,
    within,
)
from qmq.storage.queues.scan import origin_of, partition_of, partitions_of, read_position, read_tombstones, walk

_CHUNKS: Final = (256, 32, 4, 1)
"""How many rows the statements carry. Few sizes, so that each is compiled once."""
_WAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""What the write-ahead log is cut to after a large transaction."""
_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most that comes back in one piece; larger messages are read one by one."""

MARK_SUFFIX: Final = ".damaged"
"""Of the file beside the database that tells the next opening what a read or a write has found."""

Value = str | int | bytes | bytearray


class SqliteQueueStore(DatabaseQueueStore[sqlite3.Connection]):
    """See `ports.QueueStore`."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        """Open or make the file, brought to this version. Raises FutureVersion, LogBroken."""
        super().__init__()
        self._mark = path.with_name(path.name + MARK_SUFFIX)
        self._reading = threading.Lock()
        self._sql: dict[tuple[str, int], str] = {}
        with self._making_sense(), self._medium():
            self._database = open_migrated(path, sql.migrations, sql.KNOWN_MIGRATIONS, first=vacuum.MOVABLE)
            self._reader = open_reader(path)
            self._database.conn.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
            rows = self._database.conn.execute("SELECT id, node, incarnation FROM origins").fetchall()
            self._ids = {Origin(node, unsigned(incarnation)): number for number, node, incarnation in rows}

    # Writing

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._medium(), self._database.atomic():
            yield self._database.conn

    def give_back(self) -> bool:
        with self._medium():
            return vacuum.give_back(self._database.conn)

    def _insert(self, partitions: dict[PartitionKey, list[QueueRow]], added: dict[Origin, int]) -> None:
        opening: list[Value] = []
        wanted: list[Value] = []
        for index, ((queue, rank, delayed, origin), rows) in enumerate(partitions.items()):
            number = self._number(origin, added)
            partition = partition_checksum(queue, rank, delayed, origin)
            opening += (queue, rank, delayed, number, len(rows), sum([len(row.body) for row in rows]), partition)
            wanted += (index, queue, rank, delayed, number)
        self._run(sql.OPEN_PARTITIONS, 7, opening)
        ids = {index: partition for index, partition in self._ask(sql.LANES, 5, wanted)}
        flat: list[Value] = []
        count = 0
        for index, (key, rows) in enumerate(partitions.items()):
            count += len(rows)
            flat += row_values(ids[index], self._number(key.origin, added), partition_checksum(*key), rows)
        if self._run(sql.INSERT, 11, flat) != count:
            # Some were here already: after the disk lost journal that it had synced, peers send it again.
            self._run(sql.RECOUNT, 1, list(ids.values()))

    def _delete_row(self, place: Place) -> None:
        partition, sequence = place
        self._database.conn.execute(sql.DELETE_RUN, (partition, sequence, sequence))

    def _recount(self, partition: int) -> None:
        self._run(sql.RECOUNT, 1, [partition])
        self._run(sql.CLOSE_PARTITIONS, 1, [partition])

    def _add_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None:
        flat: list[Value] = []
        for origin, sequence in dots:
            flat += (self._number(origin, added), signed(sequence), number_checksum(sequence, *origin))
        self._run(sql.ADD_TOMBSTONES, 3, flat)

    def _delete_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None:
        flat: list[Value] = []
        for origin, sequence in dots:
            flat += (self._number(origin, added), signed(sequence))
        self._run(sql.DELETE_TOMBSTONES, 2, flat)

    def _remember(self, missing: MissingRange) -> None:
        self._database.conn.execute(sql.ADD_MISSING, missing_columns(missing))

    def _end_missing(self, missing: MissingRange) -> int:
        return self._database.conn.execute(sql.END_MISSING, missing_key(missing)).rowcount

    def _move(self, position: int) -> None:
        self._database.conn.execute(sql.MOVE, (position, number_checksum(position)))

    def _fail(self, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]) -> None:
        keys = list(attempts)
        flat: list[Value] = []
        for index, partition in self._ask(sql.PARTITIONS_OF, 3, self._partitions_wanted(keys, added)):
            for sequence, count in attempts[keys[index]]:
                flat += (partition, sequence, count)
        self._run(sql.FAIL, 3, flat)

    def _partitions_wanted(self, keys: Sequence[tuple[str, Origin]], added: dict[Origin, int]) -> list[Value]:
        """The arguments of PARTITIONS_OF; unknown origins have none."""
        wanted: list[Value] = []
        for index, (queue, origin) in enumerate(keys):
            number = self._known_number(origin, added)
            if number is not None:
                wanted += (index, queue, number)
        return wanted

    def _delete(self, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        keys = list(settles)
        wanted = self._partitions_wanted(keys, added)
        less: dict[int, tuple[int, int]] = {}
        single: list[Value] = []
        for index, partition in self._ask(sql.PARTITIONS_OF, 3, wanted):
            long, remainder = runs(settles[keys[index]])
            for first, last in long:
                count, size = self._database.conn.execute(sql.COUNT_RUN, (partition, first, last)).fetchone()
                if count:
                    self._database.conn.execute(sql.DELETE_RUN, (partition, first, last))
                    _add(less, partition, count, size)
            for sequence in remainder:
                single += (partition, sequence)
        for partition, count, size in self._ask(sql.COUNT, 2, single):
            _add(less, partition, count, size)
        self._run(sql.DELETE, 2, single)
        flat: list[Value] = []
        for partition, (count, size) in less.items():
            flat += (partition, count, size)
        self._run(sql.SUBTRACT, 3, flat)
        self._run(sql.CLOSE_PARTITIONS, 1, list(less))

    def _add_origin(self, origin: Origin) -> int:
        cursor = self._database.conn.execute(
            "INSERT INTO origins (node, incarnation) VALUES (?, ?)", origin_columns(origin)
        )
        return int(cursor.lastrowid or 0)

    def _run(self, template: str, width: int, flat: list[Value]) -> int:
        """Carry out `template` for `flat`, rows of `width` values one after another. Returns rows changed."""
        changed = 0
        for statement, part in self._parts(template, width, flat):
            changed += self._database.conn.execute(statement, part).rowcount
        return changed

    def _ask(self, template: str, width: int, flat: list[Value]) -> list[list[int]]:
        """What `template` answers for `flat`, inside the open transaction."""
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

    def position(self) -> int:
        with self._snapshot() as reader:
            return read_position(reader)

    def nodes(self) -> list[str]:
        with self._snapshot() as reader:
            return [node for (node,) in reader.execute("SELECT DISTINCT node FROM origins ORDER BY node").fetchall()]

    def is_empty(self, node: str) -> bool:
        with self._snapshot() as reader:
            found = reader.execute(
                "SELECT 1 FROM origins CROSS JOIN lanes ON lanes.origin = origins.id WHERE node = ? LIMIT 1", (node,)
            )
            return found.fetchone() is None

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        names = list(dict.fromkeys(queues))
        wanted: list[Value] = []
        for index, queue in enumerate(names):
            wanted += (index, queue)
        found: dict[str, QueueHead] = {}
        with self._snapshot() as reader:
            for statement, part in self._parts(sql.HEADS, 2, wanted):
                answer = reader.execute(statement, (*part, node)).fetchone()[0]
                for index, partition, rank, delayed, messages, size in json.loads(answer):
                    queue = names[index]
                    due_us = reader.execute(sql.NEXT_DUE, (partition, now_us)).fetchone()[0] or 0 if delayed else 0
                    known = found.get(queue, QueueHead(0, 0, (), 0))
                    found[queue] = QueueHead(
                        known.messages + messages,
                        known.body_bytes + size,
                        tuple(sorted({*known.priorities, -rank}, reverse=True)),
                        min(known.next_due_us or due_us, due_us or known.next_due_us),
                    )
        return found

    def page(self, node: str, queue: str, priority: int, after: Dot | None, now_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            first = 0
            if after is not None:
                known = reader.execute(
                    "SELECT id FROM origins WHERE node = ? AND incarnation = ?", origin_columns(after.origin)
                ).fetchone()
                if known is None:
                    return []
                first = known[0]
            partitions = partitions_of(reader, node, queue, f"AND rank = {-priority:d} AND origin >= {first:d}")
            for number, (origin, ready, delayed) in partitions.items():
                beyond = signed(after.sequence) if after is not None and number == first else -1 << 63
                left = limit - len(rows)
                found: list[QueueRow] = []
                if ready is not None:
                    partition = PartitionRow(ready, queue, -priority, False, number, origin)
                    found = self._sound(reader, partition, sql.READY, (ready, beyond), left)
                if delayed is not None:
                    partition = PartitionRow(delayed, queue, -priority, True, number, origin)
                    found += self._sound(reader, partition, sql.OVERDUE, (delayed, beyond, now_us), left)
                    found.sort(key=by_sequence)
                rows += found[:left]
                if len(rows) >= limit:
                    break
        return rows

    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for rank, number, origin in reader.execute(
                "SELECT rank, lanes.id, origins.id FROM lanes JOIN origins ON origins.id = lanes.origin"
                " WHERE queue = ? AND delayed = 1 AND node = ?",
                (queue, node),
            ).fetchall():
                partition = PartitionRow(number, queue, rank, True, origin, origin_of(reader, origin))
                rows += self._sound(reader, partition, sql.DUE, (number, after_us, until_us), limit)
        rows.sort(key=by_due_time)
        return rows[:limit]

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            partitions: dict[int, PartitionRow] = {}
            for (number,) in reader.execute("SELECT id FROM origins WHERE node = ?", (node,)).fetchall():
                sizes = json.loads(reader.execute(sql.EXPIRED_SIZES, (number, until_us, limit)).fetchone()[0])
                for raw in self._rows(reader, sql.EXPIRED, (number, until_us, within(sizes, bytes_max))):
                    partition = partitions.get(raw[0]) or partitions.setdefault(raw[0], self._partition(reader, raw[0]))
                    row = self._row(reader, partition, raw)
                    if row is not None:
                        rows.append(row)
                rows = expired_within(rows, limit, bytes_max)
        return rows

    def check(self) -> str | None:
        """Look at every row. What is wrong with the file beyond single rows; None: nothing.

        Reads all of it, and keeps other readers waiting. Raises Malformed.
        """
        with self._snapshot() as reader:
            return walk(reader, lambda partition, raw: self._row(reader, partition, raw) is not None)

    def _lost(self, connection: sqlite3.Connection) -> list[MissingRange]:
        return [missing_of(*found) for found in connection.execute(sql.MISSING_RANGES).fetchall()]

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        with self._snapshot() as reader:
            return reader.execute(sql.LISTING, (after or "", node, limit)).fetchall()

    def tombstones(self) -> set[Dot]:
        with self._snapshot() as reader:
            return read_tombstones(reader)

    def origins(self) -> list[Origin]:
        with self._snapshot() as reader:
            return sorted(Origin(node, unsigned(number)) for node, number in reader.execute(sql.ORIGINS).fetchall())

    def _rows(self, reader: sqlite3.Connection, statement: str, parameters: tuple[int, ...]) -> list[Raw]:
        """What `statement` selects (`queue_sql.COLUMNS`), in its order."""
        size = reader.execute(sql.SIZE.format(statement), parameters).fetchone()[0]
        if size is None:
            return []
        if size > _PIECE_BYTES_MAX:
            return reader.execute(statement, parameters).fetchall()
        meta, data = reader.execute(sql.IN_ONE.format(statement), parameters).fetchone()
        data = data or b""
        rows: list[Raw] = []
        place = 0
        try:
            for *numbers, headers, body in json.loads(meta):
                middle = place + headers
                end = middle + body
                rows.append((*numbers, data[place:middle], data[middle:end]))
                place = end
        except (TypeError, ValueError) as error:
            raise self._broken(f"rows of the queue store cannot be read: {error}") from error
        if place != len(data):
            raise self._broken("rows of the queue store cannot be read: their lengths are wrong")
        return rows

    def _partition(self, reader: sqlite3.Connection, number: int) -> PartitionRow:
        found = reader.execute(sql.PARTITION, (number,)).fetchone()
        if found is None:
            raise self._broken(f"there is no partition {number}")
        return partition_of(found)

    def _one(self, connection: sqlite3.Connection, place: Place) -> Raw | None:
        found: Raw | None = connection.execute(sql.ONE, place).fetchone()
        return found

    def _unsettled(
        self, reader: sqlite3.Connection, origin: Origin, after: int, through: int, limit: int
    ) -> list[UnsettledRow]:
        known = reader.execute(
            "SELECT id FROM origins WHERE node = ? AND incarnation = ?", origin_columns(origin)
        ).fetchone()
        if known is None:
            return []
        bounds = (known[0], min(after, SIGN - 1), min(through, SIGN - 1), limit)
        return reader.execute(sql.UNSETTLED, bounds).fetchall()

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
        """As `medium`; a file that is damaged is marked, so that the next opening looks at it (`queue_rescue`)."""
        try:
            with medium():
                yield
        except LogBroken as error:
            if not is_damage(error.__cause__):
                raise
            raise self._malformed(error) from error

    @contextmanager
    def _making_sense(self) -> Iterator[None]:
        """Inside, values that are none of those that are written count as damage, too."""
        try:
            yield
        except (TypeError, ValueError, LookupError, OverflowError, StructError) as error:
            raise self._malformed(error) from error

    def _malformed(self, error: Exception) -> Malformed:
        with suppress(OSError):
            self._mark.write_text(str(error))
        return Malformed(f"the queue store is damaged; the next start replaces it: {error}")

    def close(self) -> None:
        with self._reading, medium():
            self._reader.close()
            self._database.close()


def _add(totals: dict[int, tuple[int, int]], partition: int, messages: int, size: int) -> None:
    known = totals.get(partition, (0, 0))
    totals[partition] = (known[0] + messages, known[1] + size)
