from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.format.record import (
    FLAGS_MAX,
    PREFIX_BYTES,
    PRIORITY_DEFAULT,
    Record,
    RecordKind,
    pack_alike,
    pack_dots,
    pack_envelope,
    pack_gap,
    pack_middle,
    pack_record,
    pack_start,
    priority_of,
    unpack_dots,
    unpack_gap,
    unpack_record,
    with_priority,
)

U64 = st.integers(0, 2**64 - 1)
ORIGINS = st.builds(Origin, st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32), U64)
RECORDS = st.builds(
    Record,
    U64,
    U64,
    st.integers(0, 255),
    st.integers(0, FLAGS_MAX),
    st.text(max_size=300),
    st.one_of(st.binary(max_size=40), st.binary(min_size=250, max_size=300)),
    st.one_of(st.binary(max_size=40), st.binary(min_size=250, max_size=300), st.just(b"x" * 70_000)),
)


def packed(record: Record) -> bytes:
    envelope = pack_envelope(record.destination, record.headers)
    return pack_record(record.sequence, record.timestamp_us, record.kind, record.flags, envelope, record.body)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert unpack_record(packed(record)) == record


@given(RECORDS)
def test_a_record_packed_like_its_neighbour_is_the_same_record(record: Record) -> None:
    envelope = pack_envelope(record.destination, record.headers)
    middle = pack_middle(record.timestamp_us, record.kind, record.flags, envelope, len(record.body))

    assert pack_alike(record.sequence, middle, record.body) == packed(record)


@given(RECORDS)
def test_any_msgpack_reader_reads_a_record(record: Record) -> None:
    what = record.kind << 56 | record.flags << 32
    plain = [record.sequence, record.timestamp_us, what, record.destination, record.headers, record.body]

    assert msgpack.unpackb(packed(record)) == plain


@given(RECORDS)
def test_the_first_three_elements_always_take_the_same_width(record: Record) -> None:
    data = packed(record)

    assert PREFIX_BYTES == 28
    assert [data[0], data[1], data[10], data[19]] == [0x96, 0xCF, 0xCF, 0xCF]
    assert int.from_bytes(data[2:10], "big") == record.sequence


@given(RECORDS, st.data())
def test_a_shortened_record_is_refused(record: Record, data: st.DataObject) -> None:
    whole = packed(record)
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(CorruptLog):
        unpack_record(whole[:cut])


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\x01\x02", b"\x01", msgpack.packb([1, 2, 3, 4, 5])])
def test_bytes_that_are_no_record_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog):
        unpack_record(body)


@given(st.lists(st.builds(Dot, ORIGINS, U64)))
def test_dots_come_back_grouped_by_origin(dots: list[Dot]) -> None:
    found = unpack_dots(pack_dots(dots))

    assert sorted(found) == sorted(dots)
    for origin in {dot.origin for dot in dots}:
        assert [d for d in found if d.origin == origin] == [d for d in dots if d.origin == origin]


@pytest.mark.parametrize("unpack", [unpack_dots, unpack_gap])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x07", b"\x91\x07"])
def test_bodies_that_are_not_what_the_kind_says_are_refused(unpack: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(CorruptLog):
        unpack(body)


def test_gap_and_start_come_back() -> None:
    assert unpack_gap(pack_gap(Origin("a", 7), 2**40)) == (Origin("a", 7), 2**40)
    assert msgpack.unpackb(pack_start(format_version=1, software="qmq 0.1", uuid="u")) == {
        "format": 1,
        "software": "qmq 0.1",
        "uuid": "u",
    }


@given(st.integers(0, (1 << 20) - 1), st.integers(0, 9))
def test_priority_rides_in_the_flags_and_leaves_the_others_alone(flags: int, priority: int) -> None:
    marked = with_priority(flags, priority)

    assert priority_of(marked) == priority
    assert marked & ((1 << 20) - 1) == flags
    assert marked <= FLAGS_MAX
    assert priority_of(flags) == PRIORITY_DEFAULT


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: int(kind) for kind in RecordKind} == {
        "PUBLISH": 1,
        "SETTLE": 2,
        "START": 3,
        "GAP": 4,
        "CURSOR": 5,
        "TERM": 6,
        "VOTE": 7,
        "SEAL": 8,
        "DEAD": 10,
        "ATTEMPTS": 11,
        "GONE": 12,
        "DELETE": 13,
        "DEFINITION": 14,
        "FORGOTTEN": 15,
    }
