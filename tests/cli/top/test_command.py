"""`qmq top` as a command: one screen for scripts, and a live one that leaves the terminal as it was."""

import os
import pty
import subprocess
import sys
import termios

from tests.cli.conftest import Run
from tests.cli.stub import of_verbs
from tests.cli.top.test_screen import node as facts_of
from tests.cli.top.test_screen import queue

ANSWERS = {
    "overview": {"nodes": {"a": facts_of()}, "nodes_missing": []},
    "conditions": {"conditions": []},
    "list/queue/": {"destinations": [queue(0)], "queues": 1},
    "list-subscribers/queue/q0": {"subscribers": [{"node": "a", "session": 1, "id": "1", "user": "app"}]},
}


def test_without_a_terminal_it_prints_one_screen(run: Run) -> None:
    with of_verbs(ANSWERS) as node:
        result = run("top", "--at", node.at, "--every", "0.5")

    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\n  /queue/q0  " in result.output


def test_without_a_node_it_fails_with_one_line(run: Run) -> None:
    result = run("top", "--at", "127.0.0.1:1")

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def read_until(terminal: int, text: str) -> str:
    """What comes to the terminal, up to `text`."""
    found = ""
    while text not in found:
        found += os.read(terminal, 65536).decode()
    return found


def test_a_live_screen_obeys_keys_and_leaves_the_terminal_as_it_was() -> None:
    terminal, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    with of_verbs(ANSWERS) as node:
        command = [sys.executable, "-m", "qmq", "top", "--at", node.at, "--every", "60"]
        environment = {**os.environ, "COLUMNS": "100", "LINES": "24"}
        with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment) as process:
            assert "\x1b[?1049h" in read_until(terminal, "q quit")
            os.write(terminal, b"\r")
            assert "app" in read_until(terminal, "escape back")
            os.write(terminal, b"\x1b")
            read_until(terminal, "d depth")
            os.write(terminal, b"q")
            assert "\x1b[?25h\x1b[?1049l" in read_until(terminal, "\x1b[?1049l")
            assert process.wait() == 0
    assert termios.tcgetattr(inner) == before
    os.close(terminal)
    os.close(inner)
