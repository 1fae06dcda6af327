"""A damaged fanout log is repaired from the journal or with records of another node."""

import random

import pytest

from qmq.errors import CorruptLog, LogBroken
from qmq.model.dots import Dot
from qmq.storage.fanouts.log import directory_name
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.repair.fanout_logs import SPOOL, records_of
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk
from tests.support.disks import DiskImage

from ..rig import NOW, A, B, Writer, fanout_all, open_small

F = "/fanout/f"
KEEPS_JOURNAL = StoreSettings(segment_bytes_max=700, journal_keep_bytes=1 << 30, reserve_bytes=0)
KEEPS_NONE = StoreSettings(segment_bytes_max=700, journal_keep_bytes=0, reserve_bytes=0)


def filled(disk: MemoryDisk, settings: StoreSettings) -> tuple[Store, list[tuple[Dot, bytes]]]:
    """A log of several small segments, with records of two origins; and what a reader is told of it."""
    store = open_small(disk, settings)
    writers = Writer(A), Writer(B)
    for number in range(24):
        writer = writers[number % 3 == 1]
        writer.publish("/fanout/other", b"other")
        writer.publish(F, b"body %d." % number * 10)
        store.journal.append([writer.batch()])
        store.checkpoint(store.journal.end, NOW, {})
    for _ in range(3):  # so that nothing of the fanout is in the journal's last segment, which always stays
        writers[0].publish("/queue/q", b"x" * 800)
        store.journal.append([writers[0].batch()])
        store.checkpoint(store.journal.end, NOW, {})
    return store, fanout_all(store, F)


def log_files(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.contents() if directory_name(F) in path)


def by_origin(rows: list[tuple[Dot, bytes]]) -> list[tuple[Dot, bytes]]:
    """Between origins no order is promised; within one the sort is stable, so a wrong order shows."""
    return sorted(rows, key=lambda row: row[0].origin)


def rot(disk: MemoryDisk, path: str, body: bytes) -> None:
    data = bytearray(disk.contents()[path])
    data[data.index(body)] ^= 1
    disk.put(path, bytes(data))


def reopened(disk: MemoryDisk, store: Store, settings: StoreSettings) -> Store:
    store.close()
    return open_small(disk, settings)


def repair(store: Store) -> bool:
    with pytest.raises(CorruptLog):
        fanout_all(store, F)
    assert store.damaged_fanouts() == [F]
    found = store.begin_repair(F, {})
    try:
        return found.is_complete and store.finish_repair(F, found)
    finally:
        found.close()


def harm(disk: MemoryDisk, what: str) -> None:
    files = log_files(disk)
    assert len(files) > 4
    match what:
        case "a batch":
            rot(disk, files[1], b"body")
        case "several batches":
            for path in (files[0], files[2], files[-1]):
                rot(disk, path, b"body")
        case "a head":
            disk.put(files[2], b"x" + disk.contents()[files[2]][1:])
        case "the first file" | "a file" | "the last file":
            disk.remove(files[{"the first file": 0, "a file": 2, "the last file": -1}[what]])
        case "the end of the last file":
            disk.put(files[-1], disk.contents()[files[-1]][:-30])
        case "everything":
            for path in files:
                disk.remove(path)


HARMS = [
    "a batch",
    "several batches",
    "a head",
    "the first file",
    "a file",
    "the last file",
    "the end of the last file",
    "everything",
]


def harmed(disk: MemoryDisk, settings: StoreSettings, what: str) -> tuple[Store, list[tuple[Dot, bytes]]]:
    """`filled`, then harmed while it was closed, and opened again."""
    store, rows = filled(disk, settings)
    store.close()
    harm(disk, what)
    return open_small(disk, settings), rows


@pytest.mark.parametrize("what", HARMS)
def test_what_the_journal_still_has_makes_a_log_whole(what: str) -> None:
    disk = MemoryDisk()
    store, rows = harmed(disk, KEEPS_JOURNAL, what)

    assert repair(store)

    assert by_origin(fanout_all(store, F)) == by_origin(rows)
    assert store.damaged_fanouts() == []
    assert SPOOL not in disk.contents()
    store = reopened(disk, store, KEEPS_JOURNAL)
    assert by_origin(fanout_all(store, F)) == by_origin(rows)
    assert store.fanout_info(F).records == len(rows)


@pytest.mark.parametrize("what", HARMS)
def test_what_the_journal_has_dropped_is_named_and_comes_from_another_node(what: str) -> None:
    disk = MemoryDisk()
    store, rows = filled(disk, KEEPS_NONE)
    store.close()
    harm(disk, what)
    other, _ = filled(MemoryDisk(), KEEPS_NONE)
    store = open_small(disk, KEEPS_NONE)
    with pytest.raises(CorruptLog):
        fanout_all(store, F)

    found = store.begin_repair(F, {})
    assert not found.is_complete
    for index, missing in enumerate(found.left):
        rest = other.repair_source.read(missing.origin, missing.after, missing.through, 0, F)
        found.add(index, rest.through, rest.records)
    assert found.is_complete and store.finish_repair(F, found)
    found.close()

    assert by_origin(fanout_all(store, F)) == by_origin(rows)
    writer = Writer(A, store.journal.vector()[A])
    writer.publish(F, b"later")
    store.journal.append([writer.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert fanout_all(store, F)[-1][1] == b"later"


def test_damage_in_the_journal_is_no_damage_of_a_log() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    writer = Writer(A)
    for body in (b"one", b"two"):
        store.journal.append([writer.published(F, body)])
    assert store.fanout_info(F).records == 2
    node = disk._files[next(path for path in disk.contents() if path.startswith("journal/"))]
    node.data[node.data.index(b"two")] ^= 1

    with pytest.raises(CorruptLog):
        fanout_all(store, F)

    assert len(store.damage()) == 1
    assert store.damaged_fanouts() == []


def test_a_node_is_asked_for_one_fanout_only() -> None:
    store, rows = filled(MemoryDisk(), KEEPS_NONE)
    last = store.journal.vector()[A]

    rest = store.repair_source.read(A, 0, last, 0, F)

    assert rest.through == last
    assert len(rest.records) == sum(dot.origin == A for dot, _ in rows)
    assert len(store.repair_source.read(A, 0, last, 0).records) > 2 * len(rest.records)


def test_what_came_while_it_was_looked_for_is_in_the_log_that_is_written() -> None:
    disk = MemoryDisk()
    store, rows = harmed(disk, KEEPS_JOURNAL, "a batch")
    with pytest.raises(CorruptLog):
        fanout_all(store, F)
    found = store.begin_repair(F, {})
    writer = Writer(A, store.journal.vector()[A])
    for body in (b"meanwhile", b"too"):
        writer.publish(F, body)
        store.journal.append([writer.batch()])
        store.checkpoint(store.journal.end, NOW, {})

    assert store.finish_repair(F, found)

    assert [body for _, body in fanout_all(store, F)][-2:] == [b"meanwhile", b"too"]
    assert len(fanout_all(store, F)) == len(rows) + 2


def test_retention_that_was_quicker_makes_it_begin_again() -> None:
    disk = MemoryDisk()
    store, _ = harmed(disk, KEEPS_JOURNAL, "a batch")
    with pytest.raises(CorruptLog):
        fanout_all(store, F)
    found = store.begin_repair(F, {})
    # The first segment with what follows is more than this, so it goes.
    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=1000)})

    assert not store.finish_repair(F, found)


def test_a_reader_in_the_midst_is_refused_once_and_a_new_one_reads_all() -> None:
    disk = MemoryDisk()
    store, rows = harmed(disk, KEEPS_JOURNAL, "the end of the last file")
    page = store.fanout_page(F, store.fanout_start(F), 300)

    assert repair(store)

    with pytest.raises(CorruptLog):
        store.fanout_page(F, page.position, 300)
    assert store.damaged_fanouts() == []
    assert len(fanout_all(store, F)) == len(rows)


def test_what_no_member_has_is_a_gap_for_readers_from_before_it() -> None:
    disk = MemoryDisk()
    store, rows = harmed(disk, KEEPS_NONE, "the first file")
    with pytest.raises(CorruptLog):
        fanout_all(store, F)
    found = store.begin_repair(F, {})
    missing_ranges = [missing for missing in found.left if missing.after < missing.through]

    for index in range(len(found.left)):
        found.give_up(index)
    assert store.finish_repair(F, found)

    page = store.fanout_page(F, store.fanout_start(F), 1 << 20)
    assert set(page.dropped) == {Dot(missing.origin, missing.through) for missing in missing_ranges}
    kept = [
        row for row in rows if all(row[0] not in _dots(missing.origin, missing.through) for missing in missing_ranges)
    ]
    assert by_origin([(Dot(origin, r.sequence), r.body) for origin, r in page.rows]) == by_origin(kept)


def _dots(origin: object, through: int) -> set[object]:
    return {(origin, sequence) for sequence in range(1, through + 1)}


def test_a_crash_at_any_write_leaves_the_old_log_or_the_new_one() -> None:
    for cut in range(1, 200):
        disk = MemoryDisk()
        store, rows = harmed(disk, KEEPS_JOURNAL, "several batches")
        disk.fail_at(cut)
        try:
            done = repair(store)
        except (LogBroken, OSError):
            done = False
        disk.heal()
        disk.crash(random.Random(cut))

        again = open_small(disk, KEEPS_JOURNAL)
        if not done and again.fanout_info(F).records != len(rows):
            assert repair(again)
        try:
            assert by_origin(fanout_all(again, F)) == by_origin(rows)
        except CorruptLog:
            assert repair(again)
            assert by_origin(fanout_all(again, F)) == by_origin(rows)
        if done:
            return
    raise AssertionError("never came to the end")


def test_a_last_file_cut_at_any_byte_is_noticed_and_made_whole() -> None:
    disk = MemoryDisk()
    store, rows = filled(disk, KEEPS_JOURNAL)
    store.close()
    path = log_files(disk)[-1]
    whole = disk.contents()[path]
    for size in range(len(whole)):
        cut = MemoryDisk()
        DiskImage(disk).restore(cut)
        cut.put(path, whole[:size])

        store = open_small(cut, KEEPS_JOURNAL)
        assert repair(store), size
        assert by_origin(fanout_all(store, F)) == by_origin(rows), size
        store.close()


def test_a_batch_gives_only_its_messages_for_the_fanout() -> None:
    writer = Writer(A)
    writer.publish(F, b"one")
    writer.publish("/queue/q", b"two")
    writer.settle("/queue/q", [Dot(A, 2)])
    writer.publish(F, b"four")

    found = records_of(F, writer.batch(), 1, 4)

    assert len(found) == 1 and b"four" in found[0]
