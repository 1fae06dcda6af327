"""Data directories as a place to read from: one node's, or several nodes' at once."""

import glob
from contextlib import suppress
from pathlib import Path
from typing import Any

from qmq.errors import NotConnected, Refused
from qmq.model.dots import Vector
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import Part, plan, plan_nodes
from qmq.spark.reading.ranges import NOTHING, Lacking, RangeMap, beginning, merged
from qmq.spark.reading.segments import ranges_of
from qmq.spark.reading.status import StatusClients
from qmq.spark.reading.tables import rows_of
from qmq.storage.format.record import RecordKind, unpack_gap
from qmq.unix_socket import SOCKET_NAME


class Files:
    """What there is in the data directories of `options`. Raises FileNotFoundError when a path is none."""

    def __init__(self, options: Options) -> None:
        self.lacking = Lacking()
        """What the last plan has not found anywhere. Reading adds to another one what shows only there."""
        self.silent: list[str] = []
        """Nodes that have not answered."""
        self._options = options
        self._known: dict[str, DataDirectory] = {}
        self._clients = StatusClients(options)
        self._find()

    @property
    def _directories(self) -> list[DataDirectory]:
        return list(self._known.values())

    def _find(self) -> None:
        """Directories of nodes that have come since are found by patterns; what else these match is left out."""
        for pattern in self._options.paths:
            paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            if not paths:
                raise FileNotFoundError(f"nothing matches {pattern}")
            problem: FileNotFoundError | None = None
            for path in paths:
                try:
                    self._check(path)
                except FileNotFoundError as error:
                    problem = error  # A node that is just beginning has no journal yet.
            if problem is not None and self._known.keys().isdisjoint(paths):
                raise problem

    def _check(self, path: str) -> None:
        known = self._known.get(path)
        if known is None:
            self._known[path] = DataDirectory(path, over_damage=not self._options.fail_on_data_loss)
        else:
            known.look()

    def available(self) -> Vector:
        """Up to where everything is there, on some node."""
        self._find()
        return merged(directory.vector() for directory in self._directories)

    def base(self) -> Vector:
        """What no journal holds any more.

        Behind what nodes gave up (they were away for too long, or joined late), and what they got only a rest of:
        before that, their journals may have some records, and not those that follow. Of fanouts alone a rest has all
        that there is.
        """
        have = self.available()  # first: what comes after it is held, and counts from its beginning
        held, excused = RangeMap(), RangeMap()
        for directory in self._directories:
            for segment, listing in directory.journal.segments():
                all_counts = self._options.only_fanouts or not listing.compacted
                held = held.plus(listing.ranges() if all_counts else ranges_of(listing.whole_entries()))
                for entry in listing.compacted:
                    excused.add(entry.origin, entry.first - 1, entry.last)
                with suppress(FileNotFoundError):  # Retention of the running node was quicker.
                    for origin, last in segment.notes(listing, RecordKind.GAP, unpack_gap):
                        excused.add(origin, 0, last)
        return beginning(held, excused, have)

    def plan(
        self, start: Vector, end: Vector, *, strict: bool, but_for: RangeMap = NOTHING, over_holes: bool = False
    ) -> list[Part]:
        """Parts that together bring every record above `start` up to `end` once; see `plan.plan`.

        `strict`: what is nowhere is missing, `but_for` that. Otherwise what is missing for a reason is not, either.
        `over_holes`: nor is what live nodes lack in the midst of their journals, which shows only when these are read.
        """

        def may_be_nowhere() -> RangeMap:
            # A reader of whatever exists does not miss ranges that are missing for a reason, but would miss all others.
            return but_for if strict else but_for.plus(RangeMap.between({}, self.base()))

        self.lacking = Lacking()
        return plan(self._directories, self._options, start, end, but_for=may_be_nowhere, lacking=self.lacking)

    def plan_nodes(self) -> list[Part]:
        """Parts that together bring every record of every node."""
        return plan_nodes(self._directories, self._options)

    def rows(self, view: str) -> list[dict[str, Any]]:
        """Rows of a view that is no log."""
        return rows_of(view, self._directories)

    def report(self, done: Vector) -> None:
        """A named query that never ends has come so far: shown to operators of the nodes, from the next look on.

        To those that run on these directories, if they answer; what reads files needs none of them.
        """
        self._clients.done = dict(done)
        for path in self._known if self._options.name else ():
            socket = Path(path) / SOCKET_NAME
            if socket.exists():
                with suppress(NotConnected, Refused):
                    self._clients.ask(socket)

    def close(self) -> None:
        """Idempotent."""
        self._clients.close()
