"""A store without a file: bounded like a small disk, empty at each start, and read while a checkpoint writes."""

import errno
import sqlite3
import threading

import pytest

from qmq.errors import DiskFull
from qmq.model.dots import Dot
from qmq.storage.disk.volatile import VolatileDisk
from qmq.storage.format.interfaces import CheckpointState
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.rows import runs_of
from qmq.storage.store import Store
from qmq.storage.volatile_store import VolatileCatalog, VolatileQueueStore, open_volatile_store

from .rig import NOW, A, Writer, all_rows, fanout_all

Q, F = "/queue/q", "/fanout/f"
CAPACITY = 8 << 20
SETTINGS = StoreSettings(segment_bytes_max=256 << 10, journal_keep_bytes=0, reserve_bytes=1 << 20)
BODY = b"x" * 50_000


def opened(capacity: int = CAPACITY) -> Store:
    return open_volatile_store(capacity, node="a", settings=SETTINGS)


def row(sequence: int, body: bytes = b"body") -> QueueRow:
    return QueueRow(Dot(A, sequence), Q, NOW, 5 << 20 | 7, 4, 0, 0, b"", body)


def test_what_a_checkpoint_has_stored_is_read_as_from_a_disk() -> None:
    store = opened()
    a = Writer(A)
    store.journal.append([a.published(Q, b"one", b"two"), a.published(F, b"news")])

    store.checkpoint(store.journal.end, NOW, {})

    assert list(all_rows(store).values()) == [b"one", b"two"]
    assert [body for _, body in fanout_all(store, F)] == [b"news"]
    store.close()


def test_each_start_is_another_empty_directory() -> None:
    first, second = opened(), opened()

    assert first.recovered.is_new and second.recovered.is_new
    assert first.recovered.identity.uuid != second.recovered.identity.uuid
    first.close()
    second.close()


def test_messages_are_refused_when_the_memory_is_full_and_taken_again_when_they_are_settled() -> None:
    store = opened()
    a = Writer(A)
    waiting: list[Dot] = []
    with pytest.raises(DiskFull):
        while True:
            dot = a.publish(Q, BODY)
            store.journal.append([a.batch()])
            waiting.append(dot)
            store.checkpoint(store.journal.end, NOW, {})
            assert store.disk.free_bytes() > 0
    a.have -= 1  # It was not appended.
    assert len(waiting) * len(BODY) > CAPACITY // 3

    a.settle(Q, waiting)
    store.journal.append([a.batch()], settle_only=True)
    store.checkpoint(store.journal.end, NOW, {})
    while store.give_back():
        pass

    store.journal.append([a.published(Q, BODY)])
    store.close()


def test_a_write_that_does_not_fit_changes_nothing_and_removed_files_make_room() -> None:
    disk = VolatileDisk(1000)
    file = disk.create("d/one")
    file.write(b"x" * 600)

    with pytest.raises(OSError) as error:
        file.write(b"y" * 401)
    assert error.value.errno == errno.ENOSPC
    assert (file.size(), disk.free_bytes()) == (600, 400)

    file.cut(100)
    assert disk.free_bytes() == 900
    disk.create("d/two").write(b"z" * 900)
    disk.rename("d/two", "d/one")
    assert (disk.names("d"), disk.free_bytes()) == (["one"], 100)
    file.cut(0)  # It has no name any more.
    assert disk.free_bytes() == 100
    disk.remove("d/one")
    assert (disk.names("d"), disk.free_bytes()) == ([], 1000)


def test_the_reserve_is_no_room_for_others() -> None:
    disk = VolatileDisk(1000)

    disk.hold_reserve(700)
    disk.hold_reserve(1001)

    assert (disk.reserved_bytes, disk.free_bytes()) == (700, 300)
    assert disk.give_up_reserve(200)
    assert (disk.reserved_bytes, disk.free_bytes()) == (500, 500)
    assert disk.give_up_reserve(600)
    assert not disk.give_up_reserve(1)


def test_the_queue_store_has_what_files_leave_and_no_more() -> None:
    disk = VolatileDisk(1 << 20)
    store = VolatileQueueStore(disk)
    before = disk.free_bytes()
    assert before < 1 << 20

    store.apply(runs_of([row(1, b"x" * 300_000)]), {}, [], [], 1)
    assert disk.free_bytes() < before - 300_000
    disk.create("d/file").write(b"x" * 400_000)

    with pytest.raises(DiskFull):
        store.apply(runs_of([row(2, b"x" * 300_000)]), {}, [], [], 2)
    assert store.position() == 1
    disk.remove("d/file")
    store.apply(runs_of([row(2, b"x" * 300_000)]), {}, [], [], 2)
    assert store.position() == 2
    store.close()


def test_the_catalog_takes_from_the_same_room() -> None:
    disk = VolatileDisk(1 << 20)
    catalog = VolatileCatalog(disk)
    before = disk.free_bytes()

    catalog.set_facts({"a": "x" * 100_000})
    assert disk.free_bytes() <= before - 90_000

    with pytest.raises(DiskFull):
        catalog.set_facts({"b": "x" * 1_000_000})
    catalog.set_base(CheckpointState(7, {}))
    assert (set(catalog.facts()), catalog.base().position) == ({"a"}, 7)
    catalog.close()


def test_a_reader_waits_for_a_change_and_sees_all_of_it() -> None:
    store = VolatileQueueStore(VolatileDisk(CAPACITY))
    store.apply(runs_of([row(1)]), {}, [], [], 1)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(store.position()))

    with store._change() as writer:
        store._move(writer, 2)
        reader.start()
        reader.join(0.05)
        assert not found
    reader.join()

    assert found == [2]
    store.close()


def test_no_database_of_it_has_a_file() -> None:
    disk = VolatileDisk(CAPACITY)
    for store in (VolatileQueueStore(disk), VolatileCatalog(disk)):
        database: sqlite3.Connection = store._database.conn
        assert not any(path for _, _, path in database.execute("PRAGMA database_list"))
        store.close()
