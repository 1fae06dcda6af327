import os
import resource
import threading
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog, LogBroken, NoDescriptor
from qmq.model.dots import Dot
from qmq.storage.disk.disk import SPARE_DESCRIPTORS
from qmq.storage.fanouts import log as fanout
from qmq.storage.fanouts.log import directory_name
from qmq.storage.fanouts.open_logs import OPEN_FILES_MAX
from qmq.storage.fanouts.reader import FanoutInfo
from qmq.storage.format.record import Record
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.log.journal import Mark
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk

from ..rig import LIKE_AN_INDEX, NOW, A, B, Writer, fanout_all, no_descriptor_left, open_small

F = "/fanout/f"
DAY_US = 86400 * 1_000_000


def bodies(store: Store, destination: str = F) -> list[bytes]:
    return [body for _, body in fanout_all(store, destination)]


def checkpoint(store: Store, now_us: int = NOW) -> None:
    store.checkpoint(store.journal.end, now_us, {})


def test_one_reading_covers_the_fanout_log_and_the_journal_after_it() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    store.journal.append([a.published(F, b"1", b"2")])
    checkpoint(store, NOW + 2)
    store.journal.append([a.published(F, b"3")])

    assert bodies(store) == [b"1", b"2", b"3"]
    info = store.fanout_info(F)
    assert (info.records, info.first_us, info.last_us) == (3, NOW + 1, NOW + 3)
    assert store.fanouts() == [F]


def test_at_end_says_up_to_where_the_journal_was_read() -> None:
    store = open_small(MemoryDisk())
    store.journal.append([Writer(A).published("/queue/q", b"no fanout")])

    records, position, at_end = store.fanout_page(F, store.fanout_start(F), 100)[:3]

    assert (records, at_end, position.journal_position) == ([], True, store.journal.end)


def test_a_fanout_without_any_message_is_empty() -> None:
    store = open_small(MemoryDisk())

    assert bodies(store, "/fanout/none") == []
    assert store.fanout_info("/fanout/none") == FanoutInfo(records=0, bytes=0, first_us=0, last_us=0)


@pytest.mark.parametrize("seed", range(60))
def test_no_record_is_skipped_or_repeated_whatever_checkpoints_and_drops_come_between(seed: int) -> None:
    random = Random(seed)
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    written: list[tuple[Dot, bytes]] = []
    starts: list[tuple[Mark, int]] = []
    readers = [(store.fanout_start(F), list[tuple[Dot, bytes]](), 0)]
    for _ in range(60):
        what = random.randint(0, 9)
        if what < 4:
            writer = random.choice([a, b])
            begin, count = (store.journal.end, store.journal.vector()), len(written)
            for _ in range(random.randint(1, 3)):
                body = b"%d" % len(written) * random.randint(1, 30)
                if random.randint(0, 2):
                    written.append((writer.publish(F, body), body))
                else:
                    writer.publish("/fanout/other", b"x")
            starts.append((begin, count))
            store.journal.append([writer.batch()])
        elif what < 6:
            checkpoint(store)
        elif what == 6 and starts:
            begin, count = random.choice(starts)
            readers.append((store.fanout_at(F, begin), [], count))
        elif what == 7:
            store.close()
            store = open_small(disk)
        else:
            index = random.randint(0, len(readers) - 1)
            position, found, count = readers[index]
            records, position, _ = store.fanout_page(F, position, random.randint(1, 400))[:3]
            found.extend((Dot(origin, record.sequence), record.body) for origin, record in records)
            readers[index] = (position, found, count)

    for position, found, count in readers:
        at_end = False
        while not at_end:
            records, position, at_end = store.fanout_page(F, position, 200)[:3]
            found.extend((Dot(origin, record.sequence), record.body) for origin, record in records)
        assert found == written[count:]


def test_a_reader_resumes_with_what_it_has() -> None:
    store = open_small(MemoryDisk())
    a, b = Writer(A), Writer(B)
    store.journal.append([a.published(F, b"a1", b"a2"), b.published(F, b"b1")])
    checkpoint(store)
    store.journal.append([a.published(F, b"a3"), b.published(F, b"b2")])

    records, _, _ = store.fanout_page(F, store.fanout_after(F, {A: 3, B: 1}), 10**6)[:3]

    assert [record.body for _, record in records] == [b"b2"]


@pytest.mark.parametrize("what", LIKE_AN_INDEX)
def test_bodies_that_end_like_an_index_are_neither_skipped_nor_forgotten(what: str) -> None:
    """Every checkpoint puts its messages at the end of the log, and some of them fill a segment."""
    store = open_small(MemoryDisk(), StoreSettings(segment_bytes_max=5000, journal_keep_bytes=0, reserve_bytes=0))
    a = Writer(A)
    for _ in range(8):
        store.journal.append([a.published(F, b"x" * 2000 + LIKE_AN_INDEX[what])])
        checkpoint(store)

    records, _, _ = store.fanout_page(F, store.fanout_after(F, {A: 1}), 10**6)[:3]
    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=10_000)})

    assert [record.sequence for _, record in records] == [2, 3, 4, 5, 6, 7, 8]
    page = store.fanout_page(F, store.fanout_start(F), 10**6)
    assert page.rows[0][1].sequence > 1
    assert page.dropped == (Dot(A, page.rows[0][1].sequence - 1),)


def test_a_reader_from_a_dropped_journal_position_gets_what_came_after_it_and_nothing_before() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    store.journal.append([a.published(F, b"x" * 700)])
    store.journal.append([a.published(F, b"y" * 700)])
    began = store.journal.last_append
    for _ in range(5):
        store.journal.append([a.published(F, b"y" * 700)])
    checkpoint(store)
    assert store.journal.start > began[0]

    records, _, _ = store.fanout_page(F, store.fanout_at(F, began), 10**6)[:3]

    assert [record.body[:1] for _, record in records] == [b"y"] * 6


def test_retention_drops_old_segments_and_a_reader_goes_on_with_what_is_kept() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for n in range(10):
        store.journal.append([a.published(F, b"%d" % n * 500)])
        checkpoint(store)
    before = store.fanout_info(F)
    start = store.fanout_start(F)

    store.checkpoint(store.journal.end, NOW + 1, {}, {F: Retention(bytes_max=2000)})

    kept = bodies(store)
    assert 0 < len(kept) < 10
    assert kept[-1] == b"9" * 500
    info = store.fanout_info(F)
    assert (info.records, info.bytes) == (len(kept), info.bytes)
    assert info.bytes <= 2000 < before.bytes
    assert len(store.fanout_page(F, start, 10**6)[:3][0]) == len(kept)
    store.close()
    assert bodies(open_small(disk)) == kept


def test_retention_by_age_keeps_nothing_that_is_too_old() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for n in range(8):
        store.journal.append([a.published(F, b"%d" % n * 500)])
        checkpoint(store)

    checkpoint(store, NOW + 8 * DAY_US)

    assert bodies(store) == []
    assert store.fanout_info(F).bytes < 200  # the head of an empty segment


def test_more_fanouts_than_may_be_open_at_once_all_keep_their_records() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    count = OPEN_FILES_MAX + 20
    for _ in range(2):
        for n in range(count):
            a.publish(f"/fanout/{n}", b"%d" % n)
        store.journal.append([a.batch()])
        checkpoint(store)
    store.close()
    store = open_small(disk)

    assert all(bodies(store, f"/fanout/{n}") == [b"%d" % n] * 2 for n in range(count))


def test_many_fanouts_in_one_batch_need_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.storage.fanouts.open_logs.OPEN_FILES_MAX", 8)
    store = open_store(tmp_path, node="a", settings=StoreSettings(reserve_bytes=0))
    a = Writer(A)
    for n in range(60):
        a.publish(f"/fanout/{n}", b"%d" % n)
    store.journal.append([a.batch()])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 20, hard))
    try:
        checkpoint(store)
        found = [bodies(store, f"/fanout/{n}") for n in range(60)]
        checkpoint(store, NOW + 30 * DAY_US)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        store.close()

    assert found == [[b"%d" % n] for n in range(60)]


@pytest.fixture
def no_wait_for_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.storage.disk.disk.SHORTAGE_PAUSES", 0)


def store_with_long_logs(root: Path, a: Writer, *destinations: str) -> Store:
    """Each has more segments than a disk has descriptors in reserve; no log is open."""
    settings = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0)
    store = open_store(root, node="a", settings=settings)
    for destination in destinations:
        for _ in range(2 * SPARE_DESCRIPTORS):
            store.journal.append([a.published(destination, b"x" * 1400)])
            checkpoint(store)
    store.close()
    return open_store(root, node="a", settings=settings)


@pytest.mark.usefixtures("no_wait_for_descriptors")
def test_a_checkpoint_without_descriptors_for_a_log_changes_nothing_and_is_made_later(tmp_path: Path) -> None:
    a = Writer(A)
    store = store_with_long_logs(tmp_path, a, F)
    store.journal.append([a.published(F, b"1"), a.published("/fanout/new", b"2")])
    before = store.checkpoint_position

    with no_descriptor_left(), pytest.raises(NoDescriptor):
        checkpoint(store)
    assert store.checkpoint_position == before
    checkpoint(store)

    assert len(bodies(store)) == 2 * SPARE_DESCRIPTORS + 1
    assert bodies(store, "/fanout/new") == [b"2"]
    store.close()


@pytest.mark.usefixtures("no_wait_for_descriptors")
def test_a_reader_without_descriptors_for_its_log_is_refused_and_reads_later(tmp_path: Path) -> None:
    store = store_with_long_logs(tmp_path, Writer(A), F)

    with no_descriptor_left(), pytest.raises(LogBroken):
        bodies(store)

    assert len(bodies(store)) == 2 * SPARE_DESCRIPTORS
    store.close()


@pytest.mark.usefixtures("no_wait_for_descriptors")
def test_without_descriptors_a_log_is_opened_with_those_of_another(tmp_path: Path) -> None:
    a = Writer(A)
    store = store_with_long_logs(tmp_path, a, F, "/fanout/other")
    store.journal.append([a.published(F, b"1")])
    assert len(bodies(store, "/fanout/other")) == 2 * SPARE_DESCRIPTORS

    with no_descriptor_left():
        checkpoint(store)
        assert len(bodies(store)) == 2 * SPARE_DESCRIPTORS + 1
    store.close()


def test_segments_of_one_log_count_as_open_files_too() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    for _ in range(OPEN_FILES_MAX + 20):
        store.journal.append([a.published(F, b"x" * 1400)])
    store.journal.append([a.published("/fanout/other", b"1")])
    checkpoint(store)

    assert len(bodies(store)) == OPEN_FILES_MAX + 20
    assert bodies(store, "/fanout/other") == [b"1"]


def test_a_log_that_a_reader_opens_during_a_checkpoint_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.storage.fanouts.open_logs.OPEN_FILES_MAX", 1)
    store = open_small(MemoryDisk())
    a = Writer(A)
    for round_ in range(2):
        for n in range(3):
            a.publish(f"/fanout/{n}", b"%d" % round_)
        store.journal.append([a.batch()])
        if round_ == 0:
            checkpoint(store)
    commit = store.catalog.commit_checkpoint

    def read_first(*arguments: object, **named: object) -> None:
        assert [bodies(store, f"/fanout/{n}") for n in range(3)] == [[b"0", b"1"]] * 3
        commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store.catalog, "commit_checkpoint", read_first)
    checkpoint(store)

    assert [bodies(store, f"/fanout/{n}") for n in range(3)] == [[b"0", b"1"]] * 3


def test_a_reader_beside_appends_and_checkpoints_misses_nothing() -> None:
    store = open_small(MemoryDisk(), StoreSettings(segment_bytes_max=3000, journal_keep_bytes=0, reserve_bytes=0))
    a = Writer(A)
    found: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        position = store.fanout_start(F)
        while True:
            last_round = done.is_set()
            at_end = False
            while not at_end:
                records, position, at_end = store.fanout_page(F, position, 500)[:3]
                found.extend(record.body for _, record in records)
            if last_round:
                return

    def carry() -> None:
        while not done.is_set():
            checkpoint(store)

    threads = [threading.Thread(target=read), threading.Thread(target=carry)]
    for thread in threads:
        thread.start()
    for n in range(300):
        store.journal.append([a.published(F, b"%d" % n)])
    done.set()
    for thread in threads:
        thread.join()

    assert found == [b"%d" % n for n in range(300)]


def test_what_a_checkpoint_left_beyond_its_end_is_cut_also_where_there_is_no_room_for_a_copy() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(reserve_bytes=0))
    a = Writer(A)
    store.journal.append([a.published(F, b"x" * 30_000)])
    checkpoint(store)
    disk.stop()
    path = next(path for path in disk.contents() if path.startswith("fanout/"))
    whole = disk.contents()[path]
    disk._files[path].data += b"not committed"
    disk.capacity_bytes = disk.used_bytes() + 10_000

    store = open_small(disk, StoreSettings(reserve_bytes=0))

    assert bodies(store) == [b"x" * 30_000]
    assert disk.contents()[path] == whole


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_destination_has_a_safe_file_name_of_its_own(one: str, other: str) -> None:
    name = directory_name(one)

    assert len(name) <= 80
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    assert name not in (".", "..", "")
    assert (name == directory_name(other)) == (one == other)


def test_a_reader_is_refused_where_a_log_is_damaged_and_never_given_what_comes_behind_as_if_it_were_next() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for body in (b"one", b"two", b"three"):
        store.journal.append([a.published("/fanout/f", body)])
        store.checkpoint(store.journal.end, NOW, {})
    path = next(path for path in disk.contents() if path.startswith("fanout/"))
    node = disk._files[path]
    node.data[node.data.index(b"two")] ^= 1

    with pytest.raises(CorruptLog):
        store.fanout_page("/fanout/f", store.fanout_start("/fanout/f"), 10**6)

    assert len(store.damage()) == 1
    assert store.damaged_fanouts() == ["/fanout/f"]


@pytest.mark.parametrize("bytes_max", [1, 10**6])
def test_a_reader_is_refused_where_the_journal_is_damaged_also_when_it_comes_after_the_damage(bytes_max: int) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for body in (b"one", b"two", b"three"):
        store.journal.append([a.published(F, body)])
    node = disk._files[next(path for path in disk.contents() if path.startswith("journal/"))]
    node.data[node.data.index(b"two")] ^= 1

    found: list[Record] = []
    position = store.fanout_start(F)
    at_end = False
    with pytest.raises(CorruptLog):
        while not at_end:
            records, position, at_end = store.fanout_page(F, position, bytes_max)[:3]
            found += [record for _, record in records]

    assert [record.body for record in found] == ([b"one"] if bytes_max == 1 else [])
    assert len(store.damage()) == 1
    records, _, at_end = store.fanout_page(F, store.fanout_begin(F, "last", 0).position, bytes_max)[:3]
    assert ([record.body for _, record in records], at_end) == ([b"three"], True)


def test_a_segment_that_is_damaged_when_it_is_full_gets_no_index_that_covers_it_up() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(segment_bytes_max=5000, journal_keep_bytes=0, reserve_bytes=0))
    a = Writer(A)
    for number in range(4):
        store.journal.append([a.published(F, b"body%d" % number * 200)])
        checkpoint(store)
        if number == 2:
            node = disk._files[next(path for path in disk.contents() if path.startswith("fanout/"))]
            node.data[node.data.index(b"body2")] ^= 1
    assert store.damaged_fanouts() == []

    while len(store._logs.get(F).chain.segments) == 1:
        store.journal.append([a.published(F, b"more" * 200)])
        checkpoint(store)

    assert store.damaged_fanouts() == [F]
    assert len(store.damage()) == 1
    position = store.fanout_after(F, {A: store._logs.get(F).chain.contents(store._logs.get(F).chain.segments[0])[0][A]})
    with pytest.raises(CorruptLog):
        store.fanout_page(F, position, 10**6)


def test_a_new_fanout_is_opened_once_and_synced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred thousand each costs its share of a checkpoint."""
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    count = 3 * OPEN_FILES_MAX
    for number in range(count):
        a.publish(f"/fanout/{number}", b"x")
    store.journal.append([a.batch()])
    opened: list[str] = []
    real = fanout.open_chain

    def opening(disk: MemoryDisk, directory: str, content: int, node: str, *, is_synced: bool) -> object:
        opened.append(directory)
        return real(disk, directory, content, node, is_synced=is_synced)

    monkeypatch.setattr(fanout, "open_chain", opening)
    before = dict(disk.calls)

    checkpoint(store)

    assert len(opened) == count
    assert disk.calls["sync"] - before["sync"] < 1.1 * count
    assert disk.calls["sync_directory"] - before["sync_directory"] < 1.1 * count
    assert all(bodies(store, f"/fanout/{number}") == [b"x"] for number in range(count))


def test_the_name_of_a_new_fanouts_directory_is_durable_before_the_catalog_counts_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for number in range(3):
        a.publish(f"/fanout/{number}", b"x")
    store.journal.append([a.batch()])
    order: list[str] = []
    sync_directory, call = disk.sync_directory, disk.call

    def syncing(path: str) -> None:
        order.append(path)
        sync_directory(path)

    def calling(kind: str, size: int) -> bool:
        order.extend(["commit"] if kind == "commit" else [])
        return call(kind, size)

    monkeypatch.setattr(disk, "sync_directory", syncing)
    monkeypatch.setattr(disk, "call", calling)

    checkpoint(store)

    assert order.count(fanout.FANOUT_DIRECTORY) == 1
    last = len(order) - 1 - order[::-1].index("commit")
    assert order.index(fanout.FANOUT_DIRECTORY) < last
    assert all(order.index(f"fanout/{directory_name(f'/fanout/{n}')}") < last for n in range(3))
