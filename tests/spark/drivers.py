"""Drivers that tests kill, each a Spark of its own:
`python -m tests.spark.drivers stream|backfill|sink|connect|endless …`.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from qmq.spark import backfill
from qmq.spark.session import running
from tests.spark.kills import PATIENCE_SECONDS
from tests.support.cluster_wait import eventually

SERVING = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.ui.enabled": "false",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.shuffle.partitions": "2",
}


def stream(path: str, out: str) -> None:
    """Read everything there is into Parquet files, in small micro-batches, and end."""
    with running("stream") as spark:
        frame = (
            spark.readStream.format("qmq")
            .options(path=path, columns="origin,sequence", maxRecordsPerTrigger="400")
            .load()
        )
        _write(frame, out)


def behind_archive(path: str, table: str, out: str) -> None:
    """The same of an archive and what comes behind it, in a session of Spark Connect if `SPARK_REMOTE` names one.

    As the page on Spark says it: the past is written until the stream has begun.
    """
    with running("backfill") as spark:
        past, live = backfill(spark, table, path=path, columns="origin,sequence", maxRecordsPerTrigger="400")
        if not Path(out, "checkpoint", "offsets", "0").exists():
            past.write.mode("overwrite").parquet(f"{out}/past")
        _write(live, out)


def _write(frame: Any, out: str) -> None:
    query = (
        frame.writeStream.format("parquet")
        .option("path", f"{out}/rows")
        .option("checkpointLocation", f"{out}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def connect(port: str) -> None:
    """Serve Spark Connect until it is killed."""
    SparkSession.builder.master("local[2]").config(
        map=SERVING | {"spark.connect.grpc.binding.port": port}
    ).getOrCreate()
    signal.pause()


def sink(servers: str, rows: str, *queues: str) -> None:
    """Publish so many numbered rows to each queue, at a rate that leaves time to be killed."""
    with running("sink") as spark:
        frame = spark.range(0, int(rows), 1, 2).selectExpr("cast(id as string) as body")
        for queue in queues:
            options = {"servers": servers, "destination": queue, "name": f"numbers of {queue}", "rate": "400"}
            frame.write.format("qmq").mode("append").options(**options).save()


def endless() -> None:
    """A job that works until Ctrl-C."""
    with suppress(KeyboardInterrupt), running("endless") as spark:
        tracker = spark.sparkContext.statusTracker()

        def interrupt() -> None:
            eventually(tracker.getActiveJobsIds, "no job works", PATIENCE_SECONDS)
            os.killpg(0, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        spark.range(1 << 50).selectExpr("sum(id * id % 7)").collect()
    print("stopped")


if __name__ == "__main__":
    {"stream": stream, "backfill": behind_archive, "sink": sink, "connect": connect, "endless": endless}[sys.argv[1]](
        *sys.argv[2:]
    )
