"""Three real nodes under load, each killed in turn; an archive follows them over the network, and is killed as well.

Afterwards the archive has exactly what the logs have, the audit is clean, and a replay arrives once.
"""

import os
import signal
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qmq.spark.jobs.archive import archive, read_archive
from qmq.spark.jobs.audit import audit
from qmq.spark.jobs.messages import read_messages
from qmq.spark.jobs.replay import choose, send
from qmq.spark.reading.files import Files
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import read_options
from tests.spark.kills import PATIENCE_SECONDS, Driver
from tests.spark.rig import rows
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Consumer, Publisher

ORDERS, JOBS, AGAIN = "/fanout/orders", "/queue/jobs", "/queue/again"
BEFORE, MEANWHILE = 150, 100
"""Messages of each of the four publishers: while a node is killed, and while it comes back."""
KILLS = "cabacb"


@pytest.mark.timeout(600)
def test_history_is_kept_proven_and_sent_again(spark: Any, mesh: Cluster, tmp_path: Path) -> None:
    servers = ",".join("{}:{}".format(*mesh.address(name)) for name in mesh.names)
    table = tmp_path / "table"
    follow = ["-m", "qmq", "archive", str(table), "--servers", servers, "--every", "1"]
    publishers = [publisher(mesh, name, ORDERS) for name in mesh.names] + [publisher(mesh, "b", JOBS)]
    consumer = Consumer([mesh.address(name) for name in mesh.names], JOBS)
    for worker in (*publishers, consumer):
        worker.start()

    with Driver(tmp_path / "log", *follow) as driver:
        more(publishers, MEANWHILE)
        wait_for_files(table, set())
        for name in KILLS[:3]:
            kill_under_load(mesh, name, publishers)
        known = files(table)
        more(publishers, BEFORE)
        assert driver.kill_after(lambda: files(table) - known, 0.0)
    with Driver(tmp_path / "log", *follow) as driver:
        known = files(table)
        for name in KILLS[3:]:
            kill_under_load(mesh, name, publishers)
        wait_for_files(table, known)
        assert driver.process.poll() is None, (tmp_path / "log").read_text("utf-8", "replace")[-3000:]
        os.kill(driver.process.pid, signal.SIGINT)
        driver.process.wait(PATIENCE_SECONDS)
    for worker in publishers:
        worker.enough()
        worker.wait()
    consumer.finish()
    mesh.make_healthy()
    mesh.wait_until_same()

    archive(spark, read_options({"servers": servers}), str(table))

    kept = read_archive(spark, str(table)).collect()
    archived = sorted((row.origin, row.sequence, row.destination, bytes(row.body)) for row in kept)
    assert archived == logged(mesh)
    for destination in (ORDERS, JOBS):
        sent = {body for worker in publishers if worker.destination == destination for body in worker.receipted}
        assert {body for *_, name, body in archived if name == destination} == sent
    assert len(archived) > 6 * len(publishers) * (BEFORE + MEANWHILE)
    directories = [DataDirectory(mesh.folder / "data" / name) for name in mesh.names]
    live = [read_options({"servers": server}) for server in servers.split(",")]
    found = audit(directories, live)
    assert (found.findings, {row.behind for row in found.rows}) == ([], {0})

    chosen = choose(read_messages(spark, {"subscribe": ORDERS}, str(table)), where="body like 'b 1__'", to=AGAIN)
    for _ in range(2):
        send(chosen, {"servers": servers}, name="again", tasks=1)
    mesh.wait_until_same()
    wanted = sorted(body for *_, name, body in archived if name == ORDERS and body[:3] == b"b 1" and len(body) == 5)
    assert len(wanted) >= 100
    assert sorted(body for *_, body in logged(mesh, subscribe=AGAIN)) == wanted
    got = mesh.client("c").subscribe(AGAIN)
    eventually(lambda: len(got) >= len(wanted), lambda: f"{len(got)} of {len(wanted)} came")
    assert sorted(message.body for message in got) == wanted


def publisher(mesh: Cluster, first: str, destination: str) -> Publisher:
    """Goes to the next node when its own is gone, and waits for what it may send."""
    names = mesh.names[mesh.names.index(first) :] + mesh.names[: mesh.names.index(first)]
    bodies = (f"{first} {number}".encode() for number in count())
    return Publisher([mesh.address(name) for name in names], destination, bodies, allowed=0)


def more(publishers: Sequence[Publisher], messages: int) -> None:
    for worker in publishers:
        worker.allowed += messages


def kill_under_load(mesh: Cluster, name: str, publishers: Sequence[Publisher]) -> None:
    """kill -9 in the midst of what is sent; the others get the rest of it, and more while it comes back."""

    def receipted() -> int:
        return sum(len(worker.receipted) for worker in publishers)

    enough = receipted() + len(publishers) * BEFORE // 2
    more(publishers, BEFORE)
    eventually(lambda: receipted() >= enough, lambda: f"publishers stand still at {receipted()}, {enough} were due")
    mesh.kill(name)
    allowed = sum(worker.allowed for worker in publishers)
    eventually(lambda: receipted() == allowed, lambda: f"without {name} {receipted()} of {allowed} were receipted")
    more(publishers, MEANWHILE)
    mesh.start(name)


def files(table: Path) -> set[Path]:
    return set(table.rglob("*.parquet"))


def wait_for_files(table: Path, known: set[Path]) -> None:
    eventually(lambda: files(table) - known, "the archive does not go on", seconds=PATIENCE_SECONDS)


def logged(mesh: Cluster, **said: str) -> list[tuple[str, int, str, bytes]]:
    """Origin, sequence, destination and body of all messages in the logs of all nodes, each once."""
    path = ",".join(str(mesh.folder / "data" / name) for name in mesh.names)
    options = read_options({"path": path, **said})
    place = Files(options)
    found = rows(place.plan({}, place.available(), strict=True), options, ["origin", "sequence", "destination", "body"])
    return sorted((row["origin"], row["sequence"], row["destination"], row["body"]) for row in found)
