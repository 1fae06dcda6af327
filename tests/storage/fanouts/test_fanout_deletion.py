"""A deleted fanout in the stores: what is read at once, what checkpoints remove, and what a restart remembers.

What crashes do to it is in `tests/storage/test_crashes.py`.
"""

import json

import pytest

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.fanouts.log import FANOUT_DIRECTORY, directory_name
from qmq.storage.format.delete_record import deletion_facts, deletions_of, pack_delete, unpack_delete
from qmq.storage.format.record import RecordKind, unpack_record
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, SMALL, A, B, Writer, append, fanout_all, open_small

F = "/fanout/f"
G = "/fanout/g"
LATER = NOW + (SMALL.journal_age_seconds_max + 1) * 1_000_000


def bodies(store: Store, destination: str = F) -> list[bytes]:
    return [body for _, body in fanout_all(store, destination)]


def checkpoint(store: Store, now_us: int = NOW, **members: dict[Origin, int]) -> None:
    store.checkpoint(store.journal.end, now_us, members)


def deleted(writer: Writer, **before: int) -> bytes:
    """A batch with the deletion of F, up to these sequences of A and B."""
    writer.delete(F, {{"a": A, "b": B}[name]: last for name, last in before.items()})
    return writer.batch()


def test_a_record_comes_back_as_it_was_packed_and_nonsense_is_refused() -> None:
    assert unpack_delete(pack_delete({A: 5, B: 1})) == {A: 5, B: 1}
    for nonsense in (b"", b"\x01", b"\x80", b"\x81\xa6before\x01", b"\x81\xa6before\x91\x01"):
        with pytest.raises(CorruptLog):
            unpack_delete(nonsense)


@pytest.mark.parametrize("is_in_log", [False, True])
def test_a_deletion_counts_for_readers_before_a_checkpoint_and_after_it(is_in_log: bool) -> None:
    store = open_small(MemoryDisk())
    a, b = Writer(A), Writer(B)
    append(store, a.published(F, b"1", b"2"), a.published(G, b"other"), b.published(F, b"3", b"4"))
    if is_in_log:
        checkpoint(store)

    append(store, deleted(a, a=3, b=1), a.published(F, b"5"))

    for _ in range(2):
        assert bodies(store) == [b"4", b"5"]
        assert bodies(store, G) == [b"other"]
        assert store.fanout_info(F).records == 2
        found = store.fanout_begin(F, "last", 0)
        rows = store.fanout_page(F, found.position, 1000).rows[found.skip :]
        assert [record.body for _, record in rows] == [b"5"]
        checkpoint(store)


def test_nothing_is_left_of_a_fanout_that_is_deleted_whole() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    append(store, a.published(F, b"1"))
    checkpoint(store)

    append(store, deleted(a, a=1))
    checkpoint(store)

    assert store.fanouts() == []
    assert disk.names(FANOUT_DIRECTORY) == []
    assert store.fanout_info(F) == (0, 0, 0, 0)


def test_a_reader_from_before_the_deletion_finds_the_new_messages() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    append(store, a.published(F, b"1" * 400))
    checkpoint(store)
    _, position, _ = store.fanout_page(F, store.fanout_start(F), 1000)[:3]

    append(store, deleted(a, a=1))
    checkpoint(store)
    append(store, a.published(F, b"2"), a.published(F, b"3"))
    checkpoint(store)

    records, _, _ = store.fanout_page(F, position, 1000)[:3]
    assert [record.body for _, record in records] == [b"2", b"3"]


def test_a_message_that_arrives_late_stays_deleted_after_a_restart() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    append(store, deleted(Writer(A), b=2))
    checkpoint(store)
    disk.stop()

    store = open_small(disk)
    append(store, Writer(B).published(F, b"deleted", b"deleted, too", b"later"))

    for _ in range(2):
        assert bodies(store) == [b"later"]
        checkpoint(store)


def test_a_deletion_that_is_only_in_the_journal_is_found_by_a_start() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    append(store, a.published(F, b"1"))
    checkpoint(store)
    append(store, deleted(a, a=1))
    disk.stop()

    store = open_small(disk)

    assert store.recovered.deletions.before(F) == {A: 1}
    assert store.fanouts() == []


def test_a_peer_that_was_away_gets_the_deletion_and_no_deleted_message() -> None:
    store = open_small(MemoryDisk())
    a = Writer(A)
    append(store, a.published(F, b"1"), deleted(a, a=1), a.published(F, b"3"))
    checkpoint(store)

    rest = store.repair_source.read(A, 0, 3, 0)

    assert rest.through == 3
    records = [unpack_record(packed) for packed in rest.records]
    assert [(record.sequence, record.kind, record.destination) for record in records] == [
        (2, RecordKind.DELETE, F),
        (3, RecordKind.PUBLISH, F),
    ]
    assert unpack_delete(records[0].body) == {A: 1}


def test_a_deletion_is_forgotten_when_every_member_has_it_and_it_is_old() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    append(store, a.published(F, b"1"), deleted(a, a=1))

    checkpoint(store, NOW, b={A: 2})
    assert deletions_of(store.catalog.facts()).count == 1
    checkpoint(store, LATER, b={A: 1})
    assert deletions_of(store.catalog.facts()).count == 1
    report = store.checkpoint(store.journal.end, LATER, {"b": {A: 2}})

    assert [one.dot for known in report.obsolete.values() for one in known] == [Dot(A, 2)]
    assert deletions_of(store.catalog.facts()).count == 0
    disk.stop()
    assert open_small(disk).recovered.deletions.count == 0


def test_the_catalog_remembers_deletions_as_they_were() -> None:
    store = open_small(MemoryDisk())
    append(store, deleted(Writer(A), a=0, b=7))
    deletions = store.recovered.deletions

    facts = deletion_facts(deletions, [F, G])

    assert facts[f"deleted/{G}"] is None
    text = facts[f"deleted/{F}"]
    assert text is not None
    assert json.loads(text) == [[str(A), 1, NOW + 1, {str(A): 0, str(B): 7}]]
    assert deletions_of({f"deleted/{F}": text}).by_name == deletions.by_name


def test_what_survives_beside_damage_is_kept_and_a_reader_hears_of_the_gap() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    append(store, a.published(F, b"1"), b.published(F, b"2" * 100), a.published(F, b"3"), b.published(F, b"4"))
    checkpoint(store)
    store.close()
    path = next(path for path in disk.contents() if directory_name(F) in path)
    data = bytearray(disk.contents()[path])
    at = data.index(b"2" * 100)
    data[at] ^= 1
    disk.put(path, bytes(data))
    store = open_small(disk)

    append(store, deleted(a, a=1))
    checkpoint(store)

    page = store.fanout_page(F, store.fanout_start(F), 1000)
    assert [record.body for _, record in page.rows] == [b"3", b"4"]
    assert Dot(B, 2) in page.dropped
    assert store.damaged_fanouts() == []
