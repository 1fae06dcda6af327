"""Flipped bits in a queue store: a damaged row is never returned as if it were intact, and always reported."""

import os
import random
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qmq.errors import Malformed
from qmq.model.dots import Dot, Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.format.row_checksum import checksum_of, partition_checksum
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.choice import open_queue_store, stored_rows
from qmq.storage.queues.postgres_store import PostgresQueueStore
from qmq.storage.queues.rescue import NOWHERE
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import MARK_SUFFIX, SqliteQueueStore
from qmq.storage.queues.stored_run import RUN_MIN
from qmq.storage.store import open_store
from tests.support.postgres import Server

from . import rig
from .rig import Writer, all_rows

A = Origin("a", 2**63 + 5)
B = Origin("b", 7)
JOBS = "/queue/jobs"
NOW = 1 << 60
FLAGS = 5 << 20 | 3


def row(origin: Origin, sequence: int, queue: str = JOBS, due_us: int = 0, expires_us: int = 0) -> QueueRow:
    body = b"body %d " % sequence * (1 + sequence % 7)
    return QueueRow(Dot(origin, sequence), queue, 1000 + sequence, FLAGS, 4, due_us, expires_us, b"k:v\n", body)


ROWS = [
    *[row(A, sequence) for sequence in range(1, 60)],
    *[row(A, sequence, "/queue/other") for sequence in range(60, 70)],
    *[row(A, sequence, due_us=sequence, expires_us=5000 + sequence) for sequence in range(70, 80)],
    *[row(B, sequence, "/queue/other") for sequence in range(1, 20)],
    row(B, 50)._replace(body=random.Random(1).randbytes(40_000)),
]


SETTLED = [row(B, sequence, "/queue/other") for sequence in range(20, 30)]

IN_ROWS, IN_RUNS = RUN_MIN - 1, 1000
"""Messages of one change: so few are no run."""


def filled(directory: Path, at_once: int = IN_ROWS) -> Path:
    """A store's file as an orderly stop leaves it."""
    store = open_queue_store(directory, "sqlite", "a")
    fill(store, at_once)
    store.close()
    return directory / "queues.sqlite"


def fill(store: QueueStore, at_once: int) -> None:
    every = ROWS + SETTLED
    for begin in range(0, len(every), at_once):
        store.apply(runs_of(every[begin : begin + at_once]), {}, [Dot(B, 99)], [], 77)
    store.apply([], {"/queue/other": [one.dot for one in SETTLED]}, [], [], 78, {JOBS: {Dot(A, 3): 2}})


def sound_rows() -> set[QueueRow]:
    return {one._replace(attempts=2) if one.dot == Dot(A, 3) else one for one in ROWS}


def answers(store: QueueStore) -> Iterator[QueueRow]:
    """Whatever it gives when it is asked in every way."""
    for node in ("a", "b"):
        yield from stored_rows(store, node)
        yield from store.expired(node, NOW, 1000, 1 << 30)
        for queue in (JOBS, "/queue/other"):
            yield from store.due(node, queue, 0, NOW, 1000)
    for origin in (A, B):
        yield from store.unsettled(origin, 0, 1000, 1000, 1 << 30)


def covered(dot: Dot, missing_ranges: list[MissingRange]) -> bool:
    return any(gap.origin == dot.origin and gap.after < dot.sequence <= gap.through for gap in missing_ranges)


def flip(path: Path, place: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture(scope="module", params=[IN_ROWS, IN_RUNS])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return filled(tmp_path_factory.mktemp("made"), request.param).read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_anywhere_in_the_file_changes_no_answer_and_hides_no_row(
    tmp_path: Path, made: bytes, seed: int
) -> None:
    rng = random.Random(f"rot {seed}")
    used = [place for place in range(len(made)) if made[place]]
    for number in range(60):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = directory / "queues.sqlite"
        path.write_bytes(made)
        place, bit = rng.choice(used), rng.randrange(8)
        flip(path, place, bit)

        store = open_queue_store(directory, "sqlite", "a")
        found = set(answers(store))
        missing_ranges = store.missing_ranges()

        where = f"bit {bit} of byte {place}"
        # A new file may have taken over a run without what was settled of it: that is asked of the journal and peers.
        assert found <= sound_rows() | set(SETTLED if store.position() == NOWHERE else []), where
        if store.position() != NOWHERE:
            missing = {one.dot for one in sound_rows() - found}
            assert all(covered(dot, missing_ranges) for dot in missing), where
            assert store.position() == 78, where
            assert store.tombstones() == {Dot(B, 99)}, where
            assert bool(missing) <= bool(store.damage.lines), where
        else:
            assert "moved to quarantine" in store.damage.lines[0]
            assert (directory / "quarantine" / "queues-1.sqlite").exists()
        store.close()


COLUMNS = (
    "sequence",
    "timestamp_us",
    "flags",
    "due_us",
    "expires_us",
    "exact",
    "headers",
    "body",
    "attempts",
    "checksum",
)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_that_has_changed_in_one_column_is_left_out_and_named(tmp_path: Path, column: str) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        value = f"{column} || 'x'" if column in ("headers", "body") else f"{column} + 1024"
        cast = f"CAST({value} AS BLOB)" if column in ("headers", "body") else value
        partition = "(SELECT id FROM lanes WHERE queue = '/queue/jobs' AND delayed = 0 AND origin = 1)"
        database.execute(f"UPDATE messages SET {column} = {cast} WHERE lane = {partition} AND sequence = 59")
    database.close()

    store = open_queue_store(tmp_path, "sqlite", "a")

    missing = sound_rows() - set(answers(store))
    assert {one.dot for one in missing} == {Dot(A, 59)}
    if column == "sequence":
        assert "is not in its place" in store.damage.lines[0]
    else:
        assert store.missing_ranges() == [MissingRange(A, 58, 59, 59, JOBS)]
    assert len(store.page("a", JOBS, 4, None, 0, 50)) == 50
    store.close()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("column", ["timestamp_us", "flags", "checksum"])
def test_a_number_that_has_become_another_kind_of_value_is_one_damaged_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, checked: bool
) -> None:
    """A single bit of a row makes its number one with a fraction. Compiled code looks at types, so it could refuse."""
    path = filled(tmp_path)
    strict, lax = ") STRICT, WITHOUT ROWID", ") WITHOUT ROWID"
    for change in (
        f"UPDATE sqlite_schema SET sql = replace(sql, '{strict}', '{lax}') WHERE name = 'messages'",
        f"UPDATE messages SET {column} = 1.5 WHERE sequence = 20",
        f"UPDATE sqlite_schema SET sql = replace(sql, '{lax}', '{strict}') WHERE name = 'messages'",
    ):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA writable_schema = ON")
            assert database.execute(change).rowcount
    if not checked:
        monkeypatch.setattr("qmq.storage.queues.rescue.CHECKED_BYTES_MAX", 0)

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert {one.dot for one in sound_rows() - set(answers(store))} == {Dot(A, 20)}
    assert (store.position() == NOWHERE) is checked  # SQLite's own check of the file refuses it.
    assert checked or store.missing_ranges() == [MissingRange(A, 19, 20, 20, JOBS)]
    store.close()


def test_damaged_rows_do_not_hide_that_others_expire_after_them(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET body = CAST(body || 'x' AS BLOB) WHERE sequence IN (70, 71, 73)")
    database.close()
    store = SqliteQueueStore(path)
    size = len(row(A, 72).body) + len(b"k:v\n")

    def expired(until_us: int, limit: int, bytes_max: int) -> list[int]:
        return [one.dot.sequence for one in store.expired("a", until_us, limit, bytes_max)]

    assert expired(NOW, 1, 1 << 20) == [72]
    assert expired(NOW, 3, 1 << 20) == [72, 74, 75]
    assert expired(NOW, 9, size) == [72]
    assert expired(NOW, 9, size + 1) == [72, 74]
    assert expired(5071, 9, 1 << 20) == []
    assert expired(NOW, 9, 1 << 20) == [72, 74, 75, 76, 77, 78, 79]
    store.close()


def test_damaged_rows_do_not_make_a_page_of_so_many_bytes_look_like_the_last(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET body = CAST(body || 'x' AS BLOB) WHERE sequence BETWEEN 2 AND 9")
    database.close()
    store = SqliteQueueStore(path)
    bytes_max = sum(len(b"k:v\n") + len(row(A, n).body) for n in (1, 10, 11, 12))

    found = store.page("a", JOBS, 4, None, 0, 50, 0, bytes_max)

    assert [one.dot.sequence for one in found] == [1, 10, 11, 12]
    store.close()


def test_a_damaged_row_gives_way_to_the_sound_one(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET body = x'ff' WHERE sequence = 20")
    database.close()
    store = SqliteQueueStore(path)
    assert {one.dot for one in sound_rows() - set(answers(store))} == {Dot(A, 20)}
    (gap,) = store.missing_ranges()

    store.repair(gap, [row(A, 20)], None)

    assert store.missing_ranges() == []
    assert set(answers(store)) == sound_rows()
    assert store.check() is None
    store.close()


@pytest.mark.parametrize("searched", [False, True])
def test_what_is_settled_while_it_is_looked_for_does_not_come_back(tmp_path: Path, searched: bool) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET body = x'ff' WHERE sequence = 20")
    database.close()
    store = SqliteQueueStore(path)
    list(answers(store))
    (gap,) = store.missing_ranges()
    if searched:  # the journal has not got it: somebody else is asked
        store.repair(gap, [], gap)

    store.apply([], {JOBS: [Dot(A, 20)]}, [], [], 78)
    store.repair(gap, [row(A, 20)], None)

    assert store.missing_ranges() == []
    assert {one.dot for one in sound_rows() - set(answers(store))} == {Dot(A, 20)}
    assert store.check() is None
    store.close()


def test_what_is_left_of_a_lack_is_remembered(tmp_path: Path) -> None:
    path = filled(tmp_path)
    store = SqliteQueueStore(path)
    store.missing([MissingRange(B, 0, 1000)], 78)

    store.repair(MissingRange(B, 0, 1000), [row(B, 300)], MissingRange(B, 400, 1000))
    store.close()

    store = SqliteQueueStore(path)
    assert store.missing_ranges() == [MissingRange(B, 400, 1000)]
    assert set(answers(store)) == sound_rows() | {row(B, 300)}
    store.repair(MissingRange(B, 400, 1000), [], None)
    assert store.missing_ranges() == []
    store.close()


def test_a_file_that_is_met_malformed_is_put_aside_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.storage.queues.rescue.CHECKED_BYTES_MAX", 0)
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE lanes SET queue = '/queue/jobz' WHERE queue = '/queue/jobs' AND delayed = 0")
    database.close()
    store = open_queue_store(tmp_path, "sqlite", "a")
    with pytest.raises(Malformed, match="next start"):
        store.page("a", "/queue/jobz", 4, None, NOW, 10)
    store.close()

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert store.position() == NOWHERE
    assert set(answers(store)) < sound_rows()
    assert "queues-1.sqlite" in store.damage.lines[0]
    store.close()
    store = open_queue_store(tmp_path, "sqlite", "a")
    assert not store.damage.lines
    store.close()


@pytest.mark.parametrize("cut", ["no rename yet", "renamed", "half filled"])
def test_putting_a_file_aside_is_finished_by_the_next_opening(tmp_path: Path, cut: str) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    aside = tmp_path / "quarantine" / "queues-1.sqlite"
    aside.parent.mkdir()
    path.with_name("queues.sqlite.damaged").write_text("put aside as quarantine/queues-1.sqlite")
    if cut != "no rename yet":
        path.rename(aside)
    if cut == "half filled":
        store = SqliteQueueStore(path)
        store.apply(runs_of([row(A, 1)]), {}, [], [], NOWHERE)
        store.close()

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert (store.position(), set(answers(store))) == (NOWHERE, sound_rows())
    assert aside.read_bytes() == whole
    store.close()


def test_the_mark_is_on_the_disk_before_a_damaged_file_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE lanes SET messages = 1")
    database.close()
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(old: Path, new: Path) -> Path:
        done.append(str(old))
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    open_queue_store(tmp_path, "sqlite", "a").close()

    assert done.index(f"{path}{MARK_SUFFIX}.tmp") < done.index(str(path))
    assert {one.name for one in tmp_path.iterdir()} == {"quarantine", "queues.sqlite"}


def test_a_mark_on_a_file_that_is_sound_goes(tmp_path: Path) -> None:
    path = filled(tmp_path)
    mark = path.with_name("queues.sqlite.damaged")
    mark.write_text("who knows")

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert (store.position(), set(answers(store)), mark.exists()) == (78, sound_rows(), False)
    store.close()


def test_the_checksum_is_the_crc_that_the_format_page_describes() -> None:
    one = row(B, 3)._replace(attempts=2)

    partition = zlib.crc32(
        b"b" + JOBS.encode(), zlib.crc32(bytes(7) + b"\x07" + b"\xff" * 7 + b"\xfc" + b"\0" + b"\0\x01")
    )
    numbers = b"".join(number.to_bytes(size, "big") for number, size in ((3, 8), (1003, 8), (FLAGS, 4), (0, 8), (0, 8)))
    crc = zlib.crc32(one.body, zlib.crc32(one.headers, zlib.crc32(numbers + b"\0\0\0\x04", partition)))

    assert checksum_of(partition_checksum(JOBS, -4, False, B), one) == crc | 2 << 32


def test_rows_in_postgresql_are_held_to_the_same_rule(postgres: Server) -> None:
    url = postgres.fresh_schema()
    store = PostgresQueueStore(url, "a")
    fill(store, IN_ROWS)
    assert set(answers(store)) == sound_rows()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE qmq_messages SET body = 'x' WHERE sequence = 20")
        of_a = "origin = (SELECT id FROM qmq_origins WHERE node = 'a')"
        connection.execute(f"UPDATE qmq_messages SET attempts = 9 WHERE sequence = 3 AND {of_a}")

    found = set(answers(store))

    assert {one.dot for one in sound_rows() - found} == {Dot(A, 20), Dot(A, 3)}
    assert found < sound_rows()
    assert len(store.damage.lines) == 2
    for gap in store.missing_ranges():
        store.repair(gap, [one for one in sound_rows() if covered(one.dot, [gap])], None)
    assert (set(answers(store)), store.missing_ranges()) == (sound_rows(), [])
    store.close()


IN_JOBS = "lane = (SELECT id FROM lanes WHERE queue = '/queue/jobs' AND delayed = 0)"
OF_B = "SELECT lanes.id FROM lanes JOIN origins ON origins.id = origin WHERE queue = '/queue/other' AND node = 'b'"
IN_OTHER = f"lane = ({OF_B})"


def damaged(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount


@pytest.mark.parametrize("column", ["headers", "body", "checksum"])
def test_each_message_that_waits_in_a_damaged_run_is_missing_and_can_be_repaired(tmp_path: Path, column: str) -> None:
    path = filled(tmp_path, IN_RUNS)
    value = "checksum + 1" if column == "checksum" else f"CAST({column} || 'x' AS BLOB)"
    damaged(path, f"UPDATE runs SET {column} = {value} WHERE {IN_OTHER}")

    store = open_queue_store(tmp_path, "sqlite", "a")

    lost = {one for one in ROWS if one.dot.origin == B and one.dot.sequence < 50}
    assert sound_rows() - set(answers(store)) == lost
    assert sorted(store.missing_ranges()) == [MissingRange(B, n - 1, n, n, "/queue/other") for n in range(1, 20)]
    assert store.position() == 78
    # One is settled meanwhile, one is repaired, and one has failed.
    store.apply([], {"/queue/other": [Dot(B, 5)]}, [], [], 79, {"/queue/other": {Dot(B, 6): 1}})
    store.repair(MissingRange(B, 6, 7, 7, "/queue/other"), [row(B, 7, "/queue/other")], None)
    left = [n for n in range(1, 20) if n not in (5, 7)]
    assert sorted(gap.through for gap in store.missing_ranges()) == left
    store.close()
    store = open_queue_store(tmp_path, "sqlite", "a")
    for gap in store.missing_ranges():
        store.repair(gap, [row(B, gap.through, "/queue/other")], None)
    assert set(answers(store)) == sound_rows() - {row(B, 5, "/queue/other")}
    assert isinstance(store, SqliteQueueStore) and store.check() is None
    assert store.missing_ranges() == []
    store.close()


def test_a_damaged_run_comes_back_from_the_journal_without_what_was_settled(tmp_path: Path) -> None:
    store = open_store(tmp_path, node="a", settings=StoreSettings(reserve_bytes=0))
    of_a, of_b = Writer(rig.A), Writer(rig.B)
    store.journal.append([of_a.published("/queue/q", *[b"%d" % n for n in range(1, 31)])])
    store.checkpoint(store.journal.end, rig.NOW, {})
    of_b.settle("/queue/q", [Dot(rig.A, 3)])
    store.journal.append([of_b.batch()])
    store.checkpoint(store.journal.end, rig.NOW, {})
    store.close()
    damaged(tmp_path / "queues.sqlite", "UPDATE runs SET body = CAST(body || 'x' AS BLOB)")
    store = open_store(tmp_path, node="a", settings=StoreSettings(reserve_bytes=0))
    assert all_rows(store) == {} and len(store.missing_ranges()) == 29

    left = [store.row_repairer.search_journal(missing) for missing in store.missing_ranges()]

    assert left == [None] * 29
    assert all_rows(store) == {Dot(rig.A, n): b"%d" % n for n in range(1, 31) if n != 3}
    assert store.missing_ranges() == []
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE runs SET places = CAST(substr(places, 1, 50) || 'x' || substr(places, 52) AS BLOB) WHERE {IN_OTHER}",
        *[
            f"UPDATE runs SET {column} = {column} + 1 WHERE {IN_OTHER}"
            for column in ("sequence", "through", "messages", "bytes", "timestamp_us", "flags")
        ],
        f"UPDATE runs SET lane = 99 WHERE {IN_OTHER}",
        *[
            f"UPDATE settled SET {column} = {column} + 1 WHERE {IN_OTHER}"
            for column in ("sequence", "messages", "bytes", "checksum")
        ],
        f"UPDATE settled SET waiting = zeroblob(length(waiting)) WHERE {IN_OTHER}",
        f"UPDATE settled SET lane = 99 WHERE {IN_OTHER}",
        f"DELETE FROM settled WHERE {IN_OTHER}",
        f"DELETE FROM runs WHERE {IN_JOBS}",
    ],
)
def test_a_file_in_which_what_lies_beside_a_run_is_damaged_gives_way_to_a_new_one(tmp_path: Path, change: str) -> None:
    path = filled(tmp_path, IN_RUNS)
    damaged(path, change)

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert store.position() == NOWHERE
    others = {one for one in sound_rows() if one.queue != "/queue/other" and "DELETE FROM runs" not in change}
    assert others <= set(answers(store)) <= sound_rows() | set(SETTLED)
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE settled SET checksum = checksum + 1",
        "UPDATE settled SET messages = messages + 1",
        "UPDATE settled SET waiting = CAST(substr(waiting, 2) AS BLOB)",
        "UPDATE settled SET waiting = zeroblob(length(waiting))",
    ],
)
def test_a_damaged_note_of_what_is_settled_loses_nothing_that_waits(tmp_path: Path, change: str) -> None:
    path = filled(tmp_path, IN_RUNS)
    damaged(path, f"{change} WHERE {IN_OTHER}")

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert set(answers(store)) == sound_rows() | set(SETTLED)
    run = [one for one in sound_rows() | set(SETTLED) if one.dot.origin == B and one.queue == "/queue/other"]
    assert store.damage.lines[0].endswith(f"; which of these {len(run)} were settled is damaged")
    store.close()


def test_a_damaged_run_that_is_met_without_a_check_of_the_file_marks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.storage.queues.rescue.CHECKED_BYTES_MAX", 0)
    path = filled(tmp_path, IN_RUNS)
    damaged(path, f"UPDATE runs SET flags = flags + 1 WHERE {IN_OTHER}")
    store = open_queue_store(tmp_path, "sqlite", "a")

    for read in (
        lambda: store.page("b", "/queue/other", 4, None, NOW, 10),
        lambda: store.unsettled(B, 0, 99, 99),
        lambda: store.apply([], {"/queue/other": [Dot(B, 1)]}, [], [], 79),
    ):
        with pytest.raises(Malformed, match="next start"):
            read()
        path.with_name(path.name + MARK_SUFFIX).unlink()
    store.close()


def test_runs_in_postgresql_are_held_to_the_same_rule(postgres: Server) -> None:
    url = postgres.fresh_schema()
    store = PostgresQueueStore(url, "a")
    fill(store, IN_RUNS)
    assert set(answers(store)) == sound_rows()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE qmq_runs SET body = body || 'x'::bytea WHERE lane IN (SELECT lane FROM qmq_settled)")

    found = set(answers(store))

    assert found < sound_rows() and len(sound_rows() - found) == len(store.missing_ranges()) > 70
    for gap in store.missing_ranges():
        store.repair(gap, [one for one in sound_rows() if covered(one.dot, [gap])], None)
    assert (set(answers(store)), store.missing_ranges()) == (sound_rows(), [])
    store.close()
