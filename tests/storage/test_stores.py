"""What any catalog has to do, on SQLite and on the twin in memory; and what both files of SQLite refuse."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import sqlite_utils
from sqlite_utils.migrations import Migrations

from qmq.definitions.definition import Definition, Key, Version
from qmq.errors import FutureVersion, LogBroken
from qmq.model.dots import Origin
from qmq.storage.catalog.catalog import TABLES, SqliteCatalog
from qmq.storage.disk.sqlite import open_database, open_migrated
from qmq.storage.format.interfaces import Catalog, CheckpointState, DirectoryIdentity, FanoutExtent
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from tests.fakes.catalog import MemoryCatalog
from tests.fakes.disk import MemoryDisk

HUGE = Origin("a", 2**64 - 1)
OLD = Origin("a", 2**63)
OTHER = Origin("b", 5)

OpenCatalog = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "memory"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> OpenCatalog:
    disk = MemoryDisk()
    return lambda: SqliteCatalog(tmp_path / "c.sqlite") if request.param == "sqlite" else MemoryCatalog(disk)


def test_the_catalog_keeps_definitions_and_their_tombstones(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    first = Definition(Key("policy", "/queue/q"), Version(5, 0, HUGE, 2**63 - 1), '{"a":"é"}')
    second = first._replace(version=Version(6, 1, OTHER, 1), text=None, replaced=first.version)
    other = Definition(Key("policy", "/queue/r"), Version(7, 0, HUGE, 9), "{}")
    assert catalog.definitions() == []
    catalog.commit_checkpoint(CheckpointState(1, {}), {}, definitions=[first, other])
    catalog.commit_checkpoint(CheckpointState(2, {}), {}, definitions=[second])
    catalog.close()

    catalog = open_catalog()
    assert sorted(catalog.definitions(), key=str) == [second, other]
    catalog.remove_definitions([second.key])
    assert catalog.definitions() == catalog.definitions() == [other]
    catalog.close()

    catalog = open_catalog()
    assert catalog.definitions() == [other]
    catalog.close()


def test_a_new_catalog_knows_nothing(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()

    assert catalog.identity() is None
    assert catalog.checkpoint() == catalog.base() == CheckpointState(0, {})
    assert (catalog.fanouts(), catalog.incarnations()) == ({}, {})
    catalog.close()


def test_the_catalog_keeps_its_facts_over_a_restart(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    extent = FanoutExtent("f-1", 0, 500, 3, 10, 20)
    catalog.set_identity(DirectoryIdentity("a", "u", 1))
    catalog.commit_checkpoint(CheckpointState(70, {HUGE: 2**63 + 1}), {"/fanout/f": extent, "/fanout/g": extent})
    catalog.commit_checkpoint(CheckpointState(99, {HUGE: 2**63 + 4}), {"/fanout/f": extent._replace(end=900)})
    catalog.set_base(CheckpointState(64, {OTHER: 1}))
    catalog.add_incarnation(HUGE, 100)
    catalog.add_incarnation(OLD, 50)
    catalog.close()

    catalog = open_catalog()

    assert catalog.identity() == DirectoryIdentity("a", "u", 1)
    assert catalog.checkpoint() == CheckpointState(99, {HUGE: 2**63 + 4})
    assert catalog.fanouts() == {"/fanout/f": extent._replace(end=900), "/fanout/g": extent}
    assert catalog.base() == CheckpointState(64, {OTHER: 1})
    assert list(catalog.incarnations().items()) == [(HUGE, 100), (OLD, 50)]
    catalog.close()


def test_a_file_is_brought_to_the_present_version_and_keeps_its_rows(tmp_path: Path) -> None:
    steps = Migrations("example")

    @steps()
    def m001_first(database: sqlite_utils.Database) -> None:
        database.table("example").create({"name": str}, pk="name")

    @steps()
    def m002_size(database: sqlite_utils.Database) -> None:
        database.table("example").add_column("size", int, not_null_default=1)

    path = tmp_path / "x.sqlite"
    database = open_database(path)
    steps.apply(database, stop_before="m002_size")
    database.table("example").insert({"name": "a"})
    database.close()

    for _ in range(2):
        database = open_migrated(path, steps, frozenset({"m001_first", "m002_size"}))
        assert list(database.table("example").rows) == [{"name": "a", "size": 1}]
        database.close()


@pytest.mark.parametrize("kind", [SqliteCatalog, SqliteQueueStore])
def test_a_file_that_later_software_migrated_is_refused(
    kind: type[SqliteCatalog] | type[SqliteQueueStore], tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite"
    kind(path).close()
    database = sqlite_utils.Database(path)
    applied = dict(next(iter(database["_sqlite_migrations"].rows)))
    database["_sqlite_migrations"].insert({**applied, "id": None, "name": "m999_later"})
    database.close()

    with pytest.raises(FutureVersion, match="m999_later"):
        kind(path)


@pytest.mark.parametrize("kind", [SqliteCatalog, SqliteQueueStore])
def test_a_file_that_is_no_database_is_a_storage_error(
    kind: type[SqliteCatalog] | type[SqliteQueueStore], tmp_path: Path
) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"not a database, but long enough to look at" * 50)

    with pytest.raises(LogBroken, match="SQLite"):
        kind(tmp_path / "x.sqlite")


@pytest.mark.parametrize("table", TABLES)
def test_a_table_whose_name_became_upper_case_keeps_its_rows(table: str, tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = SqliteCatalog(path)
    catalog.set_identity(DirectoryIdentity("a", "u", 1))
    catalog.set_base(CheckpointState(64, {OTHER: 1}))
    catalog.set_facts({"learner": "began empty"})
    catalog.close()
    name, bent = (f"table{first}{table}".encode() for first in (table, table.capitalize()))
    assert name in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(name, bent))

    catalog = SqliteCatalog(path)

    assert (catalog.identity(), catalog.base()) == (DirectoryIdentity("a", "u", 1), CheckpointState(64, {OTHER: 1}))
    assert catalog.facts() == {"learner": "began empty"}
    catalog.close()


def test_facts_about_the_mesh_are_kept_replaced_and_forgotten(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    catalog.set_facts({"learner": "began empty", "disk/b": "one", "disk/c": "two"})
    catalog.set_facts({"learner": None, "disk/b": "other", "nothing": None})
    catalog.close()

    catalog = open_catalog()

    assert catalog.facts() == {"disk/b": "other", "disk/c": "two"}
    catalog.close()


def test_a_flipped_bit_in_the_catalog_is_never_believed(tmp_path: Path) -> None:
    """It begins as it was, or not at all."""
    path = tmp_path / "catalog.sqlite"
    catalog = SqliteCatalog(path)
    catalog.set_identity(DirectoryIdentity("a", "u", 1))
    catalog.commit_checkpoint(CheckpointState(70, {HUGE: 1234}), {}, given_up={OTHER: 5})
    catalog.set_facts({"learner": "began empty"})
    catalog.close()
    sound = path.read_bytes()
    used = [place for place in range(len(sound)) if sound[place]]
    rng = Random("rot")
    refused = 0
    for _ in range(150):
        data = bytearray(sound)
        data[rng.choice(used)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

        try:
            catalog = SqliteCatalog(path)
        except (LogBroken, FutureVersion):
            refused += 1
            continue
        assert catalog.identity() == DirectoryIdentity("a", "u", 1)
        assert catalog.checkpoint() == CheckpointState(70, {HUGE: 1234})
        assert (catalog.given_up(), catalog.facts()) == ({OTHER: 5}, {"learner": "began empty"})
        catalog.close()
    assert refused
