"""The store of a node without a disk: the same formats and code, with files and databases in the memory of the process.

Nothing survives the process: each start begins empty, with another uuid, as after a replaced disk. All of it shares one
capacity (`qmq.storage.disk.volatile`).

Surprising: SQLite has neither a write-ahead log nor a second connection for a database in memory (one that several
connections share ends in `database is locked`). So one connection of the queue store reads and writes, and readers wait
for the transaction of a checkpoint.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from qmq.storage.catalog.catalog import SqliteCatalog
from qmq.storage.disk.sqlite import PAGE_BYTES
from qmq.storage.disk.volatile import VolatileDisk
from qmq.storage.format.interfaces import Catalog
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.sqlite_store import SqliteQueueStore, shrink
from qmq.storage.store import Store

CATALOG: Final = "catalog"
QUEUES: Final = "queues"

FREE_PAGES_KEPT: Final = 128
"""1 MiB: what the queue store has free, no message can use before the journal has had it."""


class VolatileCatalog(SqliteCatalog):
    """The catalog in memory."""

    def __init__(self, disk: VolatileDisk) -> None:
        self._disk = disk
        super().__init__(None)
        note_size(disk, CATALOG, self._database.conn)

    @contextmanager
    def _change(self) -> Iterator[None]:
        with super()._change():
            bound_size(self._disk, CATALOG, self._database.conn)
            yield
            note_size(self._disk, CATALOG, self._database.conn)


class VolatileQueueStore(SqliteQueueStore):
    """The queue store in memory."""

    def __init__(self, disk: VolatileDisk) -> None:
        self._disk = disk
        super().__init__(None)
        note_size(disk, QUEUES, self._database.conn)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            bound_size(self._disk, QUEUES, self._database.conn)
            with super()._change() as writer:
                yield writer
            note_size(self._disk, QUEUES, self._database.conn)

    def give_back(self) -> bool:
        with self._reading, self._medium():
            has_more = shrink(self._database.conn, FREE_PAGES_KEPT)
            note_size(self._disk, QUEUES, self._database.conn)
            return has_more


def bound_size(disk: VolatileDisk, name: str, database: sqlite3.Connection) -> None:
    """Let a change that needs more than there is fail with SQLITE_FULL, which is DiskFull."""
    database.execute(f"PRAGMA max_page_count={max(1, disk.room_for_database(name) // PAGE_BYTES)}").fetchone()


def note_size(disk: VolatileDisk, name: str, database: sqlite3.Connection) -> None:
    """Count what the database has, free pages included: they are its own until it gives them back."""
    disk.database_has(name, PAGE_BYTES * int(database.execute("PRAGMA page_count").fetchone()[0]))


def open_volatile_store(memory_bytes_max: int, *, node: str, settings: StoreSettings) -> Store:
    """An empty store in the memory of this process, which takes at most about `memory_bytes_max` of it."""
    disk = VolatileDisk(memory_bytes_max)
    opened: list[Catalog | QueueStore] = []
    try:
        catalog = VolatileCatalog(disk)
        opened.append(catalog)
        queues = VolatileQueueStore(disk)
        opened.append(queues)
        return Store(disk, catalog, queues, node=node, settings=settings)
    except BaseException:
        for part in opened:
            part.close()
        raise
