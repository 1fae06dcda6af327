"""Nodes find each other: links come up by themselves, and the command line shows them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qmq.cli import main
from qmq.cli.launch import recorded, start_mark
from tests.support.cluster_client import Client
from tests.support.cluster_mesh import PATIENT_NODE_FILE, ROOT, Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("join"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def test_every_node_is_linked_with_every_other_both_ways(mesh: Cluster) -> None:
    links = {name: mesh.links(name) for name in mesh.names}

    up = ("up", "up")
    assert links == {"a": {"b": up, "c": up}, "b": {"a": up, "c": up}, "c": {"a": up, "b": up}}


def test_qmq_status_names_the_node_and_says_that_nothing_is_wrong(mesh: Cluster) -> None:
    mesh.wait_until_clear()
    result = CliRunner().invoke(main, ["status", "--at", mesh.at("b"), "--json"])

    facts = json.loads(result.output)
    assert result.exit_code == 0
    assert facts["node"] == "b"
    assert [(peer["name"], peer["out"], peer["in"]) for peer in facts["peers"]] == [
        ("a", "up", "up"),
        ("c", "up", "up"),
    ]
    assert facts["conditions"] == []


def test_qmq_mesh_status_shows_all_nodes_ready_with_all_links(mesh: Cluster) -> None:
    command = ["mesh", "status", str(mesh.peers_path), "--data", str(mesh.fleet.data), "--json"]

    def ask() -> Result | None:
        """None where a node has not answered within the second that the command waits for each."""
        result = CliRunner().invoke(main, command)
        return result if result.exit_code == 0 else None

    result = eventually(ask, "not all nodes are ready with all links")

    assert result is not None
    nodes = json.loads(result.output)["nodes"]
    assert [(node["node"], node["state"], node["links_up"], node["links"]) for node in nodes] == [
        (name, "ready", 4, 4) for name in mesh.names
    ]
    assert [node["pid"] for node in nodes] == [node.process.pid for node in mesh.fleet.nodes.values() if node.process]


def test_a_node_that_ends_is_missed_by_the_others_and_linked_again_when_it_returns(mesh: Cluster) -> None:
    mesh.kill("c")
    eventually(lambda: mesh.misses("a", "c"), "a still calls its links with c up after c was killed")
    result = CliRunner().invoke(main, ["mesh", "status", str(mesh.peers_path), "--data", str(mesh.fleet.data)])
    assert result.exit_code == 1

    mesh.start("c")

    mesh.wait_for_links()


def test_a_node_whose_peers_are_all_down_serves_its_own_clients(mesh: Cluster) -> None:
    mesh.kill("b", "c")
    client = mesh.client("a")
    client.publish("/queue/join.alone", b"one", b"two")

    got = client.consume("/queue/join.alone")

    eventually(lambda: [message.body for message in got] == [b"one", b"two"], lambda: f"a alone delivered {got}")


def test_clients_of_every_version_of_stomp_are_served_on_every_node(mesh: Cluster) -> None:
    for name in mesh.names:
        for version in ("1.0", "1.1", "1.2"):
            destination = f"/queue/join.version.{name}.{version}"
            client = mesh.client(name, version)
            subscription = client.subscribe(destination, ack="client", on_message=Client.acknowledge)
            client.publish(destination, f"to {name} by STOMP {version}".encode())

            eventually(lambda got=subscription: got, f"nothing from {name} by STOMP {version}")
            assert subscription[0].body == f"to {name} by STOMP {version}".encode()


def test_no_node_outlives_the_tests_even_when_they_are_killed(tmp_path: Path) -> None:
    lines = [
        "import pathlib, sys",
        "from tests.support.cluster_mesh import Cluster",
        "cluster = Cluster(pathlib.Path(sys.argv[1]))",
        "cluster.start(*cluster.names)",
        "print(*(node.process.pid for node in cluster.fleet.nodes.values()), flush=True)",
        "sys.stdin.read()",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        pids = [int(word) for word in tests.stdout.readline().split()]
        alive = [start_mark(pid) is not None for pid in pids]

        os.kill(tests.pid, signal.SIGKILL)

    assert alive == [True, True, True]
    eventually(lambda: not any(start_mark(pid) for pid in pids), f"nodes {pids} still run")


def test_qmq_mesh_up_starts_all_nodes_and_ctrl_c_stops_them(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)  # only its peers file and data folder; the nodes are the command's
    data = cluster.fleet.data
    # Should the tests be killed, it stops its nodes.
    program = "import signal; from tests.support.cluster_fork import main, end_with_parent"
    program += "; end_with_parent(signal.SIGTERM); main()"
    command = [sys.executable, "-c", program, "mesh", "up", str(cluster.peers_path), "--data", str(data)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        try:
            said: list[str] = []
            while not said or not said[-1].startswith("mesh three: 3 nodes ready"):
                said.append(shell.stdout.readline())
                assert said[-1], f"it ended without three nodes ready: {said}"
            pids = [running.pid for running in recorded(data)]
            client = Client(cluster.address("b"))
            client.publish("/queue/up", b"one")
            client.drop()

            shell.send_signal(signal.SIGINT)
            said += shell.stdout.readlines()
        finally:
            shell.send_signal(signal.SIGINT)

    assert shell.returncode == 0, said
    assert [line for line in said if "ended with" in line and line.startswith("node ")] == [
        f"node {name} ended with exit code 0\n" for name in "abc"
    ]
    assert len(pids) == 3
    assert not any(start_mark(pid) for pid in pids)
