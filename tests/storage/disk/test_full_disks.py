"""Others fill the disk, to the last byte or almost, while a node writes: nothing breaks, and nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qmq.errors import DiskFull
from qmq.model.dots import Dot
from qmq.storage.format.interfaces import Disk
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk
from tests.support.cluster_disks import mounted_disk

from ..rig import NOW, A, B, C, Expected, Writer, all_rows, fanout_all, journal_batches, open_small

KEPT = StoreSettings(reserve_bytes=0, journal_keep_bytes=1 << 30, segment_bytes_max=20_000)
"""All of the journal is kept, so that it says what the stores should hold."""

F, G = "/fanout/f", "/fanout/g"
Q = "/queue/q"


def write(store: Store, a: Writer, b: Writer, rounds: int) -> None:
    """Messages to a queue and to fanouts, settles, and a stretch that is nowhere."""
    for n in range(rounds):
        queued = a.publish(Q, b"q%d" % n * 50)
        store.journal.append([a.batch(), b.published(F, b"f%d" % n * 90)], settle_only=True)
        store.journal.append([a.published(G, b"g%d" % n * 70)], settle_only=True)
        if n % 3 == 0:
            a.settle(Q, [queued])
            store.journal.append([a.batch()], settle_only=True)
    a.record(RecordKind.GONE, pack_lost(LostRange(C, 1, a.have)))
    store.journal.append([a.batch()], settle_only=True)


def assert_is_whole(store: Store) -> None:
    expected = Expected(journal_batches(store))
    assert all_rows(store) == expected.live
    for destination in (F, G):
        assert fanout_all(store, destination, 100_000) == expected.fanout[destination]


class TakenDisk(MemoryDisk):
    """At changing call number `at`, counted from `arm`, others take the last byte."""

    at = -1

    def arm(self, at: int) -> None:
        self.at = at

    def call(self, kind: str, size: int) -> bool:
        if self.at == 0:
            self.capacity_bytes = self.used_bytes() + size // 2
        self.at -= 1
        return super().call(kind, size)


def test_retention_goes_on_where_a_checkpoint_has_no_room_and_makes_some() -> None:
    disk = MemoryDisk()
    settings = StoreSettings(
        reserve_bytes=0, segment_bytes_max=1 << 20, fanout_retention=Retention(age_seconds_max=60, bytes_max=1 << 30)
    )
    store = open_small(disk, settings)
    a = Writer(A)
    for _ in range(40):
        store.journal.append([a.published(F, b"x" * 100_000)])
    store.checkpoint(store.journal.end, NOW, {})
    store.journal.append([a.published(Q, b"waits")])
    disk.capacity_bytes = disk.used_bytes() + 2000

    with pytest.raises(DiskFull):
        store.checkpoint(store.journal.end, NOW + 61_000_000, {})
    store.checkpoint(store.journal.end, NOW + 61_000_000, {})

    assert fanout_all(store, F) == []
    assert all_rows(store) == {Dot(A, 41): b"waits"}


def test_a_checkpoint_that_finds_no_room_at_any_call_is_made_up_for_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qmq.storage.checkpoints.checkpoint.SLICE_BYTES", 4000)
    refused = 0
    at = 0
    while True:
        disk = TakenDisk()
        store = open_small(disk, KEPT)
        a, b = Writer(A), Writer(B)
        write(store, a, b, 3)
        store.checkpoint(store.journal.end, NOW, {})
        write(store, a, b, 30)

        disk.arm(at)
        with suppress(DiskFull):
            store.checkpoint(store.journal.end, NOW + 1, {})
            refused -= 1
        refused += 1
        if disk.at >= 0:
            break  # It made fewer calls.
        disk.capacity_bytes = 1 << 40
        for destination in (F, G):
            assert fanout_all(store, destination, 100_000) == Expected(journal_batches(store)).fanout[destination]
        store.journal.append([b.published(F, b"more")])
        store.checkpoint(store.journal.end, NOW + 2, {})

        assert_is_whole(store)
        assert len(store.recovered.lost.ends) == 0
        disk.stop()
        again = open_small(disk, KEPT)
        assert_is_whole(again)
        assert len(again.recovered.lost.ends[C]) == 2, f"at call {at}"
        at += 1
    assert at > 10
    assert refused > 5


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path, 24 << 20):
        yield tmp_path


@contextmanager
def filled(place: Path, disk: Disk, left_bytes: int) -> Iterator[None]:
    """Something else takes what is free, up to so many bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while (room := disk.free_bytes() - left_bytes) > 0:
            file.write(bytes(min(room, 1 << 20)))
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("left_bytes", [0, 5_000, 70_000, 300_000, 1_000_000, 3_000_000])
def test_on_a_real_disk_that_others_have_filled_settles_are_taken_and_nothing_breaks(
    place: Path, left_bytes: int
) -> None:
    store = open_store(place / "data", node="a", settings=KEPT)
    store.disk.hold_reserve(4 << 20)
    assert store.disk.reserved_bytes == 4 << 20
    a, b = Writer(A), Writer(B)
    write(store, a, b, 60)

    with filled(place, store.disk, left_bytes):
        for n in range(5):
            write(store, a, b, 60)
            with suppress(DiskFull):
                store.checkpoint(store.journal.end, NOW + n, {})
            with suppress(DiskFull):
                store.catalog.set_facts({f"fact {n}": "x" * 3000})
            with suppress(DiskFull):
                store.give_back()
    store.checkpoint(store.journal.end, NOW + 9, {})

    assert_is_whole(store)
    if not left_bytes:
        assert store.journal.is_short
        assert store.disk.reserved_bytes < 4 << 20
    store.close()
    store = open_store(place / "data", node="a", settings=KEPT)
    assert_is_whole(store)
    store.close()


def test_when_the_reserve_is_used_up_an_append_changes_nothing_until_there_is_room(place: Path) -> None:
    store = open_store(place / "data", node="a", settings=KEPT)
    store.disk.hold_reserve(2 << 20)
    a = Writer(A)
    count = 0

    with filled(place, store.disk, 0), pytest.raises(DiskFull):
        while True:
            batch = a.published(Q, b"x" * 5_000)
            store.journal.append([batch], settle_only=True)
            count += 1
    assert store.disk.reserved_bytes == 0
    store.journal.append([batch], settle_only=True)

    store.checkpoint(store.journal.end, NOW, {})
    assert len(all_rows(store)) == count + 1 > 100
    store.close()


def test_a_node_is_started_in_the_place_of_the_reserve_when_the_disk_is_full(place: Path) -> None:
    store = open_store(place / "data", node="a", settings=KEPT)
    store.disk.hold_reserve(8 << 20)
    a, b = Writer(A), Writer(B)
    write(store, a, b, 60)
    disk = store.disk
    store.close()

    with filled(place, disk, 0):
        store = open_store(place / "data", node="a", settings=KEPT)
        origin = store.begin_incarnation(7, NOW)

    assert store.journal.vector()[origin] == 1
    store.checkpoint(store.journal.end, NOW, {})
    assert_is_whole(store)
    store.close()
