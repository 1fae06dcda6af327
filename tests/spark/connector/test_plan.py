"""Which records are read from where: each once, from whichever node has it, and a clear word when none has."""

from pathlib import Path

import msgpack
import pytest

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Vector
from qmq.spark.reading import segments
from qmq.spark.reading.files import Files
from qmq.spark.reading.logs import DataDirectory, Log
from qmq.spark.reading.options import Options, read_options
from qmq.spark.reading.plan import DataLoss
from qmq.spark.reading.segments import SegmentFile, SegmentListing
from qmq.spark.reading.tables import time_of
from qmq.storage.format import segment
from qmq.storage.format.batch import BATCH_MAGIC, GAPS, SHARED_VERSION, encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_gap, pack_reference
from qmq.storage.log.quarantine import HOLES_SUFFIX
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left, snapshot_batch
from tests.spark.rig import START_US, A, B, Journal, batch, fanout, messages, node, record, rest, rows, settle, split
from tests.storage.rig import LIKE_AN_INDEX


def asked(root: Path, **said: str) -> Options:
    return read_options({"path": f"{root}/*", **said})


def read(
    options: Options, start: Vector | None = None, end: Vector | None = None, *, strict: bool = False
) -> list[int]:
    """Sequences of the messages that are read, in the order of parts."""
    files = Files(options)
    parts = files.plan(start or {}, files.available() if end is None else end, strict=strict)
    return [row["sequence"] for row in rows(parts, options, ["sequence"])]


def test_each_record_is_read_once_although_several_nodes_have_it(tmp_path: Path) -> None:
    shared = split(A, 1, 100, 10)
    node(tmp_path, "a").segment([*shared, *split(A, 101, 120, 7)])
    behind = node(tmp_path, "b")
    behind.segment(shared)
    behind.segment(split(B, 1, 30, 3), {A: 100}, sealed=False)

    assert sorted(read(asked(tmp_path))) == sorted([*range(1, 121), *range(1, 31)])


def test_what_one_node_lacks_comes_from_the_other(tmp_path: Path) -> None:
    """Both have overlapping parts that begin and end in the middle of each other's batches."""
    node(tmp_path, "a").segment(split(A, 41, 100, 7), {A: 40})
    node(tmp_path, "b").segment(split(A, 1, 60, 11))

    assert sorted(read(asked(tmp_path))) == list(range(1, 101))


def test_only_what_lies_between_two_vectors_is_read(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 50, 8))
    journal.segment(split(A, 51, 100, 8), {A: 50}, sealed=False)

    assert read(asked(tmp_path), {A: 17}, {A: 83}, strict=True) == list(range(18, 84))


def test_what_no_node_has_is_named(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 41, 60, 5), {A: 40})
    options = asked(tmp_path)

    with pytest.raises(DataLoss, match=f"{A} from 11 to 40.*failOnDataLoss to false .*: --set failOnDataLoss=false"):
        read(options, {A: 10}, {A: 60}, strict=True)
    assert read(asked(tmp_path, failOnDataLoss="false"), {A: 10}, {A: 60}, strict=True) == list(range(41, 61))


def test_a_reader_of_all_there_is_learns_what_is_missing_for_no_reason(tmp_path: Path) -> None:
    """Records 1 to 10 have left the journals; 21 to 30 no node has, and none says why."""
    node(tmp_path, "a").segment([*split(A, 11, 20, 5), *split(A, 31, 40, 5)], {A: 10})
    node(tmp_path, "b").segment(split(B, 1, 5, 5))

    with pytest.raises(DataLoss, match=f"to be read: {A} from 21 to 30\\."):
        read(asked(tmp_path))
    allowed = read(asked(tmp_path, failOnDataLoss="false"))
    assert sorted(allowed) == sorted([*range(1, 6), *range(11, 21), *range(31, 41)])


def test_the_past_of_a_fanout_comes_from_its_log(tmp_path: Path) -> None:
    """The journal begins at 40; the fanout's log goes from 2 to 50, every second record, and overlaps."""
    even = [record(number, b"", "/fanout/f") for number in range(2, 51, 2)]
    fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 2, even, last=50)])
    mixed = [record(n, b"", "/fanout/f" if n % 2 == 0 else "/queue/jobs") for n in range(41, 61)]
    node(tmp_path, "a").segment([batch(A, 41, mixed)], {A: 40})

    assert sorted(read(asked(tmp_path, subscribe="/fanout/f"))) == list(range(2, 61, 2))
    assert sorted(read(asked(tmp_path))) == [*range(2, 41, 2), *range(41, 61)]
    assert read(asked(tmp_path, subscribe="/fanout/f"), {A: 9}, {A: 60}, strict=True)


def test_a_log_that_a_node_has_just_begun_has_nothing_yet(tmp_path: Path) -> None:
    """The directory is there before its first file."""
    fanout(tmp_path, "a", "/fanout/f")
    node(tmp_path, "a").segment(split(A, 1, 10, 10))
    node(tmp_path, "b")

    files = Files(asked(tmp_path, subscribe="/fanout/f"))

    assert files.available() == {A: 10}
    assert files.plan({}, {A: 10}, strict=False) == []


def test_a_pattern_leaves_out_what_is_no_data_directory_as_long_as_it_is_none(tmp_path: Path) -> None:
    """A stream goes on while a new node makes its directory, and reads it once it has a journal."""
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(FileNotFoundError, match="is not the data directory"):
        Files(asked(tmp_path))
    node(tmp_path, "a").segment(split(A, 1, 10, 10))
    files = Files(asked(tmp_path))
    (tmp_path / "b").mkdir()

    before = files.available()
    node(tmp_path, "b").segment(split(B, 1, 5, 5))

    assert (before, files.available()) == ({A: 10}, {A: 10, B: 5})


def test_a_node_says_its_name_with_its_first_segment(tmp_path: Path) -> None:
    """Until then its directory stands for it; what a node notes about itself counts only under its own name."""
    (tmp_path / "data" / "journal").mkdir(parents=True)
    directory = DataDirectory(tmp_path / "data")

    before = directory.node
    Journal(tmp_path / "data" / "journal", "a").segment(split(A, 1, 10, 10))
    directory.look()

    assert (before, directory.node) == ("data", "a")
    assert {found.node for found, _ in directory.journal.segments()} == {"a"}


def test_two_nodes_logs_of_a_fanout_are_not_both_read(tmp_path: Path) -> None:
    for name in "ab":
        log = [record(number, b"", "/fanout/f") for number in range(1, 31, 3)]
        fanout(tmp_path, name, "/fanout/f").segment([batch(A, 1, log, last=28)])
        node(tmp_path, name).segment(split(A, 31, 40, 5), {A: 30})

    assert sorted(read(asked(tmp_path, subscribe="/fanout/f"))) == list(range(1, 31, 3))


def test_destinations_are_chosen_by_name_and_by_pattern(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment([batch(A, 1, messages(1, 5, "/queue/x")), batch(A, 6, messages(6, 9, "/queue/y"))])
    journal.segment([batch(A, 10, messages(10, 12, "/fanout/x"))], {A: 9})

    assert read(asked(tmp_path, subscribe="/queue/y,/fanout/x")) == [*range(6, 13)]
    assert read(asked(tmp_path, subscribePattern="/queue/.*")) == [*range(1, 10)]
    assert read(asked(tmp_path, subscribePattern="/queue")) == []


def test_a_segment_whose_index_lists_no_destinations_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "DESTINATIONS_MAX", 1)
    node(tmp_path, "a").segment([batch(A, 1, messages(1, 5, "/queue/x")), batch(A, 6, messages(6, 9, "/queue/y"))])

    assert read(asked(tmp_path, subscribe="/queue/y")) == [6, 7, 8, 9]


def test_times_are_chosen_also_where_a_clock_went_backwards(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    for first, seconds in ((1, 500), (4, 900), (7, 100)):
        stamped = [record(first + n, at_us=START_US + (seconds + n) * 1_000_000) for n in range(3)]
        times = (START_US + seconds * 1_000_000, START_US + (seconds + 2) * 1_000_000)
        journal.segment([encode_batch(A, stamped, first, first + 2, *times)], {A: first - 1})
    begin_ms = START_US // 1000

    def between(start: int, end: int) -> list[int]:
        times = {"startingTimestamp": str(begin_ms + start * 1000), "endingTimestamp": str(begin_ms + end * 1000)}
        return read(asked(tmp_path, **times))

    assert between(100, 500) == [7, 8, 9]
    assert between(501, 902) == [2, 3, 4, 5]
    assert between(0, 100) == []


def test_settles_are_no_messages(tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 1, [*messages(1, 3), settle(4, Dot(A, 1), Dot(A, 3)), *messages(5, 6)])])

    assert read(asked(tmp_path)) == [1, 2, 3, 5, 6]


def test_the_log_has_every_record_of_every_node(tmp_path: Path) -> None:
    data = [batch(A, 1, [*messages(1, 2), settle(3, Dot(A, 1)), record(4, kind=99)])]
    for name in "ab":
        node(tmp_path, name).segment(data)
    options = asked(tmp_path, view="log")

    found = rows(Files(options).plan_nodes(), options, ["node", "sequence", "kind", "settled"])

    assert [(row["node"], row["sequence"]) for row in found] == [(name, n) for name in "ab" for n in range(1, 5)]
    assert [row["kind"] for row in found[:4]] == ["PUBLISH", "PUBLISH", "SETTLE", "99"]
    assert [row["settled"] for row in found[:4]] == [None, None, [f"{A}-1"], None]


@pytest.mark.parametrize("sealed", [True, False])
def test_parts_are_split_and_put_together_to_about_one_size(tmp_path: Path, sealed: bool) -> None:
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 1000, 10), sealed=sealed)
    for start in range(1001, 1101, 10):
        journal.segment(split(A, start, start + 9, 10), {A: start - 1}, sealed=sealed)
    options = asked(tmp_path, minPartitions="5")
    files = Files(options)

    parts = files.plan({}, files.available(), strict=False)

    assert 5 <= len(parts) <= 8
    assert [row["sequence"] for row in rows(parts, options, ["sequence"])] == list(range(1, 1101))


def test_the_end_of_a_live_segment_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10), sealed=False)
    whole = path.read_bytes()
    options = asked(tmp_path)
    files = Files(options)
    for cut in (1, 50, 200):
        path.write_bytes(whole[:-cut])
        assert files.available() == {A: 20}
    path.write_bytes(whole)

    assert files.available() == {A: 30}
    assert [row["sequence"] for row in rows(files.plan({A: 20}, {A: 30}, strict=True), options, ["sequence"])] == [
        *range(21, 31)
    ]


@pytest.mark.parametrize("what", LIKE_AN_INDEX)
def test_a_body_that_ends_like_an_index_hides_no_message(tmp_path: Path, what: str) -> None:
    journal = node(tmp_path, "a")
    body = b"x" * 100 + LIKE_AN_INDEX[what]
    journal.segment([batch(A, n, [record(n, body)]) for n in (1, 2)], sealed=False)
    journal.segment([batch(A, n, [record(n, body)]) for n in (3, 4)], {A: 2}, sealed=False)

    assert read(asked(tmp_path)) == [1, 2, 3, 4]


def test_damage_before_the_end_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10), sealed=False)
    damage(path, 400)

    with pytest.raises(DataLoss, match="no batch can be read"):
        read(asked(tmp_path))
    assert read(asked(tmp_path, failOnDataLoss="false"), {}, {A: 30}) == list(range(11, 31))


def test_a_directory_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()

    with pytest.raises(FileNotFoundError, match="not the data directory of a node"):
        Files(asked(tmp_path))
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        Files(read_options({"path": f"{tmp_path}/none*"}))


def test_a_segment_that_was_dropped_since_the_plan_ends_the_query_unless_losses_are_allowed(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    first = journal.segment(split(A, 1, 10, 5))
    journal.segment(split(A, 11, 20, 5), {A: 10})
    options, lenient = asked(tmp_path), asked(tmp_path, failOnDataLoss="false")
    parts = Files(options).plan({}, {A: 20}, strict=True)
    first.unlink()

    with pytest.raises(DataLoss, match=f"{first}: the node has dropped"):
        rows(parts, options, ["sequence"])
    assert [row["sequence"] for row in rows(parts, lenient, ["sequence"])] == list(range(11, 21))


def two_segments_and_the_first_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int) -> Files:
    """Records 1 to 10 go when the journal has been looked at so often; 11 to 20 stay."""
    journal = node(tmp_path, "a")
    first = journal.segment(split(A, 1, 10, 5))
    journal.segment(split(A, 11, 20, 5), {A: 10})
    files = Files(asked(tmp_path))
    listed = Log.files
    left = [looks]

    def dropped_behind(log: Log) -> object:
        found = listed(log)
        left[0] -= 1
        if not left[0]:
            first.unlink()
        return found

    monkeypatch.setattr(Log, "files", dropped_behind)
    return files


def test_what_is_there_is_known_although_retention_drops_a_segment_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = two_segments_and_the_first_is_dropped(tmp_path, monkeypatch, 1)

    assert files.available() == {A: 20}


def test_segments_that_have_nothing_beyond_the_start_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning the tail of a long log costs what the tail costs."""
    journal, looked_at = node(tmp_path, "a"), set[Path]()
    paths = [journal.segment(split(A, first, first + 9, 5), {A: first - 1}) for first in range(1, 51, 10)]
    listed = SegmentFile.list

    def look(segment: SegmentFile) -> SegmentListing:
        looked_at.add(segment.path)
        return listed(segment)

    monkeypatch.setattr(SegmentFile, "list", look)
    files = Files(asked(tmp_path))
    parts = files.plan({A: 35}, files.available(), strict=True)

    assert [row["sequence"] for row in rows(parts, asked(tmp_path), ["sequence"])] == list(range(36, 51))
    assert looked_at.isdisjoint(paths[:3]) and looked_at >= {*paths[3:]}


@pytest.mark.parametrize("looks", range(1, 6))
def test_what_retention_drops_while_a_query_from_the_beginning_is_planned_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """After the first look at the journal, the second, …: planning takes several."""
    files = two_segments_and_the_first_is_dropped(tmp_path, monkeypatch, looks)

    parts = files.plan({}, {A: 20}, strict=False)

    going_on = asked(tmp_path, failOnDataLoss="false")
    assert [row["sequence"] for row in rows(parts, going_on, ["sequence"])][-10:] == list(range(11, 21))


def test_a_fanout_that_was_quiet_before_its_journal_begins_is_no_loss(tmp_path: Path) -> None:
    """Its last record before is 30, the journal begins at 100; a stream stopped at 40 goes on."""
    fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 10, [record(n, b"", "/fanout/f") for n in (10, 30)], last=30)])
    node(tmp_path, "a").segment([batch(A, 101, messages(101, 110, "/fanout/f"))], {A: 100})
    options = asked(tmp_path, subscribe="/fanout/f")

    assert read(options, {A: 40}, {A: 110}, strict=True) == list(range(101, 111))
    assert sorted(read(options, {A: 15}, {A: 110}, strict=True)) == [30, *range(101, 111)]
    with pytest.raises(DataLoss, match=f"{A} from 6 to 9"):
        read(options, {A: 5}, {A: 110}, strict=True)


def test_a_stream_from_the_earliest_begins_behind_what_a_node_gave_up(tmp_path: Path) -> None:
    """Node b joined when a had dropped its first records: its journal begins without them, and has no base."""
    node(tmp_path, "a").segment(split(A, 101, 120, 5), {A: 100, B: 7})
    node(tmp_path, "b").segment(split(A, 101, 120, 5))
    options = asked(tmp_path)

    base = Files(options).base()

    assert base == {A: 100, B: 7}
    assert sorted(read(options, base, {A: 120, B: 7}, strict=True)) == list(range(101, 121))


@pytest.mark.parametrize("sealed", [True, False])
def test_a_stream_from_the_earliest_begins_behind_what_is_missing_for_a_reason(tmp_path: Path, sealed: bool) -> None:
    """Node b was away for too long twice: it gave up a's 41 to 60, and got a rest of 71 to 80."""
    noted = encode_batch(B, [record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    left = rest(A, 71, 80, [record(77), record(80)])
    after = split(A, 81, 90, 5)
    journal = node(tmp_path, "b")
    journal.segment([*split(A, 1, 40, 5), noted, *split(A, 61, 70, 5), left, *after], sealed=sealed)
    options = asked(tmp_path)

    base = Files(options).base()

    assert base == {A: 80, B: 0}
    assert sorted(read(options, base, {A: 90, B: 1}, strict=True)) == list(range(81, 91))


@pytest.mark.parametrize("gave_up", [True, False])
def test_a_stream_from_the_earliest_begins_behind_an_end_that_is_missing_for_a_reason(
    tmp_path: Path, gave_up: bool
) -> None:
    """The life of node a that ended at 60: node b was away for the end of it."""
    noted = encode_batch(B, [record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    left = rest(A, 41, 60, [record(47), record(60)])
    journal = node(tmp_path, "b")
    journal.segment([*split(A, 1, 40, 5), *([noted] if gave_up else [left, batch(B, 1, messages(1, 1))])])
    journal.segment(split(B, 2, 5, 5), {A: 60, B: 1}, sealed=False)
    options = asked(tmp_path)

    base = Files(options).base()

    assert base == {A: 60, B: 0}
    assert len(read(options, base, {A: 60, B: 5}, strict=True)) == (4 if gave_up else 5)


@pytest.mark.parametrize("place", [0, -1])
def test_a_stream_that_goes_on_over_damage_does_so_where_a_node_noted_what_it_gave_up(
    tmp_path: Path, place: int
) -> None:
    noted = encode_batch(B, [record(1, pack_gap(A, 60), "", kind=RecordKind.GAP)], 1, 1, START_US, START_US, GAPS)
    path = node(tmp_path, "b").segment([*split(A, 1, 40, 5), noted, *split(A, 61, 70, 5)])
    damage(path, path.read_bytes().index(noted) + place % len(noted))
    options = asked(tmp_path, failOnDataLoss="false")

    base = Files(options).base()

    assert read(options, base, {A: 70, B: 1}, strict=True) == [*range(1, 41), *range(61, 71)]


def test_a_stream_from_the_earliest_does_not_pass_over_what_is_missing_for_no_reason(tmp_path: Path) -> None:
    node(tmp_path, "b").segment([*split(A, 1, 40, 5), *split(A, 61, 70, 5)])
    options = asked(tmp_path)

    with pytest.raises(DataLoss, match=f"{A} from 41 to 60"):
        read(options, Files(options).base(), {A: 70}, strict=True)


def test_a_stream_from_the_earliest_has_all_of_an_origin_that_begins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 10, 5))
    files = Files(asked(tmp_path))
    look = Files.available

    def look_when_it_has_begun(files: Files) -> Vector:
        journal.segment(split(B, 1, 5, 5), {A: 10}, sealed=False)
        return look(files)

    monkeypatch.setattr(Files, "available", look_when_it_has_begun)

    assert files.base() == {A: 0, B: 0}


def test_a_stream_of_fanouts_from_the_earliest_has_what_a_rest_kept_of_them(tmp_path: Path) -> None:
    left = rest(A, 1, 20, [record(7, b"", "/fanout/f"), record(20)])
    node(tmp_path, "a").segment([left, *split(A, 21, 30, 5, "/fanout/f")])
    options = asked(tmp_path, subscribe="/fanout/f")

    assert sorted(read(options, Files(options).base(), {A: 30}, strict=True)) == [7, *range(21, 31)]


def test_a_range_of_which_a_node_got_a_rest_comes_from_one_that_has_all_of_it(tmp_path: Path) -> None:
    """Node a was away for long, and peers sent what their stores had left."""
    left = rest(A, 1, 20, [record(7), record(20)])
    node(tmp_path, "a").segment([left, *split(A, 21, 30, 5)])
    node(tmp_path, "b").segment(split(A, 11, 30, 5), {A: 10})

    assert sorted(read(asked(tmp_path))) == [7, *range(11, 31)]
    assert sorted(read(asked(tmp_path), {A: 10}, {A: 30}, strict=True)) == list(range(11, 31))


@pytest.mark.parametrize("sealed", [True, False])
def test_a_rest_that_lacks_only_its_last_record_is_read_where_all_of_it_is(tmp_path: Path, sealed: bool) -> None:
    """A mark stands in the place of that one, so it has as many records as sequences."""
    left = snapshot_batch(A, 0, RangeSnapshot(5, 0, 0, messages(1, 4)))
    node(tmp_path, "a").segment([left, *split(A, 6, 10, 5)], sealed=sealed)
    node(tmp_path, "b").segment(split(A, 1, 10, 10))

    assert sorted(read(asked(tmp_path), strict=True)) == list(range(1, 11))
    assert Files(read_options({"path": str(tmp_path / "a")})).base() == {A: 5}


@pytest.mark.parametrize("place", range(4, 260, 24))
def test_a_rest_that_is_damaged_is_an_error_that_names_the_file(tmp_path: Path, place: int) -> None:
    left = snapshot_batch(A, 0, RangeSnapshot(3, 0, 0, messages(1, 2)))
    path = node(tmp_path, "a").segment([left, *split(A, 4, 10, 5)])
    damage(path, path.read_bytes().index(BATCH_MAGIC) + place)

    with pytest.raises(CorruptLog, match=str(path)):
        read(asked(tmp_path))


def test_a_range_snapshot_is_a_loss_for_a_reader_that_expects_everything(tmp_path: Path) -> None:
    """What was settled or dropped before is in it no more."""
    left = rest(A, 1, 20, [record(7), record(20, b"", "/fanout/f")])
    node(tmp_path, "a").segment([left, *split(A, 21, 30, 5)])
    options, lenient = asked(tmp_path), asked(tmp_path, failOnDataLoss="false")

    with pytest.raises(DataLoss, match=f"{A} from 6 to 20"):
        read(options, {A: 5}, {A: 30}, strict=True)
    assert sorted(read(lenient, {A: 5}, {A: 30}, strict=True)) == [7, *range(20, 31)]
    assert sorted(read(asked(tmp_path, subscribe="/fanout/f"), {A: 5}, {A: 30}, strict=True)) == [20]
    assert Files(options).base() == {A: 20}


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def damage_second_batch(path: Path) -> tuple[int, int]:
    """Returns where it stands."""
    data = path.read_bytes()
    start = data.index(BATCH_MAGIC, data.index(BATCH_MAGIC) + 1)
    damage(path, start + 200)
    return start, data.index(BATCH_MAGIC, start + 1)


def quarantine(root: Path, start: int, end: int, *, is_head: bool = False) -> None:
    """Node a has noted that a's 11 to 20, or the head of a segment, cannot be read there."""
    (root / "a" / "quarantine").mkdir()
    noted = msgpack.packb([[start, end, None, 0, 0] if is_head else [start, end, list(A), 11, 20]])
    (root / "a" / "quarantine" / f"{start:016x}{HOLES_SUFFIX}").write_bytes(noted)


@pytest.mark.parametrize("sealed", [True, False])
def test_what_a_node_puts_aside_while_a_stream_reads_it_is_no_damage(tmp_path: Path, sealed: bool) -> None:
    """The node was started again; peers send the damaged records once more. An index still lists those put aside."""
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=sealed)
    options = asked(tmp_path)
    files = Files(options)
    start, end = damage_second_batch(path)
    files.available()
    if not sealed:
        with pytest.raises(DataLoss, match="not quarantined it"):
            files.plan({}, {A: 10}, strict=False)

    quarantine(tmp_path, start, end)
    files.available()
    with pytest.raises(DataLoss, match=f"{A} from 11 to 20"):
        files.plan({}, {A: 30}, strict=True)
    journal.segment([batch(A, 11, messages(11, 20))], {A: 30})

    files.available()
    found = rows(files.plan({}, {A: 30}, strict=True), options, ["sequence"])
    assert sorted(row["sequence"] for row in found) == list(range(1, 31))


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_whose_head_the_node_has_put_aside_is_read(tmp_path: Path, sealed: bool, number: int) -> None:
    """It goes on with its batches. What came before them the next head says."""
    journal = node(tmp_path, "a", base=4096)
    journal.segment(split(A, 11, 20, 5), {A: 10, B: 7}, sealed=sealed)
    journal.segment(split(A, 21, 30, 5), {A: 20, B: 7}, sealed=sealed)
    journal.segment(split(A, 31, 40, 5), {A: 30, B: 7}, sealed=False)
    path = sorted((tmp_path / "a" / "journal").iterdir())[number]
    base = int(path.stem, 16)
    damage(path, 9)
    quarantine(tmp_path, base, base + path.read_bytes().index(BATCH_MAGIC), is_head=True)
    directory = DataDirectory(tmp_path / "a")

    assert read(asked(tmp_path)) == list(range(11, 41))
    assert (directory.base(), directory.vector()) == ({A: 10, B: 7}, {A: 40, B: 7})
    assert Files(asked(tmp_path)).base() == {A: 10, B: 7}


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_at_the_end_of_a_segment_that_is_not_the_last_is_an_error(tmp_path: Path, sealed: bool) -> None:
    """What is left of an index counts as nothing, but what is lost before it does."""
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=sealed)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    damage(path, path.read_bytes().rindex(BATCH_MAGIC) + 200)
    damage(path, path.stat().st_size - 1)

    with pytest.raises(DataLoss, match=f"{path}: no batch can be read"):
        read(asked(tmp_path))
    assert read(asked(tmp_path, failOnDataLoss="false")) == [*range(1, 21), *range(31, 41)]


def test_damage_at_the_end_is_listed_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=False)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    damage(path, path.read_bytes().rindex(BATCH_MAGIC) + 200)
    log = DataDirectory(tmp_path / "a").journal

    looks = [log.segments()[0][1].damage for _ in range(3)]

    assert [len(found) for found in looks] == [1, 1, 1]


@pytest.mark.parametrize("damaged", [None, 1, 20, 39])
@pytest.mark.parametrize("cut", [0, 40])
def test_a_segment_that_is_read_in_pieces_lists_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int | None, cut: int
) -> None:
    """Batches that end in the next piece, one longer than a piece, damage, a torn end, a rest and a GAP."""
    log = [*split(A, 1, 60, 3), rest(A, 61, 70, messages(70, 70)), batch(A, 71, [record(71, bytes(5000))])]
    log += [encode_batch(A, [record(72, pack_gap(B, 9), kind=RecordKind.GAP)], 72, 72, START_US, START_US, GAPS)]
    log += split(A, 73, 130, 3)
    path = node(tmp_path, "a").segment(log, sealed=False)
    if damaged is not None:
        damage(path, path.read_bytes().index(log[damaged]) + 130)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    at_once = SegmentFile(path, 0, "a", []).list()

    for size in (1, 200, 777, 4096):
        monkeypatch.setattr(segments, "PIECE_BYTES", size)
        assert SegmentFile(path, 0, "a", []).list() == at_once

    assert [entry.offset for entry in at_once.entries] == [
        path.read_bytes().index(data) for number, data in enumerate(log[: -1 if cut else None]) if number != damaged
    ]


def test_what_is_left_of_an_index_without_damage_before_it_is_none(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10))
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    damage(path, path.stat().st_size - 1)

    assert read(asked(tmp_path)) == list(range(1, 41))


def test_damage_that_an_index_hides_is_an_error_unless_losses_are_allowed(tmp_path: Path) -> None:
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10))
    damage_second_batch(path)

    with pytest.raises(CorruptLog, match=f"{path}: .*checksum differs"):
        read(asked(tmp_path))
    assert read(asked(tmp_path, failOnDataLoss="false")) == [*range(1, 11), *range(21, 31)]


def test_a_machine_that_does_not_see_the_files_does_not_take_them_for_dropped(tmp_path: Path) -> None:
    """With failOnDataLoss=false as well: an archive would go on behind what nobody has read."""
    path = node(tmp_path, "a").segment(split(A, 1, 30, 10))
    options = asked(tmp_path, failOnDataLoss="false")
    parts = Files(options).plan({}, {A: 30}, strict=True)

    path.unlink()
    assert rows(parts, options, ["sequence"]) == []
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        rows(parts, options, ["sequence"])


def test_an_error_about_a_segment_names_its_file(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    path = journal.segment(split(A, 1, 30, 10), sealed=False)
    journal.segment(split(A, 31, 40, 10), {A: 30}, sealed=False)
    options = asked(tmp_path)
    parts = Files(options).plan({}, {A: 30}, strict=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])

    with pytest.raises(CorruptLog, match=f"{path} is shorter"):
        rows(parts, options, ["sequence"])
    path.write_bytes(whole)
    damage(path, 9)
    with pytest.raises(CorruptLog, match=f"{path}: segment head"):
        read(asked(tmp_path))


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_reading_over_damage_goes_over_damaged_heads(tmp_path: Path, sealed: bool, number: int) -> None:
    journal = node(tmp_path, "a", base=4096)
    journal.segment(split(A, 11, 20, 5), {A: 10}, sealed=sealed)
    journal.segment(split(A, 21, 30, 5), {A: 20}, sealed=sealed)
    journal.segment(split(A, 31, 40, 5), {A: 30}, sealed=False)
    damage(sorted((tmp_path / "a" / "journal").iterdir())[number], 9)
    options = asked(tmp_path, failOnDataLoss="false")

    assert read(options) == list(range(11, 41))
    assert Files(options).base() == {A: 10}


def test_a_damaged_head_of_the_last_segment_is_an_error_unless_it_is_not_written_yet(tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment(split(A, 1, 10, 5))
    path = journal.segment(split(A, 11, 30, 10), {A: 10}, sealed=False)
    whole = path.read_bytes()

    path.write_bytes(whole[:9])
    assert read(asked(tmp_path)) == list(range(1, 11))
    path.write_bytes(whole)
    damage(path, 9)
    with pytest.raises(CorruptLog, match=f"{path}: segment head"):
        read(asked(tmp_path))


def test_a_damaged_batch_of_one_fanout_is_no_matter_of_the_others(tmp_path: Path) -> None:
    """A log says in its batches what it is of."""
    path = fanout(tmp_path, "a", "/fanout/f").segment(
        [batch(A, first, [record(n, b"", "/fanout/f") for n in (first, first + 2)], last=first + 2) for first in (1, 5)]
    )
    fanout(tmp_path, "a", "/fanout/g").segment([batch(A, 2, [record(2, b"", "/fanout/g")])])
    node(tmp_path, "a").segment(split(A, 8, 10, 5), {A: 7})
    damage(path, path.read_bytes().index(BATCH_MAGIC) + 130)

    assert read(asked(tmp_path, subscribe="/fanout/g")) == [2]
    assert read(asked(tmp_path, subscribe="/fanout/f", failOnDataLoss="false")) == [5, 7]
    with pytest.raises(CorruptLog, match=str(path)):
        read(asked(tmp_path, subscribe="/fanout/f"))


@pytest.mark.parametrize(
    ("said", "others"),
    [
        ({"subscribe": "/fanout/f"}, []),
        ({"subscribePattern": "/fanout/.*"}, [4, 5, 6]),
        ({}, [4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_a_fanout_log_of_which_nothing_can_be_read_is_an_error_for_its_readers(
    tmp_path: Path, said: dict[str, str], others: list[int]
) -> None:
    path = fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 1, messages(1, 3, "/fanout/f"))])
    fanout(tmp_path, "a", "/fanout/g").segment([batch(A, 4, messages(4, 6, "/fanout/g"))])
    node(tmp_path, "a").segment(split(A, 7, 10, 5), {A: 6})
    damage(path, path.read_bytes().index(BATCH_MAGIC) + 130)

    with pytest.raises(CorruptLog, match=str(path.parent)):
        read(asked(tmp_path, **said))
    assert sorted(read(asked(tmp_path, **said, failOnDataLoss="false"))) == others
    assert read(asked(tmp_path, subscribe="/fanout/g")) == [4, 5, 6]


def test_what_stands_for_a_range_that_is_nowhere_has_no_time(tmp_path: Path) -> None:
    """And none of 1970, where segments and ranges are told."""
    node(tmp_path, "a").segment(
        [*split(A, 1, 5, 5), snapshot_batch(A, 5, nothing_left(9)), snapshot_batch(B, 0, nothing_left(1))]
    )
    files = Files(asked(tmp_path))
    first, last = time_of(START_US + 1000), time_of(START_US + 5000)

    ranges = [tuple(row.values())[1:] for row in files.rows("ranges")]
    segment = files.rows("segments")[0]

    assert ranges == [(str(A), 1, 9, first, last), (str(B), 1, 1, None, None)]
    assert (segment["first_timestamp"], segment["last_timestamp"]) == (first, last)


def test_an_end_before_everything_leaves_nothing(tmp_path: Path) -> None:
    node(tmp_path, "a").segment(split(A, 1, 30, 10), sealed=False)

    assert read(asked(tmp_path, endingTimestamp="0")) == []


def test_a_batch_of_a_fanout_log_that_is_wanted_in_part_is_read_once(tmp_path: Path) -> None:
    """Its index lists each record, because those of other destinations stand between them."""
    even = [record(number, b"", "/fanout/f") for number in range(2, 51, 2)]
    fanout(tmp_path, "a", "/fanout/f").segment([batch(A, 2, even, last=50)])
    node(tmp_path, "a").segment(split(A, 51, 60, 5, "/fanout/f"), {A: 50})
    options = asked(tmp_path, subscribe="/fanout/f")

    (part,) = Files(options).plan({A: 10}, {A: 50}, strict=True)

    assert part.wanted is not None and part.wanted.of(A) == [(10, 50)]
    assert [row["sequence"] for row in rows([part], options, ["sequence"])] == list(range(12, 51, 2))


@pytest.mark.parametrize("lost", [5, 6])
def test_a_reader_of_everything_gets_the_gaps(tmp_path: Path, lost: int) -> None:
    """Records 5 to `lost` are nowhere."""
    node(tmp_path, "a").segment(
        [*split(A, 1, 4, 1), snapshot_batch(A, 4, nothing_left(lost)), *split(A, lost + 1, 9, 1)]
    )
    with pytest.raises(DataLoss):
        Files(asked(tmp_path)).plan({A: 2}, {A: 9}, strict=True)


@pytest.mark.parametrize("lost", [5, 6])
def test_what_another_directory_has_is_read_there(tmp_path: Path, lost: int) -> None:
    node(tmp_path, "a").segment(
        [*split(A, 1, 4, 1), snapshot_batch(A, 4, nothing_left(lost)), *split(A, lost + 1, 9, 1)]
    )
    node(tmp_path, "b").segment(split(A, 1, 9, 1))
    parts = Files(asked(tmp_path)).plan({A: 2}, {A: 9}, strict=True)
    assert "b" in {extent.node for part in parts for extent in part.extents}


@pytest.mark.parametrize("lost", [5, 6])
def test_the_base_of_a_stream_lies_behind_it(tmp_path: Path, lost: int) -> None:
    node(tmp_path, "a").segment(
        [*split(A, 1, 4, 1), snapshot_batch(A, 4, nothing_left(lost)), *split(A, lost + 1, 9, 1)]
    )
    assert Files(asked(tmp_path)).base() == {A: lost}


def test_batches_with_shared_bodies_give_the_rows_of_those_without(tmp_path: Path) -> None:
    """A batch of rows takes few of them, because each row has a copy of its body."""
    names = ["/fanout/f", "/queue/a", "/queue/b"]
    shared: list[bytes] = []
    plain: list[bytes] = []
    for first in range(1, 301, 3):
        body = b"%d" % first * 40
        whole = [record(first + place, body, name, at_us=START_US) for place, name in enumerate(names)]
        copies = [pack_reference(first + back, START_US, 0, pack_envelope(names[back], b""), back) for back in (1, 2)]
        times = (first, first + 2, START_US, START_US)
        plain.append(encode_batch(A, whole, *times))
        shared.append(encode_batch(A, [whole[0], *copies], *times, 0, SHARED_VERSION))
    columns = ["sequence", "destination", "body"]
    found = []
    for name, batches in (("shared", shared), ("plain", plain)):
        node(tmp_path / name, "a").segment(batches)
        options = asked(tmp_path / name)
        files = Files(options)
        found.append(rows(files.plan({}, files.available(), strict=False), options, columns))

    assert len(found[0]) == 300
    assert found[0] == found[1]
