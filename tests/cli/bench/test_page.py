"""The benchmarks' pages: which run is shown, what is kept, and how the pages are changed."""

import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import figures, growth, others, plots, recovery, run, tables
from benchmarks.figures import Facts, Store
from benchmarks.page import page_with, shown
from benchmarks.rows import COMPARED, GROWTH, SPEED, Row, held
from qmq.address import Address
from qmq.bench import many as workloads_of_many
from qmq.cli import main

SPEED_ROWS = [row for part in SPEED.values() for row in part]
ALL_ROWS = [row for full in (False, True) for part in run.parts_of(full).values() for row in part]

FACTS: Facts = {
    "per_second": 1234567,
    "drain_per_second": 50_000,
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
    "machine": "2 cores, shared",
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "figures.json")


@pytest.fixture(autouse=True)
def plots_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "PLOTS", tmp_path / "plots")


def filled(store: Store, build: str = "pure") -> Store:
    for row in SPEED_ROWS:
        store.put(build, row.command, [FACTS])
    return store


def test_the_run_in_the_middle_of_the_best_three_is_shown_as_a_whole(store: Store) -> None:
    runs: list[Facts] = [{"per_second": rate, "p99_us": rate, "run": rate} for rate in (300, 100, 200, 500, 400)]
    store.put("pure", "five", runs)
    store.put("pure", "three", runs[:3])
    store.put("pure", "one", runs[:1])

    assert store.middle("pure", "five", "per_second", True) == {"per_second": 400, "p99_us": 400, "run": 400}
    assert store.middle("pure", "five", "p99_us", False) == {"per_second": 200, "p99_us": 200, "run": 200}
    assert store.middle("pure", "three", "per_second", True) == runs[2]
    assert store.middle("pure", "one", "per_second", True) == runs[0]
    assert store.middle("compiled", "one", "per_second", True) is None


def test_what_is_measured_again_replaces_its_own_runs_only(store: Store, tmp_path: Path) -> None:
    store.put("pure", "topic", [{"per_second": 1}])
    store.put("pure", "queue", [{"per_second": 2}])
    store.put("compiled", "topic", [{"per_second": 3}])

    store.put("pure", "topic", [{"per_second": 4}, {"per_second": 5}])

    again = Store(tmp_path / "figures.json")
    assert again.runs("pure", "topic") == [{"per_second": 4}, {"per_second": 5}]
    assert again.runs("pure", "queue") == [{"per_second": 2}]
    assert again.runs("compiled", "topic") == [{"per_second": 3}]


def test_a_dry_run_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "result_of", lambda command: FACTS)
    written: list[object] = []
    monkeypatch.setattr(run, "write_pages", written.append)
    monkeypatch.setattr(figures, "STORE", tmp_path / "none.json")

    run.main(["topic", "--dry", "--rounds", "1"])

    assert written == []
    assert not (tmp_path / "none.json").exists()


def test_a_part_is_measured_round_by_round_and_kept(store: Store) -> None:
    order: list[str] = []

    def once(row: Row) -> Facts:
        order.append(row.arguments)
        return {"per_second": len(order)}

    run.measure(store, SPEED["topic"], 2, once, "pure")

    assert order == ["topic", "fan-out", "topic", "fan-out"]
    assert store.runs("pure", "qmq bench fan-out --serve") == [{"per_second": 2}, {"per_second": 4}]


def test_a_part_that_is_not_known_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["walk"])

    assert "there is no part 'walk'" in capsys.readouterr().err


def test_every_row_has_a_line_with_both_builds(store: Store) -> None:
    filled(store)
    store.put("compiled", SPEED_ROWS[0].command, [{**FACTS, "per_second": 2000000}])

    lines = tables.speed_section(store)

    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == len(SPEED_ROWS) + 1
    assert {line.count("|") for line in lines if line.startswith("|")} == {10}
    assert "| 1,234,567 | 2,000,000 | messages/s | ≥ 300,000 / ≥ 1,000,000 | 0.31 / 0.31 |" in table[1]
    assert "| 1,234,567 | – |" in table[2]
    assert lines[0] == "Machine: 2 cores, shared."
    assert lines[2].startswith("- pure: QMQ 1")
    assert lines[3].startswith("- compiled: QMQ 1")


def test_what_was_not_measured_has_no_line(store: Store) -> None:
    store.put("pure", SPEED["queue"][0].command, [FACTS])

    assert len([line for line in tables.speed_section(store) if line.startswith("| ")]) == 2
    assert tables.many_section(store) == []
    assert tables.others_section(Store(Path("none"))) == []


def test_a_row_of_one_phase_shows_the_processor_time_of_that_phase(store: Store) -> None:
    row = Row("drained", "backlog", "drain_per_second", "messages/s", phase="drain_")
    store.put(
        "pure",
        row.command,
        [{"drain_per_second": 50_000, "drain_server_cpu_us_per_message": 12.5, "drain_server_cpu_share": 0.5}],
    )

    (*_, line) = tables.rows_table(store, [row])

    assert line == "| drained | `qmq bench backlog --serve` | 50,000 | – | messages/s |  | 12.5 | 0.5 | – |"


def test_brokers_that_were_measured_stand_beside_each_other(store: Store) -> None:
    filled(store)
    store.put("RabbitMQ", COMPARED[0].command, [{**FACTS, "per_second": 20_000, "broker": "3.10.8"}])

    lines = tables.others_section(store)

    assert lines[0] == "| what | load | QMQ, pure | RabbitMQ |"
    assert lines[2].endswith("| 1,234,567 (0.31 µs) | 20,000 (0.31 µs) |")
    assert any("**RabbitMQ**: 3.10.8" in line for line in lines)
    assert any("**ActiveMQ**: not measured here" in line for line in lines)


def test_a_broker_that_is_not_installed_is_left_out_with_a_line(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "result_of", lambda command: FACTS)
    absent = [
        others.Other("RabbitMQ", "rabbitmq-server", "rabbitmq", "", "", lambda: False, others._prepare_rabbitmq),
    ]
    monkeypatch.setattr(run, "OTHERS", absent)

    run.measure_others(store, 1, 1.0, "2 cores")

    assert "RabbitMQ is not installed" in capsys.readouterr().out
    assert store.runs(run.BUILD, COMPARED[0].command)
    assert not store.runs("RabbitMQ", COMPARED[0].command)


def test_another_broker_gets_the_same_load_in_its_own_words() -> None:
    other = next(other for other in others.OTHERS if other.name == "RabbitMQ")

    command = run.command_at(COMPARED[2], 5.0, other, Address("127.0.0.1", 5), 7, (0, 1))

    assert command[3:6] == ["bench", "queue", "--memory"]
    assert command[6:10] == ["--server", "127.0.0.1:5", "--dialect", "rabbitmq"]
    assert "--serve" not in command


@pytest.mark.parametrize("other", others.OTHERS, ids=lambda other: other.name)
def test_other_brokers_listen_on_loopback_with_data_of_their_own(other: others.Other, tmp_path: Path) -> None:
    other.prepare(tmp_path, Address("127.0.0.1", 61699))

    written = "".join(file.read_text("utf-8") for file in tmp_path.iterdir() if file.is_file())
    assert "127.0.0.1:61699" in written


def test_a_program_that_ends_at_once_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    other = others.Other(
        "Nobody",
        "none",
        "generic",
        "",
        "",
        lambda: True,
        lambda place, address: ([sys.executable, "-c", "raise SystemExit('no luck today')"], {}),
    )

    with pytest.raises(OSError, match="no luck today"), others.started(other, None, tmp_path):
        pass


def test_counted_work_has_a_table_and_a_plot_for_each_thing_that_grows(store: Store, tmp_path: Path) -> None:
    for case in growth.CASES:
        store.put(tables.COUNTS, case.action, [{"n": n, "steps": 100, "bytes": 50} for n in (1, 10)])

    lines = tables.counted_section(store)

    headings = [line for line in lines if line.startswith("### ")]
    assert len(headings) == len({case.axis for case in growth.CASES}) == len(list((tmp_path / "plots").iterdir()))
    assert len([line for line in lines if "| 1 → 10 |" in line]) == len(growth.CASES)


def test_measured_growth_has_a_point_for_each_n_that_was_measured(store: Store, tmp_path: Path) -> None:
    (line,) = GROWTH["growth-connections"][1]
    for n, cpu in ((1, 1.5), (100, 1.75)):
        store.put("pure", line.row(n).command, [{line.figure: cpu}])

    lines = tables.growth_section(store)

    assert any(line.endswith("| 1: 1.5; 100: 1.75 |") for line in lines)
    assert (tmp_path / "plots" / "growth-connections.svg").exists()


def test_measured_growth_has_a_row_for_each_line(store: Store) -> None:
    lines = [line for _, lines in GROWTH.values() for line in lines]
    for line in lines:
        store.put("pure", line.row(line.sizes[0]).command, [{each.figure: 1.5 for each in lines}])

    shown = tables.growth_section(store)

    assert sum(row.endswith(": 1.5 |") for row in shown) == len(lines)


def test_large_bodies_are_sent_fewer_at_once() -> None:
    topic = GROWTH["growth-body"][1][0]

    assert topic.row(100).arguments == "topic --body 100"
    assert topic.row(10_000_000).arguments == "topic --body 10000000 --outstanding 10"


def test_the_full_rows_are_as_many_as_the_aims_are_about() -> None:
    short, full = ({row.command for part in held(full).values() for row in part} for full in (False, True))

    assert "qmq bench backlog --count 5000000 --serve" in full
    assert "python -m benchmarks.recovery --count 5000000" in full
    assert "qmq bench queues --queues 1000000 --serve" in full
    assert not any("000000" in command for command in short)


def test_a_short_run_has_no_aims_that_are_about_the_full_number() -> None:
    growing = ("server_rss_highest_mib", "server_rss_growth_mib", "recovery_seconds")

    def aims(full: bool) -> set[str]:
        return {row.aims[0] for part in held(full).values() for row in part if row.figure in growing}

    assert aims(False) == {""}
    assert aims(True) == {"≤ 300", "≤ 250", "≤ 100", "≤ 10"}


def test_workloads_by_number_report_no_seconds() -> None:
    assert all(row.has_length for row in SPEED_ROWS if row.arguments != "drain")
    assert not any(row.has_length for part in held(False).values() for row in part)


def test_a_killed_node_comes_back_with_its_backlog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workloads_of_many, "SETTLE_SECONDS", 0)
    before = os.sched_getaffinity(0)

    try:
        recovery.main(["--count", "3000", "--serve-in", str(tmp_path)])
    finally:
        os.sched_setaffinity(0, before)

    facts = json.loads(capsys.readouterr().out)
    assert (facts["missing"], facts["extra"], facts["errors"]) == (0, 0, 0)
    assert 0 < facts["recovery_seconds"] <= facts["first_message_seconds"]
    assert list(tmp_path.iterdir()) == []


PAGE = "before\n<!-- figures of x: written by y -->\nold\n<!-- end of figures of x -->\nafter\n"


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    once = page_with(PAGE, "x", ["new"])

    assert once == PAGE.replace("old\n", "\nnew\n\n")
    assert page_with(once, "x", ["new"]) == once


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="figures of z"):
        page_with(PAGE, "z", ["new"])


@pytest.mark.parametrize(
    ("page", "section"),
    [
        (tables.PAGE, "speed"),
        (tables.PAGE, "many"),
        (tables.PAGE, "others"),
        (tables.PAGE, "spark"),
        (tables.GROWTH_PAGE, "counted work"),
        (tables.GROWTH_PAGE, "measured growth"),
    ],
)
def test_the_pages_have_the_marks(page: Path, section: str) -> None:
    assert page_with(page.read_text("utf-8"), section, ["new"])


def test_what_is_kept_in_the_tree_makes_all_sections() -> None:
    kept = Store()

    for section in (
        tables.speed_section,
        tables.many_section,
        tables.others_section,
        tables.counted_section,
        tables.growth_section,
    ):
        section(kept)


ROWS = {row.command: row for row in ALL_ROWS if row.command.startswith("qmq bench")}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.arguments)
def test_every_row_is_a_command_that_qmq_bench_takes(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("throwaway", "launch"):
        monkeypatch.setattr(f"qmq.cli.{module}.PROGRAM", ("false",))

    result = CliRunner().invoke(main, ["bench", *row.arguments.split(), "--serve"])

    assert result.exit_code == 1, result.output  # 2 would be an error in the options
    assert "ended with exit code 1" in result.stderr


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.31, "0.31"), (45.5, "45.5"), (0.0, "0"), (123.4, "123"), (1.0, "1")]
)
def test_numbers_are_shown_for_people(value: float, text: str) -> None:
    assert shown(value) == text


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 5.0), (1000.0, 5.0)], [(1.0, 0.5), (10.0, 7.0), (1e6, 3e4)]])
def test_every_point_of_a_line_is_inside_the_plot(points: Sequence[tuple[float, float]], logarithmic: bool) -> None:
    picture = drawn(plots.lines("a <title>", "n", "µs", {"one & two": points}, logarithmic=logarithmic))

    dots = [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in picture.iter(f"{SVG}circle")]
    assert len(dots) == len(points)
    assert all(plots.LEFT <= x <= plots.WIDTH - plots.RIGHT for x, _ in dots)
    assert all(plots.TOP <= y <= plots.HEIGHT - plots.BOTTOM for _, y in dots)
    assert "one & two" in {text.text for text in picture.iter(f"{SVG}text")}


def test_a_higher_bar_is_a_larger_figure_and_an_absent_one_is_no_bar() -> None:
    picture = drawn(plots.bars("rates", "per second", {"a": {"x": 10.0, "y": 20.0}, "b": {"y": 5.0}}))

    bars = [float(bar.get("height", 0)) for bar in picture.iter(f"{SVG}rect") if bar.get("height") != "10"]
    assert len(bars) == 3
    assert bars[1] > bars[0] > bars[2] > 0


def test_nought_has_no_place_on_a_logarithmic_axis() -> None:
    with pytest.raises(ValueError, match="above nought"):
        plots.lines("t", "n", "µs", {"a": [(0.0, 1.0)]})
    with pytest.raises(ValueError, match="needs values"):
        plots.bars("t", "n", {})


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.04"), (950.0, "950"), (1500.0, "1.5 k"), (2e6, "2 M"), (3.21e9, "3.21 G")]
)
def test_numbers_on_an_axis_are_short(value: float, text: str) -> None:
    assert plots.short(value) == text
