"""A body that several messages of a batch have is written once, and each reader finds it in its place."""

import itertools
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog
from qmq.model.dots import Dot
from qmq.storage.format.batch import (
    BATCH_BYTES_MAX,
    BATCH_VERSION,
    HEAD_BYTES,
    SHARED_VERSION,
    batch_records,
    encode_batch,
    published_destinations,
    record_slices,
    unpack_records,
    verify_batch,
)
from qmq.storage.format.record import RecordKind, pack_dots, pack_envelope, pack_record, pack_reference
from tests.storage.rig import NOW, A, B, Writer, without_references

BODY = b"the same for all " * 10
QUEUE = pack_envelope("/queue/q", b"k:v\n")
PUBLISH = RecordKind.PUBLISH


def whole(sequence: int, body: bytes = BODY, kind: int = PUBLISH) -> bytes:
    return pack_record(sequence, NOW, kind, 0, QUEUE, body)


def reference(sequence: int, back: int) -> bytes:
    return pack_reference(sequence, NOW, 0, QUEUE, back)


def batch(*records: bytes, version: int = SHARED_VERSION) -> bytes:
    return encode_batch(A, list(records), 1, len(records), NOW, NOW, 0, version)


def mixed() -> bytes:
    """Two messages with copies, and other records before, between and behind these."""
    a = Writer(A)
    a.settle("/queue/q", [Dot(B, 3)])
    a.copies(BODY, "/fanout/f", "/queue/" + "long" * 20, "/queue/" + "é" * 200)
    a.publish("/queue/q", b"alone")
    a.copies(b"\xce" * 70_000, "/queue/a", "/queue/b")
    a.record(99, b"of a later version")
    return a.batch()


READERS: list[Callable[[bytes], object]] = [
    batch_records,
    lambda data: unpack_records(verify_batch(data), data),
    record_slices,
    published_destinations,
]


@pytest.mark.parametrize("read", READERS)
def test_a_reader_finds_the_same_with_and_without_references(read: Callable[[bytes], object]) -> None:
    shared = mixed()
    plain = without_references(shared)

    assert (verify_batch(shared).version, verify_batch(plain).version) == (SHARED_VERSION, BATCH_VERSION)
    assert len(plain) > len(shared) + 70_000
    assert read(shared) == read(plain)


def test_a_batch_of_version_1_is_the_one_that_was_always_written() -> None:
    a, again = Writer(A), Writer(A)
    for body in (BODY, BODY, b"x"):
        a.publish("/queue/q", body)
        again.copies(body, "/queue/q")

    assert a.batch() == again.batch()


def test_decoded_copies_are_one_object() -> None:
    data = batch(whole(1), reference(2, 1), reference(3, 2))

    assert len({id(record.body) for record in batch_records(data)}) == 1
    assert len({id(record[5]) for record in unpack_records(verify_batch(data), data)}) == 1


def test_a_batch_that_is_cut_or_flipped_at_any_byte_is_refused() -> None:
    data = batch(whole(1), reference(2, 1))

    for place in range(len(data)):
        with pytest.raises(CorruptLog):
            verify_batch(data[:place])
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(CorruptLog):
            verify_batch(bytes(flipped))


SETTLE = pack_record(1, NOW, RecordKind.SETTLE, 0, QUEUE, pack_dots([Dot(B, number) for number in range(99)]))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([whole(1), reference(2, 0)], "0 places before"),
        ([whole(1), reference(2, 2)], "2 places before"),
        ([whole(1), reference(2, (1 << 32) - 1)], "places before"),
        ([reference(1, 1), whole(2)], "1 places before"),
        ([whole(1), reference(2, 1), reference(3, 1)], "no message with a body"),
        ([SETTLE, reference(2, 1)], "no message with a body"),
        ([whole(1, kind=RecordKind.DEAD), reference(2, 1)], "no message with a body"),
        ([whole(1, kind=99), reference(2, 1)], "no message with a body"),
        ([whole(1)[:-1] + b"x!", reference(2, 1)], "no message with a body"),
        ([whole(1, b"")[:-2] + b"\xc0", reference(2, 1)], "no message with a body"),
        ([whole(1)[:28] + b"\xc0" * 30, reference(2, 1)], "not built as messages are"),
        ([b"", reference(2, 1)], "no message with a body|not built"),
    ],
)
def test_a_wrong_reference_makes_a_corrupt_batch(records: list[bytes], why: str) -> None:
    data = batch(*records)
    head = verify_batch(data)

    with pytest.raises(CorruptLog, match=why):
        record_slices(data)
    with pytest.raises(CorruptLog):
        batch_records(data)
    with pytest.raises(CorruptLog):
        unpack_records(head, data)


@pytest.mark.parametrize("version", [BATCH_VERSION, SHARED_VERSION])
def test_an_integer_that_is_no_reference_is_not_followed(version: int) -> None:
    """In version 1 nothing is; in version 2 no other form of an integer. Acceptance then refuses the record."""
    small = reference(2, 1)[:-5] + b"\x01"
    data = batch(whole(1), reference(2, 1) if version == BATCH_VERSION else small, version=version)

    records: list[tuple[object, ...]] = [*unpack_records(verify_batch(data), data)]

    assert records[1][5] == 1


def test_a_batch_that_stands_for_too_much_is_refused_before_that_is_in_memory() -> None:
    body = bytes(BATCH_BYTES_MAX // 4)
    fits = batch(whole(1, body), reference(2, 1), reference(3, 2))
    over = batch(whole(1, body), *(reference(number, number - 1) for number in range(2, 20_000)))
    assert len(record_slices(fits)) == 3

    tracemalloc.start()
    try:
        for read in READERS[:3]:
            with pytest.raises(CorruptLog, match="with all shared bodies in their places is over"):
                read(over)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 8 * len(body)


def test_the_bound_is_exact() -> None:
    """What is allowed can be written as a batch of version 1, which has the same bound."""
    rest = HEAD_BYTES + 4 * 2 + len(whole(1, b"")) + len(reference(2, 1)) - 2
    half = (BATCH_BYTES_MAX - rest - 5) // 2
    for body_bytes in (half, half + 1):
        data = batch(whole(1, bytes(body_bytes)), reference(2, 1))
        plain_bytes = len(data) + body_bytes
        if plain_bytes <= BATCH_BYTES_MAX:
            assert len(without_references(data)) == plain_bytes
        else:
            with pytest.raises(CorruptLog):
                record_slices(data)


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=300)), min_size=1, max_size=20))
def test_any_batch_reads_as_if_each_body_were_in_its_place(messages: list[tuple[int, bytes]]) -> None:
    a, plain = Writer(A), Writer(A)
    names = [f"/queue/{number}" for number in range(4)]
    for copies, body in messages:
        a.copies(body, *names[: copies + 1])
        for name in names[: copies + 1]:
            plain.publish(name, body)
    shared, expected = a.batch(), plain.batch()

    for read in READERS:
        assert read(shared) == read(expected)
    assert without_references(shared) == expected


@given(st.data())
def test_bytes_of_any_kind_are_refused_or_read_whole(data: st.DataObject) -> None:
    """A peer can write anything with a valid checksum. All readers agree, and none raises another error."""
    records = [whole(1), reference(2, 1), whole(3, b"x" * 70), reference(4, 1), reference(5, 4)]
    joined = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(1, 3))):
        joined[data.draw(st.integers(0, len(joined) - 1))] = data.draw(st.integers(0, 255))
    ends = list(itertools.accumulate(map(len, records)))
    damaged = batch(*[bytes(joined[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)])

    try:
        read = batch_records(damaged)
    except CorruptLog:
        return
    if all(type(record.body) is bytes and record.kind == PUBLISH for record in read):
        assert [record.body for record in batch_records(without_references(damaged))] == [one.body for one in read]
