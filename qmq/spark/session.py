"""The Spark session of a job: the one that `spark-submit` or a notebook has, else one on this machine.

Surprising: Spark's workers use the `python3` of the PATH, not the one that runs here, unless set before they start.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

MASTER_HERE: Final = "local[*]"
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a Spark that is all on this machine: its ports stay unreachable from others."""
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    # Spark litters the working directory otherwise.
    "spark.sql.warehouse.dir": "/tmp/qmq-spark-warehouse",
    # Before there is a session whose level could be set, the JVM has had its say.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
}


def session(app_name: str = "qmq") -> SparkSession:
    """A session to work with. One that exists is taken as it is; the master is never chosen for `spark-submit`."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if not chosen_elsewhere():
        master = os.environ.get("SPARK_MASTER", MASTER_HERE)
        builder = builder.master(master)
        here = LOOPBACK if master.startswith("local[") or master == "local" else {}
        for key, value in {**DEFAULTS, **here}.items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def chosen_elsewhere() -> bool:
    """Whether `spark-submit` runs this, or a server of Spark Connect is named: they have the master and all else."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


@contextmanager
def running(app_name: str = "qmq") -> Iterator[SparkSession]:
    """A session for one job; stopped at the end, unless it was there before."""
    there = SparkSession.getActiveSession() is not None
    spark = session(app_name)
    try:
        yield spark
    finally:
        if not there:
            spark.stop()
