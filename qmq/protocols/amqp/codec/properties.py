"""The properties of a message: the bytes of a content header behind its size ↔ an object of pamqp.

Every length in them is checked here first. pamqp cuts a text that is longer than its table, and another client that got
these bytes might not. So what was published is either whole, or refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pamqp import commands, decode, encode, exceptions

from qmq.protocols.amqp.codec.methods import BAD
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode

Properties = commands.Basic.Properties

NO_PROPERTIES: Final = b"\x00\x00"
"""No flag is set."""

DEPTH_MAX: Final = 20
"""Of tables and arrays inside each other, as for definitions."""

SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    b"D"[0]: 5,
    **dict.fromkeys(b"lLdT", 8),
    **dict.fromkeys(b"V\x00", 0),
}
"""Type of a value → its bytes, where these are fixed."""

TEXTS: Final = frozenset(b"Sx")
TABLE: Final = b"F"[0]
ARRAY: Final = b"A"[0]

KINDS: Final[tuple[str, ...]] = tuple(str(getattr(Properties, f"_{name}")) for name in Properties.__slots__)
FIXED: Final[Mapping[str, int]] = {"octet": 1, "timestamp": 8}

TIMESTAMP_FLAG: Final = 0x8000 >> KINDS.index("timestamp")
MILLISECONDS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999. pamqp takes a large timestamp for milliseconds; some programs send ticks of 100 ns."""


def read_properties(block: bytes) -> Properties:
    """The properties, without a timestamp that no calendar has. Raises AmqpRefusal, SYNTAX_ERROR."""
    properties = Properties()
    if block == NO_PROPERTIES:
        return properties
    try:
        flags, time_at = _checked_flags(block)
        values = block[2:]
        if time_at and int.from_bytes(block[time_at : time_at + 8], "big") > MILLISECONDS_MAX:
            flags &= ~TIMESTAMP_FLAG
            values = block[2:time_at] + block[time_at + 8 :]
        properties.unmarshal(flags, values)
    except (*BAD, exceptions.PAMQPException) as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, f"the properties of a message cannot be read: {problem}") from problem
    return properties


def write_properties(properties: Properties) -> bytes:
    """The flags and the values. Raises AmqpRefusal for a value that cannot be written."""
    try:
        return properties.marshal()
    except (*BAD, exceptions.PAMQPException) as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, "the properties of a message cannot be written") from problem


def counted_rows(name: str, rows: Sequence[dict[str, Any]]) -> bytes:
    """A field of a table, as bytes: an array of tables. `count` of each is a number of 64 bits, as clients of RabbitMQ
    cast it; pamqp writes as few bytes as a number needs."""
    tables = b""
    for row in rows:
        others = encode.field_table({key: value for key, value in row.items() if key != "count"})[4:]
        table = b"\x05countl" + int(row["count"]).to_bytes(8, "big") + others
        tables += b"F" + len(table).to_bytes(4, "big") + table
    return encode.short_string(name) + b"A" + len(tables).to_bytes(4, "big") + tables


def with_field(block: bytes, field: bytes) -> bytes:
    """The properties with one more `field` in their table of headers, which is there; b"": none."""
    at = _table_at(block)
    if not field or not at:
        return block
    end = at + 4 + int.from_bytes(block[at : at + 4], "big")
    return block[:at] + (end - at - 4 + len(field)).to_bytes(4, "big") + block[at + 4 : end] + field + block[end:]


def _table_at(block: bytes) -> int:
    """Where the table of headers begins; 0: there is none."""
    flags = block[0] << 8 | block[1]
    at = 2
    for number, kind in enumerate(KINDS):
        if flags & 0x8000 >> number:
            if kind == "table":
                return at
            at += FIXED[kind] if kind in FIXED else 1 + block[at]
    return 0


def without_header(block: bytes, name: str) -> bytes:
    """The properties without the header `name` of their table; all other bytes stay. `read_properties` took them."""
    at = _table_at(block)
    if not at:
        return block
    table = _table_without(block, at, name.encode())
    return block[:at] + len(table).to_bytes(4, "big") + table + block[_end_of_table(block, at, len(block), 0) :]


def _table_without(data: bytes, at: int, name: bytes) -> bytes:
    """The entries of the table at `at`, but for those of this name."""
    stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
    at += 4
    kept = []
    while at < stop:
        begin, value_at = at, at + 1 + data[at]
        kind = data[value_at]
        at = value_at + 1
        if kind in TEXTS or kind == TABLE or kind == ARRAY:
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        else:
            at += SIZES[kind]
        if data[begin + 1 : value_at] != name:
            kept.append(data[begin:at])
    return b"".join(kept)


def read_table(data: bytes) -> dict[str, Any]:
    """A field table, with its length before it. Raises AmqpRefusal, SYNTAX_ERROR."""
    try:
        if _end_of_table(data, 0, len(data), 0) != len(data):
            raise ValueError("bytes are left")
        return dict(decode.field_table(data)[1])
    except (*BAD, exceptions.PAMQPException) as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, f"a table cannot be read: {problem}") from problem


def _checked_flags(block: bytes) -> tuple[int, int]:
    """The flags of properties that are whole, and where their timestamp is; 0: none. Raises ValueError, IndexError."""
    flags = block[0] << 8 | block[1]
    if flags & 3:
        raise ValueError("they are those of no message")
    at = 2
    time_at = 0
    for number, kind in enumerate(KINDS):
        if flags & 0x8000 >> number:
            if kind == "table":
                at = _end_of_table(block, at, len(block), 0)
            else:
                time_at = at if kind == "timestamp" else time_at
                at += FIXED[kind] if kind in FIXED else 1 + block[at]
    if at != len(block):
        raise ValueError("they do not end where they should")
    return flags, time_at


def _end_of_table(data: bytes, at: int, end: int, depth: int, is_array: bool = False) -> int:
    """Where the table or array ends that begins at `at`. Raises ValueError if it is not whole."""
    if depth > DEPTH_MAX:
        raise ValueError(f"tables and arrays are at most {DEPTH_MAX} deep")
    begin = at + 4
    stop = begin + int.from_bytes(data[at:begin], "big")
    if begin > end or stop > end:
        raise ValueError("a table is longer than what it is in")
    at = begin
    while at < stop:
        if not is_array:
            at += 1 + data[at]
        if at >= stop:
            raise ValueError("a name has no value")
        kind = data[at]
        at += 1
        if kind in TEXTS:
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        elif kind == TABLE or kind == ARRAY:
            at = _end_of_table(data, at, stop, depth + 1, kind == ARRAY)
        elif kind in SIZES:
            at += SIZES[kind]
        else:
            raise ValueError(f"a value has the unknown type {kind}")
    if at != stop:
        raise ValueError("a value is longer than its table")
    return stop
