"""Small files are put together, sorted, while others add to the table."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from qmq.spark.archive import archiver as archivers
from qmq.spark.archive import table as tables
from qmq.spark.archive import upkeep
from qmq.spark.archive.archiver import Archiver
from qmq.spark.archive.table import LiveFile, Overtaken, live_files, open_table, replace, table_vector
from qmq.spark.archive.upkeep import STEP_BYTES, Rewritten, compact, compact_step, due, joined
from qmq.spark.reading.options import read_options
from tests.spark.archive.test_files_and_table import Run, before_commit
from tests.spark.rig import A, B, batch, messages, node, record


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four commits of one day: ten messages each, of three queues by turns."""
    queues = [batch(A, n, messages(n, n, f"/queue/{'cab'[n % 3]}")) for n in range(1, 41)]
    node(tmp_path, "a").segment(queues)
    made = Run(tmp_path)
    for end in range(10, 41, 10):
        made.add({A: end - 10} if end > 10 else {}, {A: end})
    return made


def entry(name: str, size: int, day: str = "2026-01-01", at: int = 0) -> LiveFile:
    return LiveFile(f"day={day}/{name}", day, size, at)


def rows(run: Run) -> list[tuple[str, int]]:
    """Destination and sequence, as the files have them."""
    found: list[tuple[str, int]] = []
    for file in live_files(open_table(run.table)):
        with pq.ParquetFile(Path(run.table) / file.path) as opened:
            columns = opened.read(columns=["destination", "sequence"]).to_pydict()
        found += zip(columns["destination"], columns["sequence"], strict=True)
    return found


def test_files_become_one_sorted_one_with_the_same_rows(run: Run) -> None:
    before = rows(run)

    done = compact(run.table)

    assert done == Rewritten(4, 1) and len(live_files(open_table(run.table))) == 1
    assert rows(run) == sorted(before) and len(before) == 40
    assert table_vector(open_table(run.table), [A]) == {A: 40}, "the next run begins where the last one ended"
    assert compact(run.table) == Rewritten(), "nothing is left to do"


def test_a_reader_of_one_queue_of_many_skips_most_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "ROWS_PER_GROUP", 20)
    made = [record(n, b"x", f"/queue/{n % 50:02}") for n in range(1, 1001)]
    node(tmp_path, "a").segment([batch(A, 1, made)])
    run = Run(tmp_path)
    run.add({}, {A: 1000})

    compact(run.table)

    (file,) = live_files(open_table(run.table))
    with pq.ParquetFile(Path(run.table) / file.path) as opened:
        groups = [opened.metadata.row_group(n) for n in range(opened.num_row_groups)]
        place = opened.schema_arrow.get_field_index("destination")
    bounds = [(one.column(place).statistics.min, one.column(place).statistics.max) for one in groups]
    assert len(bounds) == 50 and [low <= "/queue/07" <= high for low, high in bounds].count(True) == 1


def test_rows_that_are_too_many_to_be_sorted_at_once_are_sorted_in_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "RUN_BYTES", 1)
    monkeypatch.setattr(upkeep, "ROWS_PER_GROUP", 5)

    assert compact(run.table, target_bytes=1) == Rewritten(4, 8)
    assert sorted(sequence for _, sequence in rows(run)) == [*range(1, 41)]


def test_what_another_run_adds_meanwhile_stays(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node(tmp_path / "more", "a").segment([batch(B, 1, messages(1, 5))])
    other = Run(tmp_path / "more")
    other.table = run.table
    before_commit(monkeypatch, "create_write_transaction", lambda: other.add({}, {B: 5}))

    assert compact(run.table) == Rewritten(4, 1)
    assert len(rows(run)) == 45


def test_of_two_that_rewrite_the_same_files_one_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before_commit(monkeypatch, "create_write_transaction", lambda: compact(run.table))

    with pytest.raises(Overtaken, match="has changed nothing"):
        compact(run.table)

    assert len(rows(run)) == 40


def test_readers_of_changes_are_not_shown_what_is_only_rewritten(run: Run) -> None:
    compact(run.table)

    newest = sorted((Path(run.table) / "_delta_log").glob("*.json"))[-1].read_text()
    assert newest.count('"dataChange":false') == 5 and '"dataChange":true' not in newest


def test_files_of_another_version_are_not_replaced(run: Run) -> None:
    files = live_files(open_table(run.table))
    compact(run.table)

    with pytest.raises(Overtaken):
        replace(run.table, files, [])


def test_the_newest_day_waits_for_enough_files_and_an_earlier_one_does_not() -> None:
    today = [entry(str(n), 10, "2026-01-02", n) for n in range(3)]
    late = entry("late", 10, "2026-01-01")
    done = entry("sorted-1", 1000, "2026-01-01")

    assert list(due({"2026-01-01": [done, late], "2026-01-02": today}, 4)) == [[late]]
    assert list(due({"2026-01-01": [done], "2026-01-02": today}, 3)) == [today]


def test_each_row_is_rewritten_a_few_times_however_long_the_day_is() -> None:
    """A thousand times fifty new files: each time with those that weigh no more than what comes to them."""
    runs: list[LiveFile] = []
    rewritten = 0
    for turn in range(1000):
        chosen = joined([entry(str(n), 20, at=n) for n in range(50)], runs)
        weight = sum(file.size for file in chosen)
        rewritten += weight
        runs = [one for one in runs if one not in chosen] + [entry(f"sorted-{turn}", weight)]

    assert rewritten / (1000 * 50 * 20) < 8 and len(runs) < 11


def test_one_step_is_bounded_and_the_oldest_files_come_first() -> None:
    files = [entry(str(n), STEP_BYTES // 3, at=-n) for n in range(10)]
    huge = entry("huge", 10 * STEP_BYTES, at=-100)

    assert [file.path[-1] for file in joined(files, [])] == ["9", "8", "7"]
    assert joined([huge, *files], []) == [huge]
    assert joined(files[:1], [entry("sorted-1", STEP_BYTES)]) == files[:1]


def test_a_service_puts_files_together_after_so_many_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archivers, "COMMITS_PER_UPKEEP", 4)
    journal = node(tmp_path, "a")
    table = str(tmp_path / "table")
    archiver = Archiver(read_options({"path": str(tmp_path / "a")}), table, every_seconds=1.0)
    most = 0
    for n in range(1, 31):
        journal.segment([batch(A, n, messages(n, n))], {A: n - 1} if n > 1 else {})
        archiver.run()
        archiver.keep()
        most = max(most, len(live_files(open_table(table))))

    assert most <= 10
    found = open_table(table).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist()
    assert sorted(found) == [*range(1, 31)]


def test_a_service_that_was_started_again_and_again_puts_files_together_as_well(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archivers, "COMMITS_PER_UPKEEP", 4)

    archiver = Archiver(read_options({"path": str(tmp_path / "a")}), run.table, every_seconds=1.0)

    assert archiver.keep() == Rewritten(4, 1)


def test_unused_files_are_removed_once_a_day(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vacuumed: list[str] = []
    now = [0.0]
    monkeypatch.setattr(archivers, "vacuum", vacuumed.append)
    monkeypatch.setattr(archivers.time, "monotonic", lambda: now[0])
    archiver = Archiver(read_options({"path": str(tmp_path / "a")}), run.table, every_seconds=1.0)

    for hours in (0, 1, 23, 24, 25):
        now[0] = hours * 3600.0
        archiver._commits_left = 0
        archiver.keep()

    assert vacuumed == [run.table] * 2


def test_a_step_does_nothing_where_nothing_is_due(run: Run) -> None:
    assert compact_step(run.table, 50) == Rewritten()
    assert compact_step(run.table, 4) == Rewritten(4, 1)
    assert compact_step(run.table, 4) == Rewritten()


def test_versions_are_kept_for_a_week(run: Run) -> None:
    configuration: Any = open_table(run.table).metadata().configuration

    assert configuration["delta.logRetentionDuration"] == tables.LOG_RETENTION
