"""The store of a simulated node."""

import os

from qmq.storage.format.settings import StoreSettings
from qmq.storage.store import Store
from tests.fakes.catalog import MemoryCatalog
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore
from tests.fakes.sqlite_store import SimulatedSqliteStore

ON_SQLITE = "QMQ_SIMULATED_STORE"
"""A variable of the environment, which the processes of a simulation share: `sqlite` for queue stores on SQLite."""


def simulated_queue_store(disk: MemoryDisk) -> MemoryQueueStore | SimulatedSqliteStore:
    return SimulatedSqliteStore(disk) if os.environ.get(ON_SQLITE) == "sqlite" else MemoryQueueStore(disk)


def open_memory_store(disk: MemoryDisk, *, node: str, settings: StoreSettings | None = None) -> Store:
    """The store of a simulated node. All durable state is on `disk`, also over its crashes."""
    disk.lock()
    try:
        return Store(
            disk,
            MemoryCatalog(disk),
            simulated_queue_store(disk),
            node=node,
            settings=settings or StoreSettings(),
            uuid=f"{node}-{disk.wipes}",
        )
    except BaseException:
        disk.unlock()
        raise
