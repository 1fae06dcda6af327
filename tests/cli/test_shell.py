"""`qmq completion` and `qmq man`: a shell completes the commands, and the manual page has all of them."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from qmq.cli import COMMANDS
from tests.cli.conftest import Run

QMQ = (sys.executable, "-c", "from qmq.cli import main; main(prog_name='qmq')")


def completed(*words: str) -> list[str]:
    """What bash gets for these words, of which the last is not finished."""
    asked = {"_QMQ_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(QMQ, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_a_shell_completes_commands_and_options() -> None:
    assert completed("qmq", "def") == ["definitions"]
    assert completed("qmq", "cert", "re") == ["renew"]
    assert completed("qmq", "init", "--kub") == ["--kubernetes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_completion(run: Run, shell: str) -> None:
    text = run("completion", shell).stdout

    assert f"_QMQ_COMPLETE={shell}_complete" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manual_page_has_every_command_and_its_options(run: Run) -> None:
    text = run("man").stdout

    for name in COMMANDS:
        assert f'\n.SS "qmq {name} ' in text
    assert "\n.B \\-\\-passcode\\-stdin\n" in text
    assert text.startswith(".TH QMQ 1\n.SH NAME\nqmq \\- a masterless mesh")


def test_a_formatter_has_no_warning_about_the_manual_page(run: Run) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")

    done = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww"],
        input=run("man").stdout,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "qmq mesh retire [OPTIONS] NODE..." in re.sub(".\x08", "", done.stdout)
