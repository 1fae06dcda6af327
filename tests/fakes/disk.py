"""A disk in memory that fails on demand and crashes like a real one.

What a power cut leaves is modelled per file and per directory: synced bytes stay; of the unsynced rest an arbitrary
part stays, possibly with a hole of zeros; of the creates, renames and removes since the last `sync_directory` an
arbitrary prefix took place. What the fakes of catalog and queue store committed (`tables`) always stays.

Surprising: handles of before a crash raise OSError afterwards, as a dead process could not use them either. Nothing
here is random by itself: the caller hands in the generator.
"""

from collections.abc import Sequence
from errno import EIO, ENOSPC
from typing import Protocol

from qmq.errors import DirectoryInUse, DiskFull, LogBroken
from qmq.storage.format.interfaces import File


class Random(Protocol):
    """What a crash needs of a generator; `random.Random` has it."""

    def randint(self, low: int, high: int, /) -> int: ...


class _Inode:
    """The bytes of one file, whatever its name is now."""

    __slots__ = ("data", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0


_Change = list[tuple[str, "_Inode | None"]]
"""One unsynced change of a directory: what stood under each name it touched. Happens whole or not at all."""


class MemoryFile:
    """See `interfaces.File`."""

    __slots__ = ("_disk", "_node", "_crashes_before")

    def __init__(self, disk: "MemoryDisk", node: _Inode) -> None:
        self._disk = disk
        self._node = node
        self._crashes_before = disk.crashes

    def write(self, data: bytes) -> None:
        self._alive()
        disk = self._disk
        room = disk.capacity_bytes - disk.used_bytes() - disk.reserved_bytes
        if disk.call("write", len(data)) or len(data) > room:
            # A failing write leaves an arbitrary part behind; half is the case that recovery must survive.
            self._node.data += data[: min(len(data) // 2, max(room, 0))]
            raise disk.error if len(data) <= room else OSError(ENOSPC, "no space left on the memory disk")
        self._node.data += data

    def sync(self) -> None:
        self._alive()
        if self._disk.call("sync", 0) or self._disk.takes("sync"):
            raise self._disk.error
        self._node.synced = len(self._node.data)

    def cut(self, size: int) -> None:
        self._alive()
        if self._disk.call("cut", 0):
            raise self._disk.error
        node = self._node
        del node.data[size:]
        node.synced = min(node.synced, size)

    def read(self, offset: int, size: int) -> bytes:
        self._alive()
        return bytes(self._node.data[offset : offset + size])

    def size(self) -> int:
        return len(self._node.data)

    def close(self) -> None:
        """Nothing to give back: the bytes belong to the disk."""

    def _alive(self) -> None:
        if self._crashes_before != self._disk.crashes:
            raise OSError(EIO, "this file was opened before the crash")


class MemoryDisk:
    """See `interfaces.Disk`. One per node; it outlives the node, as a disk does."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.tables: dict[str, object] = {}
        """Committed state of the memory catalog and queue store, by name."""
        self.calls: dict[str, int] = {}
        """Changing calls so far by kind: write, sync, cut, create, rename, remove, sync_directory, commit."""
        self.bytes_written = 0
        self.crashes = 0
        self.wipes = 0
        self.error: OSError = OSError(EIO, "made to fail")
        self.reserved_bytes = 0
        self._files: dict[str, _Inode] = {}
        self._unsynced: dict[str, list[_Change]] = {}
        self._call_number = 0
        self._fail_at = -1
        self._fail_next: set[str] = set()
        self._locked = False

    def fail_at(self, call_number: int, error: OSError | None = None) -> None:
        """Let the changing call with that number (0: the next one) raise `error`, and every later one too."""
        self._fail_at = self._call_number + call_number
        self.error = error if error is not None else OSError(EIO, "made to fail")

    def fail_next(self, kind: str) -> None:
        """Let the next call of that kind raise, and only that one."""
        self._fail_next.add(kind)

    def takes(self, kind: str) -> bool:
        """Whether this call is the one that `fail_next` meant."""
        meant = kind in self._fail_next
        self._fail_next.discard(kind)
        return meant

    def heal(self) -> None:
        """Take `fail_at` back."""
        self._fail_at = -1

    def crash(self, random: Random) -> None:
        """Cut the power: see the module's opening for what is left. Open handles die; the lock is free again."""
        for directory, changes in self._unsynced.items():
            kept = random.randint(0, len(changes))
            while len(changes) > kept:
                self._undo(changes.pop())
            self._unsynced[directory] = []
        # Every name in order, so that the same generator leaves the same disk.
        for path in sorted(self._files):
            node = self._files[path]
            unsynced = len(node.data) - node.synced
            if unsynced:
                kept = random.randint(0, unsynced)
                del node.data[node.synced + kept :]
                if kept and random.randint(0, 3) == 0:
                    hole = random.randint(0, kept - 1)
                    size = random.randint(1, kept - hole)
                    node.data[node.synced + hole : node.synced + hole + size] = bytes(size)
                node.synced = len(node.data)
        self._invalidate_handles()

    def stop(self) -> None:
        """Kill the process but not the machine: all that was written stays, synced or not; open handles die."""
        self._invalidate_handles()

    def wipe(self) -> None:
        """A new, empty disk in its place."""
        self._files.clear()
        self._unsynced.clear()
        self.tables = {}
        self.reserved_bytes = 0
        self.wipes += 1
        self._invalidate_handles()

    def call(self, kind: str, size: int) -> bool:
        """Count one changing call; whether it has to fail. Also used by the memory catalog and queue store."""
        self.calls[kind] = self.calls.get(kind, 0) + 1
        number = self._call_number
        self._call_number += 1
        failed = 0 <= self._fail_at <= number
        if not failed:
            self.bytes_written += size
        return failed

    def used_bytes(self) -> int:
        return sum(len(node.data) for node in list(self._files.values()))

    def contents(self) -> dict[str, bytes]:
        """All files as they are now, for tests that compare or copy disks."""
        return {path: bytes(node.data) for path, node in self._files.items()}

    def put(self, path: str, data: bytes) -> None:
        """Place a file with durable contents, for tests that damage what is there."""
        node = _Inode()
        node.data += data
        node.synced = len(data)
        self._files[path] = node

    def lock(self) -> None:
        if self._locked:
            raise DirectoryInUse("another node has this memory disk open")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def make_directory(self, path: str, *, is_synced: bool = True) -> None:
        """Directories exist as soon as they are named."""

    def create(self, path: str) -> MemoryFile:
        self._change("create", path)
        node = _Inode()
        self._files[path] = node
        return MemoryFile(self, node)

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, self._node(path))

    def names(self, directory: str) -> list[str]:
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self._files if path.startswith(prefix)})

    def rename(self, old: str, new: str) -> None:
        node = self._node(old)
        self._change("rename", new, old)
        self._files[new] = node
        del self._files[old]

    def remove(self, path: str) -> None:
        self._node(path)
        self._change("remove", path)
        del self._files[path]

    def remove_directory(self, path: str) -> None:
        """Directories are there while something is in them."""

    def sync_directory(self, path: str) -> None:
        if self.call("sync_directory", 0):
            raise self.error
        self._unsynced[path] = []

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes() - self.reserved_bytes)

    def hold_reserve(self, size: int) -> None:
        if size - self.reserved_bytes <= self.free_bytes():
            self.reserved_bytes = size

    def give_up_reserve(self, size: int) -> bool:
        had, self.reserved_bytes = self.reserved_bytes, max(0, self.reserved_bytes - size)
        return had > 0

    def _node(self, path: str) -> _Inode:
        node = self._files.get(path)
        if node is None:
            raise FileNotFoundError(path)
        return node

    def _change(self, kind: str, *paths: str) -> None:
        if self.call(kind, 0):
            raise self.error
        changes = self._unsynced.setdefault(paths[0].rpartition("/")[0], [])
        changes.append([(path, self._files.get(path)) for path in paths])

    def _undo(self, change: _Change) -> None:
        for path, before in change:
            if before is None:
                self._files.pop(path, None)
            else:
                self._files[path] = before

    def _invalidate_handles(self) -> None:
        self.crashes += 1
        self._locked = False
        self._fail_at = -1


def commit_tables(disk: MemoryDisk) -> None:
    """Count a commit of a database on `disk`; raise LogBroken or DiskFull when it fails."""
    if disk.call("commit", 0):
        raise LogBroken(f"commit failed: {disk.error}") from disk.error
    if not disk.free_bytes():
        raise DiskFull("no room for the databases")
