"""Avro bodies: the schema of each is known by its fingerprint, and says what the columns are.

The mesh keeps its schemas in the log, as DEFINITION records, so no registry is asked. A schema that no journal has any
more, or that the mesh never had, comes from a file.
"""

import io
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from qmq.spark.archive.table import ArchiveError
from qmq.spark.reading.options import Options
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.place import open_place
from qmq.storage.format.definition_record import readable_definition
from qmq.storage.format.record import RecordKind
from qmq.wire.avro import read_schema
from qmq.wire.avro.schema import FINGERPRINT_BYTES, MARK

SCHEMA: Final = "schema"
"""The kind of such definitions."""
HEAD_BYTES: Final = len(MARK) + FINGERPRINT_BYTES
PRECISION_MAX: Final = 38
"""Of decimal numbers, in Delta."""
_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


class AvroBodies:
    """Decodes bodies in Avro's single-object encoding. Schemas are added by `add`."""

    def __init__(self) -> None:
        self.schemas: dict[bytes, Mapping[str, Any]] = {}
        """By the first bytes of a body."""
        self._parsed: dict[bytes, Any] = {}

    def add(self, schema: Mapping[str, Any]) -> None:
        """Raises ValueError for one that the mesh would refuse, too."""
        self.schemas[MARK + read_schema(schema).fingerprint.to_bytes(FINGERPRINT_BYTES, "little")] = schema

    def type(self, head: bytes) -> pa.DataType:
        """What its bodies are. `head` is one of `schemas`."""
        return _type(self.schemas[head], {}, "") or pa.string()

    def decode(self, body: bytes) -> Any:
        """Raises Exception, of many kinds, when it is no value of its schema, which is one of `schemas`."""
        head = body[:HEAD_BYTES]
        if head not in self._parsed:
            self._parsed[head] = fastavro().parse_schema(self.schemas[head])
        file = io.BytesIO(body)
        file.seek(HEAD_BYTES)
        value = fastavro().schemaless_reader(file, self._parsed[head], None)
        if file.tell() != len(body):
            raise ValueError("bytes follow the value")
        return value


def fastavro() -> Any:
    """Raises ArchiveError where it is not installed."""
    try:
        import fastavro
    except ImportError:
        raise ArchiveError("there are bodies in Avro, and this needs fastavro: pip install 'qmq[avro]'") from None
    return fastavro


def schemas_in_log(options: Options) -> Iterable[Mapping[str, Any]]:
    """All schemas that the mesh has had, as far as journals have them. Reads what may have definitions of the logs."""
    # Their records have no destination. What is missing elsewhere in the logs does not matter here.
    chosen = replace(
        options,
        view="records",
        destinations=frozenset([""]),
        pattern=None,
        starting_us=None,
        ending_us=None,
        fail_on_data_loss=False,
    )
    with closing(open_place(chosen)) as place:
        for part in place.plan({}, place.available(), strict=False):
            for rows in rows_of_part(part, chosen, ("kind", "body")):
                for kind, body in zip(rows["kind"].to_pylist(), rows["body"].to_pylist(), strict=True):
                    change = readable_definition(body) if kind == RecordKind.DEFINITION.name else None
                    if change is not None and change.key.kind == SCHEMA and change.value is not None:
                        yield change.value


def schema_in(path: str) -> Mapping[str, Any]:
    """The schema in a file. Raises ArchiveError, and OSError."""
    try:
        found = json.loads(Path(path).read_bytes())
        read_schema(found)
    except ValueError as error:
        raise ArchiveError(f"{path} has no Avro schema: {error}") from None
    return dict(found)


def _type(schema: Any, named: dict[str, pa.DataType | None], namespace: str) -> pa.DataType | None:
    """The type of a column; None for null. `read_schema` has accepted the schema, so no type contains itself."""
    if isinstance(schema, list):
        kinds = {kind for one in schema if (kind := _type(one, named, namespace)) is not None}
        if len(kinds) < 2:
            return kinds.pop() if kinds else None
        return pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.string()
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        return _PRIMITIVES.get(schema) or named.get(full)
    kind = schema["type"]
    name = schema.get("name", "")
    if "." not in name and schema.get("namespace", namespace):
        name = f"{schema.get('namespace', namespace)}.{name}"
    found = _logical(schema) if "logicalType" in schema else _PRIMITIVES.get(kind)
    if kind == "record":
        inner = name.rpartition(".")[0]
        types = ((field["name"], _type(field["type"], named, inner)) for field in schema["fields"])
        fields = [pa.field(field, one) for field, one in types if one is not None]
        found = pa.struct(fields) if fields else pa.string()
    elif kind in ("array", "map"):
        item = _type(schema["items" if kind == "array" else "values"], named, namespace) or pa.string()
        found = pa.list_(item) if kind == "array" else pa.map_(pa.string(), item)
    named[name] = found
    return found


def _logical(schema: Mapping[str, Any]) -> pa.DataType:
    kind, logical = schema["type"], schema["logicalType"]
    if logical == "decimal" and schema.get("precision", PRECISION_MAX + 1) <= PRECISION_MAX:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    # Others are decoded as times, UUIDs and such, which are text here, or not at all.
    return _LOGICAL.get(logical) or (_PRIMITIVES.get(kind) if logical not in _AS_TEXT else pa.string())


_AS_TEXT: Final = frozenset(
    {"decimal", "uuid", "time-millis", "time-micros", "local-timestamp-millis", "local-timestamp-micros"}
)
