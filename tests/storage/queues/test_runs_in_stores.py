"""Runs in databases: whatever happens to them, a store answers as one that has a row for each message."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.model.dots import Dot, Origin
from qmq.storage.disk.volatile import VolatileDisk
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.volatile_store import VolatileQueueStore
from tests.fakes.disk import MemoryDisk
from tests.fakes.queue_store import MemoryQueueStore

A, AGAIN, B = Origin("a", 2**64 - 1), Origin("a", 5), Origin("b", 2**63)
Q, P = "/queue/q", "/queue/p"
NOW = 1000


@pytest.fixture(params=["sqlite", "volatile", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueStore]:
    found: QueueStore
    if request.param == "postgres":
        from qmq.storage.queues.postgres_store import PostgresQueueStore

        found = PostgresQueueStore(request.getfixturevalue("postgres").fresh_schema(), "a")
    elif request.param == "volatile":
        found = VolatileQueueStore(VolatileDisk(1 << 30))
    else:
        found = SqliteQueueStore(tmp_path / "q.sqlite")
    yield found
    found.close()


def row(sequence: int, body: bytes = b"body", queue: str = Q, origin: Origin = A) -> QueueRow:
    return QueueRow(Dot(origin, sequence), queue, 5000 + sequence, 5 << 20, 4, 0, 0, b"k:v\n", body)


def row_of(seed: int, origin: Origin, sequence: int) -> QueueRow:
    """Most have nothing of their own; a dot always has the same row."""
    rng = random.Random(f"{seed} {origin} {sequence}")
    made = row(sequence, rng.randbytes(rng.choice((0, 9, 30, 30, 900))), rng.choice((Q, Q, Q, P)), origin)
    priority = rng.choice((4, 4, 4, 4, 9))
    return made._replace(
        priority=priority,
        flags=priority + 1 << 20 | rng.choice((0,) * 30 + (7,)),
        headers=rng.choice((b"k:v\n",) * 20 + (b"", b"k:w\n")),
        due_us=rng.choice((0,) * 20 + (3, NOW * 2)),
        expires_us=rng.choice((0,) * 30 + (7,)),
        timestamp_us=rng.choice((2**63 + 5, 17, 10**15 + sequence, 10**15 + sequence)),
    )


def same(store: QueueStore, twin: MemoryQueueStore, rng: random.Random, have: dict[Origin, int]) -> None:
    for node in ("a", "b"):
        assert store.listing(node, None, 9) == twin.listing(node, None, 9)
        assert store.heads(node, [Q, P], NOW) == twin.heads(node, [Q, P], NOW)
        # Those of one time come in any order.
        assert sorted(store.expired(node, NOW, 9999, 1 << 30)) == sorted(twin.expired(node, NOW, 9999, 1 << 30))
        for queue in (Q, P):
            assert sorted(store.due(node, queue, 0, NOW, 9999)) == sorted(twin.due(node, queue, 0, NOW, 9999))
            for level in (4, 9):
                count = rng.randrange(700)
                assert store.skip(node, queue, level, count)[2] == twin.skip(node, queue, level, count)[2]
                begin, _, _ = store.skip(node, queue, level, count)
                whole = twin.page(node, queue, level, None, NOW * 9, 100_000)
                assert store.page(node, queue, level, begin, NOW * 9, 100_000) == whole[count:]
                origin = rng.choice(list(have))
                after = rng.choice((None, Dot(origin, rng.randrange(have[origin] + 2))))
                after = after if after is None or origin.node == node else None
                for limit, bytes_max in (
                    (1, 1 << 20),
                    (100_000, 1 << 62),
                    (300, 1 << 62),
                    (300, rng.randrange(99_999)),
                ):
                    wanted = twin.page(node, queue, level, after, NOW, limit, 0, bytes_max)
                    assert store.page(node, queue, level, after, NOW, limit, 0, bytes_max) == wanted
    for origin, last in have.items():
        after, through = sorted((rng.randrange(last + 1), rng.randrange(last + 9)))
        for limit in (1, 20, 2000):
            assert store.unsettled(origin, after, through, limit) == twin.unsettled(origin, after, through, limit)
        wanted = twin.unsettled(origin, after, through, 1000, 20_000)
        assert store.unsettled(origin, after, through, 1000, 20_000) == wanted[:1000]


@pytest.mark.parametrize("seed", range(3))
def test_any_history_of_runs_comes_to_what_single_rows_come_to(store: QueueStore, seed: int) -> None:
    rng = random.Random(f"runs {seed}")
    twin = MemoryQueueStore(MemoryDisk())
    have = {A: 0, AGAIN: 0, B: 0}
    known: dict[Dot, QueueRow] = {}
    for step in range(9):
        added: list[QueueRow] = []
        origin = rng.choice(list(have))
        for _ in range(rng.choice((0, 5, 60, 700))):
            origin = origin if rng.random() < 0.98 else rng.choice(list(have))
            have[origin] += rng.choice((1, 1, 1, 1, 2, 40))
            added.append(row_of(seed, origin, have[origin]))
        if rng.random() < 0.3:  # what is here, was here, or has not been here
            for _ in range(rng.choice((3, 200))):
                origin = rng.choice(list(have))
                added.append(row_of(seed, origin, rng.randrange(1, have[origin] + 2)))
        added = list({one.dot: one for one in added}.values())
        if rng.random() < 0.3:
            rng.shuffle(added)
        known.update({one.dot: one for one in added})
        every = list(known.values())
        failed: dict[str, dict[Dot, int]] = {}
        for one in rng.sample(every, min(len(every), rng.choice((0, 0, 1, 30)))):
            failed.setdefault(one.queue, {})[one.dot] = rng.randrange(1, 4)
        gone: dict[str, list[Dot]] = {}
        begin = rng.randrange(len(every) + 1)
        in_order = every[begin : begin + rng.choice((0, 30, 600))]
        for one in in_order + rng.sample(every, min(len(every), rng.choice((0, 1, 50)))):
            gone.setdefault(one.queue, []).append(one.dot)
        changes = runs_of(added), gone, [], [], step, failed

        store.apply(*changes)
        twin.apply(*changes)

        same(store, twin, rng, have)
        if isinstance(store, SqliteQueueStore):
            assert store.check() is None
    for one in known.values():
        store.apply([], {one.queue: [one.dot]}, [], [], 99)
    assert store.is_empty("a") and store.is_empty("b")


def test_a_range_is_repaired_into_the_runs_around_it(store: QueueStore) -> None:
    rows = [row(n) for n in range(1, 400)]
    store.apply(runs_of(rows[:100] + rows[200:]), {Q: [Dot(A, 7)]}, [], [], 5)
    missing = MissingRange(A, 0, 399)
    store.missing([missing], 5)

    store.repair(missing, [*rows[50:250]], None)

    assert store.page("a", Q, 4, None, 0, 1000) == rows[:6] + rows[7:]
    assert store.heads("a", [Q], 0)[Q].messages == 398
    assert store.missing_ranges() == []


def tables(store: QueueStore) -> dict[str, int]:
    assert isinstance(store, SqliteQueueStore)
    return {
        table: store._database.conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("runs", "settled", "messages")
    }


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_long_run_is_a_row_for_some_hundred_messages_and_goes_with_the_last_of_them(store: QueueStore) -> None:
    rows = [row(n) for n in range(1, 513)]
    store.apply(runs_of(rows), {}, [], [], 1)
    assert tables(store) == {"runs": 2, "settled": 0, "messages": 0}

    store.apply([], {Q: [one.dot for one in rows[:300]]}, [], [], 2)
    assert tables(store) == {"runs": 1, "settled": 1, "messages": 0}

    store.apply([], {Q: [one.dot for one in rows[300:]]}, [], [], 3)
    assert tables(store) == {"runs": 0, "settled": 0, "messages": 0}
    assert store.is_empty("a")


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_few_messages_and_large_ones_have_rows_of_their_own(store: QueueStore) -> None:
    few = [row(n, queue=P) for n in range(1, 8)]
    large = [row(n, b"x" * 20_000) for n in range(8, 28)]

    store.apply(runs_of(few + large), {}, [], [], 1)

    assert tables(store) == {"runs": 0, "settled": 0, "messages": 27}
    assert store.page("a", Q, 4, None, 0, 99) == large


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_failure_takes_a_message_out_of_its_run(store: QueueStore) -> None:
    rows = [row(n) for n in range(1, 101)]
    store.apply(runs_of(rows), {}, [], [], 1)

    store.apply([], {}, [], [], 2, {Q: {Dot(A, 1): 2, Dot(A, 50): 1}})

    assert tables(store) == {"runs": 1, "settled": 1, "messages": 2}
    found = store.page("a", Q, 4, None, 0, 1000)
    assert [one.attempts for one in found] == [2] + [0] * 48 + [1] + [0] * 50
    assert [one._replace(attempts=0) for one in found] == rows
