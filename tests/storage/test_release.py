"""A node without peers that met damage: what comes back, what is given up, and that asking changes nothing."""

from collections.abc import Callable
from itertools import count

import pytest

from qmq.dots import Dot
from qmq.storage.memory import MemoryDisk
from qmq.storage.release import drop, release, what_is_aside
from qmq.storage.segment import segment_name
from qmq.storage.store import Store

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
    (step,) = what_is_aside(damaged, store.journal.vector())
    assert (step.origin, step.gone, step.records) == (A, (2, 2), 3)

    release(store, [step], draw(), NOW)
    store.close()

    again = open_small(damaged)
    assert sorted(bodies(again)) == [b"five", b"one"], "the third was settled"
    assert again.journal.vector()[A] == 5
    assert again.recovered.given_up == {A: 2}
    assert what_is_aside(damaged, again.journal.vector()) == []


def test_dropping_gives_all_of_it_up(damaged: MemoryDisk) -> None:
    store = open_small(damaged)

    drop(store, what_is_aside(damaged, store.journal.vector()), draw(), NOW)
    store.close()

    again = open_small(damaged)
    assert bodies(again) == [b"one"]
    assert again.journal.vector()[A] == 5
    assert again.recovered.given_up == {A: 5}
    assert what_is_aside(damaged, again.journal.vector()) == []


def test_what_peers_have_brought_meanwhile_is_not_brought_back(damaged: MemoryDisk) -> None:
    store = open_small(damaged)
    a = Writer(A, have=1)
    store.journal.append([a.published("/queue/q", b"two"), a.published("/queue/q", b"three")])

    (step,) = what_is_aside(damaged, store.journal.vector())

    assert (step.gone, step.records) == (None, 2)


def test_damage_in_two_places_gives_up_exactly_these(damaged: MemoryDisk) -> None:
    changed = bytearray(damaged.contents()[TAIL])
    changed[changed.index(b"five")] ^= 1
    changed += Writer(A, have=5).published("/queue/q", b"six")
    damaged.put(TAIL, bytes(changed))
    store = open_small(damaged)

    steps = what_is_aside(damaged, store.journal.vector())

    assert [(step.gone, step.records) for step in steps] == [((2, 2), 2), ((5, 5), 1)]
    release(store, steps, draw(), NOW)
    store.close()
    assert sorted(bodies(open_small(damaged))) == [b"one", b"six"]
