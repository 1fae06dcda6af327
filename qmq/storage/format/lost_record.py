"""GONE records: a range of one origin is lost; no member has it, neither in its stores nor in quarantine.

A GAP names a range that its node has given up and knows nothing about. A GONE names a range that no member has: the
journal of its node holds a range snapshot instead (`batch.REST`), and readers of fanouts get a gap notice. It counts
for the node that wrote it. Readers can come long after the record has left the journal, so the catalog keeps it
(`facts`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgpack

from qmq.errors import CorruptLog
from qmq.model.dots import Origin, parse_origin
from qmq.model.lost_ranges import LostRanges
from qmq.storage.format.record import INCARNATION_MAX, number_of, text_of

GONE: Final = "gone/"


class LostRange(NamedTuple):
    """Records `first` to `last` of `origin`."""

    origin: Origin
    first: int
    last: int


def pack_lost(span: LostRange) -> bytes:
    """Body of a GONE: `[node, incarnation, first, last]`."""
    packed: bytes = msgpack.packb([*span.origin, span.first, span.last])
    return packed


def unpack_lost(body: bytes) -> LostRange:
    """The inverse of `pack_lost`; what a later version adds is ignored. Raises CorruptLog for anything else."""
    try:
        node, incarnation, first, last, *_ = msgpack.unpackb(body)
        origin = Origin(text_of(node), number_of(incarnation, INCARNATION_MAX))
        return LostRange(origin, number_of(first), number_of(last))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a range of records: {error}") from error


def lost_of(facts: Mapping[str, str]) -> LostRanges:
    """What the catalog remembers."""
    return LostRanges(
        {
            parse_origin(name.removeprefix(GONE)): json.loads(text)
            for name, text in facts.items()
            if name.startswith(GONE)
        }
    )


def lost_facts(lost: LostRanges, origins: Iterable[Origin]) -> dict[str, str | None]:
    """How what is gone of these is remembered; None: not any more."""
    return {f"{GONE}{origin}": json.dumps(lost.ends[origin]) if origin in lost.ends else None for origin in origins}
