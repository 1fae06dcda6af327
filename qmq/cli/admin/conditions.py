"""`qmq conditions`: what an operator should look at, of one node or of the mesh (`qmq.admin.facts.conditions`)."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from qmq.verbs.nodes import ListConditions

from ..output import print_json, printable
from .listing import Row, pages
from .verb import Asked, verb_command

URGENT = ("error", "critical")


past_option = click.option("--past", is_flag=True, help="Show events and conditions that are over instead.")


@verb_command(ListConditions, more=past_option)
def conditions(asked: Asked, past: bool) -> None:
    rows: list[Row] = []
    missing: set[str] = set()
    with asked.node.connect() as client:
        for page in pages(client, "conditions" + "/past" * past, asked.headers):
            rows += page["rows"]
            missing.update(page.get("nodes_missing") or ())
    if past:
        rows.sort(key=lambda row: row.get("last_us", 0), reverse=True)
    if asked.as_json:
        print_json({"rows": rows, "nodes_missing": sorted(missing)})
    else:
        for line in [line for row in rows for line in _lines(row)]:
            click.echo(printable(line))
        if not rows and not missing:
            click.echo("no conditions" if not past else "no events")
    if missing:
        click.echo(f"qmq: did not answer: {printable(', '.join(sorted(missing)))}", err=True)
    if missing or (not past and any(row.get("severity") in URGENT for row in rows)):
        sys.exit(1)


def _lines(row: Row) -> Iterator[str]:
    times = f"  {row['count']} times" if row.get("count", 1) != 1 else ""
    until = f" to {_time(row['until_us'])}" if "until_us" in row else ""
    yield f"{row.get('severity')}  {row.get('node')}  {row.get('code')}  {_time(row.get('since_us', 0))}{until}{times}"
    yield f"    {row.get('message')}"
    if row.get("advice"):
        yield f"    {row['advice']}"


def _time(microseconds: Any) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
