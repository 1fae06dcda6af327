"""The audit finds what was planted, says where, and finds nothing else."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.spark.jobs.audit import Finding, audit, audit_deep
from qmq.spark.jobs.audit_deep import extents_of as extents
from qmq.spark.jobs.audit_deep import verify_extent
from qmq.spark.reading.logs import DataDirectory, Log
from qmq.spark.reading.options import Options, read_options
from qmq.spark.reading.segments import SegmentFile
from qmq.storage.format.batch import BATCH_MAGIC, GAPS, encode_batch
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind, pack_gap
from qmq.storage.log.quarantine import HOLES_SUFFIX
from qmq.storage.repair.range_snapshot import nothing_left, snapshot_batch
from qmq.wire.stomp import Frame
from tests.spark.connector.test_remote import JournalNode
from tests.spark.rig import START_US, A, B, Journal, batch, fanout, messages, node, record, rest, split


def found(root: Path) -> list[tuple[str, str, str, int, int]]:
    directories = [DataDirectory(path) for path in sorted(root.iterdir())]
    return [finding[:5] for finding in audit(directories).findings]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


def test_a_whole_mesh_is_clean_and_lag_is_reported(tmp_path: Path) -> None:
    first = node(tmp_path, "a")
    first.segment(split(A, 1, 50, 7))
    first.segment([*split(B, 1, 9, 2), *split(A, 51, 60, 3)], {A: 50}, sealed=False)
    node(tmp_path, "b").segment([*split(A, 1, 50, 50), *split(B, 1, 20, 4)])

    result = audit([DataDirectory(tmp_path / name) for name in "ab"])

    assert result.clean and result.records == 139 and result.segments == 4
    assert [row[:6] for row in result.rows] == [
        ("a", str(A), 1, 60, 60, 0),
        ("a", str(B), 1, 9, 9, 11),
        ("b", str(A), 1, 50, 50, 10),
        ("b", str(B), 1, 20, 20, 0),
    ]


def test_what_retention_drops_while_the_audit_goes_on_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = node(tmp_path, "a")
    dropped = [journal.segment(split(A, 1, 20, 5)), journal.segment(split(A, 21, 40, 5), {A: 20})]
    journal.segment(split(A, 41, 60, 5), {A: 40})
    listed = Log.files

    def dropped_behind(log: Log) -> list[SegmentFile]:
        files = listed(log)
        for path in dropped:
            path.unlink(missing_ok=True)
        return files

    monkeypatch.setattr(Log, "files", dropped_behind)

    assert found(tmp_path) == []


def test_what_a_live_node_drops_while_it_sends_its_journal_is_not_missing() -> None:
    """Records 1 to 20, between its picture and its batches; 31 to 40 it never had."""

    class Dropping(JournalNode):
        def _told(self, frame: Frame) -> Iterator[bytes]:
            if frame.head.headers["qmq-until"]:
                self.drop({A: 20})
            return super()._told(frame)

    live = Dropping([*split(A, 1, 30, 5), *split(A, 41, 50, 5)])

    findings = audit([], [read_options({"servers": live.address})]).findings

    assert [finding[1:5] for finding in findings] == [("missing", str(A), 31, 40)]


def missing(path: Path) -> None:
    node(path, "a").segment([*split(A, 1, 20, 5), *split(A, 31, 40, 5)])


def missing_between_segments(path: Path) -> None:
    journal = node(path, "a")
    journal.segment(split(A, 1, 20, 5))
    journal.segment(split(A, 31, 40, 5), {A: 30}, sealed=False)


def doubled(path: Path) -> None:
    node(path, "a").segment([*split(A, 1, 20, 5), *split(A, 16, 30, 5)])


def out_of_order(path: Path) -> None:
    node(path, "a").segment([*split(A, 1, 10, 5), *split(A, 16, 20, 5), *split(A, 11, 15, 5), *split(A, 21, 30, 5)])


def lost_file(path: Path) -> None:
    journal = node(path, "a")
    journal.segment(split(A, 1, 20, 5))
    journal.segment(split(A, 21, 30, 5), {A: 20}).unlink()
    journal.segment(split(A, 31, 40, 5), {A: 30})


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (missing, [("a", "missing", str(A), 21, 30)]),
        (missing_between_segments, [("a", "missing", str(A), 21, 30)]),
        (doubled, [("a", "doubled", str(A), 16, 20)]),
        (out_of_order, [("a", "out of order", str(A), 11, 15)]),
        (lost_file, [("a", "lost file", "", 0, 0), ("a", "missing", str(A), 21, 30)]),
    ],
)
def test_what_is_planted_is_found(
    tmp_path: Path, plant: Callable[[Path], None], expected: list[tuple[str, str, str, int, int]]
) -> None:
    plant(tmp_path)

    assert found(tmp_path) == expected


@pytest.mark.parametrize("sealed", [True, False])
def test_what_retention_dropped_and_what_was_given_up_is_not_missing(tmp_path: Path, sealed: bool) -> None:
    journal = node(tmp_path, "b", base=4096)
    note = record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)
    noted = encode_batch(B, [note], 1, 1, START_US, START_US, 4)
    journal.segment([*split(A, 31, 40, 5), noted, *split(A, 61, 70, 5)], {A: 30}, sealed=sealed)

    assert found(tmp_path) == []


def gave_up(path: Path) -> tuple[Path, bytes]:
    """Node b's journal with a note that it gave up a's 41 to 60, and the note; a second segment follows."""
    noted = encode_batch(B, [record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    journal = node(path, "b")
    segment = journal.segment([*split(A, 1, 40, 5), noted, *split(A, 61, 70, 5)])
    journal.segment(split(A, 71, 80, 5), {A: 70, B: 1})
    return segment, noted


def test_damage_before_a_note_of_what_was_given_up_does_not_hide_it(tmp_path: Path) -> None:
    path, _ = gave_up(tmp_path)
    flip(path, path.read_bytes().index(BATCH_MAGIC))

    assert found(tmp_path) == []  # --deep finds it


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_note_of_what_was_given_up_makes_nothing_else_missing(tmp_path: Path, place: int) -> None:
    path, noted = gave_up(tmp_path)
    flip(path, path.read_bytes().index(noted) + place % len(noted))

    assert found(tmp_path) == [("b", "missing", str(A), 41, 60)]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_range_of_which_only_a_rest_was_left_is_whole(tmp_path: Path, sealed: bool) -> None:
    left = rest(A, 1, 20, [record(7), record(20)])
    node(tmp_path, "b").segment([left, *split(A, 21, 30, 5)], sealed=sealed)
    directory = DataDirectory(tmp_path / "b")

    assert found(tmp_path) == []
    assert [finding for extent in extents(directory) for finding in verify_extent(extent)] == []


def test_damage_at_the_end_of_a_segment_is_found_and_is_no_lost_file(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=False)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    flip(path, path.stat().st_size - 20)

    assert [finding[1:] for finding in found(tmp_path)] == [("corrupt", "", 0, 0), ("missing", str(A), 21, 30)]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_without_a_head_is_found_by_every_part_of_the_audit(tmp_path: Path, sealed: bool) -> None:
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 10, 5))
    path = journal.segment(split(A, 11, 30, 10), {A: 10}, sealed=sealed)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    flip(path, 9)
    directory = DataDirectory(tmp_path / "a")

    kinds = [finding.kind for finding in audit([directory]).findings]
    deep = [finding.where for extent in extents(directory) for finding in verify_extent(extent)]

    # The index of a sealed one tells what is in it.
    assert kinds == ([] if sealed else ["corrupt", "missing"])
    assert len(deep) == 1 and str(path) in deep[0]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_was_dropped_long_ago_is_not_missing_when_the_first_head_cannot_show_it(
    tmp_path: Path, sealed: bool
) -> None:
    journal = node(tmp_path, "a", base=4096)
    path = journal.segment(split(A, 11, 30, 10), {A: 10}, sealed=sealed)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    flip(path, 9)

    (finding,) = audit([DataDirectory(tmp_path / "a")]).findings
    assert finding.kind == "corrupt" and str(path) in finding.where


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_head_that_is_put_aside_lacks_nothing(tmp_path: Path, sealed: bool, number: int) -> None:
    journal = node(tmp_path, "a", base=4096)
    journal.segment(split(A, 11, 20, 5), {A: 10, B: 7}, sealed=sealed)
    journal.segment([*split(A, 21, 30, 5), *split(B, 8, 10, 5)], {A: 20, B: 7}, sealed=sealed)
    journal.segment(split(A, 31, 40, 5), {A: 30, B: 10}, sealed=False)
    path = sorted((tmp_path / "a" / "journal").iterdir())[number]
    base = int(path.stem, 16)
    flip(path, 9)
    noted = [[base, base + path.read_bytes().index(BATCH_MAGIC), None, 0, 0]]
    (tmp_path / "a" / "quarantine").mkdir()
    (tmp_path / "a" / "quarantine" / f"{base:016x}{HOLES_SUFFIX}").write_bytes(msgpack.packb(noted))

    seen = audit([DataDirectory(tmp_path / "a")])
    assert (seen.findings, seen.healed) == ([], 1)
    listed = extents(DataDirectory(tmp_path / "a"))
    assert [finding for extent in listed for finding in verify_extent(extent)] == []


def test_a_damaged_head_of_the_last_segment_is_found(tmp_path: Path) -> None:
    """It has batches, so it is not one that was begun a moment ago."""
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 10, 5))
    path = journal.segment(split(A, 11, 30, 10), {A: 10}, sealed=False)
    flip(path, 9)
    directory = DataDirectory(tmp_path / "a")

    shown = audit([directory]).findings
    deep = [finding for extent in extents(directory) for finding in verify_extent(extent)]

    assert [finding.kind for finding in (*shown, *deep)] == ["corrupt", "corrupt"]
    assert all(str(path) in finding.where for finding in (*shown, *deep))


def test_a_new_segment_whose_head_is_not_written_yet_is_no_finding(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 30, 10))
    last = max((tmp_path / "a" / "journal").iterdir())
    last.write_bytes(last.read_bytes()[:10])
    directory = DataDirectory(tmp_path / "a")

    assert found(tmp_path) == []
    assert [finding for extent in extents(directory) for finding in verify_extent(extent)] == []


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_what_was_put_aside_is_a_finding_until_it_was_sent_again(tmp_path: Path, sealed: bool, number: int) -> None:
    """An index that was made before still lists it; the last batch of a segment makes no lost file."""
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=sealed)
    data = path.read_bytes()
    starts = [place for place in range(len(data)) if data.startswith(BATCH_MAGIC, place)]
    start, end = [*starts, starts[2] + starts[2] - starts[1]][number : number + 2]
    flip(path, start + 200)
    first, last = number * 10 + 1, 30
    (tmp_path / "a" / "quarantine").mkdir()
    noted = [[start, end, list(A), first, first + 9]]
    if number == 1:  # What came behind it had to be sent again, too.
        noted.append([end, end + end - start, list(A), 21, 30])
    (tmp_path / "a" / "quarantine" / f"{start:016x}{HOLES_SUFFIX}").write_bytes(msgpack.packb(noted))
    before = audit([DataDirectory(tmp_path / "a")])
    journal.segment([batch(A, first, messages(first, last))], {A: first - 1})
    after = audit([DataDirectory(tmp_path / "a")])

    assert [finding.kind for finding in before.findings] == ["put aside"] * len(noted)
    assert (after.findings, after.healed) == ([], len(noted))


def unreadable_in_the_midst(tmp_path: Path) -> tuple[Journal, list[int]]:
    """Of b: records 1 to 30 of a in three batches, the second of which cannot be read, so the third is put aside as
    well. Also where the batches stand."""
    journal = node(tmp_path, "b")
    path = journal.segment(split(A, 1, 30, 10), sealed=False)
    data = path.read_bytes()
    starts = [place for place in range(len(data)) if data.startswith(BATCH_MAGIC, place)]
    flip(path, starts[1] + 200)
    (tmp_path / "b" / "quarantine").mkdir()
    noted = [[starts[1], starts[2], None, 0, 0], [starts[2], len(data), list(A), 21, 30]]
    (tmp_path / "b" / "quarantine" / f"{starts[1]:016x}{HOLES_SUFFIX}").write_bytes(msgpack.packb(noted))
    return journal, starts


def test_what_cannot_be_read_is_a_finding_while_anything_is_missing(tmp_path: Path) -> None:
    """Records 11 to 20 stood there, and a GAP record gives them up."""
    journal, starts = unreadable_in_the_midst(tmp_path)
    gap = encode_batch(B, [record(1, pack_gap(A, 20), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    journal.segment([gap, batch(A, 21, messages(21, 30))], {A: 10})

    seen = audit([DataDirectory(tmp_path / "b")])

    assert [(finding.kind, finding.where) for finding in seen.findings] == [
        ("put aside", f"journal {starts[1]}–{starts[2]}")
    ]
    assert seen.healed == 1


@pytest.mark.parametrize("sealed", [True, False])
def test_a_range_that_the_mesh_has_closed_is_reported_and_no_finding(tmp_path: Path, sealed: bool) -> None:
    """Records 11 to 20 stood where nothing can be read; nobody has them, and what stood behind them is back."""
    journal, starts = unreadable_in_the_midst(tmp_path)
    lost = batch(B, 1, [record(1), record(2, pack_lost(LostRange(A, 11, 20)), "", kind=RecordKind.GONE)])
    closed = [lost, snapshot_batch(A, 10, nothing_left(20)), batch(A, 21, messages(21, 30))]
    journal.segment(closed, {A: 10}, sealed=sealed)
    directory = DataDirectory(tmp_path / "b")

    seen = audit([directory])
    words = CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path / "b")])

    assert (seen.findings, seen.lost, seen.healed) == ([], [Finding("b", "lost", str(A), 11, 20, "")], 1)
    assert seen.records == 23  # with the mark that stands for what is gone
    assert f"lost: b has noted that no node has all of {A} 11–20 any more" in words.output and words.exit_code == 0


def test_damage_that_indexes_and_heads_show_is_the_same_finding_when_everything_is_read(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10), sealed=False)
    flip(path, path.read_bytes().rindex(BATCH_MAGIC, 0, -1000) + 200)
    directory = DataDirectory(tmp_path / "a")

    shown = [finding for finding in audit([directory]).findings if finding.kind == "corrupt"]
    deep = [finding for extent in extents(directory) for finding in verify_extent(extent)]

    assert deep == shown != []


def test_a_segment_that_is_dropped_before_it_is_verified_is_no_finding(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10))
    listed = list(extents(DataDirectory(tmp_path / "a")))
    path.unlink()

    assert [finding for extent in listed for finding in verify_extent(extent)] == []


def test_a_worker_that_does_not_see_the_files_does_not_call_them_clean(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 30, 10))
    listed = list(extents(DataDirectory(tmp_path / "a")))
    (tmp_path / "a").rename(tmp_path / "elsewhere")

    with pytest.raises(FileNotFoundError):
        verify_extent(listed[0])


def test_a_fanout_log_that_cannot_say_what_it_is_of_is_verified(tmp_path: Path) -> None:
    path = fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 1, messages(1, 2, "/fanout/f"))])
    node(tmp_path, "a").segment(split(A, 3, 10, 5), {A: 2})
    flip(path, path.read_bytes().index(BATCH_MAGIC) + 130)

    findings = [found for extent in extents(DataDirectory(tmp_path / "a")) for found in verify_extent(extent)]

    assert len(findings) == 1 and str(path) in findings[0].where


def test_a_torn_end_of_the_last_segment_is_no_finding(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10), sealed=False)
    path.write_bytes(path.read_bytes()[:-40])

    assert found(tmp_path) == []


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("place", [120, 300, 500])
def test_a_flipped_bit_is_found_by_reading_everything(tmp_path: Path, sealed: bool, place: int) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 3), sealed=sealed)
    journal.segment(split(A, 31, 40, 3), {A: 30})
    flip(path, place)
    directory = DataDirectory(tmp_path / "a")

    findings = [finding for extent in extents(directory) for finding in verify_extent(extent)]

    assert [finding.kind for finding in findings] == ["corrupt"]
    assert str(path) in findings[0].where


def test_records_that_are_not_those_of_their_batch_are_found(tmp_path: Path) -> None:
    forged = batch(A, 1, [*messages(1, 3), *messages(3, 3)])
    node(tmp_path, "a").segment([forged], sealed=False)

    findings = [found for extent in extents(DataDirectory(tmp_path / "a")) for found in verify_extent(extent)]

    assert [(finding.kind, finding.first, finding.last) for finding in findings] == [("corrupt", 1, 4)]


def timed(origin: object, sequence: int, seconds: float) -> bytes:
    at_us = START_US + round(seconds * 1e6)
    return encode_batch(origin, [record(sequence, at_us=at_us)], sequence, sequence, at_us, at_us)  # type: ignore[arg-type]


JOBS, MAILS = "/queue/jobs", "/queue/mails"
HOUR_US = 3_600_000_000


def choosing(**said: str) -> Options:
    return read_options({"path": "anywhere", **said})


def of(root: Path, choice: Options) -> list[tuple[str, str, int, int]]:
    """What is found in a's journal with a choice."""
    return [finding[1:5] for finding in audit([DataDirectory(root / "a")], choice=choice).findings]


def four_segments(root: Path) -> None:
    """Jobs, mails, jobs, mails: 20 records each, and in each segment, and before the last, 10 are missing."""
    journal = node(root, "a")
    for first, queue in ((1, JOBS), (31, MAILS), (61, JOBS), (101, MAILS)):
        before = {A: first - 1} if first > 1 else None
        journal.segment([*split(A, first, first + 9, 5, queue), *split(A, first + 20, first + 29, 5, queue)], before)


def test_only_segments_of_the_chosen_destinations_are_audited(tmp_path: Path) -> None:
    four_segments(tmp_path)

    mails = audit([DataDirectory(tmp_path / "a")], choice=choosing(subscribe=MAILS))

    assert [finding[1:5] for finding in mails.findings] == [
        ("missing", str(A), 41, 50),
        ("missing", str(A), 111, 120),
    ]
    # The newest one has no index that could say that nothing of it stands there.
    assert mails.segments == 3 and mails.records == 40
    assert mails.rows == [("a", str(A), 31, 130, 40, None)]
    assert of(tmp_path, choosing(subscribePattern=".*/jobs")) == [
        ("missing", str(A), 11, 20),
        ("missing", str(A), 71, 80),
    ]


def test_what_is_missing_between_a_segment_that_is_left_out_and_a_chosen_one_is_not_reported(tmp_path: Path) -> None:
    """The chosen one begins where its head says."""
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 20, 5, JOBS))
    journal.segment(split(A, 31, 40, 5, MAILS), {A: 30})
    journal.segment(split(A, 51, 60, 5, JOBS), {A: 50})

    assert of(tmp_path, choosing(subscribe=MAILS)) == []
    assert [kind for _, kind, *_ in found(tmp_path)] == ["missing", "missing"]


def test_only_segments_of_the_chosen_time_are_audited(tmp_path: Path) -> None:
    """One an hour; of each the fifth record is missing."""
    journal = node(tmp_path, "a")
    for hour in range(3):
        numbers = [hour * 10 + number for number in (1, 2, 3, 4, 6, 7, 8, 9, 10)]
        journal.segment([timed(A, number, hour * 3600 + number) for number in numbers], {A: hour * 10})
    begin_ms = (START_US + HOUR_US) // 1000
    end = datetime.fromtimestamp((START_US + 2 * HOUR_US) / 1e6 - 60, UTC).isoformat()

    chosen = of(tmp_path, choosing(startingTimestamp=str(begin_ms), endingTimestamp=end))

    assert chosen == [("missing", str(A), 15, 15)]
    assert of(tmp_path, choosing(startingTimestamp=str(begin_ms))) == [*chosen, ("missing", str(A), 25, 25)]


def test_what_a_segment_that_is_left_out_has_or_gives_up_is_not_missing_in_a_chosen_one(tmp_path: Path) -> None:
    note = encode_batch(B, [record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    journal = node(tmp_path, "a")
    journal.segment([*split(A, 1, 10, 5, MAILS), *split(A, 21, 30, 5, MAILS)])
    journal.segment(split(A, 11, 20, 5, JOBS), {A: 30})
    journal = node(tmp_path, "b")
    journal.segment([*split(A, 1, 40, 5, MAILS), *split(A, 61, 70, 5, MAILS)])
    journal.segment([note, *split(B, 2, 10, 3, JOBS)], {A: 70})

    late, given_up = (audit([DataDirectory(tmp_path / n)], choice=choosing(subscribe=MAILS)) for n in "ab")

    assert (late.findings, given_up.findings) == ([], [])


def test_what_was_behind_damage_and_came_again_is_not_doubled_in_a_chosen_segment(tmp_path: Path) -> None:
    """The head of the second segment speaks of what stood in the first until it was put aside."""
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 10, 5, JOBS))
    journal.segment(split(B, 1, 5, 5, MAILS), {A: 30})
    again = split(A, 11, 30, 10, MAILS)
    journal.segment([*again, *again[1:]], {A: 10, B: 5})

    assert of(tmp_path, choosing(subscribe=MAILS)) == [("doubled", str(A), 21, 30)]


@pytest.mark.parametrize("queue", [JOBS, MAILS])
def test_what_was_quarantined_is_reported_whatever_is_chosen_until_it_came_again(tmp_path: Path, queue: str) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10, JOBS))
    data = path.read_bytes()
    starts = [place for place in range(len(data)) if data.startswith(BATCH_MAGIC, place)]
    end = 2 * starts[2] - starts[1]
    (tmp_path / "a" / "quarantine").mkdir()
    noted = [[starts[2], end, list(A), 21, 30]]
    (tmp_path / "a" / "quarantine" / f"{starts[2]:016x}{HOLES_SUFFIX}").write_bytes(msgpack.packb(noted))
    journal.segment(split(B, 1, 5, 5, "/queue/other"), {A: 30})
    journal.segment(split(B, 6, 9, 5, queue), {A: 30, B: 5})

    before = of(tmp_path, choosing(subscribe=queue))
    journal.segment(split(A, 21, 30, 10, JOBS), {A: 20, B: 9})

    assert before == [("put aside", str(A), 21, 30)]
    assert of(tmp_path, choosing(subscribe=queue)) == []


def test_a_lost_file_is_reported_whatever_is_chosen(tmp_path: Path) -> None:
    lost_file(tmp_path)

    assert of(tmp_path, choosing(subscribe=MAILS)) == [("lost file", "", 0, 0)]


def test_everything_that_is_chosen_is_read_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    """Fanouts by their names; one that cannot say its own is verified when it may be what was asked for."""
    journal = node(tmp_path, "a")
    jobs, mails = journal.segment(split(A, 1, 30, 10, JOBS)), journal.segment(split(A, 31, 40, 10, MAILS), {A: 30})
    news = fanout(tmp_path, "a", "/fanout/news").segment([batch(A, 1, messages(1, 2, "/fanout/news"))], sealed=False)
    dark = fanout(tmp_path, "a", "/fanout/dark").segment([batch(A, 1, messages(1, 2, "/fanout/dark"))], sealed=False)
    for path in (jobs, mails, dark):
        flip(path, path.read_bytes().index(BATCH_MAGIC) + 130)
    directory = DataDirectory(tmp_path / "a")

    def read(**said: str) -> set[str]:
        return {extent.path for extent in extents(directory, choosing(**said))}

    tail = str(max((tmp_path / "a" / "journal").iterdir()))
    choice = choosing(subscribe=MAILS)
    shown = audit([directory], choice=choice)
    audit_deep(spark, [directory], shown, choice=choice)

    assert read(subscribe=MAILS) == {str(mails), tail}
    assert read(subscribe="/fanout/news") == {str(news), tail}
    assert read(subscribe="/fanout/dark") == {str(dark), tail}
    assert read(subscribePattern="/fanout/n.*") == {str(news), str(dark), tail}
    assert read() == {str(path) for path in (jobs, mails, news, dark, tail)}
    assert [finding.kind for finding in shown.findings] == ["corrupt"] and str(mails) in shown.findings[0].where


def test_the_command_audits_what_is_chosen_and_does_not_name_nodes_that_are_behind(tmp_path: Path) -> None:
    four_segments(tmp_path)
    path = str(tmp_path / "a")

    shown = CliRunner().invoke(main, ["pipeline", "audit", path, "--destination", MAILS])
    told = CliRunner().invoke(main, ["pipeline", "audit", path, "--destination", MAILS, "--json"])
    everything = CliRunner().invoke(main, ["pipeline", "audit", path])

    assert shown.exit_code == told.exit_code == 1
    assert "41–50" in shown.output and "11–20" not in shown.output and "BEHIND" not in shown.output
    assert "11–20" in everything.output and "BEHIND" in everything.output
    row = {"node": "a", "origin": str(A), "first": 31, "last": 130, "records": 40}
    assert json.loads(told.output)["rows"] == [row]


def test_a_live_node_cannot_be_audited_in_part(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 5, 5))

    result = CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path / "a"), "127.0.0.1:1", "--from", "2026-01-01"])

    assert result.exit_code == 2
    assert "127.0.0.1:1 is a live node" in result.output and "data directory" in result.output
