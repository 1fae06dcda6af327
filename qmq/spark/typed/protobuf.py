"""Protobuf bodies: all of one message, as a file of descriptors has it.

The file is what `protoc --include_imports --descriptor_set_out=FILE` writes. A field without presence has its default
value where a body has none; one with presence is null then.
"""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from qmq.spark.archive.table import ArchiveError

TIMESTAMP: Final = "google.protobuf.Timestamp"

Decode = Callable[[bytes], tuple[Any, bool]]


def protobuf_bodies(path: str, name: str) -> tuple[pa.DataType, Decode]:
    """The type of a message, and what makes its values of bodies, and says whether that is all of a body.

    Raises ArchiveError, and OSError.
    """
    try:
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ArchiveError("this needs protobuf: pip install 'qmq[protobuf]'") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(Path(path).read_bytes()).file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(name)
        make = message_factory.GetMessageClass(descriptor)
    except (DecodeError, KeyError, TypeError) as error:
        how = "make it with `protoc --include_imports --descriptor_set_out=FILE`"
        raise ArchiveError(f"{path} has no descriptors of the message {name}: {error} ({how})") from None

    def decode(body: bytes) -> tuple[Any, bool]:
        message = make.FromString(body)
        size = message.ByteSize()
        value = _value(message)
        message.DiscardUnknownFields()
        return value, message.ByteSize() == size

    return _struct(descriptor, frozenset()), decode


def _struct(descriptor: Any, outer: frozenset[str]) -> pa.DataType:
    """`outer`: the messages around it. One of them in itself is text: as columns, a tree would have no end."""
    if not descriptor.fields or descriptor.full_name in outer:
        return pa.string()
    outer |= {descriptor.full_name}
    return pa.struct([pa.field(field.name, _type(field, outer)) for field in descriptor.fields])


def _type(field: Any, outer: frozenset[str]) -> pa.DataType:
    if _is_map(field):
        return pa.map_(pa.string(), _type(field.message_type.fields_by_name["value"], outer))
    if field.message_type is None:
        kind = pa.binary() if field.type == field.TYPE_BYTES else _SCALARS[field.cpp_type]
    elif field.message_type.full_name == TIMESTAMP:
        kind = pa.timestamp("us", "UTC")
    else:
        kind = _struct(field.message_type, outer)
    return pa.list_(kind) if field.is_repeated else kind


_SCALARS: Final = {
    **dict.fromkeys((1, 2, 3, 4), pa.int64()),  # int32, int64, uint32, uint64 of `FieldDescriptor.CPPTYPE_…`
    **dict.fromkeys((5, 6), pa.float64()),
    7: pa.bool_(),
    **dict.fromkeys((8, 9), pa.string()),  # enum, string
}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(message: Any) -> Any:
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        return message.ToDatetime(tzinfo=UTC)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            kind = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _plain(kind, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_plain(field, one) for one in value]
        else:
            found[field.name] = _plain(field, value)
    return found


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
