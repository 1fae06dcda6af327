"""The mesh's whole past as one frame: the archive, read natively, and what the nodes have accepted since.

A Python source hands its rows to Spark one by one; of an archive Spark reads the columns itself, and only what a query
needs. So all but the newest messages come from the archive, and only the rest is decoded from logs, in Spark's workers.

The two meet at the vector of one version of the table: the files of that version hold everything up to it, and what
comes after it is planned here, once. Whatever commits meanwhile makes another version.

Surprising: the rest does not go through `format("qmq")`. Spark starts Python processes to plan a query of a Python
source, which cost more than a short tail.
"""

import json
import warnings
from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from qmq.spark.archive.losses import losses_text
from qmq.spark.archive.table import archive_choice, lost_of, open_table, table_vector
from qmq.spark.jobs.archive import read_archive
from qmq.spark.jobs.messages import only
from qmq.spark.jobs.tasks import frame_of
from qmq.spark.reading.options import (
    CHOOSING,
    ENDS,
    ONE_READ,
    STREAMING,
    BadOption,
    known_options,
    read_options,
    refuse,
    vector_to_json,
)
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.place import open_place
from qmq.spark.reading.views import columns_of, ddl

MESSAGE_ID: Final = "concat_ws('-', origin, sequence) AS message_id"


class Backfill(NamedTuple):
    """What is in an archive, and a stream of what comes behind it. Both have the same columns, and no message twice."""

    past: DataFrame
    live: DataFrame


def history(spark: SparkSession, table: str, **given: str | int) -> DataFrame:
    """Every message of the archive at `table` and of the nodes behind it, once, with the columns of `messages`.

    `given` are options of `format("qmq")`: where the nodes are (`servers` or `path`), which messages, which `columns`.
    The frame ends with what the nodes have now, however often it is read. A message that the table was not begun with
    (`--destination`, `--pattern`, `--from`, `--to` of the archive) is in neither part.

    Raises:
        ArchiveError: there is no archive at `table`.
        BadOption: an option cannot be, or is about the ends of reading, which the table decides.
        DataLoss: the nodes have dropped what comes right after the table; names the range. Not if `failOnDataLoss` is
            false.
        FileNotFoundError: a path is no data directory.
        NotConnected: no node answers.
    """
    cut = _Cut(spark, table, given)
    refuse(cut.said, STREAMING, ONE_READ)
    with closing(open_place(cut.options)) as place:
        have = place.available()
        parts = place.plan(table_vector(cut.delta, have), have, strict=True)
    if not parts:
        return cut.archived
    options, needed = cut.options, cut.needed  # travel to workers, which an open table cannot
    tail = frame_of(spark, parts, lambda part: rows_of_part(part, options, needed), ddl("messages", needed))
    return cut.archived.union(cut.narrowed(tail))


def backfill(spark: SparkSession, table: str, **given: str | int) -> Backfill:
    """The archive at `table` as a frame, and a stream that begins where that ends. Options and errors are those of
    `history`, and those of a stream (`maxRecordsPerTrigger`, …).

    Write `past` once, then start the stream: its checkpoint says where it continues after a restart, when `past` is not
    needed any more. The nodes must have what comes right after the table until the stream has read it.
    """
    cut = _Cut(spark, table, given)
    with closing(open_place(cut.options)) as place:
        begin = vector_to_json(table_vector(cut.delta, place.available()))
    said = {**cut.said, "columns": ",".join(cut.needed), "startingOffsets": json.dumps(begin)}
    return Backfill(cut.archived, cut.narrowed(spark.readStream.format("qmq").options(**said).load()))


class _Cut:
    """One version of a table, and how what comes behind it is read."""

    def __init__(self, spark: SparkSession, table: str, given: Mapping[str, str | int]) -> None:
        said = known_options({name: str(value) for name, value in given.items()})
        refuse(said, ENDS, "a history goes from the beginning of the archive to now; choose by timestamps")
        asked = read_options(said)
        if asked.view != "messages":
            raise BadOption(f"view is {asked.view!r}; a history has messages")
        columns = columns_of(asked)
        self.delta = open_table(table)
        begun = archive_choice(self.delta, table)
        if lost := lost_of(self.delta):
            of = f" (it is of {begun['subscribe']})" if "subscribe" in begun else ""
            warnings.warn(f"{table}{of} was made without these records: {losses_text(lost)}", stacklevel=3)
        # Expressions, not columns: each column would be several calls to the JVM.
        shown = [MESSAGE_ID if name == "message_id" else name for name in columns]
        stored = {"origin", "sequence", "destination", "timestamp", *columns}
        archived = only(read_archive(spark, table, delta=self.delta, options=asked, columns=stored), asked)
        self.archived = archived.selectExpr(*shown)
        # What the table was begun with narrows the rest, and so does what is asked for: options can say one of the two.
        chosen = begun or {name: said[name] for name in CHOOSING if name in said}
        self.said = {**{name: text for name, text in said.items() if name not in CHOOSING}, **chosen}
        self.options = read_options(self.said)
        self._columns = columns
        self._asked = asked if begun and asked.chooses else None
        more = ("destination", "timestamp") if self._asked is not None else ()
        self.needed = list(dict.fromkeys([*columns, *more]))
        """Columns that are read behind the table."""

    def narrowed(self, frame: DataFrame) -> DataFrame:
        """What is asked for, of a frame of the columns `needed`."""
        return frame if self._asked is None else only(frame, self._asked).selectExpr(*self._columns)
