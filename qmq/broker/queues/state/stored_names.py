"""Counts the queues that are only in the queue store, with a few bytes for each possible queue: a counting Bloom
filter.

The bound on destinations counts queues in memory and in the store. A queue that is in the store already must not count
as a new one. Only its name can show that, and a million names would take too much memory. So hashes of the names are
counted in a table of fixed size. The table may take a new name for a known one (about one in a hundred if as many
queues are stored as the bound allows). Then one more queue is admitted. It never takes a known name for a new one.

The table is updated when queues leave memory for the store and come back. It misses queues that end while they are only
in the store, because their messages expire or another node settles them. These are corrected when the store is counted
again (`qmq.engine.checkpoint.queue_count`).
"""

from typing import Final

PLACES_PER_NAME: Final = 10
"""Bytes of the table for each name that there may be."""

PLACES_MAX: Final = 16 << 20

HASHES: Final = 4
COUNTED_MAX: Final = 255
"""A place that was reached so often stays."""


class StoredNames:
    """`names_max`: how many it is made for; with more it errs more often."""

    def __init__(self, names_max: int) -> None:
        self.count = 0
        """How many names are in it."""
        self._places = bytearray(max(64, min(PLACES_PER_NAME * names_max, PLACES_MAX)))

    def __contains__(self, name: str) -> bool:
        places = self._places
        return all([places[index] for index in self._indices(name)])

    def add(self, name: str) -> None:
        """A queue is in the store and not in memory any more. Not for one that is here already."""
        places = self._places
        for index in self._indices(name):
            if places[index] < COUNTED_MAX:
                places[index] += 1
        self.count += 1

    def discard(self, name: str) -> None:
        """A queue is in memory; nothing, if it was never here."""
        places = self._places
        indices = self._indices(name)
        if not all([places[index] for index in indices]):
            return
        for index in indices:
            if places[index] < COUNTED_MAX:
                places[index] -= 1
        self.count = max(0, self.count - 1)

    def _indices(self, name: str) -> list[int]:
        """Its places; two may be the same one."""
        number = hash(name) & 0xFFFF_FFFF_FFFF_FFFF
        first, step = number & 0xFFFF_FFFF, (number >> 32) | 1
        size = len(self._places)
        return [(first + turn * step) % size for turn in range(HASHES)]
