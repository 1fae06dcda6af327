import os
from pathlib import Path
from unittest.mock import patch

import pytest

from qmq.errors import CorruptLog, DiskFull, LogBroken
from qmq.model.dots import Dot
from qmq.storage.checkpoints.checkpoint import COMMIT_BYTES
from qmq.storage.format.batch import GAPS, encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_gap, pack_record, with_priority
from qmq.storage.format.settings import StoreSettings
from qmq.storage.store import open_store
from tests.fakes.disk import MemoryDisk

from ..rig import (
    NOW,
    SMALL,
    A,
    B,
    C,
    Expected,
    Writer,
    all_rows,
    fanout_all,
    journal_batches,
    no_descriptor_left,
    open_small,
    own_messages,
)

DAY_US = 86400 * 1_000_000


def test_a_message_settled_before_the_checkpoint_never_touches_the_queue_store() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    first, second = a.publish("/queue/q", b"1"), a.publish("/queue/q", b"2")
    a.settle("/queue/q", [first])
    store.journal.append([a.batch()])

    report = store.checkpoint(store.journal.end, NOW, {})

    assert (report.queue_rows_added, report.queue_rows_deleted) == (1, 0)
    assert all_rows(store) == {second: b"2"}


@pytest.mark.parametrize("bound", ["SLICE_BYTES", "SLICE_CHANGES"])
def test_what_is_settled_soon_never_touches_the_queue_store_however_long_the_journal_is(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"qmq.storage.checkpoints.checkpoint.{bound}", 100 if bound == "SLICE_CHANGES" else 10_000)
    store = open_small(MemoryDisk())
    a = Writer(A)
    before: list[Dot] = []
    for _ in range(50):
        last = [a.publish("/queue/q", b"x" * 300) for _ in range(10)]
        if before:
            a.settle("/queue/q", before)
        store.journal.append([a.batch()])
        before = last

    report = store.checkpoint(store.journal.end, NOW, {})

    assert (report.queue_rows_added, report.queue_rows_deleted) == (10, 0)


@pytest.mark.parametrize("bound", ["SLICE_BYTES", "SLICE_CHANGES"])
def test_what_stays_is_carried_over_in_slices(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(f"qmq.storage.checkpoints.checkpoint.{bound}", 100 if bound == "SLICE_CHANGES" else 10_000)
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(50):
        store.journal.append([a.published("/queue/q", *(b"x" * 300 for _ in range(10)))])

    with patch.object(store.queues, "apply", wraps=store.queues.apply) as apply:
        store.checkpoint(store.journal.end, NOW, {})

    # Up to SLICE_CHANGES and a batch; up to three quarters of SLICE_BYTES, and as much again.
    added = [sum(len(run.records) for run in call.args[0]) for call in apply.call_args_list]
    assert sum(added) == len(all_rows(store)) == 500 and max(added) <= 110


def test_a_later_settle_deletes_the_row() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    dot = a.publish("/queue/q", b"1", flags=with_priority(0, 9))
    store.journal.append([a.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert [row.dot for row in store.queues.page("a", "/queue/q", 9, None, NOW, 10)] == [dot]

    a.settle("/queue/q", [dot])
    store.journal.append([a.batch()])
    report = store.checkpoint(store.journal.end, NOW, {})

    assert report.queue_rows_deleted == 1
    assert all_rows(store) == {}


@pytest.mark.parametrize("between", [False, True])
def test_a_settle_that_comes_before_its_message_kills_it(between: bool) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    b, c = Writer(B), Writer(C)
    b.settle("/queue/q", [Dot(C, 1)])
    store.journal.append([b.batch()])
    assert not between or store.checkpoint(store.journal.end, NOW, {})
    disk.stop()
    store = open_small(disk)
    assert store.recovered.tombstones == {Dot(C, 1)}

    store.journal.append([c.published("/queue/q", b"dead", b"alive")])
    store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {Dot(C, 2): b"alive"}
    assert store.queues.tombstones() == set()


def test_giving_up_records_frees_their_tombstones() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    a.settle("/queue/q", [Dot(C, 3), Dot(C, 30)])
    store.journal.append([a.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert store.queues.tombstones() == {Dot(C, 3), Dot(C, 30)}

    a.record(RecordKind.GAP, pack_gap(C, 10))
    store.journal.append([a.batch(GAPS)])
    store.checkpoint(store.journal.end, NOW, {})

    assert store.queues.tombstones() == {Dot(C, 30)}


def test_a_checkpoint_torn_at_any_call_is_repeated_without_a_trace() -> None:
    def history(disk: MemoryDisk, calls: int) -> tuple[list[bytes], bool]:
        store = open_small(disk)
        a, b = Writer(A), Writer(B)
        dots = [a.publish("/queue/q", b"q%d" % n) for n in range(4)]
        a.publish("/fanout/f", b"f1")
        batches = [a.batch(), b.published("/fanout/f", b"f2" * 300, b"f3" * 300)]
        store.journal.append(batches)
        store.checkpoint(store.journal.end, NOW, {})
        a.settle("/queue/q", dots[:2])
        b.settle("/queue/q", [Dot(A, 99)])
        later = [a.batch(), b.batch(), b.published("/fanout/f", b"f4" * 400), b.published("/fanout/g", b"g")]
        store.journal.append(later)
        before = disk.calls.copy()
        disk.fail_at(calls)
        torn = False
        try:
            store.checkpoint(store.journal.end, NOW, {})
        except LogBroken:
            torn = True
            with pytest.raises(LogBroken, match="before"):
                store.checkpoint(store.journal.end, NOW, {})
        else:
            assert calls > sum(disk.calls.values()) - sum(before.values()) - 1
        disk.heal()
        disk.stop()
        return batches + later, torn

    torn = 0
    for calls in range(60):
        disk = MemoryDisk()
        batches, was_torn = history(disk, calls)
        expected = Expected(batches)
        torn += was_torn

        store = open_small(disk)
        assert store.recovered.messages == []
        assert dict(own_messages(store)) == expected.live
        store.checkpoint(store.journal.end, NOW, {})

        assert all_rows(store) == expected.live
        assert store.queues.tombstones() == expected.tombstones
        for destination, records in expected.fanout.items():
            assert fanout_all(store, destination) == records
    assert 5 < torn < 60


def test_segments_stay_until_every_member_has_them() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(12):
        store.journal.append([a.published("/queue/q", b"x" * 400)])

    store.checkpoint(store.journal.end, NOW, {"b": {A: 12}, "c": {}})
    assert store.journal.start == 0
    report = store.checkpoint(store.journal.end, NOW, {"b": {A: 12}, "c": {A: 6}})

    assert report.dropped_bytes > 0
    assert 0 < store.journal.base()[A] <= 6
    assert store.journal.vector() == {A: 12}
    store.checkpoint(store.journal.end, NOW, {"b": {A: 12}, "c": {A: 12}})
    assert store.journal.segments() == 1


def test_enough_journal_is_kept_for_nodes_that_come_back() -> None:
    settings = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=4000, reserve_bytes=0)
    store = open_small(MemoryDisk(), settings)
    a = Writer(A)
    for _ in range(30):
        store.journal.append([a.published("/queue/q", b"x" * 400)])

    store.checkpoint(store.journal.end, NOW, {})

    assert 4000 - 1500 <= store.journal.end - store.journal.start <= 4000 + 1500


@pytest.mark.parametrize(
    "settings",
    [
        StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0, journal_bytes_max=4000),
        StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0, journal_age_seconds_max=60),
    ],
)
def test_bounds_of_bytes_and_age_hold_whatever_members_lack(settings: StoreSettings) -> None:
    store = open_small(MemoryDisk(), settings)
    a = Writer(A)
    for _ in range(30):
        store.journal.append([a.published("/queue/q", b"x" * 400)])

    store.checkpoint(store.journal.end, NOW + DAY_US, {"b": {}})

    assert store.journal.start > 0
    assert store.journal.end - store.journal.start <= 4000 + 1500


def test_old_records_of_a_peer_do_not_make_our_own_segments_old() -> None:
    settings = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0, journal_age_seconds_max=60)
    store = open_small(MemoryDisk(), settings)
    own = Writer(A).published("/queue/q", b"x" * 1200)
    store.journal.append([own])
    for sequence in range(1, 7):
        # What a peer had kept for long, or whose clock is far behind, comes last.
        record = pack_record(sequence, sequence, RecordKind.PUBLISH, 0, pack_envelope("/queue/q", b""), b"y" * 600)
        store.journal.append([encode_batch(B, [record], sequence, sequence, sequence, sequence)])

    store.checkpoint(store.journal.end, NOW, {"b": {}})

    assert journal_batches(store)[0] == own


def test_nothing_above_the_checkpoint_is_dropped() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    batches = [a.published("/queue/q", b"x" * 400) for _ in range(12)]
    ends = [store.journal.append([data]) for data in batches]

    store.checkpoint(ends[4], NOW, {})

    assert store.checkpoint_position == ends[4]
    assert journal_batches(store)[-7:] == batches[-7:]
    assert store.journal.start <= ends[4]


def test_a_crash_between_noting_the_new_base_and_removing_files_is_finished_later() -> None:
    for calls in range(12):
        disk = MemoryDisk()
        store = open_small(disk)
        a = Writer(A)
        for _ in range(12):
            store.journal.append([a.published("/queue/q", b"x" * 400)])
        store.checkpoint(store.journal.end, NOW, {"b": {}})
        disk.fail_at(calls)
        try:
            store.checkpoint(store.journal.end, NOW, {})
        except LogBroken:
            pass
        disk.heal()
        disk.stop()

        again = open_small(disk)

        assert again.recovered.vector == {A: 12}
        assert again.journal.start == again.catalog.base().position
        assert len(own_messages(again)) == 12


def test_a_checkpoint_without_room_changes_nothing_and_can_be_tried_again() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([Writer(A).published("/fanout/f", *[b"x" * 1_000_000] * 8)])
    store.journal.append([Writer(B).published("/fanout/f", *[b"x" * 1_000_000] * 8)])
    disk.capacity_bytes = disk.used_bytes() + 1_000_000

    with pytest.raises(DiskFull):
        store.checkpoint(store.journal.end, NOW, {})
    assert store.checkpoint_position == 0
    disk.capacity_bytes *= 10

    assert store.checkpoint(store.journal.end, NOW, {}).fanout_records == 16


def test_a_journal_damaged_under_a_running_node_is_never_carried_into_the_stores() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    store.journal.append([a.published("/queue/q", b"one"), a.published("/queue/q", b"two")])
    node = disk._files["journal/0000000000000000.qmq"]
    node.data[node.data.index(b"one")] ^= 1

    with pytest.raises(CorruptLog):
        store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {}
    with pytest.raises(LogBroken):
        store.checkpoint(store.journal.end, NOW, {})


def test_unsynced_records_are_synced_before_a_store_takes_them() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(sync="never", reserve_bytes=0))
    store.journal.append([Writer(A).published("/queue/q", b"x")])

    store.checkpoint(store.journal.end, NOW, {})

    assert store.journal.synced_end == store.journal.end


def test_the_settings_bound_what_a_segment_holds() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(50):
        store.journal.append([a.published("/queue/q", b"x" * 200)])

    bounds = [end for end, _, _ in store.journal.segment_bounds()]

    assert all(
        after - before <= SMALL.segment_bytes_max + 200 for before, after in zip(bounds, bounds[1:], strict=False)
    )


def test_dropped_segments_give_their_space_back(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a", settings=SMALL)
    a = Writer(A)
    for _ in range(12):
        store.journal.append([a.published("/queue/q", b"x" * 400)])

    store.checkpoint(store.journal.end, NOW, {})

    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.lexists(link)]
    assert len(list((tmp_path / "journal").iterdir())) == 1
    assert [name for name in open_files if name.startswith(str(tmp_path)) and name.endswith("(deleted)")] == []
    store.close()


def test_a_checkpoint_goes_on_without_a_file_descriptor_left(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a", settings=StoreSettings(reserve_bytes=0))
    a = Writer(A)
    dots = [a.publish("/queue/q", b"x" * 500) for _ in range(1000)]
    store.journal.append([a.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    a.settle("/queue/q", dots[::2])
    for number in range(1000):
        a.publish(f"/queue/{number % 500}", b"x" * 500)
    store.journal.append([a.batch()])

    with no_descriptor_left():
        report = store.checkpoint(store.journal.end, NOW, {})

    assert (report.queue_rows_added, report.queue_rows_deleted) == (1000, 500)
    store.close()


def test_a_checkpoint_is_not_begun_where_the_catalog_might_not_find_room_at_its_end() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([Writer(A).published("/queue/q", b"small")])
    disk.capacity_bytes = disk.used_bytes() + COMMIT_BYTES

    with pytest.raises(DiskFull):
        store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {}
    disk.capacity_bytes += 2 * COMMIT_BYTES
    store.checkpoint(store.journal.end, NOW, {})
    assert len(all_rows(store)) == 1


def test_what_is_settled_by_the_end_of_the_journal_needs_no_room_in_the_stores() -> None:
    """Else a full disk stays full: rows that consumers have drained are deleted by a checkpoint only."""
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    body = b"x" * 500_000
    store.journal.append([a.published("/queue/q", body, body)])
    store.checkpoint(store.journal.end, NOW, {})
    store.journal.append([a.published("/queue/q", body) for _ in range(8)])
    a.settle("/queue/q", [Dot(A, number) for number in range(1, 11)])
    store.journal.append([a.published("/queue/q", b"last")])
    disk.capacity_bytes = disk.used_bytes() + 4 * COMMIT_BYTES

    report = store.checkpoint(store.journal.end, NOW, {})

    assert report.queue_rows_deleted == 2
    assert list(all_rows(store).values()) == [b"last"]
