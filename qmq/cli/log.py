"""`qmq log`: what is in the commit log of a data directory, with the node running or not."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from .listen import json_body
from .options import FOLDER, json_option
from .output import Failed, body_text, byte_size, print_json, table

SUMMARY_CHARACTERS_MAX = 80


@click.group
def log() -> None:
    """Verify and print the commit log of a data directory."""


@log.command
@click.argument("directory", type=FOLDER)
@json_option
def verify(directory: Path, as_json: bool) -> None:
    """Check every batch of the journal and of the fanout logs, the catalog, and every row of the queue store.

    Exit code 1 when something is damaged. What a crash left behind the last whole batch (a torn tail) is no damage:
    nothing of it was receipted. Reads only; nothing is repaired, and the node may be running.
    """
    from ..storage.verify import verify as check

    try:
        report = check(directory)
    except OSError as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json({**_plain(asdict(report)), "damaged": report.damaged})
    else:
        rows = [
            [one.path, one.base, one.batches, one.records, byte_size(one.bytes), byte_size(one.tail_bytes)]
            + ["sealed" if one.sealed else "open"]
            for one in report.segments
        ]
        click.echo("\n".join(table(["SEGMENT", "BASE", "BATCHES", "RECORDS", "SIZE", "TAIL", "STATE"], rows)))
        for segment in report.segments:
            for start, end in segment.bad:
                click.echo(f"DAMAGED {segment.path}: no batch can be read from {start} to {end}")
            for gap in segment.violations:
                click.echo(
                    f"DAMAGED {segment.path}: {gap.origin} goes on with {gap.found} instead of {gap.expected}, "
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
        for entry in report.quarantined:
            click.echo(f"put aside at an earlier start: {entry.start} to {entry.end}")
        click.echo("damaged" if report.damaged else "ok")
    if report.damaged:
        sys.exit(1)


@log.command
@click.argument("directory", type=FOLDER)
@click.option("--destination", metavar="NAME", help="Only the records of this destination.")
@json_option
def dump(directory: Path, destination: str | None, as_json: bool) -> None:
    """Print the records of the journal, in its order.

    A line each: position, origin and sequence, time (UTC), kind, destination, and the beginning of the body. --json
    prints whole records, an object per line. Reads only; the node may be running.
    """
    from ..storage.verify import dump as records

    try:
        for one in records(directory, destination=destination, whole=as_json):
            time = datetime.fromtimestamp(one.timestamp_us / 1e6, UTC).isoformat(timespec="milliseconds")
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
                # Only a message has a body that means something to people; the others are the node's own notes.
                body = body_text(one.body).replace("\n", "\\n") if one.kind == "PUBLISH" else f"{len(one.body)} bytes"
                click.echo(
                    f"{one.position}  {one.origin}:{one.sequence}  {time}  {one.kind}  "
                    f"{body_text(one.destination.encode())}  {_cut(body)}"
                )
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise Failed(str(error)) from error


@log.command
@click.argument("directory", type=FOLDER)
@click.option("--drop", is_flag=True, help="Give up the whole batches behind the damage too.")
@click.option("--yes", is_flag=True, help="Do it. Without this the command only says what it would do.")
@click.option("--queue-store", metavar="URL", default="sqlite", help="Of the node, when its queues are in PostgreSQL.")
def release(directory: Path, drop: bool, yes: bool, queue_store: str) -> None:
    """Bring back what was put aside because of damage before it.

    For a node without peers: with peers, start it and they bring the missing records. What is damaged is given up for
    good, and what follows it of the same incarnation counts again. The node must not be running. Nothing is removed.
    """
    import random
    import time

    from ..broker.messages.send_options import times_of
    from ..errors import StorageError
    from ..storage.catalog.catalog import CATALOG_FILE, SqliteCatalog
    from ..storage.format.interfaces import StoreSettings
    from ..storage.repair.quarantine import drop as drop_all
    from ..storage.repair.quarantine import quarantined_ranges
    from ..storage.repair.quarantine import release as bring_back
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
        store = open_store(directory, node=identity.node, settings=settings, queue_store=queue_store)
        try:
            steps = quarantined_ranges(store.disk, store.journal.vector(), store.journal.start)
            for step in steps:
                if step.gone is not None:
                    click.echo(f"{step.origin}: records {step.gone[0]} to {step.gone[1]} are given up")
                fate = "are given up too" if drop else "come back"
                click.echo(f"{step.origin}: {step.records} records behind them {fate}")
            if not steps:
                click.echo("nothing to bring back: what was put aside is here already, or cannot be read")
            elif yes:
                act = drop_all if drop else bring_back
                act(store, steps, lambda: random.SystemRandom().getrandbits(64), time.time_ns() // 1000)
                click.echo("done: the next start of the node takes it up")
            else:
                click.echo("nothing was changed; --yes does it")
        finally:
            store.close()
    except (OSError, StorageError) as error:
        raise Failed(str(error)) from error


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARACTERS_MAX else text[:SUMMARY_CHARACTERS_MAX] + "…"


def _plain(value: Any) -> Any:
    """Bytes as text, origins as they are printed, the rest as JSON has it."""
    from ..dots import Origin

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
