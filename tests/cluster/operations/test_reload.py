"""SIGHUP: a node reads its files again and takes up all of them or nothing, while its clients stay connected."""

import signal

import pytest

from qmq.cli.launch import tail
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

LOG_LINES = 400

BOUNDED = NODE_FILE + '[definitions.policy."/queue/reload"]\nmax_messages = {}\n'


def reload(mesh: Cluster, name: str, text: str) -> None:
    """Put `text` into the node's file and send the signal."""
    mesh.node_files[name] = text
    mesh.write_node_file(name)
    process = mesh.fleet.nodes[name].process
    assert process is not None
    process.send_signal(signal.SIGHUP)


def log_of(mesh: Cluster, name: str) -> str:
    return tail(mesh.fleet.nodes[name].log, LOG_LINES)


def is_refused(client: Client, body: bytes) -> bool:
    """Whether the queue has no room; the client, which asked to stay, stays."""
    before = len(client.errors)
    receipt = client.send("/queue/reload", body, receipt=True)
    eventually(lambda: receipt in client.receipts or len(client.errors) > before, "neither a receipt nor an ERROR")
    assert not client.ended.is_set()
    return len(client.errors) > before


def test_a_good_file_changes_bounds_while_clients_stay_connected(mesh: Cluster) -> None:
    sender = mesh.client("a", headers={"on-error": "keep-open"})
    consumer = mesh.client("b")
    sender.publish("/queue/reload", *numbered("first", 5))

    reload(mesh, "a", BOUNDED.format(5))
    eventually(lambda: is_refused(sender, b"probe"), "the queue takes messages beyond its new bound")
    more = eventually(lambda: max(mesh.depth("a", "/queue/reload"), 0), "a does not say how many messages it has")
    reload(mesh, "a", BOUNDED.format(more + 1))
    eventually(lambda: not is_refused(sender, b"last"), "the queue does not take what its new bound allows")

    changed = "definitions[policy /queue/reload]:"
    assert f"{changed} (absent) → {{ max_messages = 5 }}" in log_of(mesh, "a")
    assert f"{changed} {{ max_messages = 5 }} → {{ max_messages = {more + 1} }}" in log_of(mesh, "a")
    got = consumer.consume("/queue/reload")
    eventually(lambda: len(got) == more + 1, lambda: f"b has {len(got)} of {more + 1}")
    assert bodies(got)[:5] == numbered("first", 5) and bodies(got)[-1] == b"last"


def test_a_bad_file_changes_nothing(mesh: Cluster) -> None:
    client = mesh.client("b")

    reload(mesh, "b", NODE_FILE + "[destinations]\ncreate_on_use = false\ncreate_on_us = true\n")

    eventually(lambda: "reload" in mesh.reported("b"), "nothing reports that the file was refused")
    assert "did you mean create_on_use?" in log_of(mesh, "b")
    client.publish("/queue/any", b"still created on use")


def test_a_change_that_needs_a_restart_is_refused_with_everything_beside_it(mesh: Cluster) -> None:
    client = mesh.client("c")
    slower = NODE_FILE.replace("beat_seconds = 0.5", "beat_seconds = 0.75")
    assert slower != NODE_FILE

    reload(mesh, "c", slower + "[destinations]\ncreate_on_use = false\n")

    eventually(lambda: "reload" in mesh.reported("c"), "nothing reports that the file was refused")
    assert "mesh.beat_seconds: 0.5 → 0.75, which needs a restart" in log_of(mesh, "c")
    client.publish("/queue/any", b"still created on use")


def test_a_user_comes_with_the_file_and_stays_when_it_has_left_the_file(mesh: Cluster) -> None:
    hashed = (
        "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o"  # of "secret"
    )
    rest = f'groups = ["client"]\npassword_hash = "{hashed}"\n'
    ann_and_bob = [f"[definitions.user.{name}]\n{rest}" for name in ("ann", "bob")]
    anonymous = mesh.client("a")

    reload(mesh, "a", NODE_FILE + "".join(ann_and_bob))
    eventually(lambda: "definitions[user ann]: (absent)" in log_of(mesh, "a"), "the node has not taken up its new user")
    ann = mesh.client("a", login=("ann", "secret"))
    with pytest.raises(LostError):
        mesh.client("a", login=("ann", "wrong"))
    eventually(anonymous.ended.is_set, "a connection without login still stands beside a user")
    assert anonymous.errors[0].headers["error-code"] == "login-required"
    reload(mesh, "a", NODE_FILE + ann_and_bob[1])

    stays = "user ann is not in the node file any more, and stays defined"
    eventually(lambda: stays in log_of(mesh, "a"), "nothing says that a user stays who has left the file")
    ann.publish("/queue/any", b"of a user who stayed")
    eventually(lambda: mesh.client("b", login=("ann", "secret")), "the user is not on the other nodes")
