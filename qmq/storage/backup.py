"""Backups of a data directory whose node may be running: make, verify, restore.

A backup is a directory `REPOSITORY/NODE/TIME` with the files of a data directory, and `backup.json`: sizes and
checksums of all of them. Files that have not changed since the previous backup of the node are hard links to it.

What is copied, and in which order, is in `backup_files`. A file that the node drops meanwhile begins the copy again.

A directory with a `backup.json` is never opened by a node: it would append to files that other backups share. `restore`
writes that file first and removes it last, so no node starts on half a directory either.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from qmq.errors import StorageError
from qmq.storage.backup_files import (
    ATTEMPTS,
    CopiedFile,
    LocalFiles,
    NodeFiles,
    changes_too_quickly,
    copy_file,
    names_in,
)
from qmq.storage.disk.disk import BACKUP_FILE, LOCK_NAME, sync_directory
from qmq.storage.verify import verify

FORMAT: Final = 1
TIME: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
"""The name of a backup; later ones sort behind."""


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
    """A new backup. `copied_bytes` of `total_bytes` were copied, the rest was there; `removed` are older backups."""

    path: Path
    node: str
    files: int
    total_bytes: int
    copied_bytes: int
    removed: int


def back_up(source: NodeFiles, repository: Path, now: datetime, keep: int | None = None) -> NewBackup:
    """Copy the files of a node, which may be running; durable on return. `now` (UTC) names the backup.

    Then only the last `keep` backups of the node are left. An interrupted call leaves nothing that counts, and the next
    one removes it.

    Raises:
        StorageError: the files cannot be backed up, or another process makes a backup of the same node.
        OSError: a file cannot be read or written.
    """
    if isinstance(source, LocalFiles) and repository.resolve().is_relative_to(source.data.resolve()):
        raise StorageError(f"{repository} lies in the data directory itself")
    home = repository / source.node
    home.mkdir(0o700, parents=True, exist_ok=True)
    with _locked(home):
        _remove_leftovers(home)
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
                files = _copy_files(source, building, known)
                break
            except FileNotFoundError:
                continue  # A checkpoint has dropped the file, and the catalog that was copied still names it.
        else:
            raise changes_too_quickly(f"the node {source.node}")
        with (building / BACKUP_FILE).open("x") as file:
            file.write(BackupManifest(source.node, source.uuid, time, tuple(files)).encode())
            file.flush()
            os.fsync(file.fileno())
        _sync_directories(building)
        building.rename(home / time)
        sync_directory(home)
        outdated = _times(home)[:-keep] if keep else []
        for old in outdated:
            old.rename(old.with_suffix(".tmp"))  # Half a backup is none.
        _remove_leftovers(home)
    copied = sum(one.size for one in files if one not in unchanged)
    return NewBackup(home / time, source.node, len(files), sum(one.size for one in files), copied, len(outdated))


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
    wrong = [f"{path} is not of this backup" for path in sorted(names_in(backup) - listed)]
    for one in files:
        try:
            if copy_file(backup / one.path, None) != (one.size, one.sha256):
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
            found = copy_file(backup / one.path, data / one.path)
        except FileNotFoundError:
            raise StorageError(f"{backup / one.path} is missing; {data} is incomplete: remove it") from None
        if found != (one.size, one.sha256):
            raise StorageError(f"{backup / one.path} is damaged; {data} is incomplete: remove it")
    _sync_directories(data)
    (data / BACKUP_FILE).unlink()
    sync_directory(data)
    return manifest


def _copy_files(source: NodeFiles, into: Path, known: dict[str, tuple[CopiedFile, Path]]) -> list[CopiedFile]:
    """Adds what it has copied to `known`. Raises FileNotFoundError: a file was dropped meanwhile."""
    into.mkdir(0o700)
    made = source.copy_databases(into)
    for path, size, mtime_ns in source.logs():
        last, place = known.get(path, (None, into))
        if last is not None and (last.size, last.mtime_ns) == (size, mtime_ns):
            (into / path).parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                os.link(place, into / path)
            except OSError:  # The file system has no links, or the earlier backup has lost the file.
                last = None
        else:
            last = None
        if last is None:
            size, digest = source.copy(path, into / path)
            last = CopiedFile(path, size, mtime_ns, digest)
            known[path] = (last, into / path)
        made.append(last)
    return made


def _remove_leftovers(home: Path) -> None:
    """What an interrupted call has left, and backups that are not kept."""
    for leftover in home.glob("*.tmp"):
        shutil.rmtree(leftover)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with (home / LOCK_NAME).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"another process makes a backup in {home}") from None
        yield


def _times(home: Path) -> list[Path]:
    return sorted(one for one in home.iterdir() if TIME.fullmatch(one.name))


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_directories(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        sync_directory(Path(folder))
