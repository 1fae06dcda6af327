"""A node runs out of file descriptors, or of memory: it refuses or ends, recovers, and nothing receipted is lost."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import LostError
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher


def pid_of(mesh: Cluster, name: str) -> int:
    process = mesh.fleet.nodes[name].process
    assert process is not None
    return process.pid


@contextmanager
def limited(mesh: Cluster, name: str, what: int, most: int) -> Iterator[None]:
    """The running process may have no more than that of something, for a while."""
    pid = pid_of(mesh, name)
    soft, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, (soft, hard))


def open_files(mesh: Cluster, name: str) -> int:
    return len(os.listdir(f"/proc/{pid_of(mesh, name)}/fd"))


def test_without_descriptors_no_new_client_is_let_in_and_those_inside_go_on(mesh: Cluster) -> None:
    inside = mesh.client("a")
    got = mesh.client("b").consume("/queue/short")
    before = numbered("before", 20)
    inside.publish("/queue/short", *before)
    waiting: list[socket.socket] = []
    try:
        with limited(mesh, "a", resource.RLIMIT_NOFILE, open_files(mesh, "a")):

            def is_short() -> bool:
                """Numbers below the limit that are free are given out first."""
                if len(waiting) < 50:
                    waiting.append(socket.create_connection(mesh.address("a")))
                return "shortage" in conditions_inside(inside)

            eventually(is_short, "no condition about descriptors")
            during = numbered("during", 20)
            inside.publish("/queue/short", *during)
            eventually(lambda: len(got) >= 40, lambda: f"b has {len(got)} of 40")

        after = numbered("after", 20)
        mesh.client("a").publish("/queue/short", *after)
        eventually(lambda: "shortage" not in conditions_inside(inside), "the condition stays")
    finally:
        for one in waiting:
            one.close()

    eventually(lambda: len(got) >= 60, lambda: f"b has {len(got)} of 60")
    assert bodies(got) == [*before, *during, *after]
    mesh.wait_for_links()


def conditions_inside(client: object) -> set[str]:
    """What the node says to one who is let in already."""
    status = client.status()  # type: ignore[attr-defined]
    return {one["code"] for one in status["conditions"]}


def test_a_node_that_is_started_with_few_descriptors_keeps_what_it_needs_and_refuses_the_rest(mesh: Cluster) -> None:
    mesh.stop("a")
    few = mesh.fleet.files_max = 64
    mesh.start("a")
    mesh.fleet.files_max = None
    mesh.wait_for_links()

    clients = []
    with contextlib.suppress(LostError, OSError, AssertionError):
        for _ in range(few):
            clients.append(mesh.client("a"))

    sent = numbered("few", 10)
    clients[0].publish("/fanout/few", *sent)
    read = mesh.client("c").subscribe("/fanout/few")
    eventually(lambda: len(read) >= 10, lambda: f"c has {len(read)} of 10")
    assert mesh.fleet.nodes["a"].is_alive


def test_without_memory_a_node_loses_nothing_that_was_receipted(mesh: Cluster) -> None:
    sent = [b"%d " % number + b"x" * 60_000 for number in range(400)]
    publisher = Publisher([mesh.address("a"), mesh.address("b")], "/queue/large", iter(sent))
    pages = Path(f"/proc/{pid_of(mesh, 'a')}/statm").read_text("utf-8").split()[0]
    size = int(pages) * resource.getpagesize()
    with limited(mesh, "a", resource.RLIMIT_AS, size + (2 << 20)):
        publisher.start()
        publisher.enough()
        publisher.wait()
    node = mesh.fleet.nodes["a"]
    eventually(lambda: not node.is_alive or mesh.status("a"), "a neither ends nor answers")
    if not node.is_alive:
        mesh.start("a")
    mesh.make_healthy()

    got = mesh.client("c").consume("/queue/large")
    wanted = set(publisher.receipted)
    eventually(lambda: wanted <= set(bodies(got)), lambda: f"c lacks {len(wanted - set(bodies(got)))} of {len(wanted)}")
