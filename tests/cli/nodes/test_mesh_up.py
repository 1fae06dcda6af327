"""`qmq mesh up` as a person has it: a process that shows nodes and stops them all at its end."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qmq.address import Address
from qmq.cli.launch import LogTail, NodeProcess, recorded
from qmq.cli.mesh import NodeState, Screen
from tests.cli.nodes.test_launch import STUB, write_peers

UP = (
    "import qmq.cli.launch; from qmq.cli import main; "
    f"qmq.cli.launch.PROGRAM = {STUB!r}; "
    "main(['mesh', 'up', *__import__('sys').argv[1:]])"
)


@contextmanager
def mesh_up(tmp_path: Path, *names: str) -> Iterator[subprocess.Popen[str]]:
    """The command with stand-in nodes, its output in a pipe; stopped in any case."""
    peers = write_peers(tmp_path / "peers.toml", names)
    command = [sys.executable, "-c", UP, str(peers), "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        process.wait()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if words in line:
            return lines
    raise AssertionError(f"ended without saying {words!r}:\n" + "\n".join(lines))


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_all_nodes_come_up_and_go_down_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with mesh_up(tmp_path, "a", "b") as process:
        lines = read_until(process, "Ctrl-C stops all")
        running = recorded(tmp_path / "data")
        for path in (tmp_path / "data", tmp_path / "data" / "a", tmp_path / "data" / "a.log"):
            assert not path.stat().st_mode & 0o077, f"other users can read {path}"

        # Ctrl-C in a terminal reaches every process of the group; a service manager's SIGTERM only the first; SIGHUP is
        # what a terminal leaves behind.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        rest = read_until(process, "node b ended")

        assert process.wait() == 0
    assert lines[-1] == "mesh test: 2 nodes ready; Ctrl-C stops all"
    assert "a | a starts" in lines and "b | b starts" in lines
    assert any(line.startswith("node a  127.0.0.1:") and line.endswith("ready  links 3/4") for line in lines)
    assert [line for line in rest if "ended with" in line] == [
        "node a ended with exit code 0",
        "node b ended with exit code 0",
    ]
    assert [one.name for one in running] == ["a", "b"]
    assert not any(one.is_alive for one in running)


def test_what_a_newcomer_can_try_is_printed_and_a_node_killed_in_a_trial_is_no_failure(tmp_path: Path) -> None:
    with mesh_up(tmp_path, "a", "b") as process:
        read_until(process, "Ctrl-C stops all")
        (line,) = read_until(process, "try, in another shell")
        victim = recorded(tmp_path / "data")[0]
        os.kill(victim.pid, signal.SIGKILL)
        read_until(process, "ended: SIGKILL")
        process.send_signal(signal.SIGINT)

        assert process.wait() == 0
    assert 'qmq send /queue/hello "hello, mesh" --at 127.0.0.1:' in line


def test_a_mesh_comes_up_from_a_fresh_checkout_and_keeps_its_secret_and_its_data_to_its_user(tmp_path: Path) -> None:
    with mesh_up(tmp_path, "a") as process:  # its peers file is written as git does, for all to read
        lines = read_until(process, "Ctrl-C stops all")

    assert (tmp_path / "peers.toml").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data" / "a").stat().st_mode & 0o777 == 0o700
    assert (
        lines[0] == f"{tmp_path / 'peers.toml'}: other users could read the secret in it; now only you can (chmod 600)"
    )


def test_a_node_that_dies_at_start_ends_all_with_code_1(tmp_path: Path) -> None:
    with mesh_up(tmp_path, "a", "dies") as process:
        lines = read_until(process, "no reason")  # from the log line, or from the summary: both are printed
        lines += process.stdout.read().splitlines() if process.stdout is not None else []

        assert process.wait() == 1
    assert any("node dies ended with exit code 1; end of" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert recorded(tmp_path / "data") == []


def test_the_command_ends_when_another_shell_stops_the_nodes(tmp_path: Path) -> None:
    with mesh_up(tmp_path, "a") as process:
        read_until(process, "Ctrl-C stops all")
        (running,) = recorded(tmp_path / "data")

        down = [sys.executable, "-m", "qmq", "mesh", "down", str(tmp_path / "peers.toml")]
        subprocess.run([*down, "--data", str(tmp_path / "data")], check=True, capture_output=True)

        assert process.wait() == 0
        assert not running.is_alive


LOGGED = """\
2026-01-02 03:04:05,678 INFO    qmq.model.members: = b is a learner: it does not count
2026-01-02 03:04:05,679 ERROR   qmq.condition: ! EVENT damage: a segment
Traceback (most recent call last):
  a line of it
2026-01-02 03:04:05,680 INFO    qmq.node: = serves
qmq: cannot listen
"""


@pytest.mark.parametrize(("is_verbose", "shown"), [(False, [1, 2, 3, 5]), (True, [0, 1, 2, 3, 4, 5])])
def test_of_a_log_warnings_and_errors_are_shown_and_all_of_it_when_asked(
    tmp_path: Path, is_verbose: bool, shown: list[int]
) -> None:
    node = NodeProcess("a", Address("127.0.0.1", 1), tmp_path / "a")
    follower = LogTail(node, is_verbose)
    node.log.parent.mkdir(exist_ok=True)
    node.log.write_text(LOGGED)

    lines = follower.new_lines()

    expected = [f"a | {LOGGED.splitlines()[number]}" for number in shown]
    assert lines == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def state(name: str, text: str = "ready") -> NodeState:
    return NodeState(name, "127.0.0.1:1", 7, text, 2, 4)


def test_on_a_terminal_the_table_stays_below_the_log() -> None:
    out = Terminal()
    screen = Screen(out)

    screen.show(["a | one"], [state("a", "starting")])
    screen.show([], [state("a", "starting")])
    screen.show(["a | two"], [state("a")])

    first, *rest = out.getvalue().split("\x1b[3A\r\x1b[J")
    assert first.splitlines() == [
        "a | one",
        "",
        "NODE  ADDRESS      PID  STATE     LINKS",
        "a     127.0.0.1:1    7  starting  2/4",
    ]
    assert [part.splitlines() for part in rest] == [
        ["a | two", "", "NODE  ADDRESS      PID  STATE  LINKS", "a     127.0.0.1:1    7  ready  2/4"]
    ]


def test_without_a_terminal_only_changes_are_shown() -> None:
    out = io.StringIO()
    screen = Screen(out)

    screen.show([], [state("a"), state("b")])
    screen.show([], [state("a"), state("b", "silent")])
    screen.show(["a | log"], [state("a"), state("b", "silent")])

    assert out.getvalue().splitlines() == [
        "node a  127.0.0.1:1  pid 7  ready  links 2/4",
        "node b  127.0.0.1:1  pid 7  ready  links 2/4",
        "node b  127.0.0.1:1  pid 7  silent  links 2/4",
        "a | log",
    ]
