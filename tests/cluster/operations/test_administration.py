"""Administration by the command line while one of three nodes is dead: it works, and exit codes say what is missing.
When the node is back, it has all of it.

All nodes have users, so commands log in. One node serves TLS, too.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import argon2
import pytest
import trustme
from click.testing import CliRunner, Result

from qmq.cli import main
from qmq.testing.ports import free_ports
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

ROOT = ("root", "correct horse")
WORKER = ("worker", "battery staple")
LOGIN = {"QMQ_LOGIN": ROOT[0], "QMQ_PASSCODE": ROOT[1]}
QUICK = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Where node a serves TLS, and the folder of the certificates."""
    folder = tmp_path_factory.mktemp("authority")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "node.key").touch(0o600)
    issued.private_key_pem.write_to_path(folder / "node.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(folder / "node.pem", append=number > 0)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return f"127.0.0.1:{free_ports(1)[0]}", folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tls: tuple[str, Path]) -> Iterator[Cluster]:
    """Three nodes with one administrator in their files."""
    address, folder = tls
    with Cluster(tmp_path_factory.mktemp("administration"), node_file=PATIENT_NODE_FILE) as made:
        for name in made.names:
            # What a dead node has stays away, however long the commands take.
            made.node_files[name] += f"""takeover_after_seconds = 60

[[users]]
name = "{ROOT[0]}"
password_hash = '{QUICK.hash(ROOT[1])}'
groups = ["administrator"]

[[stomp]]
address = "{made.at(name)}"
"""
            made.logins[name] = ROOT
        made.node_files["a"] += f"""
[[stomp]]
address = "{address}"
tls.certificate = "{folder / "node.pem"}"
tls.key = "{folder / "node.key"}"
"""
        yield made


def run(mesh: Cluster, at: str, *words: str, given: str = "", login: Mapping[str, str] = LOGIN) -> Result:
    """`qmq WORDS --at` a node, logged in."""
    return CliRunner().invoke(main, [*words, "--at", mesh.at(at)], input=given, env=dict(login))


def ask(mesh: Cluster, at: str, *words: str, code: int = 0, given: str = "") -> Any:
    """What `qmq WORDS --json` prints, whose exit code must be `code`."""
    result = run(mesh, at, *words, "--json", given=given)
    assert result.exit_code == code, (words, result.exit_code, result.output, result.stderr)
    return json.loads(result.stdout)


def refused(mesh: Cluster, at: str, *words: str) -> str:
    """The line on stderr of a command that fails; it prints nothing else."""
    result = run(mesh, at, *words, "--json")
    assert (result.exit_code, result.stdout) == (1, ""), (words, result.exit_code, result.output)
    return result.stderr


def shown(mesh: Cluster, at: str, queue: str) -> list[str]:
    """The bodies that `qmq peek` shows."""
    return [row["body"] for row in ask(mesh, at, "peek", queue, "--count", "1000")["rows"]]


def fill(mesh: Cluster, at: str, queue: str, *sent: bytes) -> None:
    mesh.client(at, login=ROOT).publish(queue, *sent)


def test_messages_are_purged_moved_redriven_and_deleted_while_a_node_is_dead(mesh: Cluster) -> None:
    ask(mesh, "a", "queues", "declare", "/queue/gone", "--delivery-limit", "3")
    for queue in ("/queue/purged", "/queue/moved", "/queue/failed", "/queue/gone"):
        fill(mesh, "a", queue, *numbered(queue, 4))
    fill(mesh, "c", "/queue/gone", b"of c")
    fill(mesh, "c", "/queue/moved", b"of c")
    consumer = mesh.client("a", login=ROOT)
    held = consumer.subscribe("/queue/failed", ack="client-individual")
    eventually(lambda: len(held) == 4, lambda: f"a has {len(held)} of 4")
    consumer.wait_receipts([consumer.refuse(message, receipt=True, requeue="false") for message in held])
    consumer.leave()
    mesh.wait_until_same()

    mesh.kill("c")
    eventually(lambda: mesh.misses("b", "c"), "b still has a link with c")

    assert ask(mesh, "b", "purge", "/queue/purged", "--dry-run", code=1)["messages"] == 4
    purged = ask(mesh, "b", "purge", "/queue/purged", code=1)
    assert (purged["messages"], purged["nodes_missing"]) == (4, ["c"])
    assert ask(mesh, "a", "purge", "/queue/purged", "--one-node")["messages"] == 0
    moved = ask(mesh, "b", "move", "/queue/moved", "/queue/there", "--count", "3")
    assert (moved["messages"], moved["to"], moved["nodes_missing"]) == (3, "/queue/there", [])
    assert ask(mesh, "b", "redrive", "/queue/dead-letters", code=1)["messages"] == 4
    deleted = ask(mesh, "b", "delete", "/queue/gone", code=1)
    assert (deleted["messages"], deleted["declared"], deleted["nodes_missing"]) == (4, True, ["c"])
    assert "unknown-destination" in refused(mesh, "b", "delete", "/fanout/none")
    ask(mesh, "b", "queues", "delete", "/queue/purged", code=1)

    mesh.start("c")
    mesh.wait_until_same()
    eventually(lambda: shown(mesh, "c", "/queue/gone") == [], "messages of the deleted queue are left")
    for name in mesh.names:
        assert shown(mesh, name, "/queue/purged") == []
        assert len(shown(mesh, name, "/queue/there")) == 3
        failed = [text.decode() for text in numbered("/queue/failed", 4)]
        assert sorted(shown(mesh, name, "/queue/failed")) == sorted(failed)
        assert "of c" in shown(mesh, name, "/queue/moved")
    mesh.wait_until_clear()


def test_queues_exchanges_and_bindings_made_without_a_node_are_there_when_it_is_back(mesh: Cluster) -> None:
    mesh.kill("c")

    declared = ask(mesh, "b", "queues", "declare", "/queue/orders", "--max-messages", "100")
    assert (declared["changed"], declared["value"]) == (1, {"max_messages": 100, "declared_by": ROOT[0]})
    mesh.wait_until_same(["a", "b"])
    assert ask(mesh, "a", "queues", "declare", "/queue/orders", "max_messages=100")["changed"] == 0
    assert "max_messages" in refused(mesh, "a", "queues", "declare", "/queue/orders", "--max-messages", "1")
    assert "unknown-destination" in refused(mesh, "a", "queues", "declare", "/queue/none", "--passive")
    assert ask(mesh, "b", "exchanges", "declare", "rest", "fanout")["changed"] == 1
    assert ask(mesh, "b", "exchanges", "declare", "orders", "topic", "--alternate", "rest")["changed"] == 1
    assert "type" in refused(mesh, "b", "exchanges", "declare", "orders", "direct")
    assert ask(mesh, "b", "bindings", "add", "/exchange/orders", "/queue/orders", "--key", "eu.*")["changed"] == 1
    assert ask(mesh, "b", "bindings", "add", "/exchange/rest", "/queue/others")["changed"] == 1
    assert "no exchange" in refused(mesh, "b", "bindings", "add", "/exchange/none", "/queue/orders")
    assert ask(mesh, "b", "policies", "set", "/queue/others", "delivery_limit=2", "--quorum")["quorum"] is True
    mesh.wait_until_same(["a", "b"])
    for key in ("eu.new", "us.new"):
        assert run(mesh, "a", "send", f"/exchange/orders/{key}", key).exit_code == 0

    mesh.start("c")
    mesh.wait_until_same()
    assert ask(mesh, "c", "exchanges", "list") == ask(mesh, "a", "exchanges", "list")
    assert ask(mesh, "c", "bindings", "list") == ask(mesh, "a", "bindings", "list")
    assert shown(mesh, "c", "/queue/orders") == ["eu.new"]
    assert run(mesh, "c", "send", "/exchange/orders/us.old", "us.old").exit_code == 0
    assert sorted(shown(mesh, "c", "/queue/others")) == ["us.new", "us.old"]
    assert ask(mesh, "c", "bindings", "delete", "/exchange/rest", "/queue/others")["changed"] == 1
    mesh.wait_until_clear()


def test_users_and_permissions_made_without_a_node_count_there_when_it_is_back(mesh: Cluster) -> None:
    mesh.kill("c")

    words = ("users", "add", WORKER[0], "--passcode-stdin", "--group", "client")
    assert ask(mesh, "b", *words, given=f"{WORKER[1]}\n")["changed"] == 1
    assert ask(mesh, "b", "permissions", "deny", f"user:{WORKER[0]}", "subscribe", "/queue/secret")["changed"] == 1
    mesh.wait_until_same(["a", "b"])
    as_worker = {"QMQ_LOGIN": WORKER[0], "QMQ_PASSCODE": WORKER[1]}
    assert run(mesh, "a", "send", "/queue/secret", "x", login=as_worker).exit_code == 0
    assert "not-allowed" in run(mesh, "a", "peek", "/queue/secret", login=as_worker).stderr
    assert "not-allowed" in run(mesh, "a", "users", "list", login=as_worker).stderr
    worker = mesh.client("a", login=WORKER)
    connections = [row for row in ask(mesh, "b", "connections")["rows"] if row["user"] == WORKER[0]]
    assert [row["id"].split("/")[0] for row in connections] == ["a"]
    assert ask(mesh, "b", "kick", "--user", WORKER[0], "--reason", "break", code=1)["nodes_missing"] == ["c"]
    eventually(worker.ended.is_set, "the kicked client is still connected")
    assert [error.headers["error-code"] for error in worker.errors] == ["kicked"]
    assert ask(mesh, "b", "kick", "a/999999", code=1)["connections"] == 0

    mesh.start("c")
    mesh.wait_until_same()
    assert run(mesh, "c", "send", "/queue/secret", "y", login=as_worker).exit_code == 0
    assert "not-allowed" in run(mesh, "c", "peek", "/queue/secret", login=as_worker).stderr
    assert [row["name"] for row in ask(mesh, "c", "users", "list")["users"]] == [ROOT[0], WORKER[0]]
    guest = mesh.client("c", login=WORKER)
    assert ask(mesh, "a", "users", "delete", WORKER[0])["changed"] == 1
    eventually(guest.ended.is_set, "the client of the deleted user is still connected")
    mesh.wait_until_same()
    with pytest.raises(LostError):
        Client(mesh.address("b"), login=WORKER)
    mesh.wait_until_clear()


def test_a_message_is_shown_and_traced_and_its_queue_paused_while_a_node_is_dead(mesh: Cluster) -> None:
    fill(mesh, "a", "/queue/paused", b"one")
    mesh.wait_until_same()
    mesh.kill("c")
    eventually(lambda: mesh.misses("b", "c"), "b still has a link with c")

    (row,) = ask(mesh, "b", "peek", "/queue/paused")["rows"]
    assert ask(mesh, "b", "get", row["message_id"])["rows"][0]["body"] == "one"
    traced = ask(mesh, "b", "trace", row["message_id"])
    assert traced["events"][0]["node"] == "a" and sorted(traced["copies"]) == ["a", "b"]
    assert "unknown-message" in refused(mesh, "b", "get", row["message_id"].rpartition("-")[0] + "-999999")
    assert run(mesh, "b", "pause", "/queue/paused", "--json").exit_code == 0
    mesh.wait_until_same(["a", "b"])
    got = mesh.client("a", login=ROOT).consume("/queue/paused")
    found = ask(mesh, "b", "conditions", code=1)
    assert found["nodes_missing"] == ["c"]

    mesh.start("c")
    mesh.wait_until_same()
    rows = ask(mesh, "c", "queues", "list", "/queue/paused", "--mesh")["rows"]
    assert rows[0]["paused"] and got == []
    assert run(mesh, "c", "resume", "/queue/paused", "--json").exit_code == 0
    eventually(lambda: bodies(got) == [b"one"], "the queue is still paused")
    mesh.wait_for_links()
    mesh.wait_until_clear()
    assert ask(mesh, "b", "conditions") == {"rows": [], "nodes_missing": []}


def test_a_file_of_definitions_is_exported_compared_and_imported_without_a_node(mesh: Cluster, tmp_path: Path) -> None:
    ask(mesh, "a", "policies", "set", "/queue/file", "delivery_limit=4")
    mesh.wait_until_same()
    mesh.kill("c")
    file = tmp_path / "definitions.json"
    file.write_text(run(mesh, "b", "definitions", "export").stdout, "utf-8")

    assert ask(mesh, "a", "definitions", "diff", str(file)) == {"differences": [], "left_out": []}
    ask(mesh, "a", "policies", "delete", "/queue/file")
    mesh.wait_until_same(["a", "b"])
    (row,) = ask(mesh, "b", "definitions", "diff", str(file), code=1)["differences"]
    assert (row["kind"], row["name"]) == ("policy", "/queue/file")
    assert ask(mesh, "b", "definitions", "import", str(file))["changed"] == 1
    wrong = tmp_path / "wrong.json"
    wrong.write_text(file.read_text("utf-8").replace("delivery_limit", "delivery_limits"), "utf-8")
    assert "delivery_limits" in refused(mesh, "b", "definitions", "import", str(wrong))

    mesh.start("c")
    mesh.wait_until_same()
    assert run(mesh, "c", "definitions", "export").stdout == file.read_text("utf-8")
    mesh.wait_until_clear()


def test_the_data_directory_is_enough_without_a_login_and_tls_works_with_one(
    mesh: Cluster, tls: tuple[str, Path]
) -> None:
    address, folder = tls
    words = ["queues", "declare", "/queue/local", "--json"]
    no_login = {"QMQ_LOGIN": None, "QMQ_PASSCODE": None}

    by_socket = CliRunner().invoke(main, [*words, "--data", str(mesh.fleet.nodes["b"].data)], env=no_login)
    mesh.wait_until_same()
    by_tls = CliRunner().invoke(
        main, [*words, "--passive", "--at", address, "--cafile", str(folder / "authority.pem")], env=LOGIN
    )
    unknown = CliRunner().invoke(main, [*words, "--at", address], env=LOGIN)
    without = CliRunner().invoke(main, [*words, "--at", mesh.at("a")], env=no_login)

    assert json.loads(by_socket.stdout)["changed"] == 1
    assert (by_tls.exit_code, json.loads(by_tls.stdout)["value"]) == (0, {})
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert (without.exit_code, without.stdout) == (1, "")
    assert CliRunner().invoke(main, ["purge", "/topic/x", "--at", address], env=LOGIN).exit_code == 2
