"""Backups of a data directory whose node may be running: make, verify, restore.

A backup is a directory `REPOSITORY/NODE/TIME` with the files of a data directory, and `backup.json`: sizes and
checksums of all of them. Files that have not changed since the previous backup of the node are hard links to it.

The order of copying makes the copy consistent: the catalog, then the queue store, then fanout logs, and the journal
last. So what is copied later is at least as new as the position that the catalog names, as after a crash, and recovery
does the rest. A file that the node drops meanwhile begins the copy again. Surprising: no byte comes from the node
itself; it only has to keep its own rules (append only, and one transaction for each database).

A directory with a `backup.json` is never opened by a node: it would append to files that other backups share. `restore`
writes that file first and removes it last, so no node starts on half a directory either.
"""

import fcntl
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from qmq.errors import StorageError
from qmq.storage.catalog.catalog import CATALOG_FILE
from qmq.storage.catalog.facts import QUEUES_IN
from qmq.storage.disk.disk import BACKUP_FILE, LOCK_NAME, sync_directory
from qmq.storage.fanouts.log import FANOUT_DIRECTORY
from qmq.storage.log.quarantine import QUARANTINE_DIRECTORY
from qmq.storage.log.recovery import JOURNAL_DIRECTORY
from qmq.storage.queues.choice import QUEUES_FILE, SQLITE
from qmq.storage.verify import read_only, verify

FORMAT: Final = 1
TIME: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
"""The name of a backup; later ones sort behind."""

PIECE_BYTES: Final = 1 << 20
ATTEMPTS: Final = 10
"""A file is dropped by a checkpoint, a few times a minute at most, and each attempt links what the last one copied."""


class CopiedFile(NamedTuple):
    """One file of a backup. `mtime_ns` is that of the original: with the same time and size, it has not changed."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


class BackupManifest(NamedTuple):
    """What `backup.json` says."""

    node: str
    uuid: str
    time: str
    files: tuple[CopiedFile, ...]

    def encode(self) -> str:
        content = {"format": FORMAT, **self._asdict(), "files": [one._asdict() for one in self.files]}
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1)

    @classmethod
    def read(cls, backup: Path) -> Self:
        """Raises StorageError: there is none, it is damaged, or later software wrote it."""
        try:
            content = json.loads((backup / BACKUP_FILE).read_bytes())
            found = content.pop("checksum")
            if found != _checksum(content):
                raise StorageError(f"{backup / BACKUP_FILE} is damaged: its checksum does not fit")
            if content.pop("format") != FORMAT:
                raise StorageError(f"{backup} was made by later software")
            content["files"] = tuple(CopiedFile(**one) for one in content["files"])
            return cls(**content)
        except FileNotFoundError:
            raise StorageError(f"{backup} is no backup, or an incomplete one: it has no {BACKUP_FILE}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StorageError(f"{backup / BACKUP_FILE} is damaged") from None


class NewBackup(NamedTuple):
    """A new backup. `copied_bytes` of `total_bytes` were copied, the rest was there."""

    path: Path
    node: str
    files: int
    total_bytes: int
    copied_bytes: int


def back_up(data: Path, repository: Path, now: datetime) -> NewBackup:
    """Copy the data directory `data`, whose node may be running; durable on return. `now` (UTC) names the backup.

    An interrupted call leaves nothing that counts, and the next one removes it.

    Raises:
        StorageError: `data` cannot be backed up, or another process makes a backup of the same node.
        OSError: a file cannot be read or written.
    """
    if not (data / CATALOG_FILE).exists():
        raise StorageError(f"{data} is not the data directory of a node: it has no catalog")
    if repository.resolve().is_relative_to(data.resolve()):
        raise StorageError(f"{repository} lies in the data directory itself")
    node, uuid = _identity(data)
    home = repository / node
    home.mkdir(0o700, parents=True, exist_ok=True)
    with _locked(home):
        for leftover in home.glob("*.tmp"):
            shutil.rmtree(leftover)
        known: dict[str, tuple[CopiedFile, Path]] = {}
        if earlier := _times(home):
            # A damaged list is reported by `verify_backup`; here it only means that everything is copied.
            with suppress(StorageError):
                known = {one.path: (one, earlier[-1] / one.path) for one in BackupManifest.read(earlier[-1]).files}
        unchanged = {one for one, _ in known.values()}
        time = now.strftime("%Y%m%dT%H%M%S.%fZ")
        if earlier and time <= earlier[-1].name:
            raise StorageError(f"the clock is behind the last backup, {earlier[-1]}")
        for attempt in range(ATTEMPTS):
            building = home / f"{time}.{attempt}.tmp"
            try:
                files = _copy_directory(data, building, known)
                break
            except FileNotFoundError:
                continue  # A checkpoint has dropped the file, and the catalog that was copied still names it.
        else:
            raise StorageError(f"{data} changes too quickly: {ATTEMPTS} times a file was gone before it was copied")
        with (building / BACKUP_FILE).open("x") as file:
            file.write(BackupManifest(node, uuid, time, tuple(files)).encode())
            file.flush()
            os.fsync(file.fileno())
        _sync_directories(building)
        building.rename(home / time)
        sync_directory(home)
        for leftover in home.glob("*.tmp"):
            shutil.rmtree(leftover)
    copied = sum(one.size for one in files if one not in unchanged)
    return NewBackup(home / time, node, len(files), sum(one.size for one in files), copied)


def backups(place: Path) -> list[Path]:
    """All backups at `place`: a repository, the folder of a node in it, or one backup. Sorted by node and time."""
    if (place / BACKUP_FILE).exists():
        return [place]
    return _times(place) or [one for home in sorted(place.iterdir()) if home.is_dir() for one in _times(home)]


def verify_backup(backup: Path) -> list[str]:
    """What is wrong with it; nothing, if it can be restored. Reads all of it."""
    try:
        files = BackupManifest.read(backup).files
    except StorageError as error:
        return [str(error)]
    listed = {one.path for one in files}
    wrong = [f"{path} is not of this backup" for path in sorted(_names(backup) - listed)]
    for one in files:
        try:
            if _copy(backup / one.path, None) != (one.size, one.sha256):
                wrong.append(f"{one.path} is damaged: its size or its checksum does not fit")
        except OSError as error:
            wrong.append(f"{one.path} cannot be read: {error.strerror}")
    if wrong:
        return wrong
    # The checksums say that the files are what was copied; now whether that was sound.
    report = verify(backup)
    segments = [f"{one.path} was damaged before it was copied" for one in report.segments if one.damaged]
    databases = [f"{one.path} was damaged before it was copied" for one in report.databases if one.damaged]
    return [*segments, *databases, *report.inconsistent]


def restore(backup: Path, data: Path, node: str | None = None) -> BackupManifest:
    """Copy the backup to the directory `data`, which is missing or empty; durable on return.

    Raises StorageError: it is damaged, `data` has files, or the backup is not one of `node`. OSError.
    """
    manifest = BackupManifest.read(backup)
    if node is not None and node != manifest.node:
        raise StorageError(f"{backup} is a backup of the node {manifest.node}, not of {node}")
    if data.exists() and any(data.iterdir()):
        raise StorageError(f"{data} is not empty: a backup is only restored to an empty directory")
    data.mkdir(0o700, parents=True, exist_ok=True)
    shutil.copyfile(backup / BACKUP_FILE, data / BACKUP_FILE)
    sync_directory(data)
    for one in manifest.files:
        try:
            found = _copy(backup / one.path, data / one.path)
        except FileNotFoundError:
            raise StorageError(f"{backup / one.path} is missing; {data} is incomplete: remove it") from None
        if found != (one.size, one.sha256):
            raise StorageError(f"{backup / one.path} is damaged; {data} is incomplete: remove it")
    _sync_directories(data)
    (data / BACKUP_FILE).unlink()
    sync_directory(data)
    return manifest


def _copy_directory(data: Path, into: Path, known: dict[str, tuple[CopiedFile, Path]]) -> list[CopiedFile]:
    """Adds what it has copied to `known`. Raises FileNotFoundError: a file was dropped meanwhile."""
    names = _names(data)
    into.mkdir(0o700)
    with _start_prevented(data):
        made = [_copy_database(data / name, into / name) for name in (CATALOG_FILE, QUEUES_FILE)]
    # What the catalog names was there a moment ago: a file that is gone now would be missed at the first start.
    for path in sorted(names | _names(data)):
        if path in (CATALOG_FILE, QUEUES_FILE):
            continue
        state = (data / path).stat()
        last, place = known.get(path, (None, into))
        if last is not None and (last.size, last.mtime_ns) == (state.st_size, state.st_mtime_ns):
            (into / path).parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                os.link(place, into / path)
            except OSError:  # The file system has no links, or the earlier backup has lost the file.
                last = None
        else:
            last = None
        if last is None:
            size, digest = _copy(data / path, into / path)
            last = CopiedFile(path, size, state.st_mtime_ns, digest)
            known[path] = (last, into / path)
        made.append(last)
    return made


def _names(directory: Path) -> set[str]:
    """The files of a data directory that a backup has. All others belong to the running process, or to nothing."""
    kept = {name for name in (CATALOG_FILE, QUEUES_FILE, f"{QUEUES_FILE}.damaged") if (directory / name).exists()}
    for folder in (FANOUT_DIRECTORY, JOURNAL_DIRECTORY, QUARANTINE_DIRECTORY):
        found = (directory / folder).rglob("*")
        kept |= {str(one.relative_to(directory)) for one in found if one.suffix != ".tmp" and one.is_file()}
    return kept


def _copy_database(database: Path, into: Path) -> CopiedFile:
    """One state of it, by SQLite's online backup: writers go on meanwhile."""
    into.touch(0o600)
    try:
        with closing(read_only(database)) as reader, closing(sqlite3.connect(into)) as writer:
            reader.backup(writer)
    except sqlite3.Error as error:
        raise StorageError(f"{database} cannot be copied: {error}") from error
    size, digest = _copy(into, None)
    return CopiedFile(database.name, size, 0, digest)


def _copy(file: Path, into: Path | None) -> tuple[int, str]:
    """Copy what `file` has now, durably; or only read it. Returns size and checksum."""
    digest = sha256()
    with file.open("rb") as reader:
        size = left = os.fstat(reader.fileno()).st_size
        if into is not None:
            into.parent.mkdir(0o700, parents=True, exist_ok=True)
        with open(os.devnull if into is None else into, "wb") as writer:
            while piece := reader.read(min(left, PIECE_BYTES)):
                digest.update(piece)
                writer.write(piece)
                left -= len(piece)
            writer.flush()
            if into is not None:
                os.fchmod(writer.fileno(), 0o600)
                os.fsync(writer.fileno())
    return size - left, digest.hexdigest()


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
            if not all((data / f"{name}-wal").exists() for name in (CATALOG_FILE, QUEUES_FILE)):
                raise StorageError(f"the node of {data} starts or stops now: try again") from None
        yield


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with (home / LOCK_NAME).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"another process makes a backup in {home}") from None
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


def _times(home: Path) -> list[Path]:
    return sorted(one for one in home.iterdir() if TIME.fullmatch(one.name))


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_directories(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        sync_directory(Path(folder))
