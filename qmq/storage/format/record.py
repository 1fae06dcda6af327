"""One record: what is written for one decision, as bytes and back.

A record is an ordinary msgpack array of six: sequence, timestamp, kind-and-flags, destination, header block, body.
The first three are always written in msgpack's widest form (9 bytes each), so a reader of columns finds them at fixed
offsets without parsing; any msgpack reader can read the rest. Headers stay the sender's bytes: nothing here knows
STOMP. Records live in batches (`batch`), which carry the checksum and the origin.

Surprising: the destination and header block (the **envelope**) are packed apart from the rest, because a publisher
repeats them; the caller keeps the packed envelope and hands it in again. A body that several records of a batch have
is written once; in place of the others there is a reference (`shared_bodies`).
"""

import struct
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.model.levels import EXACT_LEVEL, exact_number

_ARRAY_OF_SIX = 0x96
_UINT64 = 0xCF
_PREFIX = struct.Struct(">BBQBQBQ")
"""Array mark, then three unsigned 64-bit integers, each with its own mark."""

PREFIX_BYTES = _PREFIX.size
"""Where the destination begins in every record."""

KIND_OFFSET = 20
"""Where every record has its kind, in one byte."""

FLAGS_MAX = (1 << 24) - 1
INCARNATION_MAX = (1 << 64) - 1
TIMED = 1 << 19
"""Flag: the header block holds a due time or an expiry. The writer of the record knows; storage asks only then."""
EXACT = 1 << 18
"""Flag: the header block holds an exact number (`qmq.model.levels`)."""
REFERENCE_BYTES = 5
"""What a record has in place of a body when it refers to another one: a 32-bit integer with its mark."""
PRIORITY_DEFAULT = 4
_PRIORITY_SHIFT = 20
"""The highest four of the 24 flag bits hold the priority plus one; 0 there means the default."""

_SHORT_BODY = [b"\xc4" + bytes([length]) for length in range(256)]
_pack_head = _PREFIX.pack
_pack_middle = struct.Struct(">BQBQ").pack


class RecordKind(IntEnum):
    """What a record says. Kinds that are not listed are kept and passed on byte for byte, and otherwise ignored."""

    PUBLISH = 1
    """A message was accepted for `destination`."""
    SETTLE = 2
    """Messages of the queue `destination` are done; body: `pack_dots`."""
    START = 3
    """The first record of every incarnation; body: `pack_start`."""
    GAP = 4
    """Retention gave up records of an origin; they will not come; body: `pack_gap`."""
    CURSOR = 5
    """A durable subscription of the fanout `destination` began, moved or was deleted; body: `cursor_record`."""
    TERM = 6
    """A node serves the queue messages of another, or its own again, from this term on; body: `term_record`."""
    VOTE = 7
    """The node that wrote it has voted in a term, and votes for no other node in it; body: `term_record`."""
    SEAL = 8
    """Dead incarnations end here, or the writer stores nothing of them; body: `incarnations.pack_seals`."""
    DEAD = 10
    """A dead letter was accepted for `destination`, and its original message is settled; body: `failure_records`."""
    ATTEMPTS = 11
    """How often messages of the queue `destination` have failed; body: `failure_records`."""
    GONE = 12
    """A range of an origin is lost: no member has it, and readers of fanouts get a gap notice; body: `lost_record`."""
    DELETE = 13
    """The fanout `destination` is deleted, up to a vector; body: `delete_record`."""
    DEFINITION = 14
    """A definition of the mesh was changed or deleted; body: `definition_record`."""
    FORGOTTEN = 15
    """The dedup ids of messages that an operator removed are forgotten; body: `forgotten_record`."""


class Record:
    """One record, decoded. `kind` is a plain int, for it may be newer than this code."""

    __slots__ = ("sequence", "timestamp_us", "kind", "flags", "destination", "headers", "body")

    def __init__(
        self, sequence: int, timestamp_us: int, kind: int, flags: int, destination: str, headers: bytes, body: bytes
    ) -> None:
        self.sequence = sequence
        self.timestamp_us = timestamp_us
        self.kind = kind
        self.flags = flags
        self.destination = destination
        self.headers = headers
        self.body = body

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.sequence == other.sequence
            and self.timestamp_us == other.timestamp_us
            and self.kind == other.kind
            and self.flags == other.flags
            and self.destination == other.destination
            and self.headers == other.headers
            and self.body == other.body
        )

    def __hash__(self) -> int:
        return hash((self.sequence, self.timestamp_us, self.destination))

    def __repr__(self) -> str:
        return f"Record({self.sequence}, kind={self.kind}, {self.destination!r}, body={self.body[:32]!r})"


def _pack_bytes_length(length: int) -> bytes:
    """The mark msgpack puts before that many bytes."""
    if length < 256:
        return _SHORT_BODY[length]
    if length < 65536:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")


def pack_envelope(destination: str, headers: bytes) -> bytes:
    """The middle two elements of a record; the same for every message with these headers, so worth keeping."""
    packed: bytes = msgpack.packb(destination)
    return packed + _pack_bytes_length(len(headers)) + headers


def pack_record(sequence: int, timestamp_us: int, kind: int, flags: int, envelope: bytes, body: bytes) -> bytes:
    """One record's bytes. `timestamp_us` is wall clock µs of acceptance; `flags` at most `FLAGS_MAX`."""
    length = len(body)
    return b"".join(
        (
            _pack_head(_ARRAY_OF_SIX, _UINT64, sequence, _UINT64, timestamp_us, _UINT64, kind << 56 | flags << 32),
            envelope,
            _SHORT_BODY[length] if length < 256 else _pack_bytes_length(length),
            body,
        )
    )


def pack_middle(timestamp_us: int, kind: int, flags: int, envelope: bytes, body_bytes: int) -> bytes:
    """What stands between sequence and body: the same in all records that are alike in these (`pack_alike`)."""
    return (
        _pack_middle(_UINT64, timestamp_us, _UINT64, kind << 56 | flags << 32)
        + envelope
        + _pack_bytes_length(body_bytes)
    )


def pack_alike(sequence: int, middle: bytes, body: bytes) -> bytes:
    """As `pack_record`, in a third of its time, with the `pack_middle` of a body of this length."""
    return b"\x96\xcf%b%b%b" % (sequence.to_bytes(8, "big"), middle, body)


def pack_reference(sequence: int, timestamp_us: int, flags: int, envelope: bytes, back: int) -> bytes:
    """A PUBLISH whose body is that of the record `back` places before it in its batch."""
    what = RecordKind.PUBLISH << 56 | flags << 32
    head = _pack_head(_ARRAY_OF_SIX, _UINT64, sequence, _UINT64, timestamp_us, _UINT64, what)
    return head + envelope + b"\xce" + back.to_bytes(4, "big")


SCANT_BYTES = 64 << 10
"""What is no longer is unpacked without counting: it cannot grow beyond some MiB."""


def unpack(data: bytes | memoryview, elements_max: int, *, use_list: bool = True) -> Any:
    """What msgpack finds in `data` when all its arrays and maps together have at most so many elements.

    Raises ValueError beyond that, before more of it is in memory: 15 MiB of empty arrays would be a gigabyte.
    """
    if len(data) <= SCANT_BYTES:
        return msgpack.unpackb(data, use_list=use_list)
    left = elements_max

    def count(found: Collection[object]) -> object:
        nonlocal left
        left -= len(found)
        if left < 0:
            raise ValueError(f"over {elements_max} elements")
        return found

    return msgpack.unpackb(
        data,
        use_list=use_list,
        list_hook=count,
        object_hook=count,
        max_array_len=elements_max,
        max_map_len=elements_max,
    )


def number_of(value: object, most: int = (1 << 63) - 1) -> int:
    """`value`, out of a record, if it is a number from 0 to `most`. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a number up to {most} was expected")
    return value


def text_of(value: object) -> str:
    """`value`, out of a record, if it is text. Raises ValueError."""
    if type(value) is not str:
        raise ValueError("text was expected")
    return value


def unpack_record(data: bytes | memoryview, shared: bytes | None = None) -> Record:
    """Decode exactly one record. Raises CorruptLog when `data` is anything else.

    `shared`: the body that the record refers to, if it has none of its own.
    """
    try:
        sequence, timestamp_us, what, destination, headers, body = unpack(data, 6, use_list=False)
        if shared is not None:
            body = shared
        return Record(sequence, timestamp_us, what >> 56, what >> 32 & FLAGS_MAX, destination, headers, body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a record: {error}") from error


def with_priority(flags: int, priority: int) -> int:
    """`flags` with the priority (0–9) written into it; the queue store loads higher ones first."""
    return flags & ~(0xF << _PRIORITY_SHIFT) | (priority + 1) << _PRIORITY_SHIFT


def priority_of(flags: int) -> int:
    """The priority that `with_priority` wrote, or the default."""
    marked = flags >> _PRIORITY_SHIFT
    return marked - 1 if marked else PRIORITY_DEFAULT


def level_of(flags: int, headers: bytes) -> tuple[int, int]:
    """The level of a message, and its exact number or 0 (`qmq.model.levels`)."""
    priority = priority_of(flags)
    exact = exact_number(headers, priority) if flags & EXACT else 0
    return (priority + EXACT_LEVEL if exact else priority), exact


def pack_dots(dots: Iterable[Dot]) -> bytes:
    """Body of a SETTLE: dots grouped by origin, origins and sequences in the order they came."""
    grouped: dict[Origin, list[int]] = {}
    known: Origin | None = None
    sequences: list[int] = []
    for origin, sequence in dots:
        if origin is not known:
            known = origin
            sequences = grouped.setdefault(origin, [])
        sequences.append(sequence)
    packed: bytes = msgpack.packb([[origin.node, origin.incarnation, found] for origin, found in grouped.items()])
    return packed


def unpack_dots(body: bytes) -> list[Dot]:
    """The inverse of `pack_dots`. Raises CorruptLog for anything else."""
    return [Dot(origin, sequence) for origin, sequences in unpack_by_origin(body) for sequence in sequences]


def unpack_by_origin(body: bytes) -> list[tuple[Origin, list[int]]]:
    """The same as sequences by origin, for callers that need no objects. Raises CorruptLog for anything else."""
    try:
        found = [(Origin(node, incarnation), sequences) for node, incarnation, sequences in msgpack.unpackb(body)]
        if not all([isinstance(sequences, list) for _, sequences in found]):
            raise TypeError("sequences that are no list")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a list of dots: {error}") from error
    return found


def pack_gap(origin: Origin, through: int) -> bytes:
    """Body of a GAP: records of `origin` up to and including `through` will not come."""
    packed: bytes = msgpack.packb([origin.node, origin.incarnation, through])
    return packed


def unpack_gap(body: bytes) -> tuple[Origin, int]:
    """The inverse of `pack_gap`. Raises CorruptLog for anything else."""
    try:
        node, incarnation, through = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a gap: {error}") from error
    return Origin(node, incarnation), int(through)


def pack_start(*, format_version: int, software: str, uuid: str) -> bytes:
    """Body of a START: which software wrote what follows. A map, so that later versions can add to it."""
    packed: bytes = msgpack.packb({"format": format_version, "software": software, "uuid": uuid})
    return packed


class FanoutEntry(NamedTuple):
    """One record on its way into a fanout log, already packed."""

    origin: Origin
    sequence: int
    timestamp_us: int
    packed: bytes
