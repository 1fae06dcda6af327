"""One process without Spark, on data directories and on stubs of live nodes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from qmq.errors import NotConnected
from qmq.model.dots import Vector
from qmq.spark.archive import archiver as archivers
from qmq.spark.archive.archiver import Archiver, standing
from qmq.spark.archive.table import ArchiveError, Overtaken, open_table, table_vector
from qmq.spark.reading.options import read_options
from qmq.spark.reading.plan import DataLoss
from tests.spark.connector.test_remote import JournalNode
from tests.spark.rig import A, B, Journal, node, split


class Mesh:
    """The data directory of a node that goes on, and archivers of one table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = str(root / "table")
        self.journal = node(root, "a")
        self.last = 0

    def grow(self, messages: int = 20) -> None:
        vector: Vector = {A: self.last} if self.last else {}
        self.journal.segment(split(A, self.last + 1, self.last + messages, 5), vector)
        self.last += messages

    def archiver(self, **said: Any) -> Archiver:
        options = read_options({"path": str(self.root / "a"), "name": "archive"})
        return Archiver(options, self.table, every_seconds=1.0, **said)

    def sequences(self) -> list[int]:
        found: list[int] = open_table(self.table).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist()
        return sorted(found)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(tmp_path)
    made.grow()
    yield made


def test_runs_add_each_message_once_in_one_file_a_day(mesh: Mesh) -> None:
    archiver = mesh.archiver()
    done = [archiver.run()]
    for _ in range(2):
        mesh.grow()
        done.append(archiver.run())
    done.append(archiver.run())

    assert mesh.sequences() == [*range(1, 61)]
    assert [(one.rows, one.files, one.commits) for one in done] == [(20, 1, 1), (20, 1, 1), (20, 1, 1), (0, 0, 0)]


def test_the_table_says_how_far_it_goes_as_that_of_the_spark_job_does(mesh: Mesh) -> None:
    mesh.archiver().run()

    assert table_vector(open_table(mesh.table), [A, B]) == {A: 20}


def test_one_whose_table_was_moved_by_another_stands_by_and_then_takes_over(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(archivers.time, "monotonic", lambda: now[0])
    one, other = mesh.archiver(), mesh.archiver()
    one.run()
    mesh.grow()
    committed = archivers.write_parts

    def late(*args: Any) -> Any:
        made = committed(*args)
        monkeypatch.setattr(archivers, "write_parts", committed)
        one.run()
        return made

    monkeypatch.setattr(archivers, "write_parts", late)
    with pytest.raises(Overtaken):
        other.run()
    mesh.grow()
    now[0] = 29.0
    waits = other.run()

    assert (waits.rows, other.is_standby, one.is_standby) == (0, True, False)
    now[0] = 31.0
    assert (other.run().rows, other.is_standby) == (20, False)
    assert mesh.sequences() == [*range(1, 61)]


def test_what_is_asked_to_stop_ends_after_the_commit_that_it_is_at(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archivers, "PARTS_PER_COMMIT", 2)
    for _ in range(5):
        mesh.grow()
    stopping: list[bool] = []
    archiver = Archiver(
        read_options({"path": str(mesh.root / "a"), "minPartitions": "12"}),
        mesh.table,
        every_seconds=1.0,
        is_stopping=lambda: bool(stopping) or bool(stopping.append(True)),
    )

    done = archiver.run()

    assert done.commits == 1 and 0 < done.rows < 120
    mesh.archiver().run()
    assert mesh.sequences() == [*range(1, 121)]


def test_a_file_and_a_directory_of_something_else_are_no_archive(mesh: Mesh) -> None:
    (mesh.root / "file").write_text("x")
    write_deltalake(str(mesh.root / "delta"), pa.table({"x": [1]}))
    for name, said in (("file", "is a file"), ("a", "not empty"), ("delta", "no archive of QMQ")):
        mesh.table = str(mesh.root / name)
        with pytest.raises(ArchiveError, match=said):
            mesh.archiver().check()


def test_a_table_of_other_destinations_is_refused(mesh: Mesh) -> None:
    mesh.archiver().run()

    options = read_options({"path": str(mesh.root / "a"), "subscribe": "/queue/x"})
    with pytest.raises(ArchiveError, match="was started as"):
        Archiver(options, mesh.table, every_seconds=1.0).check()


def test_what_a_first_run_that_was_killed_has_left_does_not_stop_the_next_one(mesh: Mesh) -> None:
    (Path(mesh.table) / "day=2023-11-14").mkdir(parents=True)
    (Path(mesh.table) / "day=2023-11-14" / "half.parquet").write_bytes(b"PAR1")

    mesh.archiver().check()
    mesh.archiver().run()

    assert mesh.sequences() == [*range(1, 21)]


def test_a_node_that_goes_away_is_asked_again_when_it_is_back(mesh: Mesh) -> None:
    live = JournalNode(split(A, 1, 20, 5))
    options = read_options({"servers": live.address})
    with closing(Archiver(options, mesh.table, every_seconds=1.0)) as archiver:
        archiver.run()
        live.close()
        archiver.close()
        for _ in range(2):
            with pytest.raises(NotConnected):
                archiver.run()

    with closing(Archiver(read_options({"path": f"{mesh.root}/a"}), mesh.table, every_seconds=1.0)) as archiver:
        mesh.grow()
        assert archiver.run().rows == 20


def test_what_nodes_have_dropped_is_named_in_each_run_and_ends_none(mesh: Mesh) -> None:
    mesh.archiver().run()
    Journal(mesh.root / "b" / "journal", "b").segment(split(A, 31, 40, 5), {A: 30})
    options = read_options({"path": str(mesh.root / "b")})
    archiver = Archiver(options, mesh.table, every_seconds=1.0)

    for _ in range(2):
        with pytest.raises(DataLoss, match=f"{A} from 21 to 30"):
            archiver.run()

    without = Archiver(
        read_options({"path": str(mesh.root / "b"), "failOnDataLoss": "false"}), mesh.table, every_seconds=1.0
    )
    assert without.run().rows == 10


def test_nodes_hear_how_far_the_archive_is(mesh: Mesh) -> None:
    live = JournalNode(split(A, 1, 20, 5))
    options = read_options({"servers": live.address, "name": "archive"})
    with closing(Archiver(options, mesh.table, every_seconds=1.0)) as archiver:
        archiver.run()
        archiver.run()

    said = [frame.head.headers for frame in live.asked if "qmq-reader" in frame.head.headers]
    assert {one["qmq-reader"] for one in said} == {"archive"}
    assert said[-1]["qmq-resume"] == f"{A}=20"


def test_the_standing_counts_rows_and_what_is_left(mesh: Mesh) -> None:
    mesh.archiver().run()
    mesh.grow()

    found = standing(read_options({"path": str(mesh.root / "a")}), mesh.table)

    assert (found["rows"], found["files"], found["behind_records"], found["version"]) == (20, 1, 20, 0)


def test_records_behind_are_those_that_the_table_lacks(mesh: Mesh) -> None:
    archiver = mesh.archiver()

    assert archiver.behind().records == 20
    archiver.run()
    assert archiver.behind() == (0, 0.0)
