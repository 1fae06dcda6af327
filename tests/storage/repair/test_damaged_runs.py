"""Repair of a damaged run: all of its messages are missing at once, and one search of the journal serves many."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Dot
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.journal import Journal
from qmq.storage.queues import sqlite_sql
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.store import Store, open_store
from tests.storage.rig import NOW, A, B, Writer, all_rows

JOBS = "/queue/jobs"
SETTINGS = StoreSettings(reserve_bytes=0)
RUN = 256


def with_damaged_run(path: Path) -> Store:
    """A store that has met damage in its only run."""
    store = open_store(path, node="a", settings=SETTINGS)
    take(store, Writer(A).published(JOBS, *[b"%d" % n for n in range(1, RUN + 1)]))
    store.close()
    with closing(sqlite3.connect(path / "queues.sqlite")) as database, database:
        assert database.execute("UPDATE runs SET body = CAST(body || 'x' AS BLOB)").rowcount == 1
    store = open_store(path, node="a", settings=SETTINGS)
    assert all_rows(store) == {} and len(store.missing_ranges()) == RUN
    return store


def take(store: Store, batch: bytes) -> None:
    store.journal.append([batch])
    store.checkpoint(store.journal.end, NOW, {})


def bodies(*without: int) -> dict[Dot, bytes]:
    return {Dot(A, n): b"%d" % n for n in range(1, RUN + 1) if n not in without}


def test_many_messages_of_a_damaged_run_are_repaired_by_one_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_damaged_run(tmp_path)
    begun: list[int] = []
    read = Journal.read

    def counted(journal: Journal, place: int, size: int) -> Any:
        begun.append(place)
        return read(journal, place, size)

    monkeypatch.setattr(Journal, "read", counted)
    left = [store.row_repairer.search_journal(missing) for missing in store.missing_ranges()]

    assert left == [None] * RUN
    assert begun.count(store.journal.start) <= 6
    assert all_rows(store) == bodies() and store.missing_ranges() == []
    assert isinstance(store.queues, SqliteQueueStore) and store.queues.check() is None
    store.close()


def test_a_damaged_run_is_read_once_more_to_store_what_is_missing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_damaged_run(tmp_path)
    read: list[str] = []
    raw_runs = SqliteQueueStore._raw_runs

    def counted(queues: SqliteQueueStore, connection: sqlite3.Connection, statement: str, parameters: Any) -> Any:
        read.append(statement)
        return raw_runs(queues, connection, statement, parameters)

    monkeypatch.setattr(SqliteQueueStore, "_raw_runs", counted)

    store.queues.apply([], {}, [], [], store.queues.position())

    assert read.count(sqlite_sql.RUNS) == 1
    assert len(store.missing_ranges()) == RUN
    assert store.queues.is_empty("a")
    store.close()


def test_what_is_settled_after_the_search_for_another_message_does_not_come_back(tmp_path: Path) -> None:
    store = with_damaged_run(tmp_path)
    first, second, third, *others = store.missing_ranges()
    assert store.row_repairer.search_journal(first) is None

    of_b = Writer(B)
    of_b.settle(JOBS, [Dot(A, 2)])
    of_b.attempts(JOBS, {Dot(A, 3): 4})
    take(store, of_b.batch())
    for missing in (second, third, *others):
        assert store.row_repairer.search_journal(missing) is None

    assert all_rows(store) == bodies(2) and store.missing_ranges() == []
    assert [row.attempts for row in store.queues.unsettled(A, 0, 4, 1000, 1 << 20)] == [0, 4, 0]
    store.close()


def test_a_message_that_was_repaired_is_searched_for_again_without_harm(tmp_path: Path) -> None:
    store = with_damaged_run(tmp_path)
    for missing in store.missing_ranges()[:10]:
        store.row_repairer.search_journal(missing)

    assert store.row_repairer.search_journal(MissingRange(A, 4, 5, 5, JOBS)) is None

    assert all_rows(store) == {Dot(A, n): b"%d" % n for n in range(1, 11)}
    assert store.queues.heads("a", [JOBS], 0)[JOBS].messages == 10
    store.close()


@pytest.mark.parametrize("is_kept", [True, False], ids=["journal kept", "journal dropped"])
def test_a_flipped_bit_in_what_is_settled_loses_nothing_and_the_journal_settles_it_again(
    tmp_path: Path, is_kept: bool
) -> None:
    settings = SETTINGS if is_kept else StoreSettings(segment_bytes_max=3000, journal_keep_bytes=0, reserve_bytes=0)
    store = open_store(tmp_path, node="a", settings=settings)
    of_a, of_b = Writer(A), Writer(B)
    take(store, of_a.published(JOBS, *[b"%d" % n for n in range(1, RUN + 1)]))
    settled = range(40, 90)
    of_b.settle(JOBS, [Dot(A, n) for n in settled])
    of_b.attempts(JOBS, {Dot(A, 5): 2})
    take(store, of_b.batch())
    for _ in range(6):
        take(store, of_a.published("/queue/large", b"x" * 900))
    large = {dot: body for dot, body in all_rows(store).items() if dot.sequence > RUN}
    assert (store.journal.start == 0) is is_kept
    store.close()
    path = tmp_path / "queues.sqlite"
    data = path.read_bytes()
    with closing(sqlite3.connect(path)) as database:
        [(waiting,)] = database.execute("SELECT waiting FROM settled")
    place = data.index(waiting)

    for number in range(0, RUN, 23):
        damaged = bytearray(data)
        damaged[place + number] ^= 1 << number % 8
        path.write_bytes(damaged)
        store = open_store(tmp_path, node="a", settings=settings)
        for missing in store.missing_ranges():
            store.row_repairer.search_journal(missing)

        assert all_rows(store) == (bodies(*settled) if is_kept else bodies()) | large
        assert store.queues.unsettled(A, 4, 5, 1000, 1 << 20)[0].attempts == 2
        assert any(f"which of these {RUN} were settled" in line for line in store.queues.damage.lines)
        store.close()
