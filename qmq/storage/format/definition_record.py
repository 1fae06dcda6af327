"""DEFINITION records: one change of a definition, as bytes and back.

The record's destination is empty. Its body is a msgpack map: `kind`, `name`, `value` (canonical JSON text, or nil for
a tombstone), `version` and `replaced` (nil: nothing), each `[time, counter, node, incarnation, sequence]`, and
behind it what the writer's clock showed, if that is earlier than the time. Keys that this version does not know are
ignored. It counts on every node, whatever node wrote it.

Surprising: the version names the change, not the record. A node that got a definition otherwise than by its record
writes the same change again.
"""

import logging
from typing import Any, Final

import msgpack

from qmq.definitions.definition import NAME_BYTES_MAX, NUMBER_MAX, Definition, Key, Version, parsed
from qmq.errors import CorruptLog
from qmq.model.dots import Origin
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record

log = logging.getLogger("qmq.definitions")

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
        return definition_of(fields["kind"], fields["name"], fields["value"], fields["version"], fields.get("replaced"))
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a definition: {error}") from error


def readable_definition(body: bytes) -> Definition | None:
    """The same of a record that the journal has already; None, with a log line, for anything else.

    It is too late to refuse the record, and a start must not fail because of it.
    """
    try:
        return unpack_definition(body)
    except CorruptLog as error:
        log.warning("! a record of a definition in the journal is left out: %s", error)
        return None


def definition_of(kind: object, name: object, text: object, version_row: Any, replaced_row: Any) -> Definition:
    """The definition with these fields of a record or of a peer's response. Raises ValueError or TypeError."""
    version = version_of(version_row)
    if version is None or type(kind) is not str or type(name) is not str or not isinstance(text, str | None):
        raise ValueError("a definition has a kind, a name, a value and a version")
    if len(kind.encode()) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"a kind or name of more than {NAME_BYTES_MAX} bytes")
    if text is not None:
        parsed(text)
    return Definition(Key(kind, name), version, text, version_of(replaced_row))


def packed_record(change: Definition, timestamp_us: int) -> bytes:
    """The record that `change` came as, packed."""
    return pack_record(
        change.version.sequence, timestamp_us, RecordKind.DEFINITION, 0, ENVELOPE, pack_definition(change)
    )


def version_fields(version: Version | None) -> list[Any] | None:
    """For msgpack and JSON."""
    if version is None:
        return None
    time_us, counter, origin, sequence, clock_us = version
    return [time_us, counter, origin.node, origin.incarnation, sequence, *((clock_us,) if clock_us else ())]


def version_of(fields: Any) -> Version | None:
    """The inverse of `version_fields`. Raises ValueError or TypeError for anything else."""
    if fields is None:
        return None
    time_us, counter, node, incarnation, sequence, *more = fields
    (clock_us,) = more or (0,)
    if (
        type(node) is not str
        or not (type(time_us) is type(counter) is type(sequence) is type(incarnation) is type(clock_us) is int)
        # An incarnation has 64 bits.
        or not (0 <= time_us <= NUMBER_MAX and 0 <= counter <= NUMBER_MAX and 0 <= clock_us <= NUMBER_MAX)
        or not (0 <= sequence <= NUMBER_MAX and 0 <= incarnation >> 1 <= NUMBER_MAX)
    ):
        raise ValueError("not a version")
    return Version(time_us, counter, Origin(node, incarnation), sequence, clock_us)
