"""How long a fanout's log keeps the records of origins whose clocks are wrong: as long as those of any other."""

import pytest

from qmq.model.dots import Origin
from qmq.storage.format.batch import encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.format.settings import Retention
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, fanout_all, open_small

F = "/fanout/f"
HOUR_US = 3600 * 1_000_000
HALF_AN_HOUR = {F: Retention(age_seconds_max=1800)}


def bodies(store: Store) -> list[bytes]:
    return [body for _, body in fanout_all(store, F)]


def stamped(origin: Origin, sequence: int, timestamp_us: int) -> bytes:
    """A batch of one message, of an origin whose clock says `timestamp_us`; its body is its sequence."""
    record = pack_record(sequence, timestamp_us, RecordKind.PUBLISH, 0, pack_envelope(F, b""), b"%d" % sequence)
    return encode_batch(origin, [record], sequence, sequence, timestamp_us, timestamp_us)


@pytest.mark.parametrize("ahead_us", [-24 * HOUR_US, -HOUR_US, 0, HOUR_US, 24 * HOUR_US, 1 << 62])
def test_an_origin_whose_clock_is_wrong_has_its_records_kept_as_long_as_any_other(ahead_us: int) -> None:
    store = open_small(MemoryDisk())
    store.checkpoint(store.journal.end, NOW, {}, HALF_AN_HOUR)
    store.journal.append([stamped(A, 1, NOW + 1 + ahead_us)])
    due_us = store.checkpoint(store.journal.end, NOW + 2, {}, HALF_AN_HOUR).retention_due_us

    store.checkpoint(store.journal.end, NOW + HOUR_US // 2 - 1, {}, HALF_AN_HOUR)
    assert bodies(store) == [b"1"]
    store.checkpoint(store.journal.end, NOW + HOUR_US // 2 + 4, {}, HALF_AN_HOUR)

    assert bodies(store) == []
    assert NOW + HOUR_US // 2 < due_us <= NOW + HOUR_US // 2 + 3


def test_no_segment_is_dropped_before_the_time_that_a_checkpoint_says() -> None:
    store = open_small(MemoryDisk())
    now_us = NOW
    for minute in range(27):
        now_us = NOW + minute * 60 * 1_000_000
        store.journal.append([stamped(A, minute + 1, now_us)])
        store.checkpoint(store.journal.end, now_us, {}, HALF_AN_HOUR)

    left = [27]
    while left[-1]:
        due_us = store.checkpoint(store.journal.end, now_us, {}, HALF_AN_HOUR).retention_due_us
        store.checkpoint(store.journal.end, due_us - 1, {}, HALF_AN_HOUR)
        assert len(bodies(store)) == left[-1]
        now_us = due_us
        store.checkpoint(store.journal.end, now_us, {}, HALF_AN_HOUR)
        left.append(len(bodies(store)))

    assert left == sorted(left, reverse=True) and len(set(left)) > 5


@pytest.mark.parametrize("ahead_us", [-HOUR_US, HOUR_US])
def test_one_wrong_clock_does_not_change_how_long_the_records_of_others_are_kept(ahead_us: int) -> None:
    store = open_small(MemoryDisk())
    now_us = NOW
    store.checkpoint(store.journal.end, now_us, {}, HALF_AN_HOUR)
    for minute in range(120):
        now_us = NOW + minute * 60 * 1_000_000
        origin, off_us = ((A, 0), (B, ahead_us))[minute % 2]
        store.journal.append([stamped(origin, minute // 2 + 1, now_us + off_us)])
        store.checkpoint(store.journal.end, now_us, {}, HALF_AN_HOUR)

    kept = len(bodies(store))

    assert 30 <= kept <= 30 + 30 // 8 + 2


def test_the_records_themselves_keep_the_times_they_came_with() -> None:
    store = open_small(MemoryDisk())
    store.checkpoint(store.journal.end, NOW, {})
    store.journal.append([stamped(A, 1, NOW + HOUR_US)])

    store.checkpoint(store.journal.end, NOW + 1, {})

    rows, _, _ = store.fanout_page(F, store.fanout_start(F), 1 << 20)[:3]
    assert [record.timestamp_us for _, record in rows] == [NOW + HOUR_US]


@pytest.mark.parametrize("ahead_us", [-HOUR_US, 0, 24 * HOUR_US])
def test_a_wrong_clock_drops_nothing_when_an_opening_carries_the_journal(ahead_us: int) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([stamped(B, 1, NOW)])
    store.checkpoint(store.journal.end, NOW, {}, HALF_AN_HOUR)
    store.journal.append([stamped(A, 1, NOW + 1 + ahead_us)])
    store.close()

    store = open_small(disk)
    store.checkpoint(store.journal.end, NOW + 2, {}, HALF_AN_HOUR)
    store.checkpoint(store.journal.end, NOW + HOUR_US // 2 - 1, {}, HALF_AN_HOUR)
    assert bodies(store) == [b"1", b"1"]
    store.checkpoint(store.journal.end, NOW + HOUR_US // 2 + 4, {}, HALF_AN_HOUR)

    assert bodies(store) == []
