"""`qmq doctor --config`: what is wrong with files, addresses, disk and limits of one machine."""

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qmq.cli.doctor import files
from qmq.cli.doctor.files import file_system_of
from qmq.cli.passwords import hash_of
from tests.cli.conftest import Run

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A node file whose node listens at a free port, on a machine without other findings, but for what is given."""
    monkeypatch.setattr(files, "fsync_seconds", lambda folder: 0.001)
    monkeypatch.setattr(files, "file_system_of", lambda place, mounts: "ext4")
    monkeypatch.setattr(files, "FREE_BYTES_MIN", 0)

    def node_file(*lines: str, address: str = "", listener: str = "") -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = address or f"127.0.0.1:{free.getsockname()[1]}"
        path = tmp_path / "node.toml"
        limits = "[limits]\nconnections_max = 10"
        stomp = f'[[stomp]]\naddress = "{address}"\n{listener}'
        path.write_text("\n".join([f'data = "{tmp_path}/data"', *lines, stomp, limits]), "utf-8")
        return str(path)

    return node_file


def test_files_and_a_machine_without_faults_have_no_finding(run: Run, write: Write) -> None:
    result = run("doctor", "--config", write())

    assert (result.exit_code, result.output) == (0, "nothing wrong\n")


def test_errors_of_a_file_are_findings_with_their_line(run: Run, write: Write) -> None:
    result = run("doctor", "--config", write("colour = 3"), "--json")

    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["severity"] == "error"
    assert "node.toml:2: colour" in finding["message"]


def test_an_address_that_another_process_has_is_an_error(run: Run, write: Write) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("doctor", "--config", write(address=address))

    assert result.exit_code == 1
    assert f"error  {address}  the node cannot listen: another process listens there" in result.output


LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@contextmanager
def process_of(folder: Path, *words: str) -> Iterator[str]:
    """The address at which a process with these arguments listens."""
    command = [sys.executable, "-c", LISTEN, *words]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield f"127.0.0.1:{running.stdout.readline().strip()}"
        finally:
            running.communicate()


@pytest.mark.parametrize("memory", [(), ('data = "memory"',)])
@pytest.mark.parametrize(
    "words", [("serve", "--config", "node.toml"), ("serve", "--data", "x", "--config={}/node.toml")]
)
def test_an_address_that_the_running_node_has_is_no_finding(
    run: Run, write: Write, tmp_path: Path, words: tuple[str, ...], memory: tuple[str, ...]
) -> None:
    with process_of(tmp_path, *(word.format(tmp_path) for word in words)) as address:
        path = Path(write(*memory, address=address))
        if memory:
            path.write_text(path.read_text("utf-8").partition("\n")[2], "utf-8")
        result = run("doctor", "--config", str(path))

    assert result.exit_code == 0
    assert "cannot listen" not in result.output


@pytest.mark.parametrize("words", [("serve", "--config", "other.toml"), ("archive", "--config", "node.toml")])
def test_another_process_at_an_address_is_named(run: Run, write: Write, tmp_path: Path, words: tuple[str, ...]) -> None:
    with process_of(tmp_path, *words) as address:
        result = run("doctor", "--config", write(address=address))

    assert result.exit_code == 1
    assert f"{address}  the node cannot listen: another process listens there" in result.output
    assert f", {sys.executable}), or change the port" in " ".join(result.output.split())


def test_an_address_of_another_machine_is_an_error(run: Run, write: Write) -> None:
    result = run(
        "doctor",
        "--config",
        write(
            address="192.0.2.1:61613",
            listener=f"insecure = true\n[definitions.user.a]\npassword_hash = '{hash_of(chr(97))}'",
        ),
    )

    assert result.exit_code == 1
    assert "the node cannot listen: Cannot assign requested address" in result.output


@pytest.mark.parametrize(
    ("kind", "message"), [("nfs4", "is on a network file system (nfs4)"), ("tmpfs", "is in memory (tmpfs)")]
)
def test_a_file_system_that_keeps_no_promise_is_a_warning(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    monkeypatch.setattr(files, "file_system_of", lambda place, mounts: kind)

    result = run("doctor", "--config", write())

    assert result.exit_code == 0
    assert message in result.output


def test_a_slow_disk_is_a_warning_unless_receipts_do_not_wait_for_it(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fsync_seconds", lambda folder: 0.05)

    waits = run("doctor", "--config", write())
    does_not = run("doctor", "--config", write('storage.sync = "never"'))

    assert "an fsync takes 50 ms (median of 16)" in waits.output
    assert "fsync" not in does_not.output


def test_a_disk_below_its_reserve_is_an_error(run: Run, write: Write) -> None:
    result = run("doctor", "--config", write(f"storage.disk_reserve_bytes = {1 << 52}"))

    assert result.exit_code == 1
    assert "free: SENDs are refused" in result.output


def test_a_directory_that_the_user_cannot_write_is_an_error(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    monkeypatch.setattr(files, "is_writable", lambda folder: False)

    result = run("doctor", "--config", path)

    assert result.exit_code == 1
    assert "the node cannot write there" in result.output


def test_more_connections_than_open_files_is_a_warning(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 265))

    result = run("doctor", "--config", write())

    assert "limits.connections_max  is 10, and open files leave room for 9 connections" in result.output


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/srv/qmq/a", "xfs"),
        ("/srv/qmqs", "ext4"),
        ("/srv/a b", "nfs"),
        ("/dev/shm/x", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount(place: str, kind: str) -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\n/dev/vdb /srv/qmq xfs rw 0 0\nhost:/x /srv/a\\040b nfs rw 0 0\n"
        "tmpfs /dev/shm tmpfs rw 0 0\n\n"
    )

    assert file_system_of(Path(place), mounts) == kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "a"], "give --config or --peers, too"),
        (["--config", "x", "--at", "h:1"], "--at asks a running mesh, --config checks files"),
        (["--config", "x", "--data", "d"], "--data asks a running mesh, --config checks files"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run: Run, arguments: list[str], message: str) -> None:
    result = run("doctor", *arguments)

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_node_without_a_disk_has_no_finding_about_one(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fsync_seconds", lambda folder: 10.0)
    node_file = Path(write())
    node_file.write_text(node_file.read_text().replace(f"{tmp_path}/data", "memory"), "utf-8")

    result = run("doctor", "--config", str(node_file), "--json")

    assert result.exit_code == 0
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["message"].startswith("this node writes no file")
