"""Real files: the `Disk` of a node that keeps what it promised.

The only module of storage that touches the operating system, but for `backup`, which no node runs. It leaves formats,
order of writes and recovery to others. Surprising: a new or renamed file is only safe once its directory was synced
too, and that is the caller's step; and a failed fsync is never retried, because the kernel may have marked the lost
pages clean.

A part of the room that the operator reserves is held by a file without content, which `Journal.append` gives up piece
by piece when others have taken everything else.

A process that runs out of file descriptors must not lose its journal over it: some are kept open in reserve while the
directory is locked, and given up one by one when a file cannot be opened for want of them. Without any left, the call
waits, as for a disk that hangs.
"""

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from qmq.errors import DirectoryInUse, StorageError
from qmq.storage.format.interfaces import NO_DESCRIPTOR, File

SPARE_DESCRIPTORS: Final = 8
"""A segment keeps its file open as long as it is read: so many new ones, or checkpoints, a shortage is outlived."""

SPARE_FOR_MOMENTS: Final = 2
"""Of these, for what is closed at once, such as a directory that is synced: files that stay open do not get them."""

SHORTAGE_PAUSES: Final = 600
SHORTAGE_PAUSE_SECONDS: Final = 0.05
"""Between two attempts to open a file while there is no descriptor: 30 s in all."""

SYNC_THREADS: Final = 8
"""For files that are synced together. More of them are no quicker."""

RESERVE_STEP_BYTES: Final = 1 << 20
"""Given up at a time, at least: others may be quicker to take a part of it."""

LOCK_NAME: Final = "lock"
BACKUP_FILE: Final = "backup.json"
"""What makes a directory a backup (`qmq.storage.backup`): its files may be shared with other backups."""

_RESERVE_NAME = "reserve"

T = TypeVar("T")


class DiskFile:
    """One append-only file, opened with O_APPEND. See `interfaces.File`."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        view = memoryview(data)
        while written < len(data):
            written += os.write(self._descriptor, view[written:])

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            # Linux returns at most 2 GiB and may stop at a signal; an empty answer is the end of the file.
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        # A dropped segment is closed when its last reader lets go of it; only then the disk gets its space back.
        self.close()


class RealDisk:
    """A directory of the file system. See `interfaces.Disk`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reserved_bytes = 0
        self._lock = -1
        self._spare: list[int] = []
        self._reserving = threading.Lock()

    def lock(self) -> None:
        if (self.root / BACKUP_FILE).exists():
            raise StorageError(f"{self.root} is a backup, or an incomplete restore of one: use qmq restore")
        self._make(self.root)
        descriptor = os.open(self.root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise DirectoryInUse(f"another process has {self.root} open") from error
        self._lock = descriptor
        self._save_descriptors()
        with suppress(FileNotFoundError):
            state = os.stat(self.root / _RESERVE_NAME)
            # A copy of the directory may have a file that holds nothing.
            self.reserved_bytes = min(state.st_size, state.st_blocks * 512)

    def _save_descriptors(self) -> None:
        """Have all that are kept in reserve, as far as the system gives them."""
        try:
            while self._lock >= 0 and len(self._spare) < SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise

    def _open(self, call: Callable[[], T], left: int = 0) -> T:
        """Do what needs a descriptor, with one of the reserve if there is no other, or when one is free.

        `left` of the reserve are not for this call.

        Raises the system's OSError when none has been free in all that time.
        """
        pauses = SHORTAGE_PAUSES
        while True:
            try:
                opened = call()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                if len(self._spare) > left:
                    with suppress(IndexError):  # Another thread may take the last one.
                        os.close(self._spare.pop())
                    continue
                if not pauses:
                    raise
                pauses -= 1
                time.sleep(SHORTAGE_PAUSE_SECONDS)
            else:
                self._save_descriptors()
                return opened

    def unlock(self) -> None:
        while self._spare:
            os.close(self._spare.pop())
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def make_directory(self, path: str, *, is_synced: bool = True) -> None:
        self._make(self.root / path, is_synced=is_synced)

    def _make(self, directory: Path, *, is_synced: bool = True) -> None:
        """With the parents that are missing, for this user alone; their names are durable on return, and that of
        `directory` with `is_synced`."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        if is_synced:
            self._sync(directory.parent)

    def create(self, path: str) -> DiskFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return DiskFile(self._open(lambda: os.open(self.root / path, flags, 0o600), SPARE_FOR_MOMENTS))

    def open(self, path: str) -> DiskFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        return DiskFile(self._open(lambda: os.open(self.root / path, flags), SPARE_FOR_MOMENTS))

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(self._open(lambda: os.listdir(self.root / directory)))
        except FileNotFoundError:
            return []

    def rename(self, old: str, new: str) -> None:
        os.replace(self.root / old, self.root / new)

    def remove(self, path: str) -> None:
        os.unlink(self.root / path)

    def remove_directory(self, path: str) -> None:
        with suppress(OSError):
            (self.root / path).rmdir()

    def sync_directory(self, path: str) -> None:
        self._sync(self.root / path)

    def _sync(self, directory: Path) -> None:
        self._open(lambda: sync_directory(directory))

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        # Not one after the other: a file system with a journal commits it once for all that wait at that moment.
        with ThreadPoolExecutor(min(SYNC_THREADS, max(len(files), len(directories), 1))) as pool:
            list(pool.map(lambda file: file.sync(), files))
            list(pool.map(self.sync_directory, directories))

    def free_bytes(self) -> int:
        state = os.statvfs(self.root)
        return state.f_bavail * state.f_frsize

    def hold_reserve(self, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with self._reserving:
            descriptor = self._open(lambda: os.open(self.root / _RESERVE_NAME, flags, 0o600))
            try:
                os.ftruncate(descriptor, min(size, self.reserved_bytes))
                if size > self.reserved_bytes:
                    os.posix_fallocate(descriptor, 0, size)
                self.reserved_bytes = size
            except OSError:
                # No room; or a file system that cannot promise any.
                os.ftruncate(descriptor, self.reserved_bytes)
            finally:
                os.close(descriptor)

    def give_up_reserve(self, size: int) -> bool:
        with self._reserving:
            if not self.reserved_bytes:
                return False
            self.reserved_bytes = max(0, self.reserved_bytes - max(size, RESERVE_STEP_BYTES))
            os.truncate(self.root / _RESERVE_NAME, self.reserved_bytes)
            return True


class ReadOnlyDisk(RealDisk):
    """The same directory for a reader beside a running node: opens nothing for writing and takes no lock."""

    def lock(self) -> None:
        """Nothing to take: the reader changes nothing."""

    def open(self, path: str) -> DiskFile:
        return DiskFile(os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC))


def new_uuid() -> str:
    """Names a data directory for ever: a wiped disk gets another one, and its peers notice."""
    return uuid.uuid4().hex


def write_durably(path: Path, text: str) -> None:
    """Let a small file have exactly `text`, in one step. Its name is durable when its directory is synced."""
    beside = path.with_name(path.name + ".tmp")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
