"""Where a journal holds only a range snapshot (`batch.REST`): some records of that range are missing for good.

Range snapshots are rare, and only readers that begin at the start of a journal ask for them. So those written since the
start of the process are noted at once. Earlier ones are searched for in the segment indexes at the first call.

Surprising: only the end of the last range of each origin is kept. A reader that needs an origin without holes begins
after it, and what retention drops before it need not be removed here.
"""

import threading
from collections.abc import Callable

from qmq.errors import LogBroken
from qmq.model.dots import Vector, merge
from qmq.storage.format.batch import BatchHead
from qmq.storage.log.chain import Chain, Segment


class CompactedRanges:
    """Of one journal; created before anything is appended. Any thread may call any method."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        # A position and no list of segments: that would keep the files of dropped ones open, and their space taken.
        self._unseen_end = chain.end
        """What lies before it was not looked at yet."""
        self._looking = threading.Lock()
        self._state = threading.Lock()
        self._last: Vector = {}

    def note(self, head: BatchHead) -> None:
        """Note that a range snapshot was appended."""
        if _is_incomplete(head.first, head.last, head.count):
            self._add({head.origin: head.last})

    def forget(self, without: Callable[[Vector], Vector]) -> None:
        """`without` takes origins out of a vector of which nothing is here any more."""
        with self._state:
            self._last = without(self._last)

    def last(self) -> Vector:
        """Per origin the last sequence of its last range snapshot; origins without one are absent.

        The first call reads the index of every segment that was there at the start, and blocks as long as the disk
        takes. Raises LogBroken.
        """
        with self._looking:
            for segment in self._chain.segments:
                if segment.base < self._unseen_end:
                    self._check(segment)
            self._unseen_end = 0
        with self._state:
            return dict(self._last)

    def _check(self, segment: Segment) -> None:
        try:
            entries = self._chain.index_of(segment)
        except OSError as error:
            raise LogBroken(f"cannot read the journal: {error}") from error
        for entry in entries:
            if _is_incomplete(entry.first, entry.last, entry.records):
                self._add({entry.origin: entry.last})

    def _add(self, found: Vector) -> None:
        with self._state:
            merge(self._last, found)


def _is_incomplete(first: int, last: int, records: int) -> bool:
    """Whether a batch of a journal has fewer records than sequences."""
    return records <= last - first
