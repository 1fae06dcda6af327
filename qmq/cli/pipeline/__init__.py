"""`qmq pipeline`: Spark jobs on the commit logs of a mesh. One module per job, imported only when it runs.

Each command is thin: it reads options, runs a function of `qmq.spark.jobs` in a session, and prints the result.
The same commands run under `spark-submit` with any master (`pyspark_qmq/__main__.py`).
"""

import click

from ..lazy import LazyGroup, Table

# Name → the module of the command, and its first line of help: shown without importing Spark. A test compares them.
JOBS: Table = {
    "doctor": ("qmq.cli.pipeline.doctor:doctor", "Check whether everything for the pipeline is installed."),
    "script": ("qmq.cli.pipeline.doctor:script", "Print the path of the file that spark-submit runs."),
    "archive": ("qmq.cli.pipeline.archive:archive", "Add new messages to an archive (a Delta table)."),
    "compact": ("qmq.cli.pipeline.archive:compact", "Combine the small files of an archive."),
    "vacuum": ("qmq.cli.pipeline.archive:vacuum", "Remove unused files of an archive."),
    "erase": ("qmq.cli.pipeline.archive:erase", "Remove messages from an archive or a typed table."),
    "audit": ("qmq.cli.pipeline.audit:audit", "Find records that are missing, doubled, out of order or corrupt."),
    "stats": ("qmq.cli.pipeline.stats:stats", "Show rates, sizes and waiting messages of destinations."),
    "dead-letters": ("qmq.cli.pipeline.dead_letters:dead_letters", "Show dead letters by queue and reason."),
    "replay": ("qmq.cli.pipeline.replay:replay", "Send messages of the past again."),
    "tables": ("qmq.cli.pipeline.tables:tables", "Make a typed table from the bodies of messages."),
    "compare": ("qmq.cli.pipeline.compare:compare", "Compare the messages of two nodes or archives."),
}


@click.group(cls=LazyGroup, table=JOBS)
def pipeline() -> None:
    """Archive, audit and replay the history of a mesh with Spark.

    Needs the extra `qmq[spark]` and Java 17 or newer; `qmq pipeline doctor` lists what is missing. `tables`, `compact`,
    `vacuum` and `erase` need only `qmq[archive]`. Under spark-submit:
    `spark-submit --master … $(qmq pipeline script) archive …`.
    """
