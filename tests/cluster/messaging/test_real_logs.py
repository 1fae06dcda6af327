"""The main job on real input: log lines of real systems, line by line, as a work queue and as a fanout.

The files lie beside the project, not in it (where they come from, and their terms, is told there). One line is one
message body: the bytes of the line without its newline (LF); the CR of CRLF stays.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster_bodies import bodies
from tests.support.cluster_mesh import ROOT, Cluster
from tests.support.cluster_wait import eventually

DATA = ROOT.parent / "shared" / "data"
FILES = sorted(DATA.glob("*.log"))
WINDOW = 2000
"""Receipts waited for at a time."""

pytestmark = pytest.mark.skipif(not FILES, reason=f"no log files of real systems in {DATA}")

Publish = Callable[[Cluster, str], None]


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().removesuffix(b"\n").split(b"\n")


def all_lines() -> list[bytes]:
    return [line for path in FILES for line in lines_of(path)]


def run_qmq(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "qmq", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment())


def environment() -> dict[str, str]:
    """This one, with the project importable from anywhere and this Python's commands first."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def by_command_line(mesh: Cluster, destination: str) -> None:
    for path in FILES:
        result = run_qmq("send", destination, "--lines", str(path), "--at", mesh.at("a"))
        count = len(lines_of(path))
        assert result.stdout.decode().strip() == f"sent {count} messages to {destination}, {count} confirmed"


def by_stomp_py(mesh: Cluster, destination: str) -> None:
    client = mesh.client("a")
    lines = all_lines()
    for start in range(0, len(lines), WINDOW):
        client.publish(destination, *lines[start : start + WINDOW])


PUBLISHERS = pytest.mark.parametrize("publish", [by_command_line, by_stomp_py])


@PUBLISHERS
def test_every_line_is_worked_on_exactly_once_on_b_or_c(mesh: Cluster, publish: Publish) -> None:
    destination = f"/queue/logs.{publish.__name__}"
    lines = all_lines()
    on_b = mesh.client("b").consume(destination)
    on_c = mesh.client("c").consume(destination)

    publish(mesh, destination)

    eventually(
        lambda: len(on_b) + len(on_c) >= len(lines), lambda: f"b and c have {len(on_b)} + {len(on_c)} of {len(lines)}"
    )
    eventually(lambda: mesh.depth("a", destination) == 0, "a still counts lines that were worked on")
    assert Counter(bodies(on_b) + bodies(on_c)) == Counter(lines)
    assert on_b
    assert on_c


@PUBLISHERS
def test_every_line_reaches_all_three_nodes_in_order_byte_for_byte(mesh: Cluster, publish: Publish) -> None:
    destination = f"/fanout/logs.{publish.__name__}"
    lines = all_lines()
    got = {name: mesh.client(name).subscribe(destination) for name in mesh.names}

    publish(mesh, destination)

    for name, messages in got.items():
        eventually(
            lambda m=messages: len(m) >= len(lines), lambda n=name, m=messages: f"{n} has {len(m)} of {len(lines)}"
        )
        assert bodies(messages) == lines


def test_the_example_of_the_documentation_runs_as_it_is_written(mesh: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "example-logs.md").read_text("utf-8")
    settings, *blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = dict(re.findall(r"^(\w+)=(\S+)", settings, re.MULTILINE))
    assert sorted(names) == ["A", "B", "C", "LOG"]
    said = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    here = {"A": mesh.at("a"), "B": mesh.at("b"), "C": mesh.at("c"), "LOG": str(DATA / "apache_access.log")}
    # `qmq` is this Python's, also where nothing is installed.
    script = 'qmq() { "$PYTHON" -m qmq "$@"; }\nset -euo pipefail\n' + "".join(blocks)

    result = subprocess.run(
        ["bash", "-c", script],
        env={**environment(), **here, "PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        timeout=90,
        text=True,
        check=False,
    )

    assert (result.stdout, result.stderr, result.returncode) == ("".join(said), "", 0)
