"""An archive as a table of Iceberg: whatever happens between commit and registration, both have each message once."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from qmq.spark.archive import iceberg as module
from qmq.spark.archive.archiver import REGISTER_SECONDS, Archiver
from qmq.spark.archive.erase import erase
from qmq.spark.archive.iceberg import IcebergTable
from qmq.spark.archive.storage import ICEBERG_METADATA, files_of
from qmq.spark.archive.table import LOST, ArchiveError, open_table
from qmq.spark.archive.upkeep import compact, vacuum
from qmq.spark.reading.options import read_options
from tests.spark.archive.test_archiver import Mesh
from tests.spark.archive.test_object_store import EVERYTHING
from tests.spark.object_store import ROOT, SECRET, StoreProcess
from tests.spark.rig import A, node, split

NAME = "here.qmq.messages"
PASSWORD = "password-of-the-catalog"


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog in a file. pyiceberg reads the environment when it is imported."""
    from pyiceberg import catalog as pyiceberg_catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__CREDENTIAL", PASSWORD)
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(tmp_path)
    made.grow()
    yield made


def registered(name: str = NAME) -> Table:
    catalog, _, identifier = name.partition(".")
    return load_catalog(catalog).load_table(identifier)


def truth(mesh: Mesh) -> "Counter[tuple[Any, ...]]":
    """What the log has, without tables."""
    from qmq.spark.archive.files import COLUMNS
    from qmq.spark.reading.partitions import rows_of_part
    from qmq.spark.reading.place import open_place

    options = read_options({"path": str(mesh.root / "a")})
    place = open_place(options)
    parts = place.plan({}, place.available(), strict=True)
    rows = [row for part in parts for batch in rows_of_part(part, options, COLUMNS) for row in batch.to_pylist()]
    place.close()
    return Counter((row["origin"], row["sequence"], row["destination"], row["body"]) for row in rows)


COLUMNS = ["origin", "sequence", "destination", "body"]


def polars_delta(mesh: Mesh) -> Any:
    import polars as pl

    return pl.scan_delta(mesh.table).select(COLUMNS).collect().rows()


def polars_iceberg(mesh: Mesh) -> Any:
    import polars as pl

    return pl.scan_iceberg(registered()).select(COLUMNS).collect().rows()


def duckdb_delta(mesh: Mesh) -> Any:
    return duckdb_rows(open_table(mesh.table).to_pyarrow_dataset())


def duckdb_iceberg(mesh: Mesh) -> Any:
    """The files that the catalog names, read by DuckDB itself."""
    import duckdb

    files = [task.file.file_path.removeprefix("file://") for task in registered().scan().plan_files()]
    return duckdb.sql(f"select {', '.join(COLUMNS)} from read_parquet({files})").fetchall()


def pyiceberg_into_duckdb(mesh: Mesh) -> Any:
    return duckdb_rows(registered().scan().to_arrow())


def duckdb_rows(rows: Any) -> Any:
    import duckdb

    with duckdb.connect() as database:
        database.register("archive", rows)
        return database.execute(f"select {', '.join(COLUMNS)} from archive").fetchall()


READERS = [polars_delta, polars_iceberg, duckdb_delta, duckdb_iceberg, pyiceberg_into_duckdb]


def require_exact(mesh: Mesh, *readers: Callable[[Mesh], Any]) -> None:
    """Each reader finds what the log has, as often as it has it."""
    want = truth(mesh)
    assert len(want) == mesh.last
    for reader in readers or READERS:
        assert Counter(tuple(row) for row in reader(mesh)) == want, reader.__name__


def test_every_commit_is_in_both_tables_for_every_reader(mesh: Mesh) -> None:
    for _ in range(3):
        mesh.archiver(iceberg=IcebergTable(NAME, mesh.table)).run()
        assert IcebergTable(NAME, mesh.table).register() == 1
        mesh.grow()
    mesh.archiver().run()
    assert IcebergTable(NAME, mesh.table).register() == 1

    require_exact(mesh)
    assert [one.summary.operation.value for one in registered().snapshots()] == ["append"] * 4
    assert IcebergTable(NAME, mesh.table).register() == 0, "nothing is left to do, and no snapshot is made"
    assert len(registered().snapshots()) == 4


def test_a_kill_between_commit_and_registration_is_made_up_for(mesh: Mesh) -> None:
    """Neither of the first two archivers has registered what it committed; small files are then put together."""
    IcebergTable(NAME, mesh.table)
    for _ in range(2):
        mesh.archiver(iceberg=IcebergTable(NAME, mesh.table)).run()
        mesh.grow()
    mesh.archiver().run()
    compact(mesh.table)

    assert IcebergTable(NAME, mesh.table).register() == 1
    require_exact(mesh)


def test_files_that_were_put_together_and_removed_are_replaced(mesh: Mesh) -> None:
    table = IcebergTable(NAME, mesh.table)
    for _ in range(3):
        mesh.grow()
        mesh.archiver().run()
        table.register()

    compact(mesh.table)
    assert table.register() == 4
    assert len(vacuum(mesh.table, hours=0)) == 3, "files of metadata are no files of the archive"
    require_exact(mesh)
    mesh.grow()
    mesh.archiver().run()
    compact(mesh.table)
    assert table.register() == 2, "one of it, and one that was sorted before"
    require_exact(mesh)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_registration_whose_answer_is_lost_is_made_once(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    mesh.archiver().run()
    table = IcebergTable(NAME, mesh.table)
    table.register()
    mesh.grow()
    mesh.archiver().run()
    commit_table = SqlCatalog.commit_table

    def lose(*args: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
        if is_made:
            commit_table(*args)
        raise OSError(f"the catalog at\nhttps://user:{PASSWORD}@lake does not answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    with pytest.raises(ArchiveError, match="here.qmq.messages: the catalog at https://lake does not"):
        table.register()

    assert table.register() == (0 if is_made else 1)
    require_exact(mesh)


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_that_register_at_once_the_later_one_looks_again(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    mesh.archiver().run()
    if begun:
        IcebergTable(NAME, mesh.table).register()
    mesh.grow()
    mesh.archiver().run()
    look = module.live_files

    def look_and_be_overtaken(delta: Any) -> Any:
        monkeypatch.setattr(module, "live_files", look)
        found = look(delta)
        IcebergTable(NAME, mesh.table).register()
        return found

    monkeypatch.setattr(module, "live_files", look_and_be_overtaken)

    assert IcebergTable(NAME, mesh.table).register() == 0
    require_exact(mesh, polars_iceberg, duckdb_iceberg)


def test_a_look_at_an_earlier_version_takes_nothing_back(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.archiver().run()
    earlier = open_table(mesh.table)
    mesh.grow()
    mesh.archiver().run()
    IcebergTable(NAME, mesh.table).register()
    monkeypatch.setattr(module, "open_table", lambda _: earlier)

    assert IcebergTable(NAME, mesh.table).register() == 0
    require_exact(mesh, polars_iceberg)


def test_a_table_that_changes_all_the_time_is_left_for_the_next_time(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh.archiver().run()
    table = IcebergTable(NAME, mesh.table)
    table.register()
    mesh.grow()
    mesh.archiver().run()

    def refuse(*_: Any) -> None:
        raise CommitFailedException

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuse)
        with pytest.raises(ArchiveError, match="others change it"):
            table.register()
    assert table.register() == 1


def test_a_table_of_something_else_is_refused(mesh: Mesh, tmp_path: Path) -> None:
    mesh.archiver().run()
    IcebergTable(NAME, mesh.table).register()
    other = Mesh(tmp_path / "other")
    other.grow()
    other.archiver().run()

    with pytest.raises(ArchiveError, match="is not of this archive"):
        IcebergTable(NAME, other.table).register()
    require_exact(mesh, polars_iceberg)


def test_a_catalog_that_is_not_known_is_named(mesh: Mesh) -> None:
    mesh.archiver().run()

    with pytest.raises(ArchiveError, match="PYICEBERG_CATALOG__NOWHERE__URI"):
        IcebergTable("nowhere.qmq.messages", mesh.table).register()


def test_a_reader_of_a_time_opens_the_files_of_its_days(tmp_path: Path) -> None:
    from tests.spark.jobs.test_archive_readers import MIDNIGHT, ROWS, batch, made_rows, node, records
    from tests.spark.rig import A

    node(tmp_path, "a").segment([batch(A, 1, records(made_rows(A, 1, 40)))])
    Archiver(read_options({"path": str(tmp_path / "a")}), str(tmp_path / "table"), every_seconds=1.0).run()
    IcebergTable(NAME, str(tmp_path / "table")).register()

    for condition in (LessThan, GreaterThanOrEqual):
        scan = registered().scan(row_filter=condition("timestamp", MIDNIGHT.isoformat()))
        assert len(list(scan.plan_files())) == 1
    assert registered().scan().to_arrow().num_rows == 40 and len(list(registered().scan().plan_files())) == 2
    assert {row.day for row in ROWS} == {"2023-11-14", "2023-11-15"}


def test_old_snapshots_and_their_metadata_are_removed(mesh: Mesh) -> None:
    table = IcebergTable(NAME, mesh.table)
    for _ in range(4):
        mesh.grow()
        mesh.archiver().run()
        table.register()
        compact(mesh.table)
        table.register()
    assert table.vacuum() == 0, "all of it is of today"
    before = len(list((Path(mesh.table) / ICEBERG_METADATA).iterdir()))

    removed = table.vacuum(snapshot_hours=0, metadata_hours=0)

    assert removed > 5 and len(list((Path(mesh.table) / ICEBERG_METADATA).iterdir())) == before - removed + 1
    assert len(registered().snapshots()) == 1
    mesh.grow()
    mesh.archiver().run()
    table.register()
    require_exact(mesh)


def test_an_archiver_registers_once_a_minute_and_before_it_removes_files(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver = mesh.archiver(iceberg=IcebergTable(NAME, mesh.table))
    archiver.run()
    assert archiver.register() == 1
    mesh.grow()
    archiver.run()
    assert archiver.register() == 0
    archiver.keep()
    require_exact(mesh)
    mesh.grow()
    archiver.run()
    archiver._registered_at -= REGISTER_SECONDS
    assert archiver.register() == 1
    require_exact(mesh)


def test_an_archiver_that_stands_by_registers_nothing(mesh: Mesh) -> None:
    one, other = mesh.archiver(), mesh.archiver(iceberg=IcebergTable(NAME, mesh.table))
    one.run()
    other._turn.lose(0, 0.0)

    assert other.register() == 0


def test_no_key_is_in_the_tables_or_in_what_is_printed(store: StoreProcess, mesh: Mesh) -> None:
    mesh.table = "s3://bucket/some/archive"
    command = [sys.executable, "-m", "qmq", "archive", mesh.table, "--path", f"{mesh.root}/a", "--once"]

    def run(name: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, **more}
        call = [*command, "--iceberg", name]
        return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    done = run(NAME)
    mesh.grow()
    failed = run(NAME, PYICEBERG_CATALOG__HERE__URI=f"sqlite:////nowhere/{PASSWORD}/catalog.db")
    bad = run(f"https://user:{PASSWORD}@catalog/x.y.z")

    assert done.returncode == 0, done.stderr
    assert (
        failed.returncode == 1
        and failed.stderr.startswith("qmq: here.qmq.messages: ")
        and failed.stderr.count("\n") == 1
    )
    assert bad.returncode == 2 and "CATALOG.NAMESPACE.TABLE" in bad.stderr
    said = [one for run in (done, failed, bad) for one in (run.stdout, run.stderr)]
    assert not any(key in one for one in said for key in (SECRET, PASSWORD))
    files = files_of(mesh.table)
    found = [files.open_input_file(one.path).read() for one in files.get_file_info(EVERYTHING) if one.is_file]
    assert len(found) > 5
    assert not any(key.encode() in data for data in found for key in (SECRET, PASSWORD))
    opened = IcebergTable(NAME, mesh.table)._open_catalog().load_table("qmq.messages")
    assert opened.scan().to_arrow().num_rows == 20


def test_what_is_erased_is_in_no_snapshot_and_the_files_that_are_left_are_registered(mesh: Mesh) -> None:
    mesh.archiver(iceberg=IcebergTable(NAME, mesh.table)).run()
    iceberg = IcebergTable(NAME, mesh.table)
    iceberg.register()
    mesh.grow()
    mesh.archiver(iceberg=IcebergTable(NAME, mesh.table)).run()

    with pytest.raises(ArchiveError, match="is registered in Iceberg"):
        erase(mesh.table, "sequence <= 10")
    erase(mesh.table, "sequence <= 10", iceberg=iceberg)

    for reader in READERS:
        assert sorted(row[1] for row in reader(mesh)) == [*range(11, mesh.last + 1)], reader.__name__
    assert len(registered().snapshots()) == 1


def test_a_snapshot_has_what_the_archive_went_on_without(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 11, 20, 5), {A: 10})
    table = str(tmp_path / "table")
    Archiver(read_options({"path": str(tmp_path / "a")}), table, every_seconds=1.0).run()

    IcebergTable(NAME, table).register()

    (one,) = json.loads(registered().current_snapshot().summary[LOST])
    assert (one["origin"], one["first"], one["last"]) == (str(A), 1, 10)
