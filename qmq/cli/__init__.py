"""The command line: one module per command, imported only when that command runs, so that `qmq --help` is quick.

    output    failures, tables and JSON, the same everywhere
    client    a small blocking STOMP client over the codec
    options   options that several commands share
    launch    nodes as processes of this machine; also what tests/cluster drives
    serve, mesh, send, listen, status, config, log, bench     the commands

Exit codes, the same everywhere: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong.
"""

import importlib
from collections.abc import Mapping

import click

from .. import __version__
from ..errors import ConfigError, QmqError
from .output import Failed, Mistakes

# Name → where the command is, and its first line of help: shown without importing anything.
# tests/cli holds the two equal.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("qmq.cli.serve:serve", "Run one node until it is told to stop."),
    "mesh": ("qmq.cli.mesh:mesh", "Start, stop and show a mesh on this machine."),
    "send": ("qmq.cli.send:send", "Send messages to a destination."),
    "listen": ("qmq.cli.listen:listen", "Print the messages of a destination as they come."),
    "status": ("qmq.cli.status:status", "Show what a node is doing."),
    "config": ("qmq.cli.config:config", "Check and show configuration, hash passwords."),
    "log": ("qmq.cli.log:log", "Verify and print the commit log of a data directory."),
    "bench": ("qmq.cli.bench:bench", "Measure a node on this machine."),
}


class LazyGroup(click.Group):
    """Finds commands by the table above, and turns the package's errors into a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise Mistakes(error.mistakes) from error
        except QmqError as error:
            raise Failed(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qmq")
def main() -> None:
    """QMQ: a masterless mesh of equal message-broker nodes for any STOMP client.

    \b
    Try it:
      qmq serve                               one node on 127.0.0.1:61613
      qmq send /queue/hello "hello"           in another shell
      qmq listen /queue/hello --count 1
      qmq mesh up cluster/three.toml          three nodes

    Exit codes: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong.
    """
