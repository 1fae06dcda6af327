"""The bytes of a run: they come back as they were, and no changed bit is taken for what was written."""

import random
import zlib
from typing import Any

import pytest

from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.plan import PartitionRow, origin_columns, unsigned
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.stored_run import (
    RUN_BYTES_MAX,
    RUN_MAX,
    RUN_MIN,
    RawRun,
    divide,
    read_run,
    run_row,
    split_runs,
)
from tests.fakes.queue_store import rows_in

A = Origin("a", 2**64 - 1)
PARTITION = PartitionRow(7, "/queue/q", -4, 0, 3, *origin_columns(A))


def row(sequence: int, body: bytes = b"body", flags: int = 7, headers: bytes = b"k:v\n") -> QueueRow:
    return QueueRow(Dot(A, sequence), "/queue/q", 1000 + sequence, flags, 4, 0, 0, headers, body)


def random_rows(rng: random.Random) -> list[QueueRow]:
    rows: list[QueueRow] = []
    sequence = 0
    headers = rng.choice(([b"k:v\n"], [b"", b"k:v\n", b"longer:value\n"]))
    for _ in range(rng.randrange(RUN_MIN, 700)):
        sequence += rng.choice((1, 1, 1, 2, 2**33))
        made = row(sequence, rng.randbytes(rng.choice((0, 3, 400))), rng.choice((7,) * 60 + (3,)), rng.choice(headers))
        rows.append(made._replace(timestamp_us=rng.choice((2**63 + 5, sequence % 9))))
    return rows


def raw_of(columns: tuple[Any, ...], settled: tuple[Any, ...] | None = None) -> RawRun:
    """As a database returns what was written."""
    _, *numbers, places, headers, body = columns
    _, _, gone, size, checksum, waiting = settled or (None,) * 6
    return (*numbers, gone, size, checksum, places, waiting, headers, body)


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_back_from_runs_and_rows_as_they_were(seed: int) -> None:
    rng = random.Random(f"stored {seed}")
    rows = random_rows(rng)
    shuffled = rng.sample(rows, len(rows)) if seed % 2 else rows

    whole, short = divide(runs_of(shuffled))

    found = [one for run in short for one in rows_in(run)]
    last = 0
    for run in whole:
        stored = read_run(PARTITION.checksum, raw_of(run_row(7, PARTITION.checksum, run)))
        assert last < stored.sequences[0] and RUN_MIN <= len(stored.sequences) <= RUN_MAX
        assert sum(len(record[4]) + len(record[5]) for record in run.records) <= RUN_BYTES_MAX
        assert stored.is_sound()
        found += stored.rows(PARTITION)
        beyond = rng.choice(stored.sequences)
        assert stored.rows(PARTITION, beyond) == [one for one in stored.rows(PARTITION) if one.dot.sequence > beyond]
        last = stored.sequences[-1]
    assert sorted(found) == rows


def test_a_message_that_comes_twice_is_in_one_run_once() -> None:
    rows = [row(n) for n in range(1, 30)]

    whole, short = divide(runs_of(rows + rows[5:9]))

    assert ([one for run in whole for one in rows_in(run)], short) == (rows, [])


def test_what_is_settled_is_left_out_and_counted() -> None:
    rows = [row(n, b"x" * n) for n in range(1, 21)]
    (run,), _ = divide(runs_of(rows))
    columns = run_row(7, PARTITION.checksum, run)
    stored = read_run(PARTITION.checksum, raw_of(columns))

    waiting = stored.without({3, 4, 99})
    beside = stored.settled_row(7, PARTITION.checksum, waiting)
    again = read_run(PARTITION.checksum, raw_of(columns, beside))

    assert beside[:4] == (7, 1, 2, 7)
    assert again.rows(PARTITION) == rows[:2] + rows[4:]
    assert again.totals(again.waiting) == (18, sum(range(21)) - 7)
    assert again.waiting_sequences() == [1, 2, *range(5, 21)]


@pytest.mark.parametrize("headers", [[b"k:v\n"], [b"", b"k:v\n"]])
def test_each_bit_of_a_run_and_of_what_lies_beside_it_is_covered(headers: list[bytes]) -> None:
    rows = [row(n, b"%d" % n, headers=headers[n % len(headers)]) for n in range(1, 9)]
    (run,), _ = divide(runs_of(rows))
    columns = run_row(7, PARTITION.checksum, run)
    stored = read_run(PARTITION.checksum, raw_of(columns))
    raw = raw_of(columns, stored.settled_row(7, PARTITION.checksum, stored.without({2})))

    for place, value in enumerate(raw):
        for bit in range(8 * len(value) if isinstance(value, bytes) else 63):
            bent: Any = value ^ 1 << bit if isinstance(value, int) else flipped(value, bit)
            changed = (*raw[:place], bent, *raw[place + 1 :])
            try:
                is_sound = read_run(PARTITION.checksum, changed).is_sound()
            except ValueError:
                continue
            assert not is_sound, f"bit {bit} of value {place}"
        for wrong in (None, 1.5, "text", b"", -1):
            changed = (*raw[:place], wrong, *raw[place + 1 :])
            try:
                assert not read_run(PARTITION.checksum, changed).is_sound() or wrong == value
            except ValueError:
                continue
    assert read_run(PARTITION.checksum, raw).is_sound()
    with pytest.raises(ValueError, match="damaged"):
        read_run(PARTITION.checksum + 1, raw)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_the_bytes_are_those_that_the_format_page_describes() -> None:
    rows = [row(n, b"%d" % n)._replace(timestamp_us=2**63 + n) for n in range(1, 10)]
    (run,), _ = divide(runs_of(rows))

    lane, first, last, messages, size, time_us, flags, checksum, places, headers, body = run_row(7, 99, run)

    assert (lane, first, last, messages, size, time_us, flags) == (7, 1, 9, 9, 9, 1 - 2**63, 7)
    arrays = b"".join(
        number.to_bytes(width, "big")
        for width, numbers in ((8, range(1, 10)), (8, [unsigned(1 - 2**63) + n for n in range(9)]), (4, [1] * 9))
        for number in numbers
    )
    numbers = b"".join(number.to_bytes(8, "big") for number in (1, 9, 9, 9, 2**63 + 1)) + (7).to_bytes(4, "big")
    own = zlib.crc32(arrays, zlib.crc32(numbers, 99))
    assert places == arrays + own.to_bytes(4, "big")
    assert (headers, body) == (b"k:v\n", b"123456789")
    assert checksum == zlib.crc32(body, zlib.crc32(headers, own))


def test_runs_in_one_piece_are_split_by_their_lengths() -> None:
    assert split_runs([[1, 2, 3, None, 1, 0], [4, 2, 1, 0, None]], b"placesx") == [
        (1, 2, b"pla", None, b"c", b""),
        (4, b"es", b"x", b"", None),
    ]

    with pytest.raises(ValueError, match="lengths"):
        split_runs([[1, 2, 3, 1, 1]], b"too short")
