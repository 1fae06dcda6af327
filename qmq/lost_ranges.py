"""What of each origin is nowhere any more, as readers of fanouts have to be told: the ends of such stretches.

A reader hears the records of one origin in their order, so where a stretch began is where it had got to; only the ends
must be remembered. Pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Final

from qmq.dots import Dot, Origin, Vector

ENDS_MAX: Final = 1000
"""Of one origin; the lowest are forgotten first, for their readers have long been told."""


class LostRanges:
    """Ends of stretches by origin, ascending."""

    __slots__ = ("ends",)

    def __init__(self, ends: Mapping[Origin, Collection[int]] | None = None) -> None:
        self.ends: dict[Origin, list[int]] = {origin: sorted(known) for origin, known in (ends or {}).items()}

    def add(self, origin: Origin, end: int) -> bool:
        """A stretch that ends at this sequence is gone. False when that was known."""
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
        """Ends that `have` has got to, ascending for each origin."""
        return [Dot(origin, end) for origin in self.ends for end in self.up_to(origin, have.get(origin, 0))]

    def up_to(self, origin: Origin, last: int) -> list[int]:
        """Ends of `origin` up to `last`."""
        ends = self.ends.get(origin, [])
        return ends[: bisect_right(ends, last)]

    def forget(self, origins: Collection[Origin]) -> None:
        """Nothing of these is left in the mesh."""
        for origin in [origin for origin in self.ends if origin in origins]:
            del self.ends[origin]
