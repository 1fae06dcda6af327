"""Origins, dots and vectors: how the mesh names a record for ever.

Like `errors`, this module is open to every layer and imports none of them. An **origin** is a node plus the
incarnation it drew at one start; a **dot** is an origin plus a sequence; a **vector** says, per origin, the highest
sequence below which nothing is missing. Sequences start at 1 and have no holes, so a vector says exactly what a
node has (docs/replication.md).
"""

from typing import NamedTuple


class Origin(NamedTuple):
    """One run of one node: records of another run, even of the same node, never share a sequence with it."""

    node: str
    """1–32 characters out of a–z, 0–9 and `-`, as in the peers file."""
    incarnation: int
    """Random, 64 bits, drawn at every start and durable before the first record."""

    def __str__(self) -> str:
        # No colon: STOMP would escape it in every message-id.
        return f"{self.node}-{self.incarnation:016x}"


class Dot(NamedTuple):
    """Names one record for ever."""

    origin: Origin
    sequence: int

    def __str__(self) -> str:
        return f"{self.origin}-{self.sequence}"


Vector = dict[Origin, int]
"""Origin → highest contiguous sequence. An absent origin means 0: nothing of it is here."""


def parse_origin(text: str) -> Origin:
    """The inverse of `str(origin)`. Raises ValueError for anything else."""
    node, _, incarnation = text.rpartition("-")
    if not node or len(incarnation) != 16:
        raise ValueError(f"not an origin: {text!r}")
    return Origin(node, int(incarnation, 16))


def covers(have: Vector, wanted: Vector) -> bool:
    """Whether everything that `wanted` names is in `have`."""
    return all(have.get(origin, 0) >= sequence for origin, sequence in wanted.items())


def merge(into: Vector, other: Vector) -> None:
    """Raise every entry of `into` to at least what `other` says (pointwise maximum).

    Sound only for vectors that describe the same collection of records, such as two reports of one peer; it must
    never be used to claim records that were not received.
    """
    for origin, sequence in other.items():
        if sequence > into.get(origin, 0):
            into[origin] = sequence
