"""An archive in an object store: commits, faults, upkeep, and what other readers find. No keys are left anywhere."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from qmq.model.dots import Vector
from qmq.spark.archive import table as tables
from qmq.spark.archive.archiver import standing
from qmq.spark.archive.storage import files_of
from qmq.spark.archive.table import ArchiveError, Overtaken
from qmq.spark.archive.upkeep import compact, vacuum
from qmq.spark.reading.options import BadOption, read_options
from tests.spark.archive.test_archiver import Mesh
from tests.spark.object_store import FOREIGN, ROOT, SECRET, Faults, StoreProcess

EVERYTHING = fs.FileSelector("", recursive=True, allow_not_found=True)


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    made = Mesh(tmp_path)
    made.table = "s3://bucket/some/archive"
    made.grow()
    return made


def test_each_message_is_in_the_table_once_and_other_readers_find_it(any_store: StoreProcess, mesh: Mesh) -> None:
    archiver = mesh.archiver()
    archiver.check()
    for _ in range(3):
        archiver.run()
        mesh.grow()

    assert mesh.sequences() == [*range(1, 61)]
    rows = DeltaTable(mesh.table).to_pyarrow_dataset().to_table(columns=["sequence", "body"])
    assert rows.num_rows == 60
    found = standing(read_options({"path": f"{mesh.root}/a"}), mesh.table)
    assert (found["rows"], found["files"], found["behind_records"]) == (60, 3, 20)


def test_small_files_are_put_together_and_unused_ones_removed(any_store: StoreProcess, mesh: Mesh) -> None:
    archiver = mesh.archiver()
    for _ in range(3):
        archiver.run()
        mesh.grow()

    done = compact(mesh.table)

    assert (done.removed, done.added) == (3, 1) and mesh.sequences() == [*range(1, 61)]
    assert len(vacuum(mesh.table, hours=0)) == 3
    assert archiver.run().rows == 20 and mesh.sequences() == [*range(1, 81)]


def test_errors_and_slowness_of_the_store_are_waited_for(store: StoreProcess, mesh: Mesh) -> None:
    store.set(Faults(errors=3, slow_seconds=0.01))

    mesh.archiver().run()

    assert mesh.sequences() == [*range(1, 21)]


@pytest.mark.parametrize("fault", ["cut_commits", "lost_commits"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_commit_whose_answer_is_lost_is_made_once(store: StoreProcess, mesh: Mesh, fault: str, begun: bool) -> None:
    archiver = mesh.archiver()
    if begun:
        archiver.run()
        mesh.grow()
    store.set(Faults(**{fault: 1}))

    try:
        archiver.run()
    except (Overtaken, ArchiveError, DeltaError, OSError):
        pass  # it does not know whether the commit was made, and looks again
    another = mesh.archiver()
    another.run()

    assert mesh.sequences() == [*range(1, 41 if begun else 21)]


def test_of_two_commits_at_once_the_store_refuses_one(
    any_store: StoreProcess, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits after this one has looked at the table."""
    one, other = mesh.archiver(), mesh.archiver()
    one.run()
    mesh.grow()
    look = tables.table_vector

    def look_and_be_overtaken(*args: Any) -> Vector:
        found = look(*args)
        monkeypatch.setattr(tables, "table_vector", look)
        one.run()
        return found

    monkeypatch.setattr(tables, "table_vector", look_and_be_overtaken)

    with pytest.raises(Overtaken):
        other.run()
    assert other.is_standby and mesh.sequences() == [*range(1, 41)]


def test_a_commit_does_not_replace_one_that_was_first_by_a_moment(store: StoreProcess, mesh: Mesh) -> None:
    """It is put after the one of another client, which adds nothing: this one is made as the next version."""
    archiver = mesh.archiver()
    archiver.run()
    mesh.grow()
    store.set(Faults(beaten=1))

    archiver.run()

    assert files_of(mesh.table).open_input_file(f"_delta_log/{1:020}.json").read() == FOREIGN
    assert DeltaTable(mesh.table).version() == 2 and mesh.sequences() == [*range(1, 41)]


def test_a_place_with_something_else_is_no_archive(any_store: StoreProcess, mesh: Mesh) -> None:
    any_store.put("bucket/some/archive/something", b"x")

    with pytest.raises(ArchiveError, match="not empty, it has 'something'"):
        mesh.archiver().check()


def test_what_a_run_that_failed_has_written_is_removed(
    any_store: StoreProcess, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("qmq.spark.archive.files._stats", fail)
    with pytest.raises(MemoryError):
        mesh.archiver().run()

    assert [one for one in files_of(mesh.table).get_file_info(EVERYTHING) if one.is_file] == []


@pytest.mark.parametrize("setting", ["AWS_S3_ALLOW_UNSAFE_RENAME=true", "AWS_CONDITIONAL_PUT=disabled"])
def test_a_store_that_would_let_a_commit_replace_another_is_refused(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)

    with pytest.raises(BadOption, match=name):
        mesh.archiver()


def test_no_key_is_in_the_table_or_in_what_is_printed(store: StoreProcess, mesh: Mesh, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qmq", "archive", mesh.table, "--path", f"{mesh.root}/a", "--once"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    options = [f"--storage-option={name}={value}" for name, value in os.environ.items() if name.startswith("AWS_")]

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    done = run()
    store.set(Faults(denied=1000))
    failed = run()
    store.set(Faults())

    assert done.returncode == 0 and "20 messages added" in done.stdout, done.stderr
    assert failed.returncode == 1 and "AccessDenied" in failed.stderr and failed.stderr.count("\n") == 1
    assert not any(SECRET in said for one in (done, failed) for said in (one.stdout, one.stderr))
    files = files_of(mesh.table)
    found = [files.open_input_file(one.path).read() for one in files.get_file_info(EVERYTHING) if one.is_file]
    assert len(found) == 2 and not any(SECRET.encode() in data for data in found)
