"""A node that keeps its backlog in PostgreSQL: through kills of the node and of the server, as with a file."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.cli.output import Failed
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import LostError
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.postgres import Server, running_server

IMPATIENT, PATIENT = 5, 60
"""Seconds that a node waits for its server."""

BACKLOG = numbered("a backlog's message of some length " * 10, 2000)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Cluster]:
    """Three nodes; a's backlog is in PostgreSQL, and checkpoints come often."""
    storage = f'[storage]\nqueue_store = "{server.fresh_schema()}"\ncheckpoint_bytes = "64KiB"\n'
    storage += f"queue_store_seconds_max = {PATIENT}\n"
    with Cluster(tmp_path_factory.mktemp("postgres"), node_files={"a": storage}) as made:
        yield made


def rows(server: Server, queue: str) -> int:
    """How many messages of `queue` the tables hold."""
    import psycopg

    with psycopg.connect(server.url) as connection:
        found = connection.execute("SELECT sum(messages) FROM test_1.qmq_lanes WHERE queue = %s", (queue,)).fetchone()
    return int(found[0] or 0) if found is not None else 0


def start_again(mesh: Cluster, seconds: int) -> None:
    """Node a, which from now on waits so long for its server."""
    mesh.stop("a")
    mesh.node_files["a"] = re.sub(r"(queue_store_seconds_max =) \d+", rf"\1 {seconds}", mesh.node_files["a"])
    mesh.start("a")


def test_a_backlog_outlives_its_node_and_finds_consumers_elsewhere(mesh: Cluster, server: Server) -> None:
    mesh.client("a").publish("/queue/pg", *BACKLOG)
    eventually(lambda: rows(server, "/queue/pg") > 1000, lambda: f"{rows(server, '/queue/pg')} rows in PostgreSQL")

    mesh.kill("a")
    mesh.start("a")
    eventually(lambda: mesh.depth("a", "/queue/pg") == len(BACKLOG), lambda: f"a has {mesh.depth('a', '/queue/pg')}")
    got = mesh.client("b").consume("/queue/pg")

    eventually(lambda: len(got) >= len(BACKLOG), lambda: f"b has {len(got)} of {len(BACKLOG)}")
    assert bodies(got) == BACKLOG
    publisher = mesh.client("a")

    def are_gone() -> bool:
        """The rows go with the checkpoint after the last settle of b, and that needs some journal to be due."""
        publisher.publish("/queue/pg.more", *BACKLOG[:100])
        return rows(server, "/queue/pg") == 0

    eventually(are_gone, lambda: f"{rows(server, '/queue/pg')} rows stayed")


def test_a_node_whose_server_is_gone_ends_and_goes_on_where_it_was(mesh: Cluster, server: Server) -> None:
    start_again(mesh, IMPATIENT)
    publisher = mesh.client("a")
    publisher.publish("/queue/pg.down", *BACKLOG[:300])
    node = mesh.fleet.nodes["a"]
    assert node.process is not None
    server.stop()
    with contextlib.suppress(LostError):
        publisher.publish("/queue/pg.down", *BACKLOG[:300])

    assert node.process.wait(60) == 1
    assert "the queue store postgresql://" in mesh.fleet.log_tail("a")
    assert "Traceback" not in mesh.fleet.log_tail("a")
    with pytest.raises(Failed):
        mesh.start("a")
    assert "cannot be used" in mesh.fleet.log_tail("a")
    server.start()
    mesh.start("a")

    got = mesh.client("a").consume("/queue/pg.down")
    eventually(lambda: len(set(bodies(got))) == 300, lambda: f"{len(set(bodies(got)))} of 300")


def test_a_restart_of_the_server_ends_no_node(mesh: Cluster, server: Server) -> None:
    node = mesh.fleet.nodes["a"]
    start_again(mesh, PATIENT)
    process = node.process
    publisher = mesh.client("a")

    for _ in range(3):
        publisher.publish("/queue/pg.restart", *BACKLOG[:300])
        server.stop()
        server.start()
        publisher.publish("/queue/pg.restart", *BACKLOG[:300])

    eventually(lambda: mesh.depth("a", "/queue/pg.restart") == 1800, "not all of 1800 are there")
    assert node.process is process and node.is_alive


def test_a_node_whose_server_hangs_ends_when_its_time_is_over_and_goes_on_where_it_was(
    mesh: Cluster, server: Server
) -> None:
    start_again(mesh, IMPATIENT)
    publisher = mesh.client("a")
    publisher.publish("/queue/pg.hangs", *BACKLOG[:300])
    node = mesh.fleet.nodes["a"]
    assert node.process is not None

    with server.paused():
        with contextlib.suppress(LostError):
            publisher.publish("/queue/pg.hangs", *BACKLOG[300:600])
        assert node.process.wait(60) == 1
    assert "the queue store postgresql://" in mesh.fleet.log_tail("a")
    assert "Traceback" not in mesh.fleet.log_tail("a")
    mesh.start("a")

    got = mesh.client("a").consume("/queue/pg.hangs")
    eventually(lambda: set(BACKLOG[:300]) <= set(bodies(got)), lambda: f"{len(set(bodies(got)))} of 300")


def test_nothing_of_the_node_is_in_a_file_of_sqlite(mesh: Cluster) -> None:
    data: Path = mesh.fleet.nodes["a"].data

    assert not (data / "queues.sqlite").exists()
    assert (mesh.fleet.nodes["b"].data / "queues.sqlite").exists()
