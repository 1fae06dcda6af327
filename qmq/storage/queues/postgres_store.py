"""The queue store on PostgreSQL, for operators that run such a database anyway.

It has the same partitions, rows and promises as `sqlite_store` (see `database`). The tables are `qmq_…` in the first
schema of the connection's search_path, so every node needs a database or schema of its own. An advisory lock keeps out
a second node. Needs the extra `postgres` (psycopg).

Surprising: joins that read a whole table are switched off for these connections. Each statement touches few of many
rows by their key. The planner does not always see that, because its statistics may be from when the queue was short.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, cast

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict

from qmq.dots import Dot, Origin
from qmq.errors import DirectoryInUse, DiskFull, FutureVersion, LogBroken, Malformed, StorageError
from qmq.storage.format.interfaces import QueueHead, QueueRow
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.row_checksum import checksum_of, number_checksum, partition_checksum
from qmq.storage.queues import postgres_sql as sql
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
    runs,
    signed,
    unsigned,
    within,
)
from qmq.storage.queues.postgres_watch import LostConnection, Watch, made_again, shut

CONNECT_SECONDS: Final = 10
"""How long a start waits for the server."""
LOCK_SECONDS: Final = 5
"""How long it waits for the lock: a server needs a moment to see that the node before was killed."""
_LOCK_KEY: Final = 0x716D71
_KEEPALIVE: Final = (30, 10, 3)
"""Seconds of silence, seconds between probes, probes: how soon each side knows that the other's host is gone. Until
then the server keeps the lock of a node that died with its host."""
_OPTIONS: Final = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c tcp_keepalives_idle={} -c tcp_keepalives_interval={} -c tcp_keepalives_count={}"
).format(*_KEEPALIVE)

_LOST: Final = ("08", "57P")
"""SQL states: the connection is at fault, or an administrator has ended it."""

_NO_TIMEOUTS: Final = (("idle_in_transaction_session_timeout", 0), ("idle_session_timeout", 140000))
"""And since which version of the server."""

_PartitionColumns = tuple[int, int, str, int, str, int, bool, int, int]
_Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresQueueStore(DatabaseQueueStore[_Connection]):
    """See `ports.QueueStore`."""

    kind = "postgresql"

    def __init__(self, url: str, node: str, seconds_max: float = 30.0) -> None:
        """Connect, and bring the tables to this version. Later calls may take `seconds_max`, lost connections included.

        Raises:
            StorageError: the server cannot be reached or does not let us in, or the tables belong to another node.
            DirectoryInUse: another process uses them.
            FutureVersion: they were made by later software.
        """
        super().__init__()
        self._reading = Lock()
        self._open: list[_Connection] = []
        self._where = _shown(url)
        self._url = url
        self._node = node
        self._moving = self._moved = 0
        self._watch = Watch(seconds_max, self._cut)
        try:
            self._writer = self._open_writer()
            self._reader = self._open_reader()
            with self._at_start():
                rows = self._writer.execute("SELECT id, node, incarnation FROM qmq_origins").fetchall()
                self._writer.commit()
        except BaseException:
            self.close()
            raise
        self._ids = {Origin(name, unsigned(incarnation)): number for number, name, incarnation in rows}

    def _open_writer(self) -> _Connection:
        writer = self._connect()
        try:
            with self._at_start():
                found = self._prepare(writer, self._node)
                writer.commit()
        except BaseException:
            writer.close()
            raise
        if found < self._moved:
            writer.close()
            raise LogBroken(f"the queue store {self._where} has lost what it had committed: it is at position {found}")
        return writer

    def _open_reader(self) -> _Connection:
        reader = self._connect()
        reader.read_only = True
        reader.isolation_level = IsolationLevel.REPEATABLE_READ
        return reader

    def _connect_again(self, writes: bool) -> None:
        """Replace the connection that a writing or a reading call has lost. Raises StorageError."""
        if writes:
            self._writer = self._open_writer()
        else:
            with self._reading:
                if self._reader.closed:
                    self._reader = self._open_reader()

    def _cut(self) -> None:
        for connection in list(self._open):
            with suppress(psycopg.Error):
                shut(connection.fileno())

    def _connect(self) -> _Connection:
        url = self._url
        with self._at_start():
            options = f"{conninfo_to_dict(url).get('options') or ''} {_OPTIONS}"
            options += f" -c statement_timeout={int(self._watch.seconds_max * 1000)}"
            idle, interval, count = _KEEPALIVE
            connection: _Connection = psycopg.connect(
                url,
                options=options,
                application_name="qmq",
                connect_timeout=CONNECT_SECONDS,
                keepalives_idle=idle,
                keepalives_interval=interval,
                keepalives_count=count,
            )
            self._open = [one for one in self._open if not one.closed] + [connection]
            # What the server's administrator says of idle clients is not meant for these.
            for name, version in _NO_TIMEOUTS:
                if connection.info.server_version >= version:
                    connection.execute(f"SET {name} = 0")
            connection.commit()
            return connection

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StorageError(f"the queue store {self._where} cannot be used: {_one_line(error)}") from error

    def _prepare(self, writer: _Connection, node: str) -> int:
        """Keep others out, and make or migrate the tables. Returns the position."""
        schema = writer.execute("SELECT current_schema()").fetchone()
        if schema is None or schema[0] is None:
            raise StorageError(f"the queue store {self._where} has no schema to write to; see search_path")
        writer.execute(f"SET lock_timeout = {int(LOCK_SECONDS * 1000)}")
        try:
            writer.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (_LOCK_KEY, schema[0]))
        except errors.LockNotAvailable as error:
            raise DirectoryInUse(f"another process uses the queue store {self._where}") from error
        writer.execute("SET lock_timeout = 0")
        writer.execute("CREATE TABLE IF NOT EXISTS qmq_version (version integer NOT NULL)")
        found = writer.execute("SELECT version FROM qmq_version").fetchone()
        version = found[0] if found is not None else 0
        if version > len(sql.STEPS):
            raise FutureVersion(
                f"the queue store {self._where} has version {version}, this software knows {len(sql.STEPS)}"
            )
        if found is None:
            writer.execute("INSERT INTO qmq_version VALUES (0)")
        for step in sql.STEPS[version:]:
            writer.execute(step)
        writer.execute("UPDATE qmq_version SET version = %s", (len(sql.STEPS),))
        owner = writer.execute("SELECT node, position FROM qmq_progress").fetchone()
        if owner is None:
            writer.execute("INSERT INTO qmq_progress (node, position) VALUES (%s, 0)", (node,))
            return 0
        if owner[0] != node:
            raise StorageError(f"the queue store {self._where} belongs to node {owner[0]}, not to {node}")
        return int(owner[1])

    # Writing

    apply = made_again(writes=True)(DatabaseQueueStore.apply)
    missing = made_again(writes=True)(DatabaseQueueStore.missing)
    repair = made_again(writes=True)(DatabaseQueueStore.repair)

    @contextmanager
    def _change(self) -> Iterator[_Connection]:
        writer = self._writer
        with self._medium(writer), writer.transaction():
            yield writer
        self._moved = self._moving

    def _insert(self, partitions: dict[PartitionKey, list[QueueRow]], added: dict[Origin, int]) -> None:
        if not partitions:
            return
        keys = [(key.queue, key.rank, key.delayed, self._number(key.origin, added)) for key in partitions]
        counts = [len(rows) for rows in partitions.values()]
        sizes = [sum([len(row.body) for row in rows]) for rows in partitions.values()]
        columns = [list(column) for column in zip(*keys, strict=True)]
        checksums = [partition_checksum(*key) for key in partitions]
        opened = self._writer.execute(sql.OPEN_PARTITIONS, (*columns, counts, sizes, checksums)).fetchall()
        ids = {(queue, rank, delayed, origin): partition for queue, rank, delayed, origin, partition in opened}
        try:
            with self._writer.transaction(), self._writer.cursor() as cursor, cursor.copy(sql.COPY) as copy:
                copy.set_types(sql.COPY_TYPES)
                for row in _flat(keys, ids, partitions):
                    copy.write_row(row)
        except errors.UniqueViolation:
            # Some are here already: after the disk lost journal that it had synced, peers send it again.
            with self._writer.cursor() as cursor:
                cursor.executemany(sql.INSERT, _flat(keys, ids, partitions))
            self._writer.execute(sql.RECOUNT, (list(ids.values()),))

    def _fail(self, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]) -> None:
        keys = list(attempts)
        failed = [
            (partition, sequence, count)
            for n, partition in self._partitions_of(keys, added)
            for sequence, count in attempts[keys[n]]
        ]
        if failed:
            self._writer.execute(sql.FAIL, [list(column) for column in zip(*failed, strict=True)])

    def _partitions_of(self, keys: Sequence[tuple[str, Origin]], added: dict[Origin, int]) -> list[tuple[int, int]]:
        """(Place in `keys`, lane) of the lanes that there are."""
        numbers = [(queue, self._known_number(origin, added)) for queue, origin in keys]
        known = [(n, queue, number) for n, (queue, number) in enumerate(numbers) if number is not None]
        if not known:
            return []
        columns = [list(column) for column in zip(*known, strict=True)]
        return [(n, partition) for n, partition in self._writer.execute(sql.PARTITIONS_OF, columns).fetchall()]

    def _delete(self, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        keys = list(settles)
        deleted: list[tuple[int, int, int]] = []
        single: list[tuple[int, int]] = []
        for n, partition in self._partitions_of(keys, added):
            long, remainder = runs(settles[keys[n]])
            for first, last in long:
                deleted += self._writer.execute(sql.DELETE_RUN, (partition, first, last)).fetchall()
            single += [(partition, sequence) for sequence in remainder]
        if single:
            deleted += self._writer.execute(
                sql.DELETE, [list(column) for column in zip(*single, strict=True)]
            ).fetchall()
        totals: dict[int, tuple[int, int]] = {}
        for partition, count, size in deleted:
            before = totals.get(partition, (0, 0))
            totals[partition] = (before[0] + count, before[1] + size)
        if totals:
            partitions = list(totals)
            counts = [count for count, _ in totals.values()]
            sizes = [size for _, size in totals.values()]
            self._writer.execute(sql.SUBTRACT, (partitions, counts, sizes))
            self._writer.execute(sql.CLOSE_PARTITIONS, (partitions,))

    def _delete_row(self, place: Place) -> None:
        self._writer.execute(sql.DELETE_ONE, place)

    def _recount(self, partition: int) -> None:
        self._writer.execute(sql.RECOUNT, ([partition],))
        self._writer.execute(sql.CLOSE_PARTITIONS, ([partition],))

    def _add_origin(self, origin: Origin) -> int:
        # It is there already when the answer to an earlier COMMIT was lost.
        found = self._writer.execute(
            "INSERT INTO qmq_origins (node, incarnation) VALUES (%s, %s)"
            " ON CONFLICT (node, incarnation) DO UPDATE SET node = excluded.node RETURNING id",
            origin_columns(origin),
        ).fetchone()
        assert found is not None
        return int(found[0])

    def _add_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None:
        if dots:
            numbers = [self._number(origin, added) for origin, _ in dots]
            checksums = [number_checksum(sequence, *origin) for origin, sequence in dots]
            self._writer.execute(sql.ADD_TOMBSTONES, (numbers, [signed(dot.sequence) for dot in dots], checksums))

    def _delete_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None:
        if dots:
            numbers = [self._number(origin, added) for origin, _ in dots]
            self._writer.execute(sql.DELETE_TOMBSTONES, (numbers, [signed(dot.sequence) for dot in dots]))

    def _remember(self, missing: MissingRange) -> None:
        self._writer.execute(sql.ADD_MISSING, missing_columns(missing))

    def _end_missing(self, missing: MissingRange) -> int:
        return self._writer.execute(sql.END_MISSING, missing_key(missing)).rowcount

    def _move(self, position: int) -> None:
        self._writer.execute(sql.MOVE, (position, number_checksum(position)))
        self._moving = position

    # Reading

    missing_ranges = made_again(writes=False)(DatabaseQueueStore.missing_ranges)
    unsettled = made_again(writes=False)(DatabaseQueueStore.unsettled)
    unsettled_rows = made_again(writes=False)(DatabaseQueueStore.unsettled_rows)

    @made_again(writes=False)
    def position(self) -> int:
        with self._snapshot() as reader:
            found = reader.execute("SELECT position, checksum FROM qmq_progress").fetchone()
            assert found is not None
            position, checksum = int(found[0]), int(found[1])
        if checksum != number_checksum(position):
            raise self._broken("its position")
        return position

    @made_again(writes=False)
    def nodes(self) -> list[str]:
        with self._snapshot() as reader:
            return [node for (node,) in reader.execute("SELECT DISTINCT node FROM qmq_origins ORDER BY 1").fetchall()]

    def give_back(self) -> bool:
        """The server's own vacuum sees to it."""
        return False

    @made_again(writes=False)
    def is_empty(self, node: str) -> bool:
        with self._snapshot() as reader:
            found = reader.execute(
                "SELECT 1 FROM qmq_origins JOIN qmq_lanes ON qmq_lanes.origin = qmq_origins.id WHERE node = %s LIMIT 1",
                (node,),
            )
            return found.fetchone() is None

    @made_again(writes=False)
    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        found: dict[str, QueueHead] = {}
        with self._snapshot() as reader:
            partitions = _partitions(reader, "WHERE queue = ANY(%s) AND node = %s", (list(set(queues)), node))
            for partition, _, _, _, queue, rank, delayed, messages, size in partitions:
                due_us = 0
                if delayed:
                    due = reader.execute(sql.NEXT_DUE, (partition, now_us)).fetchone()
                    due_us = due[0] or 0 if due is not None else 0
                known = found.get(queue, QueueHead(0, 0, (), 0))
                found[queue] = QueueHead(
                    known.messages + messages,
                    known.body_bytes + size,
                    tuple(sorted({*known.priorities, -rank}, reverse=True)),
                    min(known.next_due_us or due_us, due_us or known.next_due_us),
                )
        return {queue: found[queue] for queue in queues if queue in found}

    @made_again(writes=False)
    def page(self, node: str, queue: str, priority: int, after: Dot | None, now_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            first = 0
            if after is not None:
                known = reader.execute(
                    "SELECT id FROM qmq_origins WHERE node = %s AND incarnation = %s", origin_columns(after.origin)
                ).fetchone()
                if known is None:
                    return []
                first = known[0]
            found: dict[int, list[QueueRow]] = {}
            for partition, number, name, incarnation, _, _, delayed, _, _ in _partitions(
                reader,
                "WHERE queue = %s AND node = %s AND rank = %s AND origin >= %s ORDER BY origin",
                (queue, node, -priority, first),
            ):
                if number not in found and sum(map(len, found.values())) >= limit:
                    break
                of = PartitionRow(partition, queue, -priority, delayed, number, Origin(name, unsigned(incarnation)))
                beyond = signed(after.sequence) if after is not None and number == first else -(1 << 63)
                statement = sql.OVERDUE if delayed else sql.READY
                parameters = (partition, now_us, beyond) if delayed else (partition, beyond)
                found.setdefault(number, []).extend(self._sound(reader, of, statement, parameters, limit))
        for those in found.values():
            those.sort(key=by_sequence)
            rows += those[: limit - len(rows)]
        return rows

    @made_again(writes=False)
    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for partition, number, name, incarnation, _, rank, _, _, _ in _partitions(
                reader, "WHERE queue = %s AND delayed AND node = %s", (queue, node)
            ):
                of = PartitionRow(partition, queue, rank, True, number, Origin(name, unsigned(incarnation)))
                rows += self._sound(reader, of, sql.DUE, (partition, after_us, until_us), limit)
        rows.sort(key=by_due_time)
        return rows[:limit]

    @made_again(writes=False)
    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for (number,) in reader.execute("SELECT id FROM qmq_origins WHERE node = %s", (node,)).fetchall():
                sizes = reader.execute(sql.EXPIRED_SIZES, (number, until_us, limit)).fetchall()
                count = within((size for (size,) in sizes), bytes_max)
                partitions: dict[int, PartitionRow] = {}
                for raw in self._rows(reader, sql.EXPIRED, (number, until_us, count)):
                    partition = partitions.get(raw[0]) or partitions.setdefault(raw[0], self._partition(reader, raw[0]))
                    row = self._row(reader, partition, raw)
                    if row is not None:
                        rows.append(row)
                rows = expired_within(rows, limit, bytes_max)
        return rows

    def _partition(self, reader: _Connection, number: int) -> PartitionRow:
        found = reader.execute(sql.PARTITION, (number,)).fetchone()
        if found is None:
            raise self._broken(f"partition {number} is missing")
        partition, origin, node, incarnation, queue, rank, delayed, _, _, checksum = found
        return PartitionRow(partition, queue, rank, delayed, origin, Origin(node, unsigned(incarnation)), checksum)

    def _broken(self, what: str) -> Malformed:
        return Malformed(f"the queue store {self._where} is damaged: {what}; restore a backup of that database")

    def _one(self, connection: _Connection, place: Place) -> Raw | None:
        found = self._rows(connection, sql.ONE, place)
        return found[0] if found else None

    def _lost(self, connection: _Connection) -> list[MissingRange]:
        return [missing_of(*found) for found in connection.execute(sql.MISSING_RANGES).fetchall()]

    @made_again(writes=False)
    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        with self._snapshot() as reader:
            found = reader.execute(sql.LISTING, (after or "", node, limit)).fetchall()
            return [(queue, messages, size) for queue, messages, size in found]

    @made_again(writes=False)
    def tombstones(self) -> set[Dot]:
        with self._snapshot() as reader:
            found: set[Dot] = set()
            for node, incarnation, sequence, checksum in reader.execute(
                "SELECT node, incarnation, sequence, checksum FROM qmq_tombstones JOIN qmq_origins ON"
                " qmq_origins.id = origin"
            ).fetchall():
                dot = Dot(Origin(node, unsigned(incarnation)), unsigned(sequence))
                if checksum != number_checksum(dot.sequence, *dot.origin):
                    raise self._broken(f"the tombstone of {dot}")
                found.add(dot)
        return found

    @made_again(writes=False)
    def origins(self) -> list[Origin]:
        with self._snapshot() as reader:
            return sorted(Origin(node, unsigned(number)) for node, number in reader.execute(sql.ORIGINS).fetchall())

    def _rows(self, reader: _Connection, statement: str, parameters: tuple[int, ...]) -> list[Raw]:
        with reader.cursor(binary=True) as cursor:
            return cast(list[Raw], cursor.execute(statement, parameters).fetchall())

    def _unsettled(
        self, reader: _Connection, origin: Origin, after: int, through: int, limit: int
    ) -> list[UnsettledRow]:
        known = reader.execute(
            "SELECT id FROM qmq_origins WHERE node = %s AND incarnation = %s", origin_columns(origin)
        ).fetchone()
        if known is None:
            return []
        bounds = (known[0], min(after, SIGN - 1), min(through, SIGN - 1), limit)
        return cast(list[UnsettledRow], reader.execute(sql.UNSETTLED, bounds).fetchall())

    def close(self) -> None:
        """Let go of the server; what it has not committed is undone."""
        self._watch.close()
        with self._reading:
            for connection in self._open:
                connection.close()

    @contextmanager
    def _snapshot(self) -> Iterator[_Connection]:
        with self._reading:
            reader = self._reader
            with self._medium(reader), reader.transaction():
                yield reader

    @contextmanager
    def _medium(self, connection: _Connection) -> Iterator[None]:
        """Inside, whatever PostgreSQL cannot do comes out as LogBroken, and no room there as DiskFull.

        LostConnection, where it is the connection; it is closed then.
        """
        try:
            yield
        except errors.DiskFull as error:
            raise DiskFull(f"no room in the queue store {self._where}: {_one_line(error)}") from error
        except psycopg.Error as error:
            said = f"the queue store {self._where} failed: {_one_line(error)}"
            if connection.closed or (error.sqlstate or "").startswith(_LOST):
                connection.close()
                raise LostConnection(said) from error
            raise LogBroken(said) from error


def _flat(
    keys: list[tuple[str, int, bool, int]],
    ids: Mapping[tuple[str, int, bool, int], int],
    partitions: Mapping[PartitionKey, list[QueueRow]],
) -> Iterator[tuple[int, int, int, int, int, int, int, bytes, bytes, int, int]]:
    """The rows of `partitions`, in the order of the table's columns."""
    for key, (partition_key, rows) in zip(keys, partitions.items(), strict=True):
        partition, number, shared = ids[key], key[3], partition_checksum(*partition_key)
        for row in rows:
            (_, sequence), _, timestamp_us, flags, _, due_us, expires_us, headers, body, attempts = row
            yield (
                partition,
                signed(sequence),
                number,
                signed(timestamp_us),
                flags,
                due_us,
                expires_us,
                headers,
                body,
                attempts,
                checksum_of(shared, row),
            )


def _partitions(reader: _Connection, where: str, parameters: tuple[object, ...]) -> list[_PartitionColumns]:
    return cast(list[_PartitionColumns], reader.execute(f"{sql.LANES} {where}", parameters).fetchall())


def _shown(url: str) -> str:
    """Where `url` leads, without its password."""
    try:
        known = conninfo_to_dict(url)
    except psycopg.Error:
        return "postgresql"
    host = known.get("host") or known.get("hostaddr") or "localhost"
    return f"postgresql://{host}/{known.get('dbname') or ''}"


def _one_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
