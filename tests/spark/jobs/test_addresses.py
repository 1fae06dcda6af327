"""Jobs on the command line: what they read must be there, and files must be mounted."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qmq.cli import main


@pytest.mark.parametrize(
    "command",
    [
        ["stats", "--path", "s3://bucket/node"],
        ["audit", "hdfs:/data/node"],
    ],
)
def test_an_address_of_what_is_not_mounted_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(main, ["pipeline", *command])

    assert result.exit_code == 2 and list(tmp_path.iterdir()) == []
    assert "a path is an address: only paths of a mounted file system will do, such as /data/archive" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["archive", "table", "--servers", "127.0.0.1:1"],
        ["stats", "--servers", "127.0.0.1:1"],
        ["dead-letters", "--servers", "127.0.0.1:1"],
        ["replay", "--servers", "127.0.0.1:1", "--dry-run"],
        ["compare", "127.0.0.1:1", "127.0.0.1:1"],
        ["audit", "--deep", "127.0.0.1:1"],
        ["stats", "--path", "nothing"],
        ["compare", "nothing", "nothing"],
        ["replay", "--archive", "nothing", "--dry-run"],
        ["dead-letters", "--archive", "nothing"],
    ],
)
def test_what_is_not_there_is_reported_before_a_jvm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("a JVM would start")

    monkeypatch.setattr("qmq.spark.session.session", start)
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(main, ["pipeline", *command])

    assert isinstance(result.exception, SystemExit) and result.exit_code == 1, result.exception
    assert result.stderr.count("\n") == 1 and ("127.0.0.1:1" in result.stderr or "nothing" in result.stderr)
    assert list(tmp_path.iterdir()) == []
