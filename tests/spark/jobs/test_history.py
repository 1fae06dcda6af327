"""The archive and the live tail as one frame: every message once, whatever commits or comes while it is made."""

from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Origin
from qmq.spark import backfill, history, history_frame
from qmq.spark.archive.archiver import Archiver
from qmq.spark.archive.table import ArchiveError
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import archive
from qmq.spark.jobs.known_files import IGNORES_LISTS
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
        ({"columns": "bdy"}, "has no column 'bdy'"),
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


def opened(frame: Any) -> int:
    return len(frame.inputFiles())


def test_a_history_opens_only_files_that_may_have_what_is_asked_for(spark: Any, tmp_path: Path) -> None:
    journal, table = node(tmp_path, "a"), str(tmp_path / "table")
    for number, name in enumerate("abc"):
        first = 1 + 5 * number
        journal.segment(
            [batch(A, first, messages(first, first + 4, f"/queue/{name}"))], {A: first - 1} if number else {}
        )
        archive(spark, read_options({"path": f"{tmp_path}/a"}), table)

    said = {"path": f"{tmp_path}/a", "columns": "sequence"}
    assert opened(history(spark, table, **said)) == 3
    frame = history(spark, table, **said, subscribe="/queue/b")
    assert opened(frame) == 1 and sequences(frame) == [*range(6, 11)]
    frame = history(spark, table, **said, startingTimestamp=str(START_US // 1000 + 11))
    assert opened(frame) == 1 and sequences(frame) == [*range(11, 16)]
    assert sequences(history(spark, table, **said, startingTimestamp="2100-01-01")) == []


@pytest.mark.parametrize("ignores_lists", ["false", "true"])
def test_many_files_are_planned_without_a_job_and_read_as_they_are(
    spark: Any, tmp_path: Path, ignores_lists: str
) -> None:
    """Above 32 paths, Spark lists each in a task of a job. A session may not believe lists of files."""
    journal, table = node(tmp_path, "a"), str(tmp_path / "the [täble] {x}")
    for number in range(40):
        journal.segment([batch(A, number + 1, messages(number + 1, number + 1))], {A: number} if number else {})
        Archiver(read_options({"path": f"{tmp_path}/a"}), table, every_seconds=1.0).run()
    spark.conf.set(IGNORES_LISTS, ignores_lists)
    context = spark.sparkContext
    context.setJobGroup("planning", "planning")
    try:
        frame = history(spark, table, path=f"{tmp_path}/a", columns="sequence")
        jobs = context.statusTracker().getJobIdsForGroup("planning")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        spark.conf.unset(IGNORES_LISTS)

    assert len(jobs) == (ignores_lists == "true")
    assert sequences(frame) == [*range(1, 41)] and opened(frame) == 40


def test_a_stream_begins_where_the_archive_ends(
    spark: Any, table: str, path: str, log: Journal, tmp_path: Path
) -> None:
    """The table goes to 20, the node to 30; then to 40, and the table as well."""
    past, live = backfill(spark, table, path=path, columns="sequence,body")
    log.segment(split(A, 31, 40, 5), {A: 30})
    archive(spark, read_options({"path": path}), table)
    said = {"checkpointLocation": str(tmp_path / "checkpoint"), "path": str(tmp_path / "streamed")}

    query = live.writeStream.format("parquet").options(**said).trigger(availableNow=True).start()
    query.awaitTermination()

    streamed = spark.read.parquet(said["path"])
    assert past.columns == streamed.columns == ["sequence", "body"]
    assert (sequences(past), sequences(streamed)) == ([*range(1, 21)], [*range(21, 41)])


def test_a_stream_behind_an_archive_has_what_both_the_table_and_the_question_choose(spark: Any, tmp_path: Path) -> None:
    journal, table = node(tmp_path, "a"), str(tmp_path / "table")
    journal.segment([batch(A, 1, messages(1, 4, "/queue/x"))])
    archive(spark, read_options({"path": f"{tmp_path}/a", "subscribe": "/queue/x,/queue/y"}), table)
    more = [batch(A, 5 + n, messages(5 + n, 5 + n, f"/queue/{q}")) for n, q in enumerate("xyz")]
    journal.segment(more, {A: 4})

    past, live = backfill(spark, table, path=f"{tmp_path}/a", columns="sequence", subscribe="/queue/y,/queue/z")
    query = live.writeStream.format("memory").queryName("narrowed").trigger(availableNow=True).start()
    query.awaitTermination()

    assert live.columns == ["sequence"]
    assert (sequences(past), sequences(spark.table("narrowed"))) == ([], [6])


def test_a_history_warns_of_what_its_archive_went_on_without(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 11, messages(11, 20, "/queue/x"))], {A: 10})
    table, given = str(tmp_path / "table"), {"path": str(tmp_path / "a")}
    Archiver(read_options({**given, "subscribe": "/queue/x"}), table, every_seconds=1.0).run()

    with pytest.warns(UserWarning, match=f"of /queue/x.*{A} from 1 to 10 .journals do not go back so far, 20"):
        frame = history(spark, table, **given)
    with pytest.warns(UserWarning, match="made without these records"):
        backfill(spark, table, **given)

    assert sequences(frame) == list(range(11, 21))
