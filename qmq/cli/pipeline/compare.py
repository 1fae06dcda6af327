"""`qmq pipeline compare`: compare the messages of two nodes, or of a node and an archive."""

import sys
from typing import Any

import click

from ..options import json_option
from ..output import print_json
from .shared import TABLE, choosing_options, given_source, job, login_options, read_source, storage_option

DIFFERENCES_SHOWN = 50


@click.command
@click.argument("left", type=TABLE)
@click.argument("right", type=TABLE)
@storage_option
@login_options
@choosing_options
@click.option("--everything", is_flag=True, help="Also report messages that only one side can have.")
@json_option
def compare(left: str, right: str, everything: bool, as_json: bool, **source: Any) -> None:
    """Compare the messages of two nodes or archives.

    LEFT and RIGHT are data directories, live nodes (host:port) or archives. If one began later or is behind, only
    messages that both can have are compared. With an archive, these are messages of the destinations and times with
    which it was begun. Exit code 1 if something is different.
    """
    read_source(archive=left, paths=(), servers=None, more=(), **source)  # errors are reported before Spark starts
    given = given_source(paths=(), servers=None, more=(), **source)
    from ...spark.jobs import compare as jobs

    login = {name: source[name] for name in ("login", "passcode", "cafile") if source[name]}
    sides = [jobs.Side(where, login) for where in (left, right)]
    with job("compare", *(side.where if side.is_archive else side.options for side in sides)) as spark:
        found = jobs.compare(spark, left, right, everything=everything, given=given)
    if as_json:
        print_json(jobs.as_json(found))
    else:
        for origin, (here, there) in found.outside.items():
            click.echo(f"{origin}: not compared, because the other side cannot have it: {here} left, {there} right")
        for difference in found.differences[:DIFFERENCES_SHOWN]:
            click.echo(f"DIFFERENT {difference.origin} {difference.sequence}: {difference.how}")
        if len(found.differences) > DIFFERENCES_SHOWN:
            click.echo("and more (--json lists up to 1000)")
        click.echo(f"{found.records} records compared: {'equal' if found.equal else 'NOT equal'}")
    if not found.equal:
        sys.exit(1)
