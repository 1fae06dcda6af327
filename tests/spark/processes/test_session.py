"""The session of a job, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qmq.spark import session
from qmq.spark.session import PATIENCE
from tests.spark.processes.test_cluster import ROOT, environment
from tests.spark.rig import A, batch, node, record

JOB = """
import os, sys, threading
from qmq.spark.session import running
with running() as spark:
    assert spark.sparkContext.master == "local[1]" and spark.sparkContext.appName == "qmq"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    print(os.environ["SPARK_AUTH_SOCKET_TIMEOUT"])
    spark._jvm.java.lang.System.err.println("said by Java")
with running() as spark:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC" and spark.range(3).count() == 3
    # There is one JVM.
    assert [thread.name for thread in threading.enumerate()].count("qmq-jvm-stderr") == 1
"""


def test_a_job_writes_only_what_it_has_to_say_and_is_patient_with_its_workers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SPARK_MASTER": "local[1]", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "120\n", "said by Java\n")


def test_ctrl_c_ends_a_job_that_works_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.drivers", "endless"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SPARK_MASTER": "local[1]", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
    )

    assert (done.returncode, done.stdout) == (0, "stopped\n")
    assert "Traceback" not in done.stderr and "py4j" not in done.stderr


def test_a_condition_that_is_none_is_an_error_of_one_line(tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 1, [record(1)])], {})
    command = ["replay", "--path", str(tmp_path / "a"), "--where", "broken = 1", "--dry-run"]

    done = subprocess.run(
        [sys.executable, "-m", "qmq", "pipeline", *command],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SPARK_MASTER": "local[1]", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "`broken`" in done.stderr, done.stderr


def test_a_progress_bar_of_java_is_shown_before_its_line_ends(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, session.CHATTER + b"\r[Stage 0:>    (0 + 2) / 3]")
    os.close(writing)

    session._pass_on(reading)

    assert capfd.readouterr().err == "\r[Stage 0:>    (0 + 2) / 3]"


@pytest.mark.parametrize(("said", "seconds"), [([], "120"), (["--conf", f"{PATIENCE[0]}=77s"], "77")])
def test_a_job_of_spark_submit_is_as_patient_unless_it_says_otherwise(
    said: list[str], seconds: str, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    code = 'with running() as spark:\n    print(os.environ["SPARK_AUTH_SOCKET_TIMEOUT"])'
    job.write_text(f"import os\nfrom qmq.spark.session import running\n{code}\n")
    submit = f"{environment()['SPARK_HOME']}/bin/spark-submit"

    done = subprocess.run(
        [submit, "--master", "local[1]", *said, str(job)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, f"{seconds}\n"), done.stderr[-3000:]
