"""DEFINITION records: one change of a definition, as bytes and back.

The record's destination is empty. Its body is a msgpack map: `kind`, `name`, `value` (canonical JSON text, or nil for
a tombstone), `version` and `replaced` (nil: nothing), each `[time, counter, node, incarnation, sequence]`. Keys that
this version does not know are ignored. It counts on every node, whatever node wrote it.

Surprising: the version names the change, not the record. A node that got a definition otherwise than by its record
writes the same change again.
"""

from typing import Any, Final

import msgpack

from qmq.definitions.definition import Definition, Key, Version
from qmq.dots import Origin
from qmq.errors import CorruptLog
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record

ENVELOPE: Final = pack_envelope("", b"")


def pack_definition(change: Definition) -> bytes:
    """Body of a DEFINITION."""
    (kind, name), version, text, replaced = change
    fields = {
        "kind": kind,
        "name": name,
        "value": text,
        "version": version_fields(version),
        "replaced": version_fields(replaced),
    }
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_definition(body: bytes) -> Definition:
    """The inverse of `pack_definition`. Raises CorruptLog for anything else."""
    try:
        fields = msgpack.unpackb(body)
        version = version_of(fields["version"])
        text = fields["value"]
        if version is None or not (text is None or isinstance(text, str)):
            raise ValueError("no version or value")
        key = Key(str(fields["kind"]), str(fields["name"]))
        return Definition(key, version, text, version_of(fields.get("replaced")))
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a definition: {error}") from error


def packed_record(change: Definition, timestamp_us: int) -> bytes:
    """The record that `change` came as, packed."""
    return pack_record(
        change.version.sequence, timestamp_us, RecordKind.DEFINITION, 0, ENVELOPE, pack_definition(change)
    )


def version_fields(version: Version | None) -> list[Any] | None:
    """For msgpack and JSON."""
    if version is None:
        return None
    time_us, counter, origin, sequence = version
    return [time_us, counter, origin.node, origin.incarnation, sequence]


def version_of(fields: Any) -> Version | None:
    """The inverse of `version_fields`. Raises ValueError or TypeError for anything else."""
    if fields is None:
        return None
    time_us, counter, node, incarnation, sequence = fields
    return Version(int(time_us), int(counter), Origin(str(node), int(incarnation)), int(sequence))
