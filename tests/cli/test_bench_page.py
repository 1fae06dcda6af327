"""benchmarks/run.py: which run is shown, and how the page is changed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.run import BEGIN, END, PAGE, ROWS, Facts, Row, figures, median, page_with, shown
from qmq.cli import main

FACTS: Facts = {
    "per_second": 1234567,
    "server_cpu_us_per_message": 0.31,
    "server_cpu_share": 1.0,
    "generator_cpu_share": 0.25,
    "p50_us": 150,
    "p99_us": 900,
    "generator_lag_p99_us": 80,
    "server_rss_mib": 45.5,
    "wakeups_per_second": 0.0,
    "bytes_per_connection": 8323,
    "qmq": "1",
    "python": "3",
}


def test_the_run_in_the_middle_of_the_best_three_is_shown_as_a_whole() -> None:
    runs: list[Facts] = [{"per_second": rate, "p99_us": rate, "run": rate} for rate in (300, 100, 200, 500, 400)]
    rate_row, latency_row = ROWS[0], next(row for row in ROWS if row.figure == "p99_us")

    assert median(runs, rate_row) == {"per_second": 400, "p99_us": 400, "run": 400}
    assert median(runs, latency_row)["run"] == 200
    assert median(runs[:3], rate_row)["run"] == 200
    assert median(runs[:1], rate_row)["run"] == 300


def test_every_row_has_a_line() -> None:
    lines = figures({row.arguments: [FACTS] for row in ROWS}, "2 cores")

    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == len(ROWS) + 1
    assert {line.count("|") for line in lines if line.startswith("|")} == {9}
    assert "| 1,234,567 | messages/s | ≥ 200,000 | 0.31 | 1 | 0.25 |" in table[1]


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    once = page_with(page, ["new"])

    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert page_with(once, ["new"]) == once


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="figures"):
        page_with("nothing here", ["new"])


def test_the_page_has_the_marks() -> None:
    assert page_with(Path(PAGE).read_text("utf-8"), ["new"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_a_command_that_qmq_bench_takes(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = row.arguments
    monkeypatch.setattr("qmq.cli.bench.PROGRAM", ("false",))

    result = CliRunner().invoke(main, ["bench", *arguments.split(), "--serve"])

    assert result.exit_code == 1, result.output  # 2 would be a mistake in the options
    assert "the throwaway node ended" in result.stderr


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.31, "0.31"), (45.5, "45.5"), (0.0, "0"), (123.4, "123"), (1.0, "1")]
)
def test_numbers_are_shown_for_people(value: float, text: str) -> None:
    assert shown(value) == text
