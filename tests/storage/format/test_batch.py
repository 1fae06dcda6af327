import struct
import zlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.errors import CorruptLog, FutureVersion
from qmq.model.dots import Origin
from qmq.storage.format.batch import (
    BATCH_BYTES_MAX,
    FIELDS,
    HEAD_BYTES,
    SPARSE,
    batch_records,
    encode_batch,
    read_head,
    record_slices,
    unpack_records,
    verify_batch,
)
from qmq.storage.format.record import pack_envelope, pack_record

A = Origin("a", 0x1122334455667788)
ENVELOPE = pack_envelope("/queue/jobs", b"k:v\n")


def records(first: int, count: int, body: bytes = b"hello") -> list[bytes]:
    return [pack_record(first + n, 1_000_000 + n, 1, 0, ENVELOPE, body) for n in range(count)]


def batch(first: int = 1, count: int = 3, body: bytes = b"hello") -> bytes:
    return encode_batch(A, records(first, count, body), first, first + count - 1, 1_000_000, 1_000_000 + count - 1)


def resealed(data: bytearray) -> bytes:
    return bytes(data[:4] + zlib.crc32(data[8:]).to_bytes(4, "big") + data[8:])


@given(st.integers(1, 2**63), st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_a_batch_comes_back_as_it_was(first: int, bodies: list[bytes]) -> None:
    packed = [pack_record(first + n, 50 + n, 1, 0, ENVELOPE, body) for n, body in enumerate(bodies)]
    last = first + len(bodies) - 1

    data = encode_batch(A, packed, first, last, 50, 49 + len(bodies))
    head = verify_batch(data)

    assert (head.origin, head.first, head.last, head.count) == (A, first, last, len(bodies))
    assert (head.first_us, head.last_us, head.size, head.attributes) == (50, 49 + len(bodies), len(data), 0)
    assert [record.body for record in batch_records(data)] == bodies
    assert record_slices(data) == packed


def test_any_msgpack_reader_reads_the_records_of_a_batch() -> None:
    data = batch(count=3)

    unpacker = msgpack.Unpacker()
    unpacker.feed(data[HEAD_BYTES + 4 * 3 :])

    assert [record[0] for record in unpacker] == [1, 2, 3]


def test_every_flipped_bit_is_detected() -> None:
    whole = batch()

    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptLog):
                verify_batch(bytes(damaged))


def test_every_cut_is_detected() -> None:
    whole = batch()

    for cut in range(len(whole)):
        with pytest.raises(CorruptLog):
            verify_batch(whole[:cut])
    with pytest.raises(CorruptLog):
        verify_batch(whole + b"\0")


def test_a_head_that_is_not_all_there_is_no_error() -> None:
    whole = batch()

    assert read_head(whole[: HEAD_BYTES - 1]) is None
    assert read_head(b"junk" + whole, 4) is not None


def test_a_later_version_is_refused_by_name_and_not_called_damage() -> None:
    data = bytearray(batch())
    data[8:10] = (3).to_bytes(2, "big")

    with pytest.raises(FutureVersion, match="version 3"):
        verify_batch(resealed(data))
    with pytest.raises(CorruptLog):
        verify_batch(bytes(data))
    assert read_head(resealed(data)[:HEAD_BYTES]) is None


def test_holes_need_the_sparse_attribute() -> None:
    holes = [*records(3, 1), *records(9, 1)]

    with pytest.raises(ValueError, match="cannot be 3–9"):
        encode_batch(A, holes, 3, 9, 1, 2)
    data = encode_batch(A, holes, 3, 9, 1, 2, SPARSE)
    assert [record.sequence for record in batch_records(data)] == [3, 9]
    assert verify_batch(data).count == 2


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 2), (1, 4), (3, 1)])
def test_sequences_that_do_not_fit_the_count_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError):
        encode_batch(A, records(1, 3), first, last, 1, 2)


def test_records_that_contradict_their_head_are_refused() -> None:
    dense = encode_batch(A, records(2, 3), 1, 3, 1, 2)
    beyond = encode_batch(A, [*records(3, 1), *records(12, 1)], 3, 9, 1, 2, SPARSE)

    for data in (dense, beyond):
        verify_batch(data)
        with pytest.raises(CorruptLog, match="was expected"):
            batch_records(data)


@pytest.mark.parametrize(
    "packed",
    [
        [*records(1, 2), b"\x95" + records(3, 1)[0][1:-7]],  # an array of five
        [*records(1, 2), b"\xc0"],
        [*records(1, 2), records(3, 1)[0][:-1]],
        [*records(1, 2), records(3, 1)[0] + b"\xc0"],
    ],
)
def test_a_batch_whose_records_are_not_records_is_refused_as_a_whole(packed: list[bytes]) -> None:
    data = encode_batch(A, packed, 1, 3, 1, 2)
    head = verify_batch(data)

    with pytest.raises(CorruptLog, match="not the 3 records"):
        unpack_records(head, data)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    data = bytearray(batch())
    data[HEAD_BYTES + 3] += 1

    with pytest.raises(CorruptLog, match="add up"):
        verify_batch(resealed(data))


def test_a_batch_over_the_bound_is_neither_written_nor_believed() -> None:
    with pytest.raises(ValueError, match="over"):
        encode_batch(A, records(1, 1, b"x" * BATCH_BYTES_MAX), 1, 1, 1, 1)
    data = bytearray(batch())
    data[12:16] = (BATCH_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(CorruptLog, match="cannot have"):
        read_head(bytes(data))


@pytest.mark.parametrize("node", ["", "n" * 33])
def test_a_node_name_that_does_not_fit_is_refused(node: str) -> None:
    with pytest.raises(ValueError, match="1–32"):
        encode_batch(Origin(node, 1), records(1, 1), 1, 1, 1, 1)


def test_the_field_table_aligns_numbers_for_column_readers() -> None:
    offset = 0
    for name, code, _ in FIELDS:
        width = struct.calcsize(">" + code)
        assert code.endswith("s") or offset % width == 0, name
        offset += width
    assert offset == HEAD_BYTES == 96


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_pass_for_a_batch(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        verify_batch(data)
