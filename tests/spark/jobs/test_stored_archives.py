"""Archives in an object store, read by Spark's workers: what is read, with which keys, and through which faults."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qmq.cli.pipeline.shared import first_line
from qmq.spark import backfill, history
from qmq.spark.archive.live_files import live_files, rows_of_file
from qmq.spark.archive.storage import settings, with_settings
from qmq.spark.archive.table import open_table
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import archive, read_archive
from qmq.spark.jobs.compare import compare
from qmq.spark.reading.options import read_options
from tests.spark.archive.test_archiver import Mesh
from tests.spark.object_store import SECRET, Faults, StoreProcess
from tests.spark.rig import START_US


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    made = Mesh(tmp_path)
    made.table = "s3://bucket/some/archive"
    made.grow()
    return made


def sequences(frame: Any) -> list[int]:
    return sorted(row.sequence for row in frame.collect())


def test_a_history_is_the_archive_in_a_store_and_what_nodes_have_since(
    spark: Any, any_store: StoreProcess, mesh: Mesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Written by workers, and by an archiver, sorted, and read. Spark has begun without any keys."""
    path = f"{mesh.root}/a"
    archive(spark, read_options({"path": path}), mesh.table)
    mesh.grow()
    mesh.archiver().run()
    assert compact(mesh.table).added == 1
    mesh.grow()

    frame = history(spark, mesh.table, path=path)

    direct = spark.read.format("qmq").options(path=path).load()
    assert frame.dtypes == direct.dtypes
    assert sorted(map(tuple, frame.collect())) == sorted(map(tuple, direct.collect()))
    first = history(spark, mesh.table, path=path, columns="sequence", endingTimestamp=str(START_US // 1000 + 4))
    assert (first.columns, sequences(first)) == (["sequence"], [1, 2, 3])
    frame.explain(True)
    assert SECRET not in "".join(capfd.readouterr())
    assert compare(spark, mesh.table, path).equal

    past, live = backfill(spark, mesh.table, path=path, columns="sequence")
    said = {"checkpointLocation": str(tmp_path / "checkpoint"), "path": str(tmp_path / "streamed")}
    live.writeStream.format("parquet").options(**said).trigger(availableNow=True).start().awaitTermination()
    assert (sequences(past), sequences(spark.read.parquet(said["path"]))) == ([*range(1, 41)], [*range(41, 61)])


@pytest.mark.parametrize("faults", [{"errors": 3}, {"cut_reads": 2}, {"slow_seconds": 0.05}])
def test_faults_of_the_store_are_waited_for(
    spark: Any, store: StoreProcess, mesh: Mesh, faults: dict[str, Any]
) -> None:
    mesh.archiver().run()
    frame = read_archive(spark, mesh.table)
    store.set(Faults(**faults))

    assert sequences(frame) == [*range(1, 21)]


def test_what_the_store_refuses_is_an_error_without_keys(spark: Any, store: StoreProcess, mesh: Mesh) -> None:
    mesh.archiver().run()
    frame = read_archive(spark, mesh.table)
    store.set(Faults(denied=1000))

    with pytest.raises(Exception, match="403 Forbidden") as caught:
        frame.collect()

    assert SECRET not in str(caught.value)
    assert first_line(str(caught.value)).endswith("403 Forbidden")


def test_workers_have_the_keys_of_the_driver_for_the_time_of_a_task(
    any_store: StoreProcess, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a worker that works for other users, too."""
    mesh.archiver().run()
    delta, keys = open_table(mesh.table), settings()
    (file,), stored = live_files(delta), pa.schema(delta.schema())
    for name, _ in keys:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "nowhere")

    with with_settings(keys):
        (rows,) = rows_of_file(mesh.table, file, stored, ["sequence", "day"])

    assert rows.to_pydict() == {"sequence": [*range(1, 21)], "day": ["2023-11-14"] * 20}
    assert settings() == (("AWS_REGION", "nowhere"),)
    with pytest.raises(OSError):
        list(rows_of_file(mesh.table, file, stored, ["sequence"]))


def test_only_what_may_be_chosen_leaves_a_file(any_store: StoreProcess, mesh: Mesh) -> None:
    mesh.archiver().run()
    delta = open_table(mesh.table)
    (file,), stored = live_files(delta), pa.schema(delta.schema())

    def chosen(**said: str) -> list[int]:
        options = read_options(said, of_archive=True)
        rows = rows_of_file(mesh.table, file, stored, ["sequence"], options)
        return [number for batch in rows for number in batch["sequence"].to_pylist()]

    assert chosen(startingTimestamp=str(START_US // 1000 + 18)) == [18, 19, 20]
    assert chosen(endingTimestamp=str(START_US // 1000 + 3)) == [1, 2]
    assert chosen(subscribe="/queue/other") == []
    assert chosen(subscribe="/queue/jobs,/queue/other") == chosen() == [*range(1, 21)]
