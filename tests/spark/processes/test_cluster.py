"""The same jobs, unchanged, on a Spark of several processes: a master and two workers on loopback."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.spark.archive.table import open_table
from tests.spark.rig import A, node, split

PATIENCE_SECONDS = 120.0
ROOT = Path(__file__).parents[3]


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


@contextlib.contextmanager
def service(log: Path, pattern: str, *command: str) -> Iterator[str]:
    """A process of Spark; yields what `pattern` finds in its log once it is ready."""
    pause = threading.Event()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, env=environment(), stdout=file, stderr=file, start_new_session=True, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, log.read_text("utf-8", "replace"))) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8", "replace")[-2000:]
            pause.wait(0.1)
        yield found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers of one core each."""
    spark_class = f"{environment()['SPARK_HOME']}/bin/spark-class"
    package = "org.apache.spark.deploy"
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(
            service(
                tmp_path / "master.log", r"(spark://127\.0\.0\.1:\d+)", spark_class, f"{package}.master.Master", *ports
            )
        )
        for number in range(2):
            work = tmp_path / f"worker{number}"
            work.mkdir()
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(work))
            stack.enter_context(
                service(
                    tmp_path / f"worker{number}.log",
                    r"(Successfully registered with master)",
                    *(spark_class, f"{package}.worker.Worker", *ports, *size, address),
                )
            )
        yield address


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_archive_and_audit_run_unchanged_under_spark_submit(master: str, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    for first in range(1, 4001, 1000):
        journal.segment(split(A, first, first + 999, 100), {A: first - 1} if first > 1 else None)
    submit = f"{environment()['SPARK_HOME']}/bin/spark-submit"
    size = ("--executor-memory", "512m", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1")
    job = str(ROOT / "pyspark_qmq" / "__main__.py")
    table = str(tmp_path / "table")

    for arguments in (["archive", "--path", str(tmp_path / "a"), table], ["audit", "--deep", str(tmp_path / "a")]):
        done = subprocess.run(
            [submit, "--master", master, *size, job, *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    found = open_table(table).to_pyarrow_table(columns=["sequence"]).column("sequence").to_pylist()
    assert sorted(found) == list(range(1, 4001))
    assert "clean" in done.stdout
    # Both workers had a part in it.
    assert all(list((tmp_path / f"worker{number}").rglob("stderr")) for number in range(2))
