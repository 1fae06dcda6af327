"""Data directories as a place to read from: one node's, or several nodes' at once."""

import glob
from typing import Any

from qmq.dots import Vector
from qmq.spark.logs import DataDirectory, ranges_of
from qmq.spark.options import Options
from qmq.spark.plan import Part, available, plan, plan_nodes
from qmq.spark.ranges import RangeMap
from qmq.spark.tables import rows_of


class Files:
    """See `place.Place`. Raises FileNotFoundError when a path is no data directory."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._known: dict[str, DataDirectory] = {}
        self._find()

    @property
    def _directories(self) -> list[DataDirectory]:
        return list(self._known.values())

    def _find(self) -> None:
        """Directories of nodes that have come since are found by patterns."""
        for pattern in self._options.paths:
            pattern = pattern.removeprefix("file://").removeprefix("file:")
            paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            if not paths:
                raise FileNotFoundError(f"nothing matches {pattern}")
            for path in paths:
                known = self._known.get(path)
                if known is None:
                    self._known[path] = DataDirectory(path)
                else:
                    known.look()

    def available(self) -> Vector:
        self._find()
        return available(self._directories)

    def base(self) -> Vector:
        """What a node gave up (it was away for too long, or joined late) its journal does not hold either, nor all of
        a stretch of which it got a rest."""
        held = RangeMap()
        for directory in self._directories:
            for _, listing in directory.journal.segments():
                ranges_here = ranges_of(listing.whole_entries()) if listing.rests else listing.ranges()
                for origin, ranges in ranges_here.items():
                    for after, through in ranges:
                        held.add(origin, after, through)
        return {**self.available(), **{origin: ranges[0][0] for origin, ranges in held.items()}}

    def plan(self, start: Vector, end: Vector, *, strict: bool) -> list[Part]:
        return plan(self._directories, self._options, start, end, strict=strict)

    def plan_nodes(self) -> list[Part]:
        return plan_nodes(self._directories, self._options)

    def rows(self, view: str) -> list[dict[str, Any]]:
        return rows_of(view, self._directories)

    def report(self, done: Vector) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing stays open between calls."""
