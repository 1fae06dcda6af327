"""Backups of running nodes under load: a new mesh with other addresses has every message confirmed before them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import qmq.client.blocking
from qmq.cli import main
from qmq.storage.backup_files import OUTGOING
from qmq.testing import local
from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_mesh import NODE_FILE, Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher

SMALL_SEGMENTS = NODE_FILE + "\n[storage]\nsegment_bytes_max = 65536\njournal_keep_bytes = 65536\n"
"""Checkpoints drop segments while they are copied."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("backup"), node_file=SMALL_SEGMENTS) as made:
        yield made


def run(*arguments: str, input: bytes | None = None) -> str:
    result = CliRunner().invoke(main, arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.output


def back_up(mesh: Cluster, name: str, repository: Path) -> None:
    run("backup", str(repository), "--data", str(mesh.fleet.nodes[name].data))


def test_a_mesh_is_restored_from_backups_that_were_made_one_after_the_other(mesh: Cluster, tmp_path: Path) -> None:
    repository = tmp_path / "backups"
    settled = numbered("settled", 50)
    mesh.client("a").publish("/queue/done", *settled)
    done = mesh.client("b").consume("/queue/done")
    eventually(lambda: len(done) >= 50, lambda: f"b has {len(done)} of 50")
    publishers = [
        Publisher([mesh.address(name)], destination, (body + b"." * 500 for body in endless(f"{name} {destination}")))
        for name in mesh.names
        for destination in ("/queue/waits", "/fanout/kept")
    ]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.goes_on()

    confirmed = {one: set[bytes]() for one in ("/queue/waits", "/fanout/kept")}
    for _ in range(2):  # the second one copies only what is new
        for name in mesh.names:
            for publisher in publishers:
                if publisher.addresses == [mesh.address(name)]:
                    confirmed[publisher.destination] |= set(publisher.receipted)
            back_up(mesh, name, repository)
            publishers[0].goes_on(50)
    for publisher in publishers:
        publisher.enough()
    for publisher in publishers:
        publisher.wait()
    assert run("backup", "verify", str(repository)).count(": ok\n") == 6
    mesh.kill(*mesh.names)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Cluster(elsewhere, node_file=SMALL_SEGMENTS) as other:
        for name in other.names:
            run("restore", str(repository), "--node", name, "--data", str(other.fleet.nodes[name].data))
        other.start(*other.names)
        other.make_healthy()
        other.wait_until_same()

        for name in other.names:
            kept = other.client(name).subscribe("/fanout/kept", headers={"x-stream-offset": "first"})
            wanted = confirmed["/fanout/kept"]
            eventually(
                lambda k=kept, w=wanted: set(bodies(k)) >= w,
                lambda n=name, k=kept, w=wanted: f"{n} lacks {len(w - set(bodies(k)))} of {len(w)}",
            )
            came = bodies(kept)  # more may come
            assert len(came) == len(set(came))
        waiting = other.client("b").consume("/queue/waits")
        wanted = confirmed["/queue/waits"]
        eventually(
            lambda: set(bodies(waiting)) >= wanted, lambda: f"{len(wanted - set(bodies(waiting)))} jobs are missing"
        )
        other.client("a").publish("/queue/done", b"new")
        again = other.client("c").consume("/queue/done")
        eventually(lambda: len(again) >= 1, "nothing comes from the restored queue")
        assert bodies(again) == [b"new"]


def test_one_node_of_a_running_mesh_is_restored_as_a_node_with_an_old_disk(mesh: Cluster, tmp_path: Path) -> None:
    before, after = numbered("before", 30), numbered("after", 30)
    mesh.client("a").publish("/fanout/old", *before)
    back_up(mesh, "a", tmp_path / "backups")
    mesh.client("a").publish("/fanout/old", *after)
    mesh.wait_until_same()
    mesh.kill("a")
    mesh.wipe("a")
    run("restore", str(tmp_path / "backups"), "--data", str(mesh.fleet.nodes["a"].data))
    mesh.start("a")
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: "old-disk" in mesh.reported("a"), lambda: f"a: {mesh.reported('a')}")
    mesh.make_healthy()
    mesh.client("a").publish("/fanout/old", b"new")
    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/old", headers={"x-stream-offset": "first"})
        eventually(lambda g=got: len(g) >= 61, lambda n=name, g=got: f"{n} has {len(g)} of 61")
        assert bodies(got) == [*before, *after, b"new"]


def test_a_mesh_is_backed_up_over_its_ports_by_an_administrator(tmp_path: Path) -> None:
    repository = tmp_path / "backups"
    (tmp_path / "nodes").mkdir()
    with local.mesh(3, folder=tmp_path / "nodes", config=SMALL_SEGMENTS) as mesh:
        login = ("--login", "root", "--passcode", "secret")
        add = ("users", "add", "--passcode-stdin", "--at", mesh.at("a"))
        run(*add, "root", "--group", "administrator", input=b"secret\n")
        run(*add, "ann", "--group", "operator", *login, input=b"secret\n")
        publisher = qmq.client.blocking.connect(mesh.at("a"), login="root", passcode="secret")
        with publisher as client:
            for number in range(200):
                client.send("/queue/waits", str(number).encode() + b"." * 1000)

            refused = CliRunner().invoke(
                main, ["backup", str(repository), "--at", mesh.at("a"), "--login", "ann", "--passcode", "secret"]
            )
            first = json.loads(run("backup", str(repository), "--at", mesh.at("a"), *login, "--mesh", "--json"))
            client.send("/queue/waits", b"200")
            again = run("backup", str(repository), "--at", mesh.at("b"), *login, "--mesh", "--keep", "1")
            archive = CliRunner().invoke(main, ["backup", "-", "--at", mesh.at("b"), *login, "--mesh"])
        assert "administer" in refused.output and refused.exit_code == 1
        assert sorted(one["node"] for one in first["backups"]) == ["a", "b", "c"]
        assert again.count("; 1 older backup removed") == 3, again
        assert all(one["copied_bytes"] == one["total_bytes"] for one in first["backups"])
        assert run("backup", "verify", str(repository)).count(": ok\n") == 3
        assert [one for one in (tmp_path / "nodes").rglob(OUTGOING)] == []

        mesh.kill("c")
        part = CliRunner().invoke(main, ["backup", str(repository), "--at", mesh.at("a"), *login, "--mesh"])
        assert part.exit_code == 1
        assert "qmq: no backup of c: " in part.output

    run("restore", "-", "--node", "b", "--data", str(tmp_path / "b"), input=archive.stdout_bytes)
    run("restore", str(repository), "--node", "c", "--data", str(tmp_path / "c"))
    for name in ("b", "c"):
        assert run("log", "dump", str(tmp_path / name), "--destination", "/queue/waits").count("PUBLISH") == 201
