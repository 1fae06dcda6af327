"""Messages are erased from tables, beside an archiver, and from every file that had them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import fs, parquet

from qmq.cli import main
from qmq.spark.archive import erase as erasing
from qmq.spark.archive import table, upkeep
from qmq.spark.archive.archiver import Archiver
from qmq.spark.archive.erase import erase, matching
from qmq.spark.archive.storage import files_of
from qmq.spark.archive.table import ArchiveError, Overtaken, open_table, table_vector
from qmq.spark.archive.upkeep import compact, vacuum
from qmq.spark.reading.options import read_options
from qmq.spark.typed.job import tables
from tests.spark.object_store import StoreProcess
from tests.spark.rig import START_US, A, batch, node, record

DAY_US = 86_400_000_000
ANN = "headers['user'] = 'ann'"


class Mesh:
    """A node whose messages are of ann and bob by turns, two days of each run, and a table of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.table, self.last = root, str(root / "table"), 0
        self.journal = node(root, "a")
        self.options = read_options({"path": str(root / "a")})

    def grow(self, user: str = "", messages: int = 20) -> None:
        made = [self.message(n, user) for n in range(self.last + 1, self.last + messages + 1)]
        self.journal.segment([batch(A, self.last + 1, made)], {A: self.last} if self.last else {})
        self.last += messages

    def message(self, n: int, user: str) -> bytes:
        name = user or ("ann", "bob")[n % 2]
        body = b'{"id": %d, "secret": "%s-%d"}' % (n, name.encode(), n)
        return record(n, body, headers=f"user:{name}\n".encode(), at_us=START_US + (n % 4 // 2) * DAY_US)

    def archive(self) -> int:
        return Archiver(self.options, self.table, every_seconds=1.0).run().rows

    def sequences(self) -> list[int]:
        found: list[int] = open_table(self.table).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist()
        return sorted(found)

    def found_in_store(self, text: str, copy: Path) -> list[str]:
        """Which objects of the bucket have it, also in compressed columns, as the page on erasure looks for it."""
        fs.copy_files("", str(copy), source_filesystem=files_of(self.table.rpartition("/")[0]))
        done = CliRunner().invoke(main, ["log", "search", text, str(copy)])
        *found, _ = done.output.splitlines()
        assert done.exit_code == bool(found), done.output
        return found

    def bodies_of_all_files(self) -> list[str]:
        """Whether a version of the table has them or not."""
        files = Path(self.table).rglob("*.parquet")
        return [str(body) for file in files for body in parquet.read_table(file, columns=["body"])["body"].to_pylist()]


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    made = Mesh(tmp_path)
    made.grow()
    made.archive()
    return made


def of_bob(last: int) -> list[int]:
    return [*range(1, last + 1, 2)]


def test_rows_are_in_no_file_any_more_and_the_others_stay(mesh: Mesh) -> None:
    compact(mesh.table)
    mesh.grow()
    mesh.archive()

    assert matching(mesh.table, ANN) == {"2023-11-14": 10, "2023-11-15": 10}
    assert erase(mesh.table, ANN) == {"2023-11-14": 10, "2023-11-15": 10}

    assert mesh.sequences() == of_bob(40)
    assert len(mesh.bodies_of_all_files()) == 20 and "ann" not in "".join(mesh.bodies_of_all_files())
    assert erase(mesh.table, ANN) == {}


def test_no_later_run_adds_them_again_and_new_ones_are_added(mesh: Mesh) -> None:
    erase(mesh.table, ANN)
    assert table_vector(open_table(mesh.table), [A]) == {A: 20}

    assert mesh.archive() == 0
    mesh.grow("ann")
    assert mesh.archive() == 20
    assert mesh.sequences() == [*of_bob(20), *range(21, 41)]


def test_files_without_such_rows_are_not_rewritten(mesh: Mesh) -> None:
    mesh.grow()
    mesh.archive()
    before = set(open_table(mesh.table).file_uris())

    erase(mesh.table, "sequence = 2")

    assert (len(before), len(before & set(open_table(mesh.table).file_uris()))) == (4, 3)


def test_a_day_of_which_all_is_erased_has_no_file(mesh: Mesh) -> None:
    erase(mesh.table, "day = '2023-11-15'")

    assert len(open_table(mesh.table).file_uris()) == 1 and len(mesh.sequences()) == 10


def test_what_an_archiver_adds_meanwhile_is_erased_as_well(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    once = once_before(monkeypatch, upkeep, "replace", lambda: (mesh.grow(), mesh.archive()))

    assert sum(erase(mesh.table, ANN).values()) == 20

    assert once == [] and mesh.sequences() == of_bob(40)


def test_files_that_are_sorted_meanwhile_are_looked_at_again(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.grow()
    mesh.archive()
    once_before(monkeypatch, upkeep, "replace", lambda: compact(mesh.table))

    assert sum(erase(mesh.table, ANN).values()) == 20

    assert mesh.sequences() == of_bob(40) and "ann" not in "".join(mesh.bodies_of_all_files())


def test_sorting_that_an_erasure_overtakes_leaves_no_file(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.grow()
    mesh.archive()
    once_before(monkeypatch, upkeep, "replace", lambda: erase(mesh.table, ANN))

    with pytest.raises(Overtaken):
        compact(mesh.table)

    assert mesh.sequences() == of_bob(40) and "ann" not in "".join(mesh.bodies_of_all_files())


def test_a_run_that_has_written_files_and_not_committed_yet_keeps_them(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh.grow("bob")
    once_before(monkeypatch, table, "_commit_once", lambda: erase(mesh.table, ANN))

    mesh.archive()

    assert mesh.sequences() == [*of_bob(20), *range(21, 41)]


def test_in_an_object_store_no_object_has_them_any_more(any_store: StoreProcess, tmp_path: Path) -> None:
    """In small files, in sorted ones and in those that a run before its commit has left, by commands."""
    mesh = Mesh(tmp_path)
    mesh.table = "s3://bucket/some/archive"

    def run(*said: str) -> str:
        done = CliRunner().invoke(main, ["pipeline", *said])
        assert done.exit_code == 0, done.output
        return done.output

    for _ in range(2):
        mesh.grow()
        mesh.archive()
    run("compact", mesh.table)
    mesh.grow()
    mesh.archive()
    (file, *_) = (one for one in open_table(mesh.table).file_uris() if "2023-11-15" in one)
    data = files_of(mesh.table).open_input_file(file.partition("/archive/")[2]).read()
    any_store.put("bucket/some/archive/day=2023-11-15/killed.parquet", data)
    before = mesh.found_in_store("ann-", tmp_path / "before")

    erased = run("erase", mesh.table, "--where", ANN, "--yes")
    left = mesh.found_in_store("ann-", tmp_path / "left")
    run("vacuum", mesh.table, "--hours", "0")

    # Of each day the two small ones, what they became, and a new one.
    assert len(before) == 9
    assert erased.endswith("30 messages erased\n")
    assert [Path(one).name for one in left] == ["killed.parquet"]
    assert mesh.found_in_store("ann-", tmp_path / "after") == []
    assert mesh.sequences() == of_bob(60)
    assert mesh.found_in_store("bob-59", tmp_path / "again") != []
    mesh.grow("ann")
    assert mesh.archive() == 20


def test_rows_that_are_added_all_the_time_end_it(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "matching", lambda table, condition: {"2023-11-14": 1})

    with pytest.raises(Overtaken, match="still such rows"):
        erase(mesh.table, ANN)


def test_other_runs_leave_files_that_a_vacuum_removes(mesh: Mesh) -> None:
    """A run that was killed; it might as well write at this moment."""
    left = Path(mesh.table) / "day=2023-11-14" / "killed.parquet"
    left.write_bytes(b"PAR1")

    erase(mesh.table, ANN)
    assert left.exists()
    vacuum(mesh.table, hours=0)
    assert not left.exists()


@pytest.mark.parametrize("key", ["", "id"])
def test_a_typed_table_is_erased_by_its_columns_and_is_not_filled_again(mesh: Mesh, tmp_path: Path, key: str) -> None:
    mesh.table = str(tmp_path / "typed")
    tables(mesh.options, mesh.table, key=key)

    assert sum(erase(mesh.table, "secret LIKE 'ann-%'").values()) == 10
    tables(mesh.options, mesh.table, key=key)

    assert mesh.sequences() == of_bob(20)
    assert "ann" not in "".join(mesh.bodies_of_all_files())


def test_the_command_counts_first_and_erases_when_it_is_confirmed(mesh: Mesh) -> None:
    counted = CliRunner().invoke(main, ["pipeline", "erase", mesh.table, "--where", ANN])
    kept = len(mesh.sequences())
    erased = CliRunner().invoke(main, ["pipeline", "erase", mesh.table, "--where", ANN, "--yes", "--json"])
    wrong = CliRunner().invoke(main, ["pipeline", "erase", mesh.table, "--where", "usr = 1"])

    assert counted.output == (
        "2023-11-14: 5 messages\n2023-11-15: 5 messages\n10 messages found; add --yes to erase them\n"
    )
    assert kept == 20
    assert erased.output == '{"erased": {"2023-11-14": 5, "2023-11-15": 5}}\n' and mesh.sequences() == of_bob(20)
    assert wrong.exit_code == 1 and len(wrong.output.splitlines()) == 1 and "No field named usr" in wrong.output


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("usr = 'ann'", "No field named usr"),
        ("user =", "ParserError"),
        ("", "ParserError"),
        ("'ann'", "non-boolean"),
        ("true; DROP TABLE messages", "ParserError"),
    ],
)
def test_what_is_no_condition_is_an_error(mesh: Mesh, condition: str, said: str) -> None:
    for call in (matching, erase):
        with pytest.raises(ArchiveError, match=f"the condition .*{said}"):
            call(mesh.table, condition)
    assert len(mesh.sequences()) == 20


def test_what_is_no_table_of_ours_is_an_error(mesh: Mesh, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "delta"), pa.table({"day": ["2023-11-14"]}))
    for name, said in (("delta", "no archive or typed table of QMQ"), ("nothing", "there is no archive")):
        with pytest.raises(ArchiveError, match=said):
            erase(str(tmp_path / name), "true")


def once_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, meanwhile: Any) -> list[Any]:
    """Before the first call of a function, something else happens."""
    made, waiting = getattr(module, name), [meanwhile]

    def late(*args: Any, **said: Any) -> Any:
        if waiting:
            waiting.pop()()
        return made(*args, **said)

    monkeypatch.setattr(module, name, late)
    return waiting


def test_a_text_is_found_in_columns_of_files_of_parquet(tmp_path: Path) -> None:
    rows = pa.table({"n": range(1000), "body": [f"to {n:04} ann@example.com " * 50 for n in range(1000)]})
    parquet.write_table(rows, tmp_path / "of-ann.parquet", compression="zstd")
    parquet.write_table(rows.select(["n"]), tmp_path / "other.parquet", compression="zstd")

    result = CliRunner().invoke(main, ["log", "search", "ann@example.com", str(tmp_path)])

    assert result.exit_code == 1
    assert [Path(line).name for line in result.output.splitlines()[:-1]] == ["of-ann.parquet"]
