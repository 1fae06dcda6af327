"""`qmq pipeline audit`: find what is missing, doubled, out of order or corrupt, and on which node."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ..options import json_option
from ..output import Failed, print_json, show_table
from .shared import PATH, choosing_options, job, login_options, progress, read_source

FINDINGS_SHOWN = 50


@click.command
@click.argument("nodes", nargs=-1, required=True, type=PATH, metavar="NODE…")
@login_options
@choosing_options
@click.option("--deep", is_flag=True, help="Read everything and verify every checksum, with Spark.")
@click.option(
    "--latency/--no-latency", default=True, show_default=True, help="Report how long records took between nodes."
)
@json_option
def audit(nodes: tuple[str, ...], deep: bool, latency: bool, as_json: bool, **source: Any) -> None:
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
    from ...spark.jobs.latency import measure
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
        links, cuts = measure(directories, choice) if latency else ([], [])
    except BadOption as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise Failed.by(error) from error
    if deep:
        with job("audit") as spark, progress("audit", quiet=as_json) as show:
            jobs.audit_deep(spark, directories, found, choice=choice, report=show)
    if as_json:
        print_json(
            {
                **asdict(found),
                "rows": [
                    {name: value for name, value in row._asdict().items() if value is not None} for row in found.rows
                ],
                "findings": [finding._asdict() for finding in found.findings],
                "lost": [one._asdict() for one in found.lost],
                "links": [link._asdict() for link in links],
                "cuts": [{**cut._asdict(), "convergence_seconds": cut.convergence_seconds} for cut in cuts],
                "clean": found.clean,
            }
        )
    else:
        head = ["NODE", "ORIGIN", "FIRST", "LAST", "RECORDS", "BEHIND"]
        shown = len(head) - 1 if choice.chooses else len(head)
        show_table(head[:shown], [row[:shown] for row in found.rows])
        if links:
            head = ["FROM", "TO", "BATCHES", "P50 ms", "P95 ms", "P99 ms", "MOST ms", "CLOCKS APART ms"]
            rows = [[*link[:3], *(bounds.text for bounds in link[3:])] for link in links]
            click.echo()
            show_table(head, rows)
        for cut in cuts:
            healed = datetime.fromtimestamp(cut.healed_us / 1e6, UTC).isoformat(timespec="seconds")
            seconds = (cut.healed_us - cut.began_us) / 1e6
            click.echo(
                f"cut {cut.source} → {cut.target}: nothing came for {seconds:.1f} s, healed {healed}, "
                f"converged {cut.convergence_seconds:.1f} s later"
            )
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
