"""`qmq config`: what is wrong with the files, what counts in the end, and password hashes."""

import sys
from pathlib import Path

import click

from ..config import check_together, effective, load, load_node, load_peers
from ..errors import ConfigError
from .options import json_option, node_options, overrides
from .output import print_json


@click.group
def config() -> None:
    """Check and show configuration, hash passwords."""


@config.command
@node_options
def check(config_file: Path | None, peers_file: Path | None, node_name: str | None, data: Path | None) -> None:
    """Check the node file, the peers file, and both together.

    Prints every mistake with its line and leaves with exit code 2 when there is one. Without --node, a peers file is
    checked for each of its nodes.
    """
    if config_file is None and peers_file is None:
        raise click.UsageError("give --config, --peers or both")
    if config_file is None and peers_file is not None and node_name is None:
        peers = load_peers(peers_file)
        mistakes: list[str] = []
        for peer in peers.nodes:
            found = check_together(load_node(None, {"name": peer.name}), peers, str(peers_file))
            mistakes += [mistake for mistake in found if mistake not in mistakes]
        if mistakes:
            raise ConfigError(mistakes)
    else:
        load(config_file, peers_file, node_name, overrides(data))
    for file in (config_file, peers_file):
        if file is not None:
            click.echo(f"{file}: ok")


@config.command
@node_options
@json_option
def show(
    config_file: Path | None, peers_file: Path | None, node_name: str | None, data: Path | None, as_json: bool
) -> None:
    """Print every setting with the value that counts, as TOML.

    Password hashes are hidden. Without options: the defaults.
    """
    settings, _ = load(config_file, peers_file, node_name, overrides(data))
    text = effective(settings)
    if as_json:
        import tomllib

        print_json(tomllib.loads(text))
    else:
        click.echo(text, nl=False)


@config.command("hash")
def hash_password() -> None:
    """Make the password_hash of a user.

    Asks for the password twice on a terminal; otherwise takes the first line of standard input. The password is
    neither printed nor stored.
    """
    if sys.stdin.isatty():
        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not password:
        raise click.UsageError("the password is empty")
    from argon2 import PasswordHasher

    click.echo(PasswordHasher().hash(password))
