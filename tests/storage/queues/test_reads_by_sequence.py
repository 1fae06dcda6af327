"""Reads of all messages of an origin by sequence: what they cost does not grow with what they do not return."""

from pathlib import Path

import pytest

from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import SqliteQueueStore

A = Origin("a", 1)
EVER = 1 << 62


def row(sequence: int, queue: str, expires_us: int = 0) -> QueueRow:
    return QueueRow(Dot(A, sequence), queue, 5000, 5 << 20, 4, 0, expires_us, b"k:v\n", b"body")


def work(store: SqliteQueueStore, after: int, through: int = EVER, limit: int = 1) -> int:
    """Hundreds of steps of SQLite's machine that finding some messages takes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    store._reader.set_progress_handler(count, 100)
    found = store.unsettled(A, after, through, limit)
    store._reader.set_progress_handler(None, 100)
    assert [one.dot.sequence for one in found] == list(range(after + 1, after + limit + 1))
    return steps


@pytest.mark.parametrize("expires_us", [0, EVER])
def test_the_first_messages_of_a_long_queue_cost_what_those_of_a_short_one_cost(
    tmp_path: Path, expires_us: int
) -> None:
    """The ones that expire are rows of their own, the others lie in runs."""
    short, long = SqliteQueueStore(tmp_path / "short"), SqliteQueueStore(tmp_path / "long")
    short.apply(runs_of(row(n, "/queue/q", expires_us) for n in range(1, 601)), {}, [], [], 1)
    long.apply(runs_of(row(n, "/queue/q", expires_us) for n in range(1, 20_001)), {}, [], [], 1)

    assert work(long, 0) <= work(short, 0) + 1
    assert work(long, 300) <= work(short, 300) + 1
    short.close()
    long.close()


def test_queues_that_begin_later_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteQueueStore(tmp_path / "q")
    store.apply(runs_of(row(n, f"/queue/{(n - 1) // 20}") for n in range(1, 2001)), {}, [], [], 1)
    read: list[tuple[int, ...]] = []
    raw_runs = store._raw_runs
    monkeypatch.setattr(store, "_raw_runs", lambda *asked: read.append(asked[2]) or raw_runs(*asked))

    found = store.unsettled(A, 1005, EVER, 30)

    assert [one.dot.sequence for one in found] == list(range(1006, 1036))
    assert len(read) == 2
    store.close()


def test_runs_that_lie_one_in_another_are_each_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteQueueStore(tmp_path / "q")
    rows = [row(n, f"/queue/{n % 1500}") for n in range(1, 15_001)]
    store.apply(runs_of(rows), {}, [], [], 1)
    read: list[tuple[int, ...]] = []
    raw_runs = store._raw_runs
    monkeypatch.setattr(store, "_raw_runs", lambda *asked: read.append(asked[2]) or raw_runs(*asked))

    assert store.unsettled(A, 7500, EVER, 1000, 1 << 30) == rows[7500:8500]

    assert len(read) == len({asked[0] for asked in read}) == 1500
    store.close()


def test_a_queue_of_runs_and_rows_comes_by_sequence_from_any_place(tmp_path: Path) -> None:
    store = SqliteQueueStore(tmp_path / "q")
    rows = [row(n, f"/queue/{n % 3}", EVER if n % 7 == 0 else 0) for n in range(1, 3001)]
    store.apply(runs_of(rows), {}, [], [], 1)

    for after in (0, 1, 300, 1999, 2990):
        for limit in (1, 5, 1001):
            assert store.unsettled(A, after, 2995, limit) == rows[after : min(after + limit, 2995)]
    store.close()
