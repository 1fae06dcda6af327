"""Indexes that a checkpoint makes of what it reads anyway: the same ones that reading the segments again would make."""

from dataclasses import replace

import pytest

from qmq.errors import CorruptLog, DiskFull
from qmq.model.dots import Dot
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.format.segment import Footer, make_footer, read_footer
from qmq.storage.log import segment_index
from qmq.storage.log.chain import Chain, Segment
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, SMALL, A, B, Writer, open_small

KEPT = replace(SMALL, journal_keep_bytes=1 << 30)


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bases of the segments whose batches were read by themselves."""
    bases: list[int] = []
    batches_of = Chain.batches_of

    def noted(chain: Chain, segment: Segment, *rest: object) -> object:
        bases.append(segment.base)
        return batches_of(chain, segment, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Chain, "batches_of", noted)
    return bases


def indexes(store: Store) -> list[Footer | None]:
    """Of all full segments, as they stand in their files."""
    full = store.journal._chain.segments[:-1]
    assert full
    return [read_footer(segment.file, segment.end - segment.base) for segment in full]


def indexes_read_anew(store: Store) -> list[Footer]:
    chain = store.journal._chain
    return [
        make_footer(
            segment.end - segment.base,
            [(position - segment.base, head, data) for position, head, data in chain.batches_of(segment)],
        )
        for segment in chain.segments[:-1]
    ]


def append_some(store: Store, a: Writer, b: Writer, rounds: int = 6) -> None:
    for number in range(rounds):
        store.journal.append([a.published("/queue/q", b"x" * 300, b"y"), b.published("/fanout/f", b"z" * number)])
        b.settle("/queue/q", [Dot(A, a.have)])
        store.journal.append([b.batch()])


def checkpoint(store: Store) -> None:
    store.checkpoint(store.journal.end, NOW, {})


def test_a_segment_that_a_checkpoint_has_read_is_sealed_without_being_read_again(read_again: list[int]) -> None:
    store = open_small(MemoryDisk(), KEPT)
    a, b = Writer(A), Writer(B)
    for _ in range(5):  # Each of the later checkpoints begins in the midst of a segment.
        append_some(store, a, b, 2)
        checkpoint(store)
    checkpoint(store)

    assert read_again == []
    assert indexes(store) == indexes_read_anew(store)


def test_a_segment_that_was_filled_during_a_checkpoint_is_sealed_by_the_next(read_again: list[int]) -> None:
    store = open_small(MemoryDisk(), KEPT)
    a, b = Writer(A), Writer(B)
    append_some(store, a, b, 1)
    end = store.journal.end
    append_some(store, a, b, 2)
    store.checkpoint(end, NOW, {})
    assert store.journal.segments() > 1
    assert set(indexes(store)) == {None}
    checkpoint(store)

    assert read_again == []
    assert indexes(store) == indexes_read_anew(store)


def test_a_segment_that_a_life_before_had_begun_is_read_again(read_again: list[int]) -> None:
    disk = MemoryDisk()
    store = open_small(disk, KEPT)
    a, b = Writer(A), Writer(B)
    append_some(store, a, b, 1)
    checkpoint(store)
    disk.stop()
    store = open_small(disk, KEPT)
    append_some(store, a, b)
    checkpoint(store)

    assert set(read_again) == {0}
    assert indexes(store) == indexes_read_anew(store)


def test_a_segment_of_very_many_batches_is_read_again(monkeypatch: pytest.MonkeyPatch, read_again: list[int]) -> None:
    monkeypatch.setattr(segment_index, "BATCHES_MAX", 2)
    store = open_small(MemoryDisk(), KEPT)
    append_some(store, Writer(A), Writer(B))
    checkpoint(store)

    assert read_again
    assert indexes(store) == indexes_read_anew(store)


def test_a_segment_with_a_rest_is_read_again_for_its_index_has_a_range_for_each_record(read_again: list[int]) -> None:
    store = open_small(MemoryDisk(), KEPT)
    records = [
        pack_record(n, NOW, RecordKind.PUBLISH, 0, pack_envelope("/queue/q", b""), b"x") for n in range(1, 200, 2)
    ]
    rests, last = [snapshot_batch(A, 0, RangeSnapshot(200, 0, 0, records))], Writer(A, 200)
    store.journal.append(rests)
    append_some(store, last, Writer(B), 2)
    checkpoint(store)

    assert read_again == [0]
    assert indexes(store) == indexes_read_anew(store)


def test_more_segments_than_are_remembered_are_all_sealed(read_again: list[int]) -> None:
    store = open_small(MemoryDisk(), KEPT)
    append_some(store, Writer(A), Writer(B), 40)
    checkpoint(store)

    # One of those that are remembered is not full.
    assert len(read_again) == store.journal.segments() - segment_index.SEGMENTS_MAX > 0
    assert indexes(store) == indexes_read_anew(store)


def test_a_slice_that_found_no_room_and_comes_again_is_indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_small(MemoryDisk(), KEPT)
    append_some(store, Writer(A), Writer(B))
    apply, refusals = store.queues.apply, [DiskFull("once")]

    def refuses_once(*change: object) -> None:
        if refusals:
            raise refusals.pop()
        apply(*change)  # type: ignore[arg-type]

    monkeypatch.setattr(store.queues, "apply", refuses_once)
    checkpoint(store)

    assert not refusals
    assert indexes(store) == indexes_read_anew(store)


def test_a_segment_whose_damage_a_checkpoint_would_meet_gets_no_index() -> None:
    disk = MemoryDisk()
    store = open_small(disk, KEPT)
    a = Writer(A)
    for number in range(6):
        store.journal.append([a.published("/queue/q", b"body%d" % number * 100)])
    checkpoint(store)
    whole = indexes(store)
    assert None not in whole
    for number in range(6, 12):
        store.journal.append([a.published("/queue/q", b"body%d" % number * 100)])
    node = disk._files[store.journal._chain.segments[len(whole) + 1].path]
    node.data[node.data.rindex(b"body")] ^= 1

    with pytest.raises(CorruptLog):
        checkpoint(store)
    store.journal.seal_full()

    assert indexes(store).count(None) == 1
    assert indexes(store)[: len(whole)] == whole


def test_a_segment_found_damaged_after_the_checkpoint_had_read_it_gets_no_index() -> None:
    disk = MemoryDisk()
    store = open_small(disk, KEPT)
    a = Writer(A)
    store.journal.append([a.published("/queue/q", b"first")])
    store.journal.append([a.published("/queue/q", b"second")])
    checkpoint(store)
    (segment,) = store.journal._chain.segments
    node = disk._files[segment.path]
    node.data[node.data.index(b"first")] ^= 1
    assert len(store.journal.read(0, 1 << 20)) == 1  # as a link reads
    assert store.journal.damage
    store.journal.append([a.published("/queue/q", b"x" * 2000)])
    checkpoint(store)

    assert store.journal._chain.segments[0] is segment
    assert indexes(store)[0] is None
    assert segment.damage == store.journal.damage
