"""`qmq archives`: tables that the mesh has defined, for `qmq archive`."""

from typing import Any

import click

from ..output import show_table
from .request import list_command, read_values
from .verb import Asked, change_options


@click.group
def archives() -> None:
    """List, set and delete the archives of a mesh.

    An archive is a Delta table that `qmq archive` fills, on any machine.
    """


@list_command(archives, "definitions/list/archive")
def list_archives(facts: dict[str, Any]) -> None:
    """List the archives, and what each has.

    `qmq status` shows how far each is behind.
    """
    rows = [
        [row["name"], row["value"].get("table"), " ".join(row["value"].get("destinations", ("all",)))]
        for row in facts["definitions"]
    ]
    show_table(["NAME", "TABLE", "DESTINATIONS"], rows)


@archives.command("set")
@click.argument("name")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@change_options
def set_archive(name: str, values: tuple[str, ...], asked: Asked) -> None:
    """Set which table the archive NAME fills: table=/data/archive.

    The keys are `table`, `destinations`, `iceberg`, `behind_seconds_max`; a VALUE is JSON, or text. Keys of an object
    store or a catalog are no part of it: each archiver has them in its environment. Exit code 1 if the archive is not
    allowed; then nothing has changed.
    """
    asked.put(f"archive/{name}", read_values(values))


@archives.command("delete")
@click.argument("name")
@change_options
def delete_archive(name: str, asked: Asked) -> None:
    """Delete the definition of an archive; the table stays.

    Exit code 1 if there is none.
    """
    asked.delete(f"archive/{name}")
