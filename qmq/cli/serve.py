"""`qmq serve`: one node in this process."""

import logging
import sys
from functools import partial
from pathlib import Path

import click

from ..config import load
from ..config.address import Address
from .options import node_options, overrides, read_optional_address

LOG_LEVELS = ("debug", "info", "warning", "error")


@click.command
@node_options
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=read_optional_address,
    help="Serve clients here. A node file with [[stomp]] says it itself.",
)
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What goes to stderr."
)
@click.option(
    "--until-eof", is_flag=True, help="Stop when standard input, a pipe, ends: with the process that holds it."
)
@click.option(
    "--trust-clock",
    is_flag=True,
    help="The clock of this machine is right, whatever its disk and peers say.",
)
def serve(
    config_file: Path | None,
    peers_file: Path | None,
    node_name: str | None,
    data: Path | None,
    listen: Address | None,
    log_level: str,
    until_eof: bool,
    trust_clock: bool,
) -> None:
    """Run one node until it is told to stop.

    Without any option: a node alone on 127.0.0.1:61613, no login needed, its data in ./qmq-data.
    With a peers file, --node (or the node file's name) says which of its nodes this is.

    SIGTERM or Ctrl-C drains: no new connections, what is accepted is recorded, then the node ends.
    SIGHUP reads the files again and takes up what changed: all of it, or nothing and the log says why.
    """
    read = partial(load, config_file, peers_file, node_name, overrides(data, listen))
    settings, peers = read()
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    # Imported last: a mistake in a file is told without waiting for the whole server to load.
    from ..server.main import serve as run

    has_files = config_file is not None or peers_file is not None
    read_again = read if has_files else None
    sys.exit(run(settings, peers, read_again, until_eof=until_eof, trusts_clock=trust_clock))
