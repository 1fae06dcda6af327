"""The lines that `qmq serve` logs."""

import logging
import sys

from qmq.cli.serve import LineFormatter


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
