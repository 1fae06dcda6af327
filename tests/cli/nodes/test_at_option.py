"""`--at`: which of several nodes a command asks, and where the addresses come from."""

import json
from pathlib import Path

import pytest

from qmq.cli.launch import record
from qmq.cli.options import DEFAULT_AT, default_addresses
from qmq.testing.ports import free_ports
from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame


def nowhere() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def refusing(code: str) -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        return frame("ERROR", [("message", "No."), ("error-code", code)])

    return StubNode(answer)


def test_the_first_node_that_responds_is_asked_and_the_dead_one_is_named(run: Run, node: StubNode) -> None:
    dead = nowhere()

    result = run("status", "--json", "--at", f"{dead},{node.at}")

    assert result.exit_code == 0, result.output
    assert result.stderr == f"qmq: {dead}: Connection refused; is a node running there?; {node.at} responds\n"
    assert json.loads(result.stdout)["node"] == "a"


def test_a_command_with_several_requests_names_the_dead_node_once(run: Run, node: StubNode) -> None:
    result = run("users", "delete", "ann", "--at", f"{nowhere()},{node.at}", "--patience", "0.2")

    assert result.stderr.count("responds") == 1


def test_without_an_address_the_nodes_of_a_node_file_are_asked(
    run: Run, node: StubNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, links = nowhere(), [nowhere(), nowhere()]
    (tmp_path / "node.toml").write_text('name = "b"\npeers = "peers.toml"\n', "utf-8")
    (tmp_path / "peers.toml").write_text(
        'mesh = "m"\nversion = 1\nsecret = "of-two-nodes-on-one-machine"\n'
        f'[[nodes]]\nname = "a"\nclient = "{node.at}"\nmesh = "{links[0]}"\n'
        f'[[nodes]]\nname = "b"\nclient = "{dead}"\nmesh = "{links[1]}"\n',
        "utf-8",
    )
    (tmp_path / "peers.toml").chmod(0o600)
    monkeypatch.setenv("QMQ_CONFIG", str(tmp_path / "node.toml"))

    result = run("status", "--json")
    monkeypatch.setenv("QMQ_CONFIG", str(tmp_path / "none.toml"))
    missing = run("status")
    given = run("status", "--at", node.at)

    assert result.exit_code == 0, result.output
    assert result.stderr == f"qmq: {dead}: Connection refused; is a node running there?; {node.at} responds\n"
    assert missing.exit_code == 2 and "none.toml" in missing.output, missing.output
    assert given.exit_code == 0


def test_all_failures_are_named_if_no_node_responds(run: Run) -> None:
    one, other = nowhere(), nowhere()

    result = run("status", "--at", f"{one},{other}")

    assert result.exit_code == 1
    assert one in result.stderr and other in result.stderr and "responds" not in result.stderr


def test_a_node_that_stops_is_passed_over_and_a_refused_login_is_not(run: Run, node: StubNode) -> None:
    with refusing("stopping") as stopping, refusing("login-required") as closed:
        passed = run("status", "--json", "--at", f"{stopping.at},{node.at}")
        refused = run("status", "--json", "--at", f"{closed.at},{node.at}")

    assert passed.exit_code == 0, passed.output
    assert (refused.exit_code, refused.stderr) == (1, f"qmq: {closed.at}: No. (login-required)\n")


def test_addresses_come_from_the_environment_and_data_on_the_command_line_counts_more(
    run: Run, node: StubNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QMQ_AT", f"{nowhere()}, {node.at}")
    monkeypatch.setenv("QMQ_CERT_KEY", "unused.key")

    assert run("status", "--json", "--at", node.at).exit_code == 2  # --key is the key of --cert
    monkeypatch.delenv("QMQ_CERT_KEY")
    assert run("status", "--json").exit_code == 0
    assert "qmq.sock" in run("status", "--data", str(tmp_path)).stderr


def test_a_file_of_authorities_comes_from_the_environment(
    run: Run, node: StubNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QMQ_CAFILE", "nowhere.pem")

    assert run("status", "--at", node.at).stderr == "qmq: nowhere.pem: No such file or directory\n"


def test_the_default_finds_the_nodes_of_a_mesh_that_was_started_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(one) for one in default_addresses()] == [DEFAULT_AT]

    record(tmp_path / ".mesh" / "three", addresses=[DEFAULT_AT, "127.0.0.1:61614", "10.0.0.1:61613"])
    record(tmp_path / ".mesh" / "three", remove=["a"])
    (tmp_path / ".mesh" / "bad").mkdir()
    (tmp_path / ".mesh" / "bad" / "mesh.json").write_text("[]", "utf-8")

    assert [str(one) for one in default_addresses()] == [DEFAULT_AT, "127.0.0.1:61614"]
