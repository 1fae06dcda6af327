"""Where records are read from: files of nodes, or live nodes. Planning in the driver asks one of the two."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from qmq.model.dots import Vector
from qmq.spark.reading import remote
from qmq.spark.reading.files import Files
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import Part
from qmq.spark.reading.ranges import NOTHING, Lacking, RangeMap
from qmq.spark.reading.views import read_part


class Place(Protocol):
    """What `source` and `stream` need of it."""

    lacking: Lacking
    """What the last plan has not found anywhere. `read` adds to another one what shows only there."""
    silent: list[str]
    """Nodes that have not answered."""

    def available(self) -> Vector:
        """Up to where everything is there, on some node."""

    def base(self) -> Vector:
        """What no journal holds any more."""

    def plan(
        self, start: Vector, end: Vector, *, strict: bool, but_for: RangeMap = NOTHING, over_holes: bool = False
    ) -> list[Part]:
        """Parts that together bring every record above `start` up to `end` once; see `plan.plan`.

        `strict`: what is nowhere is missing, `but_for` that. Otherwise what is missing for a reason is not, either.
        `over_holes`: nor is what live nodes lack in the midst of their journals, which shows only when these are read.
        """

    def plan_nodes(self) -> list[Part]:
        """Parts that together bring every record of every node."""

    def rows(self, view: str) -> list[dict[str, Any]]:
        """Rows of a view that is no log."""

    def report(self, done: Vector) -> None:
        """A named query that never ends has come so far: shown to operators of the nodes, from the next look on."""

    def close(self) -> None:
        """Idempotent."""


def open_place(options: Options) -> Place:
    """Raises FileNotFoundError, NotConnected or Refused when there is nothing to read."""
    return remote.Servers(options) if options.servers else Files(options)


def read(
    part: Part, options: Options, columns: Sequence[str], lacking: Lacking | None = None
) -> Iterator[pa.RecordBatch]:
    """In a worker: the rows of `part`. Raises as `views.read_part` and `remote.read_part`."""
    return remote.read_part(part, options, columns, lacking) if part.servers else read_part(part, options, columns)
