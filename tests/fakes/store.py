"""The store of a simulated node."""

from qmq.storage.format.settings import StoreSettings
from qmq.storage.store import Store
from tests.fakes.catalog import MemoryCatalog
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore


def open_memory_store(disk: MemoryDisk, *, node: str, settings: StoreSettings | None = None) -> Store:
    """The store of a simulated node. All durable state is on `disk`, also over its crashes."""
    disk.lock()
    try:
        return Store(
            disk,
            MemoryCatalog(disk),
            MemoryQueueStore(disk),
            node=node,
            settings=settings or StoreSettings(),
            uuid=f"{node}-{disk.wipes}",
        )
    except BaseException:
        disk.unlock()
        raise
