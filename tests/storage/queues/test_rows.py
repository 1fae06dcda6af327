"""Rows on their way into a database and out of it."""

import random

import pytest

from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.row_checksum import checksum_of
from qmq.storage.queues.plan import PartitionRow, origin_columns
from qmq.storage.queues.rows import Raw, row_values, rows_of, runs_of, split_rows
from tests.fakes.queue_store import rows_in

A, B = Origin("a", 1), Origin("b", 2**64 - 1)
PARTITION = PartitionRow(7, "/queue/q", -4, 0, 3, *origin_columns(A))


def random_rows(rng: random.Random) -> list[QueueRow]:
    """Rows of two origins and queues; most have no times, no number and no failures."""
    rows: list[QueueRow] = []
    for sequence in range(1, rng.randrange(2, 60)):
        own = [rng.choice((0, 0, 0, 0, 0, 0, 5)) for _ in range(4)]
        due_us, expires_us, attempts, exact = own
        rows.append(
            QueueRow(
                Dot(rng.choice((A, B)), sequence),
                rng.choice(("/queue/q", "/queue/p")),
                2**63 + sequence if rng.random() < 0.1 else sequence,
                rng.choice((0, 7)),
                rng.choice((4, 5)),
                due_us,
                expires_us,
                rng.choice((b"", b"k:v\n", b"k:w\n")),
                rng.randbytes(rng.randrange(9)),
                attempts,
                exact,
            )
        )
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_rows_have_the_same_rows(seed: int) -> None:
    rows = random_rows(random.Random(seed))

    runs = runs_of(rows)

    assert sorted(row for run in runs for row in rows_in(run)) == sorted(rows)
    assert all(len(run.records) == 1 or not any(run[5:]) for run in runs)


def test_the_columns_of_rows_have_the_checksum_of_each() -> None:
    rows = [QueueRow(Dot(A, n), "/queue/q", 9 + n, 7, 4, 0, 0, b"k:v\n" * (n % 3), b"%d" % n) for n in range(1, 9)]
    (run,) = runs_of(rows)
    shared = PARTITION.checksum

    whole = row_values(7, 3, shared, run)

    assert whole[:12] == [7, 1, 3, 10, 7, 0, 0, 0, b"k:v\n", b"1", 0, checksum_of(shared, rows[0])]
    assert whole[11::12] == [checksum_of(shared, row) for row in rows]


def raw_of(row: QueueRow, checksum: int | None = None) -> Raw:
    made = checksum_of(PARTITION.checksum, row) if checksum is None else checksum
    numbers = row.dot.sequence, row.timestamp_us, row.flags, row.due_us, row.expires_us, row.exact, row.attempts
    return (PARTITION.id, *numbers, made, row.headers, row.body)


def test_a_row_whose_checksum_does_not_fit_is_set_apart() -> None:
    first, second, third = (QueueRow(Dot(A, n), "/queue/q", n, 7, 4, 0, 0, b"k:v\n", b"%d" % n) for n in (1, 2, 3))
    raws = [raw_of(first), raw_of(second, 5), raw_of(third)]

    assert rows_of(PARTITION, raws) == ([first, third], [(second, raws[1])])
    assert [rows_of(PARTITION, [raw])[0] for raw in raws] == [[first], [], [third]]


def test_rows_in_one_piece_are_split_by_their_lengths() -> None:
    plain, own = [7, 1, 10, 3, 99, 4, 2], [7, 2, 11, 3, 5, 6, 8, 1, 98, 0, 3]

    rows = split_rows([plain, own], b"k:v\nabxyz")

    assert rows == [
        (7, 1, 10, 3, 0, 0, 0, 0, 99, b"k:v\n", b"ab"),
        (7, 2, 11, 3, 5, 6, 8, 1, 98, b"", b"xyz"),
    ]


@pytest.mark.parametrize("columns", [[[7, 1, 10, 3, 99, 4, 3]], [[7, 1, 10, 3, 99, 4]], [[7, 1, 10, 3, 99, None, 2]]])
def test_rows_that_do_not_fit_their_bytes_are_refused(columns: list[list[int]]) -> None:
    with pytest.raises((TypeError, ValueError)):
        split_rows(columns, b"k:v\nab")
