"""`qmq pipeline compare`: do two nodes, or a node and an archive, hold the same?"""

import sys
from typing import Any

import click

from ..options import json_option
from ..output import print_json
from .shared import PATH, choosing_options, given_source, job, login_options, progress, read_source

DIFFERENCES_SHOWN = 50


@click.command
@click.argument("left", type=PATH)
@click.argument("right", type=PATH)
@login_options
@choosing_options
@click.option("--everything", is_flag=True, help="What only one of them can have is a difference, too.")
@json_option
def compare(left: str, right: str, everything: bool, as_json: bool, **source: Any) -> None:
    """Tell whether two nodes or archives hold the same.

    LEFT and RIGHT are data directories, live nodes (host:port) or archives. Where their ends differ, because one began
    later or is behind, only what both can have is compared. With an archive, messages of the destinations and times
    that it was begun with. Exit code 1 when something is different.
    """
    read_source(paths=(left,), servers=None, more=(), **source)  # mistakes are told before Spark starts
    given = given_source(paths=(), servers=None, more=(), **source)
    with job("compare") as spark, progress("compare", quiet=as_json) as tell:
        from ...spark.jobs import compare as jobs
        from ...spark.progress import watched

        with watched(spark, tell):
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
