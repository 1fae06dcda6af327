"""`qmq log`: verify, print, search and restore the commit log of a data directory."""

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..unix_socket import SOCKET_NAME
from .listen import json_body
from .log_search import search
from .options import FOLDER, json_option
from .output import Failed, body_text, byte_size, print_json, show_table, utc_text

SUMMARY_CHARACTERS_MAX = 80


@click.group
def log() -> None:
    """Verify and print the commit log of a data directory."""


@log.command
@click.argument("directory", type=FOLDER)
@json_option
def verify(directory: Path, as_json: bool) -> None:
    """Check every batch of the journal and of the fanout logs, the catalog, and every row of the queue store.

    Exit code 1 if something is damaged. Bytes that a crash left after the last whole batch (a torn tail) are no damage:
    nothing in them was confirmed. The command only reads, and the node may be running.
    """
    from ..storage.verify import verify as check

    try:
        report = check(directory)
    except OSError as error:
        raise Failed.by(error) from error
    if as_json:
        print_json({**_plain(asdict(report)), "damaged": report.damaged})
    else:
        rows = [
            [one.path, one.base, one.batches, one.records, byte_size(one.bytes), byte_size(one.tail_bytes)]
            + ["sealed" if one.sealed else "open"]
            for one in report.segments
        ]
        show_table(["SEGMENT", "BASE", "BATCHES", "RECORDS", "SIZE", "TAIL", "STATE"], rows)
        for segment in report.segments:
            for start, end in segment.bad:
                click.echo(f"DAMAGED {segment.path}: no batch can be read from {start} to {end}")
            for gap in segment.violations:
                click.echo(
                    f"DAMAGED {segment.path}: {gap.origin} continues with {gap.found} instead of {gap.expected}, "
                    f"at {gap.position}"
                )
            if segment.error is not None:
                click.echo(f"DAMAGED {segment.path}: {segment.error}")
        for database in report.databases:
            if database.rows:
                click.echo(f"{database.path}: {database.rows} messages")
            for what in database.damaged_rows:
                click.echo(f"DAMAGED {database.path}: the row of {what}")
            if database.error is not None:
                click.echo(f"DAMAGED {database.path}: {database.error}")
        for text in report.inconsistent:
            click.echo(f"DAMAGED: {text}: this is no consistent copy; use qmq backup to copy a running node")
        for entry in report.quarantined:
            click.echo(f"quarantined at an earlier start: {entry.start} to {entry.end}")
        click.echo("damaged" if report.damaged else "ok")
        if (directory / SOCKET_NAME).exists():
            click.echo(
                f"note: {SOCKET_NAME} is there, so the node runs, was killed, or ran when this copy was made. "
                "What was confirmed during a copy may be missing in it: copy a stopped node, or use qmq backup"
            )
    if report.damaged:
        sys.exit(1)


@log.command
@click.argument("directory", type=FOLDER)
@click.option("--destination", metavar="NAME", help="Only the records of this destination.")
@json_option
def dump(directory: Path, destination: str | None, as_json: bool) -> None:
    """Print the records of the journal, in order.

    Each record is one line: position, origin and sequence, time (UTC), kind, destination, and the beginning of the
    body. --json prints whole records, one object per line. The command only reads, and the node may be running.
    """
    from ..storage.verify import dump as records

    try:
        for one in records(directory, destination=destination, whole=as_json):
            time = utc_text(one.timestamp_us)
            if as_json:
                facts: dict[str, Any] = {
                    "position": one.position,
                    "origin": str(one.origin),
                    "sequence": one.sequence,
                    "timestamp_us": one.timestamp_us,
                    "kind": one.kind,
                    "flags": one.flags,
                    "destination": one.destination,
                    "headers": one.headers.decode("utf-8", "backslashreplace"),
                }
                print_json({**facts, **json_body(one.body)})
            else:
                # Only the body of a message is for people; other bodies are binary.
                body = body_text(one.body).replace("\n", "\\n") if one.kind == "PUBLISH" else f"{len(one.body)} bytes"
                click.echo(
                    f"{one.position}  {one.origin}:{one.sequence}  {time}  {one.kind}  "
                    f"{body_text(one.destination.encode())}  {_cut(body)}"
                )
    except BrokenPipeError:
        raise  # the reader of the pipe has closed it
    except OSError as error:
        raise Failed.by(error) from error


@log.command
@click.argument("directory", type=FOLDER)
@click.option("--drop", is_flag=True, help="Also give up the intact batches after the damage.")
@click.option("--yes", is_flag=True, help="Apply the changes. Without this, the command only prints them.")
@click.option(
    "--queue-store", metavar="URL", default="sqlite", help="Queue store of the node, if its queues are in PostgreSQL."
)
def release(directory: Path, drop: bool, yes: bool, queue_store: str) -> None:
    """Restore intact batches that were quarantined because of damage before them.

    Use this for a node without peers. If the node has peers, start it: they send the missing records. The damaged
    records are given up for good, and later records of the same incarnation are valid again. The node must not be
    running. Nothing is removed from quarantine/.
    """
    import random
    import time

    from ..broker.messages.send_options import times_of
    from ..errors import StorageError
    from ..storage.catalog.catalog import CATALOG_FILE, SqliteCatalog
    from ..storage.format.settings import StoreSettings
    from ..storage.quarantine_restore import drop as drop_all
    from ..storage.quarantine_restore import quarantined_ranges
    from ..storage.quarantine_restore import release as restore
    from ..storage.store import open_store

    if not (directory / CATALOG_FILE).exists():
        raise Failed(f"{directory} is not the data directory of a node: it has no catalog")
    try:
        catalog = SqliteCatalog(directory / CATALOG_FILE)
        identity = catalog.identity()
        catalog.close()
        if identity is None:
            raise Failed(f"{directory} has never been used by a node")
        settings = StoreSettings(times_of=times_of)
        with closing(open_store(directory, node=identity.node, settings=settings, queue_store=queue_store)) as store:
            steps = quarantined_ranges(store.disk, store.journal.vector(), store.journal.start)
            for step in steps:
                if step.lost is not None:
                    click.echo(f"{step.origin}: records {step.lost[0]} to {step.lost[1]} are given up")
                outcome = "are given up, too" if drop else "are restored"
                click.echo(f"{step.origin}: {step.records} records after them {outcome}")
            if not steps:
                click.echo("nothing to restore: quarantined batches are in the journal already, or cannot be read")
            elif yes:
                act = drop_all if drop else restore
                act(store, steps, lambda: random.SystemRandom().getrandbits(64), time.time_ns() // 1000)
                click.echo("done: the node applies this at its next start")
            else:
                click.echo("nothing was changed; add --yes to apply this")
    except (OSError, StorageError) as error:
        raise Failed.by(error) from error


log.add_command(search)


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS_MAX else text[:SUMMARY_CHARACTERS_MAX] + "…"


def _plain(value: Any) -> Any:
    """Bytes as text, origins as they are printed, the rest as JSON has it."""
    from qmq.model.dots import Origin

    if isinstance(value, Origin):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
