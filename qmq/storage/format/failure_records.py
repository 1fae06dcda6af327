"""Bodies of the two records about messages that fail: ATTEMPTS and DEAD.

ATTEMPTS says how often messages have come back. Counts are absolute and only grow, so the record may be read twice,
late or in another order; one that comes before its message, from another origin, is forgotten.

DEAD is a PUBLISH and a SETTLE in one: the record accepts a dead letter for its destination, with its headers, and its
body names the message that is settled by it. A node that has the record has both, however the log is cut.
"""

from collections.abc import Iterable

import msgpack

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.format.record import INCARNATION_MAX, number_of, text_of

ATTEMPTS_MAX = (1 << 31) - 1
"""What every queue store can hold. A message that failed more often stays at it."""


def pack_attempts(counts: Iterable[tuple[Dot, int]]) -> bytes:
    """`[[node, incarnation, [sequence, count, …]], …]`."""
    grouped: dict[Origin, list[int]] = {}
    for (origin, sequence), count in counts:
        grouped.setdefault(origin, []).extend((sequence, min(count, ATTEMPTS_MAX)))
    packed: bytes = msgpack.packb([[origin.node, origin.incarnation, found] for origin, found in grouped.items()])
    return packed


def unpack_attempts(body: bytes) -> dict[Dot, int]:
    """The inverse of `pack_attempts`. Raises CorruptLog for anything else."""
    counts: dict[Dot, int] = {}
    try:
        for node, incarnation, values in msgpack.unpackb(body):
            origin = Origin(text_of(node), number_of(incarnation, INCARNATION_MAX))
            for sequence, count in zip(values[::2], values[1::2], strict=True):
                counts[Dot(origin, number_of(sequence))] = number_of(count, ATTEMPTS_MAX)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a list of attempts: {error}") from error
    return counts


def pack_dead(queue: str, dot: Dot, body: bytes) -> bytes:
    """`[queue, node, incarnation, sequence, body]`: the message `dot` of `queue` is settled; `body` is the dead
    letter's."""
    packed: bytes = msgpack.packb([queue, dot.origin.node, dot.origin.incarnation, dot.sequence, body])
    return packed


def unpack_dead(body: bytes) -> tuple[str, Dot, bytes]:
    """The inverse of `pack_dead`. Raises CorruptLog for anything else."""
    try:
        queue, node, incarnation, sequence, dead_letter = msgpack.unpackb(body)
        dot = Dot(Origin(text_of(node), number_of(incarnation, INCARNATION_MAX)), number_of(sequence))
        if type(dead_letter) is not bytes:
            raise ValueError("a dead letter's body is bytes")
        return text_of(queue), dot, dead_letter
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a dead letter: {error}") from error
