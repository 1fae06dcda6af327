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
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import error as StructError  # noqa: N812  # it is an exception, and shall look like one
from typing import Final

from qmq.dots import Dot, Origin
from qmq.errors import DiskFull, LogBroken, Malformed
from qmq.storage import queue_space
from qmq.storage import queue_sql as sql
from qmq.storage.ports import NO_ATTEMPTS, Lack, QueueHead, QueueRow, RowDamage
from qmq.storage.queue_plan import (
    SIGN,
    STANDING_ROWS,
    LaneKey,
    LaneRow,
    attempts_by_origin,
    by_lane,
    expired_within,
    first_sound,
    lack_columns,
    lack_key,
    lack_of,
    lack_of_row,
    note_damage,
    origin_columns,
    row_values,
    runs,
    settled_lacks,
    settled_met,
    settles_by_origin,
    signed,
    unsigned,
    within,
)
from qmq.storage.queue_walk import Raw, lane_of, read_position, read_tombstones, walk
from qmq.storage.row_checksum import is_in_place, is_sound, lane_checksum, number_checksum
from qmq.storage.sqlite import medium, open_migrated, open_reader

_new: Final = tuple.__new__
_CHUNKS: Final = (256, 32, 4, 1)
"""How many rows the statements carry. Few sizes, so that each is compiled once."""
_WAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""What the write-ahead log is cut to after a large transaction."""
_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most that comes back in one piece; larger messages are read one by one."""

MARK_SUFFIX: Final = ".damaged"
"""Of the file beside the database that tells the next opening what a read or a write has found."""

Value = str | int | bytes | bytearray


class SqliteQueueStore:
    """See `ports.QueueStore`."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, brought to this version. Raises FutureVersion, LogBroken."""
        self._mark = path.with_name(path.name + MARK_SUFFIX)
        self._reading = threading.Lock()
        # Lane and sequence of damaged rows that were met, and what they may have been.
        self._met: dict[tuple[int, int], Lack] = {}
        self.damage = RowDamage()
        self._sql: dict[tuple[str, int], str] = {}
        with self._making_sense(), self._medium():
            self._database = open_migrated(path, sql.migrations, sql.KNOWN_MIGRATIONS, first=queue_space.MOVABLE)
            self._reader = open_reader(path)
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
        missing_no_more = settled_met(self._met, deletes)
        with self._medium(), _full():
            added: dict[Origin, int] = {}
            with self._database.atomic():
                self._insert(by_lane(upserts), added)
                self._fail(attempts_by_origin(attempts), added)
                self._delete(settles_by_origin(deletes), added)
                self._drop(missing_no_more)
                for lack in settled_lacks(self._lost(self._database.conn), deletes):
                    self._database.conn.execute(sql.END_LACK, lack_key(lack))
                for statement, dots in ((sql.ADD_TOMBSTONES, tombstones_add), (sql.DELETE_TOMBSTONES, tombstones_del)):
                    adding = statement == sql.ADD_TOMBSTONES
                    flat: list[Value] = []
                    for origin, sequence in dots:
                        flat += (self._number(origin, added), signed(sequence))
                        if adding:
                            flat.append(number_checksum(sequence, *origin))
                    self._run(statement, 3 if adding else 2, flat)
                self._database.conn.execute(sql.MOVE, (position, number_checksum(position)))
            # Only now: numbers given out in a transaction that failed do not exist.
            self._ids.update(added)
        for key in missing_no_more:
            self._met.pop(key, None)

    def give_back(self) -> bool:
        with self._medium(), _full():
            return queue_space.give_back(self._database.conn)

    def lack(self, lacks: Sequence[Lack], position: int) -> None:
        with self._medium(), _full(), self._database.atomic():
            for lack in lacks:
                self._remember(lack)
            self._database.conn.execute(sql.MOVE, (position, number_checksum(position)))

    def mend(self, lack: Lack, rows: Sequence[QueueRow], left: Lack | None) -> None:
        met = [key for key, one in list(self._met.items()) if lack_key(one) == lack_key(lack)]
        with self._medium(), _full():
            added: dict[Origin, int] = {}
            with self._database.atomic():
                damaged = [key for key in met if self._is_damaged(self._database.conn, key)]
                # First: where the damaged row stands there may be the place of the sound one.
                self._drop(damaged)
                stood = self._database.conn.execute(sql.END_LACK, lack_key(lack)).rowcount
                if damaged or stood or not lack.is_of_one:
                    if left is not None:
                        self._remember(left)
                    self._insert(by_lane(rows), added)
            self._ids.update(added)
        for key in met:
            self._met.pop(key, None)

    def _drop(self, damaged: Sequence[tuple[int, int]]) -> None:
        """These rows go; who knows what they say of themselves, so their lanes are counted anew."""
        for lane, sequence in damaged:
            self._database.conn.execute(sql.DELETE_RUN, (lane, sequence, sequence))
            self._run(sql.RECOUNT, 1, [lane])
            self._run(sql.CLOSE_LANES, 1, [lane])

    def _remember(self, lack: Lack) -> None:
        self._database.conn.execute(sql.ADD_LACK, lack_columns(lack))

    def _insert(self, lanes: dict[LaneKey, list[QueueRow]], added: dict[Origin, int]) -> None:
        opening: list[Value] = []
        wanted: list[Value] = []
        for index, ((queue, rank, delayed, origin), rows) in enumerate(lanes.items()):
            number = self._number(origin, added)
            lane = lane_checksum(queue, rank, delayed, origin)
            opening += (queue, rank, delayed, number, len(rows), sum([len(row.body) for row in rows]), lane)
            wanted += (index, queue, rank, delayed, number)
        self._run(sql.OPEN_LANES, 7, opening)
        ids = {index: lane for index, lane in self._ask(sql.LANES, 5, wanted)}
        flat: list[Value] = []
        count = 0
        for index, (key, rows) in enumerate(lanes.items()):
            count += len(rows)
            flat += row_values(ids[index], self._number(key.origin, added), lane_checksum(*key), rows)
        if self._run(sql.INSERT, 11, flat) != count:
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
                found: list[QueueRow] = []
                if ready is not None:
                    lane = LaneRow(ready, queue, -priority, False, number, origin)
                    found = self._sound(reader, lane, sql.READY, (ready, beyond), left)
                if delayed is not None:
                    lane = LaneRow(delayed, queue, -priority, True, number, origin)
                    found += self._sound(reader, lane, sql.OVERDUE, (delayed, beyond, now_us), left)
                    found.sort(key=_sequence)
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
                lane = LaneRow(number, queue, rank, True, origin, _origin(reader, origin))
                rows += self._sound(reader, lane, sql.DUE, (number, after_us, until_us), limit)
        rows.sort(key=_due)
        return rows[:limit]

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            lanes: dict[int, LaneRow] = {}
            for (number,) in reader.execute("SELECT id FROM origins WHERE node = ?", (node,)).fetchall():
                sizes = json.loads(reader.execute(sql.EXPIRED_SIZES, (number, until_us, limit)).fetchone()[0])
                for raw in _rows(reader, sql.EXPIRED, (number, until_us, within(sizes, bytes_max))):
                    lane = lanes.get(raw[0]) or lanes.setdefault(raw[0], _lane(reader, raw[0]))
                    row = self._row(reader, lane, raw)
                    if row is not None:
                        rows.append(row)
                rows = expired_within(rows, limit, bytes_max)
        return rows

    def _sound(
        self, reader: sqlite3.Connection, lane: LaneRow, statement: str, parameters: tuple[Value, ...], limit: int
    ) -> list[QueueRow]:
        """The first `limit` rows that `statement` finds in `lane`, without the damaged ones among them."""
        return first_sound(
            lambda wanted: _rows(reader, statement, (*parameters, wanted)),
            lambda raw: self._row(reader, lane, raw),
            limit,
        )

    def _row(self, reader: sqlite3.Connection, lane: LaneRow, raw: Raw) -> QueueRow | None:
        """None: it is damaged, and one of the `lacks` from now on."""
        _, sequence, timestamp_us, flags, due_us, expires_us, attempts, checksum, headers, body = raw
        if sequence < 0 or timestamp_us < 0:
            sequence, timestamp_us = unsigned(sequence), unsigned(timestamp_us)
        # The classes' own constructors would take longer than the checksum.
        dot = _new(Dot, (lane.origin, sequence))
        row = _new(
            QueueRow,
            (dot, lane.queue, timestamp_us, flags, -lane.rank, due_us, expires_us, headers, body, attempts),
        )
        if is_sound(lane.checksum, row, checksum):
            return row
        sequence = raw[1]
        if (lane.id, sequence) not in self._met:
            known = _lane(reader, lane.id)
            if known.checksum not in (0, lane.checksum):
                raise sqlite3.DatabaseError(f"the row of lane {lane.id} is damaged")
            if not is_in_place(lane.checksum, row, checksum):
                raise sqlite3.DatabaseError(f"a row of lane {lane.id} is not in its place")
            self._met[lane.id, sequence] = lack_of_row(row)
            note_damage(self.damage, self._met[lane.id, sequence])
        return None

    def check(self) -> str | None:
        """Look at every row. What is wrong with the file beyond single rows; None: nothing.

        Reads all of it, and keeps other readers waiting. Raises Malformed.
        """
        with self._snapshot() as reader:
            return walk(reader, lambda lane, raw: self._row(reader, lane, raw) is not None)

    def lacks(self) -> list[Lack]:
        with self._snapshot() as reader:
            for key in list(self._met):
                if not self._is_damaged(reader, key):
                    # Met by a reader of an older moment.
                    self._met.pop(key, None)
            return self._lost(reader) + list(self._met.values())

    def _is_damaged(self, connection: sqlite3.Connection, key: tuple[int, int]) -> bool:
        """Whether the damaged row still stands that was met there."""
        raw = connection.execute(sql.ONE, key).fetchone()
        if raw is None:
            return False
        lane = _lane(connection, key[0])
        lane = LaneRow(lane.id, lane.queue, lane.rank, lane.delayed, lane.number, lane.origin)
        return self._row(connection, lane, raw) is None

    def _lost(self, connection: sqlite3.Connection) -> list[Lack]:
        return [lack_of(*found) for found in connection.execute(sql.LACKS).fetchall()]

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        with self._snapshot() as reader:
            return reader.execute(sql.LISTING, (after or "", node, limit)).fetchall()

    def tombstones(self) -> set[Dot]:
        with self._snapshot() as reader:
            return read_tombstones(reader)

    def origins(self) -> list[Origin]:
        with self._snapshot() as reader:
            return sorted(Origin(node, unsigned(number)) for node, number in reader.execute(sql.ORIGINS).fetchall())

    def standing(self, origin: Origin, after: int, through: int, limit: int) -> list[tuple[int, str, int]]:
        found: list[tuple[int, str, int]] = []
        with self._snapshot() as reader:
            while len(found) < limit:
                wanted = limit - len(found)
                keys = _standing(reader, origin, after, through, wanted)
                found += [(row.dot.sequence, row.queue, row.attempts) for row in self._ones(reader, origin, keys)]
                if len(keys) < wanted:
                    break
                after = keys[-1][0]
        return found

    def standing_rows(self, origin: Origin, after: int, through: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for row in self._ones(reader, origin, _standing(reader, origin, after, through, STANDING_ROWS)):
                bytes_max -= len(row.headers) + len(row.body)
                if rows and bytes_max < 0:
                    break
                rows.append(row)
        return rows

    def _ones(
        self, reader: sqlite3.Connection, origin: Origin, keys: Sequence[tuple[int, int, str, int, int, int]]
    ) -> Iterator[QueueRow]:
        """The sound ones of these rows, read one by one: their bodies may be large."""
        for sequence, lane, queue, rank, delayed, number in keys:
            raw = reader.execute(sql.ONE, (lane, sequence)).fetchone()
            if raw is None:
                raise sqlite3.DatabaseError(f"row {sequence} of lane {lane} is in one place and not in another")
            row = self._row(reader, LaneRow(lane, queue, rank, bool(delayed), number, origin), raw)
            if row is not None:
                yield row

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """One reader at a time; everything read inside is of one moment."""
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
        return Malformed(f"the queue store is damaged; the next start puts it aside: {error}")

    def close(self) -> None:
        with self._reading, medium():
            self._reader.close()
            self._database.close()


_NOT_THE_FILE: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_ABORT,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""What SQLite says of the world around it. Whatever else it cannot do with statements that it has always understood
must be the file's fault."""


def is_damage(error: BaseException | None) -> bool:
    """Whether `error` speaks of a file that is not what was written."""
    if isinstance(error, UnicodeError):
        return True
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.ProgrammingError):
        return False
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF not in _NOT_THE_FILE


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
    """Sequence, lane, queue, rank, delayed or not, number of the origin, by sequence."""
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


def _rows(reader: sqlite3.Connection, statement: str, parameters: tuple[Value | None, ...]) -> list[Raw]:
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
        raise sqlite3.DatabaseError(f"rows of the queue store cannot be read: {error}") from error
    if place != len(data):
        raise sqlite3.DatabaseError("rows of the queue store cannot be read: their lengths are wrong")
    return rows


def _lane(reader: sqlite3.Connection, number: int) -> LaneRow:
    """Its checksum is the one that was written down."""
    found = reader.execute(sql.LANE, (number,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError(f"there is no lane {number}")
    return lane_of(found)


def _add(totals: dict[int, tuple[int, int]], lane: int, messages: int, size: int) -> None:
    known = totals.get(lane, (0, 0))
    totals[lane] = (known[0] + messages, known[1] + size)


def _sequence(row: QueueRow) -> int:
    return row.dot.sequence


def _due(row: QueueRow) -> int:
    return row.due_us
