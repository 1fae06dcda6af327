"""Two processes of `qmq archive` on one table, under load, killed in turn: the table has what the logs have, once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from qmq.spark.archive.table import ArchiveError, open_table
from tests.spark.kills import KILLS, PATIENCE_SECONDS, TEST_SECONDS_MAX, Driver, moments
from tests.spark.processes.test_end_to_end import files, kill_under_load, logged, more, publisher
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

ORDERS, JOBS = "/fanout/orders", "/queue/jobs"


def archived(table: Path) -> list[tuple[str, int, str, bytes]]:
    """Origin, sequence, destination and body of each row; none before the first commit, which makes the table."""
    columns = ["origin", "sequence", "destination", "body"]
    try:
        rows = open_table(str(table)).to_pyarrow_table(columns=columns).to_pylist()
    except ArchiveError:
        return []
    return sorted((row["origin"], row["sequence"], row["destination"], row["body"]) for row in rows)


def registered(home: Path) -> list[tuple[str, int, str, bytes]]:
    """The same of the table of Iceberg."""
    table = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db").load_table("qmq.messages")
    rows = table.scan().to_arrow().to_pylist()
    return sorted((row["origin"], row["sequence"], row["destination"], row["body"]) for row in rows)


def command(mesh: Cluster, table: Path, *more: str) -> Sequence[str]:
    servers = ",".join("{}:{}".format(*mesh.address(name)) for name in mesh.names)
    iceberg = ["--iceberg", "lake.qmq.messages"]
    return ["-m", "qmq", "archive", str(table), "--servers", servers, "--every", "1", *iceberg, *more]


@pytest.mark.timeout(TEST_SECONDS_MAX)
def test_two_archivers_that_are_killed_add_each_message_once(
    mesh: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    table, log = tmp_path / "table", tmp_path / "log"
    publishers = [publisher(mesh, name, ORDERS) for name in mesh.names] + [publisher(mesh, "b", JOBS)]
    for worker in publishers:
        worker.start()
    running = [Driver(log, *command(mesh, table)) for _ in range(2)]
    try:
        for number, seconds in enumerate(moments(2 * KILLS, 0.0, 0.03)):
            before = files(table)
            more(publishers, 100)
            assert running[number % 2].kill_after(lambda known=before: files(table) - known, seconds)
            running[number % 2] = Driver(log, *command(mesh, table))
        kill_under_load(mesh, "b", publishers)
        for worker in publishers:
            worker.enough()
            worker.wait()
        mesh.make_healthy()
        mesh.wait_until_same()
        wanted = logged(mesh)
        eventually(lambda: archived(table) == wanted, "the archive does not come to its end", PATIENCE_SECONDS)
        for driver in running:
            driver.stop()
        codes = [driver.process.wait(PATIENCE_SECONDS) for driver in running]
    finally:
        for driver in running:
            driver.kill()

    assert codes == [0, 0]
    assert archived(table) == wanted and len(wanted) >= 4 * 100 * 2 * KILLS
    sent = {body for worker in publishers if worker.destination == JOBS for body in worker.receipted}
    assert {body for *_, name, body in archived(table) if name == JOBS} == sent
    with Driver(log, *command(mesh, table, "--once")) as driver:
        version = DeltaTable(table).version()
        driver.finish()
    assert archived(table) == wanted and DeltaTable(table).version() >= version
    assert registered(tmp_path) == wanted


@pytest.mark.timeout(TEST_SECONDS_MAX)
def test_an_archive_that_the_mesh_has_defined_needs_a_node_file_only(mesh: Cluster, tmp_path: Path) -> None:
    log, table, home = tmp_path / "log", tmp_path / "table", mesh.fleet.nodes["a"].data
    node_file = tmp_path / "node.toml"
    node_file.write_text(f'data = "{home}"\n')
    name = ["-m", "qmq", "archives", "set", "archive", f"table={table}", "--data", str(home)]
    worker = publisher(mesh, "b", ORDERS)
    worker.start()
    more([worker], 100)
    eventually(lambda: len(worker.receipted) >= 100, "nothing is sent")
    worker.enough()
    worker.wait()
    with Driver(log, *name) as defining:
        defining.finish()
    mesh.wait_until_same()

    def readers() -> list[tuple[str, int, bool]]:
        return [(one["name"], one["behind"], one["connected"]) for one in mesh.status("a")["readers"]]

    with Driver(log, "-m", "qmq", "archive", "--config", str(node_file), "--every", "1") as archiver:
        wanted = logged(mesh)
        eventually(lambda: archived(table) == wanted, "the archive does not come to its end", PATIENCE_SECONDS)
        eventually(lambda: readers() == [("archive", 0, True)], "the node does not show the archive", PATIENCE_SECONDS)
        archiver.stop()
        assert archiver.process.wait(PATIENCE_SECONDS) == 0
    eventually(lambda: readers() == [("archive", 0, False)], "the node forgets the archive", PATIENCE_SECONDS)
