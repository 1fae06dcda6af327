"""What docs/spark-cluster.md shows, as it is printed: a master and two workers on loopback, of which one is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyarrow import parquet

from qmq.spark.archive.table import open_table
from tests.spark.rig import A, B, Journal, node, split
from tests.support.cluster_wait import eventually
from tests.support.pages import blocks, moved, paste

PAGE = "docs/spark-cluster.md"
PATIENCE_SECONDS = 240.0
ROOT = Path(__file__).parents[3]
JOB_SECONDS = 600.0
TASK = "Running task"
"""In the log of an executor."""


def environment() -> dict[str, str]:
    """As a person would set it: the workers' Python, and where the wheel's modules are."""
    import pyspark

    return {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }


class Service(NamedTuple):
    """A process of Spark, and what was found in its log once it was ready."""

    process: "subprocess.Popen[bytes]"
    said: str

    def kill(self) -> None:
        """kill -9, with all that it has started. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def service(log: Path, pattern: str, command: str) -> Iterator[Service]:
    pause = threading.Event()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, shell=True, env=environment(), stdout=file, stderr=file, start_new_session=True, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, log.read_text("utf-8", "replace"))) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8", "replace")[-2000:]
            pause.wait(0.1)
        yield Service(process, found[1])
    finally:
        Service(process, "").kill()


class Setup(NamedTuple):
    """A cluster, and where the pages are moved to."""

    places: dict[str, str]
    workers: list[Service]
    folder: Path

    def moved(self, text: str) -> str:
        return moved(text, self.places)

    def tasks(self, worker: int) -> int:
        """How many tasks it has begun."""
        logs = (self.folder / f"worker{worker + 1}").rglob("stderr")
        return sum(log.read_text("utf-8", "replace").count(TASK) for log in logs)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Setup]:
    """The first block of the page, a process for each of its lines."""
    start = blocks(PAGE, "sh")[1]
    (master,) = re.findall(r"^(.*master\.Master.*) &$", start, re.MULTILINE)
    (common,) = re.findall(r"^WORKER=.*$", start, re.MULTILINE)
    lines = re.findall(r"^(.*\$WORKER .*) &$", start, re.MULTILINE)
    submit = f"{environment()['SPARK_HOME']}/bin/spark-submit"
    places = {"/data/": f"{tmp_path}/data/", "/tmp/worker": f"{tmp_path}/worker", "spark-submit": submit}
    (tmp_path / "data").mkdir()
    with contextlib.ExitStack() as stack:

        def started(name: str, pattern: str, command: str) -> Service:
            return stack.enter_context(service(tmp_path / f"{name}.log", pattern, command))

        address = started("master", r"(spark://127\.0\.0\.1:\d+)", f"exec {master.replace('7077', '0')}").said
        places["spark://127.0.0.1:7077"] = address
        workers = [
            started(f"log{number}", r"(Successfully registered with master)", moved(f"{common}\nexec {line}", places))
            for number, line in enumerate(lines)
        ]
        assert len(workers) == 2
        yield Setup(places, workers, tmp_path)


def grow(a: Journal, b: Journal, first: int) -> None:
    """Another two thousand messages of each of two nodes, in four segments."""
    for number in range(first, first + 2000, 1000):
        a.segment(split(A, number, number + 999, 100), {A: number - 1} if number > 1 else None)
        b.segment(split(B, number, number + 999, 100), {B: number - 1} if number > 1 else None)


@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_the_commands_of_the_page_have_each_message_once_though_a_worker_is_killed(cluster: Setup) -> None:
    data = cluster.folder / "data"
    _, _, jobs, own = (cluster.moved(block) for block in blocks(PAGE, "sh"))
    (program,) = blocks(PAGE, "python")
    (cluster.folder / "past_and_live.py").write_text(cluster.moved(program))
    a, b = node(data, "a"), node(data, "b")
    grow(a, b, 1)

    spark = {name: text for name, text in environment().items() if "SPARK" in name}
    done = paste(jobs, cluster.folder, JOB_SECONDS, **spark)
    assert done.returncode == 0 and "clean" in done.stdout, done.stdout[-3000:]
    assert all(cluster.tasks(worker) for worker in range(2))
    grow(a, b, 2001)
    with ThreadPoolExecutor(1) as pool:
        before = cluster.tasks(0)
        running = pool.submit(paste, own, cluster.folder, JOB_SECONDS, **spark)
        eventually(lambda: running.done() or cluster.tasks(0) > before, "the first worker has no task", JOB_SECONDS)
        cluster.workers[0].kill()
        done = running.result()

    assert done.returncode == 0, done.stdout[-3000:]
    wanted = {(str(origin), number) for origin in (A, B) for number in range(1, 2001)}
    assert sequences(open_table(str(data / "archive")).to_pyarrow_table()) == sorted(wanted)
    assert sequences(parquet.read_table(data / "past")) == sorted(wanted)
    assert sequences(parquet.read_table(data / "live")) == sorted((name, number + 2000) for name, number in wanted)


def sequences(rows: Any) -> list[tuple[str, int]]:
    return sorted(zip(rows["origin"].to_pylist(), rows["sequence"].to_pylist(), strict=True))
