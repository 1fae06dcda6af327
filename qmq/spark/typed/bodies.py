"""Bodies of all forms as values: Avro by fingerprint, Protobuf by descriptors, and otherwise JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from qmq.spark.archive.table import ArchiveError
from qmq.spark.typed.avro import HEAD_BYTES, AvroBodies
from qmq.spark.typed.protobuf import Decode
from qmq.spark.typed.shapes import Shape, json_text
from qmq.wire.avro.schema import MARK

NO_JSON: Final = "no JSON"
UNKNOWN_FIELDS: Final = "Protobuf with fields that the descriptors do not have"
MISFITS: Final = "Avro that does not fit its schema"


class BodyValue(NamedTuple):
    """`text` has all of the value as JSON; `problem` says why `body` must be kept, too."""

    value: Any = None
    text: str | None = None
    problem: str = ""


class Bodies:
    """Decodes them, and knows what it has seen."""

    def __init__(self, avro: AvroBodies, protobuf: tuple[pa.DataType, Decode] | None = None) -> None:
        self._avro = avro
        self._protobuf = protobuf

    def look(self, bodies: Iterable[bytes]) -> "SeenBodies":
        """What fields they have. Bodies of a schema are not decoded for it."""
        shape, heads = Shape(), Counter[bytes]()
        for body in bodies if self._protobuf is None else ():
            if body.startswith(MARK):
                heads[body[:HEAD_BYTES]] += 1
                continue
            value = decoded_json(body).value
            if type(value) is dict:
                shape.see(value)
        return SeenBodies(shape.struct(), shape.struct(is_all=True), heads)

    def declared(self, seen: "SeenBodies") -> Iterator[pa.DataType]:
        """The types of the seen bodies by their schemas, the most frequent first: those that have fields."""
        heads = (head for head, _ in seen.heads.most_common() if head in self._avro.schemas)
        types = map(self._avro.type, heads) if self._protobuf is None else [self._protobuf[0]]
        return filter(pa.types.is_struct, types)

    def decode(self, body: bytes) -> BodyValue:
        """Raises ArchiveError when a package is missing."""
        if self._protobuf is not None:
            return self._decode_protobuf(self._protobuf[1], body)
        if not body.startswith(MARK):
            return decoded_json(body)
        head = body[:HEAD_BYTES]
        if head not in self._avro.schemas:
            number = int.from_bytes(head[len(MARK) :], "little")
            return BodyValue(problem=f"Avro with the unknown fingerprint {number:016x}")
        try:
            value = self._avro.decode(body)
        except Exception as error:  # what fastavro raises for bytes that make no sense
            if isinstance(error, ArchiveError):
                raise
            return BodyValue(problem=MISFITS)
        return BodyValue(value, json_text(value))

    def _decode_protobuf(self, decode: Decode, body: bytes) -> BodyValue:
        try:
            value, is_all = decode(body)
        except Exception:  # what Protobuf raises, which is not imported here
            return BodyValue(problem="not of the message")
        return BodyValue(value, json_text(value), "" if is_all else UNKNOWN_FIELDS)


class SeenBodies(NamedTuple):
    """`fields`: of JSON objects; `spellings`: with those that differ from others by capitals only. `heads`: the first
    bytes of Avro bodies, with the fingerprint of their schema.
    """

    fields: pa.DataType | None
    spellings: pa.DataType | None
    heads: "Counter[bytes]"


def decoded_json(body: bytes) -> BodyValue:
    """A body that is one value of JSON, and nothing else, such as a second line."""
    try:
        text = body.decode()
        return BodyValue(json.loads(text, parse_constant=_refuse), text)
    except (ValueError, RecursionError):
        return BodyValue(problem=NO_JSON)


def _refuse(name: str) -> None:
    raise ValueError(name)
