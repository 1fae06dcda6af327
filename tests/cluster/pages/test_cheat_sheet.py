"""The commands and programs of the cheat sheet, as they are written, on three nodes."""

from pathlib import Path

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.pages import addresses, blocks, moved, paste

PAGE = "docs/cheat-sheet.md"
COMMANDS, CALLS = blocks(PAGE, "bash")
PROGRAMS = dict(zip(("client one\n", "pika two\n", "greenstalk three\n"), blocks(PAGE, "python"), strict=True))


def test_the_ten_commands_are_ten_and_run(mesh: Cluster, tmp_path: Path) -> None:
    done = paste(COMMANDS, tmp_path, QMQ_AT=mesh.at("b"))

    assert COMMANDS.count("qmq ") == 10
    assert done.returncode == 0, done.stdout
    assert "/queue/jobs  resize 17" in done.stdout


def test_the_calls_send_receive_and_acknowledge(mesh: Cluster, tmp_path: Path) -> None:
    done = paste(moved(CALLS, addresses(mesh)), tmp_path)

    assert done.returncode == 0, done.stdout
    assert '"result":"acknowledged"' in done.stdout
    assert "qmq_up" in done.stdout


@pytest.mark.parametrize("output", PROGRAMS)
def test_each_program_prints_its_message(mesh: Cluster, tmp_path: Path, output: str) -> None:
    (tmp_path / "program.py").write_text(moved(PROGRAMS[output], addresses(mesh)))

    assert paste("python program.py", tmp_path).stdout == output
