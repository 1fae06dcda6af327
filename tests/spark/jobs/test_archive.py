"""The archive with Spark: how it is read, and how a run fails."""

from pathlib import Path
from typing import Any

import pytest

from qmq.spark import history
from qmq.spark.archive.archiver import Archiver
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import archive, read_archive
from qmq.spark.jobs.messages import read_messages
from qmq.spark.reading.options import read_options
from tests.spark.rig import A, batch, messages, node, split


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> str:
    """In a directory whose name is none of an address, and looks like a pattern."""
    names = {"/queue/x": (1, 2), "/queue/x\n": (3, 4), "/queue/y": (5, 6)}
    node(tmp_path, "a").segment([batch(A, first, messages(first, last, name)) for name, (first, last) in names.items()])
    made = str(tmp_path / "the [täble] {x}")
    archive(spark, read_options({"path": str(tmp_path / "a")}), made)
    return made


def test_an_archive_is_read_as_the_table_says(spark: Any, table: str) -> None:
    frame = read_archive(spark, table)

    assert frame.count() == 6
    assert dict(frame.dtypes)["day"] == "string"


def test_an_archive_may_be_named_by_an_address_of_this_machine(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node(tmp_path, "a").segment([batch(A, 1, messages(1, 5))])
    made = f"file://{tmp_path}/table"

    archive(spark, read_options({"path": f"file://{tmp_path}/a"}), made)

    assert read_archive(spark, made).count() == history(spark, made, path=f"{tmp_path}/a").count() == 5
    assert {path.name for path in tmp_path.iterdir()} == {"a", "table"}


@pytest.mark.parametrize("pattern", ["/queue/x", "(?P<kind>/queue)/x", "(?i)/QUEUE/.*"])
def test_a_pattern_chooses_the_same_of_an_archive_as_of_logs(
    spark: Any, table: str, tmp_path: Path, pattern: str
) -> None:
    chosen = {"subscribePattern": pattern}

    kept = read_messages(spark, {**chosen, "servers": "somewhere:1"}, table)

    logged = read_messages(spark, {**chosen, "path": str(tmp_path / "a")})
    assert {row.sequence for row in kept.collect()} == {row.sequence for row in logged.collect()} != set()


def test_spark_and_the_process_without_it_go_on_where_the_other_stopped(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    options = read_options({"path": str(tmp_path / "a"), "name": "archive"})
    made = str(tmp_path / "table")
    without = Archiver(options, made, every_seconds=1.0)
    added = []
    for turn in range(4):
        first = 20 * turn + 1
        journal.segment(split(A, first, first + 19, 5), {A: first - 1} if turn else {})
        added.append((without.run() if turn % 2 == 0 else archive(spark, options, made)).rows)
        if turn == 2:
            assert compact(made).removed == 3

    assert added == [20, 20, 20, 20]
    assert sorted(row.sequence for row in read_archive(spark, made).collect()) == [*range(1, 81)]
    assert history(spark, made, path=str(tmp_path / "a")).count() == 80
