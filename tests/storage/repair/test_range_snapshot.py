"""The snapshot that a peer gets of a range whose journal is dropped: everything unsettled, and nothing settled."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.format.batch import REST, batch_records, read_head, verify_batch
from qmq.storage.format.record import RecordKind
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.repair.range_snapshot import SNAPSHOT_BYTES, RangeSnapshot, nothing_left, snapshot_batch
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk

from ..rig import LIKE_AN_INDEX, NOW, SMALL, B, Writer, all_rows, fanout_all, open_small


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    with ExitStack() as stores:

        def open_it(name: str) -> Store:
            if request.param == "memory":
                return open_small(MemoryDisk())
            store = open_store(tmp_path / name, node="a", settings=SMALL)
            stores.callback(store.close)
            return store

        yield open_it


def checkpoint(store: Store, now_us: int = NOW, **kept: Retention) -> None:
    store.checkpoint(store.journal.end, now_us, {}, {f"/fanout/{name}": one for name, one in kept.items()})


def copied(store: Store, other: Store, origin: Origin, through: int) -> None:
    """What a peer does: ask for part after part, and take each into its own journal."""
    after = other.journal.vector().get(origin, 0)
    while after < through:
        rest = store.repair_source.read(origin, after, through, 0)
        assert rest.through > after
        other.journal.append([snapshot_batch(origin, after, rest)])
        after = rest.through


def test_what_is_left_comes_in_order_and_what_is_settled_does_not(opened: Callable[[str], Store]) -> None:
    store, other = opened("one"), opened("other")
    b = Writer(B)
    b.publish("/queue/q", b"done")
    b.publish("/fanout/f", b"kept")
    b.publish("/queue/q", b"waits")
    b.publish("/fanout/g", b"too")
    b.settle("/queue/q", [Dot(B, 1)])
    b.publish("/queue/r", b"waits too", flags=5)
    store.journal.append([b.batch()])
    checkpoint(store)

    copied(store, other, B, 6)

    head_of = other.journal.read(0, 10**6)
    assert [head.attributes & REST for _, head, _ in head_of] == [REST]
    checkpoint(other)
    assert all_rows(other) == all_rows(store) == {Dot(B, 3): b"waits", Dot(B, 6): b"waits too"}
    assert fanout_all(other, "/fanout/f") == [(Dot(B, 2), b"kept")]
    assert fanout_all(other, "/fanout/g") == [(Dot(B, 4), b"too")]
    assert other.journal.vector()[B] == 6


def test_a_long_range_comes_in_bounded_parts_without_a_record_lost_or_twice(opened: Callable[[str], Store]) -> None:
    store, other = opened("one"), opened("other")
    b = Writer(B)
    wanted = {}
    for number in range(300):
        body = b"%d" % number * 1000
        if number % 3:
            wanted[b.publish(f"/queue/q{number % 7}", body)] = body
        else:
            b.publish(f"/fanout/f{number % 2}", body)
        if number % 20 == 19:
            store.journal.append([b.batch()])
            checkpoint(store)
    read = store.repair_source.read(B, 0, 300, 0)
    assert sum(map(len, read.records)) <= SNAPSHOT_BYTES and read.through < 300

    copied(store, other, B, 300)
    checkpoint(other)

    assert all_rows(other) == wanted
    for name in ("/fanout/f0", "/fanout/f1"):
        assert fanout_all(other, name) == fanout_all(store, name)


def test_a_range_of_which_nothing_is_left_is_accounted_for(opened: Callable[[str], Store]) -> None:
    store, other = opened("one"), opened("other")
    b = Writer(B)
    dots = [b.publish("/queue/q", b"done") for _ in range(10)]
    b.settle("/queue/q", dots)
    store.journal.append([b.batch()])
    checkpoint(store)

    rest = store.repair_source.read(B, 0, 11, 0)

    assert (rest.through, rest.records) == (11, [])
    batch = snapshot_batch(B, 0, rest)
    verify_batch(batch)
    assert [record.kind for record in batch_records(batch)] == [RecordKind.GAP]
    other.journal.append([batch])
    checkpoint(other)
    assert other.journal.vector()[B] == 11 and all_rows(other) == {}
    other.close()


def test_a_node_answers_neither_for_what_it_gave_up_nor_for_what_its_stores_have_not_reached() -> None:
    store = open_small(MemoryDisk())
    b = Writer(B)
    store.journal.append([b.published("/queue/q", b"one", b"two")])

    assert store.repair_source.read(B, 0, 2, 0).through == 0
    checkpoint(store)
    assert store.repair_source.read(B, 0, 9, 0).through == 2
    assert store.repair_source.read(B, 0, 2, 1) == RangeSnapshot(0, 1, 0, [])
    assert store.repair_source.read(B, 1, 2, 1).through == 2


def test_what_retention_dropped_of_a_fanout_is_said() -> None:
    store = open_small(MemoryDisk(), StoreSettings(segment_bytes_max=200, reserve_bytes=0, journal_keep_bytes=0))
    b = Writer(B)
    for number in range(4):
        store.journal.append([b.published("/fanout/f", b"%d" % number * 100)])
        checkpoint(store, f=Retention(bytes_max=300))
    dropped = dict(store._logs.extents["/fanout/f"].dropped)[B]

    rest = store.repair_source.read(B, 0, 4, 0)

    assert 0 < dropped < 4
    assert rest.dropped == dropped
    assert len(rest.records) == 4 - dropped
    assert store.repair_source.read(B, dropped, 4, 0).dropped == 0


@pytest.mark.parametrize("what", LIKE_AN_INDEX)
def test_bodies_that_end_like_an_index_are_left_too(what: str) -> None:
    store = open_small(MemoryDisk())
    b = Writer(B)
    for _ in range(3):
        store.journal.append([b.published("/fanout/f", b"x" * 600 + LIKE_AN_INDEX[what])])
        checkpoint(store)

    assert len(store.repair_source.read(B, 0, 3, 0).records) == 3


def test_a_damaged_log_has_no_answer() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    b = Writer(B)
    for body in (b"one", b"two", b"three"):
        store.journal.append([b.published("/fanout/f", body)])
        checkpoint(store)
    node = disk._files[next(path for path in disk.contents() if path.startswith("fanout/"))]
    node.data[node.data.index(b"two")] ^= 1

    with pytest.raises(CorruptLog):
        store.repair_source.read(B, 0, 3, 0)
    assert store.damaged_fanouts() == ["/fanout/f"]


def test_a_log_that_was_damaged_before_it_was_full_has_no_answer_either() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(segment_bytes_max=2000, journal_keep_bytes=0, reserve_bytes=0))
    b = Writer(B)
    for number in range(5):
        store.journal.append([b.published("/fanout/f", b"body%d" % number * 100)])
        checkpoint(store)
        if number == 1:
            node = disk._files[next(path for path in disk.contents() if path.startswith("fanout/"))]
            node.data[node.data.index(b"body1")] ^= 1
    assert len(store._logs.get("/fanout/f").chain.segments) > 1

    with pytest.raises(CorruptLog):
        store.repair_source.read(B, 0, 5, 0)


def test_only_what_a_node_has_whole_does_it_know_to_be_done(opened: Callable[[str], Store]) -> None:
    store = opened("one")
    b = Writer(B)
    b.publish("/queue/q", b"done")
    b.publish("/queue/q", b"waits")
    b.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([b.batch()])
    checkpoint(store)
    asked = [Dot(B, 1), Dot(B, 2), Dot(B, 4), Dot(Origin("c", 1), 1)]
    nothing: Vector = {}

    assert store.repair_source.known_of(asked, nothing).done == [Dot(B, 1)]
    assert store.repair_source.known_of(asked, {B: 1}).done == []
    assert store.repair_source.known_of(asked, {B: 1}, {Origin("c", 1)}).done == [Dot(Origin("c", 1), 1)]
    assert store.repair_source.unsettled(None, 10) == [("/queue/q", Dot(B, 2), 0)]
    assert store.repair_source.unsettled(Dot(B, 2), 10) == []


def test_a_node_knows_to_be_done_what_was_settled_before_it_got_the_message() -> None:
    """Its consumer had it over a link, and the node that sent it was gone before its journal came."""
    store = open_small(MemoryDisk())
    c = Writer(Origin("c", 1))
    c.settle("/queue/q", [Dot(B, 7)])
    store.journal.append([c.batch()])
    checkpoint(store)

    assert store.repair_source.known_of([Dot(B, 6), Dot(B, 7)], {}).done == [Dot(B, 7)]


def test_it_knows_that_also_while_a_checkpoint_takes_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_small(MemoryDisk())
    b, c = Writer(B), Writer(Origin("c", 1))
    c.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([c.batch()])
    checkpoint(store)
    store.journal.append([b.published("/queue/q", b"done")])
    told: list[list[Dot]] = []
    commit = store.catalog.commit_checkpoint

    def asked_first(*changes: Any, **named: Any) -> None:
        told.append(store.repair_source.known_of([Dot(B, 1)], {}).done)
        commit(*changes, **named)

    monkeypatch.setattr(store.catalog, "commit_checkpoint", asked_first)
    checkpoint(store)

    assert told and all(done == [Dot(B, 1)] for done in told)


def test_a_restart_keeps_what_stands_for_a_range() -> None:
    disk = MemoryDisk()
    store, other = open_small(MemoryDisk()), open_small(disk)
    b = Writer(B)
    b.publish("/queue/q", b"gone")
    b.publish("/queue/q", b"waits")
    b.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([b.batch()])
    checkpoint(store)
    copied(store, other, B, 3)
    disk.stop()

    again = open_small(disk)

    assert again.recovered.vector == {B: 3} and not again.recovered.quarantined
    assert all_rows(again) == {Dot(B, 2): b"waits"}
    again.journal.append([b.published("/queue/q", b"next")])
    head = read_head(again.journal.read(0, 10**6)[-1][2])
    assert head is not None and head.first == 4


def test_a_range_that_is_gone_is_said_although_retention_has_dropped_more_elsewhere() -> None:
    """Fanout f lost its third message; fanout g has dropped old ones, the last of them later than that."""
    store = open_small(MemoryDisk(), StoreSettings(segment_bytes_max=200, reserve_bytes=0, journal_keep_bytes=0))
    b = Writer(B)
    store.journal.append([b.published("/fanout/f", b"one")])
    store.journal.append([b.published("/fanout/f", b"two")])
    store.journal.append([snapshot_batch(B, 2, nothing_left(3))])
    b = Writer(B, have=3)
    store.journal.append([b.published("/fanout/f", b"four")])
    kept = {"/fanout/g": Retention(bytes_max=300)}
    for number in range(4):
        store.journal.append([b.published("/fanout/g", b"%d" % number * 100)])
        store.checkpoint(store.journal.end, NOW, {}, kept)
    assert dict(store._logs.extents["/fanout/g"].dropped)[B] > 4
    told = set()
    after = 0
    while after < 8:
        rest = store.repair_source.read(B, after, 8, 0, lost_ends=[3])
        told.add(rest.dropped)
        after = rest.through
    assert 3 in told, told
