"""A `Disk` in the memory of the process: for a node that writes no file, and loses everything when it stops.

It has a capacity, and a write that exceeds it fails with ENOSPC. So a node without a disk refuses messages exactly like
one whose disk is full. The databases of such a node take from the same capacity (`qmq.storage.volatile_store`): each
says after a change how much it has. While one changes, the journal does not see what it takes, so for that time both
together can be somewhat larger.

Surprising: there is nothing to sync and nothing to lock, and a removed file that is still read no longer counts.
"""

import errno
import threading
from collections.abc import Sequence
from typing import Final

from qmq.storage.format.interfaces import File

FULL: Final = "no room in the memory of this node (storage.memory_bytes_max)"


class VolatileFile:
    """See `interfaces.File`."""

    __slots__ = ("_disk", "data", "is_removed")

    def __init__(self, disk: "VolatileDisk") -> None:
        self._disk = disk
        self.data = bytearray()
        self.is_removed = False

    def write(self, data: bytes) -> None:
        self._disk.take(0 if self.is_removed else len(data))
        self.data += data

    def sync(self) -> None:
        """Nothing to do: what is in memory is as safe as it can be there."""

    def cut(self, size: int) -> None:
        freed = max(0, len(self.data) - size)
        del self.data[size:]
        self._disk.free(0 if self.is_removed else freed)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        """Nothing to give back: the bytes belong to the disk."""


class VolatileDisk:
    """See `interfaces.Disk`. It ends with the process."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self._files: dict[str, VolatileFile] = {}
        self._of_files = 0
        self._databases: dict[str, int] = {}
        # The journal is written by one thread, fanout logs and databases by another.
        self._counting = threading.Lock()

    def take(self, size: int) -> None:
        """Count `size` more bytes of files. Raises OSError (ENOSPC) if there is no room; then nothing has changed."""
        with self._counting:
            if size > self.free_bytes():
                raise OSError(errno.ENOSPC, FULL)
            self._of_files += size

    def free(self, size: int) -> None:
        """Count `size` bytes of files less."""
        with self._counting:
            self._of_files -= size

    def database_has(self, name: str, size: int) -> None:
        """This database has `size` bytes now."""
        self._databases[name] = size

    def room_for_database(self, name: str) -> int:
        """Bytes that this database may have in all."""
        return self._databases.get(name, 0) + self.free_bytes()

    def lock(self) -> None:
        """Nothing to take: no other process can see it."""

    def unlock(self) -> None:
        """Nothing to give back."""

    def make_directory(self, path: str, *, is_synced: bool = True) -> None:
        """Directories exist as soon as they are named."""

    def create(self, path: str) -> VolatileFile:
        self._forget(self._files.get(path))
        file = self._files[path] = VolatileFile(self)
        return file

    def open(self, path: str) -> VolatileFile:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file in memory", path)
        return file

    def names(self, directory: str) -> list[str]:
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in list(self._files) if path.startswith(prefix)})

    def rename(self, old: str, new: str) -> None:
        file = self.open(old)
        self._forget(self._files.get(new))
        self._files[new] = file
        del self._files[old]

    def remove(self, path: str) -> None:
        self._forget(self.open(path))
        del self._files[path]

    def _forget(self, file: VolatileFile | None) -> None:
        if file is not None:
            file.is_removed = True
            self.free(len(file.data))

    def remove_directory(self, path: str) -> None:
        """Directories are there while something is in them."""

    def sync_directory(self, path: str) -> None:
        """Nothing to do."""

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Nothing to do."""

    def free_bytes(self) -> int:
        used = self._of_files + sum(list(self._databases.values()))
        return max(0, self.capacity_bytes - used - self.reserved_bytes)

    def hold_reserve(self, size: int) -> None:
        if size - self.reserved_bytes <= self.free_bytes():
            self.reserved_bytes = size

    def give_up_reserve(self, size: int) -> bool:
        had, self.reserved_bytes = self.reserved_bytes, max(0, self.reserved_bytes - size)
        return had > 0
