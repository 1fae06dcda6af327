from pathlib import Path
from random import Random

import msgpack
import pytest

from qmq.errors import DirectoryInUse, StorageError
from qmq.model.dots import Origin
from qmq.storage.format.batch import batch_records, encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.format.settings import StoreSettings
from qmq.storage.opening import FORMAT_VERSION
from qmq.storage.store import open_store
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store

from .rig import NOW, SMALL, Writer, all_rows, fanout_all, journal_batches, open_small, own_messages


def test_a_run_begins_with_a_durable_start_record() -> None:
    disk = MemoryDisk()
    store = open_small(disk)

    origin = store.begin_incarnation(77, NOW)
    disk.crash(Random(1))

    assert origin == Origin("a", 77)
    again = open_small(disk)
    assert again.recovered.vector == {origin: 1}
    (record,) = batch_records(journal_batches(again)[0])
    assert (record.kind, record.sequence, record.timestamp_us) == (RecordKind.START, 1, NOW)
    assert msgpack.unpackb(record.body) == {"format": FORMAT_VERSION, "software": "qmq", "uuid": "a-0"}
    assert again.catalog.incarnations() == {origin: NOW}


def test_a_run_begins_durably_also_when_appends_are_not_synced() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(sync="never"))

    origin = store.begin_incarnation(77, NOW)
    disk.crash(Random(1))

    assert open_small(disk).recovered.vector == {origin: 1}


def test_a_fresh_directory_is_distinguished_from_a_known_one_and_a_wiped_one() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    assert store.recovered.is_new
    first = store.recovered.identity.uuid
    store.close()

    store = open_small(disk)
    assert not store.recovered.is_new
    assert store.recovered.identity.uuid == first
    store.close()

    disk.wipe()
    store = open_small(disk)
    assert store.recovered.is_new
    assert store.recovered.identity.uuid != first


def test_recovered_messages_come_in_the_order_they_were_accepted_run_by_run() -> None:
    disk = MemoryDisk()
    for incarnation in (900, 5, 300):
        store = open_small(disk)
        origin = store.begin_incarnation(incarnation, NOW + len(journal_batches(store)) * 1000)
        store.journal.append([_later(origin, len(journal_batches(store)))])
        if incarnation == 5:
            store.checkpoint(store.journal.end, NOW, {})
        store.close()

    store = open_small(disk)

    assert [(dot.origin.incarnation, dot.sequence) for dot, _ in own_messages(store)] == [
        (900, 2),
        (900, 3),
        (5, 2),
        (5, 3),
        (300, 2),
        (300, 3),
    ]


def _later(origin: Origin, rank: int) -> bytes:
    """A batch whose timestamps grow with `rank`, as a clock would make them."""
    when = NOW + rank * 1000
    envelope = pack_envelope("/queue/q", b"")
    records = [pack_record(n, when + n, RecordKind.PUBLISH, 0, envelope, b"x") for n in (2, 3)]
    return encode_batch(origin, records, 2, 3, when + 2, when + 3)


def test_the_same_life_on_real_files_and_in_memory_ends_the_same(tmp_path: Path) -> None:
    disk = MemoryDisk()
    ends = []
    for kind in ("real", "memory"):
        for life in range(3):
            store = (
                open_store(tmp_path / "data", node="a", settings=SMALL)
                if kind == "real"
                else open_memory_store(disk, node="a", settings=SMALL)
            )
            writer = Writer(store.begin_incarnation(life + 1, NOW), have=1)
            dots = [writer.publish("/queue/q", b"%d" % n * 100) for n in range(8)]
            writer.settle("/queue/q", dots[:3])
            store.journal.append([writer.batch(), Writer(Origin("b", life)).published("/fanout/f", b"x" * 500)])
            if life != 1:
                store.checkpoint(store.journal.end, NOW, {})
            rows, fanout = all_rows(store), fanout_all(store, "/fanout/f")
            messages, vector = own_messages(store), store.recovered.vector
            store.close()
        ends.append((rows, fanout, messages, vector))

    assert ends[0] == ends[1]
    assert len(ends[0][0]) == 15


def test_a_directory_that_is_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a")

    with pytest.raises(DirectoryInUse):
        open_store(tmp_path, node="a")
    store.close()
    open_store(tmp_path, node="a").close()


def test_a_failed_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    open_store(tmp_path, node="a").close()

    with pytest.raises(StorageError, match="belongs to node a"):
        open_store(tmp_path, node="b")

    open_store(tmp_path, node="a").close()


def test_closing_makes_everything_durable() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(sync="never", reserve_bytes=0))
    writer = Writer(Origin("b", 1))
    store.journal.append([writer.published("/queue/q", b"x")])

    store.close()
    disk.crash(Random(3))

    assert open_small(disk).recovered.vector == {writer.origin: 1}
