"""Whether a body fits a schema: what fastavro writes fits, and nothing that is cut, longer, or out of range does."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.wire.avro import AvroSchema, read_schema
from qmq.wire.avro.schema import VALUES_MAX
from tests.wire.avro.test_schema import ORDER, record

SCHEMA = read_schema(ORDER)
VALUE: dict[str, Any] = {
    "id": b"\x00\x01\x02\x03",
    "state": "PAID",
    "note": "Grüße",
    "paid": True,
    "count": -(2**31),
    "at": 2**63 - 1,
    "weight": 1.5,
    "price": -0.1,
    "raw": b"\xff" * 70,
    "lines": [{"sku": "a", "id": b"abcd"}, {"sku": "", "id": b"efgh"}],
    "tags": {"x": 2**40, "y": {"sku": "z", "id": b"ijkl"}},
    "nothing": None,
}


def lead(schema: AvroSchema) -> bytes:
    return b"\xc3\x01" + schema.fingerprint.to_bytes(8, "little")


def body_of(value: object, schema: dict[str, Any] = ORDER) -> bytes:
    """As a producer writes it: without logical types, whose values need not be dates here."""
    out = io.BytesIO()
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(canonical)), value)
    return lead(read_schema(schema)) + out.getvalue()


def refusal(body: bytes, schema: AvroSchema = SCHEMA) -> str:
    with pytest.raises(ValueError) as refused:
        schema.check_body(body)
    return str(refused.value)


def test_what_a_producer_writes_fits() -> None:
    SCHEMA.check_body(body_of(VALUE))
    SCHEMA.check_body(body_of({**VALUE, "lines": [], "tags": {}, "note": None}))


def test_a_body_that_is_cut_at_any_byte_does_not_fit() -> None:
    body = body_of(VALUE)

    for size in range(10, len(body)):
        assert refusal(body[:size]) == "it is cut off", size
    for size in range(10):
        assert "no single-object encoding" in refusal(body[:size]), size


def test_bytes_behind_the_value_are_refused() -> None:
    assert refusal(body_of(VALUE) + b"\x00\x00") == "2 bytes follow the value"


def test_another_fingerprint_is_refused_with_both() -> None:
    other = read_schema(record("long"))

    reason = refusal(lead(other) + body_of(VALUE)[10:])

    assert f"its fingerprint is {other.fingerprint:016x}, that of the schema {SCHEMA.fingerprint:016x}" in reason


@pytest.mark.parametrize(
    ("type_", "data", "words"),
    [
        ("boolean", "02", "the boolean at byte 10 is neither 0 nor 1"),
        ("int", "8080808010", "the int at byte 10 has more than 32 bits"),
        ("long", "ffffffffffffffffff02", "has more than 64 bits"),
        ("long", "80" * 20, "has more than 64 bits"),
        ("bytes", "01", "the length at byte 10 is negative"),
        ("string", "01", "the length at byte 10 is negative"),
        ("string", "02ff", "is not UTF-8"),
        ("string", "feffffffffffffffff01", "it is cut off"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "02", "the enum at byte 10 has no symbol 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "01", "the enum at byte 10 has no symbol -1"),
        (["null", "int"], "04", "the union at byte 10 has no branch 2"),
        (["null", "int"], "01", "the union at byte 10 has no branch -1"),
        ({"type": "array", "items": "int"}, "0302020200", "the block at byte 10 has another size than it says"),
        ({"type": "array", "items": "int"}, "0306020200", "the block at byte 10 has another size than it says"),
        ({"type": "array", "items": "int"}, "03c701020200", "the block at byte 10 has another size than it says"),
        ({"type": "array", "items": "int"}, "020202", "it is cut off"),
        ({"type": "array", "items": "int"}, "feffffffffffffffff01", "it has too many values"),
        ({"type": "array", "items": "int"}, "ffffffffffffffffff0102", "it has too many values"),
    ],
)
def test_values_that_only_some_readers_accept_are_refused(type_: object, data: str, words: str) -> None:
    schema = read_schema(record(type_))

    assert words in refusal(lead(schema) + bytes.fromhex(data), schema)


def test_blocks_may_say_their_size() -> None:
    schema = read_schema({"type": "array", "items": "int"})

    schema.check_body(lead(schema) + bytes.fromhex("03040204020800"))


def test_the_number_of_values_is_bounded_and_counts_what_is_inside_items() -> None:
    schema = {"type": "array", "items": record("boolean", "null", "null")}
    most = VALUES_MAX // 4

    assert (
        read_schema(schema).check_body(body_of([{"f0": True, "f1": None, "f2": None}] * (most - 1), schema))
        <= VALUES_MAX
    )
    assert refusal(body_of([{"f0": True, "f1": None, "f2": None}] * (most + 1), schema), read_schema(schema)) == (
        "it has too many values"
    )


def test_each_body_has_the_whole_budget() -> None:
    schema = read_schema({"type": "array", "items": "long"})
    body = body_of([1] * (VALUES_MAX - 10), {"type": "array", "items": "long"})

    assert schema.check_body(body) == schema.check_body(body) == VALUES_MAX - 9


@given(
    st.fixed_dictionaries(
        {
            "id": st.binary(min_size=4, max_size=4),
            "state": st.sampled_from(["NEW", "PAID"]),
            "note": st.none() | st.text(),
            "paid": st.booleans(),
            "count": st.integers(-(2**31), 2**31 - 1),
            "at": st.integers(-(2**63), 2**63 - 1),
            "weight": st.floats(width=32),
            "price": st.floats(),
            "raw": st.binary(),
            "lines": st.lists(
                st.fixed_dictionaries({"sku": st.text(), "id": st.binary(min_size=4, max_size=4)}), max_size=5
            ),
            "tags": st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=5),
            "nothing": st.none(),
        }
    )
)
def test_every_value_that_fastavro_writes_fits(value: dict[str, Any]) -> None:
    SCHEMA.check_body(body_of(value))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing_else(data: bytes) -> None:
    try:
        SCHEMA.check_body(lead(SCHEMA) + data)
    except ValueError:
        return
    fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(json.loads(SCHEMA.canonical)), None)
