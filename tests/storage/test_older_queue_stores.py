"""A queue store that is older than the journal: a young one that lost its WAL, a database that was put back."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qmq.errors import LogBroken, StorageError
from qmq.model.dots import Dot
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format.batch import record_slices
from qmq.storage.format.row_checksum import number_checksum
from qmq.storage.queues.rows import runs_of
from qmq.storage.repair.range_snapshot import RangeSnapshot
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore
from tests.support.postgres import Server

from .rig import NOW, SMALL, A, B, C, Writer, all_rows, open_small

QUEUES = "queues.sqlite"
WAL = QUEUES + "-wal"
WAL_HEADER_BYTES = 32
FRAME_BYTES = 24 + 8192
"""One page of the file, and what SQLite writes before it (sqlite.org/fileformat2.html)."""

SETTLED = [Dot(A, n) for n in (2, 3)]


def fill(store: Store, rounds: int = 12) -> None:
    """Messages of three nodes, two of which are settled; then so much that the journal drops the records of all."""
    a, b, c = (Writer(origin, store.journal.vector().get(origin, 0)) for origin in (A, B, C))
    for n in range(rounds):
        store.journal.append([a.published("/queue/q", b"a%d" % n * 150), b.published("/queue/p", b"b%d" % n)])
        if n == rounds // 2:
            c.settle("/queue/q", SETTLED)
            store.journal.append([c.batch()])
    store.journal.append([c.published("/queue/q", b"last" * 400), c.published("/queue/q", b"x" * 1400)])
    store.checkpoint(store.journal.end, NOW, {})
    assert store.journal.start > 0


def killed(directory: Path, copy: Path) -> Path:
    """What kill -9 leaves of `directory` now: SQLite has not carried its WAL into the file."""
    shutil.copytree(directory, copy)
    assert (copy / WAL).stat().st_size > WAL_HEADER_BYTES + FRAME_BYTES
    return copy


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def is_accounted_for(store: Store, rows: dict[Dot, bytes]) -> bool:
    """Each of `rows` is there as it was, or may be missing."""
    found, missing_ranges = all_rows(store), store.missing_ranges()
    return all(
        found[dot] == body
        if dot in found
        else any(
            dot.origin == missing.origin and missing.after < dot.sequence <= missing.through
            for missing in missing_ranges
        )
        for dot, body in rows.items()
    )


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Dot, bytes]]:
    """A directory after kill -9, and what its queue store held."""
    place = tmp_path_factory.mktemp("young")
    store = open_store(place / "data", node="a", settings=SMALL)
    fill(store)
    rows = all_rows(store)
    left = killed(place / "data", place / "left")
    store.close()
    return left, rows


def test_a_store_without_commits_starts_although_the_journal_behind_it_is_damaged() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    for n in range(4):
        store.journal.append([a.published("/queue/q", b"body %d" % n), b.published("/queue/p", b"other %d" % n)])
    store.checkpoint(store.journal.end, NOW, {})
    rows = all_rows(store)
    assert store.journal.start == 0 and len(rows) == 8
    store.close()
    for path, data in disk.contents().items():
        if b"body 1" in data:
            disk.put(path, data.replace(b"body 1", b"bodY 1"))
    MemoryQueueStore(disk).reset(0)

    store = open_small(disk)

    assert is_accounted_for(store, rows)
    assert UNCHECKED in store.catalog.facts()
    assert any("the journal is damaged behind that" in what for what in store.damage())


def test_a_row_of_journal_that_the_disk_has_lost_is_deleted_by_its_settle() -> None:
    """A crash came between the commits of the queue store and of the catalog, and a peer sends the record again."""
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([Writer(A).published("/queue/q", b"one")])
    store.checkpoint(store.journal.end, NOW, {})
    again = Writer(B).published("/queue/q", b"two", b"three")
    store.journal.append([again])
    disk.fail_at(1)
    with pytest.raises(LogBroken):
        store.checkpoint(store.journal.end, NOW, {})
    disk.stop()
    assert MemoryQueueStore(disk).position() > 0
    for path, data in disk.contents().items():
        if b"three" in data:
            disk.put(path, data.replace(b"three", b"thrEe"))
    store = open_small(disk)
    assert store.recovered.lost_positions and B not in store.recovered.vector
    assert {Dot(B, 1), Dot(B, 2)} < all_rows(store).keys()

    c = Writer(C)
    c.settle("/queue/q", [Dot(B, 2)])
    store.journal.append([c.batch(), again])
    c.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([c.batch()])
    store.checkpoint(store.journal.end, NOW, {})

    assert all_rows(store) == {Dot(A, 1): b"one"}
    assert store.tombstones == set()


def test_a_settle_of_a_damaged_journal_outlives_the_search_of_one_run() -> None:
    """Its message is missing here, the journal drops the settle, and the node restarts before a peer has answered."""
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    store.journal.append([b.published("/queue/q", b"settled", b"waits")])
    while not store.journal.base().get(B):
        store.journal.append([a.published("/topic/x", b"x" * 900)])
        store.checkpoint(store.journal.end, NOW, {})
    a.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([a.batch(), a.published("/topic/x", b"rotten")])
    store.checkpoint(store.journal.end, NOW, {})
    store.close()
    for path, data in disk.contents().items():
        if b"rotten" in data:
            disk.put(path, data.replace(b"rotten", b"Rotten"))
    MemoryQueueStore(disk).reset()
    store = open_small(disk)
    left = [store.row_repairer.search_journal(missing) for missing in store.missing_ranges()]
    end = store.journal.end
    while store.journal.start < end:
        store.journal.append([a.published("/topic/x", b"x" * 900)])
        store.checkpoint(store.journal.end, NOW, {})
    disk.stop()
    store = open_small(disk)

    (missing,) = [one for one in left if one is not None and one.origin == B]
    waits = Writer(B)
    records = list(record_slices(waits.published("/queue/q", b"settled", b"waits")))
    store.row_repairer.take(missing, missing.after, RangeSnapshot(2, 0, 0, records))

    assert all_rows(store) == {Dot(B, 2): b"waits"}
    assert store.tombstones == set()


def test_a_row_of_an_older_store_that_a_damaged_journal_settles_is_deleted() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    store.journal.append([b.published("/queue/q", b"settled", b"waits")])
    store.checkpoint(store.journal.end, NOW, {})
    rows, position = store.queues.unsettled(B, 0, 2, 1000, 1 << 20), store.queues.position()
    a.settle("/queue/q", [Dot(B, 1)])
    store.journal.append([a.batch(), a.published("/topic/x", b"rotten")])
    store.checkpoint(store.journal.end, NOW, {})
    store.close()
    older = MemoryQueueStore(disk)
    older.reset()
    older.apply(runs_of(rows), {}, [], [], position)
    for path, data in disk.contents().items():
        if b"rotten" in data:
            disk.put(path, data.replace(b"rotten", b"Rotten"))

    store = open_small(disk)

    assert all_rows(store) == {Dot(B, 2): b"waits"}


def damages(wal_bytes: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    def flipped(place: int) -> Callable[[Path], None]:
        return lambda directory: flip(directory / WAL, place)

    for place in range(0, WAL_HEADER_BYTES, 5):
        yield f"header byte {place}", flipped(place)
    for number, frame in enumerate(range(WAL_HEADER_BYTES, wal_bytes, FRAME_BYTES)):
        yield f"head of frame {number}", flipped(frame + number % 24)
        yield f"page of frame {number}", flipped(frame + 24 + (number * 997) % 8192)
    yield "no WAL", lambda directory: (directory / WAL).unlink()
    yield "neither file", without_store


def without_store(directory: Path) -> None:
    for name in (WAL, QUEUES):
        (directory / name).unlink()


def test_any_damage_to_the_wal_of_a_young_store_leaves_a_node_that_starts_and_knows_what_it_lacks(
    left: tuple[Path, dict[Dot, bytes]], tmp_path: Path
) -> None:
    directory, rows = left
    older = 0
    for number, (what, harm) in enumerate(damages((directory / WAL).stat().st_size)):
        copy = tmp_path / str(number)
        shutil.copytree(directory, copy)
        harm(copy)

        store = open_store(copy, node="a", settings=SMALL)

        assert is_accounted_for(store, rows), what
        assert store.queues.position() == store.journal.end, what
        if UNCHECKED in store.catalog.facts():
            older += 1
            assert "older than the journal" in store.damage()[0] or "damaged" in store.damage()[0], what
        store.close()
        store = open_store(copy, node="a", settings=SMALL)
        assert is_accounted_for(store, rows), what
        assert store.damage() == [], what
        store.close()
    assert older > 10


def test_what_an_older_store_holds_stays_until_a_record_says_that_it_is_settled(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", node="a", settings=SMALL)
    store.journal.append([Writer(A).published("/queue/q", b"1", b"2", b"3")])
    store.checkpoint(store.journal.end, NOW, {})
    old = {name: (tmp_path / "data" / name).read_bytes() for name in (QUEUES, WAL)}
    fill(store)
    copy = killed(tmp_path / "data", tmp_path / "copy")
    store.close()
    (copy / (QUEUES + "-shm")).unlink()
    for name, data in old.items():
        (copy / name).write_bytes(data)

    store = open_store(copy, node="a", settings=SMALL)

    # 2 and 3 are settled, but the journal says that no more. A message too often, rather than one too few.
    found = all_rows(store)
    assert [found[Dot(A, n)] for n in (1, 2, 3)] == [b"1", b"2", b"3"]
    assert {missing.origin for missing in store.missing_ranges()} >= {A, B}
    assert UNCHECKED in store.catalog.facts()
    store.close()


def test_the_file_from_before_postgresql_is_not_taken_for_a_store_that_lost_something(
    postgres: Server, tmp_path: Path
) -> None:
    store = open_store(tmp_path, node="a", settings=SMALL)
    store.close()
    url = postgres.fresh_schema()
    store = open_store(tmp_path, node="a", settings=SMALL, queue_store=url)
    fill(store)
    store.close()

    with pytest.raises(StorageError, match=r"the queues of this node were in postgresql last.*set storage.queue_store"):
        open_store(tmp_path, node="a", settings=SMALL)


@pytest.mark.parametrize("how", ["made new", "put back"])
def test_a_database_that_is_older_than_the_journal_is_made_up_for(postgres: Server, tmp_path: Path, how: str) -> None:
    url = postgres.fresh_schema()
    # From before the change to PostgreSQL: nothing of it counts any more.
    store = open_store(tmp_path, node="a", settings=SMALL)
    store.journal.append([Writer(A).published("/queue/q", b"first")])
    store.close()
    store = open_store(tmp_path, node="a", settings=SMALL, queue_store=url)
    old = store.queues.position()
    fill(store)
    rows = all_rows(store)
    store.close()
    import psycopg

    with psycopg.connect(url) as connection:
        if how == "made new":
            for table in (
                "version",
                "origins",
                "lanes",
                "messages",
                "tombstones",
                "progress",
                "lacks",
                "runs",
                "settled",
            ):
                connection.execute(f"DROP TABLE qmq_{table}")
        else:
            connection.execute("UPDATE qmq_progress SET position = %s, checksum = %s", (old, number_checksum(old)))
            connection.execute("DELETE FROM qmq_messages WHERE sequence > 1")

    store = open_store(tmp_path, node="a", settings=SMALL, queue_store=url)

    assert is_accounted_for(store, rows)
    assert store.queues.position() == store.journal.end
    assert "older than the journal" in store.damage()[0]
    assert (Dot(A, 1) in all_rows(store)) == (how == "put back")
    store.close()
