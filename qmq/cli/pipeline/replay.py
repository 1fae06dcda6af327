"""`qmq pipeline replay`: send messages of the past again."""

from pathlib import Path
from typing import Any

import click

from ..options import FILE, json_option
from ..output import body_text, byte_size, print_json
from .shared import archive_option, given_source, job, read_source, source_options


@click.command
@source_options
@archive_option
@click.option("--send-to", metavar="HOST:PORT,…", help="Nodes to publish to; by default --servers.")
@click.option("--into", "destination", metavar="NAME", help="Destination; by default that of each message.")
@click.option(
    "--where", metavar="SQL", help="Only matching messages, such as: headers['shop'] = 'x' and body like '%late%'."
)
@click.option("--list", "listed", type=FILE, help="Only the messages of a redrive list.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Most messages per second.")
@click.option(
    "--tasks", type=click.IntRange(1, 1000), default=2, show_default=True, help="Number of parallel publishers."
)
@click.option("--name", metavar="TEXT", help="Name of this replay; with the same name, nothing is appended twice.")
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
@json_option
def replay(
    archive: str | None,
    send_to: str | None,
    destination: str | None,
    where: str | None,
    listed: Path | None,
    rate: float | None,
    tasks: int,
    name: str | None,
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Send messages of the past again.

    Reads data directories (--path), live nodes (--servers) or an archive (--archive). Chooses messages by time (--from,
    --to), destination, a list, or an SQL expression over origin, sequence, timestamp, destination, headers and body.
    """
    options = read_source(archive=archive, **source)
    nodes = send_to or source["servers"]
    if not dry_run and not (nodes and name):
        raise click.UsageError("give --name, and the nodes with --send-to; or --dry-run")
    with job("replay", archive or options) as spark:
        from ...spark.jobs import replay as jobs
        from ...spark.jobs.dead_letters import read_list
        from ...spark.jobs.messages import read_messages

        given = given_source(**source)
        if archive is not None:
            given.pop("servers", None)
        messages = read_messages(spark, given, archive)
        wanted = None if listed is None else read_list(iter(listed.read_text("utf-8").split("\n")))
        chosen = jobs.choose(messages, listed=wanted, where=where, to=destination)
        found = jobs.plan(chosen)
        if not dry_run and found.messages:
            logins = {key: source[key] for key in ("login", "passcode", "cafile") if source[key]}
            jobs.send(chosen, {"servers": nodes, **logins}, name=name or "", rate=rate, tasks=tasks)
    if as_json:
        samples = [{**one, "time": one["time"].isoformat(), "body": body_text(one["body"])} for one in found.samples]
        facts = {"messages": found.messages, "bytes": found.bytes, "by_destination": found.by_destination}
        print_json({**facts, "samples": samples, "sent": not dry_run})
        return
    for name_of, count in sorted(found.by_destination.items(), key=lambda item: -item[1]):
        click.echo(f"{name_of}: {count}")
    if dry_run:
        for one in found.samples:
            text = body_text(one["body"][:100]).replace("\n", "\\n")
            click.echo(f"for example {one['id']} of {one['time']:%Y-%m-%d %H:%M:%S} to {one['to']}: {text}")
    would = "would be sent" if dry_run else "sent, all confirmed"
    click.echo(f"{found.messages} messages ({byte_size(found.bytes)}) {would}")
