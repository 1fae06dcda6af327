"""The part of a log that is kept in memory for readers close to its end."""

import pytest

from qmq.storage.format.batch import BatchHead
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.chain import Segment
from qmq.storage.log.tail_cache import BATCHES_MAX, BYTES_MAX
from tests.fakes.disk import MemoryDisk

from ..rig import A, B, Writer, open_small

ROOMY = StoreSettings(reserve_bytes=0)
"""One segment has room for everything here."""


def plain(found: list[tuple[int, BatchHead, bytes]]) -> list[tuple[int, int, bytes]]:
    return [(position, head.last, data) for position, head, data in found]


def test_what_was_just_appended_is_read_as_from_the_disk_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    start = journal.append([Writer(B).published("/queue/q", b"before")])
    writer = Writer(A)
    journal.append([writer.published("/queue/q", b"1"), writer.published("/queue/q", b"2", b"3")])
    journal.append([writer.published("/queue/q", b"4")])
    from_disk = journal.read(start, BYTES_MAX)
    monkeypatch.setattr(Segment, "bytes_between", None)

    found = journal.read_recent(start, BYTES_MAX)

    assert [head.last for _, head, _ in found] == [1, 3, 4]
    assert plain(found) == plain(from_disk)


@pytest.mark.parametrize("bytes_max", [1, 100, 150, 250, BYTES_MAX])
def test_as_much_is_read_as_from_the_disk_but_never_less_than_one_batch(bytes_max: int) -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    start, writer = journal.end, Writer(A)
    for number in range(5):
        journal.append([writer.published("/queue/q", b"%d" % number)])

    found = journal.read_recent(start, bytes_max)

    assert found
    assert plain(found) == plain(journal.read(start, bytes_max))[: len(found)]
    assert len(found) == 1 or sum(len(data) for _, _, data in found) <= bytes_max


def test_what_is_not_there_any_more_is_left_to_the_disk() -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    start, writer = journal.end, Writer(A)
    ends = [journal.append([writer.published("/queue/q", b"x")]) for _ in range(BATCHES_MAX + 1)]

    assert journal.read_recent(start, BYTES_MAX) == []
    assert len(journal.read_recent(ends[0], BYTES_MAX)) == BATCHES_MAX
    assert journal.read_recent(journal.end, BYTES_MAX) == []


def test_large_batches_are_not_kept_beyond_the_bound() -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    writer = Writer(A)
    ends = [journal.append([writer.published("/queue/q", bytes(BYTES_MAX // 2 - 1000))]) for _ in range(3)]
    end = journal.append([writer.published("/queue/q", bytes(2 * BYTES_MAX))])

    assert journal.read_recent(ends[0], BYTES_MAX) == []
    assert journal.read_recent(ends[2], BYTES_MAX) == []
    journal.append([writer.published("/queue/q", b"small")])
    assert len(journal.read_recent(end, BYTES_MAX)) == 1


def test_a_position_inside_a_batch_or_before_the_head_of_a_segment_is_left_to_the_disk() -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    start, writer = journal.end, Writer(A)
    journal.append([writer.published("/queue/q", b"1")])

    assert journal.read_recent(start + 1, BYTES_MAX) == []


def test_a_refused_append_leaves_nothing() -> None:
    journal = open_small(MemoryDisk(), ROOMY).journal
    start = journal.end

    with pytest.raises(ValueError, match="continue"):
        journal.append([Writer(A, 5).published("/queue/q", b"1")])

    assert journal.read_recent(start, BYTES_MAX) == []
