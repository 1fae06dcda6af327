"""What any queue store has to do: every store passes the same tests."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from qmq.errors import LogBroken
from qmq.model.dots import Dot, Origin
from qmq.model.levels import EXACT_LEVEL
from qmq.storage.disk.volatile import VolatileDisk
from qmq.storage.format.queue_store import QueueHead, QueueRow, QueueStore
from qmq.storage.queues.choice import FOREVER_US, stored_rows
from qmq.storage.queues.rows import row_values, runs_of
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.queues.stored_run import run_row
from qmq.storage.volatile_store import VolatileQueueStore
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore

HUGE = Origin("a", 2**64 - 1)
OLD = Origin("a", 2**63)
OTHER = Origin("b", 5)
Q = "/queue/q"
NOW = 1_000_000

OpenQueues = Callable[[], QueueStore]


@pytest.fixture(params=["memory", "sqlite", "volatile", "postgres"])
def open_queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenQueues]:
    """Opens the same store each time, as a restarted node would. The one without a file stays open instead."""
    kind: str = request.param
    disk = MemoryDisk()
    url = request.getfixturevalue("postgres").fresh_schema() if kind == "postgres" else ""
    opened: list[QueueStore] = []

    def again() -> QueueStore:
        if kind == "volatile":
            opened.extend([] if opened else [VolatileQueueStore(VolatileDisk(1 << 30))])
            return opened[0]
        while opened:
            opened.pop().close()
        if kind == "postgres":
            opened.append(open_postgres(url))
        else:
            opened.append(SqliteQueueStore(tmp_path / "q.sqlite") if kind == "sqlite" else MemoryQueueStore(disk))
        return opened[-1]

    yield again
    while opened:
        opened.pop().close()


def open_postgres(url: str) -> QueueStore:
    from qmq.storage.queues.postgres_store import PostgresQueueStore

    return PostgresQueueStore(url, "a")


def row(
    origin: Origin,
    sequence: int,
    queue: str = Q,
    priority: int = 4,
    body: bytes = b"body",
    due_us: int = 0,
    expires_us: int = 0,
) -> QueueRow:
    flags = priority + 1 << 20 | 7
    return QueueRow(Dot(origin, sequence), queue, 1000 + sequence, flags, priority, due_us, expires_us, b"k:v\n", body)


def put(store: QueueStore, *rows: QueueRow, position: int = 1) -> None:
    store.apply(runs_of(rows), {}, [], [], position)


def delete(store: QueueStore, queue: str, *dots: Dot, position: int = 2) -> None:
    store.apply([], {queue: dots}, [], [], position)


def pages(
    store: QueueStore, limit: int = 100, queue: str = Q, priority: int = 4, node: str = "a", now_us: int = NOW
) -> list[QueueRow]:
    """One reading of everything, page by page."""
    found: list[QueueRow] = []
    after = None
    while True:
        rows = store.page(node, queue, priority, after, now_us, limit)
        assert len(rows) <= limit
        found += rows
        if len(rows) < limit:
            return found
        after = rows[-1].dot


def test_a_new_store_is_empty_at_position_zero(open_queues: OpenQueues) -> None:
    store = open_queues()

    assert (store.position(), store.tombstones(), store.is_empty("a")) == (0, set(), True)
    assert store.heads("a", [Q], NOW) == {}
    assert store.listing(None, None, 10) == []
    assert pages(store) == store.due("a", Q, 0, NOW, 9) == store.expired("a", NOW, 9, 1 << 20) == []


def test_what_was_applied_is_there_after_reopening(open_queues: OpenQueues) -> None:
    store = open_queues()
    first, second = row(HUGE, 2**63 - 5, body=b"\0\xff"), row(OTHER, 1, "/queue/ä", body=b"")
    store.apply(runs_of([first, second]), {}, [Dot(OTHER, 9)], [], 123)

    store = open_queues()

    assert store.position() == 123
    assert store.tombstones() == {Dot(OTHER, 9)}
    assert pages(store) == [first]
    assert pages(store, queue="/queue/ä", node="b") == [second]
    assert store.listing(None, None, 10) == [(Q, 1, 2), ("/queue/ä", 1, 0)]


def test_every_byte_of_headers_and_bodies_comes_back(open_queues: OpenQueues) -> None:
    store = open_queues()
    every = bytes(range(256))
    rows = [
        row(HUGE, 1, body=every)._replace(headers=b""),
        row(HUGE, 2, body=b"")._replace(headers=every[::-1]),
        row(HUGE, 3, body=b"")._replace(headers=b""),
        row(HUGE, 4, body=b"\0"),
        row(HUGE, 5, body=every * 1000),
    ]
    put(store, *rows)

    assert pages(store) == rows
    assert pages(store, 1) == rows


def test_messages_too_large_for_one_piece_come_back_too(
    open_queues: OpenQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.storage.queues.sqlite_store._PIECE_BYTES_MAX", 1000)
    store = open_queues()
    rows = [row(HUGE, n, body=b"%d" % n * 400) for n in range(1, 5)]
    put(store, *rows)

    assert pages(store) == rows


def test_pages_come_by_origin_as_first_met_and_sequence(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 3), row(HUGE, 1), row(OTHER, 1), row(HUGE, 7, "/queue/a"))
    put(store, row(OLD, 2), row(OLD, 1, priority=9), row(HUGE, 4))

    wanted = [row(HUGE, 1), row(HUGE, 3), row(HUGE, 4), row(OLD, 2)]
    for limit in (1, 2, 3, 4, 100):
        assert pages(store, limit) == wanted
    assert pages(store, priority=9) == [row(OLD, 1, priority=9)]
    assert pages(open_queues(), 2) == wanted


def test_a_page_begins_after_any_dot_of_a_known_origin(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 3), row(HUGE, 5), row(OLD, 1))

    def after(dot: Dot) -> list[Dot]:
        return [found.dot for found in store.page("a", Q, 4, dot, NOW, 10)]

    assert after(Dot(HUGE, 1)) == [Dot(HUGE, 3), Dot(HUGE, 5), Dot(OLD, 1)]
    assert after(Dot(HUGE, 4)) == [Dot(HUGE, 5), Dot(OLD, 1)]
    assert after(Dot(HUGE, 99)) == [Dot(OLD, 1)]
    assert after(Dot(OLD, 1)) == []
    assert after(Dot(Origin("a", 77), 1)) == []
    delete(store, Q, Dot(HUGE, 3))
    assert after(Dot(HUGE, 3)) == [Dot(HUGE, 5), Dot(OLD, 1)]


@pytest.mark.parametrize("count", range(8))
def test_a_page_may_leave_out_the_first_rows_without_reading_them(open_queues: OpenQueues, count: int) -> None:
    store = open_queues()
    late = [row(HUGE, 4, due_us=NOW + 5), row(HUGE, 6, due_us=1)]
    put(store, row(HUGE, 3), row(HUGE, 5), *late, row(OTHER, 1), row(HUGE, 7, "/queue/a"))
    put(store, row(OLD, 2), row(OLD, 1, priority=9), row(OLD, 9))

    after, _, left_out = store.skip("a", Q, 4, count)

    wanted = [Dot(HUGE, 3), Dot(HUGE, 4), Dot(HUGE, 5), Dot(HUGE, 6), Dot(OLD, 2), Dot(OLD, 9)]
    assert [found.dot for found in store.page("a", Q, 4, after, NOW + 9, 10)] == wanted[count:]
    assert left_out == min(count, 6)
    assert store.skip("a", "/queue/none", 4, count) == (None, 0, 0)


def exact_row(origin: Origin, sequence: int, exact: int, due_us: int = 0) -> QueueRow:
    return row(origin, sequence, due_us=due_us)._replace(priority=4 + EXACT_LEVEL, exact=exact)


def test_rows_with_exact_numbers_come_by_these_then_by_acceptance(open_queues: OpenQueues) -> None:
    store = open_queues()
    numbers = [9, 1, 1 << 32, 5, 5, 1, 7, 5]
    first = [exact_row(HUGE, n, number, n % 3) for n, number in enumerate(numbers, 1)]
    second = [exact_row(OLD, n, number, n % 2) for n, number in enumerate(numbers, 1)]
    put(
        store, *first, row(HUGE, 20), row(HUGE, 21, priority=9), exact_row(HUGE, 22, 5, NOW + 1), exact_row(OTHER, 1, 1)
    )
    put(store, *second)
    wanted = sorted(first + second, key=lambda row: (row.exact, row.dot.origin is OLD, row.dot.sequence))

    for limit in (1, 2, 3, 5, 16, 100):
        found: list[QueueRow] = []
        after, exact = None, 0
        while rows := store.page("a", Q, 4 + EXACT_LEVEL, after, NOW, limit, exact):
            assert len(rows) <= limit
            found += rows
            after, exact = rows[-1].dot, rows[-1].exact
        assert found == wanted, limit
    assert store.page("a", Q, 4 + EXACT_LEVEL, None, NOW, 3, 6) == [one for one in wanted if one.exact >= 6][:3]
    assert pages(store) == [row(HUGE, 20)]
    assert store.heads("a", [Q], NOW)[Q].priorities == (9, 4, 4 + EXACT_LEVEL)


def test_rows_with_exact_numbers_are_settled_skipped_and_copied_as_others(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [exact_row(HUGE, n, 100 - n % 7) for n in range(1, 30)]
    put(store, *rows)
    delete(store, Q, *[Dot(HUGE, n) for n in range(1, 30, 3)])
    wanted = sorted([one for one in rows if one.dot.sequence % 3 != 1], key=lambda row: (row.exact, row.dot.sequence))

    for count in (0, 1, 7, 19):
        after, exact, left_out = store.skip("a", Q, 4 + EXACT_LEVEL, count)
        assert left_out == min(count, len(wanted))
        assert store.page("a", Q, 4 + EXACT_LEVEL, after, NOW, 100, exact) == wanted[count:]
    assert list(stored_rows(store, "a")) == wanted
    delete(store, Q, *[one.dot for one in wanted])
    assert store.is_empty("a")


@pytest.mark.parametrize("level", [4, 4 + EXACT_LEVEL])
def test_a_page_ends_with_the_first_row_that_comes_to_the_bytes_asked_for(open_queues: OpenQueues, level: int) -> None:
    """Of rows that were delayed and others, and of several origins, in one order."""
    store = open_queues()
    rows = [
        exact_row(origin, n, n % 3 + 1 if level < 0 else 0, n % 2)._replace(
            priority=level, body=b"x" * (500 if 4 < n < 9 else 5)
        )
        for origin in (HUGE, OLD)
        for n in range(1, 13)
    ]
    put(store, *rows)
    wanted = sorted(rows, key=lambda row: (row.exact, row.dot.origin is OLD, row.dot.sequence))

    def size(some: Sequence[QueueRow]) -> int:
        return sum(len(one.headers) + len(one.body) for one in some)

    for bytes_max in (1, 30, 505, 1200, 10_000):
        found: list[QueueRow] = []
        after, exact = None, 0
        while rows := store.page("a", Q, level, after, NOW, 7, exact, bytes_max):
            assert size(rows[:-1]) < bytes_max
            assert len(rows) == 7 or size(rows) >= bytes_max or rows[-1] == wanted[-1]
            found += rows
            after, exact = rows[-1].dot, rows[-1].exact
        assert found == wanted, bytes_max


def test_messages_of_other_nodes_and_queues_stay_out(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(OTHER, 1, due_us=5, expires_us=5))

    assert pages(store) == store.due("a", Q, 0, NOW, 9) == store.expired("a", NOW, 9, 1 << 20) == []
    assert pages(store, queue="/queue/p", node="b") == store.due("b", "/queue/p", 0, NOW, 9) == []
    assert store.heads("a", [Q], NOW) == store.heads("b", ["/queue/p"], NOW) == {}
    assert store.is_empty("a") and not store.is_empty("b")
    assert store.origins() == [OTHER]
    assert (store.listing("a", None, 9), store.listing("b", None, 9)) == ([], [(Q, 1, 4)])


def test_what_is_delayed_comes_in_its_place_once_it_is_due(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, 1), row(HUGE, 2, due_us=NOW), row(HUGE, 3), row(HUGE, 4, due_us=NOW + 1), row(OLD, 1, due_us=1)]
    put(store, *rows)

    for limit in (1, 2, 100):
        assert pages(store, limit) == [rows[0], rows[1], rows[2], rows[4]]
        assert pages(store, limit, now_us=NOW + 1) == rows
        assert pages(store, limit, now_us=FOREVER_US) == rows


def test_due_rows_come_by_due_time_within_their_bounds(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, n, due_us=due_us) for n, due_us in enumerate((500, 100, 300, 400), start=1)]
    put(store, *rows, row(HUGE, 9), row(OLD, 1, priority=9, due_us=200), row(HUGE, 8, "/queue/p", due_us=250))

    def due(after_us: int, until_us: int, limit: int = 10) -> list[int]:
        return [found.due_us for found in store.due("a", Q, after_us, until_us, limit)]

    assert due(0, 1000) == [100, 200, 300, 400, 500]
    assert due(100, 400) == [200, 300, 400]
    assert due(0, 1000, 2) == [100, 200]
    assert due(500, 1000) == []
    assert store.due("a", Q, 150, 250, 10) == [row(OLD, 1, priority=9, due_us=200)]


def test_expired_rows_of_all_queues_come_by_expiry(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(
        store,
        row(HUGE, 1, expires_us=300),
        row(HUGE, 2),
        row(HUGE, 3, "/queue/p", priority=0, expires_us=100, due_us=50),
        row(OLD, 1, expires_us=200),
    )

    assert [(found.queue, found.priority, found.expires_us) for found in store.expired("a", 300, 10, 1 << 20)] == [
        ("/queue/p", 0, 100),
        (Q, 4, 200),
        (Q, 4, 300),
    ]
    assert [found.expires_us for found in store.expired("a", 299, 10, 1 << 20)] == [100, 200]
    assert [found.expires_us for found in store.expired("a", 300, 1, 1 << 20)] == [100]
    assert store.expired("a", 99, 10, 1 << 20) == []


def test_expired_rows_end_with_the_first_that_comes_to_the_bytes_asked_for(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(
        store,
        *(
            row(origin, n, body=b"x" * 1000, expires_us=10 * n + k)
            for k, origin in enumerate((HUGE, OLD))
            for n in range(1, 6)
        ),
    )
    size = 1000 + len(row(HUGE, 1).headers)

    def expired(bytes_max: int, limit: int = 100) -> list[int]:
        return [found.expires_us for found in store.expired("a", 1000, limit, bytes_max)]

    assert expired(1) == expired(size) == [10]
    assert expired(size + 1) == expired(2 * size) == [10, 11]
    assert expired(5 * size) == [10, 11, 20, 21, 30]
    assert expired(5 * size, 3) == [10, 11, 20]
    assert len(expired(10 * size)) == len(expired(100 * size)) == 10


def test_heads_say_how_much_there_is_which_priorities_and_what_is_due_next(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 1), row(HUGE, 2, priority=9, body=b"12345"), row(OLD, 3, priority=0, due_us=NOW + 7))
    put(store, row(HUGE, 4, due_us=NOW + 5), row(HUGE, 5, due_us=NOW), row(HUGE, 6, "/queue/p"), row(OTHER, 1))

    assert store.heads("a", [Q, "/queue/none", "/queue/p", Q], NOW) == {
        Q: QueueHead(5, 21, (9, 4, 0), NOW + 5),
        "/queue/p": QueueHead(1, 4, (4,), 0),
    }
    assert store.heads("a", [Q], NOW + 5)[Q].next_due_us == NOW + 7
    assert store.heads("a", [Q], NOW + 7)[Q].next_due_us == 0
    assert store.heads("b", [Q], NOW) == {Q: QueueHead(1, 4, (4,), 0)}


def test_many_heads_are_answered_at_once(open_queues: OpenQueues) -> None:
    store = open_queues()
    names = [f"/queue/{n}" for n in range(700)]
    put(store, *[row(HUGE, n, name) for n, name in enumerate(names, start=1)])

    found = store.heads("a", names, NOW)

    assert list(found) == names
    assert set(found.values()) == {QueueHead(1, 4, (4,), 0)}


def test_deleting_takes_messages_and_tombstones_and_minds_nothing_that_is_gone(open_queues: OpenQueues) -> None:
    store = open_queues()
    store.apply(runs_of([row(HUGE, 1), row(HUGE, 2)]), {}, [Dot(OLD, 1), Dot(OLD, 2)], [], 1)

    gone = {Q: [Dot(HUGE, 1), Dot(HUGE, 1), Dot(HUGE, 99), Dot(OTHER, 1)], "/queue/none": [Dot(HUGE, 2)]}
    store.apply([], gone, [], [Dot(OLD, 2), Dot(OLD, 7)], 2)

    assert pages(store) == [row(HUGE, 2)]
    assert store.heads("a", [Q], NOW) == {Q: QueueHead(1, 4, (4,), 0)}
    assert store.tombstones() == {Dot(OLD, 1)}


def test_a_settle_finds_its_message_whatever_its_priority_and_due_time(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 1, priority=0), row(HUGE, 2, priority=9, due_us=NOW * 2), row(HUGE, 3), row(OLD, 2))

    delete(store, Q, Dot(HUGE, 2), Dot(HUGE, 1))

    assert store.heads("a", [Q], NOW) == {Q: QueueHead(2, 8, (4,), 0)}
    assert store.due("a", Q, 0, FOREVER_US, 9) == []


def test_a_queue_leaves_nothing_behind_when_its_last_message_goes(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 1, priority=1), row(HUGE, 2, due_us=5), row(HUGE, 3, "/queue/p"))

    delete(store, Q, Dot(HUGE, 1), Dot(HUGE, 2))

    assert store.heads("a", [Q], NOW) == {}
    assert store.listing(None, None, 9) == [("/queue/p", 1, 4)]
    delete(store, "/queue/p", Dot(HUGE, 3))
    assert store.is_empty("a")
    assert store.listing(None, None, 9) == []


def test_a_message_that_comes_and_goes_in_one_change_leaves_nothing(open_queues: OpenQueues) -> None:
    store = open_queues()

    store.apply(runs_of([row(HUGE, 1), row(HUGE, 2)]), {Q: [Dot(HUGE, 2)]}, [], [], 5)

    assert pages(store) == [row(HUGE, 1)]
    assert store.heads("a", [Q], NOW)[Q].messages == 1


@pytest.mark.parametrize("count", [1, 31, 32, 33, 300])
def test_a_run_of_any_length_comes_back_as_it_was_put(open_queues: OpenQueues, count: int) -> None:
    store = open_queues()
    first = 2**63 - count
    rows = [row(HUGE, first + n, body=b"%d" % n)._replace(headers=b"n:%d\n" % (n // 3)) for n in range(count)]

    put(store, *rows)

    assert pages(store) == rows
    assert store.heads("a", [Q], NOW) == {Q: QueueHead(count, sum(len(one.body) for one in rows), (4,), 0)}


def test_a_long_run_changes_no_row_that_is_there_already(open_queues: OpenQueues) -> None:
    store = open_queues()
    before = [row(HUGE, n, body=b"before") for n in range(20, 60)]
    put(store, *before)

    put(store, *[row(HUGE, n, body=b"x") for n in range(1, 101)], position=2)

    found = pages(store, limit=200)
    assert [one.dot.sequence for one in found] == list(range(1, 101))
    assert [one for one in found if one.body == b"before"] == before
    assert store.heads("a", [Q], NOW) == {Q: QueueHead(100, 40 * 6 + 60, (4,), 0)}


def test_applying_the_same_again_changes_nothing(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, 1), row(HUGE, 2), row(HUGE, 3, due_us=9), row(HUGE, 4, "/queue/p")]
    for _ in range(2):
        store.apply(runs_of(rows), {Q: [Dot(HUGE, 2)]}, [Dot(OLD, 1)], [], 5)
    put(store, *rows, row(HUGE, 5))

    assert [found.dot.sequence for found in pages(store)] == [1, 2, 3, 5]
    assert store.heads("a", [Q], NOW) == {Q: QueueHead(4, 16, (4,), 0)}
    assert store.listing("a", None, 9) == [("/queue/p", 1, 4), (Q, 4, 16)]
    assert store.tombstones() == {Dot(OLD, 1)}


def test_failures_are_counted_in_whatever_way_a_row_is_read(open_queues: OpenQueues) -> None:
    store = open_queues()
    rows = [row(HUGE, 1), row(HUGE, 2, due_us=9), row(OLD, 3, expires_us=9)._replace(attempts=1), row(HUGE, 4)]
    put(store, *rows, row(OTHER, 1))

    store.apply([], {}, [], [], 2, {Q: {Dot(HUGE, 1): 3, Dot(HUGE, 2): 1, Dot(OLD, 3): 2**31 - 1}})

    store = open_queues()
    wanted = {1: 3, 2: 1, 3: 2**31 - 1, 4: 0}
    assert {found.dot.sequence: found.attempts for found in pages(store)} == wanted
    assert [(row.dot.sequence, row.queue, row.attempts) for row in store.unsettled(HUGE, 0, 9, 9)] == [
        (1, Q, 3),
        (2, Q, 1),
        (4, Q, 0),
    ]
    assert [found.attempts for found in store.due("a", Q, 0, 100, 9)] == [1]
    assert [found.attempts for found in store.expired("a", 100, 9, 1 << 20)] == [2**31 - 1]
    assert [found.attempts for found in pages(store, node="b")] == [0]
    assert [found._replace(attempts=0) for found in pages(store)] == [
        found._replace(attempts=0) for found in rows[:2]
    ] + [
        rows[3],
        rows[2]._replace(attempts=0),
    ]


def test_counts_of_failures_only_grow_and_need_a_row(open_queues: OpenQueues) -> None:
    store = open_queues()
    put(store, row(HUGE, 1))
    failed = {Q: {Dot(HUGE, 1): 4, Dot(HUGE, 9): 4, Dot(OLD, 1): 4}, "/queue/none": {Dot(HUGE, 1): 9}}
    store.apply([], {}, [], [], 2, failed)

    store.apply(
        runs_of([row(HUGE, 5), row(HUGE, 6)]), {Q: [Dot(HUGE, 6)]}, [], [], 3, {Q: {Dot(HUGE, n): 2 for n in (1, 5, 6)}}
    )

    assert [(found.dot.sequence, found.attempts) for found in pages(store)] == [(1, 4), (5, 2)]
    assert store.heads("a", [Q], NOW)[Q].messages == 2


def test_the_listing_comes_by_name_in_pages(open_queues: OpenQueues) -> None:
    store = open_queues()
    names = ["/queue/Z", "/queue/a", "/queue/b", "/queue/ä", "/queue/😀"]
    put(store, *[row(HUGE, n, name) for n, name in enumerate(reversed(names), start=1)], row(OTHER, 1, "/queue/c"))

    assert [name for name, _, _ in store.listing("a", None, 10)] == names
    assert [name for name, _, _ in store.listing("a", "/queue/a", 2)] == ["/queue/b", "/queue/ä"]
    assert [name for name, _, _ in store.listing(None, "/queue/b", 2)] == ["/queue/c", "/queue/ä"]
    assert store.listing("a", "/queue/😀", 10) == []


def test_the_deepest_queues_come_first_and_all_their_partitions_count(open_queues: OpenQueues) -> None:
    store = open_queues()
    one, two, three = "/queue/one", "/queue/two", "/queue/three"
    put(store, *[row(HUGE, n, one) for n in (1, 2)], row(HUGE, 3, two, priority=9), row(HUGE, 4, three))
    put(store, *[row(HUGE, n, two) for n in (5, 6)], *[row(OTHER, n, three) for n in (1, 2, 3)])

    assert store.deepest("a", 9) == [two, one, three]
    assert store.deepest("a", 2) == [two, one]
    assert store.deepest("c", 9) == []


class Plain:
    """What a queue store comes to, without any cleverness."""

    def __init__(self) -> None:
        self.rows: dict[Dot, QueueRow] = {}
        self.origins: list[Origin] = []

    def apply(self, upserts: Sequence[QueueRow], deletes: Mapping[str, Sequence[Dot]]) -> None:
        for added in upserts:
            self.rows[added.dot] = added
            if added.dot.origin not in self.origins:
                self.origins.append(added.dot.origin)
        for dots in deletes.values():
            for dot in dots:
                self.rows.pop(dot, None)

    def of(self, node: str, queue: str) -> list[QueueRow]:
        rows = [row for row in self.rows.values() if row.queue == queue and row.dot.origin.node == node]
        return sorted(rows, key=lambda row: (self.origins.index(row.dot.origin), row.dot.sequence))

    def head(self, node: str, queue: str, now_us: int) -> dict[str, QueueHead]:
        rows = self.of(node, queue)
        if not rows:
            return {}
        due = min((row.due_us for row in rows if row.due_us > now_us), default=0)
        priorities = tuple(sorted({row.priority for row in rows}, reverse=True))
        return {queue: QueueHead(len(rows), sum(len(row.body) for row in rows), priorities, due)}


@pytest.mark.parametrize("seed", range(8))
def test_any_history_comes_to_what_a_plain_dictionary_says(open_queues: OpenQueues, seed: int) -> None:
    random = Random(seed)
    store = open_queues()
    plain = Plain()
    have = {HUGE: 0, OLD: 0, OTHER: 0}
    queues = ["/queue/a", "/queue/b"]
    for step in range(12):
        upserts = []
        for _ in range(random.choice([0, 3, 400])):
            origin = random.choice(list(have))
            have[origin] += random.choice([1, 1, 1, 2])
            due_us = random.choice([0, 0, 0, random.randint(1, 2000)])
            expires_us = random.choice([0, 0, random.randint(1, 2000)])
            priority = random.choice([4, 4, 4, 0, 9])
            body = b"x" * random.randint(0, 50)
            upserts.append(row(origin, have[origin], random.choice(queues), priority, body, due_us, expires_us))
        deletes: dict[str, list[Dot]] = {}
        known = list(plain.rows.values()) + upserts
        for gone in random.sample(known, len(known) * random.choice([0, 1, 9, 10]) // 10):
            deletes.setdefault(gone.queue, []).append(gone.dot)
        store.apply(runs_of(upserts), deletes, [], [], step)
        plain.apply(upserts, deletes)

        for node in ("a", "b"):
            mine = [found for found in plain.rows.values() if found.dot.origin.node == node]
            assert store.is_empty(node) == (not mine)
            expired = [found.expires_us for found in store.expired(node, 1000, 10_000, 1 << 20)]
            assert expired == sorted(found.expires_us for found in mine if 0 < found.expires_us <= 1000)
            for queue in queues:
                rows = plain.of(node, queue)
                assert store.heads(node, [queue], 1000) == plain.head(node, queue, 1000)
                assert [found.due_us for found in store.due(node, queue, 500, 1500, 10_000)] == sorted(
                    found.due_us for found in rows if 500 < found.due_us <= 1500
                )
                for priority in (0, 4, 9):
                    assert pages(store, 97, queue, priority, node, 1000) == [
                        found for found in rows if found.priority == priority and found.due_us <= 1000
                    ]
        if step == 6:
            store = open_queues()
    if isinstance(store, SqliteQueueStore):
        assert store.check() is None


def test_reading_does_not_wait_for_a_change_under_way_and_sees_none_of_it(open_queues: OpenQueues) -> None:
    store = open_queues()
    if isinstance(store, MemoryQueueStore):
        pytest.skip("a change of the twin in memory is over at once")
    if isinstance(store, VolatileQueueStore):
        pytest.skip("without a file there is one connection, and readers wait")
    put(store, row(HUGE, 1))
    inside, read = threading.Event(), threading.Event()

    class Slow(Sequence[Dot]):
        """Stops the change in the middle, until the reader was there."""

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Dot:  # type: ignore[override]
            if index:
                raise IndexError
            inside.set()
            assert read.wait(30)
            return Dot(OLD, 1)

    change = threading.Thread(
        target=store.apply, args=(runs_of([row(HUGE, 2)]), {Q: [Dot(HUGE, 1)]}, Slow(), [], 9), daemon=True
    )
    change.start()
    assert inside.wait(30)
    during = (pages(store), store.heads("a", [Q], NOW)[Q].messages, store.position(), store.tombstones())
    read.set()
    change.join(30)

    assert during == ([row(HUGE, 1)], 1, 1, set())
    assert (pages(store), store.position(), store.tombstones()) == ([row(HUGE, 2)], 9, {Dot(OLD, 1)})


def test_everything_read_at_once_is_of_one_moment(open_queues: OpenQueues) -> None:
    store = open_queues()
    if isinstance(store, MemoryQueueStore):
        pytest.skip("the twin in memory holds changes off while it is read")
    if isinstance(store, VolatileQueueStore):
        pytest.skip("without a file there is one connection, and changes wait")
    put(store, row(HUGE, 1))
    table = "lanes" if isinstance(store, SqliteQueueStore) else "qmq_lanes"
    counted = f"SELECT sum(messages) FROM {table}"

    with store._snapshot() as reader:  # type: ignore[attr-defined]
        before = reader.execute(counted).fetchone()
        put(store, row(HUGE, 2))
        after = reader.execute(counted).fetchone()

    assert before == after == (1,)
    assert len(pages(store)) == 2


def test_a_failed_transaction_leaves_nothing_behind(open_queues: OpenQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_queues()
    if isinstance(store, MemoryQueueStore):
        pytest.skip("the twin in memory fails on demand only")
    put(store, row(HUGE, 1))
    broken = row(OTHER, 2)
    with monkeypatch.context() as patch:
        # The database refuses a row without one.
        patch.setattr("qmq.storage.queues.database.row_values", lambda *partition: [*row_values(*partition)[:-1], None])
        patch.setattr("qmq.storage.queues.database.run_row", lambda *partition: (*run_row(*partition)[:-1], None))

        with pytest.raises(LogBroken):
            store.apply(runs_of([row(OTHER, 1), broken]), {Q: [Dot(HUGE, 1)]}, [], [], 2)
        long = [row(HUGE, n) for n in range(2, 50)]
        with pytest.raises(LogBroken):
            store.apply(runs_of([*long, broken]), {Q: [Dot(HUGE, 1)]}, [], [], 2)

    store = open_queues()
    assert store.position() == 1
    assert store.listing(None, None, 9) == [(Q, 1, 4)]
    put(store, row(OTHER, 1))
    assert pages(store, node="b") == [row(OTHER, 1)]


def test_a_memory_store_that_is_made_to_fail_changes_nothing() -> None:
    disk = MemoryDisk()
    store = MemoryQueueStore(disk)
    disk.fail_at(0)

    with pytest.raises(LogBroken):
        put(store, row(HUGE, 1))

    assert (store.position(), store.listing(None, None, 9)) == (0, [])


def test_statements_use_the_keys_and_indexes(tmp_path: Path) -> None:
    """A statement that scans a table is correct and useless."""
    from qmq.storage.queues import sqlite_sql as module

    store = SqliteQueueStore(tmp_path / "q.sqlite")
    connection: sqlite3.Connection = store._database.conn
    texts = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, str)
        and name not in ("RECOUNTED", "_HAS_RUNS", "_FROM_RUN")
        and ("SELECT" in value or "DELETE" in value or "UPDATE messages" in value)
    }
    widths = {
        "OVERLAPPING": 4,
        "DELETE_RUNS": 2,
        "DELETE_SETTLED": 2,
        "FAIL": 3,
        "PARTITION_IDS": 5,
        "PARTITIONS_OF": 3,
        "COUNT": 2,
        "DELETE": 2,
        "SUBTRACT": 3,
        "HEADS": 2,
    }
    # What they sort has no index. DEEPEST is for metrics: it goes through the counters of all queues.
    sorts = ("COUNT", "OVERDUE", "OVERDUE_EXACT", "NTH_EXACT", "UNSETTLED", "RUNS_OF", "DEEPEST")
    assert len(texts) > 15
    del texts["TOMBSTONES"]  # Each caller wants all of them.
    for name, text in texts.items():
        if name in ("SIZE", "SIZES", "IN_ONE", "RUNS_IN_ONE"):
            text = text.replace("({})", f"({texts['RUNS' if name == 'RUNS_IN_ONE' else 'READY']})")
        width = 2 if name == "DELETE_TOMBSTONES" else widths.get(name, 1)
        text = text.format(", ".join([f"({', '.join('?' * width)})"] * 3))
        plan = connection.execute("EXPLAIN QUERY PLAN " + text, [None] * text.count("?"))
        steps = [step[3] for step in plan.fetchall()]
        scans = tuple(f"SCAN {table}" for table in ("messages", "runs", "settled", "lanes", "tombstones"))
        assert not any(step.startswith(scans) for step in steps), steps
        # Of one origin there may be a million partitions.
        assert name != "PARTITIONS_OF" or not any("lanes_by_origin" in step for step in steps), steps
        assert "USE TEMP B-TREE" not in " ".join(steps) or name in sorts, steps
    store.close()
