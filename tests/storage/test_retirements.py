"""RETIRE records: what the journal says of nodes that left, the catalog keeps for good."""

from qmq.dots import Origin
from qmq.members import Retirement
from qmq.storage.memory import MemoryDisk
from qmq.storage.mesh_facts import retirements_of
from qmq.storage.record import Kind
from qmq.storage.retire_record import pack_retirement
from qmq.storage.store import open_memory_store

from .rig import NOW, SMALL, A, Writer

SEALED = {Origin("c", 7): 12}


def retired(adopter: str) -> bytes:
    return pack_retirement(Retirement(node="c", adopter=adopter, sealed=SEALED))


def test_a_checkpoint_puts_a_retirement_into_the_catalog() -> None:
    store = open_memory_store(MemoryDisk(), node="b", settings=SMALL)
    writer = Writer(A)
    writer.record(Kind.RETIRE, retired("a"))
    store.journal.append([writer.batch()])

    store.checkpoint(store.journal.end, NOW, {})

    assert retirements_of(store.catalog.facts()) == [Retirement(node="c", adopter="a", sealed=SEALED)]


def test_opening_finds_a_retirement_that_no_checkpoint_has_taken() -> None:
    disk = MemoryDisk()
    store = open_memory_store(disk, node="b", settings=SMALL)
    writer = Writer(A)
    writer.record(Kind.RETIRE, retired("a"))
    store.journal.append([writer.batch()])
    store.close()

    store = open_memory_store(disk, node="b", settings=SMALL)

    assert [found.node for found in retirements_of(store.catalog.facts())] == ["c"]


def test_of_two_retirements_of_one_node_the_catalog_keeps_the_lesser_adopter() -> None:
    store = open_memory_store(MemoryDisk(), node="b", settings=SMALL)
    writer = Writer(A)
    for adopter in ("b", "a", "d"):
        writer.record(Kind.RETIRE, retired(adopter))
        store.journal.append([writer.batch()])
        store.checkpoint(store.journal.end, NOW, {})

    assert [found.adopter for found in retirements_of(store.catalog.facts())] == ["a"]
