"""The command line: one module per command, imported only when that command runs, so that `qmq --help` is fast.

    output    errors, tables and JSON, the same in all commands
    client    a small blocking STOMP client over the codec
    options   options that several commands share
    lazy      groups of commands that are imported when they run
    launch    nodes as processes on this machine; tests/cluster uses it, too
    mesh_members  `qmq mesh check` and `retire`
    serve, mesh, send, listen, status, admin, config, deploy, log, backup, archive, pipeline, bench     the commands

Exit codes of all commands: 0 success, 1 failure, 2 an error in the command line or the configuration.
"""

import click

from .. import __version__
from ..build import BUILD
from .lazy import LazyGroup, Table

# Name → the module of the command, and its first line of help: shown without an import. Without that line, it is the
# command of a verb, whose declaration has the help.
COMMANDS: Table = {
    "serve": ("qmq.cli.serve:serve", "Run one node until it is stopped."),
    "mesh": ("qmq.cli.mesh:mesh", "Show and change a mesh; start and stop one on this machine."),
    "send": ("qmq.cli.send:send", "Send messages to a destination."),
    "listen": ("qmq.cli.listen:listen", "Print the messages of a destination as they arrive."),
    "status": ("qmq.cli.status:status", "Show the status of a node."),
    "conditions": ("qmq.cli.admin.conditions:conditions", ""),
    "top": ("qmq.cli.top.command:top", "Show a mesh live: nodes, links, rates, conditions, and the deepest queues."),
    "doctor": ("qmq.cli.doctor.command:doctor", "Find what is wrong with a running mesh, or with the files of a node."),
    "support": ("qmq.cli.doctor.support:support", "Collect what a developer needs to find a fault, in one file."),
    "queues": ("qmq.cli.admin.queues:queues", "List, declare and delete queues."),
    "topics": ("qmq.cli.admin.listing:topics", "List topics and patterns with subscribers, and topics with totals."),
    "fanouts": ("qmq.cli.admin.listing:fanouts", "List fanouts with a log or subscribers."),
    "subscribers": ("qmq.cli.admin.listing:subscribers", "List the subscribers of a destination."),
    "purge": ("qmq.cli.admin.bulk:purge", ""),
    "move": ("qmq.cli.admin.bulk:move", ""),
    "redrive": ("qmq.cli.admin.bulk:redrive", ""),
    "delete": ("qmq.cli.admin.delete:delete", ""),
    "pause": ("qmq.cli.admin.bulk:pause", ""),
    "resume": ("qmq.cli.admin.bulk:resume", ""),
    "peek": ("qmq.cli.admin.messages:peek", ""),
    "get": ("qmq.cli.admin.messages:get", ""),
    "trace": ("qmq.cli.admin.messages:trace", ""),
    "connections": ("qmq.cli.admin.connections:connections", ""),
    "links": ("qmq.cli.admin.connections:links", ""),
    "kick": ("qmq.cli.admin.connections:kick", ""),
    "drain": ("qmq.cli.admin.drain:drain", ""),
    "undrain": ("qmq.cli.admin.drain:undrain", ""),
    "definitions": ("qmq.cli.admin.definitions:definitions", "Export, import and compare the definitions of a mesh."),
    "policies": ("qmq.cli.admin.definitions:policies", "List, set, delete and explain the policies of destinations."),
    "schemas": ("qmq.cli.admin.definitions:schemas", "List, show, set and delete the Avro schemas of a mesh."),
    "exchanges": ("qmq.cli.admin.routing:exchanges", "List, declare and delete the exchanges of a mesh."),
    "bindings": ("qmq.cli.admin.routing:bindings", "List, add and delete the bindings of a mesh."),
    "vhosts": ("qmq.cli.admin.routing:vhosts", "List, declare and delete the virtual hosts of a mesh."),
    "users": ("qmq.cli.admin.access:users", "List, add and delete the users of a mesh."),
    "permissions": (
        "qmq.cli.admin.access:permissions",
        "List, add and delete the permissions of users and groups.",
    ),
    "limits": ("qmq.cli.admin.access:limits", "List, set and delete the limits of users and groups."),
    "config": ("qmq.cli.config:config", "Check, show, compare and migrate configuration; hash passwords."),
    "init": ("qmq.cli.deploy.init:init", "Write the files of a new mesh: a folder for each node, certificates, units."),
    "cert": ("qmq.cli.deploy.cert:cert", "Make and renew the certificates of a mesh."),
    "log": ("qmq.cli.log:log", "Verify and print the commit log of a data directory."),
    "backup": ("qmq.cli.backup.command:backup", "Back up a node, which may be running; verify backups."),
    "restore": (
        "qmq.cli.backup.command:restore",
        "Restore a backup to the data directory of a node, which must be missing or empty.",
    ),
    "archives": ("qmq.cli.admin.archives:archives", "List, set and delete the archives of a mesh."),
    "archive": (
        "qmq.cli.pipeline.archiver:archive",
        "Add the messages of a mesh to a Delta table, without Spark.",
    ),
    "pipeline": ("qmq.cli.pipeline:pipeline", "Archive, audit and replay the history of a mesh with Spark."),
    "demo": ("qmq.cli.deploy.demo:demo", "Show a mesh: three nodes with traffic, the console, a kill and a return."),
    "completion": ("qmq.cli.deploy.shell:completion", "Print the completion of commands and options for a shell."),
    "man": ("qmq.cli.deploy.shell:man", "Print the manual page of all commands."),
    "bench": ("qmq.cli.bench.command:bench", "Measure a broker on this machine."),
}


class Root(LazyGroup):
    """The commands of the table, and those of verbs that name a command."""

    def summaries(self) -> dict[str, str]:
        from qmq.verbs.table import VERBS  # Only for help: other commands start without it.

        known = {
            name: text or str(VERBS[name].__doc__).partition("\n")[0] for name, text in super().summaries().items()
        }
        return {
            **known,
            **{verb.command: str(verb.__doc__).partition("\n")[0] for verb in VERBS.values() if verb.command},
        }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return super().get_command(ctx, cmd_name)
        from qmq.cli.admin.verb import plain_commands

        return plain_commands().get(cmd_name)


@click.group(cls=Root, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qmq", message=f"%(prog)s %(version)s ({BUILD} Python)")
def main() -> None:
    """QMQ: a masterless mesh of equal message-broker nodes for any STOMP client.

    \b
    Try it:
      qmq demo                                three nodes, traffic, a kill and a return
      qmq serve                               one node on 127.0.0.1:61613
      qmq send /queue/hello "hello"           in another shell
      qmq listen /queue/hello --count 1
      qmq mesh up peers.toml                  every node of a peers file

    Exit codes: 0 success, 1 failure, 2 an error in the command line or the configuration.
    """
