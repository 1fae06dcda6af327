"""The work of one task: a part of the log, and the Arrow batches made of it."""

import gc
from collections.abc import Iterator, Sequence
from typing import Any

from qmq.spark.reading.options import Options
from qmq.spark.reading.place import read
from qmq.spark.reading.plan import Part
from qmq.spark.reading.ranges import Lacking


def rows_of_part(part: Part, options: Options, columns: Sequence[str], lacking: Lacking | None = None) -> Iterator[Any]:
    """Arrow batches of one task."""
    # Millions of short-lived objects that never form a cycle: collecting them halves the speed.
    gc.disable()
    try:
        yield from read(part, options, columns, lacking)
    finally:
        gc.enable()
