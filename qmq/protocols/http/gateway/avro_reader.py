"""Reading Avro object container files of messages (Avro 1.11 specification, "Object Container Files").

A file is read here and not by fastavro. A map of many equal entries, a decimal of many digits or a block that is packed
well stands for much more work than it has bytes, and fastavro has a bound for none of them: 60 KB took it a minute.
Here a schema has few fields of simple types, logical types are ignored, maps are as small as the headers of a message,
and a packed file is read as if it had been sent unpacked.
"""

import json
import struct
import zlib
from typing import Any, Final

from qmq.errors import Refused
from qmq.wire.avro.datum import read_long

MAGIC: Final = b"Obj\x01"
"""Each container file begins with it; a body of one datum does not."""

UNPACKED_BYTES_MAX: Final = 16 << 20
"""Of a file with the codec deflate: as much as one without it can have."""

SCHEMA_BYTES_MAX: Final = 64 << 10
FIELDS_MAX: Final = 100
"""Of a record; and branches of a union."""

ENTRIES_MAX: Final = 200
"""Of one map. A message may have fewer headers, which is checked later."""

VALUES_PER_RECORD: Final = 100
"""For each record that a file may have, so many values in all of them: a value takes much more memory than bytes."""

VALUES_UNSENT: Final = 20
"""A packed file may have so many values for each record that it has, and besides one for each byte that was sent: what
a client sends bounds what the node makes of it.
"""

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
SYNC_BYTES: Final = 16

Schema = list[tuple[str, list[str]]]
"""Fields of a record, each with its kinds: one, or the branches of a union. A kind is a primitive, or `map` and the
primitive of its values.
"""


def records_in(body: bytes, records_max: int) -> list[dict[str, Any]]:
    """The records of a file. Raises Refused; ValueError, IndexError or another error of Python for what is no file."""
    at = len(MAGIC)
    if not body.startswith(MAGIC):
        raise ValueError("no container file")
    metadata, at = _map(body, at, "bytes")
    text = metadata["avro.schema"]
    if len(text) > SCHEMA_BYTES_MAX:
        raise Refused("bad-body", f"The schema of an Avro file has at most {SCHEMA_BYTES_MAX} bytes.")
    schema = _schema_of(json.loads(text))
    codec = metadata.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise Refused("bad-body", f"The codec of the Avro file is null or deflate, not {codec.decode()!r}.")
    sync = body[at : at + SYNC_BYTES]
    at += SYNC_BYTES
    found: list[dict[str, Any]] = []
    unpacked_bytes = values = 0
    most = VALUES_PER_RECORD * records_max
    while at < len(body):
        count, at = read_long(body, at)
        block, at = _bytes(body, at)
        if count <= 0 or body[at : at + SYNC_BYTES] != sync or len(sync) < SYNC_BYTES:
            raise ValueError("a block is cut off, or has no records: a body of such blocks would take seconds")
        at += SYNC_BYTES
        if len(found) + count > records_max:
            raise Refused("bad-body", f"A batch has 1 to {records_max} messages.")
        if codec == b"deflate":
            block = zlib.decompressobj(-zlib.MAX_WBITS).decompress(block, UNPACKED_BYTES_MAX - unpacked_bytes + 1)
            unpacked_bytes += len(block)
            if unpacked_bytes > UNPACKED_BYTES_MAX:
                raise Refused("body-too-large", f"An Avro file has at most {UNPACKED_BYTES_MAX} bytes when unpacked.")
        place = 0
        for _ in range(count):
            record, place = _record(block, place, schema)
            found.append(record)
            values += sum(
                [len(value) if isinstance(value, dict) else 1 for value in record.values() if value is not None]
            )
            if values > min(most, VALUES_UNSENT * len(found) + len(body)):
                raise Refused(
                    "bad-body",
                    f"A batch has at most {most} values, and an Avro file one for each of its bytes, and"
                    f" {VALUES_UNSENT} for each record.",
                )
        if place != len(block):
            raise ValueError("a block is longer than its records")
    return found


def _schema_of(schema: object) -> Schema:
    """Refuse a writer's schema whose values could be nested."""
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    if not isinstance(fields, list) or len(fields) > FIELDS_MAX:
        raise Refused(
            "bad-body",
            f"The schema of the Avro file is a record, such as message.avsc, of at most {FIELDS_MAX} fields.",
        )
    found = []
    for field in fields:
        name, kind = field["name"], field["type"]
        kinds = [_kind_of(one) for one in (kind if isinstance(kind, list) else [kind])]
        if not isinstance(name, str) or len(kinds) > FIELDS_MAX or "" in kinds:
            raise Refused("bad-body", f"The field {name!r} of the Avro file is of no simple type.")
        found.append((name, kinds))
    return found


def _kind_of(one: object) -> str:
    """See `Schema`; empty for other types."""
    if isinstance(one, dict) and one.get("type") == "map":
        values = one.get("values")
        return f"map {values}" if values in ("string", "bytes") else ""
    name = one.get("type") if isinstance(one, dict) else one
    return name if isinstance(name, str) and name in PRIMITIVES else ""


def _record(data: bytes, at: int, schema: Schema) -> tuple[dict[str, Any], int]:
    record = {}
    for name, kinds in schema:
        branch = 0
        if len(kinds) > 1:
            branch, at = read_long(data, at)
            if branch < 0:
                raise ValueError("no branch of the union")
        record[name], at = _value(data, at, kinds[branch])
    return record, at


def _value(data: bytes, at: int, kind: str) -> tuple[Any, int]:
    if kind == "null":
        return None, at
    if kind == "string":
        value, at = _bytes(data, at)
        return value.decode(), at
    if kind == "bytes":
        return _bytes(data, at)
    if kind in ("int", "long"):
        return read_long(data, at)
    if kind == "boolean":
        return data[at] != 0, at + 1
    if kind == "float":
        return struct.unpack_from("<f", data, at)[0], at + 4
    if kind == "double":
        return struct.unpack_from("<d", data, at)[0], at + 8
    return _map(data, at, kind.removeprefix("map "))


def _map(data: bytes, at: int, kind: str) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    entries = 0
    while True:
        count, at = read_long(data, at)
        if not count:
            return found, at
        if count < 0:  # then its size in bytes follows
            count = -count
            _, at = read_long(data, at)
        entries += count
        if entries > ENTRIES_MAX:
            raise Refused("bad-body", f"A map of the Avro file has at most {ENTRIES_MAX} entries.")
        for _ in range(count):
            name, at = _bytes(data, at)
            found[name.decode()], at = _value(data, at, kind)


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("a value is cut off")
    return data[at : at + size], at + size
