"""`qmq pipeline tables`: write JSON bodies into a typed table."""

import json
from dataclasses import asdict
from typing import Any

import click

from ..options import json_option
from ..output import print_json
from .shared import PATH, given_source, job, progress, read_source, source_options


@click.command
@click.argument("table", type=PATH)
@source_options
@json_option
def tables(table: str, as_json: bool, **source: Any) -> None:
    """Make a typed table from the JSON bodies of messages.

    TABLE is a directory. The first run infers the columns. Each later run adds new messages, every message once, and
    reports where bodies differ from the columns. No body is lost: `body` has each as a VARIANT, and `unparsed` has the
    bytes of a body that is no JSON.
    """
    read_source(**source)
    with job("tables") as spark, progress("tables", quiet=as_json) as show:
        from ...spark.jobs import tables as jobs
        from ...spark.jobs.tasks import watched

        with watched(spark, show):
            done = jobs.tables(spark, given_source(**source), table)
    if as_json:
        print_json({**asdict(done), "schema": json.loads(done.schema) if done.schema else None})
        return
    for path, kind in done.drift.new.items():
        click.echo(f"DRIFT new field {path} ({kind}): only in body")
    for path, (before, now) in done.drift.changed.items():
        click.echo(f"DRIFT {path} is {now} and was {before}: null if a value does not fit")
    for path, kind in done.drift.removed.items():
        click.echo(f"no body of this run has {path} ({kind})")
    if done.drift.unparsed:
        click.echo(f"DRIFT {done.drift.unparsed} bodies are no JSON: in unparsed")
    click.echo(f"{done.rows} messages added, in run {done.run}")
