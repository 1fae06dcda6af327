"""The checksum of a row of the queue store: one rule for every database.

CRC-32 as in the journal, over everything that is delivered or decided from: origin, sequence, queue, level, times,
flags, exact number if there is one, headers, body. What rows of one partition share is computed once for the partition
(`partition_checksum`), and stands in the partition's own row as well.

Surprising: deliveries that have failed are counted by the database, which cannot compute a CRC. So the upper half of a
checksum is that count once more; code that raises one raises both.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812  # it is an exception, and shall look like one
from typing import Final
from zlib import crc32

from qmq.model.dots import Origin
from qmq.storage.format.queue_store import QueueRow

COUNT_SHIFT: Final = 32
_MASK: Final = (1 << 64) - 1
_NUMBERS: Final = Struct(">QQIQQI").pack
_PARTITION: Final = Struct(">Qq?H").pack
_PLACE: Final = Struct(">QQ").pack
_EXACT: Final = Struct(">Q").pack


def partition_checksum(queue: str, rank: int, delayed: bool, origin: Origin) -> int:
    """Of what all rows of a partition share; never 0."""
    node = origin.node.encode()
    return crc32(node + queue.encode(), crc32(_PARTITION(origin.incarnation, rank, delayed, len(node)))) or 1


def checksum_of(partition: int, row: QueueRow) -> int:
    """Of a row of the partition whose own checksum is `partition`."""
    (_, sequence), _, timestamp_us, flags, _, due_us, expires_us, headers, body, attempts, exact = row
    # The length of the headers, for else a byte could change sides between them and the body.
    numbers = _NUMBERS(sequence, timestamp_us, flags, due_us, expires_us, len(headers))
    # Not `if exact`: in a damaged row it may be NULL.
    if exact != 0:
        numbers += _EXACT(exact)
    return (crc32(body, crc32(numbers + headers, partition)) or 1) | attempts << COUNT_SHIFT


def is_sound(partition: int, row: QueueRow, checksum: object) -> bool:
    """Whether `row` is what it was when its checksum was made. That may be anything, too, where a file is damaged."""
    try:
        return checksum == checksum_of(partition, row)
    except (TypeError, ValueError, StructError):
        return False  # There are values in it that no row has.


def is_in_place(partition: int, row: QueueRow, checksum: object) -> bool:
    """Whether a damaged row may be believed about its sequence: messages have such a number, and no change of a single
    bit of it makes the row sound. Otherwise the order is broken in which rows are found."""
    dot = row.dot
    flipped = (row._replace(dot=dot._replace(sequence=dot.sequence ^ 1 << bit)) for bit in range(64))
    return dot.sequence > 0 and not any(is_sound(partition, one, checksum) for one in flipped)


def number_checksum(number: int, of: str = "", incarnation: int = 0) -> int:
    """Of a number that stands alone: the position of a store, or the sequence of a tombstone of an origin."""
    return crc32(of.encode(), crc32(_PLACE(number & _MASK, incarnation))) or 1
