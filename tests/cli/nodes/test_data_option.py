"""`--data DIR`: commands reach a node by the Unix socket in its data directory, whatever its configuration."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import argon2
import pytest

from qmq.cli.launch import answers
from qmq.testing.ports import free_ports
from qmq.unix_socket import SOCKET_NAME
from tests.cli.conftest import Run
from tests.client.styles import http_port
from tests.sessions.clients.test_tls import Papers
from tests.support.cluster_wait import eventually

HASH = "$argon2id$v=19$m=65536,t=3,p=4$aaaaaaaaaaaaaaaaaaaaaa$" + "b" * 43


USERS = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'


@contextmanager
def running(directory: Path, more: str) -> Iterator[str]:
    """A node with `more` in its file, killed at the end; gives its address."""
    config = directory / "node.toml"
    at = f"127.0.0.1:{free_ports(1)[0]}"
    config.write_text(f'data = "data"\n[[stomp]]\naddress = "{at}"\n{more}', "utf-8")
    command = [sys.executable, "-m", "qmq", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: answers(directory / "data" / SOCKET_NAME), "the node does not answer")
            yield at
        finally:
            process.kill()


def test_a_node_behind_login_is_administered_by_its_socket_also_after_a_kill(run: Run, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with running(tmp_path, USERS):
        sent = run("send", "/fanout/log", "one", "--data", data)
        assert sent.exit_code == 0, sent.output
    assert (tmp_path / "data" / SOCKET_NAME).is_socket()

    with running(tmp_path, USERS):
        status = run("status", "--data", data, "--json")
        deleted = run("delete", "/fanout/log", "--data", data, "--json")

    assert json.loads(status.output)["connections"] == 1, status.output
    assert json.loads(deleted.output)["messages"] == 1, deleted.output


@pytest.mark.parametrize("command", [["serve", "--data", ""], ["status", "--data", ""], ["log", "dump", ""]])
def test_an_empty_path_is_not_the_current_directory(run: Run, command: list[str]) -> None:
    result = run(*command)

    assert result.exit_code == 2
    assert "the path is empty" in result.output


def test_without_a_node_the_error_names_the_socket(run: Run, tmp_path: Path) -> None:
    result = run("status", "--data", str(tmp_path))

    assert (result.exit_code, result.output) == (
        1,
        f"qmq: {tmp_path / SOCKET_NAME}: No such file or directory; is a node running there?\n",
    )


@pytest.mark.parametrize("other", [("--at", "127.0.0.1:1"), ("--tls",)])
def test_a_socket_excludes_an_address_and_tls(run: Run, tmp_path: Path, other: tuple[str, ...]) -> None:
    result = run("status", "--data", str(tmp_path), *other)

    assert result.exit_code == 2
    assert "excludes --at and TLS" in result.output


def test_a_key_without_a_certificate_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("status", "--key", str(tmp_path / "key.pem"))

    assert result.exit_code == 2
    assert "--key is the key of --cert" in result.output


def test_a_file_of_authorities_that_cannot_be_used_is_named(run: Run, tmp_path: Path) -> None:
    result = run("status", "--cafile", str(tmp_path / "none.pem"))

    assert (result.exit_code, result.output) == (1, f"qmq: {tmp_path / 'none.pem'}: No such file or directory\n")


def test_a_command_speaks_tls_and_shows_its_certificate(run: Run, tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    server, client = papers.of("127.0.0.1"), papers.of("client")
    files = f'certificate = "{server.certificate}"\nkey = "{server.key}"\nca = "{server.ca}"\n'
    server.key.chmod(0o600)
    with running(tmp_path, f"[stomp.tls]\n{files}") as at:
        ours = ("--cafile", str(papers.ca), "--cert", str(client.certificate), "--key", str(client.key))
        eventually(lambda: run("status", "--at", at, *ours).exit_code == 0, "the listener does not answer")
        shown = run("status", "--at", at, *ours)
        plain = run("status", "--at", at)
        distrustful = run("status", "--at", at, "--tls")

    assert shown.output.startswith("node qmq"), shown.output
    no_answer = f"qmq: {at}: closed the connection without an answer; does it need TLS?\n"
    assert (plain.exit_code, plain.output) == (1, no_answer)
    assert distrustful.output.startswith(f"qmq: {at}: its certificate is not trusted: "), distrustful.output


def test_a_port_of_http_is_said(run: Run) -> None:
    with http_port() as at:
        shown = run("status", "--at", at)

    assert (shown.exit_code, shown.output) == (1, f"qmq: {at}: answers HTTP, not STOMP\n")


@pytest.mark.parametrize("workload", ["topic", "queue", "latency", "backlog"])
def test_bench_measures_a_node_behind_tls_and_a_login(run: Run, tmp_path: Path, workload: str) -> None:
    papers = Papers(tmp_path / "papers")
    server, client = papers.of("127.0.0.1"), papers.of("client")
    files = f'certificate = "{server.certificate}"\nkey = "{server.key}"\nca = "{server.ca}"\n'
    server.key.chmod(0o600)
    more = f'[[users]]\nname = "ann"\npassword_hash = "{hash_of("secret")}"\ngroups = ["client", "observer"]\n'
    length = ("--count", "500") if workload == "backlog" else ("--seconds", "0.2", "--warmup", "0")
    with running(tmp_path, f"[stomp.tls]\n{files}{more}") as at:
        ours = ("--cafile", str(papers.ca), "--cert", str(client.certificate), "--key", str(client.key))
        ours += ("--login", "ann", "--passcode", "secret")
        eventually(lambda: run("status", "--at", at, *ours).exit_code == 0, "the listener does not answer")
        result = run("bench", workload, "--line", "--at", at, *ours, *length)

    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["missing"], facts["extra"]) == (0, 0, 0), result.output


def test_bench_with_a_node_of_its_own_refuses_a_login(run: Run) -> None:
    result = run("bench", "topic", "--serve", "--tls")

    assert (result.exit_code, "leave out --tls" in result.output) == (2, True)


def hash_of(passcode: str) -> str:
    return argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(passcode)
