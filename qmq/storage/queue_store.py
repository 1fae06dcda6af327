"""The queue store on SQLite: what waits in queues and was not settled before a checkpoint passed it.

Written by checkpoints, one transaction each, over one connection; read over another, so that no reader waits for a
checkpoint. Messages lie in one b-tree by lane (`queue_plan`) and sequence: publishing and draining in order touch
neighbouring pages only. Each lane's row counts its messages and bytes in the same transaction, and goes with the last
of them. PostgreSQL can take this module's place (`postgres`).

Surprising: statements carry hundreds of rows each, and results come back as one row (JSON, and the bytes in a single
blob). Every step of a statement lets go of the interpreter's lock, and under load it takes a busy main thread to get
it back: a page of 500 rows took 145 ms row by row, and 5 ms in one piece.
"""

import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from qmq.dots import Dot, Origin
from qmq.errors import DiskFull
from qmq.storage import queue_space
from qmq.storage import queue_sql as sql
from qmq.storage.ports import NO_ATTEMPTS, QueueHead, QueueRow
from qmq.storage.queue_plan import (
    SIGN,
    STANDING_ROWS,
    LaneKey,
    attempts_by_origin,
    by_lane,
    expired_within,
    origin_columns,
    runs,
    settles_by_origin,
    signed,
    unsigned,
    within,
)
from qmq.storage.sqlite import medium, open_migrated, open_reader

_CHUNKS: Final = (256, 32, 4, 1)
"""How many rows the statements carry. Few sizes, so that each is compiled once."""
_WAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""What the write-ahead log is cut to after a large transaction."""
_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most that comes back in one piece; larger messages are read one by one."""

_Raw = tuple[int, int, int, int, int, int, int, bytes, bytes]
Value = str | int | bytes


class SqliteQueueStore:
    """See `ports.QueueStore`."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, brought to this version. Raises FutureVersion, LogBroken."""
        self._reading = threading.Lock()
        self._database = open_migrated(path, sql.migrations, sql.KNOWN_MIGRATIONS, first=queue_space.MOVABLE)
        self._reader = open_reader(path)
        self._sql: dict[tuple[str, int], str] = {}
        with medium():
            self._database.conn.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
            rows = self._database.conn.execute("SELECT id, node, incarnation FROM origins").fetchall()
        self._ids = {Origin(node, unsigned(incarnation)): number for number, node, incarnation in rows}

    # Writing

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Mapping[str, Sequence[Dot]],
        tombstones_add: Collection[Dot],
        tombstones_del: Collection[Dot],
        position: int,
        attempts: Mapping[str, Mapping[Dot, int]] = NO_ATTEMPTS,
    ) -> None:
        with medium(), _full():
            added: dict[Origin, int] = {}
            with self._database.atomic():
                self._insert(by_lane(upserts), added)
                self._fail(attempts_by_origin(attempts), added)
                self._delete(settles_by_origin(deletes), added)
                for statement, dots in ((sql.ADD_TOMBSTONES, tombstones_add), (sql.DELETE_TOMBSTONES, tombstones_del)):
                    flat: list[Value] = []
                    for origin, sequence in dots:
                        flat += (self._number(origin, added), signed(sequence))
                    self._run(statement, 2, flat)
                self._database.conn.execute("UPDATE progress SET position = ?", (position,))
            # Only now: numbers given out in a transaction that failed do not exist.
            self._ids.update(added)

    def give_back(self) -> bool:
        with medium(), _full():
            return queue_space.give_back(self._database.conn)

    def _insert(self, lanes: dict[LaneKey, list[QueueRow]], added: dict[Origin, int]) -> None:
        opening: list[Value] = []
        wanted: list[Value] = []
        for index, ((queue, rank, delayed, origin), rows) in enumerate(lanes.items()):
            number = self._number(origin, added)
            opening += (queue, rank, delayed, number, len(rows), sum([len(row.body) for row in rows]))
            wanted += (index, queue, rank, delayed, number)
        self._run(sql.OPEN_LANES, 6, opening)
        ids = {index: lane for index, lane in self._ask(sql.LANES, 5, wanted)}
        flat: list[Value] = []
        count = 0
        for index, rows in enumerate(lanes.values()):
            lane = ids[index]
            number = self._number(rows[0].dot.origin, added)
            count += len(rows)
            for (_, sequence), _, timestamp_us, flags, _, due_us, expires_us, headers, body, attempts in rows:
                if sequence >= SIGN or timestamp_us >= SIGN:
                    sequence, timestamp_us = signed(sequence), signed(timestamp_us)
                flat += (lane, sequence, number, timestamp_us, flags, due_us, expires_us, headers, body, attempts)
        if self._run(sql.INSERT, 10, flat) != count:
            # Some were here already: after the disk lost journal that it had synced, peers send it again.
            self._run(sql.RECOUNT, 1, list(ids.values()))

    def _fail(self, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]) -> None:
        keys = list(attempts)
        flat: list[Value] = []
        for index, lane in self._ask(sql.LANES_OF, 3, self._lanes_wanted(keys, added)):
            for sequence, count in attempts[keys[index]]:
                flat += (lane, sequence, count)
        self._run(sql.FAIL, 3, flat)

    def _lanes_wanted(self, keys: Sequence[tuple[str, Origin]], added: dict[Origin, int]) -> list[Value]:
        """What LANES_OF asks for; origins that are not here have none."""
        wanted: list[Value] = []
        for index, (queue, origin) in enumerate(keys):
            number = self._ids.get(origin) or added.get(origin)
            if number is not None:
                wanted += (index, queue, number)
        return wanted

    def _delete(self, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        keys = list(settles)
        wanted = self._lanes_wanted(keys, added)
        less: dict[int, tuple[int, int]] = {}
        single: list[Value] = []
        for index, lane in self._ask(sql.LANES_OF, 3, wanted):
            long, rest = runs(settles[keys[index]])
            for first, last in long:
                count, size = self._database.conn.execute(sql.COUNT_RUN, (lane, first, last)).fetchone()
                if count:
                    self._database.conn.execute(sql.DELETE_RUN, (lane, first, last))
                    _add(less, lane, count, size)
            for sequence in rest:
                single += (lane, sequence)
        for lane, count, size in self._ask(sql.COUNT, 2, single):
            _add(less, lane, count, size)
        self._run(sql.DELETE, 2, single)
        flat: list[Value] = []
        for lane, (count, size) in less.items():
            flat += (lane, count, size)
        self._run(sql.SUBTRACT, 3, flat)
        self._run(sql.CLOSE_LANES, 1, list(less))

    def _number(self, origin: Origin, added: dict[Origin, int]) -> int:
        """The number of `origin`, given out on first sight, inside the open transaction."""
        number = self._ids.get(origin) or added.get(origin)
        if number is None:
            cursor = self._database.conn.execute(
                "INSERT INTO origins (node, incarnation) VALUES (?, ?)", origin_columns(origin)
            )
            number = added[origin] = int(cursor.lastrowid or 0)
        return number

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
            found: int = reader.execute("SELECT position FROM progress").fetchone()[0]
            return found

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
                for index, lane, rank, delayed, messages, size in json.loads(answer):
                    queue = names[index]
                    due_us = reader.execute(sql.NEXT_DUE, (lane, now_us)).fetchone()[0] or 0 if delayed else 0
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
            lanes = _lanes_of(reader, node, queue, f"AND rank = {-priority:d} AND origin >= {first:d}")
            for number, (origin, ready, delayed) in lanes.items():
                beyond = signed(after.sequence) if after is not None and number == first else -1 << 63
                left = limit - len(rows)
                found = _rows(reader, sql.READY, (ready, beyond, left)) if ready else []
                if delayed:
                    found += _rows(reader, sql.OVERDUE, (delayed, beyond, now_us, left))
                    found.sort(key=_sequence)
                rows += [_queue_row(origin, queue, priority, raw) for raw in found[:left]]
                if len(rows) >= limit:
                    break
        return rows

    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for rank, lane, origin in reader.execute(
                "SELECT rank, lanes.id, origins.id FROM lanes JOIN origins ON origins.id = lanes.origin"
                " WHERE queue = ? AND delayed = 1 AND node = ?",
                (queue, node),
            ).fetchall():
                named = _origin(reader, origin)
                found = _rows(reader, sql.DUE, (lane, after_us, until_us, limit))
                rows += [_queue_row(named, queue, -rank, raw) for raw in found]
        rows.sort(key=_due)
        return rows[:limit]

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            lanes: dict[int, tuple[str, int]] = {}
            for (number,) in reader.execute("SELECT id FROM origins WHERE node = ?", (node,)).fetchall():
                origin = _origin(reader, number)
                sizes = json.loads(reader.execute(sql.EXPIRED_SIZES, (number, until_us, limit)).fetchone()[0])
                for raw in _rows(reader, sql.EXPIRED, (number, until_us, within(sizes, bytes_max))):
                    lane = raw[0]
                    if lane not in lanes:
                        lanes[lane] = reader.execute("SELECT queue, rank FROM lanes WHERE id = ?", (lane,)).fetchone()
                    queue, rank = lanes[lane]
                    rows.append(_queue_row(origin, queue, -rank, raw))
                rows = expired_within(rows, limit, bytes_max)
        return rows

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        with self._snapshot() as reader:
            return reader.execute(sql.LISTING, (after or "", node, limit)).fetchall()

    def tombstones(self) -> set[Dot]:
        with self._snapshot() as reader:
            rows = reader.execute(
                "SELECT node, incarnation, sequence FROM tombstones JOIN origins ON origins.id = origin"
            ).fetchall()
        return {Dot(Origin(node, unsigned(incarnation)), unsigned(sequence)) for node, incarnation, sequence in rows}

    def origins(self) -> list[Origin]:
        with self._snapshot() as reader:
            return sorted(Origin(node, unsigned(number)) for node, number in reader.execute(sql.ORIGINS).fetchall())

    def standing(self, origin: Origin, after: int, through: int, limit: int) -> list[tuple[int, str, int]]:
        with self._snapshot() as reader:
            return [(found[0], found[2], found[5]) for found in _standing(reader, origin, after, through, limit)]

    def standing_rows(self, origin: Origin, after: int, through: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for sequence, lane, queue, rank, size, _ in _standing(reader, origin, after, through, STANDING_ROWS):
                bytes_max -= size
                if rows and bytes_max < 0:
                    break
                raw = reader.execute(sql.ONE, (lane, sequence)).fetchone()
                rows.append(_queue_row(origin, queue, -rank, raw))
        return rows

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """One reader at a time; everything read inside is of one moment."""
        with self._reading, medium():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def close(self) -> None:
        with self._reading, medium():
            self._reader.close()
            self._database.close()


@contextmanager
def _full() -> Iterator[None]:
    """Inside, no room on the disk comes out as DiskFull: SQLite has undone the transaction."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise DiskFull("no room for the queue store") from error
        raise


def _lanes_of(
    reader: sqlite3.Connection, node: str, queue: str, where: str
) -> dict[int, tuple[Origin, int | None, int | None]]:
    """Number of an origin → the origin, its lane of what is ready, and its lane of what is delayed; by number."""
    found: dict[int, tuple[Origin, int | None, int | None]] = {}
    for number, incarnation, delayed, lane in reader.execute(
        "SELECT origin, incarnation, delayed, lanes.id FROM lanes JOIN origins ON origins.id = lanes.origin"
        f" WHERE queue = ? AND node = ? {where} ORDER BY origin",
        (queue, node),
    ).fetchall():
        origin, ready, late = found.get(number, (Origin(node, unsigned(incarnation)), None, None))
        found[number] = (origin, ready, lane) if delayed else (origin, lane, late)
    return found


def _standing(
    reader: sqlite3.Connection, origin: Origin, after: int, through: int, limit: int
) -> list[tuple[int, int, str, int, int, int]]:
    """Sequence, lane, queue, rank, bytes and attempts, by sequence."""
    known = reader.execute(
        "SELECT id FROM origins WHERE node = ? AND incarnation = ?", origin_columns(origin)
    ).fetchone()
    if known is None:
        return []
    bounds = (known[0], min(after, SIGN - 1), min(through, SIGN - 1), limit)
    return reader.execute(sql.STANDING, bounds).fetchall()


def _origin(reader: sqlite3.Connection, number: int) -> Origin:
    node, incarnation = reader.execute("SELECT node, incarnation FROM origins WHERE id = ?", (number,)).fetchone()
    return Origin(node, unsigned(incarnation))


def _rows(reader: sqlite3.Connection, statement: str, parameters: tuple[Value | None, ...]) -> list[_Raw]:
    """What `statement` selects (`queue_sql.COLUMNS`), in its order."""
    size = reader.execute(sql.SIZE.format(statement), parameters).fetchone()[0]
    if size is None:
        return []
    if size > _PIECE_BYTES_MAX:
        return reader.execute(statement, parameters).fetchall()
    meta, data = reader.execute(sql.IN_ONE.format(statement), parameters).fetchone()
    data = data or b""
    rows: list[_Raw] = []
    place = 0
    for lane, sequence, timestamp_us, flags, due_us, expires_us, attempts, headers, body in json.loads(meta):
        middle = place + headers
        end = middle + body
        bytes_of = (data[place:middle], data[middle:end])
        rows.append((lane, sequence, timestamp_us, flags, due_us, expires_us, attempts, *bytes_of))
        place = end
    return rows


def _queue_row(origin: Origin, queue: str, priority: int, raw: _Raw) -> QueueRow:
    _, sequence, timestamp_us, flags, due_us, expires_us, attempts, headers, body = raw
    dot = Dot(origin, unsigned(sequence))
    return QueueRow(dot, queue, unsigned(timestamp_us), flags, priority, due_us, expires_us, headers, body, attempts)


def _add(totals: dict[int, tuple[int, int]], lane: int, messages: int, size: int) -> None:
    known = totals.get(lane, (0, 0))
    totals[lane] = (known[0] + messages, known[1] + size)


def _sequence(raw: _Raw) -> int:
    return raw[1]


def _due(row: QueueRow) -> int:
    return row.due_us
