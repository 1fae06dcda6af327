"""`spark.read.format("qmq")` and `spark.readStream` on data directories."""

import json
from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Dot
from qmq.spark.reading.options import read_options, vector_from_json
from tests.spark.rig import START_US, A, B, batch, node, record, settle, split
from tests.support.cluster_wait import eventually


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    """Two nodes: both have a's messages 1–40 and b's 1–20, in other batches; b has more of its own."""
    headers = b"content-type:text/plain\nx:1\\c2\n"
    told = batch(A, 41, [record(41, b"with headers", "/fanout/f", headers=headers), settle(42, Dot(A, 1))])
    root = tmp_path / "mesh"
    first = node(root, "a")
    first.segment([*split(A, 1, 40, 7), *split(B, 1, 20, 3), told])
    second = node(root, "b")
    second.segment(split(B, 1, 20, 9))
    second.segment([*split(A, 1, 40, 40), *split(B, 21, 30, 2)], {B: 20}, sealed=False)
    return root


def load(spark: Any, mesh: Path, **options: str) -> Any:
    return spark.read.format("qmq").option("path", f"{mesh}/*").options(**options).load()


def test_the_messages_of_a_mesh_are_there_once(spark: Any, mesh: Path) -> None:
    frame = load(spark, mesh)

    rows = frame.collect()

    assert sorted((row.origin, row.sequence) for row in rows) == sorted(
        [(str(A), n) for n in range(1, 42)] + [(str(B), n) for n in range(1, 31)]
    )
    one = next(row for row in rows if (row.origin, row.sequence) == (str(A), 7))
    assert (one.destination, bytes(one.body), one.message_id, one.priority) == ("/queue/jobs", b"body 7", f"{A}-7", 4)
    assert one.timestamp.timestamp() * 1e6 == START_US + 7000
    assert frame.columns == ["origin", "sequence", "timestamp", "destination", "message_id", "priority", "body"]


def test_where_nothing_is_left_to_read_the_frame_is_empty(spark: Any, mesh: Path) -> None:
    assert load(spark, mesh, startingOffsets="latest").collect() == []


def test_columns_are_chosen_by_schema_and_by_option(spark: Any, mesh: Path) -> None:
    by_schema = (
        spark.read.format("qmq").schema("destination string, sequence bigint").option("path", f"{mesh}/a").load()
    )
    by_option = load(spark, mesh, columns="sequence,headers", subscribe="/fanout/f")

    assert by_schema.columns == ["destination", "sequence"] and by_schema.count() == 61
    assert [row.headers for row in by_option.collect()] == [{"content-type": "text/plain", "x": "1:2"}]


def test_the_other_views_show_nodes_segments_and_ranges(spark: Any, mesh: Path) -> None:
    nodes = {row.node: row.vector for row in load(spark, mesh, view="nodes").collect()}
    ranges = {(row.node, row.origin, row.first, row.last) for row in load(spark, mesh, view="ranges").collect()}
    kinds = load(spark, mesh, view="log").groupBy("node", "kind").count().collect()

    assert nodes == {"a": {str(A): 42, str(B): 20}, "b": {str(A): 40, str(B): 30}}
    assert ranges == {("a", str(A), 1, 42), ("a", str(B), 1, 20), ("b", str(A), 1, 40), ("b", str(B), 1, 30)}
    assert {(row.node, row.kind): row["count"] for row in kinds} == {
        ("a", "PUBLISH"): 61,
        ("a", "SETTLE"): 1,
        ("b", "PUBLISH"): 70,
    }
    assert load(spark, mesh, view="segments").count() == 4


def test_one_query_does_not_change_another_of_the_same_frame(spark: Any, mesh: Path) -> None:
    """Spark keeps one plan for all queries of a frame; a source that narrows it gives wrong counts afterwards."""
    frame = load(spark, mesh)

    assert frame.where("sequence > 35").count() == 6
    assert frame.count() == 71
    assert frame.union(frame).count() == 142


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"view": "nonsense"}, "messages, records"), ({"colums": "x"}, "did you mean columns"), ({"columns": "x"}, "'x'")],
)
def test_a_bad_option_is_an_error_that_says_what_may_stand_there(
    spark: Any, mesh: Path, options: dict[str, str], hint: str
) -> None:
    with pytest.raises(Exception, match=hint):
        load(spark, mesh, **options)


def test_a_query_for_what_is_nowhere_is_empty(spark: Any, mesh: Path) -> None:
    """Indexes of segments tell that there is nothing to read."""
    assert load(spark, mesh, subscribe="/queue/nobody-knows").collect() == []


def test_damage_is_an_error_of_the_query(spark: Any, mesh: Path) -> None:
    path = next((mesh / "a" / "journal").iterdir())
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)

    with pytest.raises(Exception, match="checksum differs"):
        spark.read.format("qmq").option("path", f"{mesh}/a").load().collect()


def run(spark: Any, mesh: Path, out: Path, **options: str) -> list[int]:
    """Stream everything there is into `out`; returns the sizes of the micro-batches."""
    stream = spark.readStream.format("qmq").option("path", f"{mesh}/*").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(out / "rows"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_stream_goes_on_where_it_stopped_and_new_nodes_join(spark: Any, mesh: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sizes = run(spark, mesh, out, maxRecordsPerTrigger="30", columns="origin,sequence")
    c = node(mesh, "c")
    c.segment([*split(A, 41, 60, 6)], {A: 40})

    again = run(spark, mesh, out, maxRecordsPerTrigger="30", columns="origin,sequence")
    nothing = run(spark, mesh, out, maxRecordsPerTrigger="30", columns="origin,sequence")

    assert all(size <= 30 for size in sizes) and sum(sizes) == 71
    # a's 42 was a settle there; the twin that c has is a message, and it is not asked for again.
    assert (sum(again), nothing) == (18, [])
    rows = spark.read.parquet(str(out / "rows"))
    assert rows.count() == rows.distinct().count() == 89


def test_a_stream_that_finds_its_past_gone_says_what_is_missing(spark: Any, mesh: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(spark, mesh, out, columns="sequence")
    for path in mesh.glob("*/journal/*"):
        path.unlink()
    node(mesh, "a").segment(split(A, 60, 70, 5), {A: 59})
    node(mesh, "b").segment(split(B, 31, 40, 5), {A: 59, B: 30})

    with pytest.raises(Exception, match=f"{A} from 43 to 59"):
        run(spark, mesh, out, columns="sequence")


def test_what_retention_drops_before_the_first_micro_batch_of_a_stream_from_the_earliest_is_no_loss(
    tmp_path: Path,
) -> None:
    """The next one begins where this one ended: there it is."""
    from qmq.spark.reading.plan import DataLoss
    from qmq.spark.source import LogStream

    journal = node(tmp_path, "a")
    dropped = [journal.segment(split(A, 1, 10, 5)), journal.segment(split(A, 11, 20, 5), {A: 10})]
    journal.segment(split(A, 21, 30, 5), {A: 20})
    options = read_options({"path": str(tmp_path / "a")})
    stream = LogStream(options, ["sequence"])
    start = stream.initialOffset()
    dropped[0].unlink()

    parts = stream.partitions(start, {str(A): 15})
    dropped[1].unlink()

    assert len(parts) == 1
    with pytest.raises(DataLoss, match=f"{A} from 16 to 20"):
        stream.partitions({str(A): 15}, {str(A): 30})
    with pytest.raises(DataLoss, match=f"{A} from 1 to 20"):
        LogStream(options, ["sequence"]).partitions(start, {str(A): 30})


@pytest.mark.parametrize("starting", ["latest", "earliest", f'{{"{A}": 10}}'])
def test_a_stream_killed_in_its_first_micro_batch_reads_all_of_it_again(tmp_path: Path, starting: str) -> None:
    """Spark keeps where a batch ends. It asks again where the first one begins, which is elsewhere now."""
    from qmq.spark.source import LogStream

    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 20, 5))
    said = {"path": str(tmp_path / "a"), "startingOffsets": starting}
    killed = LogStream(read_options(said), ["sequence"])
    start = killed.initialOffset()
    journal.segment(split(A, 21, 30, 5), {A: 20})
    end = json.loads(json.dumps(killed.latestOffset(start, killed.getDefaultReadLimit())))
    wanted = found(killed, start, end)
    journal.segment(split(A, 31, 40, 5), {A: 30})

    again = LogStream(
        read_options({**said, "startingOffsets": said["startingOffsets"].replace("10", "35")}), ["sequence"]
    )

    assert found(again, again.initialOffset(), end) == wanted and wanted[-1] == 30
    later = again.latestOffset(end, again.getDefaultReadLimit())
    assert found(again, end, later) == [*range(31, 41)]
    assert again.latestOffset(later, again.getDefaultReadLimit()) == later == {str(A): 40}
    assert killed.latestOffset(end, killed.getDefaultReadLimit()) == later


def found(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    rows = (rows for part in stream.partitions(start, end) for rows in stream.read(part))
    return sorted(number for batch in rows for number in batch["sequence"].to_pylist())


@pytest.mark.parametrize(("records", "expected"), [("7", 7), ("1000000", 10)])
def test_of_two_bounds_of_a_micro_batch_the_smaller_counts(mesh: Path, records: str, expected: int) -> None:
    from qmq.spark.source import RECORD_BYTES, LogStream

    said = {"path": f"{mesh}/a", "maxRecordsPerTrigger": records, "maxBytesPerTrigger": str(10 * RECORD_BYTES)}
    stream = LogStream(read_options(said), ["sequence"])
    start = stream.initialOffset()

    end = stream.latestOffset(start, stream.getDefaultReadLimit())

    assert sum(vector_from_json(end).values()) - sum(start.values()) == expected


@pytest.mark.parametrize(
    ("arrives", "seconds", "read"),
    [
        (9, 899.0, 0),  # too few, too soon
        (10, 1.0, 10),
        (9, 900.0, 9),
        (0, 900.0, 0),
    ],
)
def test_a_micro_batch_waits_for_records_or_for_time(tmp_path: Path, arrives: int, seconds: float, read: int) -> None:
    """As with Spark's Kafka source, the first one waits for nothing."""
    from qmq.spark.source import LogStream

    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 5, 5))
    now = 0.0
    said = {"path": str(tmp_path / "a"), "minOffsetsPerTrigger": "10"}
    stream = LogStream(read_options(said), ["sequence"], lambda: now)
    first = stream.latestOffset({}, stream.getDefaultReadLimit())
    if arrives:
        journal.segment(split(A, 6, 5 + arrives, 5), {A: 5})

    now += seconds
    second = stream.latestOffset(first, stream.getDefaultReadLimit())

    assert (first, second) == ({str(A): 5}, {str(A): 5 + read})


def test_a_wait_counts_from_the_last_micro_batch_that_had_something(tmp_path: Path) -> None:
    from qmq.spark.source import LogStream

    journal, now = node(tmp_path, "a"), 0.0
    said = {"path": str(tmp_path / "a"), "minRecordsPerTrigger": "10", "maxTriggerDelay": "1m"}
    stream = LogStream(read_options(said), ["sequence"], lambda: now)
    for first in range(1, 4):
        journal.segment(split(A, first, first, 1), {A: first - 1} if first > 1 else None)
        end = stream.latestOffset({str(A): first - 1}, stream.getDefaultReadLimit())
        assert end == {str(A): first}
        now += 60.0
        assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
        now += 1.0


def test_available_now_does_not_wait_because_no_later_trigger_would_read_what_is_left(tmp_path: Path) -> None:
    from qmq.spark.source import LogStream

    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 12, 5))
    said = {"path": str(tmp_path / "a"), "minRecordsPerTrigger": "10", "maxRecordsPerTrigger": "10"}
    stream = LogStream(read_options(said), ["sequence"], lambda: 0.0)
    stream.prepareForTriggerAvailableNow()

    first = stream.latestOffset({}, stream.getDefaultReadLimit())
    second = stream.latestOffset(first, stream.getDefaultReadLimit())

    assert (first, second) == ({str(A): 10}, {str(A): 12})


def test_under_spark_a_stream_waits_for_records(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path / "mesh", "a")
    journal.segment(split(A, 1, 5, 5))
    wanted = {
        "path": f"{tmp_path}/mesh/a",
        "columns": "sequence",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "1h",
    }
    stream = spark.readStream.format("qmq").options(**wanted).load()
    rows = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = rows.trigger(processingTime="100 milliseconds").start()

    def sizes() -> list[int]:
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def report() -> str:
        return f"{query.exception()} {sizes()}"

    try:
        eventually(lambda: sizes() == [5], report, 120.0)
        journal.segment(split(A, 6, 14, 5), {A: 5})
        seen = [f"{A}", 14]
        eventually(
            lambda: all(str(one) in str(query.lastProgress["sources"][0]["latestOffset"]) for one in seen), report
        )
        assert sizes() == [5]
        journal.segment(split(A, 15, 15, 5), {A: 14})
        eventually(lambda: sizes() == [5, 10], report, 120.0)
    finally:
        query.stop()
