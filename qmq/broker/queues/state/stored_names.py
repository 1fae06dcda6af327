"""Which queues are only in the queue store, in a few bytes for each that there may be: a counting Bloom filter.

The bound on destinations counts queues in memory and in the store. A queue that is there already is not one more, and
only its name can show that, while a million names would not fit into memory. So their hashes are counted in a table of
fixed size. It may take a new name for a known one (about one of a hundred when as many are stored as may be), and then
one more is let in; a known name is never taken for a new one.

Kept up where queues leave memory for the store and come back. What ends in the store alone, because it is too late or
another node settles it, is found when the store is counted again (`qmq.server.checkpoint.queue_count`).
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

    __slots__ = ("_places", "count")

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
