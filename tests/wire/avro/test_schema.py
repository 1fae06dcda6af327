"""Which schemas may be defined, and their canonical form and fingerprint, as fastavro has them."""

import json
from typing import Any

import fastavro
import pytest

from qmq.wire.avro import read_schema
from qmq.wire.avro.schema import FIXED_VALUES_MAX, NESTING_MAX, crc_64

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "doc": "An order.",
    "fields": [
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 4}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "default": "NEW"},
        {"name": "note", "type": ["null", "string", "State"], "default": None},
        {"name": "paid", "type": "boolean"},
        {"name": "count", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "weight", "type": "float"},
        {"name": "price", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "other.Line",
                    "aliases": ["Row"],
                    "fields": [{"name": "sku", "type": "string"}, {"name": "id", "type": "shop.Id"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": ["long", "other.Line"]}},
        {"name": "nothing", "type": "null"},
    ],
}


def record(*types: object, name: str = "R") -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def chain(length: int) -> dict[str, Any]:
    """Records that each contain the one before by name, side by side in one record."""
    types = [record("long", name="R0")]
    types += [record(f"R{number - 1}", name=f"R{number}") for number in range(1, length)]
    return record(*types, name="All")


@pytest.mark.parametrize(
    "schema",
    [ORDER, {"type": "string"}, {"type": "array", "items": "int"}, record(), record("long", ["null", "R2"][:1])],
)
def test_canonical_form_and_fingerprint_are_those_of_fastavro(schema: dict[str, Any]) -> None:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)

    found = read_schema(schema)

    assert found.canonical == canonical
    little_endian = found.fingerprint.to_bytes(8, "little").hex()
    assert little_endian == fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")


def test_fingerprints_are_those_of_the_specification() -> None:
    assert [f"{crc_64(text):016x}" for text in (b'"int"', b'"string"')] == ["7275d51a3f395c8f", "8f014872634503c7"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "the schema: type = null: must be one of record, enum, fixed, array, map, null, boolean"),
        ({"type": ["null", "int"]}, 'type = ["null", "int"]: must be one of'),
        ({"type": {"type": "int"}}, "must be one of"),
        ({"type": "error", "name": "E", "fields": []}, "must be one of"),
        ({"type": "record", "fields": []}, "a type must have a name"),
        ({"type": "record", "name": "a b", "fields": []}, "a type must have a name"),
        ({"type": "record", "name": "R", "namespace": "a..b", "fields": []}, "a type must have a name"),
        ({"type": "record", "name": 5, "fields": []}, "a type must have a name"),
        ({"type": "record", "name": "int", "fields": []}, "int must not be defined twice"),
        ({"type": "record", "name": "R"}, "R: fields must be a list"),
        ({"type": "record", "name": "R", "fields": ["a"]}, "R: a field must have a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a-b", "type": "int"}]}, "R: a field must have a name"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
            "R: must not have the field a twice",
        ),
        (record("R9"), "R.f0: unknown type 'R9': a type is defined before it is named"),
        (record(record(name="S"), record(name="S")), "S must not be defined twice"),
        (record(5), "R.f0: must be a type"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "R.a: must be a type"),
        (record([]), "R.f0: must not be an empty union"),
        (record([["int"]]), "R.f0: a union must not have a union as a branch"),
        (record(["int", {"type": "int", "logicalType": "date"}]), "R.f0: a union must not have int twice"),
        (record([{"type": "map", "values": one} for one in ("int", "long")]), "must not have map twice"),
        (record({"type": "enum", "name": "E", "symbols": []}), "E: symbols must be a list of names"),
        (record({"type": "enum", "name": "E", "symbols": ["a-b"]}), "E: a symbol must be a name"),
        (record({"type": "enum", "name": "E", "symbols": ["a", "a"]}), "E: must not have a symbol twice"),
        (record({"type": "fixed", "name": "F", "size": 0}), "F: size must be 1 to"),
        (record({"type": "fixed", "name": "F", "size": True}), "F: size must be 1 to"),
        (record({"type": "fixed", "name": "F", "size": 1 << 30}), "F: size must be 1 to"),
    ],
)
def test_a_bad_schema_is_refused_with_the_place_and_the_reason(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_schema(schema)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        record(["null", "R"]),
        record({"type": "array", "items": "R"}),
        record(record({"type": "map", "values": ["null", "R"]}, name="S")),
    ],
)
def test_no_type_contains_itself(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="R must not contain itself"):
        read_schema(schema)


@pytest.mark.parametrize("item", ["null", record(name="E"), record("null", record("null", name="F"), name="E")])
@pytest.mark.parametrize("kind", [{"type": "array"}, {"type": "map"}])
def test_items_take_at_least_one_byte(kind: dict[str, str], item: object) -> None:
    key = "items" if kind["type"] == "array" else "values"

    with pytest.raises(ValueError, match=f"{key} must be of a type whose values take at least one byte"):
        read_schema({**kind, key: item})

    read_schema({**kind, key: ["null", item] if item != "null" else [item]})


def test_a_short_schema_does_not_stand_for_many_values() -> None:
    types: list[object] = [record(*["null"] * 10, name="R0")]
    for number in range(1, 4):
        types.append(record(*[f"R{number - 1}"] * 10, name=f"R{number}"))

    with pytest.raises(ValueError, match=f"must have at most {FIXED_VALUES_MAX} values"):
        read_schema(record(*types, name="All"))


def test_nesting_by_name_is_bounded() -> None:
    read_schema(chain(NESTING_MAX - 2))

    with pytest.raises(ValueError, match=f"must have at most {NESTING_MAX} types inside each other"):
        read_schema(chain(NESTING_MAX))


def test_what_has_no_effect_on_bytes_is_not_looked_at() -> None:
    plain = record("long")
    commented = json.loads(json.dumps({**plain, "doc": 5, "aliases": ["x y"], "custom": {"a": [1]}}))

    assert read_schema(commented).fingerprint == read_schema(plain).fingerprint
