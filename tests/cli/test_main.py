"""The command line as a whole: quick help, exit codes, failures in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from qmq import __version__
from qmq.build import BUILD

from .conftest import Run

HEAVY = ("trio", "pydantic", "sqlite_utils", "msgpack", "argon2", "qmq.wire", "qmq.server", "qmq.storage")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, qmq.cli; qmq.cli.main(['--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command_with_what_it_does(run: Run) -> None:
    result = run("--help")

    assert result.exit_code == 0
    shown = " ".join(result.output.split())
    for line in ("serve Run one node", "mesh Start, stop and show", "send Send messages", "log Verify"):
        assert line in shown


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "qmq", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == f"qmq {__version__} ({BUILD} Python)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("send",),
        ("send", "/queue/a", "body", "--at", "nowhere"),
        ("send", "/queue/a", "body", "--header", "no colon"),
        ("send", "/queue/a", "body", "--count", "0"),
        ("send", "/queue/a", "body", "--lines", "-"),
        ("listen", "/queue/a", "--ack", "maybe"),
        ("listen", "/queue/a", "--json", "--body-only"),
        ("send", "/queue/a", "body", "--at", "a..b:61613"),
        ("status", "--patience", "inf"),
        ("status", "--patience", "nan"),
        ("status", "--patience", "1e10"),
        ("listen", "/queue/a", "--timeout", "inf"),
        ("listen", "/queue/a", "--timeout", "nan"),
        ("listen", "/queue/a", "--timeout", "4294967.4"),
        ("bench", "topic", "--seconds", "nan"),
        ("bench", "topic", "--warmup", "inf"),
        ("bench", "latency", "--rate", "inf"),
        ("config", "check"),
        ("mesh", "up"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_serve_tells_every_mistake_of_the_files_and_ends_with_code_2(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('nam = "a"\n[limits]\nprefetch_max = 0\n', "utf-8")

    result = run("serve", "--config", str(node))

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"{node}:1: nam: unknown key; did you mean name?\n"
        f"{node}:3: limits.prefetch_max = 0: must be at least 1\n"
        "qmq: 2 mistakes in the configuration\n"
    )


@pytest.mark.parametrize("command", [("send", "/queue/a", "x"), ("listen", "/queue/a"), ("status",)])
def test_nobody_at_the_address_is_told_in_one_line(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--at", "127.0.0.1:1")

    assert result.exit_code == 1
    assert result.stderr == "qmq: 127.0.0.1:1: Connection refused; is a node running there?\n"
