"""The messages of a mesh as a frame, wherever they are kept: in logs, at live nodes, or in an archive."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from qmq.spark.jobs.archive import read_archive
from qmq.spark.reading.options import Options, read_options

COLUMNS = "origin,sequence,timestamp,destination,priority,headers,body"


def read_messages(spark: SparkSession, given: dict[str, str], archive: str | None = None) -> DataFrame:
    """Messages with `COLUMNS`. `given` are options of `format("qmq")`; with an archive only those that choose rows.

    Raises BadOption, and ArchiveError when `archive` is none.
    """
    if archive is None:
        return spark.read.format("qmq").options(**{**given, "view": "messages", "columns": COLUMNS}).load()
    options = options_of(given, archive)
    return only(read_archive(spark, archive, options=options).drop("day"), options)


def only(frame: DataFrame, options: Options) -> DataFrame:
    """The rows of a frame (destination, timestamp) that `options` choose."""
    if not options.is_unfiltered:
        frame = frame.where(is_chosen(options))
    if options.starting_us is not None:
        frame = frame.where(f.col("timestamp") >= f.timestamp_micros(f.lit(options.starting_us)))
    if options.ending_us is not None:
        frame = frame.where(f.col("timestamp") < f.timestamp_micros(f.lit(options.ending_us)))
    return frame


def options_of(given: dict[str, str], archive: str | None) -> Options:
    """The same, checked; an archive stands for the path of logs, and for servers. Raises BadOption."""
    if archive is None:
        return read_options(given)
    return read_options(
        {name: value for name, value in given.items() if name not in ("path", "servers")}, of_archive=True
    )


def is_chosen(options: Options, name: Column | None = None) -> Column:
    """Whether `name`, else the column `destination`, is what `options` ask for; false or null where it is null."""
    if name is None:
        name = f.col("destination")
    if options.destinations is not None:
        return name.isin(*options.destinations)
    pattern = options.pattern
    if pattern is None:
        return f.lit(True)
    # Spark's own regular expressions are those of Java: the same pattern may match something else there.
    return f.udf(lambda text: text is not None and pattern.fullmatch(text) is not None, "boolean")(name)
