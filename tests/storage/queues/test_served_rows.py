"""Rows of several nodes, read as one."""

import tracemalloc
from pathlib import Path

from qmq.model.dots import Dot, Origin
from qmq.model.levels import EXACT_LEVEL
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore

A, B, C = Origin("a", 1), Origin("b", 2), Origin("c", 3)


def row(origin: Origin, sequence: int, queue: str = "/queue/q", *, due_us: int = 0, expires_us: int = 0) -> QueueRow:
    return QueueRow(Dot(origin, sequence), queue, 0, 0, 4, due_us, expires_us, b"", b"12")


def served(*rows: QueueRow, nodes: str = "ba") -> ServedRows:
    store = MemoryQueueStore(MemoryDisk())
    store.apply(runs_of(rows), {}, (), (), 1)
    return ServedRows(store, nodes)


def test_pages_go_through_the_nodes_by_name_and_leave_out_those_that_are_not_served() -> None:
    rows = served(row(B, 1), row(A, 1), row(C, 1), row(A, 2), row(B, 2))

    first = rows.page("/queue/q", 4, None, 0, 3)
    rest = rows.page("/queue/q", 4, first[-1].dot, 0, 3)

    assert [found.dot for found in first + rest] == [Dot(A, 1), Dot(A, 2), Dot(B, 1), Dot(B, 2)]


def test_what_comes_after_a_node_that_is_served_no_more_is_of_the_nodes_after_it() -> None:
    rows = served(row(A, 1), row(B, 1), row(C, 1), nodes="ac")

    assert [found.dot for found in rows.page("/queue/q", 4, Dot(B, 1), 0, 9)] == [Dot(C, 1)]


def test_rows_with_exact_numbers_are_merged_over_the_nodes() -> None:
    level = 4 + EXACT_LEVEL
    dots = [(B, 1, 7), (A, 1, 7), (A, 2, 3), (B, 2, 3), (A, 3, 9), (B, 3, 1), (B, 4, 7), (C, 1, 1)]
    rows = served(*[row(of, n)._replace(priority=level, exact=exact) for of, n, exact in dots])
    wanted = [Dot(B, 3), Dot(A, 2), Dot(B, 2), Dot(A, 1), Dot(B, 1), Dot(B, 4), Dot(A, 3)]

    for limit in (1, 2, 3, 9):
        found: list[Dot] = []
        after, exact = None, 0
        while page := rows.page("/queue/q", level, after, 0, limit, exact):
            found += [one.dot for one in page]
            after, exact = page[-1].dot, page[-1].exact
        assert found == wanted


def test_few_pages_of_exact_numbers_are_held_at_once_however_many_nodes_and_incarnations_have_rows(
    tmp_path: Path,
) -> None:
    level, size, limit = 4 + EXACT_LEVEL, 10_000, 20
    store = SqliteQueueStore(tmp_path / "q.sqlite")
    origins = [Origin(node, 1 + number) for node in "abc" for number in range(20)]
    for position, origin in enumerate(origins, 1):
        one = row(origin, 1)._replace(priority=level, exact=5, body=bytes(size))
        store.apply(runs_of([one._replace(dot=Dot(origin, 1 + n)) for n in range(limit)]), {}, (), (), position)
    rows = ServedRows(store, "abc")

    tracemalloc.start()
    found = rows.page("/queue/q", level, None, 0, limit)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()

    assert [one.dot for one in found] == [Dot(origins[0], 1 + n) for n in range(limit)]
    assert highest < 6 * limit * size


def test_few_pages_of_due_messages_are_held_at_once_however_many_priorities_and_nodes_have_them(tmp_path: Path) -> None:
    size, limit = 10_000, 20
    store = SqliteQueueStore(tmp_path / "q.sqlite")
    places = [(origin, priority) for origin in (A, B, C) for priority in range(10)]
    for position, (origin, priority) in enumerate(places, 1):
        first = 1 + limit * priority
        one = row(origin, 1, due_us=position)._replace(priority=priority, body=bytes(size))
        store.apply(runs_of([one._replace(dot=Dot(origin, first + n)) for n in range(limit)]), {}, (), (), position)
    rows = ServedRows(store, "abc")

    tracemalloc.start()
    found = rows.due("/queue/q", 0, 1 << 40, limit)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()

    assert [one.dot for one in found] == [Dot(A, 1 + n) for n in range(limit)]
    assert highest < 6 * limit * size


def test_heads_and_listings_are_sums() -> None:
    rows = served(row(A, 1), row(B, 1), row(B, 2, "/queue/r"), row(C, 1))

    assert rows.heads(["/queue/q"], 0)["/queue/q"].messages == 2
    assert rows.listing(None, 9) == [("/queue/q", 2, 4), ("/queue/r", 1, 2)]


def test_the_deepest_queues_of_each_node_have_the_sum_of_all() -> None:
    many = [row(A, n, "/queue/m") for n in (1, 2, 3)]
    rows = served(*many, row(A, 4), row(B, 1), row(B, 2), row(B, 3, "/queue/m"), row(C, 1, "/queue/x"))

    assert rows.deepest(1) == {"/queue/m": (4, 8), "/queue/q": (3, 6)}


def test_a_listing_ends_where_one_node_may_have_more() -> None:
    rows = served(row(A, 1, "/queue/a"), row(A, 2, "/queue/c"), row(B, 1, "/queue/b"), row(B, 2, "/queue/d"))

    assert [name for name, _, _ in rows.listing(None, 1)] == ["/queue/a"]
    assert [name for name, _, _ in rows.listing("/queue/a", 1)] == ["/queue/b"]


def test_what_is_due_and_what_has_expired_comes_in_the_order_of_time() -> None:
    rows = served(row(A, 1, due_us=30), row(B, 1, due_us=20), row(A, 2, expires_us=9), row(B, 2, expires_us=8))

    assert [found.dot for found in rows.due("/queue/q", 1, 40, 9)] == [Dot(B, 1), Dot(A, 1)]
    assert [found.dot for found in rows.expired(10, 9, 1 << 20)] == [Dot(B, 2), Dot(A, 2)]


def test_times_of_a_node_whose_clock_is_ahead_or_behind_are_read_by_ours() -> None:
    store = MemoryQueueStore(MemoryDisk())
    rows = [row(A, 1, due_us=130), row(B, 1, due_us=20), row(A, 2, expires_us=109), row(B, 2, expires_us=8)]
    store.apply(runs_of(rows), {}, (), (), 1)
    served = ServedRows(store, "ab", {"a": -100})

    assert served.heads(["/queue/q"], 25)["/queue/q"].next_due_us == 30
    assert [found.dot for found in served.page("/queue/q", 4, None, 30, 9)] == [
        Dot(A, 1),
        Dot(A, 2),
        Dot(B, 1),
        Dot(B, 2),
    ]
    assert [found.dot for found in served.page("/queue/q", 4, None, 29, 9)] == [Dot(A, 2), Dot(B, 1), Dot(B, 2)]
    assert [found.dot for found in served.due("/queue/q", 1, 30, 9)] == [Dot(B, 1), Dot(A, 1)]
    assert [found.dot for found in served.due("/queue/q", 20, 30, 9)] == [Dot(A, 1)]
    assert [found.dot for found in served.expired(8, 9, 1 << 20)] == [Dot(B, 2)]
    assert [served.expires_at(found) for found in served.expired(9, 9, 1 << 20)] == [8, 9]
