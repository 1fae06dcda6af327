"""Ranges that a node has noted as lost: its GONE records (`storage.format.lost_record`).

No mark in a batch's head shows them. An index shows that some are in its segment, but not where; without one, their
first bytes are searched for, which costs a read of the file and finds a few batches too many.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from qmq.errors import CorruptLog
from qmq.spark.reading.segments import SegmentFile, SegmentListing
from qmq.storage.format.batch import BatchHead, read_head, unpack_records, verify_batch
from qmq.storage.format.lost_record import LostRange, unpack_lost
from qmq.storage.format.record import RecordKind

_BEGINS: Final = bytes([0xCF, RecordKind.GONE])
"""How every record writes its kind: the mark of a msgpack integer, and its highest byte."""


def losses_in(segment: SegmentFile, listing: SegmentListing) -> Iterator[LostRange]:
    """The lost ranges that a segment's node has noted in it; damaged batches are skipped.

    Raises FileNotFoundError when the node has dropped it meanwhile.
    """
    index = listing.footer
    if index is not None and not any(
        kind == RecordKind.GONE and origin.node == segment.node for origin, kind in index.kinds
    ):
        return
    data = segment.path.read_bytes()
    if _BEGINS not in data:
        return
    for entry in listing.entries:
        if entry.origin.node == segment.node:
            with suppress(CorruptLog):  # reported by the reader of that batch
                head = read_head(data, entry.offset)
                if head is not None:
                    batch = data[entry.offset : entry.offset + head.size]
                    yield from losses_of(verify_batch(batch), batch)


def losses_of(head: BatchHead, batch: bytes) -> Iterator[LostRange]:
    """The same of one batch that was verified. Raises CorruptLog when a record is none."""
    if _BEGINS in batch:
        for record in unpack_records(head, batch):
            if record[2] >> 56 == RecordKind.GONE:
                yield unpack_lost(record[5])
