"""An archive in an object store, and all that it stands on, killed in turn under load: archivers, a node, the line.

Two archivers have one table, each over a proxy in front of the store. Between the kills the table is compacted, and the
store answers errors and cuts reads. Afterwards five readers must find what the logs have, each message once.
"""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyiceberg import catalog
from pyiceberg.utils.config import Config

from qmq.spark.archive.iceberg import IcebergTable
from qmq.spark.archive.table import Overtaken, open_table
from qmq.spark.archive.upkeep import compact
from qmq.testing.ports import free_ports
from qmq.testing.proxy import Proxy
from tests.spark.kills import KILLS, PATIENCE_SECONDS, SEED, TEST_SECONDS_MAX, Driver
from tests.spark.object_store import Faults, StoreProcess
from tests.spark.processes.test_end_to_end import logged, more, publisher
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

TABLE, NAME = "s3://bucket/some/archive", "lake.qmq.messages"
COLUMNS = ["origin", "sequence", "destination", "body"]
MESSAGES = 50
"""Of each publisher, between two kills."""
AFTER_SECONDS_MAX = 0.5
"""After the beginning of a commit's work at which something is killed."""


class Line:
    """The way to the store, which can end and come back at the same address."""

    def __init__(self, store: StoreProcess) -> None:
        host, _, port = store.address.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        (self._port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{self._port}"
        self.proxy = Proxy(self._port, self._target)

    def kill(self) -> None:
        """Connections end in the midst of what they do; the next ones are refused until `start`."""
        self.proxy.close()

    def start(self) -> None:
        eventually(self._start, "the port of the line is not free")

    def _start(self) -> bool:
        with suppress(OSError):
            self.proxy = Proxy(self._port, self._target)
            return True
        return False


class Archivers:
    """Two processes of `qmq archive`: one knows all nodes, the other one only node b."""

    def __init__(self, mesh: Cluster, line: Line, log: Path) -> None:
        self._servers = [",".join(map(mesh.at, mesh.names)), mesh.at("b")]
        self._log = log
        # An archiver asks a store that does not answer for three minutes before it says so.
        self._more = {"AWS_ENDPOINT_URL": line.address}
        self.running = [self._start(number) for number in range(2)]

    def _start(self, number: int, *more: str) -> Driver:
        said = ["--servers", self._servers[number], "--every", "1", "--iceberg", NAME, *more]
        return Driver(self._log.with_suffix(f".{number}"), "-m", "qmq", "archive", TABLE, *said, more=self._more)

    def once(self) -> Driver:
        """One that registers with Iceberg what is left to, which others do once a minute."""
        return self._start(0, "--once")

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            assert self.running[number].process.poll() is None, self.said()
            self.running[number].kill()

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.running[number] = self._start(number)

    def said(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-2000:] for path in self._log.parent.glob("log.*"))


def version() -> int:
    return int(DeltaTable(TABLE).version()) if DeltaTable.is_deltatable(TABLE) else -1


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows)


def by_delta() -> Any:
    rows = open_table(TABLE).to_pyarrow_table(columns=COLUMNS).to_pylist()
    return [tuple(row[name] for name in COLUMNS) for row in rows]


def by_polars() -> Any:
    return polars.scan_delta(TABLE).select(COLUMNS).collect().rows()


def by_duckdb() -> Any:
    return _queried(open_table(TABLE).to_pyarrow_dataset())


def by_iceberg() -> Any:
    return _queried(_registered().scan().to_arrow())


def by_polars_of_iceberg() -> Any:
    return polars.from_arrow(_registered().scan().to_arrow()).select(COLUMNS).rows()  # type: ignore[union-attr]


def _registered() -> Any:
    return IcebergTable(NAME, TABLE)._open_catalog().load_table("qmq.messages")


def _queried(rows: Any) -> Any:
    with duckdb.connect() as database:
        database.register("archive", rows)
        return database.execute(f"select {', '.join(COLUMNS)} from archive").fetchall()


@pytest.mark.timeout(TEST_SECONDS_MAX * 4)
def test_whatever_is_killed_each_message_is_in_the_table_once(
    mesh: Cluster, store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())  # pyiceberg has read the environment before
    publishers = [publisher(mesh, name, "/fanout/orders") for name in mesh.names]
    publishers.append(publisher(mesh, "b", "/queue/jobs"))
    for worker in publishers:
        worker.start()
    line = Line(store)
    archivers = Archivers(mesh, line, tmp_path / "log")
    victims: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "an archiver": (lambda: archivers.kill(0), lambda: archivers.start(0)),
        "both archivers": (lambda: archivers.kill(0, 1), lambda: archivers.start(0, 1)),
        "the node": (lambda: mesh.kill("b"), lambda: mesh.start("b")),
        "the line": (line.kill, line.start),
    }
    try:
        for name in rng.sample(sorted(victims), len(victims) * KILLS, counts=[KILLS] * len(victims)):
            kill, start = victims[name]
            before = version()
            more(publishers, MESSAGES)
            eventually(
                lambda known=before: version() > known, lambda: f"no commit\n{archivers.said()}", PATIENCE_SECONDS
            )
            threading.Event().wait(rng.uniform(0.0, AFTER_SECONDS_MAX))
            kill()
            more(publishers, MESSAGES)
            store.set(Faults(errors=rng.randrange(3), cut_reads=rng.randrange(2), cut_commits=rng.randrange(2)))
            if rng.randrange(4) == 0:
                with suppress(Overtaken):
                    compact(TABLE)
            start()
        for worker in publishers:
            worker.enough()
            worker.wait()
        store.set(Faults())
        mesh.make_healthy()
        mesh.wait_until_same()
        wanted = logged(mesh)
        eventually(lambda: in_order(by_delta()) == wanted, lambda: f"not all\n{archivers.said()}", PATIENCE_SECONDS)
        for driver in archivers.running:
            driver.stop()
        assert [driver.process.wait(PATIENCE_SECONDS) for driver in archivers.running] == [0, 0], archivers.said()
        with archivers.once() as driver:
            driver.finish()
    finally:
        for driver in archivers.running:
            driver.kill()
        line.kill()

    assert len(wanted) >= 4 * 2 * MESSAGES * len(victims) * KILLS
    for found in (by_delta, by_polars, by_duckdb, by_iceberg, by_polars_of_iceberg):
        assert in_order(found()) == wanted, found.__name__
