"""Three real nodes under load and a kill: the archive follows them over the network, all is there, a replay arrives."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from qmq.spark.jobs.archive import archive, read_archive
from qmq.spark.jobs.audit import audit
from qmq.spark.jobs.messages import read_messages
from qmq.spark.jobs.replay import choose, send
from qmq.spark.logs import DataDirectory
from qmq.spark.options import read_options

from ..support.cluster_mesh import Cluster
from ..support.cluster_wait import eventually
from .kills import Driver

ORDERS, AGAIN = "/fanout/orders", "/queue/again"


@pytest.mark.timeout(600)
def test_history_is_kept_proven_and_sent_again(spark: Any, mesh: Cluster, tmp_path: Path) -> None:
    servers = ",".join("{}:{}".format(*mesh.address(name)) for name in mesh.names)
    table = str(tmp_path / "table")
    follow = ["-m", "qmq", "pipeline", "archive", "--servers", servers, "--follow", "--every", "1", table]
    with Driver(tmp_path / "log", *follow) as driver:
        publisher = mesh.client("b")
        publisher.publish(ORDERS, *(b"order %d" % number for number in range(300)))
        eventually(lambda: list(Path(table).rglob("*.parquet")), "the archive has not begun", seconds=120)
        mesh.kill("c")
        publisher.publish(ORDERS, *(b"order %d" % number for number in range(300, 600)))
        mesh.start("c")
        os.kill(driver.process.pid, signal.SIGINT)
        driver.process.wait(60)
    mesh.wait_for_links()
    mesh.wait_until_same()

    archive(spark, read_options({"servers": servers}), table)

    bodies = [bytes(row.body) for row in read_archive(spark, table).where(f"destination = '{ORDERS}'").collect()]
    assert sorted(bodies) == sorted(b"order %d" % n for n in range(600))
    directories = [DataDirectory(mesh.folder / "data" / name) for name in mesh.names]
    live = [read_options({"servers": server}) for server in servers.split(",")]
    assert audit(directories, live).findings == []

    chosen = choose(read_messages(spark, {"subscribe": ORDERS}, table), where="body like 'order 1_'", to=AGAIN)
    for _ in range(2):
        send(chosen, {"servers": servers}, name="again", tasks=1)
    got = mesh.client("c").subscribe(AGAIN)
    eventually(lambda: len(got) >= 10, lambda: f"{len(got)} of 10 came")
    assert sorted(message.body for message in got) == [b"order 1%d" % n for n in range(10)]
