"""Columns of records, against the decoder that takes records one by one."""

import random

import pytest

from qmq.errors import CorruptLog
from qmq.spark.reading.columns import Columns, Piece
from qmq.storage.format.batch import SHARED_VERSION, batch_records, encode_batch
from qmq.storage.format.record import (
    KIND_OFFSET,
    RecordKind,
    pack_envelope,
    pack_record,
    pack_reference,
    with_priority,
)
from tests.spark.rig import START_US, A, batch, messages, record

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


def copies(first: int, body: bytes, *names: str) -> list[bytes]:
    """One message to each of `names`, with its body once."""
    one = record(first, body, names[0])
    others = [
        pack_reference(first + back, START_US, 0, pack_envelope(name, b"k:v\n"), back)
        for back, name in enumerate(names[1:], 1)
    ]
    return [one, *others]


def shared(first: int, records: list[bytes]) -> bytes:
    last = first + len(records) - 1
    return encode_batch(A, records, first, last, START_US, START_US, 0, SHARED_VERSION)


def test_a_shared_body_is_in_each_of_its_rows() -> None:
    rng = random.Random(7)
    names = ["/fanout/" + "é" * 40, "/queue/a", "/queue/" + "b" * 300]
    plain = batch(A, 1, messages(1, 3))
    records = [
        record for n in range(40) for record in copies(4 + 3 * n, rng.randbytes(rng.choice([64, 300, 70_000])), *names)
    ]
    records.append(record(124, b"\xce\0\0\0\1", kind=RecordKind.SETTLE))
    second = shared(4, records)
    third = shared(125, copies(125, b"last" * 30, *names))
    places = (0, len(plain), len(plain + second))

    found = Columns(plain + second + third, [Piece(place, 0, ALL) for place in places])

    expected = [one for data in (plain, second, third) for one in batch_records(data)]
    assert found.body().to_pylist() == [one.body for one in expected]
    found = Columns(plain + second + third, [Piece(places[1], 8, 100), Piece(places[2], 126, ALL)])
    found.choose(found.sequence % 2 == 1)
    assert found.body().to_pylist() == [
        one.body for one in expected if one.sequence % 2 and (8 < one.sequence <= 100 or one.sequence > 126)
    ]


@pytest.mark.parametrize("records", [[record(1, b"x" * 70)], [record(1, b"", kind=RecordKind.SETTLE)]])
@pytest.mark.parametrize("back", [0, 1, 2, (1 << 32) - 1])
def test_a_wrong_reference_is_refused(records: list[bytes], back: int) -> None:
    good = shared(1, copies(1, b"x" * 70, "/queue/a", "/queue/b"))
    bad = shared(3, [*records, pack_reference(4, START_US, 0, pack_envelope("/queue/q", b""), back)])
    found = Columns(good + bad, [Piece(0, 0, ALL), Piece(len(good), 0, ALL)])

    if back == 1 and records[0][KIND_OFFSET] == RecordKind.PUBLISH:
        assert found.body().to_pylist() == [b"x" * 70] * 4
    else:
        with pytest.raises(CorruptLog, match="refers to"):
            found.body()


def test_an_integer_in_a_record_of_a_later_version_is_no_reference() -> None:
    later = bytearray(pack_reference(3, START_US, 0, pack_envelope("", b""), 9))
    later[KIND_OFFSET] = 99
    data = shared(1, [*copies(1, b"x" * 70, "/queue/a", "/queue/b"), bytes(later)])

    assert Columns(data, [Piece(0, 0, ALL)]).body().to_pylist()[:2] == [b"x" * 70] * 2


def test_a_batch_that_stands_for_too_much_is_refused() -> None:
    data = shared(1, copies(1, bytes(1 << 20), *[f"/queue/{number}" for number in range(60)]))

    with pytest.raises(CorruptLog, match="with all shared bodies in their places"):
        Columns(data, [Piece(0, 0, ALL)]).body()


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
