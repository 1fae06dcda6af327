"""`qmq archive`: a process that adds the messages of a mesh to a Delta table, without Spark."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...config import load
from ...errors import NotConnected
from ..options import FILE, directory_of, json_option
from ..output import byte_size, counted, print_json, printable
from .shared import (
    TABLE,
    failures_in_one_line,
    iceberg_option,
    iceberg_table,
    in_one_line,
    read_source,
    require,
    source_options,
    storage_option,
)

if TYPE_CHECKING:
    from ...model.lag import Behind
    from ...spark.archive.archiver import Archiver
    from ...spark.archive.defined import DefinedArchive, Found
    from ...spark.archive.run import Archived

REPORT_SECONDS: Final = 60.0
"""Between lines about runs that went well."""
UNREGISTERED: Final = "Iceberg does not have the latest files"
LOOK_SECONDS: Final = 60.0
"""Between looks at the definition of the archive, also while a pause after errors is longer."""


@click.command
@click.argument("table", type=TABLE, required=False)
@source_options
@storage_option
@click.option("--config", "config_file", type=FILE, help="Read the data directory of the node with this file.")
@click.option(
    "--name",
    default="archive",
    show_default=True,
    help="Name at the nodes (`qmq status`); without TABLE, that of the definition with the table.",
)
@iceberg_option
@click.option("--once", is_flag=True, help="Add what there is now, and stop.")
@click.option(
    "--every", type=click.FloatRange(min=1.0), default=10.0, show_default=True, help="Seconds from run to run."
)
@click.option("--status", "is_status", is_flag=True, help="Only show the table, and how far it is behind.")
@json_option
def archive(
    table: str | None,
    config_file: Path | None,
    name: str,
    iceberg: str | None,
    once: bool,
    every: float,
    is_status: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Add the messages of a mesh to a Delta table, without Spark.

    It does so continuously. TABLE is a directory: the same table that `qmq pipeline archive` makes: each can continue
    where the other stopped; or an address such as s3://bucket/archive. Without TABLE it is the one that the mesh has
    defined (`qmq archives set`). Each message is added exactly once. Several archivers may have one table: one works,
    and another takes over. Stops at Ctrl-C or SIGTERM, after the commit that it is at.

    \b
      qmq archive /data/archive --servers a:61613,b:61613
      qmq archive --config /etc/qmq/node.toml
    """
    if config_file is not None:
        if source["paths"] or source["servers"]:
            raise click.UsageError("--config excludes --path and --servers")
        source["paths"] = (str(directory_of(load(config_file, None, None, {})[0])),)
    elif not source["paths"] and not source["servers"]:
        raise click.UsageError("give the nodes to read: --servers, --config or --path")
    if table is None and (iceberg or any(source[key] for key in ("destinations", "pattern", "begin", "end"))):
        raise click.UsageError(
            "without TABLE, the definition says which destinations and Iceberg table: leave out what chooses these"
        )
    require("archive", "numpy", "pyarrow", "deltalake")
    options = read_source(needs_spark=False, is_for_table=True, name=name, **source)
    from ...spark.archive.archiver import Archiver, standing
    from ...spark.archive.defined import DefinedArchive

    stop = threading.Event()
    with failures_in_one_line(), stopped_by_signals(stop):
        defined = None if table else DefinedArchive(options)
        while not stop.is_set():
            if defined is not None:
                found = until_found(defined, every, stop, waits=not (once or is_status))
                if found is None:
                    return
                table, options, iceberg = found
            assert table is not None
            if is_status:
                show_standing(standing(options, table), as_json=as_json)
                return
            registered = iceberg_table(iceberg, table)
            archiver = Archiver(options, table, every_seconds=every, iceberg=registered, is_stopping=stop.is_set)
            with closing(archiver):
                archiver.check()
                reporter = Reporter(archiver, as_json=as_json, every_seconds=0.0 if once else REPORT_SECONDS)
                if once:
                    reporter.ran(archiver.run())
                    archiver.register()
                    return
                serve(archiver, reporter, every, pauses(stop, defined))


def until_found(defined: "DefinedArchive", every: float, stop: threading.Event, *, waits: bool) -> "Found | None":
    """The table that the mesh has defined, and what it is to have. None: `stop` was set before a node has answered."""
    while True:
        try:
            return defined.find()
        except NotConnected as error:
            if not waits:
                raise
            warn(f"{in_one_line(error)}; next try in {every:g} s")
        if stop.wait(every):
            return None


def pauses(stop: threading.Event, defined: "DefinedArchive | None") -> Callable[[float], bool]:
    """What waits for so many seconds, and returns whether the archiver should end: `stop`, or another definition."""

    def pause(seconds: float) -> bool:
        left = seconds
        while left > LOOK_SECONDS:
            if stop.wait(LOOK_SECONDS) or is_other():
                return True
            left -= LOOK_SECONDS
        return stop.wait(left) or is_other()

    def is_other() -> bool:
        if defined is None or not defined.has_changed(time.monotonic()):
            return False
        warn("the definition of the archive has changed")
        return True

    return pause


def serve(archiver: "Archiver", reporter: "Reporter", every: float, pause: Callable[[float], bool]) -> None:
    """Run until `pause` returns True. No error ends it: each is shown, and the next run comes after a pause."""
    from ...spark.archive.following import follow

    def on_run(done: "Archived") -> bool:
        reporter.ran(done)
        # The archive goes on, with more files, and files that Iceberg does not have yet.
        for what, work in (("small files were not put together", archiver.keep), (UNREGISTERED, archiver.register)):
            try:
                if not archiver.is_stopping:
                    work()
            except Exception as error:
                warn(f"{what}: {in_one_line(error)}")
        return not archiver.is_stopping

    follow(archiver.run, every_seconds=every, on_run=on_run, failed=reporter.failed, pause=pause)


class Reporter:
    """What is printed: errors and changes at once, runs that went well together, once a minute."""

    def __init__(self, archiver: "Archiver", *, as_json: bool, every_seconds: float) -> None:
        self._archiver = archiver
        self._as_json = as_json
        self._every_seconds = every_seconds
        self._rows = self._files = self._bytes = 0
        self._shown_at = time.monotonic()
        self._was_standby = False

    def ran(self, done: "Archived") -> None:
        """Raises as `Archiver.behind`."""
        behind = self._archiver.behind()
        if self._archiver.is_standby != self._was_standby:
            self._was_standby = self._archiver.is_standby
            click.echo("another archiver works: standing by" if self._was_standby else "working", err=True)
        if done.missing:
            warn(f"no node has these any more, so the archive goes on without them: {done.missing}")
        if done.found:
            warn(f"these were missing and have been added: {done.found}")
        self._rows, self._files, self._bytes = (
            self._rows + done.rows,
            self._files + done.files,
            self._bytes + done.bytes,
        )
        if self._as_json:
            print_json({**done.as_json(), "behind_records": behind.records, "behind_seconds": rounded(behind.seconds)})
        elif time.monotonic() - self._shown_at >= self._every_seconds:
            if self._rows or behind.records or not self._every_seconds:
                files = f"{counted(self._files, 'file')}, {byte_size(self._bytes)}"
                click.echo(f"{counted(self._rows, 'message')} added ({files}); {behind_text(behind)}")
            self._rows = self._files = self._bytes = 0
            self._shown_at = time.monotonic()

    def failed(self, error: Exception, pause: float) -> None:
        warn(f"{in_one_line(error)}; next run in {pause:g} s")


def warn(text: str) -> None:
    click.echo(printable(text), err=True)


def behind_text(behind: "Behind") -> str:
    """As a part of a sentence."""
    if not behind.records:
        return "nothing is left"
    since = "" if behind.seconds is None else f", at most {behind.seconds:.1f} s"
    return f"{counted(behind.records, 'record')} behind{since}"


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def show_standing(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    size = byte_size(found["bytes"])
    click.echo(f"{counted(found['rows'], 'message')} in {counted(found['files'], 'file')}, {size}")
    click.echo(f"version {found['version']}, the last commit was at {found['last_commit']}")
    click.echo(f"{counted(found['behind_records'], 'record')} behind")
    for one in found["lost"]:
        click.echo(
            printable(f"without {one['origin']} from {one['first']} to {one['last']}: {one['why']}, {one['at']}")
        )


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set `stop`; a second one ends the process as usual."""

    def ask(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        click.echo("stopping after this commit", err=True)
        stop.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
