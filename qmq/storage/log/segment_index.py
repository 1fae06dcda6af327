"""Builds segment indexes from what a checkpoint reads, so that sealing need not read and decode the segment again.

A checkpoint reads the journal once, in order, and decodes every record. If it skips some, begins in the middle of a
segment, or the index would be too large for memory, there is no index here. Such a segment is read again when it is
sealed (`Chain.seal`). An index is too large if batches are small and many, or if a range snapshot has a range for each
record.

Only the checkpoint's thread uses it.
"""

from typing import Final

from qmq.storage.format.batch import SPARSE, BatchHead, Unpacked
from qmq.storage.format.segment import Footer, IndexBuilder
from qmq.storage.log.chain import Segment

BATCHES_MAX: Final = 5_000
"""Of one segment, some 270 bytes each. Where there are more they are so small that other things cost more."""
SEGMENTS_MAX: Final = 4
"""That wait to be sealed; it happens at the end of the checkpoint that has read them."""


class SegmentIndexer:
    """`note` batches as they are read; `index_of` a segment of which all were."""

    def __init__(self) -> None:
        # Base of a segment → what of it was noted, without a hole from its beginning, and the position after that.
        self._noted: dict[int, tuple[IndexBuilder, int]] = {}

    def note(self, segment: Segment, position: int, head: BatchHead, records: list[Unpacked]) -> None:
        """A whole batch of `segment` at `position`. Those that come again (a slice that was too large) are known."""
        base = segment.base
        if position == segment.first and base not in self._noted:
            while len(self._noted) >= SEGMENTS_MAX:
                del self._noted[min(self._noted)]
            self._noted[base] = (IndexBuilder(), position)
        known = self._noted.get(base)
        if known is not None and known[1] == position:
            if len(known[0].batches) < BATCHES_MAX and not head.attributes & SPARSE:
                known[0].add(position - base, head, records)
                self._noted[base] = (known[0], position + head.size)
            else:
                del self._noted[base]

    def index_of(self, segment: Segment) -> Footer | None:
        """The index of a full segment, if all of it was noted. It is removed: the caller seals the segment."""
        index, end = self._noted.pop(segment.base, (None, 0))
        return index.footer(end - segment.base) if index is not None and end == segment.end else None
