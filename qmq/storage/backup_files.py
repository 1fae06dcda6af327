"""The files that a backup is made of, as the node of a data directory or a process beside it reads them.

The order of copying makes the copy consistent: the catalog, then the queue store, then fanout logs, and the journal
last. So what is copied later is at least as new as the position that the catalog names, as after a crash, and recovery
does the rest.

A node cannot wait until another machine has read all of it, so it makes an outgoing backup first (`set_out`): copies of
the two databases, and hard links to the logs, of which only what was there at that moment is read (`read_piece`).
"""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from qmq.errors import StorageError
from qmq.storage.catalog.catalog import CATALOG_FILE
from qmq.storage.catalog.facts import QUEUES_IN
from qmq.storage.disk.disk import LOCK_NAME
from qmq.storage.fanouts.log import FANOUT_DIRECTORY
from qmq.storage.log.quarantine import QUARANTINE_DIRECTORY
from qmq.storage.log.recovery import JOURNAL_DIRECTORY
from qmq.storage.queues.choice import QUEUES_FILE, SQLITE
from qmq.storage.verify import read_only

DATABASES: Final = (CATALOG_FILE, QUEUES_FILE)
LOGS: Final = (FANOUT_DIRECTORY, JOURNAL_DIRECTORY, QUARANTINE_DIRECTORY)
OUTGOING: Final = "outgoing-backup"
"""The folder of a data directory with the backup that another machine reads. Each start removes it."""

PIECE_BYTES: Final = 1 << 20
OUTGOING_PIECE_BYTES: Final = 512 << 10
"""In base64, one fits into the body of a message of a client with usual bounds."""

ATTEMPTS: Final = 10
"""A file is dropped by a checkpoint, a few times a minute at most, and each attempt links what the last one copied."""


class CopiedFile(NamedTuple):
    """One file of a backup. `mtime_ns` is that of the original: with the same time and size, it has not changed."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


class ListedFile(NamedTuple):
    """One file of a node."""

    path: str
    size: int
    mtime_ns: int


class NodeFiles(Protocol):
    """What a backup is copied from. An OSError, StorageError or FileNotFoundError of any call leaves the copy useless;
    after a FileNotFoundError, which a checkpoint causes, the caller begins again.
    """

    @property
    def node(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    def copy_databases(self, into: Path) -> list[CopiedFile]:
        """Copy them; this is the first step."""

    def logs(self) -> Iterator[ListedFile]:
        """The other files, in their order; each is copied before the next one is taken."""

    def copy(self, path: str, into: Path) -> tuple[int, str]:
        """Copy one of these to the file `into`; durable on return. Returns size and checksum."""


class LocalFiles:
    """Those of the data directory `data`, whose node may be running. Raises StorageError: it cannot be backed up."""

    def __init__(self, data: Path) -> None:
        if not (data / CATALOG_FILE).exists():
            raise StorageError(f"{data} is not the data directory of a node: it has no catalog")
        self.data = data
        self.node, self.uuid = _identity(data)
        self._before: set[str] = set()

    def copy_databases(self, into: Path) -> list[CopiedFile]:
        """See `NodeFiles`. No node starts meanwhile."""
        self._before = names_in(self.data)
        with _start_prevented(self.data):
            return [_copy_database(self.data / name, into / name) for name in DATABASES]

    def logs(self) -> Iterator[ListedFile]:
        """See `NodeFiles`."""
        # What the catalog names was there a moment ago: a file that is gone now would be missed at the first start.
        for path in sorted((self._before | names_in(self.data)) - set(DATABASES)):
            state = (self.data / path).stat()
            yield ListedFile(path, state.st_size, state.st_mtime_ns)

    def copy(self, path: str, into: Path) -> tuple[int, str]:
        """See `NodeFiles`."""
        return copy_file(self.data / path, into)


def set_out(data: Path, free_bytes_min: int) -> list[ListedFile]:
    """Make the outgoing backup of a node, called by the node itself; any earlier one is removed.

    Raises StorageError: there is none of this node, or less than `free_bytes_min` of its disk would be free. OSError.
    """
    files, place = LocalFiles(data), data / OUTGOING
    needed = sum((data / name).stat().st_size for name in DATABASES)
    if shutil.disk_usage(data).free < needed + free_bytes_min:
        raise StorageError(f"copies of the databases need {needed} bytes, for which the disk of the node has no room")
    for _ in range(ATTEMPTS):
        withdraw(data)
        place.mkdir(0o700)
        try:
            made = [ListedFile(one.path, one.size, 0) for one in files.copy_databases(place)]
            for one in files.logs():
                (place / one.path).parent.mkdir(0o700, parents=True, exist_ok=True)
                os.link(data / one.path, place / one.path)
                made.append(one)
            return made
        except FileNotFoundError:
            continue  # A checkpoint has dropped the file.
        except BaseException:
            withdraw(data)
            raise
    withdraw(data)
    raise changes_too_quickly(data)


def read_piece(data: Path, file: ListedFile, offset: int) -> bytes:
    """The next bytes of a file of it, at most OUTGOING_PIECE_BYTES; none at its end. Raises OSError."""
    with (data / OUTGOING / file.path).open("rb") as reader:
        reader.seek(offset)
        return reader.read(min(OUTGOING_PIECE_BYTES, max(file.size - offset, 0)))


def withdraw(data: Path) -> None:
    """Remove the outgoing backup, if there is one."""
    shutil.rmtree(data / OUTGOING, ignore_errors=True)


def changes_too_quickly(data: Path | str) -> StorageError:
    return StorageError(f"{data} changes too quickly: {ATTEMPTS} times a file was gone before it was copied")


def names_in(directory: Path) -> set[str]:
    """The files of a data directory that a backup has. All others belong to the running process, or to nothing."""
    kept = {name for name in (*DATABASES, f"{QUEUES_FILE}.damaged") if (directory / name).exists()}
    for folder in LOGS:
        found = (directory / folder).rglob("*")
        kept |= {str(one.relative_to(directory)) for one in found if one.suffix != ".tmp" and one.is_file()}
    return kept


def copy_file(file: Path, into: Path | None) -> tuple[int, str]:
    """Copy what `file` has now, durably; or only read it. Returns size and checksum."""
    with file.open("rb") as reader:
        size = left = os.fstat(reader.fileno()).st_size

        def pieces() -> Iterator[bytes]:
            nonlocal left
            while piece := reader.read(min(left, PIECE_BYTES)):
                left -= len(piece)
                yield piece

        digest = write_pieces(pieces(), into)
    return size - left, digest


def write_pieces(pieces: Iterator[bytes], into: Path | None) -> str:
    """Write them to the file `into`, durably, or only read them. Returns the checksum."""
    digest = sha256()
    if into is not None:
        into.parent.mkdir(0o700, parents=True, exist_ok=True)
    with open(os.devnull if into is None else into, "wb") as writer:
        for piece in pieces:
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        if into is not None:
            os.fchmod(writer.fileno(), 0o600)
            os.fsync(writer.fileno())
    return digest.hexdigest()


def _copy_database(database: Path, into: Path) -> CopiedFile:
    """One state of it, by SQLite's online backup: writers go on meanwhile."""
    into.touch(0o600)
    try:
        with closing(read_only(database)) as reader, closing(sqlite3.connect(into)) as writer:
            reader.backup(writer)
    except sqlite3.Error as error:
        raise StorageError(f"{database} cannot be copied: {error}") from error
    size, digest = copy_file(into, None)
    return CopiedFile(database.name, size, 0, digest)


@contextmanager
def _start_prevented(data: Path) -> Iterator[None]:
    """No node starts inside the block: a database without a log beside it would be read as one that cannot change."""
    if not (data / LOCK_NAME).exists():
        yield  # No node has started on this copy.
        return
    with (data / LOCK_NAME).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # The node runs, and then there are logs.
            if not all((data / f"{name}-wal").exists() for name in DATABASES):
                raise StorageError(f"the node of {data} starts or stops now: try again") from None
        yield


def _identity(data: Path) -> tuple[str, str]:
    try:
        with closing(read_only(data / CATALOG_FILE)) as reader:
            identity = reader.execute("SELECT node, uuid FROM identity").fetchone()
            kept_in = reader.execute("SELECT value FROM facts WHERE name = ?", [QUEUES_IN]).fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{data / CATALOG_FILE} cannot be read: {error}") from error
    if identity is None:
        raise StorageError(f"{data} has never been used by a node")
    if kept_in is not None and kept_in[0] != SQLITE:
        raise StorageError(
            f"the queues of {data} are in PostgreSQL: stop the node, then copy its directory and dump its database"
        )
    return str(identity[0]), str(identity[1])
