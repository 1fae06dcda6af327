"""Where records are read from: files of nodes, or live nodes. Planning in the driver asks one of the two."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from qmq.spark.reading import remote
from qmq.spark.reading.files import Files
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import Part
from qmq.spark.reading.ranges import Lacking
from qmq.spark.reading.views import read_part

Place: TypeAlias = Files | remote.Servers
"""What each method does, `Files` says."""


def open_place(options: Options) -> Place:
    """Raises FileNotFoundError, NotConnected or Refused when there is nothing to read."""
    return remote.Servers(options) if options.servers else Files(options)


def read(
    part: Part, options: Options, columns: Sequence[str], lacking: Lacking | None = None
) -> Iterator[pa.RecordBatch]:
    """In a worker: the rows of `part`. Raises as `views.read_part` and `remote.read_part`."""
    return remote.read_part(part, options, columns, lacking) if part.servers else read_part(part, options, columns)
