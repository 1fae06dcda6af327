"""Lost ranges: records that no member has, by origin. Readers of fanouts get a gap notice for each. Pure.

A reader receives the records of one origin in order, so a lost range begins at the reader's own position. Therefore
only the ends of ranges are kept.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Final

from qmq.model.dots import Dot, Origin, Vector

ENDS_MAX: Final = 1000
"""Ends kept per origin. The lowest are forgotten first, because their readers have had the gap notice long ago."""


class LostRanges:
    """Ends of lost ranges by origin, ascending."""

    __slots__ = ("ends",)

    def __init__(self, ends: Mapping[Origin, Collection[int]] | None = None) -> None:
        self.ends: dict[Origin, list[int]] = {origin: sorted(known) for origin, known in (ends or {}).items()}

    def add(self, origin: Origin, end: int) -> bool:
        """Note that a range that ends at this sequence is lost. False when that was known."""
        ends = self.ends.setdefault(origin, [])
        place = bisect_left(ends, end)
        if ends[place : place + 1] == [end]:
            return False
        ends.insert(place, end)
        del ends[:-ENDS_MAX]
        return True

    def before(self, origin: Origin, after: int, sequence: int) -> list[Dot]:
        """Ends above `after` and below `sequence`, ascending."""
        ends = self.ends.get(origin)
        if ends is None:
            return []
        return [Dot(origin, end) for end in ends[bisect_right(ends, after) : bisect_left(ends, sequence)]]

    def within(self, have: Vector) -> list[Dot]:
        """Ends that `have` covers, ascending for each origin."""
        return [Dot(origin, end) for origin in self.ends for end in self.up_to(origin, have.get(origin, 0))]

    def up_to(self, origin: Origin, last: int) -> list[int]:
        """Ends of `origin` up to `last`."""
        ends = self.ends.get(origin, [])
        return ends[: bisect_right(ends, last)]

    def forget(self, origins: Collection[Origin]) -> None:
        """Remove these origins, of which the mesh has nothing."""
        for origin in [origin for origin in self.ends if origin in origins]:
            del self.ends[origin]
