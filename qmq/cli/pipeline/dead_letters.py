"""`qmq pipeline dead-letters`: show dead letters, and write a list for `replay`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..options import FILE, json_option
from ..output import body_text, print_json, table
from .shared import archive_option, given_source, job, read_source, source_options

GROUPS_SHOWN = 40


@click.command("dead-letters")
@source_options
@archive_option
@click.option("--redrive", type=FILE, help="Write a list for `replay --list`.")
@json_option
def dead_letters(archive: str | None, redrive: Path | None, as_json: bool, **source: Any) -> None:
    """Show dead letters by queue and reason.

    Shows their number and the newest bodies. --destination and --pattern choose queues where messages failed, or dead
    dead letter queues. --redrive writes one line of JSON per dead letter. Remove the lines that should not be sent
    again, and send the others with qmq pipeline replay --list.
    """
    options = read_source(archive=archive, **source)
    with job("dead-letters", archive or options) as spark:
        from ...spark.jobs import dead_letters as jobs

        dead_letters = jobs.read_dead_letters(spark, given_source(**source), archive).cache()
        found = jobs.dead_letters(dead_letters)
        if redrive is not None:
            with open(redrive, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in jobs.redrive_lines(dead_letters))
    if as_json:
        for group in found:
            times = {"first": group.first.isoformat(), "last": group.last.isoformat()}
            facts = asdict(group)
            facts["letters"] = facts.pop("dead_letters")  # the name that scripts know
            print_json({**facts, **times, "examples": [body_text(body) for body in group.examples]})
        return
    head = ["QUEUE", "REASON", "LETTERS", "DELIVERIES", "FIRST", "LAST"]
    rows = [
        [group.queue, group.reason, group.dead_letters, group.deliveries_most]
        + [f"{time:%Y-%m-%d %H:%M:%S}" for time in (group.first, group.last)]
        for group in found[:GROUPS_SHOWN]
    ]
    click.echo("\n".join(table(head, rows)) if rows else "no dead letters")
    for group in found[:GROUPS_SHOWN]:
        for body in group.examples:
            text = body_text(body).replace("\n", "\\n")
            click.echo(f"{group.queue} {group.reason}: {text}")
