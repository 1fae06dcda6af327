"""A protocol is one room: without its folder and its line in the table, a node starts and serves the others."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qmq
from qmq.protocols import PROTOCOLS

PACKAGE = Path(qmq.__file__).parent
START_SECONDS = 60
ANSWER_SECONDS = 20.0

IMPORT_ALL = """
import importlib, pathlib
for path in sorted(pathlib.Path("qmq").rglob("*.py")):
    if path.name != "__main__.py":
        try:
            importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
        except ModuleNotFoundError as missing:
            if missing.name.startswith("qmq"):
                raise
"""


@pytest.fixture(params=[name for name in PROTOCOLS if name != "stomp"])
def removed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The name of a protocol, and a directory with the package without it."""
    name = str(request.param)
    copy = tmp_path / "qmq"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "protocols" / name)
    table = copy / "protocols" / "__init__.py"
    text = table.read_text("utf-8")
    assert text.count(f'    "{name}",\n') == 1
    table.write_text(text.replace(f'    "{name}",\n', ""), "utf-8")
    return name, tmp_path


def run(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Python on the package in `directory`."""
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=directory, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def imported(directory: Path) -> Iterator[str]:
    """Dotted names of all imports of the package, those in functions included."""
    for path in (directory / "qmq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def test_all_other_modules_are_imported(removed: tuple[str, Path]) -> None:
    name, directory = removed

    done = run(directory, "-c", IMPORT_ALL)
    said, _ = done.communicate(timeout=START_SECONDS)

    assert (done.returncode, said) == (0, "")
    assert [one for one in imported(directory) if f"protocols.{name}." in f"{one}."] == []


def test_a_file_that_has_its_listener_is_refused_by_name(removed: tuple[str, Path]) -> None:
    name, directory = removed
    (directory / "node.toml").write_text(f'[[{name}]]\naddress = "127.0.0.1:4000"\n', "utf-8")

    done = run(directory, "-m", "qmq", "config", "check", "--config", "node.toml")
    said, _ = done.communicate(timeout=START_SECONDS)

    assert done.returncode == 2
    assert f"node.toml:1: {name}: unknown key" in said


def test_a_node_starts_and_a_message_goes_through(removed: tuple[str, Path]) -> None:
    _, directory = removed

    node = run(directory, "-m", "qmq", "serve", "--until-eof", "--listen", "127.0.0.1:0", "--data", "data")
    with node:
        assert node.stdout is not None and node.stdin is not None
        found = next(
            (found for line in node.stdout if (found := re.search(r"serves STOMP on (\S+):(\d+)", line))), None
        )
        assert found is not None
        with socket.create_connection((found[1], int(found[2])), ANSWER_SECONDS) as client:
            client.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            client.sendall(b"SUBSCRIBE\ndestination:/queue/q\nid:1\n\n\0SEND\ndestination:/queue/q\n\nhello\0")
            said = b""
            while b"hello\0" not in said:
                said += (more := client.recv(4096))
                assert more, said
        node.stdin.close()
        node.stdout.read()

    assert b"MESSAGE\n" in said and node.returncode == 0
