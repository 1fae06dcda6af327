"""A node without peers that met damage: what is restored, what is given up, and that a query changes nothing."""

from collections.abc import Callable
from itertools import count

import pytest

from qmq.model.dots import Dot
from qmq.storage.format.record import unpack_record
from qmq.storage.format.segment import segment_name
from qmq.storage.quarantine_restore import drop, quarantined_ranges, release, valid_quarantined
from qmq.storage.repair.queue_rows import record_quarantined
from qmq.storage.repair.range_snapshot import nothing_left, snapshot_batch
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk, MemoryFile

from .rig import NOW, A, B, Writer, open_small, own_messages

TAIL = "journal/" + segment_name(0)


def draw() -> Callable[[], int]:
    return count(0xD0).__next__


@pytest.fixture
def damaged() -> MemoryDisk:
    """Node a with five messages of its own in five batches, the second one damaged; and one of b."""
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    for body in (b"one", b"two", b"three"):
        store.journal.append([a.published("/queue/q", body)])
    store.journal.append([b.published("/queue/q", b"of b")])
    a.settle("/queue/q", [Dot(A, 3)])
    store.journal.append([a.batch()])
    store.journal.append([a.published("/queue/q", b"five")])
    store.close()
    rotten = MemoryDisk()
    for path, data in disk.contents().items():
        changed = bytearray(data)
        changed[changed.index(b"two")] ^= 1
        rotten.put(path, bytes(changed))
    return rotten


def bodies(store: Store) -> list[bytes]:
    return [body for _, body in own_messages(store)]


def test_what_is_behind_the_damage_comes_back_and_what_is_damaged_is_given_up(damaged: MemoryDisk) -> None:
    store = open_small(damaged)
    assert bodies(store) == [b"one"]
    (step,) = quarantined_ranges(damaged, store.journal.vector())
    assert (step.origin, step.lost, step.records) == (A, (2, 2), 3)

    release(store, [step], draw(), NOW)
    store.close()

    again = open_small(damaged)
    assert sorted(bodies(again)) == [b"five", b"one"], "the third was settled"
    assert again.journal.vector()[A] == 5
    assert again.recovered.lost.ends == {A: [2]}
    assert not again.recovered.given_up, "it is not unknown: it is nowhere"
    assert quarantined_ranges(damaged, again.journal.vector()) == []


def test_dropping_gives_all_of_it_up(damaged: MemoryDisk) -> None:
    store = open_small(damaged)

    drop(store, quarantined_ranges(damaged, store.journal.vector()), draw(), NOW)
    store.close()

    again = open_small(damaged)
    assert bodies(again) == [b"one"]
    assert again.journal.vector()[A] == 5
    assert again.recovered.lost.ends == {A: [5]}
    assert quarantined_ranges(damaged, again.journal.vector()) == []


def test_what_peers_have_brought_meanwhile_is_not_brought_back(damaged: MemoryDisk) -> None:
    store = open_small(damaged)
    a = Writer(A, have=1)
    store.journal.append([a.published("/queue/q", b"two"), a.published("/queue/q", b"three")])

    (step,) = quarantined_ranges(damaged, store.journal.vector())

    assert (step.lost, step.records) == (None, 2)


def test_damage_in_two_places_gives_up_exactly_these(damaged: MemoryDisk) -> None:
    changed = bytearray(damaged.contents()[TAIL])
    changed[changed.index(b"five")] ^= 1
    changed += Writer(A, have=5).published("/queue/q", b"six")
    damaged.put(TAIL, bytes(changed))
    store = open_small(damaged)

    steps = quarantined_ranges(damaged, store.journal.vector())

    assert [(step.lost, step.records) for step in steps] == [((2, 2), 2), ((5, 5), 1)]
    release(store, steps, draw(), NOW)
    store.close()
    assert sorted(bodies(open_small(damaged))) == [b"one", b"six"]


def test_a_peer_that_comes_later_gets_what_was_there_before_the_damage(damaged: MemoryDisk) -> None:
    store = open_small(damaged)
    release(store, quarantined_ranges(damaged, store.journal.vector()), draw(), NOW)
    store.close()
    again = open_small(damaged)
    again.checkpoint(again.journal.end, NOW, {}, {})

    gone = again.recovered.lost.up_to(A, 5)
    first = again.repair_source.read(A, 0, 5, 0, lost_ends=gone)
    behind = again.repair_source.read(A, first.through, 5, 0, lost_ends=gone)

    assert (first.through, first.dropped, len(first.records)) == (2, 2, 1), "the part ends with what is gone"
    assert (behind.through, behind.dropped, len(behind.records)) == (5, 0, 1)


def test_what_was_left_of_a_range_comes_back_as_well(damaged: MemoryDisk) -> None:
    changed = bytearray(damaged.contents()[TAIL])
    changed += snapshot_batch(A, 5, nothing_left(9))
    damaged.put(TAIL, bytes(changed))
    store = open_small(damaged)

    have = store.journal.vector()
    assert valid_quarantined(damaged, have, 0) == {A: [(3, 3), (4, 4), (5, 5), (6, 9)]}
    assert [step.last for step in quarantined_ranges(damaged, have)] == [9]
    assert quarantined_ranges(damaged, have, 0, [B]) == []


def test_the_end_of_a_batch_is_not_given_up_where_a_rest_ended_in_its_midst() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    store.journal.append([a.published("/queue/q", b"one")])
    store.journal.append([a.published("/queue/q", b"two")])
    a.publish("/queue/q", b"three")
    a.publish("/queue/q", b"four")
    a.publish("/queue/q", b"five")
    store.journal.append([a.batch()])
    store.journal.append([a.published("/queue/q", b"six")])
    store.close()
    rotten = MemoryDisk()
    for path, data in disk.contents().items():
        rotten.put(path, data.replace(b"two", b"tvo"))
    store = open_small(rotten)
    store.journal.append([snapshot_batch(A, 1, nothing_left(3))])  # a part of a rest; then the peer burnt down
    gone = [step.lost for step in quarantined_ranges(rotten, store.journal.vector())]
    assert not any(first <= 4 <= last for first, last in filter(None, gone)), gone


def test_of_all_that_is_aside_only_the_batch_of_the_message_is_read(
    damaged: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes may lie there, and a peer waits ten seconds for the answer."""
    open_small(damaged).close()
    read: list[int] = []
    real = MemoryFile.read

    def reading(self: MemoryFile, position: int, length: int) -> bytes:
        data = real(self, position, length)
        if b"of b" in data or b"three" in data or b"five" in data:
            read.append(len(data))
        return data

    monkeypatch.setattr(MemoryFile, "read", reading)

    packed = record_quarantined(damaged, Dot(A, 5))

    assert packed is not None
    assert unpack_record(packed).body == b"five"
    assert len(read) == 1
    assert record_quarantined(damaged, Dot(A, 4)) is None, "a settle is no message"
    assert record_quarantined(damaged, Dot(B, 1)) is None
