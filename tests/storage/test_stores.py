"""What any queue store and any catalog has to do; run against SQLite and against the twins in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlite_utils

from qmq.dots import Dot, Origin
from qmq.errors import FutureVersion, LogBroken
from qmq.storage.catalog import SqliteCatalog
from qmq.storage.memory import MemoryDisk
from qmq.storage.memory_stores import MemoryCatalog, MemoryQueueStore
from qmq.storage.ports import Catalog, CheckpointState, FanoutExtent, Identity, QueueRow, QueueStore
from qmq.storage.queue_store import SqliteQueueStore

HUGE = Origin("a", 2**64 - 1)
OLD = Origin("a", 2**63)
OTHER = Origin("b", 5)

OpenQueues = Callable[[], QueueStore]
OpenCatalog = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "memory"])
def open_queues(request: pytest.FixtureRequest, tmp_path: Path) -> OpenQueues:
    """Opens the same store each time, as a restarted node would."""
    disk = MemoryDisk()
    return lambda: SqliteQueueStore(tmp_path / "q.sqlite") if request.param == "sqlite" else MemoryQueueStore(disk)


@pytest.fixture(params=["sqlite", "memory"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> OpenCatalog:
    disk = MemoryDisk()
    return lambda: SqliteCatalog(tmp_path / "c.sqlite") if request.param == "sqlite" else MemoryCatalog(disk)


def row(origin: Origin, sequence: int, queue: str = "/queue/q", priority: int = 4, body: bytes = b"") -> QueueRow:
    return QueueRow(Dot(origin, sequence), queue, 1000 + sequence, 7, priority, b"k:v\n", body)


def pages(store: QueueStore, node: str, limit: int) -> list[QueueRow]:
    found: list[QueueRow] = []
    after = None
    while True:
        rows, after = store.load(node, after, limit)
        assert len(rows) <= limit
        found.extend(rows)
        if after is None:
            return found


def test_a_new_store_is_empty_at_position_zero(open_queues: OpenQueues) -> None:
    store = open_queues()

    assert (store.position(), store.queues(), store.tombstones()) == (0, {}, set())
    assert store.load("a", None, 10) == ([], None)
    assert store.get([Dot(HUGE, 1)]) == {}
    store.close()


def test_what_was_applied_is_there_after_reopening(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, 2**63 + 5, body=b"\0\xff"), row(OTHER, 1, "/queue/ä")]
    store.apply(rows, [], [Dot(OTHER, 9)], [], 123)
    store.close()

    store = open_queues()

    assert store.position() == 123
    assert store.queues() == {"/queue/q": 1, "/queue/ä": 1}
    assert store.tombstones() == {Dot(OTHER, 9)}
    assert store.get([rows[0].dot, Dot(HUGE, 1)]) == {rows[0].dot: rows[0]}
    assert pages(store, "b", 10) == [rows[1]]
    store.close()


def test_pages_come_by_queue_priority_origin_as_met_and_sequence(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, 3), row(HUGE, 1), row(OLD, 2), row(OLD, 1, priority=9), row(HUGE, 7, "/queue/a"), row(OTHER, 1)]
    store.apply(rows[:2], [], [], [], 1)
    store.apply(rows[2:], [], [], [], 2)

    wanted = [rows[4], rows[3], rows[1], rows[0], rows[2]]
    for limit in (1, 2, 3, 5, 100):
        assert pages(store, "a", limit) == wanted
    store.close()
    store = open_queues()
    assert pages(store, "a", 2) == wanted
    store.close()


def test_deleting_takes_messages_and_tombstones_and_minds_nothing_that_is_gone(open_queues: OpenQueues) -> None:
    store = open_queues()
    store.apply([row(HUGE, 1), row(HUGE, 2)], [], [Dot(OLD, 1), Dot(OLD, 2)], [], 1)

    store.apply([], [Dot(HUGE, 1), Dot(HUGE, 99), Dot(OTHER, 1)], [], [Dot(OLD, 2), Dot(OLD, 7)], 2)

    assert [found.dot for found in pages(store, "a", 10)] == [Dot(HUGE, 2)]
    assert store.tombstones() == {Dot(OLD, 1)}
    store.close()


def test_applying_the_same_again_changes_nothing(open_queues: OpenQueues) -> None:
    store = open_queues()
    for _ in range(2):
        store.apply([row(HUGE, 1), row(HUGE, 2)], [Dot(HUGE, 2)], [Dot(OLD, 1)], [], 5)

    assert [found.dot for found in pages(store, "a", 10)] == [Dot(HUGE, 1)]
    assert store.tombstones() == {Dot(OLD, 1)}
    store.close()


def test_a_failed_transaction_leaves_nothing_behind(tmp_path: Path) -> None:
    store = SqliteQueueStore(tmp_path / "q.sqlite")
    store.apply([row(HUGE, 1)], [], [], [], 1)
    broken = row(OTHER, 2)._replace(queue=None)  # type: ignore[arg-type]

    with pytest.raises(LogBroken):
        store.apply([row(OTHER, 1), broken], [Dot(HUGE, 1)], [], [], 2)

    assert store.position() == 1
    assert store.queues() == {"/queue/q": 1}
    store.apply([row(OTHER, 1)], [], [], [], 2)
    assert pages(store, "b", 10) == [row(OTHER, 1)]
    store.close()


def test_a_memory_store_that_is_told_to_fail_changes_nothing() -> None:
    disk = MemoryDisk()
    store = MemoryQueueStore(disk)
    disk.fail_at(0)

    with pytest.raises(LogBroken):
        store.apply([row(HUGE, 1)], [], [], [], 1)

    assert (store.position(), store.queues()) == (0, {})


def test_a_new_catalog_knows_nothing(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()

    assert catalog.identity() is None
    assert catalog.checkpoint() == catalog.base() == CheckpointState(0, {})
    assert (catalog.fanouts(), catalog.peers(), catalog.incarnations()) == ({}, {}, {})
    catalog.close()


def test_the_catalog_keeps_its_facts_over_a_restart(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    extent = FanoutExtent("f-1", 0, 500, 3, 10, 20)
    catalog.set_identity(Identity("a", "u", 1))
    catalog.commit_checkpoint(CheckpointState(70, {HUGE: 2**63 + 1}), {"/fanout/f": extent, "/fanout/g": extent})
    catalog.commit_checkpoint(CheckpointState(99, {HUGE: 2**63 + 4}), {"/fanout/f": extent._replace(end=900)})
    catalog.set_base(CheckpointState(64, {OTHER: 1}))
    catalog.set_peer("b", {OTHER: 1})
    catalog.set_peer("b", {OTHER: 2, OLD: 1})
    catalog.add_incarnation(HUGE, 100)
    catalog.add_incarnation(OLD, 50)
    catalog.close()

    catalog = open_catalog()

    assert catalog.identity() == Identity("a", "u", 1)
    assert catalog.checkpoint() == CheckpointState(99, {HUGE: 2**63 + 4})
    assert catalog.fanouts() == {"/fanout/f": extent._replace(end=900), "/fanout/g": extent}
    assert catalog.base() == CheckpointState(64, {OTHER: 1})
    assert catalog.peers() == {"b": {OTHER: 2, OLD: 1}}
    assert list(catalog.incarnations().items()) == [(HUGE, 100), (OLD, 50)]
    catalog.close()


@pytest.mark.parametrize("kind", [SqliteCatalog, SqliteQueueStore])
def test_a_file_that_later_software_migrated_is_refused(
    kind: type[SqliteCatalog] | type[SqliteQueueStore], tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite"
    kind(path).close()
    database = sqlite_utils.Database(path)
    applied = dict(next(iter(database["_sqlite_migrations"].rows)))
    database["_sqlite_migrations"].insert({**applied, "id": None, "name": "m999_later"})
    database.close()

    with pytest.raises(FutureVersion, match="m999_later"):
        kind(path)


@pytest.mark.parametrize("kind", [SqliteCatalog, SqliteQueueStore])
def test_a_file_that_is_no_database_is_a_storage_error(
    kind: type[SqliteCatalog] | type[SqliteQueueStore], tmp_path: Path
) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"not a database, but long enough to look at" * 50)

    with pytest.raises(LogBroken, match="SQLite"):
        kind(tmp_path / "x.sqlite")
