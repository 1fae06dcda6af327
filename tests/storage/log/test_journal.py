import threading
import tracemalloc
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from qmq.errors import DiskFull, LogBroken, NoDescriptor
from qmq.storage.format.batch import GAPS, MEMORY, SPARSE, verify_batch
from qmq.storage.format.record import RecordKind, pack_gap
from qmq.storage.format.segment import DESTINATIONS_MAX, Footer, make_footer, read_footer
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.chain import _SEAL_READ_BYTES, Segment
from qmq.storage.store import open_store
from tests.fakes.disk import MemoryDisk

from ..rig import (
    LIKE_AN_INDEX,
    NOW,
    SMALL,
    TRAILER_BYTES,
    A,
    B,
    C,
    Writer,
    journal_batches,
    like_an_index,
    no_descriptor_left,
    open_small,
)


def test_an_append_returns_the_end_and_costs_one_write_and_one_sync() -> None:
    disk = MemoryDisk()
    journal = open_small(disk).journal
    before = dict(disk.calls)

    end = journal.append([Writer(A).published("/queue/q", b"1"), Writer(B).published("/queue/q", b"2")])

    assert end == journal.end == journal.synced_end
    assert disk.calls["write"] - before["write"] == 1
    assert disk.calls["sync"] - before["sync"] == 1
    assert journal.vector() == {A: 1, B: 1}


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_without_always_nothing_is_synced_until_the_owner_asks(sync: str) -> None:
    disk = MemoryDisk()
    journal = open_small(disk, StoreSettings(sync=sync, reserve_bytes=0)).journal  # type: ignore[arg-type]
    synced, before = journal.synced_end, disk.calls["sync"]

    journal.append([Writer(A).published("/queue/q", b"1")])

    assert (journal.synced_end, disk.calls["sync"]) == (synced, before)
    journal.sync()
    assert (journal.synced_end, disk.calls["sync"]) == (journal.end, before + 1)
    journal.sync()
    assert disk.calls["sync"] == before + 1


def test_a_segment_that_cannot_be_opened_for_want_of_descriptors_is_begun_by_a_later_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.storage.disk.disk.SHORTAGE_PAUSES", 0)
    store = open_store(tmp_path, node="a", settings=StoreSettings(segment_bytes_max=1500, reserve_bytes=1 << 20))
    store.disk.hold_reserve(1 << 20)
    journal, a = store.journal, Writer(A)

    with no_descriptor_left():
        with pytest.raises(NoDescriptor):
            while True:
                batch = a.published("/queue/q", b"x" * 1400)
                journal.append([batch], settle_only=True)
        end = journal.end
        with pytest.raises(NoDescriptor):
            journal.append([batch], settle_only=True)
        assert journal.end == end
    journal.append([batch], settle_only=True)

    assert store.disk.reserved_bytes == 1 << 20
    assert journal_batches(store)[-1] == batch
    assert len(journal_batches(store)) == journal.vector()[A]
    store.close()


@pytest.mark.parametrize("have", [1, 3])
def test_a_batch_that_does_not_continue_its_origin_is_refused_and_nothing_is_written(have: int) -> None:
    disk = MemoryDisk()
    journal = open_small(disk).journal
    journal.append([Writer(A).published("/queue/q", b"1", b"2")])
    before = disk.contents()

    with pytest.raises(ValueError, match="does not continue"):
        journal.append([Writer(B).published("/queue/q", b"fine"), Writer(A, have).published("/queue/q", b"x")])

    assert disk.contents() == before
    assert journal.vector() == {A: 2}


@pytest.mark.parametrize("attributes", [SPARSE, MEMORY])
def test_batches_that_belong_elsewhere_are_refused(attributes: int) -> None:
    journal = open_small(MemoryDisk()).journal
    writer = Writer(A)
    writer.publish("/queue/q", b"x")

    with pytest.raises(ValueError, match="may not be journalled"):
        journal.append([writer.batch(attributes)])


def test_bytes_that_are_not_one_batch_are_refused() -> None:
    journal = open_small(MemoryDisk()).journal
    data = Writer(A).published("/queue/q", b"x")

    with pytest.raises(ValueError):
        journal.append([data + data])
    with pytest.raises(ValueError):
        journal.append([data[:50]])


@pytest.mark.parametrize("call", [0, 1])
def test_after_a_failed_write_or_sync_every_later_append_is_refused(call: int) -> None:
    disk = MemoryDisk()
    journal = open_small(disk).journal
    disk.fail_at(call)

    with pytest.raises(LogBroken, match="made to fail"):
        journal.append([Writer(A).published("/queue/q", b"1")])
    disk.heal()

    with pytest.raises(LogBroken):
        journal.append([Writer(A).published("/queue/q", b"1")])
    with pytest.raises(LogBroken):
        journal.sync()
    assert journal.vector() == {}
    assert journal.read(0, 100) == []


def test_a_full_disk_refuses_messages_while_settles_still_fit() -> None:
    disk = MemoryDisk(capacity_bytes=4000)
    journal = open_small(disk, StoreSettings(reserve_bytes=2000)).journal
    a = Writer(A)
    dot = a.publish("/queue/q", b"x")
    journal.append([a.batch()])

    with pytest.raises(DiskFull):
        journal.append([Writer(B).published("/queue/q", b"x" * 3000)])
    a.settle("/queue/q", [dot])
    journal.append([a.batch()], settle_only=True)
    with pytest.raises(DiskFull):
        journal.append([Writer(B).published("/queue/q", b"x" * 1900)])

    assert journal.vector() == {A: 2}


def test_a_write_that_finds_no_room_half_way_leaves_the_journal_as_it_was() -> None:
    disk = MemoryDisk(capacity_bytes=4000)
    store = open_small(disk, StoreSettings(reserve_bytes=0))
    a, b = Writer(A), Writer(B)
    small = a.published("/queue/q", b"small")
    before = disk.contents()

    with pytest.raises(DiskFull):
        store.journal.append([b.published("/queue/q", b"x" * 5000)], settle_only=True)
    assert disk.contents() == before
    assert store.journal.vector() == {}
    store.journal.append([small], settle_only=True)

    assert journal_batches(store) == [small]
    disk.stop()
    assert journal_batches(open_small(disk)) == [small]


@pytest.mark.parametrize("room", [0, 10, 200, 4000])
def test_an_append_takes_the_place_of_the_reserve_when_nothing_else_is_left(room: int) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    disk.hold_reserve(100_000)
    disk.capacity_bytes = disk.used_bytes() + disk.reserved_bytes + room
    a = Writer(A)
    # Each is a segment of its own: the next one needs room as well.
    batches = [a.published("/queue/q", b"x" * 1400) for _ in range(9)]

    for data in batches:
        store.journal.append([data], settle_only=True)

    assert journal_batches(store) == batches
    assert store.journal.is_short
    assert 0 < disk.reserved_bytes < 100_000
    disk.stop()
    assert journal_batches(open_small(disk)) == batches


def test_a_sync_that_finds_no_room_breaks_the_journal() -> None:
    disk = MemoryDisk()
    journal = open_small(disk).journal
    disk.hold_reserve(100_000)
    disk.error = OSError(ENOSPC, "no space left on the memory disk")
    disk.fail_next("sync")

    with pytest.raises(LogBroken):
        journal.append([Writer(A).published("/queue/q", b"x")], settle_only=True)

    assert disk.reserved_bytes == 100_000
    with pytest.raises(LogBroken):
        journal.append([Writer(A).published("/queue/q", b"x")], settle_only=True)


def test_a_write_that_cannot_be_taken_back_breaks_the_journal() -> None:
    disk = MemoryDisk(capacity_bytes=4000)
    journal = open_small(disk, StoreSettings(reserve_bytes=0)).journal
    disk.fail_at(1)  # The write finds no room, and the cut fails.

    with pytest.raises(LogBroken):
        journal.append([Writer(A).published("/queue/q", b"x" * 5000)], settle_only=True)


def test_reading_goes_over_segments_in_whole_batches_and_any_chunk_size() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    batches = [a.published("/queue/q", b"x" * (n * 37 % 500)) for n in range(30)]
    for data in batches:
        store.journal.append([data])
    assert store.journal.segments() > 5

    for size in (1, 100, 333, 5000, 10**6):
        found, position = [], store.journal.start
        while chunk := store.journal.read(position, size):
            assert len(chunk) == 1 or sum(head.size for _, head, _ in chunk) <= size
            found.extend(data for _, _, data in chunk)
            position = chunk[-1][0] + chunk[-1][1].size
        assert found == batches
    assert store.journal.read(store.journal.end, 100) == []


def test_positions_only_grow_over_segments_and_restarts() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    positions = [store.journal.append([a.published("/queue/q", b"x" * 400)]) for _ in range(8)]
    store.close()
    store = open_small(disk)
    positions.append(store.journal.append([a.published("/queue/q", b"x")]))

    assert positions == sorted(set(positions))


def test_the_last_append_began_where_the_one_before_ended_also_where_a_segment_begins() -> None:
    store = open_small(MemoryDisk())
    a, b = Writer(A), Writer(B)
    for _ in range(20):
        before = (store.journal.end, store.journal.vector())
        store.journal.append([a.published("/queue/q", b"x" * 200), b.published("/queue/q", b"y")])

        assert store.journal.last_append == before
    assert store.journal.segments() > 2


@pytest.mark.parametrize("again", [0, 1, 2])
def test_the_last_append_began_where_the_one_before_ended_also_when_only_a_new_segment_found_room(again: int) -> None:
    disk = MemoryDisk()
    journal = open_small(disk).journal
    a = Writer(A)
    journal.append([a.published("/queue/q", b"x" * 1400)])
    before = (journal.end, journal.vector())
    data = a.published("/queue/q", b"x" * 1400)
    disk.capacity_bytes = disk.used_bytes() + 300  # for the head of a segment, and no batch

    for _ in range(1 + again):
        with pytest.raises(DiskFull):
            journal.append([data], settle_only=True)
    assert journal.segments() == 2
    disk.capacity_bytes += 10_000
    journal.append([data], settle_only=True)

    assert journal.last_append == before


def test_seek_never_goes_past_a_batch_that_is_not_covered() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    writers = [Writer(A), Writer(B), Writer(C)]
    for n in range(40):
        store.journal.append([writers[n * 7 % 3].published("/queue/q", b"x" * 200)])
    for reopened in (False, True):
        if reopened:
            disk.stop()
        journal = open_small(disk).journal if reopened else store.journal
        everything = journal.read(0, 10**6)
        for position, _, _ in everything[::3]:
            vector = journal.vector_at(position)
            sought = journal.seek(vector)
            assert sought <= position
            assert all(head.last <= vector.get(head.origin, 0) for at, head, _ in everything if at < sought)
        assert journal.seek(journal.vector()) == journal.end
        assert journal.seek({}) == journal.start


def test_a_seek_starts_near_what_is_missing() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(40):
        store.journal.append([a.published("/queue/q", b"x" * 200)])

    sought = store.journal.seek({A: 39})

    assert store.journal.end - sought < 2 * SMALL.segment_bytes_max


def test_what_this_node_gave_up_counts_in_its_vector_and_what_others_gave_up_does_not() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    own, other = Writer(A), Writer(B)
    own.record(RecordKind.GAP, pack_gap(C, 10))
    other.record(RecordKind.GAP, pack_gap(C, 99))

    store.journal.append([own.batch(GAPS), other.batch(GAPS), Writer(C, have=10).published("/queue/q", b"x")])

    assert store.journal.vector() == {A: 1, B: 1, C: 11}
    disk.stop()
    assert open_small(disk).recovered.vector == {A: 1, B: 1, C: 11}


def test_full_segments_get_an_index_that_lists_what_they_hold() -> None:
    store = open_small(MemoryDisk())
    a, b = Writer(A), Writer(B)
    for _ in range(4):
        store.journal.append([a.published("/queue/q", b"x" * 300), b.published("/fanout/f", b"y" * 10, b"z")])

    sealed = store.journal.seal_full()

    assert sealed == store.journal.segments() - 1 > 0
    assert store.journal.seal_full() == 0
    full = store.journal._chain.segments[0]
    footer = read_footer(full.file, full.end - full.base)
    assert footer is not None
    assert footer.ranges[B][0][0] == 1
    assert footer.kinds[(B, 1)] == 2 * len([entry for entry in footer.batches if entry.origin == B])
    assert footer.destinations["/fanout/f"][1] == 11 * footer.destinations["/fanout/f"][0] // 2
    assert journal_batches(store)[-1] == store.journal.read(0, 10**6)[-1][2]


@pytest.mark.parametrize("what", LIKE_AN_INDEX)
def test_a_body_that_ends_like_an_index_is_none(what: str) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for _ in range(6):
        store.journal.append([a.published("/queue/q", b"x" * 600 + LIKE_AN_INDEX[what])])

    report = store.checkpoint(store.journal.end, NOW, {"b": {}})

    assert report.sealed == store.journal.segments() - 1 > 1
    disk.stop()
    store = open_small(disk)
    assert store.checkpoint(store.journal.end, NOW, {"b": {}}).sealed == 0
    chain = store.journal._chain
    assert [entry.last for segment in chain.segments for entry in chain.index_of(segment)] == [1, 2, 3, 4, 5, 6]


def test_not_even_one_that_says_where_the_batches_end() -> None:
    end = 0
    for _ in range(2):
        store = open_small(MemoryDisk())
        a = Writer(A)
        for _ in range(3):
            store.journal.append([a.published("/queue/q", b"x" * 600 + like_an_index(end))])
        full = store.journal._chain.segments[0]
        end = full.end - full.base

    assert full.file.read(end - TRAILER_BYTES, 8) == end.to_bytes(8, "big")
    assert read_footer(full.file, end) is None


def test_damage_met_by_a_reader_is_passed_over_and_noted() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    batches = [a.published("/queue/q", b"body%d" % n * 20) for n in range(3)]
    store.journal.append(batches)
    store.checkpoint(store.journal.end, NOW, {"b": {}})
    store.close()
    path = next(iter(disk.contents()))
    data = bytearray(disk.contents()[path])
    data[data.index(b"body1")] ^= 1
    disk.put(path, bytes(data))

    journal = open_small(disk).journal

    assert [data for _, _, data in journal.read(0, 10**6)] == [batches[0], batches[2]]
    assert len(journal.damage) == 1


def test_a_full_segment_with_damage_gets_no_index_and_one_with_a_known_hole_does() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for number in range(6):
        store.journal.append([a.published("/queue/q", b"body%d" % number * 100)])
    node = disk._files[next(path for path in disk.contents() if path.startswith("journal/"))]
    node.data[node.data.index(b"body1")] ^= 1

    sealed = store.journal.seal_full()

    assert sealed == store.journal.segments() - 2 > 0
    assert len(store.journal.damage) == 1
    assert store.journal.seal_full() == 0
    disk.stop()
    store = open_small(disk)
    assert len(store.recovered.quarantined) > 0
    assert store.journal.seal_full() == 1
    assert store.journal.damage == []


def test_readers_beside_an_appender_see_a_prefix_and_nothing_torn() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    batches = [a.published("/queue/q", b"x" * (n % 90)) for n in range(300)]
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while True:
            last_round = done.is_set()
            found = journal_batches(store)
            if found != batches[: len(found)] or store.journal.damage:
                failures.append(len(found))
            if last_round:
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for data in batches:
        store.journal.append([data])
    done.set()
    for reader in readers:
        reader.join()

    assert failures == []
    assert journal_batches(store) == batches


def test_a_segment_that_is_dropped_while_another_begins_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(12):
        store.journal.append([a.published("/queue/q", b"x" * 400)])
    segments = store.journal._chain.segments
    make = Segment.__init__

    def begin(self: Segment, *args: Any) -> None:
        checkpoint = threading.Thread(target=store.journal.drop_before, args=(segments[1].base,))
        checkpoint.start()
        checkpoint.join()
        make(self, *args)

    monkeypatch.setattr(Segment, "__init__", begin)
    while store.journal._chain.segments[-1] is segments[-1]:
        store.journal.append([a.published("/queue/q", b"x" * 400)])

    assert store.journal.start == segments[1].base
    assert store.journal.segments() == len(segments)


def test_a_disk_that_cannot_be_read_is_a_broken_log_and_not_an_empty_one() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([Writer(A).published("/fanout/f", b"x")])
    store.checkpoint(store.journal.end, NOW, {})
    disk.stop()

    with pytest.raises(LogBroken, match="cannot read"):
        store.journal.read(0, 100)
    with pytest.raises(LogBroken, match="cannot read"):
        store.fanout_page("/fanout/f", store.fanout_start("/fanout/f"), 100)[:3]


def test_the_index_of_a_full_segment_is_made_without_holding_the_segment() -> None:
    segment_bytes = 24 << 20
    settings = StoreSettings(segment_bytes_max=segment_bytes, sync="never", reserve_bytes=0)
    store = open_small(MemoryDisk(), settings)
    writer = Writer(A)
    for _ in range(52):
        store.journal.append([writer.published("/queue/q", bytes(500_000))])

    tracemalloc.start()
    sealed = store.journal.seal_full()
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert sealed == 1
    assert highest < 4 * _SEAL_READ_BYTES < segment_bytes


def test_an_index_lists_destinations_up_to_a_bound_and_then_none() -> None:
    writer = Writer(A)
    few = [writer.published("/queue/a", b"1"), writer.published("/queue/b", b"22")]
    many = [writer.published(f"/queue/{n}", b"") for n in range(DESTINATIONS_MAX + 1)]

    def footer_of(batches: list[bytes]) -> Footer:
        return make_footer(300, [(100 + n, verify_batch(data), data) for n, data in enumerate(batches)])

    assert footer_of(few).destinations == {"/queue/a": (1, 1), "/queue/b": (1, 2)}
    footer = footer_of([*many, *few])

    assert footer.destinations == {}
    assert footer.kinds[A, RecordKind.PUBLISH] == DESTINATIONS_MAX + 3
