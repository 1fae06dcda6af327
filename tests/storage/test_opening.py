"""What opening does with queue messages: it carries the journal into the stores, whatever each of them has seen."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from qmq.errors import DiskFull, StorageError
from qmq.model.dots import Dot
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format import segment
from qmq.storage.format.interfaces import File
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueHead, QueueStore, RowRun
from qmq.storage.format.record import TIMED, with_priority
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore

from .rig import NOW, SMALL, A, B, C, Writer, all_rows, fanout_all, journal_batches, open_small, own_messages

MIB = 1024 * 1024
ROOMY = StoreSettings(reserve_bytes=0)


def test_opening_carries_the_journal_into_the_stores_and_hands_nothing_over() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    first, second = a.publish("/queue/q", b"1"), a.publish("/queue/q", b"2")
    store.journal.append([a.batch(), b.published("/queue/q", b"b"), b.published("/fanout/f", b"f")])
    a.settle("/queue/q", [first])
    store.journal.append([a.batch()])
    disk.stop()

    store = open_small(disk)

    assert (store.recovered.messages, store.recovered.settled) == ([], {})
    assert all_rows(store) == {second: b"2", Dot(B, 1): b"b"}
    assert store.checkpoint_position == store.journal.end
    assert fanout_all(store, "/fanout/f") == [(Dot(B, 2), b"f")]


def test_opening_drops_no_segment_for_it_does_not_know_what_peers_have() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    batches = [a.published("/queue/q", b"x" * 400) for _ in range(12)]
    store.journal.append(batches[:1])
    for data in batches[1:]:
        store.journal.append([data])
    disk.stop()

    assert journal_batches(open_small(disk)) == batches


def test_opening_takes_a_long_journal_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    a = Writer(A)
    for _ in range(10):
        store.journal.append([a.published("/queue/q", b"x" * MIB)])
    disk.stop()
    largest = 0
    original = MemoryQueueStore.apply

    def apply(self: QueueStore, upserts: Sequence[RowRun], *args: object) -> None:
        nonlocal largest
        largest = max(largest, sum(len(run.records) for run in upserts))
        original(self, upserts, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryQueueStore, "apply", apply)
    store = open_small(disk, ROOMY)

    assert store.queues.heads("a", ["/queue/q"], NOW) == {"/queue/q": QueueHead(10, 10 * MIB, (4,), 0)}
    assert 1 <= largest <= 4


def full_disk_with_leftovers() -> tuple[MemoryDisk, Store]:
    """Message 1 is in the queue store; its settle messages 3 and 4 are in the journal only; there is no room."""
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    a, c = Writer(A), Writer(C)
    kept = a.publish("/queue/q", b"kept")
    store.journal.append([a.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    a.settle("/queue/q", [kept, Dot(C, 5)])
    a.publish("/queue/q", b"three")
    a.publish("/queue/p", b"four" * MIB)
    store.journal.append([a.batch(), c.published("/queue/q", b"of another node")])
    disk.stop()
    disk.capacity_bytes = disk.used_bytes() + MIB
    return disk, open_small(disk, ROOMY)


def test_what_has_no_room_in_the_stores_is_handed_over() -> None:
    _, store = full_disk_with_leftovers()

    assert [dot for dot, _ in store.recovered.messages] == [Dot(A, 3), Dot(A, 4)]
    assert store.recovered.settled == {"/queue/q": [Dot(A, 1)]}
    assert store.recovered.tombstones == {Dot(C, 5)}
    assert own_messages(store) == [(Dot(A, 3), b"three"), (Dot(A, 4), b"four" * MIB)]
    with pytest.raises(DiskFull):
        store.checkpoint(store.journal.end, NOW, {})


def test_what_is_handed_over_is_in_the_order_in_which_it_was_accepted() -> None:
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    a = Writer(A)
    sent = [a.publish("/queue/q", b"%d" % n, flags) for n, flags in enumerate((0, with_priority(TIMED, 4), 0, 7, 0))]
    a.attempts("/queue/q", {sent[2]: 2})
    a.publish("/queue/p", b"four" * MIB)
    store.journal.append([a.batch()])
    disk.stop()
    disk.capacity_bytes = disk.used_bytes() + MIB

    found = open_small(disk, ROOMY).recovered

    assert [dot for dot, _ in found.messages] == [*sent, Dot(A, 7)]
    assert [record.body for _, record in found.messages][:5] == [b"0", b"1", b"2", b"3", b"4"]
    assert found.attempts == {sent[2]: 2}


def test_what_had_no_room_at_opening_goes_into_the_stores_when_there_is_some() -> None:
    disk, store = full_disk_with_leftovers()
    disk.capacity_bytes *= 10

    store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {Dot(A, 3): b"three", Dot(A, 4): b"four" * MIB, Dot(C, 1): b"of another node"}
    assert store.queues.tombstones() == {Dot(C, 5)}


def test_a_slice_ends_after_many_changes_however_few_bytes_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.storage.checkpoints.checkpoint.SLICE_CHANGES", 10)
    store = open_small(MemoryDisk(), ROOMY)
    a = Writer(A)
    for _ in range(10):
        store.journal.append([a.published("/queue/q", *[b"x"] * 6)])
    commits = store.disk.calls["commit"]  # type: ignore[attr-defined]

    store.checkpoint(store.journal.end, NOW, {})

    assert store.disk.calls["commit"] - commits == 5 * 2  # type: ignore[attr-defined]
    assert len(all_rows(store)) == 60


def test_a_queue_store_without_room_for_a_slice_takes_smaller_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a", settings=ROOMY)
    assert isinstance(store.queues, SqliteQueueStore)
    pages = "PRAGMA max_page_count = {}"
    connection = store.queues._database.conn
    a = Writer(A)
    for _ in range(100):
        store.journal.append([a.published("/queue/q", *[b"x" * 500] * 100), a.published("/fanout/f", b"f" * 100)])
    connection.execute(pages.format(100))

    with pytest.raises(DiskFull, match="database"):
        store.checkpoint(store.journal.end, NOW, {})
    taken = len(all_rows(store))
    assert 0 < taken < 10_000
    assert store.queues.listing("a", None, 9) == [("/queue/q", taken, taken * 500)]
    connection.execute(pages.format(100_000))
    store.checkpoint(store.journal.end, NOW, {})

    assert len(all_rows(store)) == 10_000
    assert len(fanout_all(store, "/fanout/f", MIB)) == 100
    store.close()


def test_a_batch_that_cannot_fit_is_not_begun() -> None:
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    a = Writer(A)
    store.journal.append([a.published("/fanout/f", b"small")])
    store.journal.append([a.published("/fanout/f", b"x" * 12 * MIB)])
    disk.capacity_bytes = disk.used_bytes() + 16 * MIB

    with pytest.raises(DiskFull, match="a batch of"):
        store.checkpoint(store.journal.end, NOW, {})

    assert fanout_all(store, "/fanout/f", 1 << 30) == [(Dot(A, 1), b"small"), (Dot(A, 2), b"x" * 12 * MIB)]
    disk.capacity_bytes += 32 * MIB
    assert store.checkpoint(store.journal.end, NOW, {}).fanout_records == 1


def test_new_records_go_behind_what_the_queue_store_has_seen_when_the_disk_lost_what_it_had_synced() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    store.journal.append([a.published("/queue/q", b"1")])
    short = disk.contents()["journal/0000000000000000.qmq"]
    store.journal.append([a.published("/queue/q", b"2"), b.published("/queue/q", b"b1")])
    stored = store.journal.end
    disk.fail_at(1)  # The queue store commits, the catalog does not.
    with pytest.raises(StorageError):
        store.checkpoint(stored, NOW, {})
    disk.heal()
    disk.stop()
    assert store.queues.position() == stored
    disk.put("journal/0000000000000000.qmq", short)

    store = open_small(disk)
    assert store.recovered.lost_positions > 0
    assert store.recovered.vector == {A: 1}
    assert store.journal.end > stored
    store.journal.append([Writer(B).published("/queue/q", b"b1", b"b2"), Writer(C).published("/queue/q", b"new")])
    store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store)[Dot(C, 1)] == b"new"
    assert all_rows(store)[Dot(B, 2)] == b"b2"
    assert store.queues.listing("b", None, 9) == [("/queue/q", 2, 4)]
    # What the lost stretch held of our own is still served, and goes when it is settled.
    assert all_rows(store)[Dot(A, 2)] == b"2"
    c = Writer(C, have=1)
    c.settle("/queue/q", [Dot(A, 2)])
    store.journal.append([c.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert Dot(A, 2) not in all_rows(store)


def test_an_older_queue_store_takes_from_the_journal_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.storage.checkpoints.checkpoint.SLICE_BYTES", 1)  # A batch each.
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    a = Writer(A)
    store.journal.append([a.published("/queue/q", b"1", b"2"), Writer(B).published("/fanout/f", b"f")])
    store.checkpoint(store.journal.end, NOW, {})
    a.settle("/queue/q", [Dot(A, 1), Dot(C, 9)])
    store.journal.append([a.batch(), a.published("/queue/q", b"4")])
    disk.stop()
    del disk.tables["queues"]

    for _ in range(2):
        store = open_small(disk, ROOMY)
        assert all_rows(store) == {Dot(A, 2): b"2", Dot(A, 4): b"4"}
        assert store.recovered.tombstones == {Dot(C, 9)}
        assert fanout_all(store, "/fanout/f") == [(Dot(B, 1), b"f")]
        assert store.checkpoint_position == store.queues.position() == store.journal.end
        disk.stop()


def test_what_an_older_queue_store_lacks_is_not_taken_for_settled_while_there_is_no_room() -> None:
    disk = MemoryDisk()
    store = open_small(disk, ROOMY)
    store.journal.append([Writer(A).published("/queue/q", b"1" * MIB)])
    store.checkpoint(store.journal.end, NOW, {})
    disk.stop()
    del disk.tables["queues"]
    disk.capacity_bytes = disk.used_bytes() + MIB

    store = open_small(disk, ROOMY)

    assert [dot for dot, _ in store.recovered.messages] == [Dot(A, 1)]
    assert store.repair_source.known_of([Dot(A, 1)], {}).done == []


def test_a_queue_store_that_lacks_what_the_journal_has_dropped_says_what_may_be_missing() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for _ in range(12):
        store.journal.append([a.published("/queue/q", b"x" * 400)])
    store.checkpoint(store.journal.end, NOW, {})
    dropped = store.journal.base()[A]
    assert dropped > 0
    store.close()
    del disk.tables["queues"]

    store = open_small(disk)

    assert store.missing_ranges() == [MissingRange(A, 0, dropped)]
    assert len(own_messages(store)) == 12 - dropped
    assert UNCHECKED in store.catalog.facts()


def test_only_headers_of_records_that_say_so_are_asked_for_times() -> None:
    asked: list[tuple[bytes, int]] = []

    def times_of(headers: bytes, timestamp_us: int) -> tuple[int, int]:
        asked.append((headers, timestamp_us))
        return timestamp_us + 5, timestamp_us + 9

    settings = StoreSettings(reserve_bytes=0, times_of=times_of)
    store = open_small(MemoryDisk(), settings)
    a = Writer(A)
    a.publish("/queue/q", b"plain")
    a.publish("/queue/q", b"timed", flags=with_priority(TIMED, 9), headers=b"delay:5\n")
    a.publish("/fanout/f", b"timed too", flags=TIMED)
    store.journal.append([a.batch()])

    store.checkpoint(store.journal.end, NOW, {})

    assert asked == [(b"delay:5\n", NOW + 2)]
    (row,) = store.queues.due("a", "/queue/q", NOW, NOW + 7, 9)
    assert (row.body, row.priority, row.due_us, row.expires_us) == (b"timed", 9, NOW + 7, NOW + 11)
    assert store.queues.expired("a", NOW + 11, 9, 1 << 20) == [row]


def test_a_checkpoint_says_which_records_are_in_the_stores_now() -> None:
    store = open_small(MemoryDisk())
    a, b = Writer(A), Writer(B)
    end = store.journal.append([a.published("/queue/q", b"1", b"2"), b.published("/queue/q", b"1")])
    store.journal.append([a.published("/queue/q", b"3")])

    assert store.checkpoint(end, NOW, {}).vector == {A: 2, B: 1}
    assert store.checkpoint(store.journal.end, NOW, {}).vector == {A: 3, B: 1}
    assert store.checkpoint(store.journal.end, NOW, {}).vector == {A: 3, B: 1}


def test_a_checkpoint_says_in_one_line_what_it_did() -> None:
    store = open_small(MemoryDisk())
    end = store.journal.append([Writer(A).published("/queue/q", b"1", b"2")])

    assert str(store.checkpoint(end, NOW, {})) == f"read_bytes {end}, queue_rows_added 2"
    assert str(store.checkpoint(end, NOW, {})) == "nothing to do"


def test_the_index_of_a_full_segment_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[File] = []
    original = segment.is_sealed

    def is_sealed(file: File, batches_end: int) -> bool:
        looked.append(file)
        return original(file, batches_end)

    monkeypatch.setattr("qmq.storage.log.chain.is_sealed", is_sealed)
    disk = MemoryDisk()
    store = open_small(disk, SMALL)
    a = Writer(A)
    for _ in range(12):
        store.journal.append([a.published("/queue/q", b"x" * 400)])
    for _ in range(3):
        store.checkpoint(store.journal.end, NOW, {"b": {}})

    assert len(looked) == store.journal.segments() - 1 > 2
    disk.stop()
    store = open_small(disk, SMALL)
    looked.clear()
    for _ in range(3):
        assert store.checkpoint(store.journal.end, NOW, {"b": {}}).sealed == 0
    assert len(looked) == store.journal.segments() - 1


def test_only_the_owner_may_read_what_a_node_keeps(tmp_path: Path) -> None:
    usual = os.umask(0o022)
    try:
        store = open_store(tmp_path / "data", node="a")
        modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "data").rglob("*") if path.is_file()}
        store.close()
    finally:
        os.umask(usual)

    assert {"catalog.sqlite", "queues.sqlite"} <= set(modes)
    assert set(modes.values()) == {0}, modes
