"""Whether bytes are values of a type in Avro's binary encoding (Avro 1.11, "Binary Encoding").

A `Check` takes the bytes and the position of a value, and returns the position behind it. It builds no values, so it
needs no memory, and it is strict: what only some readers accept is refused. `schema` puts checks together.

Surprising: a check that reads beyond the end raises IndexError, and one of text UnicodeDecodeError. The caller turns
both into words.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

Check = Callable[[bytes, int], int]

BITS: Final = 64
LONG_BYTES_MAX: Final = 10
INT_MAX: Final = 2**31 - 1


class ValueBudget:
    """How many values the datum may still have. One object for all checks of a schema; set again for each datum."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def take(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            raise ValueError("it has too many values")


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the position behind it."""
    end = check_long(data, at)
    found = shift = 0
    for byte in data[at:end]:
        found |= (byte & 0x7F) << shift
        shift += 7
    return found >> 1 ^ -(found & 1), end


def check_long(data: bytes, at: int) -> int:
    end = at
    last = at + LONG_BYTES_MAX - 1
    while data[end] >= 0x80 and end < last:
        end += 1
    if end == last and data[end] > 1:
        raise ValueError(f"the number at byte {at} has more than {BITS} bits")
    return end + 1


def check_int(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    number, end = read_long(data, at)
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise ValueError(f"the int at byte {at} has more than 32 bits")
    return end


def check_boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise ValueError(f"the boolean at byte {at} is neither 0 nor 1")
    return at + 1


def check_null(data: bytes, at: int) -> int:
    return at


def check_bytes(data: bytes, at: int) -> int:
    return _span(data, at)[1]


def check_string(data: bytes, at: int) -> int:
    start, end = _span(data, at)
    data[start:end].decode()
    return end


def fixed(size: int) -> Check:
    return lambda data, at: _end(data, at, size)


PRIMITIVES: Final[Mapping[str, Check]] = {
    "null": check_null,
    "boolean": check_boolean,
    "int": check_int,
    "long": check_long,
    "float": fixed(4),
    "double": fixed(8),
    "bytes": check_bytes,
    "string": check_string,
}


def enum(symbols: int) -> Check:
    def check(data: bytes, at: int) -> int:
        index, end = read_long(data, at)
        if not 0 <= index < symbols:
            raise ValueError(f"the enum at byte {at} has no symbol {index}")
        return end

    return check


def union(branches: Sequence[Check]) -> Check:
    count = len(branches)

    def check(data: bytes, at: int) -> int:
        index, start = read_long(data, at)
        if not 0 <= index < count:
            raise ValueError(f"the union at byte {at} has no branch {index}")
        return branches[index](data, start)

    return check


def record(fields: Sequence[Check]) -> Check:
    def check(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return check


def blocks(item: Check, values: int, budget: ValueBudget) -> Check:
    """An array, or a map; `values`: of one item, without those of arrays in it."""

    def check(data: bytes, at: int) -> int:
        while True:
            start = at
            count, at = read_long(data, at)
            if not count:
                return at
            end = 0
            is_sized = count < 0
            if is_sized:
                size, at = read_long(data, at)
                count, end = -count, at + size
            budget.take(count * values)
            for _ in range(count):
                at = item(data, at)
            if is_sized and at != end:
                raise ValueError(f"the block at byte {start} has another size than it says")

    return check


def _span(data: bytes, at: int) -> tuple[int, int]:
    """Where bytes with their length before them begin and end."""
    size, start = read_long(data, at)
    if size < 0:
        raise ValueError(f"the length at byte {at} is negative")
    return start, _end(data, start, size)


def _end(data: bytes, start: int, size: int) -> int:
    end = start + size
    if end > len(data):
        raise IndexError(end)
    return end
