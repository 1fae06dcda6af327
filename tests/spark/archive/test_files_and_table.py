"""The files of an archive, without Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import ParquetFile

from qmq.model.dots import Origin, Vector
from qmq.spark.archive import files, table
from qmq.spark.archive.files import write_parts
from qmq.spark.archive.run import archive, steps
from qmq.spark.archive.table import ArchiveError, Overtaken, begin, choice_of, commit, open_table
from qmq.spark.archive.upkeep import compact
from qmq.spark.reading.files import Files
from qmq.spark.reading.options import read_options
from qmq.spark.reading.plan import DataLoss
from qmq.spark.reading.remote import Servers
from tests.spark.connector.test_remote import JournalNode
from tests.spark.rig import A, B, batch, node, record, rows, split


def test_an_attempt_that_ends_late_does_not_touch_the_files_of_another(tmp_path: Path) -> None:
    """Spark may try a task again while a lost worker still runs it; the files of one of them are committed."""
    node(tmp_path, "a").segment(split(A, 1, 20, 5))
    options = read_options({"path": f"{tmp_path}/a", "includeHeaders": "true"})
    (part,) = Files(options).plan({}, {A: 20}, strict=True)

    one = write_parts([part], options, str(tmp_path / "table"), "run-00000")
    other = write_parts([part], options, str(tmp_path / "table"), "run-00000")

    assert [entry["rows"] for entry in (*one, *other)] == [20, 20]
    assert {entry["path"] for entry in one}.isdisjoint(entry["path"] for entry in other)


def test_big_bodies_are_written_long_before_there_are_many_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a live node may be gigabytes of a few thousand records; it comes a megabyte at a time."""
    monkeypatch.setattr(files, "BYTES_PER_GROUP", 4000)
    live = JournalNode([batch(A, number, [record(number, bytes(1000))]) for number in range(1, 21)])
    options = read_options({"servers": live.address, "includeHeaders": "true"})
    place = Servers(options)
    (part,) = place.plan({}, {A: 20}, strict=True)
    place.close()

    (entry,) = write_parts([part], options, str(tmp_path), "run-00000")

    written = ParquetFile(tmp_path / entry["path"])
    assert written.metadata.num_rows == 20 and written.num_row_groups >= 5


def test_a_node_that_is_behind_the_archive_adds_nothing_and_takes_nothing_back(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 20, 5))
    made = Run(tmp_path)
    made.add({}, {A: 20})
    node(tmp_path / "behind", "a").segment(split(A, 1, 10, 5))

    options = read_options({"path": f"{tmp_path}/behind/a"})
    done = archive(Files(options), options, made.table, made.write)

    assert (done.commits, done.vector) == (0, {A: 20})


class Run:
    """A run of the archive of one node, without Spark: workers' work is done when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.table = str(root / "table")
        self.options = read_options({"path": str(root / "a"), "includeHeaders": "true"})
        self.chosen = choice_of(self.options)

    def add(self, have: Vector, end: Vector) -> None:
        """What lies between the two, in one commit."""
        parts = Files(self.options).plan(have, end, strict=True)
        commit(self.table, have, end, self.write(parts), self.chosen)

    def write(self, parts: Any) -> list[dict[str, Any]]:
        """A file of each part and day, as Spark's workers make them."""
        return [entry for part in parts for entry in write_parts([part], self.options, self.table, "run")]

    def rows(self) -> int:
        return int(open_table(self.table).to_pyarrow_table(columns=["sequence"]).num_rows)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    node(tmp_path, "a").segment([*split(A, 1, 40, 5), *split(B, 1, 10, 5)])
    return Run(tmp_path)


def before_commit(monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Any) -> None:
    """`meanwhile` happens once, after the run has looked at the table and before it commits."""
    owner: Any = table if hasattr(table, name) else table.DeltaTable
    made, waiting = getattr(owner, name), [meanwhile]

    def late(*args: Any, **said: Any) -> Any:
        if waiting:
            waiting.pop()()
        return made(*args, **said)

    monkeypatch.setattr(owner, name, late)


def test_files_that_are_put_together_meanwhile_do_not_stop_a_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.add({}, {A: 10})
    run.add({A: 10}, {A: 20})
    before_commit(monkeypatch, "create_write_transaction", lambda: compact(run.table))

    run.add({A: 20}, {A: 40})

    assert run.rows() == 40


@pytest.mark.parametrize("begun", [True, False])
def test_of_two_runs_at_once_the_later_commit_is_refused(
    run: Run, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {A: 10} if begun else {}
    if begun:
        run.add({}, have)
    name = "create_write_transaction" if begun else "create_table_with_add_actions"
    before_commit(monkeypatch, name, lambda: run.add(have, {A: 30}))

    with pytest.raises(Overtaken, match="added nothing"):
        run.add(have, {A: 40})

    assert run.rows() == 30


def test_a_first_run_with_another_choice_that_was_quicker_is_not_mixed_with_this_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Run(tmp_path)
    other.chosen = {**other.chosen, "destinations": ["/queue/x"]}
    before_commit(monkeypatch, "create_table_with_add_actions", lambda: other.add({}, {B: 10}))

    with pytest.raises(ArchiveError, match="was started as"):
        run.add({}, {A: 40})

    assert run.rows() == 10


def test_a_first_run_of_many_commits_divides_what_is_kept_and_not_what_ever_was(tmp_path: Path) -> None:
    """The journal begins at a million: divided from 1, all but the last commit would be empty."""
    node(tmp_path, "a").segment(split(A, 1_000_001, 1_000_080, 5), {A: 1_000_000})
    options = read_options({"path": str(tmp_path / "a"), "minPartitions": "16"})
    place = Files(options)

    found = list(steps(place, None, place.available(), 4))

    assert [end[A] for end, _ in found] == [1_000_020, 1_000_040, 1_000_060, 1_000_080]
    assert all(parts for _, parts in found)


def test_what_is_dropped_while_a_first_run_makes_its_commits_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the run began, and the first commits already count."""
    journal = node(tmp_path, "a")
    paths = [journal.segment(split(A, first, first + 9, 5), {A: first - 1}) for first in range(1, 81, 10)]
    place = Files(read_options({"path": str(tmp_path / "a"), "minPartitions": "8"}))
    left = steps(place, None, place.available(), 2)
    end, _ = next(left)
    for path in paths[:5]:
        path.unlink()

    with pytest.raises(DataLoss, match=f"{A} from {end[A] + 1} to"):
        next(left)


def test_what_is_missing_when_a_first_run_begins_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes what the logs still hold, in one commit or in many."""
    journal = node(tmp_path, "a")
    paths = {first: journal.segment(split(A, first, first + 9, 5), {A: first - 1}) for first in range(1, 81, 10)}
    paths[41].unlink()
    place = Files(read_options({"path": str(tmp_path / "a"), "minPartitions": "8"}))

    made = list(steps(place, None, place.available(), 2))

    assert len(made) > 1 and made[-1][0] == {A: 80}
    assert {extent.path for _, parts in made for part in parts for extent in part.extents} == {
        str(path) for first, path in paths.items() if first != 41
    }


def test_a_first_run_says_what_no_node_had_any_more_and_later_runs_say_nothing(tmp_path: Path) -> None:
    node(tmp_path, "a").segment([*split(A, 11, 20, 5), *split(A, 31, 40, 5)], {A: 10})
    node(tmp_path, "b").segment(split(B, 1, 5, 5))
    made = Run(tmp_path)
    options = read_options({"path": f"{tmp_path}/a,{tmp_path}/b"})

    first, second = (archive(Files(options), options, made.table, made.write) for _ in range(2))

    assert (first.rows, first.missing) == (25, f"{A} from 1 to 10, {A} from 21 to 30")
    assert (second.rows, second.missing) == (0, "")


def test_a_table_of_which_no_origin_is_known_any_more_is_no_first_run(run: Run) -> None:
    """All nodes were started again, long ago, and their journals have dropped how they began."""
    run.add({}, {A: 40})
    anew = Origin("a", 0xA2)
    node(Path(run.table).parent / "later", "a").segment(split(anew, 101, 120, 5), {anew: 100})
    place = Files(read_options({"path": str(Path(run.table).parent / "later" / "a")}))
    have = place.available()

    begun = begin(run.table, have, run.chosen)
    with pytest.raises(DataLoss, match=f"{anew} from 1 to 100"):
        list(steps(place, begun, have, 512))


def test_a_first_run_of_many_commits_takes_what_live_nodes_have_and_notes_what_they_drop_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has 31 to 40, which only reading shows."""
    live = JournalNode([*split(A, 11, 30, 5), *split(A, 41, 90, 5)], base={A: 10})
    options = read_options({"servers": live.address, "minPartitions": "8"})
    place = Servers(options)

    made = list(steps(place, None, place.available(), 2))
    found = [row["sequence"] for _, parts in made for row in rows(parts, options, ["sequence"])]
    live.drop({A: 60})
    place.close()

    assert len(made) > 1 and sorted(found) == [*range(11, 31), *range(41, 91)]
    with pytest.raises(DataLoss, match=f"{A} from"):
        rows([part for _, parts in made for part in parts], options, ["sequence"])
