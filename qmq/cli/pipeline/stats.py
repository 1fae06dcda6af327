"""`qmq pipeline stats`: rates and sizes as a table or as JSON."""

from dataclasses import asdict
from typing import Any

import click

from ..options import json_option
from ..output import print_json, show_table
from .shared import given_source, job, read_source, removed_option, source_options

ROWS_SHOWN = 40
BY_TIMER = "run it by a timer, with --json and the --from and --to of the time that has passed"


@click.command
@source_options
@click.option(
    "--window", default="1 minute", show_default=True, metavar="TIME", help="Length of a window, such as: 10 minutes."
)
@removed_option("--follow", BY_TIMER)
@removed_option("--lateness", BY_TIMER)
@json_option
def stats(window: str, as_json: bool, **source: Any) -> None:
    """Show rates, sizes and waiting messages of destinations.

    Shows messages, bytes, sizes, time to settle, unsettled messages and their age, failed deliveries and dead letters.
    --json shows all of it for each window, too.

    Failures of a retired node's messages count again with the node that adopts them.
    """
    options = read_source(**source, view="records")  # errors are reported before Spark starts
    given = given_source(**source)
    with job("stats", options) as spark:
        from ...spark.jobs import stats as jobs

        found = jobs.stats(jobs.read_records(spark, given), window=window)
    if found.is_cut:
        click.echo(
            f"only the first {len(found.windows):,} windows: choose destinations, or a longer --window", err=True
        )
    if as_json:
        windows = [{**asdict(one), "start": one.start.isoformat()} for one in found.windows]
        print_json({"totals": [asdict(total) for total in found.totals], "windows": windows})
    else:
        head = ["DESTINATION", "MESSAGES", "BYTES", "P99 SIZE", "SETTLED", "P50 SETTLE", "P99 SETTLE"]
        head += ["WAITING", "OLDEST", "DEAD"]
        rows = [
            [one.destination, one.messages, number(one.bytes), number(one.size_p99 or 0), one.settled]
            + [
                seconds(one.settle_p50),
                seconds(one.settle_p99),
                one.waiting,
                seconds(one.oldest_seconds),
                one.dead_letters,
            ]
            for one in found.totals[:ROWS_SHOWN]
        ]
        show_table(head, rows)
        if len(found.totals) > ROWS_SHOWN:
            click.echo(f"and {len(found.totals) - ROWS_SHOWN} more destinations (--json lists them)")


def number(value: float) -> str:
    """With k, M, G, three digits."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:  # what would be rounded up to it
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time as people say it; "–" for none."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"
