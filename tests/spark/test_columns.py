"""Columns of records, against the decoder that takes records one by one."""

import random

import pytest

from qmq.errors import CorruptLog
from qmq.spark.reading.columns import Columns, Piece
from qmq.storage.format.batch import batch_records
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record, with_priority

from .rig import A, batch, messages, record

ALL = 1 << 62


def test_every_field_of_records_of_all_lengths_is_as_the_other_decoder_has_it() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    lengths = [0, 1, 11, 12, 13, 31, 32, 255, 256, 65535, 65536, 70_000]
    records = []
    for sequence in range(1, 400):
        name = "/queue/" + "é" * rng.choice([0, 1, 3, 11, 12, 13, 20, 120, 300])
        headers = rng.randbytes(rng.choice(lengths[:9]))
        body = rng.randbytes(rng.choice(lengths))
        kind = rng.choice([*RecordKind, 77, 255])
        flags = with_priority(rng.randrange(1 << 16), rng.randrange(10))
        records.append(pack_record(sequence, rng.randrange(1 << 52), kind, flags, pack_envelope(name, headers), body))
    data = b"in front" + batch(A, 1, records)

    found = Columns(data, [Piece(8, 0, ALL)])

    expected = batch_records(data[8:])
    assert found.sequence.tolist() == [one.sequence for one in expected]
    assert found.timestamp_us.tolist() == [one.timestamp_us for one in expected]
    assert found.kind.tolist() == [one.kind for one in expected]
    assert found.destination().to_pylist() == [one.destination for one in expected]
    assert found.headers().to_pylist() == [one.headers for one in expected]
    assert found.body().to_pylist() == [one.body for one in expected]
    assert found.priority.tolist() == [(one.flags >> 20) - 1 for one in expected]


def test_only_the_wanted_sequences_of_a_batch_are_found() -> None:
    first, second = batch(A, 1, messages(1, 10)), batch(A, 11, messages(11, 20))

    found = Columns(first + second, [Piece(0, 7, ALL), Piece(len(first), 0, 12), Piece(len(first), 18, 19)])

    assert found.sequence.tolist() == [8, 9, 10, 11, 12, 19]
    assert found.body().to_pylist()[-1] == b"body 19"


def test_chosen_rows_keep_their_fields() -> None:
    found = Columns(batch(A, 1, messages(1, 5)), [Piece(0, 0, ALL)])
    found.body()

    found.choose(found.sequence % 2 == 1)

    assert found.body().to_pylist() == [b"body 1", b"body 3", b"body 5"]
    assert found.destination().to_pylist() == ["/queue/jobs"] * 3


def test_no_rows_are_no_error() -> None:
    found = Columns(batch(A, 1, messages(1, 5)), [Piece(0, 5, ALL)])

    assert (len(found), found.body().to_pylist(), found.timestamp_us.tolist()) == (0, [], [])


@pytest.mark.parametrize("place", [0, 4, 9, 13, 40, 100, 130, -1])
def test_a_flipped_bit_anywhere_is_refused(place: int) -> None:
    data = bytearray(batch(A, 1, [record(1, b"x" * 50)]))
    data[place] ^= 4

    with pytest.raises(CorruptLog):
        Columns(bytes(data), [Piece(0, 0, ALL)])


def test_a_batch_that_is_cut_off_is_refused() -> None:
    data = batch(A, 1, messages(1, 5))

    for size in (0, 50, 95, len(data) - 1):
        with pytest.raises(CorruptLog):
            Columns(data[:size], [Piece(0, 0, ALL)])
