"""Where a journal has only a range snapshot, as reported while it is written and after it is opened again."""

from dataclasses import replace

import pytest

from qmq.errors import LogBroken
from qmq.model.dots import Vector
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch
from tests.fakes.disk import MemoryDisk

from ..rig import SMALL, A, B, Writer, open_small

ROLLING = replace(SMALL, segment_bytes_max=300)
"""A segment or two for each batch."""


def write(disk: MemoryDisk) -> None:
    store = open_small(disk, ROLLING)
    journal = store.journal
    journal.append([snapshot_batch(A, 0, RangeSnapshot(20, 0, 0, []))])
    journal.append([Writer(A, 20).published("/queue/q", b"x" * 200)])
    journal.append([snapshot_batch(A, 21, RangeSnapshot(30, 0, 0, []))])
    journal.append([Writer(B).published("/queue/q", b"x" * 200)])
    store.close()


def test_the_end_of_the_last_range_snapshot_of_each_origin_is_reported_as_it_is_written() -> None:
    journal = open_small(MemoryDisk()).journal
    assert journal.snapshot_ends() == {}

    journal.append([snapshot_batch(A, 0, RangeSnapshot(20, 0, 0, [])), Writer(B).published("/queue/q", b"1")])
    journal.append([Writer(A, 20).published("/queue/q", b"1"), snapshot_batch(A, 21, RangeSnapshot(30, 0, 0, []))])

    assert journal.snapshot_ends() == {A: 30}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_rest_that_was_there_at_the_start_is_found(sealed: bool) -> None:
    disk = MemoryDisk()
    write(disk)
    journal = open_small(disk, ROLLING).journal
    assert journal.segments() > 2
    if sealed:
        assert journal.seal_full() > 0

    assert journal.snapshot_ends() == {A: 30}


def test_a_rest_that_is_one_record_alone_lacks_nothing() -> None:
    journal = open_small(MemoryDisk()).journal

    journal.append([snapshot_batch(A, 0, RangeSnapshot(1, 0, 0, []))])

    assert journal.snapshot_ends() == {}


def test_nothing_is_sent_of_an_origin_that_is_forgotten() -> None:
    journal = open_small(MemoryDisk()).journal
    journal.append(
        [snapshot_batch(A, 0, RangeSnapshot(20, 0, 0, [])), snapshot_batch(B, 0, RangeSnapshot(5, 0, 0, []))]
    )
    assert journal.snapshot_ends() == {A: 20, B: 5}

    def without(vector: Vector) -> Vector:
        return {origin: last for origin, last in vector.items() if origin != A}

    journal.forget(without)

    assert journal.snapshot_ends() == {B: 5}


def test_a_disk_that_refuses_to_be_read_is_reported_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    write(disk)
    journal = open_small(disk, ROLLING).journal

    def refuse(segment: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(journal._chain, "index_of", refuse)
        with pytest.raises(LogBroken, match="no"):
            journal.snapshot_ends()

    assert journal.snapshot_ends() == {A: 30}
