"""Nodes as processes: started, asked, paused, killed, stopped; and what mesh.json says of them.

The processes are stand-ins (stub.py); the real node is started in tests/cluster by the same code.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qmq.cli import launch
from qmq.cli.launch import (
    LOGIN_SECONDS,
    PROBE_SECONDS,
    LocalMesh,
    NodeDied,
    Running,
    recorded,
    start_mark,
    stop_recorded,
)
from qmq.cli.output import Failed
from qmq.config import load, load_peers
from qmq.errors import ConfigError
from qmq.sessions.clients.login import FAILED_LOGIN_SECONDS
from qmq.testing.ports import free_ports
from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame, polite, verb_answer
from tests.support.cluster_mesh import ROOT

PATIENCE_SECONDS = 20.0
"""For a stand-in that answers at once, where other programs have most of the machine."""

STUB = (sys.executable, "-m", "tests.cli.stub")

MakeMesh = Callable[..., LocalMesh]


def write_peers(path: Path, names: tuple[str, ...]) -> Path:
    ports = free_ports(2 * len(names))
    lines = ['mesh = "test"', "version = 1", 'secret = "sixteen characters"']
    for number, name in enumerate(names):
        lines += ["[[nodes]]", f'name = "{name}"']
        lines += [f'client = "127.0.0.1:{ports[2 * number]}"', f'mesh = "127.0.0.1:{ports[2 * number + 1]}"']
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def make_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMesh]:
    monkeypatch.setattr(launch, "PROGRAM", STUB)
    monkeypatch.setattr("qmq.cli.launch.PROBE_SECONDS", PATIENCE_SECONDS)
    made: list[LocalMesh] = []

    def make(*names: str) -> LocalMesh:
        made.append(LocalMesh(write_peers(tmp_path / "peers.toml", names), tmp_path / "data"))
        return made[-1]

    yield make
    for mesh in made:
        mesh.stop_all(0)


def pid_of(mesh: LocalMesh, name: str) -> int:
    process = mesh.nodes[name].process
    assert process is not None
    return process.pid


def test_all_nodes_are_started_answer_and_are_stopped(make_mesh: MakeMesh) -> None:
    with make_mesh("a", "b") as mesh:
        mesh.start_all()
        mesh.wait_until_ready()

        assert mesh.is_ready("a", PATIENCE_SECONDS) and mesh.is_ready("b", PATIENCE_SECONDS)
        assert [(one.name, one.pid) for one in recorded(mesh.data)] == [(n, pid_of(mesh, n)) for n in ("a", "b")]

    assert [node.exit_code for node in mesh.nodes.values()] == [0, 0]
    assert recorded(mesh.data) == []


def test_a_killed_node_can_be_started_again_with_its_data(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a", "b")
    mesh.start_all()
    mesh.wait_until_ready()
    (mesh.nodes["a"].data / "something").write_text("kept", "utf-8")

    mesh.kill("a")

    assert mesh.nodes["a"].exit_code == -signal.SIGKILL
    assert not mesh.is_ready("a")
    assert mesh.is_ready("b", PATIENCE_SECONDS)
    mesh.start("a")
    mesh.wait_until_ready(["a"])
    assert (mesh.nodes["a"].data / "something").read_text("utf-8") == "kept"


def test_a_paused_node_does_not_answer_until_it_is_resumed(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a")
    mesh.start_all()
    mesh.wait_until_ready()

    mesh.pause("a")
    assert not mesh.is_ready("a", timeout_seconds=0.05)

    mesh.resume("a")
    mesh.wait_until_ready()


def test_a_paused_node_can_be_stopped(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a")
    mesh.start_all()
    mesh.wait_until_ready()

    mesh.pause("a")

    assert mesh.stop("a") == 0


def test_a_node_that_does_not_stop_in_time_is_killed(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("stubborn")
    mesh.start_all()
    mesh.wait_until_ready()

    assert mesh.stop("stubborn", timeout_seconds=0.05) == -signal.SIGKILL


def test_a_node_that_dies_at_start_is_reported_with_the_end_of_its_log(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a", "dies")
    mesh.start_all()

    with pytest.raises(NodeDied) as caught:
        mesh.wait_until_ready()

    assert "node dies ended with exit code 1; end of " in caught.value.message
    assert caught.value.message.splitlines()[-2:] == ["dies starts", "cannot go on: \x1b[31mno reason"]


def test_a_node_that_never_answers_is_reported(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("mute")
    mesh.start_all()

    with pytest.raises(Failed, match=r"node mute did not answer within 0\.05 s"):
        mesh.wait_until_ready(timeout_seconds=0.05)


def test_an_address_in_use_is_reported_before_a_node_is_started(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a")

    with StubNode(address=mesh.nodes["a"].address), pytest.raises(Failed, match="another process listens there"):
        mesh.start_all()

    assert mesh.nodes["a"].process is None


def test_a_node_is_not_started_twice(make_mesh: MakeMesh, tmp_path: Path) -> None:
    mesh = make_mesh("a")
    mesh.start_all()

    with pytest.raises(Failed, match="node a is already running"):
        mesh.start("a")
    with pytest.raises(Failed, match=rf"already running: a \(pid {pid_of(mesh, 'a')}\)"):
        LocalMesh(tmp_path / "peers.toml", mesh.data).start_all()


def test_a_name_that_is_not_in_the_peers_file_is_reported(tmp_path: Path) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a", "b"))

    with pytest.raises(Failed, match="no node is named 'x'; there are a, b"):
        LocalMesh(peers, tmp_path, nodes=["a", "x"])


def test_a_process_id_of_another_process_is_not_signalled(tmp_path: Path) -> None:
    mine = os.getpid()
    stranger = Running("a", mine, "1")

    assert not stranger.is_alive
    assert stop_recorded([stranger]) == []  # we would not be here otherwise


def test_a_dead_process_is_not_alive_before_it_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    started = start_mark(process.pid)
    process.stdout.read()  # its end closes the pipe
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert started is not None
    assert start_mark(process.pid) is None
    process.stdout.close()
    process.wait()


def test_another_shell_can_stop_what_is_recorded(make_mesh: MakeMesh, run: Run, tmp_path: Path) -> None:
    mesh = make_mesh("a", "b")
    mesh.start_all()
    mesh.wait_until_ready()

    result = run("mesh", "down", str(mesh.peers_file), "--data", str(mesh.data), "--nodes", "b")

    assert result.output == "node b stopped\n"
    assert mesh.nodes["a"].is_alive
    assert mesh.nodes["b"].exit_code == 0


def test_another_shell_kills_what_does_not_stop_in_time(make_mesh: MakeMesh) -> None:
    mesh = make_mesh("a", "stubborn")
    mesh.start_all()
    mesh.wait_until_ready()

    killed = stop_recorded(recorded(mesh.data), timeout_seconds=0.5)

    assert "stubborn" in killed
    process = mesh.nodes["stubborn"].process
    assert process is not None and process.wait() == -signal.SIGKILL


def test_a_node_of_another_user_is_reported_as_not_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a",))
    launch.record(tmp_path, add=[Running("a", os.getpid(), start_mark(os.getpid()) or "")])

    def kill(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", kill)

    result = run("mesh", "down", str(peers), "--data", str(tmp_path))

    assert result.exit_code == 1
    assert result.stderr == f"qmq: node a (pid {os.getpid()}) cannot be stopped: Operation not permitted\n"


def test_a_node_that_cannot_be_stopped_keeps_no_other_from_being_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a", "b"))
    real_kill, ours = os.kill, os.getpid()

    def kill(pid: int, number: int) -> None:
        if pid == ours:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real_kill(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        pids = {"a": ours, "b": other.pid}
        launch.record(tmp_path, add=[Running(name, pid, start_mark(pid) or "") for name, pid in pids.items()])
        try:
            result = run("mesh", "down", str(peers), "--data", str(tmp_path))

            assert other.poll() == -signal.SIGTERM
        finally:
            other.kill()
    assert result.exit_code == 1
    assert result.stderr == f"qmq: node a (pid {ours}) cannot be stopped: Operation not permitted\n"


def test_a_directory_that_cannot_be_created_is_reported(run: Run, tmp_path: Path) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a",))

    result = run("mesh", "up", str(peers), "--data", "/proc/nothing")

    assert result.exit_code == 1
    assert result.stderr == "qmq: /proc/nothing: No such file or directory\n"


def test_down_without_a_running_node_is_an_error(run: Run, tmp_path: Path) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a",))

    result = run("mesh", "down", str(peers), "--data", str(tmp_path / "data"))

    assert result.exit_code == 1
    assert result.stderr == f"qmq: no node runs from {tmp_path / 'data'}\n"


@pytest.mark.parametrize("text", ["{", "[]", '{"nodes": [{"name": "a"}]}', '{"nodes": 3}'])
def test_a_damaged_record_is_reported_and_kept(run: Run, tmp_path: Path, text: str) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a",))
    (tmp_path / "mesh.json").write_text(text, "utf-8")

    result = run("mesh", "down", str(peers), "--data", str(tmp_path))

    assert result.exit_code == 1
    assert "stop the nodes by hand and remove it" in result.stderr
    assert (tmp_path / "mesh.json").read_text("utf-8") == text


@pytest.mark.parametrize(
    ("pid", "started"), [(-1, None), (0, None), (-1, "5"), ("1", "5"), (1.0, "5"), (True, "5"), (7, None), (7, 5)]
)
def test_a_record_that_names_no_process_is_damaged(tmp_path: Path, pid: object, started: object) -> None:
    """To the system, a signal to -1 is one to all processes. So this only reads, and signals nothing."""
    (tmp_path / "mesh.json").write_text(json.dumps({"nodes": [{"name": "a", "pid": pid, "started": started}]}), "utf-8")

    with pytest.raises(Failed, match="stop the nodes by hand and remove it"):
        recorded(tmp_path)


def behind_login(node: StubNode, request: Frame) -> bytes | None:
    headers = request.head.headers
    if request.head.command == "CONNECT" and (headers.get("login"), headers.get("passcode")) != ("ann", "secret"):
        return frame("ERROR", [("message", "Log in."), ("error-code", "login-required")])
    return polite(node, request)


def test_status_logs_in_and_says_why_a_node_refuses_it(run: Run, tmp_path: Path) -> None:
    with StubNode(behind_login) as node:
        host, _, port = node.at.rpartition(":")
        peers = tmp_path / "peers.toml"
        peers.write_text(
            f'mesh = "m"\nversion = 1\n[[nodes]]\nname = "a"\nclient = "{host}:{port}"\nmesh = "{host}:1"\n', "utf-8"
        )
        refused = run("mesh", "status", str(peers))
        shown = run("mesh", "status", str(peers), "--login", "ann", "--passcode", "secret")

    assert refused.exit_code == 1
    assert refused.output.splitlines()[1].split(maxsplit=5)[3:] == ["ready", "-", "refuses its status: login-required"]
    assert shown.output.splitlines()[1].split()[3:] == ["ready", "3/4"]


def test_status_with_a_login_waits_until_a_wrong_passcode_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOGIN_SECONDS > FAILED_LOGIN_SECONDS + PROBE_SECONDS
    monkeypatch.setattr("qmq.cli.launch.LOGIN_SECONDS", 0.125)
    with StubNode(lambda _node, _request: b"") as node:
        host, _, port = node.at.rpartition(":")
        peers = tmp_path / "peers.toml"
        peers.write_text(
            f'mesh = "m"\nversion = 1\n[[nodes]]\nname = "a"\nclient = "{host}:{port}"\nmesh = "{host}:1"\n', "utf-8"
        )
        result = run("mesh", "status", str(peers), "--login", "ann", "--passcode", "secret")

    assert result.exit_code == 1
    assert "silent  -      no answer to CONNECT within 0.125 s" in result.output


def test_status_shows_which_nodes_answer(make_mesh: MakeMesh, run: Run) -> None:
    mesh = make_mesh("a", "b")
    mesh.start("a")
    mesh.wait_until_ready(["a"])

    result = run("mesh", "status", str(mesh.peers_file), "--data", str(mesh.data))
    as_json = run("mesh", "status", str(mesh.peers_file), "--data", str(mesh.data), "--json")

    assert result.exit_code == as_json.exit_code == 1  # b is not there
    lines = [line.split(maxsplit=5) for line in result.output.splitlines()]
    assert lines == [
        ["NODE", "ADDRESS", "PID", "STATE", "LINKS", "NOTES"],
        ["a", str(mesh.nodes["a"].address), str(pid_of(mesh, "a")), "ready", "3/4"],
        ["b", str(mesh.nodes["b"].address), "-", "silent", "-", "Connection refused; is a node running there?"],
    ]
    facts = json.loads(as_json.output)
    assert facts["mesh"] == "test"
    assert [(node["state"], node["links_up"]) for node in facts["nodes"]] == [("ready", 3), ("silent", None)]


def test_status_shows_a_retired_node_as_such_and_does_not_wait_for_it(tmp_path: Path, run: Run) -> None:
    membership = {"peers_version": 1, "retired": [{"node": "b", "adopter": "a"}]}
    status = {"node": "a", "peers": [], "membership": membership}

    def answer(node: StubNode, got: Frame) -> bytes | None:
        return verb_answer(got, status) if got.head.command == "SEND" else polite(node, got)

    with StubNode(answer) as node, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        peers = tmp_path / "peers.toml"
        rows = (("a", node.at), ("b", f"127.0.0.1:{unused.getsockname()[1]}"))
        nodes = (
            f'[[nodes]]\nname = "{n}"\nclient = "{at}"\nmesh = "127.0.0.1:{m}"\n' for m, (n, at) in enumerate(rows, 1)
        )
        peers.write_text(f'mesh = "m"\nversion = 1\n{"".join(nodes)}', "utf-8")
        result = run("mesh", "status", str(peers), "--json")

    states = [(one["node"], one["state"], one["notes"]) for one in json.loads(result.stdout)["nodes"]]
    assert states == [("a", "ready", ""), ("b", "retired", "a has adopted its messages; take it out of the peers file")]
    assert result.exit_code == 0


def test_a_mesh_of_the_checkout_gets_a_secret_that_no_other_has(tmp_path: Path) -> None:
    text = (ROOT / "cluster" / "three.toml").read_text("utf-8")
    found = []
    for name in ("one", "other"):
        peers = tmp_path / name / "three.toml"
        peers.parent.mkdir()
        peers.write_text(text, "utf-8")
        assert load_peers(peers).secret is None
        with pytest.raises(ConfigError, match=r"`qmq mesh up` makes .*three\.secret"):
            load(None, peers, "a")

        for _ in range(2):
            LocalMesh(peers, tmp_path / name / "data")
            found.append(load_peers(peers).secret)

        assert (peers.parent / "three.secret").stat().st_mode & 0o777 == 0o600
        load(None, peers, "a")
        (peers.parent / "three.secret").chmod(0o644)
        with pytest.raises(ConfigError, match="other users can read"):
            load(None, peers, "a")

    assert found[0] == found[1] != found[2] == found[3]
    assert found[0] is not None and len(found[0]) >= 32


@pytest.mark.parametrize("more", ['secret = "sixteen characters"', ""])
def test_a_secret_file_stands_in_place_of_a_secret_of_enough_characters(tmp_path: Path, more: str) -> None:
    peers = tmp_path / "peers.toml"
    text = write_peers(peers, ("a", "b")).read_text("utf-8")
    peers.write_text(text.replace('secret = "sixteen characters"', f'secret_file = "s"\n{more}'), "utf-8")
    (tmp_path / "s").write_text("short", "utf-8")

    with pytest.raises(ConfigError, match="in place of secret" if more else "at least 16 characters"):
        load_peers(peers)
