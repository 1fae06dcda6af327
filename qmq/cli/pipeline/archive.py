"""`qmq pipeline archive`, `compact`, `vacuum`."""

from typing import TYPE_CHECKING, Any

import click

from ..options import json_option
from ..output import byte_size, print_json
from .shared import PATH, job, progress, read_source, require_spark, source_options

if TYPE_CHECKING:
    from ...errors import QmqError


@click.command
@click.argument("table", type=PATH)
@source_options
@click.option("--follow", is_flag=True, help="Go on until stopped (Ctrl-C), every --every seconds.")
@click.option("--every", type=click.FloatRange(min=1.0), default=60.0, show_default=True, help="Seconds.")
@json_option
def archive(table: str, follow: bool, every: float, as_json: bool, **source: Any) -> None:
    """Add what is new to an archive of all messages (a Delta table).

    TABLE is a directory. Each run begins where the last one ended, and adds each message exactly once, however the
    runs before it ended. Whatever the options choose, later runs must choose the same.
    """
    options = read_source(**source)
    from ...spark.jobs import archive as jobs

    def told(done: jobs.Archived) -> bool:
        if as_json:
            print_json(done.as_json())
        elif done.rows or not follow:
            files = f"{done.files} files, {byte_size(done.bytes)}"
            click.echo(f"{done.rows} messages added in {done.seconds:.1f} s ({files}, {done.commits} commits)")
        return True

    def failed(error: "QmqError") -> None:
        click.echo(f"{error}; tried again in {every:g} s", err=True)

    with job("archive") as spark:
        try:
            if follow:
                jobs.follow(spark, options, table, every_seconds=every, told=told, failed=failed)
            else:
                with progress("archive", quiet=as_json) as tell:
                    done = jobs.archive(spark, options, table, tell=tell)
                told(done)
        except KeyboardInterrupt:
            if not follow:
                raise


@click.command
@click.argument("table", type=PATH)
@click.option("--target-mib", type=click.IntRange(min=1), default=256, show_default=True, help="Size to aim at.")
@json_option
def compact(table: str, target_mib: int, as_json: bool) -> None:
    """Put the small files of an archive together.

    The old ones stay until `vacuum`, for whoever is reading them.
    """
    require_spark()
    from ...spark.jobs.archive import compact as compact_table

    found = compact_table(table, target_bytes=target_mib << 20)
    added, removed = found["numFilesAdded"], found["numFilesRemoved"]
    if as_json:
        print_json({"files_added": added, "files_removed": removed})
    else:
        click.echo(f"{removed} files became {added}")


@click.command
@click.argument("table", type=PATH)
@click.option("--hours", type=click.IntRange(min=0), default=168, show_default=True, help="Keep so much.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@json_option
def vacuum(table: str, hours: int, dry_run: bool, as_json: bool) -> None:
    """Remove files of an archive that nothing needs any more.

    Those that were put together, and those of runs that died. Fewer than 168 hours can take files from a reader or an
    archive run that is still at work.
    """
    require_spark()
    from ...spark.jobs.archive import vacuum as vacuum_table

    names = vacuum_table(table, hours=hours, dry_run=dry_run)
    if as_json:
        print_json({"removed": names, "dry_run": dry_run})
    else:
        for name in names:
            click.echo(name)
        click.echo(f"{len(names)} files {'would be' if dry_run else 'were'} removed")
