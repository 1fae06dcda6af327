"""The lines that `qmq serve` logs."""

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.admin.facts.conditions import Conditions
from qmq.cli.serve import JsonFormatter, LineFormatter, log_as_json
from tests.node.rig import Rig, send, subscribe


def record(message: str, failure: BaseException | None = None) -> logging.LogRecord:
    info = None if failure is None else (type(failure), failure, failure.__traceback__)
    return logging.LogRecord("qmq.node", logging.WARNING, __file__, 1, "! %s", (message,), info)


def test_name_with_control_characters_stays_in_its_line() -> None:
    line = LineFormatter("%(levelname)s: %(message)s").format(record("/queue/a\n! CONDITION\r\x1b[2J\x85\u2028b é"))

    assert line == r"WARNING: ! /queue/a\n! CONDITION\r\x1b[2J\x85\u2028b é"


def test_traceback_is_indented_below_its_line() -> None:
    try:
        raise ValueError("a\n! CONDITION\x1b")
    except ValueError:
        failure = sys.exc_info()[1]

    first, *lines = LineFormatter("%(message)s").format(record("failed", failure)).split("\n")

    assert first == "! failed"
    assert lines[0] == "  Traceback (most recent call last):"
    assert lines[-2:] == ["  ValueError: a", r"  ! CONDITION\x1b"]


class Lines(logging.Handler):
    """What a JsonFormatter makes of the lines of the logger `name`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter("a"))
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert line.isascii() and line.isprintable()
        self.found.append(json.loads(line))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("qmq")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_line_of_json_has_time_level_logger_node_and_message(lines: Lines) -> None:
    made = record("/queue/a\n\x1b[2J\u2028 é \udc80")
    made.created = 1_700_000_000.25

    assert json.loads(lines.format(made)) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "logger": "qmq.node",
        "node": "a",
        "message": "! /queue/a\n\x1b[2J\u2028 é \udc80",
    }
    lines.handle(made)


def test_a_failure_of_json_has_its_traceback_in_one_line(lines: Lines) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        lines.handle(record("failed", sys.exc_info()[1]))

    (line,) = lines.found
    assert line["message"] == "! failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: a\nb")


def test_a_line_about_a_condition_has_the_fields_of_its_event(lines: Lines) -> None:
    conditions = Conditions()
    conditions.raise_condition("disk-full", "no space", 1)
    conditions.clear("disk-full", "no space", 2)
    conditions.add_event("damage", "a row", 3)

    found = [{name: line[name] for name in line.keys() - {"time", "node", "logger"}} for line in lines.found]
    assert found == [
        {"level": "error", "event": "condition", "code": "disk-full", "message": "no space", "state": "raised"},
        {"level": "info", "event": "condition", "code": "disk-full", "message": "no space", "state": "cleared"},
        {"level": "error", "event": "damage", "message": "a row"},
    ]


async def test_a_line_about_a_deleted_fanout_has_the_fields_of_its_event(
    autojump_clock: MockClock, lines: Lines
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/system/events"), send("/fanout/f", "x", "r"))
        assert {await client.receipt(), await client.receipt()} == {"sub-0", "r"}
        await client.send(send("/control/delete/fanout/f", ""))
        (event,) = map(json.loads, await client.messages(1))

        (line,) = [line for line in lines.found if "event" in line]
        assert event["event"] == "fanout-deleted"
        del event["at_us"]
        assert {name: line[name] for name in event} == event


def test_the_log_of_a_process_is_json_from_its_start_to_its_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qmq", "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--log-format", "json", "--until-eof"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )

    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 0
    assert {line["node"] for line in found} == {"qmq"}
    assert any("serves STOMP on" in line["message"] for line in found)


def test_the_failure_that_ends_a_process_is_json(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_text("no database" * 1000)
    command = [sys.executable, "-m", "qmq", "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run([*command, "--log-format", "json"], capture_output=True, timeout=60)

    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert (line["level"], line["node"]) == ("critical", "qmq")
    assert line["message"].startswith(f"cannot open the stores of {tmp_path}: ")


def test_a_port_that_is_in_use_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        at = f"127.0.0.1:{used.getsockname()[1]}"
        command = [sys.executable, "-m", "qmq", "serve", "--data", str(tmp_path), "--listen", at]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (
        1,
        f"qmq: cannot listen on {at}: Address already in use; another process, perhaps a node, serves there: stop it, "
        "or choose another address\n",
    )


def test_a_failure_that_is_not_expected_is_json(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    log_as_json("a", lines)
    logging.captureWarnings(False)
    failure = ValueError("why")
    sys.excepthook(ValueError, failure, None)

    (line,) = lines.found
    assert (line["level"], line["exception"]) == ("critical", "ValueError: why")


def test_the_log_has_the_address_of_the_console(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        'data = "data"\n[[stomp]]\naddress = "127.0.0.1:0"\n[[http]]\naddress = "127.0.0.1:0"\n'
    )
    command = [sys.executable, "-m", "qmq", "serve", "--config", str(tmp_path / "node.toml"), "--until-eof"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert re.search(
        r"serves HTTP on 127\.0\.0\.1:\d+; console: http://127\.0\.0\.1:[1-9]\d*/$", done.stderr, re.MULTILINE
    )
