"""`qmq config`: check files, show effective settings, compare two files, move old sections, and hash passwords."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from ..config import load, load_node, load_peers
from ..config.certificates import DOUBTFUL, check_certificates
from ..config.difference import difference
from ..config.load import named_peers
from ..config.migration import migrated, shown_difference, write_beside
from ..config.node import in_memory
from ..config.secrecy import readable_hashes
from ..config.show import effective
from ..config.users import groups_without_permission
from ..errors import ConfigError
from ..settings.file_check import errors_in
from .options import FILE, json_option, node_options, overrides
from .output import Failed, print_json, printable
from .passwords import hash_of, password_on_stdin


@click.group
def config() -> None:
    """Check, show, compare and migrate configuration; hash passwords."""


@config.command
@node_options
def check(config_file: Path | None, peers_file: Path | None, node_name: str | None, data: Path | None) -> None:
    """Check the node file, the peers file, and both together.

    Reads the TLS files, too. Prints every error with its line. Exit code 2 if there is one. Without --node, and
    without a name in the node file, both files are checked for each node of the peers file.
    """
    if config_file is None and peers_file is None:
        raise click.UsageError("give --config, --peers or both")
    peers_file = peers_file or named_peers(config_file)
    for note in check_files(config_file, peers_file, node_name, overrides(data)):
        click.echo(printable(f"note: {note}"))
    for file in (config_file, peers_file):
        if file is not None:
            click.echo(f"{file}: ok")


def check_files(
    config_file: Path | None, peers_file: Path | None, node_name: str | None, given: dict[str, object]
) -> list[str]:
    """Notes about files without errors. Raises ConfigError with all errors."""
    diagnostics: list[str] = []
    names = [node_name] if node_name is not None else _nodes_to_check(config_file, peers_file, given)
    read = None
    for name in names:
        try:
            read = load(config_file, peers_file, name, given)
        except ConfigError as error:
            diagnostics += [line for line in error.diagnostics if line not in diagnostics]
    notes: list[str] = []
    if read is not None and not diagnostics:
        settings, peers = read
        diagnostics += errors_in(settings)
        tls = check_certificates(load_node(config_file, given) if len(names) > 1 else settings, config_file, peers)
        diagnostics += [one.text for one in tls if one.severity != DOUBTFUL]
        notes = [one.text for one in tls if one.severity == DOUBTFUL]
        notes += [in_memory(settings.storage)] if settings.directory is None else []
        notes += [*settings.notes, *(note for note in [readable_hashes(settings)] if note is not None)]
        named = [row.get("group") for row in settings.definitions.get("permission", {}).values()]
        for name, user in settings.definitions.get("user", {}).items():
            found = groups_without_permission(name, user.get("groups", ()), named)
            notes += [f"{config_file}: users: {line}" for line in found]
    if diagnostics:
        raise ConfigError(diagnostics)
    return notes


def _nodes_to_check(
    config_file: Path | None, peers_file: Path | None, given: dict[str, object]
) -> Sequence[str | None]:
    """Every node of the peers file; None alone if the node file has a name, or if a file cannot be read."""
    try:
        if peers_file is not None and "name" not in load_node(config_file, given).set_keys:
            return [peer.name for peer in load_peers(peers_file).nodes]
    except ConfigError:
        pass  # `load` reports the errors.
    return [None]


@config.command
@node_options
@json_option
def show(
    config_file: Path | None, peers_file: Path | None, node_name: str | None, data: Path | None, as_json: bool
) -> None:
    """Print every setting with its effective value, as TOML.

    Password hashes are hidden. Without options, these are the defaults.
    """
    settings, _ = load(config_file, peers_file, node_name, overrides(data))
    text = effective(settings)
    if as_json:
        import tomllib

        print_json(tomllib.loads(text))
    else:
        click.echo(text, nl=False)


@config.command
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@json_option
def diff(old: Path, new: Path, as_json: bool) -> None:
    """Print what differs between two node files, key by key.

    Both are checked and compared by their effective values: defaults count, order and comments do not. Secrets are
    never shown. Changes that a running node does not apply at SIGHUP are marked.
    """
    diagnostics: list[str] = []
    settings = []
    for path in (old, new):
        try:
            settings.append(load_node(path))
        except ConfigError as error:
            diagnostics += error.diagnostics
    if diagnostics:
        raise ConfigError(diagnostics)
    changes = difference(*settings)
    if as_json:
        print_json([asdict(change) for change in changes])
        return
    for change in changes:
        click.echo(printable(f"{change}  [needs a restart]" if change.needs_restart else str(change)))
    if not changes:
        click.echo("no difference")


@config.command
@click.argument("file", type=FILE)
@click.option("--write", is_flag=True, help="Write the new file beside the old one, as FILE.new.")
def migrate(file: Path, write: bool) -> None:
    """Move the sections of earlier versions to [definitions], and print what changes.

    These are users, permissions, user_limits, queues, exchanges, bindings and destinations.policies. Comments stay.
    FILE itself is not changed. Hashes of passwords are not shown. Exit code 2 if FILE has errors, as of `check`, and 1
    if a section cannot be moved.
    """
    load_node(file)
    try:
        old = file.read_text("utf-8")
        new = migrated(old)
    except (OSError, ValueError) as error:
        raise Failed(f"{file}: {error}") from error
    if new == old:
        click.echo("nothing to move")
        return
    beside = file.with_name(f"{file.name}.new")
    for line in shown_difference(old, new, file, beside):
        click.echo(printable(line))
    if not write:
        return
    try:
        write_beside(file, beside, new)
    except OSError as error:
        raise Failed(f"{beside}: cannot be written: {error.strerror}") from error
    click.echo(f"written: {beside}. Check it (`qmq config check --config {beside}`), and put it in the place of {file}")


@config.command("hash")
def hash_password() -> None:
    """Print the password_hash of a user.

    On a terminal, asks for the password twice. Otherwise, the first line of standard input is the password. It is
    neither printed nor stored.
    """
    if sys.stdin.isatty():
        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = password_on_stdin()
    click.echo(hash_of(password))
