"""Bodies that several messages of one batch share: a message that is bound to ten queues has its body once in a batch.

The first of these PUBLISH records has the body. In each of the others a reference stands in place of the body: a
msgpack integer k, always in five bytes, for the body of the record k places before. A reference leads to a PUBLISH
with a body, never to another reference. So each is resolved in one step, and a run of references needs no order.

Pure. This module finds references and refuses wrong ones. `batch` resolves them, so no code above it sees one.

Surprising: a batch is refused if it is over `bytes_max` with all bodies in their places. Bodies that `batch` decodes
are shared objects and cost nothing, but packed records are copies. A batch of 48 MiB could ask for terabytes.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from qmq.errors import CorruptLog
from qmq.storage.format.record import KIND_OFFSET, PREFIX_BYTES, REFERENCE_BYTES, RecordKind

SHARED_BYTES_MIN: Final = 64
"""Shorter bodies are repeated: a reference would save little, and each costs a reader some time."""

REFERENCE_MARK: Final = 0xCE
_PREFIX_MARKS: Final = ((0, 0x96), (1, 0xCF), (10, 0xCF), (19, 0xCF))
_BINARY_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STRING_LENGTH_BYTES: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}


class Reference(NamedTuple):
    """A record without a body of its own. `place` and `source` count the records of the batch, from 0."""

    place: int
    source: int
    """The record that has the body."""
    body_offset: int
    """Where, in that record, the body begins with its mark. It is the last element of the record."""


def find_references(view: memoryview, start: int, lengths: Sequence[int], bytes_max: int) -> list[Reference]:
    """All references of a batch whose records have these lengths and begin at `start`.

    Trusts that the lengths add up. Raises CorruptLog when a reference leads to no body, or when the batch is over
    `bytes_max` with all bodies in their places.
    """
    found: list[Reference] = []
    bodies: dict[int, int] = {}
    starts: list[int] = []
    for place, length in enumerate(lengths):
        starts.append(start)
        end = start + length
        # Cheap first: where a reference stands, another record has any byte of its body.
        if length > PREFIX_BYTES + REFERENCE_BYTES and view[end - REFERENCE_BYTES] == REFERENCE_MARK:
            if view[start + KIND_OFFSET] == RecordKind.PUBLISH and _body_at(view, start, end) == end - REFERENCE_BYTES:
                back = int.from_bytes(view[end - REFERENCE_BYTES + 1 : end], "big")
                source = place - back
                if back < 1 or source < 0:
                    raise CorruptLog(f"record {place} of the batch refers to a body {back} places before it")
                if source not in bodies:
                    bodies[source] = _sound_body(view, starts[source], starts[source] + lengths[source], source)
                found.append(Reference(place, source, bodies[source]))
        start = end
    whole = start + sum([lengths[one.source] - one.body_offset - REFERENCE_BYTES for one in found])
    if whole > bytes_max:
        raise CorruptLog(f"a batch of {whole} bytes with all shared bodies in their places is over {bytes_max}")
    return found


def _sound_body(view: memoryview, start: int, end: int, place: int) -> int:
    """Where in the record its body begins, mark included. Raises CorruptLog if other records cannot share that."""
    if view[start + KIND_OFFSET] == RecordKind.PUBLISH:
        at = _body_at(view, start, end)
        length_bytes = _BINARY_LENGTH_BYTES.get(view[at], 0)
        begin = at + 1 + length_bytes
        if length_bytes and begin + int.from_bytes(view[at + 1 : begin], "big") == end:
            return at - start
    raise CorruptLog(f"record {place} of the batch is referred to, and is no message with a body")


def _body_at(view: memoryview, start: int, end: int) -> int:
    """Where the last element of a PUBLISH begins. Raises CorruptLog when the record is not built like one."""
    if end - start > PREFIX_BYTES and all([view[start + offset] == mark for offset, mark in _PREFIX_MARKS]):
        at = start + PREFIX_BYTES
        mark = view[at]
        at = at + 1 + (mark & 0x1F) if 0xA0 <= mark < 0xC0 else _after(view, at, end, _STRING_LENGTH_BYTES)
        if at < end:
            at = _after(view, at, end, _BINARY_LENGTH_BYTES)
            if at < end:
                return at
    raise CorruptLog("a message in a batch with shared bodies is not built as messages are")


def _after(view: memoryview, at: int, end: int, marks: dict[int, int]) -> int:
    """The end of the string or byte string at `at`; `end` when it is none."""
    begin = at + 1 + marks.get(view[at], 0)
    if begin == at + 1 or begin > end:
        return end
    return begin + int.from_bytes(view[at + 1 : begin], "big")
