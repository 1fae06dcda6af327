"""Where a reader of a fanout can begin, and its gap notice when retention has passed that position."""

from typing import Any

import pytest

from qmq.model.dots import Dot
from qmq.storage.format.batch import encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.format.segment import FANOUT
from qmq.storage.format.settings import Retention
from qmq.storage.log.chain import Chain
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, C, Writer, open_small

F = "/fanout/f"


def filled(batches: int = 10, checkpoints: int = 7) -> Store:
    """Two messages per batch, bodies 0, 1, 2, …, from a and b in turn; the last batches are in the journal only."""
    store = open_small(MemoryDisk())
    writers = Writer(A), Writer(B)
    for n in range(batches):
        writer = writers[n % 2]
        store.journal.append([writer.published(F, b"%d" % (2 * n) + b" " * 300, b"%d" % (2 * n + 1))])
        if n < checkpoints:
            store.checkpoint(store.journal.end, NOW, {})
    return store


def read(store: Store, word: str, number: int = 0, bytes_max: int = 400) -> list[int]:
    begin = store.fanout_begin(F, word, number)
    return rest(store, begin.position, bytes_max)[begin.skip :]


def rest(store: Store, position: object, bytes_max: int = 400) -> list[int]:
    found: list[int] = []
    at_end = False
    while not at_end:
        rows, position, at_end, _ = store.fanout_page(F, position, bytes_max)  # type: ignore[arg-type]
        found += [int(record.body) for _, record in rows]
    return found


@pytest.mark.parametrize("offset", range(22))
def test_an_offset_counts_from_the_first_record_that_was_ever_kept(offset: int) -> None:
    assert read(filled(), "offset", offset) == list(range(offset, 20))


@pytest.mark.parametrize("offset", range(22))
def test_an_offset_still_counts_from_there_after_retention(offset: int) -> None:
    store = filled()
    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=3000)})
    first = rest(store, store.fanout_start(F))[0]
    assert first > 4

    assert read(store, "offset", offset) == list(range(max(first, offset), 20))


@pytest.mark.parametrize("count", range(22))
def test_behind_so_many_counts_from_the_first_record_that_is_kept(count: int) -> None:
    store = filled()
    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=3000)})
    first = rest(store, store.fanout_start(F))[0]

    assert read(store, "behind", count) == list(range(first + count, 20))


def test_last_is_the_last_record_and_what_follows() -> None:
    assert read(filled(), "last") == [19]
    assert read(filled(checkpoints=10), "last") == [19]
    assert read(filled(0, 0), "last") == []


@pytest.mark.parametrize("checkpoints", [0, 5, 10])
def test_a_timestamp_begins_with_the_first_record_accepted_then_or_later(checkpoints: int) -> None:
    # Both writers stamp their n-th record NOW + n, so one of a comes before one of b with the same stamp.
    store = filled(checkpoints=checkpoints)

    assert read(store, "timestamp", NOW + 4) == list(range(5, 20))
    assert read(store, "timestamp", 0) == list(range(20))
    assert read(store, "timestamp", NOW + 11) == []


def test_before_is_the_vector_of_what_a_beginning_leaves_out() -> None:
    store = filled()

    begin = store.fanout_begin(F, "offset", 6)

    assert (begin.before, begin.skip) == ({A: 4, B: 2}, 0)
    assert store.fanout_begin(F, "offset", 99).before == {A: 10, B: 10}


def test_a_reader_gets_the_gap_of_what_retention_dropped_before_it_came() -> None:
    store = filled(checkpoints=10)
    start = store.fanout_start(F)
    first = store.fanout_page(F, start, 400)
    assert first.dropped == ()

    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=2000)})

    late = store.fanout_page(F, start, 400)
    dropped = dict(late.dropped)
    assert dropped[A] + dropped[B] == int(late.rows[0][1].body)
    assert store.fanout_page(F, first.position, 400).dropped == late.dropped
    assert store.fanout_page(F, late.position, 400).dropped == ()


def test_a_reader_that_has_what_was_dropped_skips_segments_and_gets_only_what_it_is_missing() -> None:
    store = filled(checkpoints=10)
    store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=3000)})
    dropped = dict(store.fanout_page(F, store.fanout_start(F), 400).dropped)

    covered = store.fanout_page(F, store.fanout_after(F, {A: 10, B: 8}), 1 << 20)
    behind = store.fanout_page(F, store.fanout_after(F, {A: 10, B: 0}), 1 << 20)

    assert covered.dropped == ()
    assert [int(record.body) for _, record in covered.rows] == [18, 19]
    assert dict(behind.dropped) == dropped


def test_a_reader_gets_the_gap_of_a_lost_origin_although_it_has_all_that_is_kept() -> None:
    store = open_small(MemoryDisk())
    c, a = Writer(C), Writer(A)
    store.journal.append([c.published(F, b"x" * 900)])
    for _ in range(6):
        store.journal.append([a.published(F, b"x" * 900)])
        store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=4000)})

    page = store.fanout_page(F, store.fanout_after(F, {A: 6}), 1 << 20)

    assert Dot(C, 1) in page.dropped


def test_what_retention_drops_while_it_is_read_is_reported_and_nothing_is_left_out_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = filled(checkpoints=10)
    start = store.fanout_start(F)
    read_batches = Chain.read
    drops = [Retention(bytes_max=3000)]

    def dropping(chain: Chain, position: int, *rest: Any) -> Any:
        if drops and chain.content == FANOUT:
            store.checkpoint(store.journal.end, NOW, {}, {F: drops.pop()})
        return read_batches(chain, position, *rest)

    monkeypatch.setattr(Chain, "read", dropping)
    page = store.fanout_page(F, start, 1 << 20)

    dropped = dict(page.dropped)
    assert dropped[A] + dropped[B] == int(page.rows[0][1].body) > 0
    assert [int(record.body) for _, record in page.rows][-1] == 19


def test_what_retention_dropped_is_known_after_a_start() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    for _ in range(8):
        store.journal.append([a.published(F, b"x" * 600)])
        store.checkpoint(store.journal.end, NOW, {}, {F: Retention(bytes_max=2000)})
    store.close()
    store = open_small(disk)

    page = store.fanout_page(F, store.fanout_start(F), 1)

    assert page.dropped == (Dot(A, page.rows[0][1].sequence - 1),)


def test_everything_too_old_goes_and_its_end_is_known() -> None:
    store = filled(checkpoints=10)

    report = store.checkpoint(store.journal.end, NOW + 100_000_000, {}, {F: Retention(age_seconds_max=50)})

    assert report.retention_due_us == 0
    page = store.fanout_page(F, store.fanout_start(F), 400)
    assert (page.rows, dict(page.dropped)) == ([], {A: 10, B: 10})
    b = Writer(B, 10)
    store.journal.append([b.published(F, b"20")])
    store.checkpoint(store.journal.end, NOW, {})
    assert read(store, "offset", 20) == [20]


def test_a_checkpoint_says_when_the_next_record_will_be_too_old() -> None:
    store = filled(checkpoints=10)
    retention = {F: Retention(age_seconds_max=50)}

    due_us = store.checkpoint(store.journal.end, NOW, {}, retention).retention_due_us

    assert NOW + 50_000_000 < due_us <= NOW + 50_000_011
    store.checkpoint(store.journal.end, due_us - 1, {}, retention)
    assert len(rest(store, store.fanout_start(F))) == 20


def test_a_log_is_cut_into_segments_young_enough_to_keep_to_its_retention() -> None:
    store = open_small(MemoryDisk())
    retention = {F: Retention(age_seconds_max=8)}
    now_us = NOW
    for second in range(30):
        now_us = NOW + second * 1_000_000
        record = pack_record(second + 1, now_us, RecordKind.PUBLISH, 0, pack_envelope(F, b""), b"%d" % second)
        store.journal.append([encode_batch(A, [record], second + 1, second + 1, now_us, now_us)])
        store.checkpoint(store.journal.end, now_us, {}, retention)

    kept = rest(store, store.fanout_start(F))

    assert kept[-1] == 29
    assert 8 <= len(kept) <= 8 + 3
