"""The mesh's whole past as one frame: the archive, read natively, and what the nodes have accepted since.

A Python source hands its rows to Spark one by one; of an archive Spark reads the columns itself, and only what a query
needs. So all but the newest messages come from the archive, and only the rest is decoded from logs, in Spark's workers.

The two meet at the vector of one version of the table: the files of that version hold everything up to it, and what
comes after it is planned here, once. Whatever commits meanwhile makes another version.

Surprising: the rest does not go through `format("qmq")`. Spark starts Python processes to plan a query of a Python
source, which cost more than a short tail.
"""

from contextlib import closing
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from qmq.spark.archive.table import archive_choice, open_table, table_vector
from qmq.spark.jobs.archive import read_archive
from qmq.spark.jobs.messages import only
from qmq.spark.jobs.tables import CHOOSING
from qmq.spark.jobs.tasks import frame_of
from qmq.spark.reading.options import BadOption, known_options, read_options
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.place import open_place
from qmq.spark.reading.views import columns_of, ddl

MESSAGE_ID: Final = "concat_ws('-', origin, sequence) AS message_id"


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
    said = known_options({name: str(value) for name, value in given.items()})
    for name in ("startingOffsets", "endingOffsets"):
        if name in said:
            raise BadOption(f"{name}: a history goes from the beginning of the archive to now; choose by timestamps")
    options = read_options(said)
    if options.view != "messages":
        raise BadOption(f"view is {options.view!r}; a history has messages")
    columns = columns_of(options)
    delta = open_table(table)
    begun = archive_choice(delta, table)
    # Expressions, not columns: each column would be several calls to the JVM.
    shown = [MESSAGE_ID if name == "message_id" else name for name in columns]
    archived = only(read_archive(spark, table, delta=delta), options).selectExpr(*shown)
    # What the table was started with narrows the tail, and so does what is asked for: options can say one of the two.
    chosen = begun or {name: said[name] for name in CHOOSING if name in said}
    tail_options = read_options({**{name: text for name, text in said.items() if name not in CHOOSING}, **chosen})
    both = bool(begun) and options.chooses
    with closing(open_place(tail_options)) as place:
        have = place.available()
        parts = place.plan(table_vector(delta, have), have, strict=True)
    if not parts:
        return archived
    needed = list(dict.fromkeys([*columns, *(("destination", "timestamp") if both else ())]))
    tail = frame_of(spark, parts, lambda part: rows_of_part(part, tail_options, needed), ddl("messages", needed))
    return archived.union(only(tail, options).selectExpr(*columns) if both else tail)
