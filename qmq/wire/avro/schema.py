"""Avro schemas: which of them the mesh may define, and the bodies that fit one.

A body has the single-object encoding (Avro 1.11, "Single-object encoding"): a mark, the fingerprint of its schema, and
one value. A schema is refused by which a few bytes could stand for many values, or a value for one without end:

- No type contains itself.
- The items of an array, and the values of a map, take at least one byte.
- A value has at most `FIXED_VALUES_MAX` values in it, besides the items of its arrays and maps.

Attributes without an effect on bytes, such as `doc`, `default` and `logicalType`, are not looked at.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .datum import PRIMITIVES, Check, ValueBudget, blocks, check_string, enum, fixed, record, union

AVRO: Final = "avro/binary"
"""Content type of a body."""

MARK: Final = b"\xc3\x01"
FINGERPRINT_BYTES: Final = 8

FIXED_VALUES_MAX: Final = 10_000
VALUES_MAX: Final = 50_000
"""Of one body, with the items of arrays and maps: some 30 ms."""
NESTING_MAX: Final = 32
"""Types inside each other, by name or in place."""
FIXED_BYTES_MAX: Final = 1 << 20

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
EMPTY: Final = 0xC15D213AA4D7A795
"""The fingerprint of no bytes (Avro 1.11, "Schema Fingerprints")."""


class AvroType(NamedTuple):
    """One type of a schema."""

    canonical: Any
    """In parsing canonical form, as JSON has it."""
    check: Check
    values: int = 1
    """The most that a value of the type stands for, without items of arrays and maps."""
    bytes_min: int = 1
    nesting: int = 1


class AvroSchema:
    """`canonical` is the text in parsing canonical form, `fingerprint` its CRC-64-AVRO."""

    __slots__ = ("_budget", "_lead", "_type", "canonical", "fingerprint")

    def __init__(self, root: AvroType, budget: ValueBudget) -> None:
        self._type = root
        self._budget = budget
        self.canonical = json.dumps(root.canonical, separators=(",", ":"))
        self.fingerprint = crc_64(self.canonical.encode())
        self._lead = MARK + self.fingerprint.to_bytes(FINGERPRINT_BYTES, "little")

    def check_body(self, body: bytes) -> int:
        """The number of values in `body`, at most. Raises ValueError if it is not exactly one value of this schema."""
        if not body.startswith(self._lead):
            if not body.startswith(MARK) or len(body) < len(self._lead):
                raise ValueError("it has no single-object encoding, which begins with C3 01 and a fingerprint")
            other = int.from_bytes(body[len(MARK) : len(self._lead)], "little")
            raise ValueError(f"its fingerprint is {other:016x}, that of the schema {self.fingerprint:016x}")
        budget = self._budget
        budget.left = VALUES_MAX - self._type.values
        try:
            end = self._type.check(body, len(self._lead))
        except UnicodeDecodeError:
            raise ValueError("a string in it is not UTF-8") from None
        except IndexError:
            raise ValueError("it is cut off") from None
        if end < len(body):
            raise ValueError(f"{len(body) - end} bytes follow the value")
        return VALUES_MAX - budget.left


def read_schema(value: Mapping[str, Any]) -> AvroSchema:
    """The schema in JSON. Raises ValueError, which names what is wrong, and what is allowed.

    `value` is nested as deeply as a definition may be, at most.
    """
    budget = ValueBudget()
    return AvroSchema(_Reader(budget).read(value, "", "the schema"), budget)


def crc_64(data: bytes) -> int:
    """CRC-64-AVRO."""
    found = EMPTY
    for byte in data:
        found = found >> 8 ^ CRC_TABLE[(found ^ byte) & 0xFF]
    return found


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (EMPTY if byte & 1 else 0)
    return byte


CRC_TABLE: Final = tuple(_crc_of(byte) for byte in range(256))


class _Reader:
    """Reads one schema. `where` says in errors which type is meant."""

    def __init__(self, budget: ValueBudget) -> None:
        self._budget = budget
        # Full name → its type; None while the type is read.
        self._named: dict[str, AvroType | None] = {}

    def read(self, value: object, namespace: str, where: str) -> AvroType:
        if isinstance(value, str):
            return self._referred(value, namespace, where)
        if isinstance(value, list):
            return self._union(value, namespace, where)
        if not isinstance(value, dict):
            raise ValueError(f"{where}: must be a type: a name, an object with type, or a list of types")
        kind = value.get("type")
        if kind == "array" or kind == "map":
            return _checked(self._blocks(value, kind, namespace, where), where)
        if kind == "record" or kind == "enum" or kind == "fixed":
            return self._define(value, kind, namespace, where)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _primitive(kind)
        raise ValueError(
            f"{where}: type = {json.dumps(kind)}: must be one of record, enum, fixed, array, map, "
            f"{', '.join(PRIMITIVES)}"
        )

    def _referred(self, name: str, namespace: str, where: str) -> AvroType:
        if name in PRIMITIVES:
            return _primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise ValueError(f"{where}: unknown type {name!r}: a type is defined before it is named")
        found = self._named[full]
        if found is None:
            raise ValueError(f"{where}: {full} must not contain itself")
        return found._replace(canonical=full)

    def _union(self, branches: list[object], namespace: str, where: str) -> AvroType:
        if not branches:
            raise ValueError(f"{where}: must not be an empty union")
        read: dict[str, AvroType] = {}
        for branch in branches:
            if isinstance(branch, list):
                raise ValueError(f"{where}: a union must not have a union as a branch")
            one = self.read(branch, namespace, where)
            name = _branch_name(one.canonical)
            if name in read:
                raise ValueError(f"{where}: a union must not have {name} twice")
            read[name] = one
        found = AvroType(
            [one.canonical for one in read.values()],
            union([one.check for one in read.values()]),
            1 + max(one.values for one in read.values()),
            1 + min(one.bytes_min for one in read.values()),
            1 + max(one.nesting for one in read.values()),
        )
        return _checked(found, where)

    def _blocks(self, value: Mapping[str, Any], kind: str, namespace: str, where: str) -> AvroType:
        key = "items" if kind == "array" else "values"
        item = self.read(value.get(key), namespace, f"{where}, {key}")
        if not item.bytes_min:
            raise ValueError(f"{where}: {key} must be of a type whose values take at least one byte")
        check = item.check if kind == "array" else record([check_string, item.check])
        values = item.values + (kind == "map")
        canonical = {"type": kind, key: item.canonical}
        return AvroType(canonical, blocks(check, values, self._budget), 1, 1, 1 + item.nesting)

    def _define(self, value: Mapping[str, Any], kind: str, namespace: str, where: str) -> AvroType:
        full = _full_name(value, namespace, where)
        if full in self._named or full in PRIMITIVES:
            raise ValueError(f"{where}: {full} must not be defined twice")
        self._named[full] = None
        canonical: dict[str, Any] = {"name": full, "type": kind}
        if kind == "record":
            found = self._record(value, canonical, full)
        elif kind == "enum":
            canonical["symbols"] = symbols = _symbols(value, full)
            found = AvroType(canonical, enum(len(symbols)))
        else:
            canonical["size"] = size = value.get("size")
            if type(size) is not int or not 1 <= size <= FIXED_BYTES_MAX:
                raise ValueError(f"{full}: size must be 1 to {FIXED_BYTES_MAX}")
            found = AvroType(canonical, fixed(size), 1, size)
        self._named[full] = _checked(found, full)
        return found

    def _record(self, value: Mapping[str, Any], canonical: dict[str, Any], full: str) -> AvroType:
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise ValueError(f"{full}: fields must be a list")
        types: dict[str, AvroType] = {}
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or NAME.fullmatch(name) is None:
                raise ValueError(f"{full}: a field must have a name out of A-Z, a-z, 0-9 and _")
            if name in types:
                raise ValueError(f"{full}: must not have the field {name} twice")
            types[name] = self.read(field.get("type"), full.rpartition(".")[0], f"{full}.{name}")
        canonical["fields"] = [{"name": name, "type": one.canonical} for name, one in types.items()]
        return AvroType(
            canonical,
            record([one.check for one in types.values()]),
            1 + sum(one.values for one in types.values()),
            sum(one.bytes_min for one in types.values()),
            1 + max((one.nesting for one in types.values()), default=0),
        )


def _primitive(name: str) -> AvroType:
    return AvroType(name, PRIMITIVES[name], bytes_min=0 if name == "null" else 1)


def _checked(found: AvroType, where: str) -> AvroType:
    if found.values > FIXED_VALUES_MAX:
        raise ValueError(f"{where}: must have at most {FIXED_VALUES_MAX} values, besides items of arrays and maps")
    if found.nesting > NESTING_MAX:
        raise ValueError(f"{where}: must have at most {NESTING_MAX} types inside each other")
    return found


def _full_name(value: Mapping[str, Any], namespace: str, where: str) -> str:
    name, own = value.get("name"), value.get("namespace", namespace)
    full = name if not isinstance(name, str) or "." in name or not own else f"{own}.{name}"
    if not isinstance(full, str) or any(NAME.fullmatch(part) is None for part in full.split(".")):
        raise ValueError(f"{where}: a type must have a name, and a namespace, out of A-Z, a-z, 0-9, _ and dots")
    return full


def _symbols(value: Mapping[str, Any], full: str) -> list[str]:
    symbols = value.get("symbols")
    if not isinstance(symbols, list) or not symbols:
        raise ValueError(f"{full}: symbols must be a list of names")
    if any(not isinstance(one, str) or NAME.fullmatch(one) is None for one in symbols):
        raise ValueError(f"{full}: a symbol must be a name out of A-Z, a-z, 0-9 and _")
    if len(set(symbols)) < len(symbols):
        raise ValueError(f"{full}: must not have a symbol twice")
    return symbols


def _branch_name(canonical: Any) -> str:
    if isinstance(canonical, str):
        return canonical
    name: str = canonical.get("name", canonical["type"])
    return name
