"""Sets of sequences, per origin: which records are wanted, which are already planned, which no node has.

A set is a sorted list of disjoint (after, through) ranges, as in `qmq.model.cursors`: the sequences above `after`, up
to and including `through`. A fanout's log has one per batch, so nothing here goes through one list for each range of
another.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Final

from qmq.model.cursors import Range, add_range
from qmq.model.dots import Origin, Vector, merge


def minus(ranges: Iterable[Range], taken: list[Range]) -> list[Range]:
    """What of `ranges` is not in `taken`."""
    left: list[Range] = []
    index = 0
    for after, through in ranges:
        while index < len(taken) and taken[index][1] <= after:
            index += 1
        at = index  # the last one that overlaps may overlap the next of `ranges`, too
        while at < len(taken) and taken[at][0] < through:
            begin, end = taken[at]
            if begin > after:
                left.append((after, begin))
            after = max(after, end)
            at += 1
        if after < through:
            left.append((after, through))
    return left


def common(ranges: Iterable[Range], others: list[Range]) -> list[Range]:
    """What is in both."""
    found: list[Range] = []
    index = 0
    for after, through in ranges:
        while index < len(others) and others[index][1] <= after:
            index += 1
        at = index
        while at < len(others) and others[at][0] < through:
            begin, end = others[at]
            found.append((max(after, begin), min(through, end)))
            at += 1
    return found


class RangeMap:
    """Origin → set of sequences."""

    def __init__(self, known: Mapping[Origin, list[Range]] | None = None) -> None:
        self._known: dict[Origin, list[Range]] = {}
        self.extend((known or {}).items())

    @classmethod
    def between(cls, start: Vector, end: Vector) -> "RangeMap":
        """Everything above `start` up to `end`."""
        return cls({origin: [(start.get(origin, 0), last)] for origin, last in end.items()})

    def add(self, origin: Origin, after: int, through: int) -> None:
        """Add the sequences above `after` up to `through`."""
        if through > after:
            add_range(self._known.setdefault(origin, []), after, through)

    def extend(self, more: Iterable[tuple[Origin, list[Range]]]) -> None:
        """Add ranges of some origins."""
        for origin, ranges in more:
            for after, through in ranges:
                self.add(origin, after, through)

    def of(self, origin: Origin) -> list[Range]:
        return self._known.get(origin, [])

    def overlapping(self, origin: Origin, first: int, last: int) -> Iterator[Range]:
        """The ranges that hold something of `first` to `last`."""
        ranges = self.of(origin)
        for index in range(bisect_left(ranges, first, key=itemgetter(1)), len(ranges)):
            if ranges[index][0] >= last:
                return
            yield ranges[index]

    def items(self) -> Iterator[tuple[Origin, list[Range]]]:
        return iter(self._known.items())

    def plus(self, more: "RangeMap") -> "RangeMap":
        """What is here or in `more`."""
        found = RangeMap(self._known)
        found.extend(more.items())
        return found

    def minus(self, taken: "RangeMap") -> "RangeMap":
        """What is here and not in `taken`."""
        return RangeMap({origin: minus(ranges, taken.of(origin)) for origin, ranges in self._known.items()})

    def common(self, other: "RangeMap") -> "RangeMap":
        """What is in both."""
        return RangeMap({origin: common(ranges, other.of(origin)) for origin, ranges in self._known.items()})

    def split(self, pieces: int) -> list["RangeMap"]:
        """So many parts of about one size, each with something of every range that is long enough."""
        parts = []
        for piece in range(pieces):
            part = RangeMap()
            for origin, ranges in self._known.items():
                for after, through in ranges:
                    length = through - after
                    part.add(origin, after + length * piece // pieces, after + length * (piece + 1) // pieces)
            if part:
                parts.append(part)
        return parts

    def count(self, origin: Origin | None = None) -> int:
        """Of one origin, or of all."""
        chosen = self._known.values() if origin is None else [self.of(origin)]
        return sum(through - after for ranges in chosen for after, through in ranges)

    def bounds(self) -> tuple[Vector, Vector]:
        """Behind what all of it stands, and up to where."""
        held = [(origin, ranges) for origin, ranges in self._known.items() if ranges]
        return {origin: ranges[0][0] for origin, ranges in held}, {origin: ranges[-1][1] for origin, ranges in held}

    def __bool__(self) -> bool:
        return any(self._known.values())


@dataclass(slots=True)
class Lacking:
    """What was wanted and is not there. Of what is `partly` there, fanout logs or range snapshots had some messages."""

    missing: RangeMap = field(default_factory=RangeMap)
    partly: RangeMap = field(default_factory=RangeMap)
    """Of `missing`."""

    def add(self, missing: RangeMap, partly: RangeMap) -> None:
        self.missing.extend(missing.items())
        self.partly.extend(missing.common(partly).items())


def merged(vectors: Iterable[Vector]) -> Vector:
    """What they have together."""
    have: Vector = {}
    for vector in vectors:
        merge(have, vector)
    return have


def beginning(held: RangeMap, excused: RangeMap, have: Vector) -> Vector:
    """Behind what everything stands that is `held`, and up to `have`, but for what is missing for no good reason."""
    begin = {origin: _begin(ranges, excused.of(origin), have.get(origin, 0)) for origin, ranges in held.items()}
    return {**have, **begin}


def _begin(held: list[Range], excused: list[Range], last: int) -> int:
    begin = held[0][0]
    end = [(last, last)] if last > held[-1][1] else []
    for (_, through), (after, _) in pairwise([*held, *end]):
        if minus([(through, after)], excused):
            break
        begin = after
    return begin


NOTHING: Final = RangeMap()
"""Constant: nothing is added to it."""
