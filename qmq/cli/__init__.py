"""The command line: one module per command, imported only when that command runs, so that `qmq --help` is quick.

    output    failures, tables and JSON, the same everywhere
    client    a small blocking STOMP client over the codec
    options   options that several commands share
    lazy      groups of commands that are imported when they run
    launch    nodes as processes of this machine; also what tests/cluster drives
    mesh_members  `qmq mesh check` and `retire`
    serve, mesh, send, listen, status, listing, config, log, pipeline, bench     the commands

Exit codes, the same everywhere: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong.
"""

import click

from .. import __version__
from ..build import BUILD
from .lazy import LazyGroup, Table

# Name → where the command is, and its first line of help: shown without importing anything.
# tests/cli holds the two equal.
COMMANDS: Table = {
    "serve": ("qmq.cli.serve:serve", "Run one node until it is told to stop."),
    "mesh": ("qmq.cli.mesh:mesh", "Start, stop and show a mesh on this machine."),
    "send": ("qmq.cli.send:send", "Send messages to a destination."),
    "listen": ("qmq.cli.listen:listen", "Print the messages of a destination as they come."),
    "status": ("qmq.cli.status:status", "Show what a node is doing."),
    "queues": ("qmq.cli.listing:queues", "List queues with messages or consumers."),
    "topics": ("qmq.cli.listing:topics", "List topics and patterns with subscribers."),
    "fanouts": ("qmq.cli.listing:fanouts", "List fanouts that have a log or followers."),
    "subscribers": ("qmq.cli.listing:subscribers", "List who is subscribed to a destination."),
    "config": ("qmq.cli.config:config", "Check, show and compare configuration, hash passwords."),
    "log": ("qmq.cli.log:log", "Verify and print the commit log of a data directory."),
    "pipeline": ("qmq.cli.pipeline:pipeline", "Keep, examine and replay the history of a mesh with Spark."),
    "bench": ("qmq.cli.bench:bench", "Measure a broker on this machine."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qmq", message=f"%(prog)s %(version)s ({BUILD} Python)")
def main() -> None:
    """QMQ: a masterless mesh of equal message-broker nodes for any STOMP client.

    \b
    Try it:
      qmq serve                               one node on 127.0.0.1:61613
      qmq send /queue/hello "hello"           in another shell
      qmq listen /queue/hello --count 1
      qmq mesh up peers.toml                  every node of a peers file

    Exit codes: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong.
    """
