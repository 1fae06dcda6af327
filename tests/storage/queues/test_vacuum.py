"""The file of the queue store shrinks when a backlog is gone, in short steps, and what is left stays whole."""

from collections.abc import Iterable
from pathlib import Path

from qmq.model.dots import Dot, Origin
from qmq.storage.disk.sqlite import PAGE_BYTES
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import FREE_PAGES_KEPT, STEP_PAGES, SqliteQueueStore

Q = "/queue/q"
A = Origin("a", 1)
BODY_BYTES = 4 * PAGE_BYTES
BACKLOG = 2 * FREE_PAGES_KEPT // 4
"""Messages that fill twice as many pages as are kept."""


def body(sequence: int) -> bytes:
    return sequence.to_bytes(4, "big") * (BODY_BYTES // 4)


def fill(store: SqliteQueueStore) -> None:
    rows = [QueueRow(Dot(A, n), Q, n, 0, 4, 0, 0, b"", body(n)) for n in range(1, BACKLOG + 1)]
    store.apply(runs_of(rows), {}, (), (), 1)


def drain(store: SqliteQueueStore, sequences: Iterable[int]) -> None:
    store.apply((), {Q: [Dot(A, n) for n in sequences]}, (), (), 2)


def pages(store: SqliteQueueStore) -> int:
    found: int = store._database.conn.execute("PRAGMA page_count").fetchone()[0]
    return found


def give_all_back(store: SqliteQueueStore) -> list[int]:
    """Until there is no more; how many pages each step gave."""
    steps: list[int] = []
    has_more = True
    while has_more:
        before = pages(store)
        has_more = store.give_back()
        steps.append(before - pages(store))
    return steps


def test_a_drained_store_gives_its_pages_back_in_short_steps_and_keeps_some(tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite"
    store = SqliteQueueStore(path)
    fill(store)
    drain(store, range(1, BACKLOG + 1))
    assert pages(store) > 2 * FREE_PAGES_KEPT

    steps = give_all_back(store)

    assert FREE_PAGES_KEPT <= pages(store) < FREE_PAGES_KEPT + 100
    assert len(steps) > 2
    assert max(steps) <= STEP_PAGES + 10  # beside them go pages that only said who points to whom
    store.close()
    assert path.stat().st_size < (FREE_PAGES_KEPT + 100) * PAGE_BYTES


def test_a_store_with_little_to_give_is_left_as_it_is(tmp_path: Path) -> None:
    store = SqliteQueueStore(tmp_path / "q.sqlite")
    fill(store)
    drain(store, range(1, BACKLOG // 5))
    before = pages(store)

    assert not store.give_back()
    assert pages(store) == before
    store.close()


def test_messages_between_the_gaps_are_moved_whole(tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite"
    store = SqliteQueueStore(path)
    fill(store)
    left = range(8, BACKLOG + 1, 8)
    drain(store, [n for n in range(1, BACKLOG + 1) if n % 8])

    assert give_all_back(store) != [0]
    store.close()

    store = SqliteQueueStore(path)
    rows = store.page("a", Q, 4, None, 0, BACKLOG)
    assert [(row.dot.sequence, row.body == body(row.dot.sequence)) for row in rows] == [(n, True) for n in left]
    assert store._database.conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


def test_a_reader_sees_its_moment_while_pages_move(tmp_path: Path) -> None:
    store = SqliteQueueStore(tmp_path / "q.sqlite")
    fill(store)
    drain(store, range(1, BACKLOG - 4))

    with store._snapshot() as reader:
        assert reader.execute("SELECT count(*) FROM messages").fetchone() == (5,)
        assert store.give_back()
        assert reader.execute("SELECT count(*), sum(length(body)) FROM messages").fetchone() == (5, 5 * BODY_BYTES)
    store.close()
