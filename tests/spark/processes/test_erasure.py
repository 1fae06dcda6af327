"""The page about erasure, as it is written: a message is in three places, is erased, and is found in none of them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qmq.spark.archive.table import open_table
from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import ROOT
from tests.support.cluster_wait import eventually
from tests.support.pages import blocks, moved, paste

PAGE = "docs/erasure.md"
MARK = "ann@example.com"


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """The node of the page, until it has stopped."""
    words = [sys.executable, "-m", "qmq", "serve", "--config", "node.toml"]
    with (folder / "log").open("wb") as log:
        node = subprocess.Popen(words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, stderr=log)
        try:
            eventually(lambda: "serves STOMP on" in (folder / "log").read_text(), "the node does not start", 60.0)
            yield
        finally:
            node.send_signal(signal.SIGTERM)
            assert node.wait(60.0) == 0


def having(folder: Path, *places: str) -> list[str]:
    """Files that have the mark as bytes."""
    files = [path for place in places for path in (folder / place).rglob("*") if path.is_file()]
    return [str(path) for path in files if MARK.encode() in path.read_bytes()]


@pytest.mark.timeout(300)
def test_the_page_goes_from_a_message_to_the_proof_that_nothing_has_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    to_here = {"127.0.0.1:61613": f"127.0.0.1:{port}"}
    (node_file,) = blocks(PAGE, "toml")
    sent, searched, purged, erased, traffic, proved = (moved(block, to_here) for block in blocks(PAGE, "bash"))
    (tmp_path / "node.toml").write_text(moved(node_file, to_here))

    with running(tmp_path):
        before = [paste(script, tmp_path) for script in (sent, searched)]
        done = [paste(script, tmp_path) for script in (purged, erased, traffic)]
        eventually(lambda: not having(tmp_path, "data/journal"), "no checkpoint drops the segment", 60.0)
    with running(tmp_path):
        after = paste(proved, tmp_path)

    assert [one.returncode for one in before] == [0, 1], before
    found = before[1].stdout.splitlines()
    assert {line.partition("/")[0] for line in found[:-1]} == {"data", "archive", "backups"}, found
    assert any(line.endswith(".parquet") for line in found), found
    assert [one.returncode for one in done] == [0, 0, 0], done
    assert "2 messages found" in done[1].stdout and "2 messages erased" in done[1].stdout
    assert after.returncode == 0 and after.stdout.splitlines()[-1].startswith("0 of "), after.stdout
    assert not having(tmp_path, "data", "archive", "backups")
    assert open_table(str(tmp_path / "archive")).to_pyarrow_table(columns=["body"]).num_rows == 10
