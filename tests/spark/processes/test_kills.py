"""kill -9 in the midst of archive runs, streams and publishing jobs: the driver with its JVM and workers, and a
server of Spark Connect.
"""

import contextlib
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from qmq.spark.archive.archiver import Archiver
from qmq.spark.jobs.archive import read_archive
from qmq.spark.reading.files import Files
from qmq.spark.reading.options import read_options
from qmq.testing.ports import free_ports
from tests.spark import kills
from tests.spark.rig import A, Journal, node, rows, split
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def grow(journal: Journal, segment: int) -> None:
    """A thousand more messages of a, in twenty batches."""
    first = segment * 1000 + 1
    journal.segment(split(A, first, first + 999, 50), {A: first - 1} if segment else None)


def is_exact(frame: Any, records: int) -> None:
    found = frame.selectExpr("count(*) n", "count(distinct origin, sequence) d", "max(sequence) m").collect()[0]
    assert (found.n, found.d, found.m) == (records, records, records)


@pytest.mark.timeout(kills.TEST_SECONDS_MAX)
def test_an_archive_has_each_message_once_however_its_runs_end(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    table = tmp_path / "table"
    command = ["-m", "qmq", "pipeline", "archive", "--path", str(tmp_path / "a"), str(table)]
    log, killed = tmp_path / "log", 0
    for number, seconds in enumerate(kills.moments(kills.KILLS, 0.0, 0.15)):
        grow(journal, number)
        before = set(table.rglob("*.parquet"))
        with kills.Driver(log, *command) as driver:
            killed += driver.kill_after(lambda known=before: set(table.rglob("*.parquet")) - known, seconds)
    grow(journal, kills.KILLS)

    with kills.Driver(log, *command) as driver:
        driver.finish()

    assert killed or kills.KILLS == 0
    is_exact(read_archive(spark, str(table)), 1000 * (kills.KILLS + 1))


@pytest.mark.timeout(kills.TEST_SECONDS_MAX)
def test_a_stream_writes_each_message_once_however_it_ends(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    out, log = tmp_path / "out", tmp_path / "log"
    command = ["-m", "tests.spark.drivers", "stream", str(tmp_path / "a"), str(out)]
    for number, seconds in enumerate(kills.moments(kills.KILLS, 0.3, 0.4)):
        grow(journal, 2 * number)
        grow(journal, 2 * number + 1)
        before = set(out.glob("rows/*.parquet"))
        with kills.Driver(log, *command) as driver:
            driver.kill_after(lambda known=before: set(out.glob("rows/*.parquet")) - known, seconds)
    grow(journal, 2 * kills.KILLS)

    with kills.Driver(log, *command) as driver:
        driver.finish()

    is_exact(spark.read.parquet(str(out / "rows")), 1000 * (2 * kills.KILLS + 1))


@pytest.mark.timeout(kills.TEST_SECONDS_MAX)
def test_an_archive_and_the_stream_behind_it_have_each_message_once_however_it_ends(spark: Any, tmp_path: Path) -> None:
    """Killed from the moment at which the past is written on. The archive goes on between the kills."""

    @contextlib.contextmanager
    def run(log: Path, command: Sequence[str]) -> Iterator[tuple[kills.Driver, kills.Driver]]:
        with kills.Driver(log, *command) as driver:
            yield driver, driver

    kill_behind_archive(spark, tmp_path, run)


@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect is not installed")
@pytest.mark.timeout(2 * kills.TEST_SECONDS_MAX)
def test_a_stream_of_spark_connect_has_each_message_once_however_its_server_ends(spark: Any, tmp_path: Path) -> None:
    """The server has the stream and its workers. The client knows no other one, and ends with it."""

    @contextlib.contextmanager
    def run(log: Path, command: Sequence[str]) -> Iterator[tuple[kills.Driver, kills.Driver]]:
        (port,) = free_ports(1)
        with kills.Driver(tmp_path / "server", "-m", "tests.spark.drivers", "connect", str(port)) as server:
            eventually(lambda: is_served(port), "the server does not start", kills.PATIENCE_SECONDS)
            remote = {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
            with kills.Driver(log, *command, more=remote) as client:
                yield server, client

    kill_behind_archive(spark, tmp_path, run)


def is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def kill_behind_archive(
    spark: Any,
    tmp_path: Path,
    run: Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[tuple[kills.Driver, kills.Driver]]],
) -> None:
    """`run` starts a driver with a log and a command, and gives what is to be killed, and what ends when it is done."""
    print(f"SEED={kills.SEED}")
    rng = random.Random(kills.SEED)
    journal, path, table = node(tmp_path, "a"), str(tmp_path / "a"), str(tmp_path / "table")
    out, log = tmp_path / "out", tmp_path / "log"
    command = ["-m", "tests.spark.drivers", "backfill", path, table, str(out)]

    def commits() -> set[Path]:
        return {
            *out.glob("past/_SUCCESS"),
            *out.glob("checkpoint/offsets/[0-9]*"),
            *out.glob("checkpoint/commits/[0-9]*"),
        }

    for number in range(kills.KILLS):
        grow(journal, 2 * number)
        Archiver(read_options({"path": path}), table, every_seconds=1.0).run()
        grow(journal, 2 * number + 1)
        before = commits()
        with run(log, command) as (victim, _):
            victim.kill_after(lambda known=before: commits() - known, rng.choice([0.0, rng.uniform(0.0, 2.0)]))
    Archiver(read_options({"path": path}), table, every_seconds=1.0).run()
    grow(journal, 2 * kills.KILLS)

    with run(log, command) as (_, driver):
        driver.finish()

    both = spark.read.parquet(str(out / "past")).union(spark.read.parquet(str(out / "rows")))
    is_exact(both, 1000 * (2 * kills.KILLS + 1))


@pytest.mark.timeout(kills.TEST_SECONDS_MAX)
def test_a_publishing_job_appends_each_row_once_however_its_runs_end(mesh: Cluster) -> None:
    """A driver ends the job in whose midst the one before it was killed, and begins the next.

    Each job has a queue of its own: in one that has messages already, nothing would tell that the job has begun. A job
    that was run again only when all kills were done could come after the nodes have forgotten its ids.
    """
    servers = ",".join("{}:{}".format(*mesh.address(name)) for name in mesh.names)
    command, log = ["-m", "tests.spark.drivers", "sink", servers, "2000"], mesh.folder / "log"
    queues = [f"/queue/sunk-{number}" for number in range(kills.KILLS)]
    begun: list[str] = []
    for queue, seconds in zip(queues, kills.moments(kills.KILLS, 0.1, 0.15), strict=True):
        with kills.Driver(log, *command, *begun, queue) as driver:
            driver.kill_after(lambda known=queue: any(mesh.depth(name, known) > 0 for name in mesh.names), seconds)
        begun = [queue]
    with kills.Driver(log, *command, *begun) as driver:
        driver.finish()

    for queue in queues:
        bodies = published(mesh, queue)
        assert sorted(bodies, key=int) == [str(number) for number in range(2000)], queue


def published(mesh: Cluster, queue: str) -> list[str]:
    """Bodies of all messages of a queue, in the logs of all nodes together, each record once."""
    path = ",".join(str(mesh.folder / "data" / name) for name in mesh.names)
    options = read_options({"path": path, "subscribe": queue})
    files = Files(options)
    found = rows(files.plan({}, files.available(), strict=False), options, ["body"])
    return [row["body"].decode() for row in found]
