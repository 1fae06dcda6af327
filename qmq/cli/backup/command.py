"""`qmq backup` and `qmq restore`: files of a node of this machine, without its help, or of nodes that are asked."""

import sys
import tarfile
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import click

from ...address import parse_address
from ...config import load
from ...errors import StorageError
from ...storage.backup import BackupManifest, NewBackup, back_up, backups, verify_backup
from ...storage.backup import restore as restore_backup
from ...storage.backup_files import LocalFiles
from ..client import Endpoint
from ..options import FOLDER, GivenPath, directory_of, files_options, json_option, node_options, overrides
from ..output import Failed, byte_size, counted, print_json, printable
from .remote import RemoteFiles


class BackupGroup(click.Group):
    """`qmq backup DIR` is `qmq backup make DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.group(cls=BackupGroup)
def backup() -> None:
    """Back up a node, which may be running; verify backups."""


@backup.command
@click.argument("repository", metavar="DIR|-", type=GivenPath(file_okay=False, allow_dash=True))
@click.option("--mesh", "of_mesh", is_flag=True, help="All nodes of the mesh that --at leads to.")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Remove all but the last N backups of the node.")
@files_options
@json_option
def make(
    repository: str,
    of_mesh: bool,
    keep: int | None,
    endpoint: Endpoint | None,
    config_file: Path | None,
    peers_file: Path | None,
    node_name: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Add a backup of a node to DIR, as DIR/NODE/TIME; with -, write it as a tar archive.

    Copies only what is new since the previous backup of the node in DIR. The node may be running: give --data, or
    --config as for qmq serve; or --at, which asks a node on any machine and needs an administrator. Whatever the node
    confirmed before the command began is in the backup. Exit code 1 if a node of the mesh is missing.
    """
    if of_mesh and endpoint is None:
        raise click.UsageError("--mesh asks the nodes: it needs --at")
    if repository == "-" and keep is not None:
        raise click.UsageError("--keep is for a DIR with earlier backups")
    missing: list[str] = []
    with tempfile.TemporaryDirectory() if repository == "-" else nullcontext(repository) as folder:
        try:
            if endpoint is None:
                source = LocalFiles(_data(config_file, peers_file, node_name, data)[0])
                made = [back_up(source, Path(folder), datetime.now(UTC), keep)]
            else:
                made, missing = _of_nodes(endpoint, Path(folder), keep, of_mesh)
            if repository == "-":
                with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
                    for one in made:
                        archive.add(one.path, one.path.relative_to(folder))
        except OSError as error:
            raise Failed.by(error) from error
    if repository != "-":
        _show(made, missing, of_mesh, as_json)
    for line in missing:
        click.echo(printable(f"qmq: {line}"), err=True)
    if missing:
        sys.exit(1)


def _of_nodes(endpoint: Endpoint, place: Path, keep: int | None, of_mesh: bool) -> tuple[list[NewBackup], list[str]]:
    """Back up the node that responds, and with `of_mesh` all others; and why some of those are missing."""
    with RemoteFiles(endpoint) as first:
        made, missing = [back_up(first, place, datetime.now(UTC), keep)], []
    for name in set(first.members) - {first.node} if of_mesh else ():
        try:
            if name not in first.peers:
                raise Failed("it has no link with the node that was asked")
            with RemoteFiles(endpoint.at(parse_address(first.peers[name]))) as source:
                made.append(back_up(source, place, datetime.now(UTC), keep))
        except (Failed, StorageError) as error:
            missing.append(f"no backup of {name}: {error.message if isinstance(error, Failed) else error}")
    return sorted(made), sorted(missing)


def _show(made: list[NewBackup], missing: list[str], of_mesh: bool, as_json: bool) -> None:
    if as_json:
        facts = [{**one._asdict(), "path": str(one.path)} for one in made]
        print_json({"backups": facts, "missing": missing} if of_mesh else facts[0])
        return
    for one in made:
        removed = f"; {counted(one.removed, 'older backup')} removed" if one.removed else ""
        click.echo(
            f"{one.path}: {one.files} files, {byte_size(one.total_bytes)}, "
            f"of which {byte_size(one.copied_bytes)} are new{removed}"
        )


@backup.command
@click.argument("place", metavar="DIR", type=FOLDER)
@json_option
def verify(place: Path, as_json: bool) -> None:
    """Check every byte of the backups in DIR: all of a repository, those of a node, or one.

    Exit code 1 if one of them is incomplete or damaged, or was made of a damaged node.
    """
    try:
        found = {one: verify_backup(one) for one in backups(place)}
    except OSError as error:
        raise Failed.by(error) from error
    if not found:
        raise Failed(f"{place} has no backup")
    if as_json:
        print_json({str(one): problems for one, problems in found.items()})
    else:
        for one, problems in found.items():
            for problem in problems:
                click.echo(f"DAMAGED {one}: {problem}")
            if not problems:
                click.echo(f"{one}: ok")
    if any(found.values()):
        sys.exit(1)


@click.command
@click.argument("given", metavar="DIR|-", type=GivenPath(file_okay=False, allow_dash=True))
@node_options
@json_option
def restore(
    given: str,
    config_file: Path | None,
    peers_file: Path | None,
    node_name: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Restore a backup to the data directory of a node, which must be missing or empty.

    DIR is one backup, or a place with several: then the last one of the node is taken, which --node or --config names.
    With -, a tar archive of it is read, such as `qmq backup -` writes. The node keeps its name; its addresses, and
    those of its peers, are those of its files.
    """
    target, name = _data(config_file, peers_file, node_name, data)
    try:
        if given != "-":
            taken, manifest = _restored(Path(given), target, name)
        else:
            target.absolute().parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".qmq-restore-", dir=target.absolute().parent) as folder:
                with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
                    # The oldest versions of Python 3.11 have no filters.
                    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
                    archive.extractall(folder)
                try:
                    taken, manifest = _restored(Path(folder), target, name)
                except (Failed, StorageError) as error:
                    text = (
                        (error.message if isinstance(error, Failed) else str(error))
                        .replace(f"{folder}/", "")
                        .replace(folder, "standard input")
                    )
                    raise Failed(text) from error
                taken = taken.relative_to(folder)
    except tarfile.TarError as error:
        raise Failed(f"standard input is no tar archive, or is cut: {error}") from error
    except OSError as error:
        raise Failed.by(error) from error
    if as_json:
        print_json({"backup": str(taken), "node": manifest.node, "time": manifest.time, "data": str(target)})
    else:
        click.echo(f"{target}: the node {manifest.node} as of {manifest.time}")


def _restored(place: Path, target: Path, name: str | None) -> tuple[Path, BackupManifest]:
    """Restore the last backup of the node at `place`. Raises Failed, StorageError, OSError."""
    found = backups(place)
    if name is not None and place not in found:
        found = [one for one in found if one.parent.name == name]
    if len({one.parent for one in found}) > 1:
        raise Failed(f"{place} has backups of several nodes: give --node")
    if not found:
        raise Failed(f"{place} has no backup" + (f" of the node {name}" if name is not None else ""))
    return found[-1], restore_backup(found[-1], target, name)


def _data(
    config_file: Path | None, peers_file: Path | None, node: str | None, data: Path | None
) -> tuple[Path, str | None]:
    """The data directory and, if an option or a file gives it, the name of the node."""
    if config_file is None and peers_file is None:
        if data is None:
            raise click.UsageError("give the data directory of the node: --data, or --config")
        return data, node
    settings, _ = load(config_file, peers_file, node, overrides(data))
    return directory_of(settings), settings.name
