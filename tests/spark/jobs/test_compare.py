"""Comparing nodes and archives: equal where they are, and every difference found where they are not."""

from pathlib import Path
from typing import Any

import pytest

from qmq.spark.jobs import compare as jobs
from qmq.spark.jobs.archive import archive
from qmq.spark.jobs.compare import compare
from qmq.spark.reading.options import read_options
from tests.spark.rig import START_US, A, B, batch, messages, node, record, split


def test_nodes_that_hold_the_same_in_other_batches_are_equal_also_to_an_archive(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment([*split(A, 1, 60, 7), *split(B, 1, 10, 10)])
    node(tmp_path, "b").segment([*split(B, 1, 10, 3), *split(A, 11, 40, 30)], {A: 10})
    table = str(tmp_path / "table")
    archive(spark, read_options({"path": str(tmp_path / "a")}), table)

    nodes = compare(spark, str(tmp_path / "a"), str(tmp_path / "b"))
    archived = compare(spark, table, str(tmp_path / "a"))

    assert (nodes.equal, nodes.records, nodes.outside) == (True, 40, {str(A): (30, 0)})
    assert (archived.equal, archived.records, archived.outside) == (True, 70, {})


def test_each_record_that_differs_is_reported(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 1, messages(1, 30))])
    changed = [*messages(1, 9), record(10, b"body 11"), *messages(11, 28), record(29, b"body 29", headers=b"x:1\n")]
    node(tmp_path, "b").segment([batch(A, 1, [*changed, *messages(30, 30)])])

    found = compare(spark, str(tmp_path / "a"), str(tmp_path / "b"))

    assert not found.equal
    assert [tuple(one) for one in found.differences] == [(str(A), 10, "different"), (str(A), 29, "different")]


@pytest.mark.parametrize("moment", ["hashes", "_compare"])
def test_what_retention_drops_meanwhile_is_no_difference(
    spark: Any, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is there and the plan, and between the plan and the reading."""
    journal = node(tmp_path, "a")
    first = journal.segment(split(A, 1, 20, 5))
    journal.segment(split(A, 21, 30, 5), {A: 20})
    node(tmp_path, "b").segment(split(A, 1, 30, 10))
    owner: Any = jobs.Side if moment == "hashes" else jobs
    made = getattr(owner, moment)

    def late(*args: Any, **said: Any) -> Any:
        if moment == "_compare" and first.exists():
            assert args[0].count() == 30  # now it is planned
        first.unlink(missing_ok=True)
        return made(*args, **said)

    monkeypatch.setattr(owner, moment, late)
    found = compare(spark, str(tmp_path / "a"), str(tmp_path / "b"))

    assert (found.equal, found.records, found.outside) == (True, 10, {str(A): (0, 20)})


def test_what_only_one_can_have_is_a_difference_when_asked_for(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 12, 4))
    node(tmp_path, "b").segment(split(A, 1, 10, 5))

    found = compare(spark, str(tmp_path / "a"), str(tmp_path / "b"), everything=True)

    assert [tuple(one) for one in found.differences] == [(str(A), 11, "only left"), (str(A), 12, "only left")]


def test_an_archive_of_some_is_equal_to_a_node_that_has_more(spark: Any, tmp_path: Path) -> None:
    """It is compared in what it was started with: one destination, from a moment on. Others come after its last."""
    mixed = [*messages(1, 9), *messages(10, 20, "/queue/mails"), *messages(21, 30)]
    node(tmp_path, "a").segment([batch(A, 1, mixed)])
    chosen = {"subscribe": "/queue/mails", "startingTimestamp": str(START_US // 1000 + 15)}
    table = str(tmp_path / "table")
    archive(spark, read_options({"path": str(tmp_path / "a"), **chosen}), table)

    found = compare(spark, table, str(tmp_path / "a"))
    narrower = compare(
        spark, table, str(tmp_path / "a"), given={**chosen, "endingTimestamp": str(START_US // 1000 + 18)}
    )

    assert (found.equal, found.records, narrower.equal, narrower.records) == (True, 6, True, 3)


def test_what_is_asked_for_and_what_an_archive_was_begun_with_narrow_each_other(spark: Any, tmp_path: Path) -> None:
    mixed = [*messages(1, 9, "/queue/a"), *messages(10, 20, "/queue/b"), *messages(21, 30, "/queue/c")]
    node(tmp_path, "a").segment([batch(A, 1, mixed)])
    begun = {"subscribePattern": "/queue/[ab]", "startingTimestamp": str(START_US // 1000 + 5)}
    table = str(tmp_path / "table")
    archive(spark, read_options({"path": str(tmp_path / "a"), **begun}), table)

    for asked_for, records in (
        ({"subscribe": "/queue/a"}, 5),
        ({"subscribe": "/queue/c"}, 0),
        ({"startingTimestamp": str(START_US // 1000)}, 16),
    ):
        found = compare(spark, table, str(tmp_path / "a"), given=asked_for)
        assert (found.equal, found.records) == (True, records)
