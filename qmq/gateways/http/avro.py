"""Messages as Avro object container files: `avro/binary` (Avro 1.11 specification, "Object Container Files").

`message.avsc` is the schema of a message in both directions. A client may write with a schema of its own that has
some of its fields, under any name. The file says how to read it, so its schema is checked first: no arrays, and
nothing within itself. Otherwise a file of a few bytes could stand for millions of values.

Surprising: fastavro is imported at the first use. It is an extra, and nothing else needs it.
"""

import io
import json
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from qmq.errors import Refused

AVRO: Final = "avro/binary"
MAGIC: Final = b"Obj\x01"
"""Each container file begins with it; a body of one datum does not."""

UNPACKED_BYTES_MAX: Final = 64 << 20
"""Of a file with the codec deflate."""

SENT_ONLY: Final = ("id", "destination", "ack_token", "redelivered", "delivery_count")
"""Fields of received messages."""

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
SYNC_BYTES: Final = 16


@cache
def schema_page() -> bytes:
    """`message.avsc`."""
    return files("qmq.gateways.http").joinpath("message.avsc").read_bytes()


@cache
def _schema() -> Any:
    return _fastavro().parse_schema(json.loads(schema_page()))


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise Refused("not-supported", "This node cannot read Avro: it was installed without the extra avro.") from None
    return fastavro


def messages_in(body: bytes, messages_max: int) -> list[dict[str, Any]]:
    """The messages of a file, with the fields that say something. Raises Refused."""
    fastavro = _fastavro()
    try:
        reader = fastavro.reader(io.BytesIO(body))
        _check_schema(reader.writer_schema)
        codec = reader.metadata.get("avro.codec", "null")
        if codec == "deflate":
            body = _unpacked(body, fastavro)
        elif codec != "null":
            raise Refused("bad-body", f"The codec of the Avro file is null or deflate, not {codec!r}.")
        found: list[dict[str, Any]] = []
        for record in fastavro.reader(io.BytesIO(body)):
            if len(found) >= messages_max:
                raise Refused("bad-body", f"A batch has 1 to {messages_max} messages.")
            found.append({name: value for name, value in record.items() if value is not None and value != {}})
    except Refused:
        raise
    except Exception as error:  # fastavro raises what Python raises for bytes that make no sense
        raise Refused("bad-body", f"The body is no Avro file of messages: {type(error).__name__}.") from None
    for message in found:
        for name in SENT_ONLY:
            message.pop(name, None)
    return found


def container(messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Received messages, as JSON shows them, as a file. Raises Refused where fastavro is missing."""
    out = io.BytesIO()
    _fastavro().writer(out, _schema(), messages)
    return out.getvalue()


def _check_schema(schema: object) -> None:
    """Refuse a writer's schema whose values could take no bytes, or be nested."""
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    if not isinstance(fields, list):
        raise Refused("bad-body", "The schema of the Avro file is a record, such as message.avsc.")
    for field in fields:
        kind = field["type"]
        for one in kind if isinstance(kind, list) else [kind]:
            is_map = isinstance(one, dict) and one.get("type") == "map" and one.get("values") in ("string", "bytes")
            name = one.get("type") if isinstance(one, dict) else one
            if not is_map and not (isinstance(name, str) and name in PRIMITIVES):
                raise Refused("bad-body", f"The field {field['name']!r} of the Avro file is of no simple type.")


def _unpacked(body: bytes, fastavro: Any) -> bytes:
    """A file with the codec deflate as one with the codec null, within bounds."""
    metadata = {**fastavro.reader(io.BytesIO(body)).metadata, "avro.codec": "null"}
    head = io.BytesIO()
    head.write(MAGIC)
    fastavro.schemaless_writer(head, {"type": "map", "values": "bytes"}, {k: v.encode() for k, v in metadata.items()})
    sync = b"\0" * SYNC_BYTES
    parts = [head.getvalue(), sync]
    size = 0
    for count, packed in _blocks(body, fastavro):
        unpack = zlib.decompressobj(-15)
        data = unpack.decompress(packed, UNPACKED_BYTES_MAX - size + 1)
        size += len(data)
        if size > UNPACKED_BYTES_MAX:
            raise Refused("body-too-large", f"An Avro file has at most {UNPACKED_BYTES_MAX} bytes when unpacked.")
        parts += [_long(count), _long(len(data)), data, sync]
    return b"".join(parts)


def _blocks(body: bytes, fastavro: Any) -> Iterable[tuple[int, bytes]]:
    """(number of records, bytes) of each block, as they are in the file."""
    source = io.BytesIO(body[len(MAGIC) :])
    fastavro.schemaless_reader(source, {"type": "map", "values": "bytes"}, None)
    source.read(SYNC_BYTES)
    while True:
        count = _read_long(source)
        if count is None:
            return
        size = _read_long(source)
        if size is None or size < 0 or count < 0:
            raise ValueError("a block has no size")
        data = source.read(size)
        if len(data) < size or len(source.read(SYNC_BYTES)) < SYNC_BYTES:
            raise ValueError("a block is cut off")
        yield count, data


def _long(value: int) -> bytes:
    """Zigzag and variable length (Avro, "Binary Encoding"); of a number that is not negative."""
    value <<= 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_long(source: io.BytesIO) -> int | None:
    value = shift = 0
    while True:
        one = source.read(1)
        if not one:
            return None
        value |= (one[0] & 0x7F) << shift
        if one[0] < 0x80:
            return value >> 1 ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
