"""`qmq pipeline`: jobs on the mesh's commit logs with Spark, a module per job, imported only when it runs.

Each command is thin: it reads options, runs a function of `qmq.spark.jobs` in a session, and prints what came of it.
The same commands run under `spark-submit` with any master (`pyspark_qmq/__main__.py`).
"""

import click

from ..lazy import LazyGroup, Table

# Name → where the command is, and its first line of help: shown without importing Spark. tests/cli holds them equal.
JOBS: Table = {
    "doctor": ("qmq.cli.pipeline.doctor:doctor", "Check that everything is here that the pipeline needs."),
    "script": ("qmq.cli.pipeline.doctor:script", "Print the path of the file that spark-submit runs."),
    "archive": ("qmq.cli.pipeline.archive:archive", "Add what is new to an archive of all messages (a Delta table)."),
    "compact": ("qmq.cli.pipeline.archive:compact", "Put the small files of an archive together."),
    "vacuum": ("qmq.cli.pipeline.archive:vacuum", "Remove files of an archive that nothing needs any more."),
    "audit": ("qmq.cli.pipeline.audit:audit", "Find records that are missing, doubled, out of order or corrupt."),
    "stats": ("qmq.cli.pipeline.stats:stats", "Show what goes through destinations, how fast, and what waits."),
    "dead-letters": ("qmq.cli.pipeline.dead_letters:dead_letters", "Show what was given up, why and how often."),
    "replay": ("qmq.cli.pipeline.replay:replay", "Send messages of the past again."),
    "tables": ("qmq.cli.pipeline.tables:tables", "Make a typed table from the JSON bodies of messages."),
    "compare": ("qmq.cli.pipeline.compare:compare", "Tell whether two nodes or archives hold the same."),
}


@click.group(cls=LazyGroup, table=JOBS)
def pipeline() -> None:
    """Keep, examine and replay the history of a mesh with Spark.

    Needs the extra `qmq[spark]` and Java 17 or newer; `qmq pipeline doctor` says what is missing. Under spark-submit:
    `spark-submit --master … $(qmq pipeline script) archive …`.
    """
