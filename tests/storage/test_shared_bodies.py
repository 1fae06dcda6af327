"""What the stores make of batches with shared bodies is what they make of the same records without."""

import random
from pathlib import Path

import pytest

from qmq.model.dots import Dot
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.format.batch import SHARED_VERSION, verify_batch
from qmq.storage.format.settings import StoreSettings
from qmq.storage.repair.fanout_logs import records_of
from qmq.storage.store import open_store
from qmq.storage.verify import dump, verify
from tests.fakes.disk import MemoryDisk
from tests.storage.rig import (
    NOW,
    A,
    B,
    Writer,
    all_rows,
    append,
    fanout_all,
    journal_batches,
    open_small,
    own_messages,
    without_references,
)

BODY = b"the same for all " * 100
FANOUT = "/fanout/news"
QUEUES = ("/queue/a", "/queue/b", "/queue/c")


def test_a_copy_keeps_its_body_when_the_record_that_has_it_is_settled() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    first, second, third = a.copies(BODY, *QUEUES)
    a.settle("/queue/a", [first])
    store.journal.append([a.batch()])

    store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {second: BODY, third: BODY}
    disk.stop()
    again = open_small(disk)
    assert all_rows(again) == {second: BODY, third: BODY}


def test_a_fanout_and_its_children_are_restored_from_the_journal_alone() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    dots = Writer(A), Writer(B)
    for writer in dots:
        writer.copies(BODY, FANOUT, *QUEUES)
        store.journal.append([writer.batch()])
    disk.stop()

    again = open_small(disk)

    assert dict(own_messages(again)) == {Dot(A, number): BODY for number in (2, 3, 4)}
    assert fanout_all(again, FANOUT) == [(Dot(A, 1), BODY), (Dot(B, 1), BODY)]
    assert [verify_batch(data).version for data in journal_batches(again)] == [SHARED_VERSION] * 2
    again.checkpoint(again.journal.end, NOW, {})
    assert fanout_all(again, FANOUT) == [(Dot(A, 1), BODY), (Dot(B, 1), BODY)]
    assert len(all_rows(again)) == 6


def test_a_journal_that_is_cut_at_any_byte_keeps_whole_batches_only() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    a.copies(b"body" * 20, *QUEUES)
    first = a.batch()
    a.copies(b"more" * 20, *QUEUES)
    second = a.batch()
    store.journal.append([first, second])
    (path,) = [name for name in disk.contents() if name.startswith("journal/")]
    whole = disk.contents()[path]
    disk.stop()

    for size in range(len(whole) - len(second), len(whole)):
        cut = MemoryDisk()
        for name, data in disk.contents().items():
            cut.put(name, whole[:size] if name == path else data)
        opened = open_small(cut)
        assert journal_batches(opened) == [first]
        assert dict(own_messages(opened)) == {Dot(A, number): b"body" * 20 for number in (1, 2, 3)}


def test_a_damaged_batch_stops_its_origin_and_what_comes_behind_it_is_quarantined() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    batches = []
    for writer in (a, a, b):
        writer.copies(BODY[:80], *QUEUES)
        batches.append(writer.batch())
    store.journal.append(batches)
    (path,) = [name for name in disk.contents() if name.startswith("journal/")]
    damaged = bytearray(disk.contents()[path])
    damaged[damaged.index(batches[0]) + 150] ^= 1
    disk.stop()
    disk.put(path, bytes(damaged))

    again = open_small(disk)

    assert journal_batches(again) == [batches[2]]
    assert again.recovered.quarantined


def test_the_records_of_a_repair_have_their_own_bodies() -> None:
    a = Writer(A)
    a.copies(BODY, *QUEUES, FANOUT)
    data = a.batch()

    assert records_of(FANOUT, data, 0, 9) == records_of(FANOUT, without_references(data), 0, 9)


@pytest.mark.parametrize("seed", range(40))
def test_compaction_makes_the_same_of_random_records_with_and_without_references(seed: int) -> None:
    rng = random.Random(seed)
    settings = StoreSettings()
    shared, plain = (
        Compaction(settings, "a", {}, set(), queue_position=0, fanout_position=0, is_again=False) for _ in range(2)
    )
    writers = [Writer(A), Writer(B)]
    sent: list[Dot] = []
    position = 0
    for _ in range(20):
        writer = rng.choice(writers)
        for _ in range(rng.randrange(1, 5)):
            if sent and rng.random() < 0.5:
                writer.settle(rng.choice(QUEUES), rng.sample(sent, rng.randrange(1, min(4, len(sent)) + 1)))
            else:
                names = rng.sample([FANOUT, *QUEUES], rng.randrange(1, 5))
                sent += writer.copies(rng.randbytes(rng.randrange(200)), *names)
        data = writer.batch()
        shared.take(position, verify_batch(data), data)
        expected = without_references(data)
        plain.take(position, verify_batch(expected), expected)
        position += len(data)

    assert shared.runs() == plain.runs()
    assert shared.fanouts == plain.fanouts
    assert (shared.deletes, shared.tombstones()) == (plain.deletes, plain.tombstones())


def test_a_directory_with_shared_bodies_is_sound_and_says_what_it_holds(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a", settings=StoreSettings(reserve_bytes=0))
    a = Writer(A)
    a.copies(BODY, FANOUT, *QUEUES)
    append(store, a.batch())
    store.checkpoint(store.journal.end, NOW, {})
    store.close()

    assert not verify(tmp_path).damaged
    records = [record for record in dump(tmp_path, whole=True) if record.origin == A]
    assert [(record.kind, record.destination, record.body) for record in records] == [
        ("PUBLISH", name, BODY) for name in (FANOUT, *QUEUES)
    ]
