"""Durable subscriptions on disk: in the journal, in the catalog after a checkpoint, and there again after a start."""

from pathlib import Path

import pytest

from qmq.errors import DiskFull
from qmq.model import cursors
from qmq.model.cursors import Move, Name
from qmq.model.dots import Dot
from qmq.storage.catalog.catalog import SqliteCatalog
from qmq.storage.checkpoints.checkpoint import Checkpointer
from qmq.storage.format.batch import GAPS
from qmq.storage.format.cursor_record import pack_move
from qmq.storage.format.interfaces import CheckpointState, FanoutExtent
from qmq.storage.format.record import RecordKind, pack_envelope, pack_gap, pack_record
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, Writer, open_small

NAME = Name("/fanout/f", "", "mail")
OTHER = Name("/fanout/f", "ann", "mail")
DAY_US = 86400 * 1_000_000


def move(writer: Writer, said: Move) -> bytes:
    """A batch with one CURSOR record."""
    writer.have += 1
    sequence = writer.have
    head = pack_envelope(said.name.destination, b"")
    writer._open.append(pack_record(sequence, NOW + sequence, RecordKind.CURSOR, 0, head, pack_move(said)))
    return writer.batch()


def state(store: Store) -> dict[Name, tuple[int, dict[object, int]]]:
    return {name: (cursor.created_us, dict(cursor.vector())) for name, cursor in store.recovered.cursors.items()}


def checkpoint(store: Store, now_us: int = NOW) -> None:
    store.checkpoint(store.journal.end, now_us, {})


def reopened(store: Store, disk: MemoryDisk) -> Store:
    store.close()
    return open_small(disk)


def test_the_owner_of_a_name_is_there_again_from_the_journal_and_from_the_catalog() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    store.journal.append([move(a, Move(NAME, 10, start={}, holder=(12, A), owner=(12, "ann")))])
    store.journal.append([move(a, Move(OTHER, 11, start={}, holder=(13, A)))])
    for _ in range(2):
        store = reopened(store, disk)
        owners = {name: (cursor.holder, cursor.owner) for name, cursor in store.recovered.cursors.items()}
        assert owners == {NAME: ((12, A), (12, "ann")), OTHER: ((13, A), None)}
        checkpoint(store)


def test_a_cursor_is_there_again_from_the_journal_the_catalog_and_both() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    store.journal.append([move(a, Move(NAME, 10, start={A: 4})), move(b, Move(OTHER, 11, start={}))])
    store = reopened(store, disk)
    assert state(store) == {NAME: (10, {A: 4}), OTHER: (11, {})}

    checkpoint(store)
    store = reopened(store, disk)
    assert state(store) == {NAME: (10, {A: 4}), OTHER: (11, {})}

    store.journal.append([move(a, Move(NAME, 10, done={A: [(4, 9)]}))])
    store = reopened(store, disk)
    assert state(store)[NAME] == (10, {A: 9})

    checkpoint(store)
    store = reopened(store, disk)
    assert state(store)[NAME] == (10, {A: 9})


def test_a_cursor_is_there_again_also_when_the_disk_has_no_room_to_carry_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    own = Writer(store.begin_incarnation(7, NOW), 1)
    store.journal.append([move(a, Move(NAME, 10, start={A: 4}))])
    checkpoint(store)
    own.record(RecordKind.GAP, pack_gap(B, 55))
    store.journal.append([move(a, Move(NAME, 10, done={A: [(4, 9)]})), own.batch(GAPS)])

    def no_room(checkpointer: Checkpointer) -> None:
        raise DiskFull("no room for a checkpoint")

    monkeypatch.setattr(Checkpointer, "carry", no_room)
    store = reopened(store, disk)

    assert state(store)[NAME] == (10, {A: 9})
    assert store.recovered.given_up == {B: 55}


def test_a_deletion_is_remembered_until_no_older_record_can_come() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    store.journal.append([move(a, Move(NAME, NOW - 5, start={})), move(a, Move(NAME, 0, NOW))])
    checkpoint(store, NOW)
    store = reopened(store, disk)
    assert state(store) == {NAME: (0, {})}

    checkpoint(store, NOW + 8 * DAY_US)

    assert state(reopened(store, disk)) == {}


def test_of_too_many_deletions_the_stores_forget_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "DELETIONS_MAX", 3)
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    names = [Name(NAME.destination, "", str(n)) for n in range(5)]
    store.journal.append([move(a, Move(NAME, NOW - 5, start={})), *(move(a, Move(n, 0, NOW + 9)) for n in names[:1])])
    store.journal.append([move(a, Move(name, 0, NOW + k)) for k, name in enumerate(names[1:])])

    checkpoint(store, NOW + 10)

    assert state(reopened(store, disk)).keys() == {NAME, names[0], names[3], names[4]}


def test_what_was_given_up_is_remembered() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    own = store.begin_incarnation(7, NOW)
    a = Writer(own, 1)
    a.record(RecordKind.GAP, pack_gap(B, 55))
    store.journal.append([a.batch(GAPS)])
    store = reopened(store, disk)
    assert store.recovered.given_up == {B: 55}

    checkpoint(store)

    assert reopened(store, disk).recovered.given_up == {B: 55}


def test_the_sqlite_catalog_keeps_cursors_and_what_was_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a")
    a = Writer(A)
    store.journal.append(
        [
            move(a, Move(NAME, 10, start={A: 4}, credit=100)),
            move(a, Move(NAME, 10, delivered_up_to={A: 9})),
            move(a, Move(OTHER, 1)),
        ]
    )
    checkpoint(store)
    store.close()
    store = open_store(tmp_path, node="a")

    found = store.recovered.cursors[NAME]
    assert (found.start, found.credit, found.delivered_up_to) == ({A: 4}, 0, {A: 9})
    assert store.recovered.cursors[OTHER].start is None
    store.close()
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    extent = FanoutExtent("f", 1, 2, 3, 4, 5, 6, (Dot(A, 7), Dot(B, 8)))
    catalog.commit_checkpoint(CheckpointState(0, {}), {"/fanout/f": extent})
    assert catalog.fanouts() == {"/fanout/f": extent}
    catalog.close()


@pytest.mark.parametrize("where", ["memory", "files"])
def test_the_holder_of_a_name_is_known_after_a_checkpoint_and_from_the_journal(where: str, tmp_path: Path) -> None:
    disk = MemoryDisk()

    def opened() -> Store:
        return open_small(disk) if where == "memory" else open_store(tmp_path, node="a")

    store = opened()
    a = Writer(A)
    store.journal.append([move(a, Move(NAME, 10, start={}, holder=(50, B)))])
    checkpoint(store)
    store.journal.append([move(a, Move(OTHER, 10, start={}, holder=(60, A)))])
    store.close()

    store = opened()

    holders = {name: cursor.holder for name, cursor in store.recovered.cursors.items()}
    assert holders == {NAME: (50, B), OTHER: (60, A)}
    store.close()
