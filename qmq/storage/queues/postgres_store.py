"""The queue store on PostgreSQL, for operators that run such a database anyway.

It has the same partitions, rows and promises as `sqlite_store` (see `database`). The tables are `qmq_…` in the first
schema of the connection's search_path, so every node needs a database or schema of its own. An advisory lock keeps out
a second node. Needs the extra `postgres` (psycopg).

Surprising: joins that read a whole table are switched off for these connections. Each statement touches few of many
rows by their key. The planner does not always see that, because its statistics may be from when the queue was short.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, cast

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict

from qmq.errors import DirectoryInUse, DiskFull, FutureVersion, LogBroken, Malformed, StorageError
from qmq.model.dots import Origin
from qmq.storage.queues import postgres_sql as sql
from qmq.storage.queues.database import DatabaseQueueStore, Value
from qmq.storage.queues.plan import origin_columns, unsigned
from qmq.storage.queues.postgres_watch import LostConnection, Watch, made_again, shut
from qmq.storage.queues.rows import Raw
from qmq.storage.queues.run_reads import Place
from qmq.storage.queues.stored_run import RawRun

CONNECT_SECONDS: Final = 10
"""How long a start waits for the server."""
LOCK_SECONDS: Final = 5
"""How long it waits for the lock: the server takes a moment to notice that the previous process was killed."""
_LOCK_KEY: Final = 0x716D71
_KEEPALIVE: Final = (30, 10, 3)
"""Seconds of silence, seconds between probes, probes: how soon each side notices that the other's host has failed.
Until then the server keeps the lock of a node on that host."""
_OPTIONS: Final = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c tcp_keepalives_idle={} -c tcp_keepalives_interval={} -c tcp_keepalives_count={}"
).format(*_KEEPALIVE)

_LOST: Final = ("08", "57P")
"""SQL states: the connection is at fault, or an administrator has ended it."""

_NO_TIMEOUTS: Final = (("idle_in_transaction_session_timeout", 0), ("idle_session_timeout", 140000))
"""Settings, and the server version that introduced each."""

_Head = tuple[str, int, int, bool, int, int]
_Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresQueueStore(DatabaseQueueStore[_Connection]):
    """See `interfaces.QueueStore`."""

    kind = "postgresql"
    statements = sql

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
        self._moved = 0
        self._watch = Watch(seconds_max, self._cut)
        try:
            self._writer = self._open_writer()
            self._reader = self._open_reader()
            with self._at_start():
                rows = self._writer.execute(sql.ALL_ORIGINS).fetchall()
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
            # Limits for idle clients are not meant for these connections.
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
        """Lock out other processes, and create or migrate the tables. Return the position."""
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

    @contextmanager
    def _change(self) -> Iterator[_Connection]:
        writer = self._writer
        with self._medium(writer), writer.transaction():
            yield writer
        self._moved = self._moving

    def _open_partitions(self, partitions: list[tuple[Value, ...]]) -> list[tuple[int, int]]:
        opened = self._ask_rows(sql.OPEN_PARTITIONS, partitions)
        found = {tuple(key): (partition, messages) for *key, partition, messages in opened}
        return [found[partition[:4]] for partition in partitions]

    def _add_rows(self, flat: Sequence[Value]) -> bool:
        width = len(sql.COPY_TYPES)
        rows = [flat[at : at + width] for at in range(0, len(flat), width)]
        try:
            with self._writer.transaction(), self._writer.cursor() as cursor, cursor.copy(sql.COPY) as copy:
                copy.set_types(sql.COPY_TYPES)
                for row in rows:
                    copy.write_row(row)
        except errors.UniqueViolation:
            with self._writer.cursor() as cursor:
                cursor.executemany(sql.INSERT, rows)
            return False
        return True

    def _run_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> None:
        if rows:
            self._writer.execute(statement, [list(column) for column in zip(*rows, strict=True)])

    def _ask_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> list[tuple[Any, ...]]:
        if not rows:
            return []
        columns = [list(column) for column in zip(*rows, strict=True)]
        return self._writer.execute(statement, columns).fetchall()

    def _delete_run(self, partition: int, first: int, last: int) -> list[tuple[Any, ...]]:
        return self._writer.execute(sql.DELETE_RUN, (partition, first, last)).fetchall()

    def _delete_rows(self, places: Sequence[Place]) -> list[tuple[Any, ...]]:
        return self._ask_rows(sql.DELETE, places)

    def _add_origin(self, origin: Origin) -> int:
        # It exists already when the response to an earlier COMMIT was lost.
        found = self._writer.execute(
            "INSERT INTO qmq_origins (node, incarnation) VALUES (%s, %s)"
            " ON CONFLICT (node, incarnation) DO UPDATE SET node = excluded.node RETURNING id",
            origin_columns(origin),
        ).fetchone()
        assert found is not None
        return int(found[0])

    # Reading

    def give_back(self) -> bool:
        """The server vacuums by itself."""
        return False

    def _head_rows(
        self, reader: _Connection, node: str, queues: Sequence[str]
    ) -> list[tuple[str, int, int, bool, int, int]]:
        return cast(list[_Head], reader.execute(sql.HEADS, (list(set(queues)), node)).fetchall())

    def _sizes(self, reader: _Connection, statement: str, parameters: tuple[int, ...]) -> list[int]:
        return [size for (size,) in reader.execute(sql.SIZES.format(statement), parameters).fetchall()]

    def _broken(self, what: str) -> Malformed:
        return Malformed(f"the queue store {self._where} is damaged: {what}; restore a backup of that database")

    def _one(self, connection: _Connection, place: Place) -> Raw | None:
        found = self._rows(connection, sql.ONE, place)
        return found[0] if found else None

    def _rows(
        self, reader: _Connection, statement: str, parameters: tuple[int, ...], size: int | None = None
    ) -> list[Raw]:
        with reader.cursor(binary=True) as cursor:
            return cast(list[Raw], cursor.execute(statement, parameters).fetchall())

    def _raw_runs(self, connection: _Connection, statement: str, parameters: tuple[int, ...]) -> list[RawRun]:
        with connection.cursor(binary=True) as cursor:
            return cursor.execute(statement, parameters).fetchall()

    def close(self) -> None:
        """Close the connections; uncommitted changes are undone."""
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
        """Inside, a failure of PostgreSQL raises LogBroken, and a full disk there DiskFull.

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


for _name in ("apply", "missing", "repair"):
    setattr(PostgresQueueStore, _name, made_again(getattr(PostgresQueueStore, _name), writes=True))
for _name in (
    "position", "tombstones", "missing_ranges", "origins", "unsettled", "is_empty", "listing", "deepest", "total",
    "heads", "page", "skip", "due", "expired",
):  # fmt: skip
    setattr(PostgresQueueStore, _name, made_again(getattr(PostgresQueueStore, _name), writes=False))


def _shown(url: str) -> str:
    """The server and database of `url`, without its password."""
    try:
        known = conninfo_to_dict(url)
    except psycopg.Error:
        return "postgresql"
    host = known.get("host") or known.get("hostaddr") or "localhost"
    return f"postgresql://{host}/{known.get('dbname') or ''}"


def _one_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
