"""Collecting dead incarnations: records, what is remembered, and what a crash in between leaves."""

import pytest

from qmq.errors import CorruptLog, LogBroken
from qmq.model.dots import Dot, Origin
from qmq.storage.catalog.incarnations import FORGOTTEN_MAX, Seal, Seals, pack_seals, unpack_seals
from qmq.storage.format.record import RecordKind
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, Writer, journal_batches, open_small

DEAD = Origin("a", 0xDEAD)
NOW_A = Origin("a", 0xA2)


def test_a_record_says_what_was_put_into_it_and_anything_else_is_corrupt() -> None:
    seals = [Seal(DEAD, 7, False), Seal(NOW_A, 1, True)]

    assert unpack_seals(pack_seals(seals)) == seals
    for body in (b"", b"\xc1", b"\x91\x01", b"\x91\x92\xa1a\x01"):
        with pytest.raises(CorruptLog):
            unpack_seals(body)


def test_facts_come_in_any_order_and_more_than_once() -> None:
    seals = Seals()

    assert seals.take("b", [Seal(DEAD, 7, True)]) == [DEAD]
    assert seals.take("a", [Seal(DEAD, 7, False)]) == []
    assert seals.take("b", [Seal(DEAD, 7, True)]) == []
    assert seals.unreleased("a") == {DEAD: 7} and seals.unreleased("b") == {}
    assert seals.forgettable({"a", "b"}) == {}
    assert seals.take("a", [Seal(DEAD, 7, True)]) == [DEAD]
    assert seals.forgettable({"a", "b"}) == {DEAD: 7}


def test_the_catalog_remembers_what_is_sealed_and_what_is_forgotten() -> None:
    seals = Seals()
    seals.take("b", [Seal(DEAD, 7, True), Seal(NOW_A, 2, False)])
    kept = {name: text for name, text in seals.facts([DEAD, NOW_A]).items() if text is not None}
    again = Seals.of(kept)
    assert (again.last, again.released) == (seals.last, {DEAD: {"b"}, NOW_A: set()})

    facts = again.forget([DEAD])

    assert facts == {f"sealed/{DEAD}": None, f"forgotten/{DEAD}": ""}
    assert again.without({DEAD: 7, NOW_A: 2}) == {NOW_A: 2}
    assert again.take("c", [Seal(DEAD, 7, True)]) == []


def test_only_so_many_names_are_remembered_for_ever() -> None:
    seals = Seals()
    facts = seals.forget([Origin("a", number) for number in range(FORGOTTEN_MAX + 3)])

    assert len(seals.forgotten) == FORGOTTEN_MAX
    assert Origin("a", 0) not in seals.forgotten
    assert facts[f"forgotten/{Origin('a', 2)}"] is None


def released(disk: MemoryDisk) -> tuple[Store, Writer]:
    """A node whose earlier incarnation is sealed, and released by all members, with nothing of it left."""
    store = open_small(disk)
    dead, a = Writer(DEAD), Writer(NOW_A)
    dead.publish("/queue/q", b"done")
    dead.settle("/queue/q", [Dot(DEAD, 1)])
    store.journal.append([dead.batch()])
    a.record(RecordKind.SEAL, pack_seals([Seal(DEAD, 2, False)]))
    a.record(RecordKind.SEAL, pack_seals([Seal(DEAD, 2, True)]))
    store.journal.append([a.batch()])
    for number in range(6):
        dot = a.publish("/queue/noise", b"%d" % number * 600)
        a.settle("/queue/noise", [dot])
        store.journal.append([a.batch()])
    return store, a


def test_what_all_have_released_leaves_every_vector_and_stays_away() -> None:
    disk = MemoryDisk()
    store, a = released(disk)

    report = store.checkpoint(store.journal.end, NOW, {})

    assert report.forgotten == (DEAD,)
    for _ in range(2):
        assert DEAD not in store.journal.vector() and DEAD not in store.journal.base()
        assert DEAD not in store.catalog.checkpoint().vector and DEAD not in store.catalog.base().vector
        store.close()
        store = open_small(disk)
    # A settle of it that comes late waits for no message.
    a.settle("/queue/q", [Dot(DEAD, 1)])
    store.journal.append([a.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert not store.tombstones


def test_what_a_member_still_has_is_not_forgotten() -> None:
    store, _ = released(MemoryDisk())

    report = store.checkpoint(store.journal.end, NOW, {"b": store.journal.vector()})

    assert report.forgotten == ()
    assert store.journal.vector()[DEAD] == 2


def test_a_node_releases_only_what_it_has_nothing_left_of() -> None:
    store = open_small(MemoryDisk())
    dead, a = Writer(DEAD), Writer(NOW_A)
    waits = dead.publish("/queue/q", b"waits")
    dead.publish("/fanout/f", b"kept")
    store.journal.append([dead.batch()])
    a.record(RecordKind.SEAL, pack_seals([Seal(DEAD, 2, False)]))
    for number in range(6):
        dot = a.publish("/queue/noise", b"%d" % number * 600)
        a.settle("/queue/noise", [dot])
        store.journal.append([a.batch()])

    assert store.checkpoint(store.journal.end, NOW, {}).released == ()
    a.settle("/queue/q", [waits])
    store.journal.append([a.batch()])
    assert store.checkpoint(store.journal.end, NOW + 100_000_000, {}).released == ()
    week_later = NOW + 8 * 86400 * 1_000_000
    store.checkpoint(store.journal.end, week_later, {})
    assert store.checkpoint(store.journal.end, week_later + 100_000_000, {}).released == (Seal(DEAD, 2, True),)


def test_forgetting_that_is_cut_at_any_call_is_finished_later() -> None:
    for call in range(40):
        disk = MemoryDisk()
        store, a = released(disk)
        disk.fail_at(call)
        try:
            store.checkpoint(store.journal.end, NOW, {})
        except LogBroken:
            pass
        disk.heal()
        disk.stop()

        again = open_small(disk)
        again.checkpoint(again.journal.end, NOW, {})

        assert DEAD not in again.journal.vector(), call
        again.journal.append([a.published("/queue/q", b"next")])
        again.checkpoint(again.journal.end, NOW, {})
        assert DEAD not in again.catalog.checkpoint().vector
        assert journal_batches(again)
