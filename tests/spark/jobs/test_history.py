"""The archive and the live tail as one frame: every message once, whatever commits or comes while it is made."""

from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Origin
from qmq.spark import history, history_frame
from qmq.spark.archive.table import ArchiveError
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import archive
from qmq.spark.reading.options import BadOption, read_options
from qmq.spark.reading.plan import DataLoss
from tests.spark.connector.test_remote import JournalNode
from tests.spark.rig import START_US, A, B, Journal, batch, messages, node, split


@pytest.fixture
def log(tmp_path: Path) -> Journal:
    """Of node a: 20 records in one segment, 10 in the next."""
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 20, 5))
    return journal


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a")


@pytest.fixture
def table(spark: Any, log: Journal, path: str, tmp_path: Path) -> str:
    """An archive of all 20; then 10 more come."""
    made = str(tmp_path / "table")
    archive(spark, read_options({"path": path}), made)
    log.segment(split(A, 21, 30, 5), {A: 20})
    return made


def sequences(frame: Any) -> list[int]:
    return sorted(row.sequence for row in frame.collect())


def test_a_history_has_every_message_once_with_the_columns_of_the_source(spark: Any, table: str, path: str) -> None:
    frame = history(spark, table, path=path, includeHeaders=True)

    direct = spark.read.format("qmq").options(path=path, includeHeaders="true").load()
    assert frame.dtypes == direct.dtypes
    assert sorted(map(tuple, frame.drop("headers").collect())) == sorted(map(tuple, direct.drop("headers").collect()))
    assert len({row.message_id for row in frame.collect()}) == 30
    assert history(spark, table, path=path, columns="body,sequence").columns == ["body", "sequence"]


def test_a_history_is_one_version_of_the_table_whatever_commits_meanwhile(
    spark: Any, table: str, path: str, log: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the table was looked at, another archive run adds what follows, and files are put together."""
    made = history_frame.open_table

    def open_and_be_overtaken(name: str) -> Any:
        opened = made(name)
        archive(spark, read_options({"path": path}), table)
        assert compact(table).removed > 1
        return opened

    monkeypatch.setattr(history_frame, "open_table", open_and_be_overtaken)

    frame = history(spark, table, path=path)

    assert sequences(frame) == list(range(1, 31))


def test_what_comes_after_a_history_was_made_is_not_in_it(spark: Any, table: str, path: str, log: Journal) -> None:
    frame = history(spark, table, path=path)
    log.segment(split(A, 31, 40, 5), {A: 30})

    assert sequences(frame) == list(range(1, 31))
    assert sequences(history(spark, table, path=path)) == list(range(1, 41))


def test_what_nodes_learn_of_later_and_the_archive_has_does_not_come_twice(
    spark: Any, tmp_path: Path, table: str, path: str, log: Journal
) -> None:
    """The archive has read b's records at b; a, which is asked for the rest, gets them a moment later."""
    node(tmp_path, "b").segment(split(B, 1, 10, 5))
    archive(spark, read_options({"path": f"{path},{tmp_path}/b"}), table)

    frame = history(spark, table, path=path)
    log.segment(split(B, 1, 10, 5), {A: 30})

    assert sequences(frame) == sorted([*range(1, 31), *range(1, 11)])


def test_live_nodes_give_what_the_archive_does_not_have_and_new_origins_whole(spark: Any, table: str) -> None:
    anew = Origin("a", 0xA2)
    live = JournalNode([*split(A, 16, 30, 5), *split(anew, 1, 5, 5)], base={A: 15})

    assert sequences(history(spark, table, servers=live.address)) == sorted([*range(1, 31), *range(1, 6)])


def test_what_lies_between_the_archive_and_what_nodes_still_have_is_reported_with_its_range(
    spark: Any, table: str
) -> None:
    live = JournalNode(split(A, 26, 30, 5), base={A: 25})

    with pytest.raises(DataLoss, match=f"{A} from 21 to 25"):
        history(spark, table, servers=live.address)

    careless = history(spark, table, servers=live.address, failOnDataLoss=False)
    assert sequences(careless) == [*range(1, 21), *range(26, 31)]


def test_what_the_table_was_begun_with_and_what_is_asked_for_narrow_each_other(spark: Any, tmp_path: Path) -> None:
    """Of queues x and y, and of later times, in the table; of y and z, and of earlier times, in the question."""
    journal, table = node(tmp_path, "a"), str(tmp_path / "table")

    def some(first: int) -> list[bytes]:
        return [
            batch(A, first + 4 * n, messages(first + 4 * n, first + 4 * n + 3, f"/queue/{q}"))
            for n, q in enumerate("xyz")
        ]

    journal.segment(some(1))
    begun = {"path": f"{tmp_path}/a", "subscribe": "/queue/x,/queue/y"}
    archive(spark, read_options({**begun, "startingTimestamp": str(START_US // 1000 + 6)}), table)
    journal.segment(some(13), {A: 12})

    asked = {"subscribePattern": "/queue/[yz]", "endingTimestamp": str(START_US // 1000 + 19)}
    frame = history(spark, table, path=f"{tmp_path}/a", columns="sequence", **asked)

    assert frame.columns == ["sequence"] and sequences(frame) == [6, 7, 8, 17, 18]
    assert sequences(history(spark, table, path=f"{tmp_path}/a")) == [6, 7, 8, *range(13, 21)]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: a history goes from the beginning"),
        ({"view": "records"}, "a history has messages"),
        ({"columns": "bdy"}, "has no 'bdy'"),
        ({"subscibe": "/queue/a"}, "did you mean subscribe"),
    ],
)
def test_what_a_history_cannot_do_is_refused(tmp_path: Path, said: dict[str, str], text: str) -> None:
    nothing: Any = None

    with pytest.raises(BadOption, match=text):
        history(nothing, str(tmp_path), path=str(tmp_path), **said)


def test_without_an_archive_a_history_says_so(tmp_path: Path) -> None:
    nothing: Any = None

    with pytest.raises(ArchiveError, match=f"there is no archive at {tmp_path}"):
        history(nothing, str(tmp_path), path=str(tmp_path))
