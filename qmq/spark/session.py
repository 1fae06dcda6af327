"""The Spark session of a job: the one that `spark-submit` or a notebook has, else one on this machine.

Surprising: Spark's workers use the `python3` of the PATH, not the one that runs here, unless set before they start.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

MASTER_HERE: Final = "local[*]"
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a Spark that is all on this machine: its ports stay unreachable from others."""
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
PATIENCE: Final = ("spark.python.authenticate.socketTimeout", "120s")
"""For a worker to connect; on a busy machine the usual 15 s are too short."""
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    # Spark litters the working directory otherwise.
    "spark.sql.warehouse.dir": "/tmp/qmq-spark-warehouse",
    # Before there is a session whose level could be set, the JVM has had its say.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
}
CHATTER: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Java writes this about a module that Spark asks for, and has no option to be silent about it."""
READ_BYTES: Final = 64 << 10


def session(app_name: str = "qmq") -> SparkSession:
    """A session to work with. One that exists is taken as it is; the master is never chosen for `spark-submit`."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not chosen_elsewhere():
        master = os.environ.get("SPARK_MASTER", MASTER_HERE)
        here = LOOPBACK if master.startswith("local[") or master == "local" else {}
        _start(SparkConf().setAppName(app_name).setMaster(master).setAll([*DEFAULTS.items(), *here.items(), PATIENCE]))
    elif "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # what spark-submit was given is in the JVM
        SparkContext.getOrCreate(SparkConf().setAppName(app_name).setIfMissing(*PATIENCE))
    return SparkSession.builder.appName(app_name).getOrCreate()


def _start(conf: SparkConf) -> None:
    """Start Spark, unless it runs. A JVM of an earlier one is taken, as Spark itself does."""
    if SparkContext._active_spark_context is None:
        SparkContext(conf=conf, gateway=SparkContext._gateway or _launch(conf))


def _launch(conf: SparkConf) -> Any:
    """A JVM whose stderr is that of this process but for `CHATTER`."""
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="qmq-jvm-stderr", daemon=True).start()
    try:
        return launch_gateway(conf, {"stderr": writing})
    finally:
        os.close(writing)


def _pass_on(reading: int) -> None:
    with open(reading, "rb", buffering=0) as said, open(2, "wb", buffering=0, closefd=False) as stderr:
        while data := said.read(READ_BYTES):  # what there is: a progress bar has no end of line
            stderr.write(data.replace(CHATTER, b""))


def chosen_elsewhere() -> bool:
    """Whether `spark-submit` runs this, or a server of Spark Connect is named: they have the master and all else."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


@contextmanager
def running(app_name: str = "qmq") -> Iterator[SparkSession]:
    """A session for one job; stopped at the end, unless it was there before."""
    there = SparkSession.getActiveSession() is not None
    spark = session(app_name)
    _be_quiet(is_ours=not there)
    try:
        yield spark
    finally:
        if not there:
            spark.stop()


def _be_quiet(*, is_ours: bool) -> None:
    """Of errors and at Ctrl-C: the job says in one line what Spark and py4j would log with stacks."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled |= is_ours
    if is_ours and threading.current_thread() is threading.main_thread():
        # In place of Spark's, which asks the JVM on the connection that waits for an answer.
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(*_: object) -> None:
    logging.disable()
    raise KeyboardInterrupt
