"""Drivers that tests kill: `python -m tests.spark.drivers stream|sink …`, each a whole Spark of its own."""

import sys

from qmq.spark.session import running


def stream(path: str, out: str) -> None:
    """Read everything there is into Parquet files, in small micro-batches, and end."""
    with running("stream") as spark:
        frame = (
            spark.readStream.format("qmq")
            .options(path=path, columns="origin,sequence", maxRecordsPerTrigger="400")
            .load()
        )
        query = (
            frame.writeStream.format("parquet")
            .option("path", f"{out}/rows")
            .option("checkpointLocation", f"{out}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def sink(servers: str, rows: str, *queues: str) -> None:
    """Publish so many numbered rows to each queue, at a rate that leaves time to be killed."""
    with running("sink") as spark:
        frame = spark.range(0, int(rows), 1, 2).selectExpr("cast(id as string) as body")
        for queue in queues:
            options = {"servers": servers, "destination": queue, "name": f"numbers of {queue}", "rate": "400"}
            frame.write.format("qmq").mode("append").options(**options).save()


if __name__ == "__main__":
    {"stream": stream, "sink": sink}[sys.argv[1]](*sys.argv[2:])
