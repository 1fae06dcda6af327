"""`qmq pipeline tables`: write the bodies of messages into a typed table."""

from typing import Any

import click

from ..options import json_option
from ..output import counted, print_json, printable
from .shared import TABLE, failures_in_one_line, read_source, require, source_options, storage_option


@click.command
@click.argument("table", type=TABLE)
@source_options
@storage_option
@click.option("--evolve", is_flag=True, help="Make columns of new fields in JSON bodies.")
@click.option("--key", default="", metavar="COLUMN", help="Keep only the last message for each value of this column.")
@click.option(
    "--schema", "schemas", multiple=True, metavar="FILE", help="An Avro schema that the log does not have; repeatable."
)
@click.option(
    "--protobuf", metavar="FILE:MESSAGE", help="All bodies are this message of a file of Protobuf descriptors."
)
@json_option
def tables(
    table: str,
    evolve: bool,
    key: str,
    schemas: tuple[str, ...],
    protobuf: str | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Make a typed table from the bodies of messages.

    TABLE is a Delta table: a directory, or an address such as s3://bucket/orders. The first run makes columns of the
    fields of JSON bodies, and each run of the schemas of Avro bodies. Each later run adds new messages, every message
    once, and reports where bodies differ from the columns. No body is lost: `body` has each as JSON, and `unparsed` the
    bytes of a body that cannot be decoded.
    """
    file, colon, message = (protobuf or "").rpartition(":")
    if protobuf is not None and not (file and message):
        raise click.UsageError("--protobuf must be FILE:MESSAGE, such as orders.desc:shop.Order")
    require("archive", "numpy", "pyarrow", "deltalake")
    options = read_source(needs_spark=False, is_for_table=True, **source)
    from ...spark.typed import job

    with failures_in_one_line():
        done = job.tables(
            options,
            table,
            evolve=evolve,
            key=key,
            schemas=schemas,
            protobuf=(file, message) if colon else None,
        )
    if as_json:
        print_json(done.as_json())
        return
    for line in _lines(done):
        click.echo(printable(line))


def _lines(done: Any) -> list[str]:
    drift = done.drift
    missing = done.done.missing
    return [
        *([f"no node has these any more, so the table goes on without them: {missing}"] if missing else []),
        *(f"new column {path} ({kind})" for path, kind in done.added.items()),
        *(f"DRIFT new field {path} ({kind}): only in body" for path, kind in drift.new.items()),
        *(
            f"DRIFT {path} is {now} and was {before}: null if a value does not fit"
            for path, (before, now) in drift.changed.items()
        ),
        *(f"DRIFT {count} bodies in unparsed: {why}" for why, count in drift.unparsed.items()),
        f"{counted(done.done.rows, 'message')} added, in {counted(done.done.commits, 'commit')}",
    ]
