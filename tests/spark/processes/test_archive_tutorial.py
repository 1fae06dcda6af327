"""The tutorial about an archive, as it is written: an archive of three nodes, and a query of past and present."""

from pathlib import Path

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.pages import addresses, blocks, commands_of, moved, output_of, paste

PAGE = "docs/archive-tutorial.md"

pytest.importorskip("pyspark", reason="needs the extra `spark`: make spark-test")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_query_of_the_tutorial_prints_what_it_shows(mesh: Cluster, tmp_path: Path) -> None:
    messages, archive = (moved(block, addresses(mesh)) for block in blocks(PAGE, "bash"))
    (code,), (shown,) = blocks(PAGE, "python"), blocks(PAGE, "console")
    (tmp_path / "query.py").write_text(moved(code, addresses(mesh)))

    done = paste(messages + archive + commands_of(shown), tmp_path)

    assert done.returncode == 0, done.stdout
    printed = done.stdout.splitlines()
    table = [line for line in printed if line.startswith(("+", "|"))]
    assert table == output_of(shown)
