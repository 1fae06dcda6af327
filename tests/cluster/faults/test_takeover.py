"""The owner of queue messages is killed or stopped: another node serves them, and returns them later."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import CLUSTER
from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_mesh import ROOT, Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher

AFTER = 3.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that take over after 3 s."""
    made = Cluster(tmp_path_factory.mktemp("takeover"))
    for name, text in made.node_files.items():
        made.node_files[name] = f"{text}takeover_after_seconds = {AFTER}\n"
    with made:
        yield made


def serves(mesh: Cluster, name: str) -> list[str]:
    """[] while it does not answer."""
    found: list[str] = mesh.status(name).get("takeover", {}).get("serves", [])
    return found


def server_of(mesh: Cluster, owner: str) -> str:
    """The other node that serves what `owner` has; "" while there is none. It is the next one, unless that is slow."""
    return next((name for name in mesh.names if name != owner and owner in serves(mesh, name)), "")


def hands_out(mesh: Cluster, name: str) -> bool:
    return serves(mesh, name) == [name] and mesh.status(name).get("held") is False


def test_a_consumer_elsewhere_gets_the_messages_of_a_killed_node(mesh: Cluster) -> None:
    sent = numbered("kept", 200)
    mesh.client("a").publish("/queue/killed", *sent)
    mesh.wait_until_same()

    mesh.kill("a")
    got = mesh.client("c").consume("/queue/killed")

    eventually(lambda: len(got) >= len(sent), lambda: f"c has {len(got)} of {len(sent)}")
    assert not mesh.fleet.nodes["a"].is_alive
    assert sorted(bodies(got)) == sorted(sent)


def test_a_killed_node_that_is_back_hands_out_what_is_left_and_nothing_twice(mesh: Cluster) -> None:
    eventually(lambda: all(hands_out(mesh, name) for name in "abc"), "not every node serves itself")
    sent = numbered("back", 100)
    mesh.client("a").publish("/queue/back", *sent)
    mesh.wait_until_same()
    mesh.kill("a")
    first = mesh.client("c").subscribe("/queue/back", ack="client-individual", headers={"prefetch-count": "10"})
    eventually(lambda: len(first) == 10, lambda: f"c has {len(first)} of the first 10")
    eventually(lambda: "takeover" in mesh.conditions("b") | mesh.conditions("c"), "no node has a condition about it")

    mesh.start("a")
    eventually(lambda: hands_out(mesh, "a"), lambda: f"a serves {serves(mesh, 'a')}")
    rest = mesh.client("b").consume("/queue/back")

    eventually(lambda: len(rest) >= 90, lambda: f"b has {len(rest)} of the other 90")
    assert sorted(bodies(rest) + bodies(first)) == sorted(sent)
    mesh.wait_until_clear()


def test_a_node_that_stood_still_hands_out_nothing_that_was_settled_meanwhile(mesh: Cluster) -> None:
    eventually(lambda: all(hands_out(mesh, name) for name in "abc"), "not every node serves itself")
    sent = numbered("still", 100)
    mesh.client("a").publish("/queue/still", *sent)
    mesh.wait_until_same()
    waiting = mesh.client("a")

    mesh.pause("a")
    got = mesh.client("b").consume("/queue/still")
    eventually(lambda: len(got) >= 100, lambda: f"b has {len(got)} of 100")
    mesh.resume("a")
    again = waiting.subscribe("/queue/still")

    eventually(lambda: hands_out(mesh, "a"), lambda: f"a serves {serves(mesh, 'a')}")
    mesh.client("a").publish("/queue/still", b"last")
    eventually(lambda: b"last" in bodies(again) + bodies(got), "nobody has the last message")
    assert sorted(bodies(got) + bodies(again)) == sorted([*sent, b"last"])
    mesh.wait_until_clear()


def test_a_node_that_stood_still_amid_its_work_sends_no_consumer_what_another_node_has_served(mesh: Cluster) -> None:
    eventually(lambda: all(hands_out(mesh, name) for name in "abc"), "not every node serves itself")
    on_a = [mesh.client("a").consume("/queue/amid", prefetch=10) for _ in range(3)]
    elsewhere = [mesh.client(name).consume("/queue/amid", prefetch=10) for name in ("b", "b", "c")]
    publisher = Publisher([mesh.address("a")], "/queue/amid", endless("amid"))
    publisher.start()

    for _ in range(3):
        publisher.goes_on()
        mesh.pause("a")
        eventually(lambda: server_of(mesh, "a"), "no node serves what a has")
        before = [len(one) for one in on_a]  # All that was on its way to them: they have read since.
        mesh.resume("a")
        eventually(lambda: hands_out(mesh, "a"), lambda: f"a serves {serves(mesh, 'a')}")
        publisher.goes_on()
        late = [body for one, begin in zip(on_a, before, strict=True) for body in bodies(one[begin:])]
        assert len(late) == len(set(late))
        assert not set(late) & {body for one in elsewhere for body in bodies(one)}

    publisher.enough()
    publisher.wait()
    sent = set(publisher.receipted)
    eventually(
        lambda: {body for one in (*on_a, *elsewhere) for body in bodies(one)} >= sent,
        "some of the messages came to no consumer",
    )
    mesh.wait_until_clear()


def test_an_operator_sees_which_node_serves_which_owner_and_retires_one_that_is_taken_over(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The messages are consumed once, and the two that are left go on."""
    with Cluster(tmp_path) as mesh:
        request.node.stash[CLUSTER] = mesh
        mesh.node_files = {name: f"{text}takeover_after_seconds = {AFTER}\n" for name, text in mesh.node_files.items()}
        mesh.make_healthy()
        sent = numbered("left", 100)
        mesh.client("a").publish("/queue/left", *sent)
        mesh.wait_until_same()
        mesh.kill("a")
        server = eventually(lambda: server_of(mesh, "a"), "no node serves what a has")
        got = mesh.client("c").subscribe("/queue/left", ack="client-individual", headers={"prefetch-count": "10"})
        eventually(lambda: len(got) == 10, lambda: f"c has {len(got)} of the first 10")

        shown = run_qmq("mesh", "status", str(mesh.peers_path), "--data", str(mesh.folder / "data"))
        served = [line.split() for line in shown.stdout.splitlines() if line.startswith("a  ")][-1]
        assert (served[1], served[-1]) == (server, "serving"), shown.stdout
        done = run_qmq("mesh", "retire", "a", "--at", mesh.at("c"))
        assert done.returncode == 0, done.stderr
        rest = mesh.client("b").consume("/queue/left")

        eventually(lambda: len(rest) >= 90, lambda: f"b has {len(rest)} of the other 90")
        assert sorted(bodies(rest) + bodies(got)) == sorted(sent)
        more = numbered("more", 10)
        mesh.client("c").publish("/queue/left", *more)
        eventually(lambda: len(rest) >= 100, lambda: f"b has {len(rest) - 90} of 10 more")
        assert bodies(rest[90:]) == more


def run_qmq(*words: str) -> subprocess.CompletedProcess[str]:
    """`qmq` as an operator runs it."""
    return subprocess.run(
        [sys.executable, "-m", "qmq", *words], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
