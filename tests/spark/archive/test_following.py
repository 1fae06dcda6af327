"""Runs one after the other: what is waited for, and what ends them. No run is real here."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from qmq.cli.pipeline.archiver import serve
from qmq.errors import CorruptLog, NotConnected
from qmq.spark.archive.following import follow
from qmq.spark.archive.run import Archived
from qmq.spark.archive.table import ArchiveError, Overtaken
from qmq.spark.reading.plan import DataLoss


def following(turns: list[Any], *, stops_after: int | None = None) -> tuple[list[str], list[float]]:
    """What `follow` reports and how long it pauses, if runs end as `turns` say, and the last of them is the end, or the
    pause with this number.
    """
    reports: list[str] = []
    pauses: list[float] = []

    def turn() -> Archived:
        now = turns.pop(0)
        if isinstance(now, Exception):
            raise now
        assert isinstance(now, Archived)
        return now

    def pause(seconds: float) -> bool:
        pauses.append(round(seconds))
        return len(pauses) == stops_after

    follow(
        turn,
        every_seconds=60.0,
        on_run=lambda _: bool(turns),
        failed=lambda error, seconds: reports.append(f"{error}: {seconds:g}"),
        pause=pause,
    )
    return reports, pauses


def test_a_service_goes_on_when_no_node_answers_or_another_run_was_quicker() -> None:
    away: list[Any] = [NotConnected("no answer")] * 100

    reports, pauses = following([*away, Archived(rows=1), Overtaken("quicker"), Archived(rows=2)])

    assert reports == [*["no answer: 60"] * 100, "quicker: 60"] and set(pauses) == {60}


@pytest.mark.parametrize(
    "error",
    [OSError(28, "no space"), DeltaError("not written"), CorruptLog("bits"), ArchiveError("another"), DataLoss("gone")],
    ids=lambda error: type(error).__name__,
)
def test_a_service_goes_on_after_other_failures_with_growing_pauses(error: Exception) -> None:
    failures: list[Any] = [error] * 9

    reports, pauses = following([*failures, Archived(), *failures, Archived()])

    assert len(reports) == 2 * len(failures) and reports[0].endswith(": 60")
    assert pauses[:7] == [60, 120, 240, 480, 600, 600, 600] and pauses[len(failures) + 1] == 60


def test_a_stop_during_a_pause_ends_it_also_while_runs_fail() -> None:
    away: list[Any] = [NotConnected("no answer")] * 5

    reports, _ = following(away, stops_after=2)

    assert len(reports) == 2


def test_no_error_of_a_run_or_of_what_is_shown_ends_the_service() -> None:
    stop = threading.Event()
    failures: list[str] = []
    turns: list[Any] = [MemoryError("full"), AssertionError(), ValueError("a bug"), "run", OSError(5, "gone"), "run"]

    def run_once() -> Any:
        turn = turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def ran(_: Any) -> None:
        if turns:
            raise OSError(28, "no space to print")
        stop.set()

    reporter = SimpleNamespace(ran=ran, failed=lambda error, pause: failures.append(type(error).__name__))
    runs: Any = SimpleNamespace(run=run_once, is_stopping=True, keep=None, register=None)
    shown: Any = reporter

    serve(runs, shown, 1.0, lambda seconds: stop.is_set())

    assert failures == ["MemoryError", "AssertionError", "ValueError", "OSError", "OSError"]
