"""The commands of the tutorial do what the page shows: on other ports, with a shorter silence before a takeover, and
with more time for a second copy."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import ROOT

PAGE = (ROOT / "docs/tutorial.md").read_text("utf-8")
ADDRESSES = sorted(set(re.findall(r"127\.0\.0\.1:\d+", PAGE)))
QUICK = """\
[mesh]
beat_seconds = 0.5
suspicion_seconds = 2
takeover_after_seconds = 3
receipt_degrade_seconds = 8
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def without_figures(text: str) -> list[str]:
    """Every line without what differs from run to run: figures, states, and which node serves the messages of a."""
    lines = (
        re.sub(r" +(NOTES|learner|paused|serving|takes over|asks for votes)$", "", line) for line in text.splitlines()
    )
    words = (" ".join(word for word in line.split() if not re.fullmatch(r"[\d/:.-]+", word)) for line in lines)
    return [line for line in words if line and not re.fullmatch(r"a [abc]", line)]


def test_the_commands_of_the_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    script = "set -e\n" + "\n".join(blocks("bash")).replace("qmq mesh up", "qmq mesh up --config quick.toml")
    for address, port in zip(ADDRESSES, free_ports(len(ADDRESSES)), strict=True):
        script = script.replace(address, f"127.0.0.1:{port}")
    (tmp_path / "quick.toml").write_text(QUICK)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "qmq").write_text(f'#!/bin/sh\nexec {sys.executable} -m qmq "$@"\n')
    (commands / "qmq").chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    # A session of its own: when a command hangs, the nodes end with it.
    command = ["bash", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **pipes) as running:
        try:
            output, errors = running.communicate(timeout=100)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)

    assert running.returncode == 0, f"{output}\n{errors}"
    printed = iter(without_figures(output))
    for line in without_figures("mesh.toml: ok\n" + "".join(blocks("console"))):
        assert line in printed, f"not there, or not in this order: {line}\n{output}"
