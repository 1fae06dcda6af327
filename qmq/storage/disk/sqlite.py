"""How this package opens an SQLite file: durable commits, readers beside the writer, any thread but one at a time.

Shared by `catalog` and `queue_store`. `synchronous=FULL` with a write-ahead log means that a commit that returned
survives a power cut. Surprising: errors of the medium come out as LogBroken, because the node must treat a catalog
that fails to commit exactly like a log that fails to sync. Only where there is no room nothing has happened: DiskFull.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from qmq.errors import DiskFull, FutureVersion, LogBroken
from qmq.model.dots import Vector, parse_origin
from qmq.storage.disk.sqlite_import import Database, Migrations

PAGE_BYTES: Final = 8192
CACHE_KIB: Final = 4096
"""Per connection. What is not in it comes from the system's page cache, which costs a copy."""


def open_database(path: Path | None, *, first: str = "") -> Database:
    """One connection for the life of the node; `first` is said before a new file has a page. Raises LogBroken.

    Without a `path` the database is in memory, and ends with the connection.
    """
    with medium():
        # SQLite would let every user read it; the files beside it get the rights of this one. Only where there is none:
        # to close a file that is open elsewhere in this process would end SQLite's locks on it (fcntl(2)).
        if path is not None:
            with suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
        connection = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        with closed_by_an_error(connection):
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            if first:
                connection.execute(first)
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA secure_delete=1")  # the default of some builds only: a free page has no message
            _keep_temporaries_in_memory(connection)
        # To find plugins, it would read the metadata of all installed packages.
        return Database(connection, strict=True, execute_plugins=False)


def open_migrated(path: Path | None, migrations: Migrations, known: frozenset[str], *, first: str = "") -> Database:
    """`open_database`, brought to the version of this software, which is that of the migrations it has.

    Raises:
        FutureVersion: the file has seen a migration that is not `known` here; nothing was changed.
        LogBroken: the medium failed.
    """
    database = open_database(path, first=first)
    with medium(), closed_by_an_error(database.conn):
        later = sorted({migration.name for migration in migrations.applied(database)} - known)
        if later:
            for name in later:
                if any(_is_bent(name.encode(), other.encode()) for other in known):
                    raise sqlite3.DatabaseError(f"the name of the migration {name} is damaged")
            raise FutureVersion(f"{path and path.name} knows {later}, this software does not")
        migrations.apply(database)
    return database


def _is_bent(name: bytes, known: bytes) -> bool:
    """Whether a flipped bit is the only difference, in the text or in its length."""
    if len(name) != len(known):
        return name.startswith(known) or known.startswith(name)
    return sum((one ^ other).bit_count() for one, other in zip(name, known, strict=True)) == 1


def open_reader(path: Path) -> sqlite3.Connection:
    """A second connection, for reading beside the one that writes. Raises LogBroken."""
    with medium():
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with closed_by_an_error(connection):
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            connection.execute("PRAGMA query_only=1")
            _keep_temporaries_in_memory(connection)
        return connection


@contextmanager
def closed_by_an_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Whatever is raised inside closes the connection, which no caller has yet."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _keep_temporaries_in_memory(connection: sqlite3.Connection) -> None:
    """A file for what a statement sorts or may have to take back needs a descriptor, and there may be none left."""
    connection.execute("PRAGMA temp_store=MEMORY")


_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""No room for the file or its write-ahead log; none for the index of that."""


@contextmanager
def medium() -> Iterator[None]:
    """Inside, whatever SQLite cannot do comes out as LogBroken, and no room as DiskFull: the transaction is undone."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) in _FULL:
            raise DiskFull(f"no room for the databases: {error}") from error
        raise LogBroken(f"SQLite failed: {error}") from error
    except (sqlite3.Error, OSError, UnicodeError) as error:
        # UnicodeError: what should be text in the file is none.
        raise LogBroken(f"SQLite failed: {error}") from error


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


def vector_to_json(vector: Vector) -> dict[str, int]:
    """For a column that an operator can read."""
    return {str(origin): last for origin, last in vector.items()}


def vector_from_json(found: dict[str, int]) -> Vector:
    return {parse_origin(text): last for text, last in found.items()}
