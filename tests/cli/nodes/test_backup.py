"""`qmq backup` and `qmq restore`: what an operator types, and what a wrong call answers."""

import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qmq.storage.backup import back_up
from qmq.storage.backup_files import LocalFiles
from qmq.storage.store import open_store
from tests.cli.conftest import Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_data(tmp_path / "data", "a")
    return tmp_path / "data"


def make_data(directory: Path, node: str) -> None:
    store = open_store(directory, node=node)
    store.begin_incarnation(0xAA, 1_700_000_000_000_000)
    store.close()


def test_a_place_that_is_not_there_is_named_in_the_words_of_the_system(run: Run, tmp_path: Path) -> None:
    result = run("backup", "verify", str(tmp_path / "nowhere"))

    assert (result.exit_code, result.stderr) == (1, f"qmq: {tmp_path / 'nowhere'}: No such file or directory\n")


def test_a_node_is_backed_up_verified_and_restored(run: Run, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('name = "a"\ndata = "data"\n[[stomp]]\naddress = "127.0.0.1:1"\n', "utf-8")
    backups = str(tmp_path / "backups")

    made = run("backup", backups, "--config", str(config), "--json")
    assert made.exit_code == 0, made.output
    path = json.loads(made.output)["path"]
    again = run("backup", backups, "--data", str(data))
    assert again.exit_code == 0 and "of which" in again.output, again.output
    verified = run("backup", "verify", backups)
    assert verified.exit_code == 0 and verified.output.count(": ok\n") == 2, verified.output

    full = run("restore", backups, "--config", str(config))
    assert full.exit_code == 1 and "is not empty" in full.output, full.output
    config.write_text(config.read_text("utf-8").replace('"data"', '"new"'), "utf-8")
    restored = run("restore", path, "--config", str(config))
    assert restored.exit_code == 0 and "the node a as of" in restored.output, restored.output
    assert run("log", "verify", str(tmp_path / "new")).exit_code == 0


def test_damage_is_reported_with_exit_code_1(run: Run, data: Path, tmp_path: Path) -> None:
    made = back_up(LocalFiles(data), tmp_path / "backups", datetime.now(UTC))
    (segment,) = (made.path / "journal").iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])

    result = run("backup", "verify", str(tmp_path / "backups"))
    as_json = run("backup", "verify", str(tmp_path / "backups"), "--json")

    assert result.exit_code == as_json.exit_code == 1
    assert result.output.startswith(f"DAMAGED {made.path}: journal/{segment.name} is damaged"), result.output
    assert len(json.loads(as_json.output)[str(made.path)]) == 1


def test_a_backup_goes_to_standard_output_as_a_tar_archive(run: Run, data: Path, tmp_path: Path) -> None:
    result = run("backup", "-", "--data", str(data))

    assert result.exit_code == 0, result.output
    with tarfile.open(fileobj=io.BytesIO(result.stdout_bytes)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path / "unpacked")
    assert run("backup", "verify", str(tmp_path / "unpacked")).exit_code == 0


def test_a_node_is_restored_from_a_tar_archive_of_backups(run: Run, data: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    for _ in range(2):  # Files of the second one are hard links to the first.
        back_up(LocalFiles(data), backups, datetime.now(UTC))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as written:
        written.add(backups / "a", "a")
    new, cut, other = (str(tmp_path / name) for name in ("new", "cut", "other"))

    restored = run("restore", "-", "--data", new, "--json", input=archive.getvalue())
    at = archive.getvalue().index(b"SQLite format 3") + 100
    short = run("restore", "-", "--data", cut, input=archive.getvalue()[:at])
    none = run("restore", "-", "--data", other, input=b"")

    last = sorted((backups / "a").glob("2*"))[-1]
    assert restored.exit_code == 0, restored.output
    assert json.loads(restored.output)["backup"] == f"a/{last.name}"
    assert run("log", "verify", new).exit_code == 0
    assert short.exit_code == none.exit_code == 1
    assert "standard input is no tar archive, or is cut" in short.output, short.output
    assert "standard input" in none.output, none.output
    assert not Path(cut).exists() and not Path(other).exists()
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".qmq")] == []


def test_the_node_of_a_restore_must_be_clear(run: Run, data: Path, tmp_path: Path) -> None:
    make_data(tmp_path / "b", "b")
    backups, new = tmp_path / "backups", str(tmp_path / "new")
    back_up(LocalFiles(data), backups, datetime.now(UTC))
    back_up(LocalFiles(tmp_path / "b"), backups, datetime.now(UTC))

    unclear = run("restore", str(backups), "--data", new)
    unknown = run("restore", str(backups), "--data", new, "--node", "c")
    wrong = run("restore", str(next((backups / "a").glob("2*"))), "--data", new, "--node", "b")

    assert "has backups of several nodes: give --node" in unclear.output
    assert "has no backup of the node c" in unknown.output
    assert "is a backup of the node a, not of b" in wrong.output
    assert unclear.exit_code == unknown.exit_code == wrong.exit_code == 1
    assert run("restore", str(backups), "--data", new, "--node", "b").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["backup"], "Usage:", 2),
        (["backup", "DIR"], "give the data directory of the node: --data, or --config; or ask a node: --at", 2),
        (["backup", "DIR", "--data", "DIR"], "is not the data directory of a node: it has no catalog", 1),
        (["backup", "verify", "DIR"], "has no backup", 1),
        (["backup", "verify", "DIR/none"], "No such file or directory", 1),
        (["restore", "DIR", "--data", "DIR/new"], "has no backup", 1),
        (["restore", "DIR"], "give the data directory of the node", 2),
    ],
)
def test_a_wrong_call_says_what_is_wrong(run: Run, tmp_path: Path, arguments: list[str], text: str, code: int) -> None:
    result = run(*(one.replace("DIR", str(tmp_path)) for one in arguments))

    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_node_without_a_disk_has_nothing_to_copy(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('name = "a"\ndata = "memory"\n', "utf-8")

    result = run("backup", str(tmp_path / "backups"), "--config", str(config))

    assert result.exit_code == 1
    assert "the node a keeps everything in memory: it has no files to read" in result.output
