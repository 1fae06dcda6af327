"""What comes back for damaged rows: nothing that was settled meanwhile, and nothing that is missing is forgotten."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.format.batch import BatchHead, read_head, record_slices
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack_record
from qmq.storage.log.journal import Journal
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.repair.queue_rows import Search
from qmq.storage.repair.range_snapshot import RangeSnapshot
from qmq.storage.store import open_store
from tests.storage.rig import NOW, SMALL, A, B, Writer

JOBS = "/queue/jobs"
OTHER = "/queue/other"


class Filled:
    """Node b's store: messages 1, 3, 5 of a in one queue, 2 and 4 in another; the journal has dropped them all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.a, self.b = Writer(A), Writer(B)
        self.store = open_store(path, node="b", settings=SMALL)
        for number in range(1, 6):
            self.a.publish(JOBS if number % 2 else OTHER, b"body %d" % number)
        self.take(self.a.batch())
        self.forget_the_past()

    def take(self, batch: bytes) -> None:
        self.store.journal.append([batch])
        self.store.checkpoint(self.store.journal.end, NOW, {})

    def forget_the_past(self) -> None:
        end = self.store.journal.end
        while self.store.journal.start < end:
            self.take(self.b.published("/topic/x", b"x" * 400))

    def damage(self, *sequences: int, column: str = "body", value: str = "x'ff'") -> None:
        """Flip bits, and meet the rows."""
        self.store.close()
        self.flip_bits(*sequences, column=column, value=value)
        self.store = open_store(self._path, node="b", settings=SMALL)
        self.standing()

    def flip_bits(self, *sequences: int, column: str = "body", value: str = "x'ff'") -> None:
        with sqlite3.connect(self._path / "queues.sqlite") as database:
            for sequence in sequences:
                database.execute(f"UPDATE messages SET {column} = {value} WHERE sequence = ?", (sequence,))
        database.close()

    def standing(self) -> list[int]:
        return [dot.sequence for _, dot, _ in self.store.repair_source.unsettled(None, 100) if dot.origin == A]


def answer(sequence: int, through: int) -> RangeSnapshot:
    """What a peer has left that knows of no settle."""
    writer = Writer(A, sequence - 1)
    writer.publish(OTHER if sequence == 2 else JOBS, b"body %d" % sequence)
    return RangeSnapshot(through, 0, 0, list(record_slices(writer.batch())))


@pytest.mark.parametrize("again", [False, True])
def test_what_is_settled_while_it_is_looked_for_does_not_come_back(tmp_path: Path, again: bool) -> None:
    filled = Filled(tmp_path)
    filled.damage(3)
    (missing,) = filled.store.missing_ranges()
    assert (missing.after, missing.through) == (2, 3)
    left = filled.store.row_repairer.search_journal(missing)
    assert left is not None
    old = answer(3, left.through)

    filled.b.settle(JOBS, [Dot(A, 3)])
    filled.take(filled.b.batch())
    filled.forget_the_past()
    if again:
        filled.damage()
    assert filled.store.row_repairer.take(left, left.after, old) is None

    assert filled.standing() == [1, 2, 4, 5]
    assert filled.store.missing_ranges() == []
    assert filled.store.tombstones == set()
    filled.store.close()


def test_what_is_settled_when_it_was_met_is_missing_no_more(tmp_path: Path) -> None:
    """A reader has met the damage, and nobody has looked for it yet."""
    filled = Filled(tmp_path)
    filled.damage(3)
    (missing,) = filled.store.missing_ranges()

    filled.b.settle(JOBS, [Dot(A, 3)])
    filled.take(filled.b.batch())

    assert filled.store.missing_ranges() == []
    assert not filled.store.row_repairer.give_up(missing, missing.through)
    assert filled.store.row_repairer.take(missing, missing.after, answer(3, missing.through)) is None
    assert filled.standing() == [1, 2, 4, 5]
    filled.store.close()


def test_a_row_that_is_not_in_its_place_has_the_file_made_again(tmp_path: Path) -> None:
    """A bit of its sequence has changed: rows are found by their order, which is broken."""
    filled = Filled(tmp_path)
    filled.damage(5, column="sequence", value=str(5 ^ 1 << 40))
    assert "moved to quarantine" in filled.store.damage()[0]
    (missing,) = [one for one in filled.store.missing_ranges() if one.origin == A]
    assert (missing.after, missing.through, missing.sequence) == (0, 5, 0)
    left = filled.store.row_repairer.search_journal(missing)
    assert left is not None

    assert filled.store.row_repairer.take(left, left.after, answer(5, left.through)) is None

    assert filled.standing() == [1, 2, 3, 4, 5]
    filled.store.close()


def in_another_thread(work: Callable[[], object]) -> threading.Thread:
    """Give `work` a moment; it may have to wait until something here is over."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.1)
    return thread


def test_what_the_journal_settles_is_remembered_of_each_lack_while_others_are_looked_for(tmp_path: Path) -> None:
    """By the time that a peer has an answer the journal may have dropped it."""
    filled = Filled(tmp_path)
    filled.b.settle(JOBS, [Dot(A, 1)])
    filled.take(filled.b.batch())
    filled.damage(5, column="sequence", value=str(5 ^ 1 << 40))
    # As after a start whose journal was damaged: the new file has not taken the settle from it.
    checkpointer = filled.store._checkpointer
    checkpointer.stored = checkpointer.stored._replace(tombstones=set())
    lefts = [filled.store.row_repairer.search_journal(missing) for missing in filled.store.missing_ranges()]
    assert [left.origin for left in lefts if left is not None] == [A, B]
    left = lefts[0]
    assert left is not None
    filled.forget_the_past()

    filled.store.row_repairer.take(left, left.after, answer(1, left.through))

    assert filled.standing() == [2, 3, 4]
    filled.store.close()


def test_a_peer_answers_for_what_it_has_whole_before_and_behind_what_it_lacks_itself(tmp_path: Path) -> None:
    filled = Filled(tmp_path)
    filled.damage(3)
    (missing,) = filled.store.missing_ranges()
    left = filled.store.row_repairer.search_journal(missing)
    assert left is not None

    def part(after: int) -> tuple[int, int, list[int]]:
        rest = filled.store.repair_source.read(A, after, 5, 0, searched_for={left})
        return rest.through, rest.lost, [unpack_record(packed).sequence for packed in rest.records]

    assert part(0) == (2, 0, [1, 2])
    assert part(2) == (3, 3, [])
    assert part(3) == (5, 0, [4, 5])
    filled.store.close()


def test_questions_about_rows_are_answered_although_the_log_of_a_fanout_is_damaged(tmp_path: Path) -> None:
    filled = Filled(tmp_path)
    filled.take(filled.a.published("/fanout/f", b"something else"))
    filled.forget_the_past()
    (log,) = [path for path in (tmp_path / "fanout").rglob("*") if path.is_file() and b"something" in path.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b"something", b"somethinG"))
    with pytest.raises(CorruptLog):
        filled.store.repair_source.read(A, 0, 6, 0)

    rest = filled.store.repair_source.read(A, 0, 6, 0, searched_for=())

    assert (rest.through, rest.lost) == (6, 0)
    assert [unpack_record(packed).sequence for packed in rest.records] == [1, 2, 3, 4, 5]
    filled.store.close()


@pytest.mark.parametrize("question", ["settled", "rest"])
def test_a_row_that_is_repaired_while_a_peer_is_answered_is_not_reported_as_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """The answer reads rows, and then what is lacking."""
    filled = Filled(tmp_path)
    filled.damage(3)
    store = filled.store
    (missing,) = store.missing_ranges()
    at = (store.queues, "unsettled") if question == "settled" else (store.repair_source.snapshots, "read")
    inner = getattr(*at)
    threads: list[threading.Thread] = []

    def read(*args: object) -> object:
        found = inner(*args)
        threads.append(in_another_thread(lambda: store.row_repairer.take(missing, missing.after, answer(3, 3))))
        return found

    monkeypatch.setattr(*at, read)
    if question == "settled":
        assert store.repair_source.known_of([Dot(A, 3)], {}).done == []
    else:
        assert store.repair_source.read(A, 0, 5, 0).through < 3
    monkeypatch.undo()
    for thread in threads:
        thread.join(30)

    assert filled.standing() == [1, 2, 3, 4, 5]
    store.close()


@pytest.mark.parametrize("change", ["mended", "settled"])
def test_a_reader_of_an_older_moment_does_not_take_what_has_changed_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    filled = Filled(tmp_path)
    filled.damage(3)
    queues = filled.store.queues
    (missing,) = filled.store.missing_ranges()
    sound = Search(SMALL, missing).row(unpack_record(answer(3, 3).records[0]))
    inner, position = SqliteQueueStore._rows, queues.position()
    is_first = True

    def rows(*args: Any) -> object:
        nonlocal is_first
        found = inner(*args)
        if is_first:
            is_first = False
            if change == "mended":
                queues.repair(missing, [sound], None)
            else:
                queues.apply([], {JOBS: [Dot(A, 3)]}, [], [], position)
        return found

    monkeypatch.setattr(SqliteQueueStore, "_rows", rows)
    queues.page("a", JOBS, 4, None, NOW, 10)
    monkeypatch.undo()

    queues.repair(missing, [], None)
    assert filled.store.missing_ranges() == []
    assert filled.standing() == ([1, 2, 3, 4, 5] if change == "mended" else [1, 2, 4, 5])
    filled.store.close()


def test_a_row_that_has_no_number_has_the_file_made_again(tmp_path: Path) -> None:
    filled = Filled(tmp_path)

    filled.damage(4, column="(sequence, body)", value="(0, x'ff')")

    assert "moved to quarantine" in filled.store.damage()[0]
    filled.store.close()


def test_a_row_of_a_damaged_file_whose_settle_only_the_journal_has_does_not_come_back(tmp_path: Path) -> None:
    """The message is in the journal, too, and the file was behind it when its node ended."""
    filled = Filled(tmp_path)
    first = filled.a.publish(JOBS, b"done").sequence
    filled.a.publish(JOBS, b"fails")
    filled.a.publish(JOBS, b"misplaced")
    filled.take(filled.a.batch())
    filled.b.settle(JOBS, [Dot(A, first)])
    filled.b.attempts(JOBS, {Dot(A, first + 1): 3})
    filled.store.journal.append([filled.b.batch()])
    filled.store.journal.sync()

    filled.damage(first + 2, column="sequence", value=str(first + 2 ^ 1 << 40))

    assert "moved to quarantine" in filled.store.damage()[0]
    assert filled.standing() == [1, 2, 3, 4, 5, first + 1, first + 2]
    assert [failed for _, dot, failed in filled.store.repair_source.unsettled(Dot(A, first), 1)] == [3]
    filled.store.close()


def test_a_settle_in_a_damaged_file_still_waits_for_its_message(tmp_path: Path) -> None:
    """The journal has dropped it, and the message comes later."""
    filled = Filled(tmp_path)
    filled.b.settle(JOBS, [Dot(A, 6)])
    filled.take(filled.b.batch())
    filled.forget_the_past()
    filled.damage(5, column="sequence", value=str(5 ^ 1 << 40))
    assert "moved to quarantine" in filled.store.damage()[0]

    filled.take(filled.a.published(JOBS, b"late"))

    assert 6 not in filled.standing()
    filled.store.close()


class JournalOf:
    """A journal that has dropped the first records of A, and holds `runs` of them, with holes between."""

    start = 0

    def __init__(self, dropped: int, runs: list[tuple[int, int]]) -> None:
        self._dropped = dropped
        self._batches = [Writer(A, first - 1).published(JOBS, *[b"x"] * (last - first + 1)) for first, last in runs]
        self.end = len(b"".join(self._batches))

    def base(self) -> dict[Origin, int]:
        return {A: self._dropped} if self._dropped else {}

    def read(self, place: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        found, at = [], 0
        for data in self._batches:
            head = read_head(data)
            assert head is not None
            if at >= place:
                found.append((at, head, data))
            at += len(data)
        return found


@pytest.mark.parametrize(
    ("dropped", "runs", "expected"),
    [
        # What the journal dropped lies before the range, and it holds the range itself.
        (2, [(3, 6)], None),
        # A hole behind the range.
        (2, [(3, 6), (8, 9)], None),
        # Holes on both sides, which touch the range and do not overlap it.
        (3, [(4, 6), (9, 9)], None),
        (4, [(5, 9)], (3, 4)),
        (0, [(1, 4), (6, 9)], (4, 5)),
        # Two holes in the range: all between them is requested.
        (4, [(5, 5), (8, 9)], (3, 6)),
        (2, [(3, 4)], (4, 6)),
    ],
)
def test_only_what_is_missing_within_the_range_is_left(
    dropped: int, runs: list[tuple[int, int]], expected: tuple[int, int] | None
) -> None:
    journal = cast(Journal, JournalOf(dropped, runs))
    search = Search(SMALL, MissingRange(A, 3, 6))

    search.read(journal, journal.end)

    left = search.left(MissingRange(A, 3, 6))
    assert (left and (left.after, left.through)) == expected
