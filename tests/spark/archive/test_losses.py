"""What a table lacks of what it goes over is in its commits, once, until it is found."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from qmq.spark.archive import run as runs
from qmq.spark.archive.archiver import Archiver, standing
from qmq.spark.archive.erase import erase
from qmq.spark.archive.losses import DAMAGED, DROPPED, TableLoss, losses_from_json, losses_text, losses_to_json
from qmq.spark.archive.run import Archived
from qmq.spark.archive.table import LOST, Overtaken, lost_of, open_table
from qmq.spark.archive.upkeep import compact, vacuum
from qmq.spark.reading.options import Options, read_options
from qmq.spark.typed.job import tables
from tests.spark.connector.test_remote import JournalNode
from tests.spark.rig import A, batch, fanout, messages, node, rest, split


def at_nodes(root: Path, *names: str, **said: str) -> Options:
    return read_options({"path": ",".join(str(root / name) for name in names), **said})


def archived(options: Options, root: Path) -> Archived:
    with closing(Archiver(options, str(root / "table"), every_seconds=1.0)) as archiver:
        return archiver.run()


def sequences(root: Path) -> list[int]:
    found: list[int] = open_table(str(root / "table")).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist()
    return sorted(found)


def lost(root: Path) -> list[tuple[int, int, str]]:
    return [(one.first, one.last, one.why) for one in lost_of(open_table(str(root / "table")))]


@pytest.fixture
def holes(tmp_path: Path) -> Path:
    """Of node a: 11 to 20 and 31 to 40, archived. Node b, which was away, has more of it."""
    node(tmp_path, "a").segment([*split(A, 11, 20, 5), *split(A, 31, 40, 5)], {A: 10})
    node(tmp_path, "b").segment(split(A, 1, 40, 5))
    archived(at_nodes(tmp_path, "a"), tmp_path)
    return tmp_path


def test_what_a_first_run_lacks_is_in_its_commit_with_the_reason_and_the_time(holes: Path) -> None:
    assert lost(holes) == [(1, 10, DROPPED), (21, 30, DAMAGED)]
    said = json.loads(DeltaTable(holes / "table").history(1)[0][LOST])
    assert [(one["origin"], one["first"], one["partly"]) for one in said] == [(str(A), 1, False), (str(A), 21, False)]
    assert all(one["at"].startswith("20") for one in said)
    shown = standing(at_nodes(holes, "a"), str(holes / "table"))
    assert [(one["first"], one["last"]) for one in shown["lost"]] == [(1, 10), (21, 30)]


def test_later_runs_and_other_archivers_note_nothing_twice(holes: Path) -> None:
    before = lost(holes)
    node(holes, "more").segment(split(A, 41, 50, 5), {A: 40})

    done = [archived(at_nodes(holes, "a", "more"), holes) for _ in range(2)]

    assert [(one.rows, one.missing, one.found) for one in done] == [(10, "", ""), (0, "", "")]
    assert lost(holes) == before


def test_what_a_later_run_goes_on_without_is_added(holes: Path) -> None:
    node(holes, "later").segment(split(A, 51, 60, 5), {A: 50})

    done = archived(at_nodes(holes, "later", failOnDataLoss="false"), holes)

    assert done.missing == f"{A} from 41 to 50"
    assert lost(holes) == [(1, 10, DROPPED), (21, 30, DAMAGED), (41, 50, DROPPED)]


def test_what_a_node_has_after_all_is_added_once_and_taken_from_the_list(holes: Path) -> None:
    done = [archived(at_nodes(holes, "a", "b"), holes) for _ in range(2)]

    assert sequences(holes) == [*range(1, 41)] and lost(holes) == []
    assert [(one.rows, one.missing) for one in done] == [(20, ""), (0, "")]
    assert done[0].found == f"{A} from 1 to 10, {A} from 21 to 30"


def test_a_part_that_is_found_leaves_the_others(holes: Path) -> None:
    node(holes, "some").segment([*split(A, 6, 10, 5), *split(A, 21, 25, 5)], {A: 5})

    archived(at_nodes(holes, "a", "some"), holes)

    assert sequences(holes) == [*range(6, 26), *range(31, 41)]
    assert sorted(lost(holes)) == [(1, 5, DROPPED), (26, 30, DAMAGED)]


def test_of_two_archivers_that_find_it_one_adds_it(holes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, waiting = runs._ArchiveRun.look_again, [lambda: archived(at_nodes(holes, "b"), holes)]

    def late(*args: Any) -> None:
        if waiting:
            waiting.pop()()
        looked(*args)

    monkeypatch.setattr(runs._ArchiveRun, "look_again", late)

    with pytest.raises(Overtaken):
        archived(at_nodes(holes, "b"), holes)
    assert sequences(holes) == [*range(1, 41)] and lost(holes) == []


def test_what_only_reading_shows_of_live_nodes_is_noted_once_and_found_later(tmp_path: Path) -> None:
    live = JournalNode([*split(A, 11, 30, 5), *split(A, 41, 60, 5)], base={A: 10})
    options = read_options({"servers": live.address})

    done = [archived(options, tmp_path) for _ in range(2)]

    assert done[0].missing == f"{A} from 1 to 10, {A} from 31 to 40" and done[1].missing == ""
    assert [span[:2] for span in lost(tmp_path)] == [(1, 10), (31, 40)]
    whole = JournalNode(split(A, 11, 60, 5), base={A: 10})
    assert archived(read_options({"servers": f"{live.address},{whole.address}"}), tmp_path).rows == 10
    assert [span[:2] for span in lost(tmp_path)] == [(1, 10)] and sequences(tmp_path) == [*range(11, 61)]


def test_a_node_that_did_not_answer_is_the_reason(tmp_path: Path) -> None:
    live, away = JournalNode(split(A, 11, 30, 5), base={A: 10}), JournalNode([])
    away.close()

    archived(read_options({"servers": f"{live.address},{away.address}"}), tmp_path)

    assert lost(tmp_path) == [(1, 10, f"no answer from {away.address}")]


def test_a_range_of_which_a_fanout_log_had_some_is_not_read_again(tmp_path: Path) -> None:
    """Otherwise those messages would come twice."""
    node(tmp_path, "a").segment(split(A, 11, 20, 5), {A: 10})
    fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 3, messages(3, 6, "/fanout/f"))])
    archived(at_nodes(tmp_path, "a"), tmp_path)
    node(tmp_path, "b").segment([batch(A, 1, messages(1, 10, "/fanout/f")), *split(A, 11, 20, 5)])

    archived(at_nodes(tmp_path, "a", "b"), tmp_path)

    assert sequences(tmp_path) == [*range(1, 21)]
    assert [span[:2] for span in lost(tmp_path)] == [(3, 6)]
    assert [one.partly for one in lost_of(open_table(str(tmp_path / "table")))] == [True]


def test_a_range_snapshot_has_some_messages_of_a_range_and_is_not_read_again(tmp_path: Path) -> None:
    node(tmp_path, "a").segment([rest(A, 1, 10, messages(10, 10)), *split(A, 11, 20, 5)])
    archived(at_nodes(tmp_path, "a"), tmp_path)
    node(tmp_path, "b").segment(split(A, 1, 20, 5))

    archived(at_nodes(tmp_path, "a", "b"), tmp_path)

    assert sequences(tmp_path) == [*range(10, 21)]
    assert [(one.first, one.last, one.partly) for one in lost_of(open_table(str(tmp_path / "table")))] == [
        (1, 10, True)
    ]


def test_the_list_is_carried_by_every_commit_that_is_no_run(holes: Path) -> None:
    before, table = lost(holes), str(holes / "table")

    compact(table)
    assert LOST in DeltaTable(table).history(1)[0]
    erase(table, "sequence = 11")
    vacuum(table)

    assert lost(holes) == before
    archived(at_nodes(holes, "a", "b"), holes)
    assert sequences(holes) == [*range(1, 11), *range(12, 41)], "what is erased does not come back"


def test_a_typed_table_has_its_list(holes: Path) -> None:
    table = str(holes / "typed")

    first, second = (tables(at_nodes(holes, *names), table).done for names in (["a"], ["a", "b"]))

    assert (first.rows, first.missing) == (20, f"{A} from 1 to 10, {A} from 21 to 30")
    assert (second.rows, second.found) == (20, first.missing) and lost_of(open_table(table)) == ()


def test_a_range_goes_through_a_commit_as_it_was() -> None:
    one = TableLoss(str(A), 1, 10, DROPPED, "2026-11-30T16:00:00+00:00", partly=True)

    assert losses_from_json(losses_to_json((one,))) == (one,)
    assert losses_from_json('[{"origin": "a-1", "first": 1, "last": 2, "why": "x", "at": "y", "later": 3}]')
    assert losses_text((one,) * 9).endswith(f"{A} from 1 to 10 ({DROPPED}, 2026-11-30T16:00:00+00:00) …")
