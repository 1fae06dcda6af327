"""What happens to disks beside crashes: bytes rot, ends go missing, backups come back."""

import copy
import copyreg
import random
import threading

from tests.fakes.disk import MemoryDisk

ROTTEN_BITS_MAX = 3

# The memory twin of the queue store has a lock, and a copy of the store has one of its own.
copyreg.pickle(type(threading.Lock()), lambda lock: (threading.Lock, ()))


class DiskImage:
    """A copy of everything on a memory disk, as a backup of a running machine has it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._files = disk.contents()
        self._tables = copy.deepcopy(disk.tables)

    def restore(self, disk: MemoryDisk) -> None:
        """Put it in the place of what is there. The node must be down. May be done once."""
        disk.wipe()
        for path, data in self._files.items():
            disk.put(path, data)
        disk.tables = self._tables


def spoil(disk: MemoryDisk, directory: str, rng: random.Random) -> str:
    """Damage one file below `directory` of a disk whose node is down: a bad sector, a lost end, a write gone astray.

    Returns its path, or "" when there is none. Files with more bytes are hit more often, as
    they would be.
    """
    files = {path: data for path, data in sorted(disk.contents().items()) if data and path.startswith(directory + "/")}
    if not files:
        return ""
    path = rng.choices(list(files), [len(data) for data in files.values()])[0]
    data = bytearray(files[path])
    match rng.choice(("flip", "flip", "cut", "stray")):
        case "flip":
            for _ in range(rng.randint(1, ROTTEN_BITS_MAX)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "cut":
            del data[rng.randrange(len(data)) :]
        case "stray":
            size = min(512, max(1, len(data) // 4))
            here, there = (rng.randrange(len(data) - size + 1) for _ in range(2))
            data[here : here + size] = data[there : there + size]
    disk.put(path, bytes(data))
    return path
