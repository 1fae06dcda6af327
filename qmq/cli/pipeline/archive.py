"""`qmq pipeline archive`, `compact`, `vacuum`, `erase`."""

from typing import Any

import click

from ..options import json_option
from ..output import byte_size, counted, print_json
from .shared import (
    TABLE,
    failures_in_one_line,
    iceberg_option,
    iceberg_table,
    job,
    read_source,
    removed_option,
    require,
    source_options,
    storage_option,
)

SERVICE = "a service that needs no Spark is `qmq archive TABLE`, with the same options"


@click.command
@click.argument("table", type=TABLE)
@source_options
@storage_option
@removed_option("--follow", SERVICE)
@removed_option("--every", SERVICE)
@json_option
def archive(table: str, as_json: bool, **source: Any) -> None:
    """Add new messages to an archive (a Delta table).

    TABLE is a directory, or an address such as s3://bucket/archive. Each run begins where the last one ended and adds
    each message exactly once, even if earlier runs failed. Later runs must have the same options for destinations and
    times as the first.
    """
    options = read_source(is_for_table=True, **source)
    from ...spark.jobs import archive as jobs

    with job("archive", options) as spark:
        done = jobs.archive(spark, options, table)
    if as_json:
        print_json(done.as_json())
        return
    if done.missing:
        click.echo(f"no node has these any more, so the archive goes on without them: {done.missing}", err=True)
    if done.found:
        click.echo(f"these were missing and have been added: {done.found}", err=True)
    made = f"{counted(done.files, 'file')}, {byte_size(done.bytes)}, {counted(done.commits, 'commit')}"
    click.echo(f"{counted(done.rows, 'message')} added in {done.seconds:.1f} s ({made})")


@click.command
@click.argument("table", type=TABLE)
@storage_option
@click.option("--target-mib", type=click.IntRange(min=1), default=256, show_default=True, help="Target size of a file.")
@json_option
def compact(table: str, target_mib: int, as_json: bool) -> None:
    """Combine the small files of an archive.

    The new ones are sorted by destination, origin and sequence. The old files stay until `vacuum`, because a reader
    may still use them.
    """
    require("archive", "pyarrow", "deltalake")
    from ...spark.archive.upkeep import compact as compact_table

    with failures_in_one_line():
        done = compact_table(table, target_bytes=target_mib << 20)
    if as_json:
        print_json({"files_added": done.added, "files_removed": done.removed})
    else:
        click.echo(f"{counted(done.removed, 'file')} became {done.added}")


@click.command
@click.argument("table", type=TABLE)
@storage_option
@click.option(
    "--hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Keep files that were used within this time.",
)
@click.option("--dry-run", is_flag=True, help="Only list the files.")
@json_option
def vacuum(table: str, hours: int, dry_run: bool, as_json: bool) -> None:
    """Remove unused files of an archive.

    These are files that `compact` has combined, and files of runs that were killed. With fewer than 168 hours, it can
    remove files that a reader or a running archive job still uses.
    """
    require("archive", "pyarrow", "deltalake")
    from ...spark.archive.upkeep import vacuum as vacuum_table

    with failures_in_one_line():
        names = vacuum_table(table, hours=hours, dry_run=dry_run)
    if as_json:
        print_json({"removed": names, "dry_run": dry_run})
    else:
        for name in names:
            click.echo(name)
        click.echo(f"{counted(len(names), 'file')} {'to remove' if dry_run else 'removed'}")


@click.command
@click.argument("table", type=TABLE)
@click.option(
    "--where", "condition", required=True, metavar="EXPR", help="Condition in SQL, such as \"headers['user'] = '17'\"."
)
@storage_option
@iceberg_option
@click.option("--yes", is_flag=True, help="Erase them. Without this, the command only counts them.")
@json_option
def erase(table: str, condition: str, iceberg: str | None, yes: bool, as_json: bool) -> None:
    """Remove messages from an archive or a typed table.

    These are the rows for which EXPR is true. All files that have had them are removed as well, so earlier versions of
    the table cannot be read any more. An archiver may run at the same time, and does not add the messages again. Nodes
    and backups keep theirs.
    """
    require("archive", "pyarrow", "deltalake")
    from ...spark.archive.erase import erase as erase_rows
    from ...spark.archive.erase import matching

    with failures_in_one_line():
        if yes:
            found = erase_rows(table, condition, iceberg=iceberg_table(iceberg, table))
        else:
            found = matching(table, condition)
    if as_json:
        print_json({"erased" if yes else "found": found})
        return
    for day, count in found.items():
        click.echo(f"{day}: {counted(count, 'message')}")
    click.echo(f"{counted(sum(found.values()), 'message')} {'erased' if yes else 'found; add --yes to erase them'}")
