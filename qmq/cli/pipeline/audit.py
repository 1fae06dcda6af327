"""`qmq pipeline audit`: find what is missing, doubled, out of order or corrupt, and on which node."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..options import json_option
from ..output import Failed, print_json, show_table
from .shared import PATH, choosing_options, job, login_options, read_source, removed_option

FINDINGS_SHOWN = 50
MEASURED = "nodes measure it themselves, see the metrics qmq_link_delay_seconds and qmq_link_up"


@click.command
@click.argument("nodes", nargs=-1, required=True, type=PATH, metavar="NODE…")
@login_options
@choosing_options
@click.option("--deep", is_flag=True, help="Read everything and verify every checksum, with Spark.")
@removed_option("--latency", MEASURED)
@removed_option("--no-latency", MEASURED)
@json_option
def audit(nodes: tuple[str, ...], deep: bool, as_json: bool, **source: Any) -> None:
    """Find records that are missing, doubled, out of order or corrupt.

    NODE is a data directory or a live node (host:port). With several nodes, differences between them are shown, too.
    Running nodes may be behind others by records that are still on their way. Exit code 1 if something is found.

    For directories, only indexes and the heads of batches are read, and Spark is not needed; --deep reads every byte.
    Live nodes send their whole journals, and every checksum is verified.

    --from, --to, --destination and --pattern choose segments of directories. If only some records are chosen, segments
    that may hold them are audited as a whole, and the newest segment always; with --deep, also the fanout logs of that
    name. How far nodes are behind is then not shown, because that needs all segments. Live nodes cannot be audited in
    part.
    """
    choice = read_source(paths=nodes, servers=None, more=(), **source)
    from ...spark.jobs import audit as jobs
    from ...spark.reading.logs import DataDirectory
    from ...spark.reading.options import BadOption, read_options

    servers = [node for node in nodes if not Path(node).exists() and ":" in node]
    if servers and choice.chooses:
        raise click.UsageError(
            f"{servers[0]} is a live node and sends its whole journal: name its data directory to audit a part of it, "
            "or leave --from, --to, --destination and --pattern out"
        )
    login = {name: source[name] for name in ("login", "passcode", "cafile") if source[name]}
    try:
        live = [read_options({**login, "servers": node}) for node in servers]
        directories = [DataDirectory(node) for node in nodes if node not in servers]
        found = jobs.audit(directories, live, choice=choice)
    except BadOption as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise Failed.by(error) from error
    if deep:
        with job("audit") as spark:
            jobs.audit_deep(spark, directories, found, choice=choice)
    if as_json:
        print_json(
            {
                **asdict(found),
                "rows": [
                    {name: value for name, value in row._asdict().items() if value is not None} for row in found.rows
                ],
                "findings": [finding._asdict() for finding in found.findings],
                "lost": [one._asdict() for one in found.lost],
                "clean": found.clean,
            }
        )
    else:
        head = ["NODE", "ORIGIN", "FIRST", "LAST", "RECORDS", "BEHIND"]
        shown = len(head) - 1 if choice.chooses else len(head)
        show_table(head[:shown], [row[:shown] for row in found.rows])
        for finding in found.findings[:FINDINGS_SHOWN]:
            click.echo(f"FOUND {finding.text}")
        if len(found.findings) > FINDINGS_SHOWN:
            click.echo(f"and {len(found.findings) - FINDINGS_SHOWN} more findings (--json lists them)")
        for one in found.lost[:FINDINGS_SHOWN]:
            click.echo(
                f"lost: {one.node} has noted that no node has all of {one.origin} {one.first}–{one.last} any more"
            )
        if len(found.lost) > FINDINGS_SHOWN:
            click.echo(f"and {len(found.lost) - FINDINGS_SHOWN} more of these (--json lists them)")
        if found.healed:
            click.echo(f"{found.healed} ranges were damaged or after damage once, and nothing of them is missing")
        click.echo(
            f"{found.records} records in {found.segments} segments: {'clean' if found.clean else 'NOT clean'}"
            + (f", {found.bytes_verified} bytes verified" if found.bytes_verified else "")
        )
    if not found.clean:
        sys.exit(1)
