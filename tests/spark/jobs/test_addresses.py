"""Jobs on the command line whose files must be mounted."""

from pathlib import Path

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
    assert "is an address: only paths of a mounted file system will do, such as /data/archive" in result.output
