"""`qmq pipeline` where Spark is not needed: help, errors on the command line, and what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from qmq.cli.pipeline import JOBS, pipeline
from qmq.cli.pipeline.shared import first_line
from qmq.cli.pipeline.stats import number, seconds
from qmq.spark import doctor

from .conftest import Run

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "deltalake", "trio")


def test_help_imports_no_spark() -> None:
    code = (
        "import sys, qmq.cli; qmq.cli.main(['pipeline', '--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_listed_with_the_first_line_of_its_help(name: str) -> None:
    context = pipeline.make_context("pipeline", [name])
    command = pipeline.get_command(context, name)

    assert command is not None and command.help is not None
    assert command.help.splitlines()[0] == JOBS[name][1]


WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 3508, in main
    process()
%s"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER % "qmq.errors.NotConnected: no node answers\n", "no node answers"),
        (
            WORKER
            % "OSError: no privileges\n    \x1b[31m↳\x1b[0m HEAD http://store/a?sign=key in 9 ms\n     ↳ 403 Forbidden",
            "no privileges: HEAD http://store/a in 9 ms: 403 Forbidden",
        ),
        (
            WORKER % "OSError: no answer of http://id:key@store:9000/a, nor of abfss://box@account/b\n",
            "no answer of http://store:9000/a, nor of abfss://box@account/b",
        ),
        (WORKER % "KeyError: 'a'\n\n\tat org.apache.spark.X(X.java:1)\nCaused by: java.lang.X: no", "'a'"),
        ("[STREAM_FAILED] It has ended: no\n=== Query ===\nId: 1", "[STREAM_FAILED] It has ended: no"),
        ("", "Spark failed without a message"),
    ],
)
def test_of_an_error_of_spark_what_a_worker_has_raised_is_shown(text: str, said: str) -> None:
    assert first_line(text) == said


def test_an_unknown_job_is_answered_with_the_usage(run: Run) -> None:
    result = run("pipeline", "archiv")

    assert result.exit_code == 2 and "No such command" in result.output


@pytest.mark.parametrize(
    ("name", "lacking", "extra"),
    [("archive", "pyspark", "spark"), ("stats", "pyspark", "spark"), ("tables", "numpy", "archive")],
)
def test_without_the_extra_a_job_says_how_to_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, lacking: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, lacking, None)
    table = [str(tmp_path)] if name != "stats" else []

    result = run("pipeline", name, "--path", str(tmp_path), *table)

    assert result.exit_code == 1 and f"pip install 'qmq[{extra}]'" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["archive", "--path", "."],
        ["tables", "--path", "."],
        ["compact"],
        ["vacuum"],
        ["erase", "--where", "true"],
        ["compare", "."],
        ["dead-letters", "--archive"],
        ["replay", "--archive"],
    ],
)
@pytest.mark.parametrize("table", ["hdfs:/data/table", "s3a://bucket/table", "s3://id:key@bucket/table", "gs:///table"])
def test_a_table_at_another_address_is_refused_without_keys_on_the_screen(
    run: Run, command: list[str], table: str
) -> None:
    result = run("pipeline", *command, table)

    assert result.exit_code == 2 and "Invalid value" in result.output and "id:key" not in result.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["stats", "--path", ".", "--follow", "out"], "--follow is gone: run it by a timer"),
        (["archive", "t", "--path", ".", "--follow", "--every", "60"], "is `qmq archive TABLE`"),
        (["audit", ".", "--no-latency"], "--no-latency is gone: nodes measure it themselves"),
    ],
)
def test_an_option_that_is_gone_says_what_to_do_in_its_place(run: Run, command: list[str], said: str) -> None:
    result = run("pipeline", *command)

    assert result.exit_code == 2 and said in result.output


def test_the_script_for_spark_submit_is_there(run: Run) -> None:
    result = run("pipeline", "script")

    assert Path(result.output.strip()).read_text("utf-8").count("pipeline()") == 1


def fake_java(folder: Path, says: str) -> None:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n", "utf-8")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "is_ok", "hint"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True, "17"),
        ('openjdk version "25" 2025-09-16', True, "25"),
        ('java version "1.8.0_402"', False, "17 or newer"),
        ("not java at all", False, "does not report its version"),
    ],
)
def test_doctor_knows_which_java_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, is_ok: bool, hint: str
) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    check = next(check for check in doctor.check_all() if check.name == "java")

    assert (check.ok, hint in check.said) == (is_ok, True)


def test_doctor_says_where_java_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    check = next(check for check in doctor.check_all() if check.name == "java")

    assert not check.ok and "apt install" in check.said


def test_doctor_looks_at_the_python_of_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'pyarrow'\" >&2\nexit 1\n", "utf-8")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))

    check = next(check for check in doctor.check_all() if check.name == "PYSPARK_PYTHON")

    assert not check.ok and "No module named 'pyarrow'" in check.said and sys.executable in check.said


def test_doctor_says_so_when_the_python_of_the_workers_is_no_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python3"
    other.touch(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))

    check = next(check for check in doctor.check_all() if check.name == "PYSPARK_PYTHON")

    assert not check.ok and "does not run" in check.said and sys.executable in check.said


def test_doctor_names_packages_that_are_missing_or_of_the_wrong_age(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "4.1.4", "pyarrow": "26.0.1", "pandas": "3.0.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)

    said = {check.name: (check.ok, check.said) for check in doctor.check_all() if check.name in doctor.PACKAGES}

    assert said["pyarrow"] == (True, "26.0.1")
    assert not said["pyspark"][0] and "too old" in said["pyspark"][1]
    assert not said["pandas"][0] and "too new" in said["pandas"][1]
    assert not said["deltalake"][0] and "not installed" in said["deltalake"][1]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (999.7, "1 k"), (1500, "1.5 k"), (999_999, "1 M"), (7e9, "7 G")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0123, "12.3 ms"), (0.9999, "1 s"), (5, "5 s"), (600, "10 min"), (36_000, "10 h")],
)
def test_times_are_said_as_people_say_them(value: float | None, text: str) -> None:
    assert seconds(value) == text
