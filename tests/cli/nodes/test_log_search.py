"""`qmq log search` finds a text in every form in which our files have one."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from qmq.cli import log_search
from qmq.storage.disk.sqlite import open_database
from tests.cli.conftest import Run

MARK = "ann@example.com"


def found(run: Run, *places: Path) -> tuple[int, list[str]]:
    result = run("log", "search", MARK, *map(str, places))
    return result.exit_code, [Path(line).name for line in result.output.splitlines()[:-1]]


def test_a_text_is_found_wherever_it_stands_in_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "CHUNK_BYTES", 8)
    for offset in range(40):
        (tmp_path / f"{offset:02}").write_bytes(bytes(offset) + MARK.encode() + bytes(3))
    (tmp_path / "almost").write_bytes(MARK.encode()[:-1] + b"\0" + MARK.encode()[1:])

    assert found(run, tmp_path) == (1, [f"{offset:02}" for offset in range(40)])


def test_a_text_is_found_in_a_file_of_gzip(run: Run, tmp_path: Path) -> None:
    (tmp_path / "support.tar.gz").write_bytes(gzip.compress(bytes(100) + MARK.encode()))

    assert found(run, tmp_path) == (1, ["support.tar.gz"])


def test_a_text_that_the_end_of_a_page_cuts_is_found_and_nothing_is_made(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "queues.sqlite"
    texts = [f"ann-{offset:04}@example.com" for offset in range(512)]
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size=512")
        database.execute("CREATE TABLE runs (value)")
        values = [(bytes(offset) + text.encode() + bytes(1024 - offset),) for offset, text in enumerate(texts)]
        database.executemany("INSERT INTO runs VALUES (?)", values)
        database.commit()
    raw = path.read_bytes()
    cut = [text for text in texts if text.encode() not in raw]

    assert 0 < len(cut) < 50
    for text in cut:
        assert run("log", "search", text, str(tmp_path)).exit_code == 1, text
    assert [one.name for one in tmp_path.iterdir()] == ["queues.sqlite"]


def test_nothing_found_is_exit_code_0_and_what_cannot_be_read_is_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"bob@example.com")

    assert run("log", "search", MARK, str(tmp_path)).output == "0 of 1 file have it\n"
    assert found(run, tmp_path) == (0, [])
    (tmp_path / "broken.gz").write_bytes(gzip.compress(bytes(1000))[:20])
    result = run("log", "search", MARK, str(tmp_path))
    assert result.exit_code == 1 and "UNREADABLE" in result.output and "broken.gz" in result.output


def test_an_empty_text_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("log", "search", "", str(tmp_path)).exit_code == 2


def test_pages_of_settled_messages_are_written_over(run: Run, tmp_path: Path) -> None:
    database = open_database(tmp_path / "queues.sqlite")
    database.execute("CREATE TABLE runs (value)")
    database.execute("INSERT INTO runs VALUES (?)", [bytes(30_000) + MARK.encode()])
    database.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert found(run, tmp_path)[0] == 1

    database.execute("DELETE FROM runs")
    database.conn.close()

    assert found(run, tmp_path) == (0, [])
