"""The audit: does every node have every record of every origin, once, in order and undamaged?

By default nothing but indexes of segments and heads of batches is read: their ranges stand in the order in which the
journal has them, so what is missing, doubled or out of order shows. `deep` reads every byte and verifies checksums and
the sequences in the records, in Spark's workers.

What a node does not have is a finding only if nothing explains it: records before its journal's base were dropped by
retention, GAP records list what it gave up, its quarantine lists damaged ranges (a finding of its own until all of the
range is here again; of an unreadable range, until nothing at all is missing). Ranges that the mesh has closed as lost,
as GONE records show, are reported and are no finding. What other nodes have beyond its newest record is lag: it is
reported and no finding, because a mesh at work always has some.

A choice of time and destinations leaves segments out as planning does. Whatever these lack is no finding; what they
have, and what is given up in them, is not missing in the others. Lag is not reported then: it needs all segments.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from qmq.dots import Origin, Vector, merge
from qmq.errors import CorruptLog
from qmq.spark.reading.columns import EVERYTHING, Columns, Piece
from qmq.spark.reading.logs import DataDirectory, Extent, NotBegun, SegmentFile, SegmentListing
from qmq.spark.reading.lost_ranges import gone_in, gone_of
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import may_be_asked, passed_by
from qmq.spark.reading.ranges import RangeMap
from qmq.spark.reading.remote import read_journal
from qmq.storage.disk.disk import ReadOnlyDisk
from qmq.storage.format.batch import GAPS, REST, BatchHead, unpack_records
from qmq.storage.format.lost_record import LostRange
from qmq.storage.format.record import RecordKind, unpack_gap
from qmq.storage.format.segment import read_summary, scan
from qmq.storage.log.recovery import Quarantined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from qmq.spark.jobs.progress import ProgressReport

MISSING: Final = "missing"
DOUBLED: Final = "doubled"
OUT_OF_ORDER: Final = "out of order"
CORRUPT: Final = "corrupt"
LOST_FILE: Final = "lost file"
QUARANTINED: Final = "put aside"

FINDINGS_MAX: Final = 10_000
"""Findings of one node that are listed; a destroyed log would have millions."""


class Finding(NamedTuple):
    """Something that should not be. Records `first` to `last` of `origin`, or a place in a file."""

    node: str
    kind: str
    origin: str
    first: int
    last: int
    where: str

    @property
    def text(self) -> str:
        what = f" {self.origin} {self.first}–{self.last}" if self.origin else ""
        return f"{self.node}: {self.kind}{what}{f' ({self.where})' if self.where else ''}"


class OriginRow(NamedTuple):
    """One origin at one node. `behind`: records that another node has beyond this one's newest; None with a choice."""

    node: str
    origin: str
    first: int
    last: int
    records: int
    behind: int | None


class Gone(NamedTuple):
    """Records `first` to `last` of `origin`, of which not all are anywhere any more, as `node` has noted."""

    node: str
    origin: str
    first: int
    last: int


@dataclass(slots=True)
class Audit:
    """What came of it."""

    rows: list[OriginRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    healed: int = 0
    """Ranges that were quarantined, of which nothing is missing now."""
    gone: list[Gone] = field(default_factory=list)
    """No findings: no node has them, and readers get a notice."""
    bytes_verified: int = 0

    @property
    def clean(self) -> bool:
        return not self.findings


class _JournalWalk:
    """Goes through one node's journal in order and notes what is wrong."""

    def __init__(self, node: str, base: Vector) -> None:
        self.node = node
        self.have: Vector = dict(base)
        self.first: Vector = {}
        self.last: Vector = {}
        """The newest record that was looked at, where `have` counts what was left out, too."""
        self.records: dict[Origin, int] = {}
        self.given_up = RangeMap()
        self.elsewhere = RangeMap()
        """What segments have that were left out."""
        self.skipped = RangeMap()
        """Records of left-out segments that are not seen yet: they may still come."""
        self.missing: dict[Origin, list[tuple[int, int]]] = {}
        self.gone: dict[LostRange, None] = {}
        """In the order in which they were noted."""
        self.findings: list[Finding] = []

    def take(self, origin: Origin, first: int, last: int, where: str, records: int | None = None) -> None:
        """Records `first` to `last` stand next in the journal, or fewer `records` that are left of them."""
        have = self.have.get(origin, 0)
        self.last[origin] = max(last, self.last.get(origin, 0))
        self.first.setdefault(origin, first)
        self.records[origin] = self.records.get(origin, 0) + (last - first + 1 if records is None else records)
        if first > have + 1:
            self.missing.setdefault(origin, []).append((have, first - 1))
        elif first <= have:
            self._again(origin, first, min(last, have), where)
        self.have[origin] = max(have, last)

    def leave_out(self, ranges: RangeMap) -> None:
        """`ranges` stand next in the journal, in a segment that is not chosen."""
        self.skipped = self.skipped.minus(ranges)
        for origin, found in ranges.items():
            for after, through in found:
                self.skip_to({origin: after})
                self.elsewhere.add(origin, after, through)
                self.have[origin] = max(through, self.have.get(origin, 0))

    def skip_to(self, vector: Vector) -> None:
        """What comes next stands behind `vector`, and behind segments that were left out."""
        for origin, last in vector.items():
            self.skipped.add(origin, self.have.get(origin, 0), last)
            self.have[origin] = max(last, self.have.get(origin, 0))

    def account_for(self, origin: Origin, first: int, last: int) -> None:
        """What is missing of records `first` to `last` will not come, and is not needed."""
        known = RangeMap({origin: self.missing.get(origin, [])})
        self.missing[origin] = list(known.minus(RangeMap({origin: [(first - 1, last)]})).of(origin))

    def missing_ranges(self) -> int:
        return sum(map(len, self.missing.values()))

    def _again(self, origin: Origin, first: int, last: int, where: str) -> None:
        """Records that should have stood earlier: late ones fill what was missing, the others are doubled."""
        late: list[tuple[int, int]] = []
        for after, through in self.missing.get(origin, []):
            if after < last and through >= first:
                late.append((max(after, first - 1), min(through, last)))
        left = RangeMap({origin: [(first - 1, last)]}).minus(RangeMap({origin: late})).minus(self.skipped)
        self.skipped = self.skipped.minus(RangeMap({origin: [(first - 1, last)]}))
        known = RangeMap({origin: self.missing.get(origin, [])}).minus(RangeMap({origin: late}))
        self.missing[origin] = list(known.of(origin))
        self._note(OUT_OF_ORDER, origin, late, where)
        self._note(DOUBLED, origin, left.of(origin), where)

    def _note(self, kind: str, origin: Origin, ranges: Iterable[tuple[int, int]], where: str) -> None:
        for after, through in ranges:
            self.note(Finding(self.node, kind, str(origin), after + 1, through, where))

    def misses(self, quarantined: Quarantined) -> bool:
        """Whether some of the quarantined range is missing here, or may be."""
        if quarantined.origin is None:
            return bool(self.skipped) or any(map(self._missing_of, self.missing))
        here = RangeMap({quarantined.origin: [(quarantined.first - 1, self.have.get(quarantined.origin, 0))]})
        here = here.minus(self._missing_of(quarantined.origin)).minus(self.skipped)
        wanted = RangeMap({quarantined.origin: [(quarantined.first - 1, quarantined.last)]})
        return bool(wanted.minus(here))

    def is_lost(self, quarantined: Quarantined) -> bool:
        """Whether some of the quarantined range is lost, or may be."""
        if quarantined.origin is None:
            return bool(self.gone)
        return any(
            lost.origin == quarantined.origin and lost.first <= quarantined.last and quarantined.first <= lost.last
            for lost in self.gone
        )

    def _missing_of(self, origin: Origin) -> RangeMap:
        return RangeMap({origin: self.missing.get(origin, [])}).minus(self.elsewhere)

    def note(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def finish(self) -> None:
        """The journal ends: what is still missing and was not given up is a finding."""
        for origin in self.missing:
            left = self._missing_of(origin).minus(self.given_up)
            self._note(MISSING, origin, left.of(origin), "")


def audit(
    directories: Sequence[DataDirectory], servers: Sequence[Options] = (), *, choice: Options | None = None
) -> Audit:
    """Audit by indexes and heads. Reads every segment that has no index yet, and nothing else of the records.

    `choice`: of directories, only segments in which something of its time and destinations may stand.
    `servers` are options that name one live node each: it sends its whole journal, of which every checksum is verified.

    Raises NotConnected or Refused when one of them does not.
    """
    found = Audit()
    walks = [_walk(directory, found, choice) for directory in directories]
    walks += [_walk_server(options, found) for options in servers]
    have: Vector = {}
    for walk in walks:
        merge(have, walk.have)
    for walk in walks:
        found.findings += walk.findings
        found.gone += [Gone(walk.node, str(origin), first, last) for origin, first, last in walk.gone]
        found.rows += _chosen_rows(walk) if choice is not None and choice.chooses else _rows(walk, have)
        found.records += sum(walk.records.values())
    return found


def _rows(walk: _JournalWalk, have: Vector) -> Iterator[OriginRow]:
    for origin in sorted(have):
        last = walk.have.get(origin, 0)
        behind = have[origin] - last
        if last or behind:
            row = (str(origin), walk.first.get(origin, 0), last, walk.records.get(origin, 0), behind)
            yield OriginRow(walk.node, *row)


def _chosen_rows(walk: _JournalWalk) -> Iterator[OriginRow]:
    for origin, records in sorted(walk.records.items()):
        yield OriginRow(walk.node, str(origin), walk.first[origin], walk.last[origin], records, None)


def _walk(directory: DataDirectory, found: Audit, choice: Options | None) -> _JournalWalk:
    walk = _JournalWalk(directory.node, {})
    for entry in directory.quarantined:
        if entry.origin is not None:
            walk.given_up.add(entry.origin, entry.first - 1, entry.last)
    begins_here, left_out, expected = True, False, 0
    for segment in directory.journal.files():
        try:
            if begins_here:
                merge(walk.have, segment.head().vector if segment.knows_vector else directory.base())
            elif segment.base != expected:
                where = f"journal positions {expected}–{segment.base}"
                walk.note(Finding(walk.node, LOST_FILE, "", 0, 0, where))
            if _is_left_out(segment, choice):
                listing = segment.list()
                _learn_gaps(walk, segment, listing)
                walk.leave_out(listing.ranges())
                begins_here, left_out, expected = False, True, segment.base + listing.end
                continue
            if left_out and segment.knows_vector:
                walk.skip_to(segment.head().vector)
            end = _walk_segment(walk, segment)
        except FileNotFoundError:
            begins_here = True  # Retention of the running node was quicker: what is behind it is where the log begins.
            continue
        except NotBegun:
            break
        except CorruptLog as error:
            text = str(error)
            where = text if text.startswith(str(segment.path)) else f"{segment.path}: {text}"
            walk.note(Finding(walk.node, CORRUPT, "", 0, 0, where))
            end = segment.batches_end or 0
        else:
            begins_here = left_out = False  # Else it was the first one, and the next head says where the log begins.
        found.segments += 1
        expected = segment.base + end
    for entry in directory.quarantined:
        if walk.misses(entry):
            origin, where = str(entry.origin or ""), f"journal {entry.start}–{entry.end}"
            walk.note(Finding(walk.node, QUARANTINED, origin, entry.first, entry.last, where))
        elif not walk.is_lost(entry):
            found.healed += 1
    walk.finish()
    return walk


def _is_left_out(segment: SegmentFile, choice: Options | None) -> bool:
    """Whether nothing of the choice may stand in a segment. Raises as `Segment.list`."""
    # Without a choice whole indexes are not looked at: they take several times as long as their summaries.
    return choice is not None and choice.chooses and passed_by(segment.list(), choice)


def _walk_server(options: Options, found: Audit) -> _JournalWalk:
    """A live node sends what is durable, from its base on. It cannot send quarantined ranges: these are missing."""
    status, batches = read_journal(options)
    walk = _JournalWalk(status.node, status.base)
    for number, data in enumerate(batches):
        for lost_range in scan(data):
            piece = data[lost_range.start : lost_range.end]
            if lost_range.head is None or not _is_true(lost_range.head, piece):
                walk.note(Finding(walk.node, CORRUPT, "", 0, 0, f"message {number} of the journal"))
                continue
            head = lost_range.head
            if head.origin.node == walk.node:
                if head.attributes & GAPS:
                    _note_gaps(walk, head, piece)
                walk.gone.update(dict.fromkeys(gone_of(head, piece)))
            walk.take(head.origin, head.first, head.last, "", head.count)
        found.bytes_verified += len(data)
    for origin, last in status.base.items():
        walk.account_for(origin, 1, last)  # Retention was quicker.
    walk.finish()
    return walk


def _walk_segment(walk: _JournalWalk, segment: SegmentFile) -> int:
    """Returns the offset where its batches end, with damage and quarantined ranges."""
    name = segment.path.name
    end = segment.batches_end
    quarantine = [stop for start, stop in segment.holes if end is not None and start < end]
    file = ReadOnlyDisk(segment.path.parent).open(name)
    try:
        # An index may be older than the quarantine.
        summary = read_summary(file, end) if end is not None and not quarantine else None
    finally:
        file.close()
    if end is not None and summary is not None:
        if any(kind in (RecordKind.GAP, RecordKind.GONE) for _, kind in summary.kinds):
            _learn_gaps(walk, segment, segment.list())
        missing = walk.missing_ranges()
        for origin, ranges in summary.ranges.items():
            for first, last in ranges:
                walk.take(origin, first, last, name)
        if walk.missing_ranges() > missing:
            _learn_compacted(walk, segment.list())
        return end
    listing = segment.list()
    for start, stop in listing.damage:
        walk.note(_damaged(walk.node, str(segment.path), start, stop))
    _learn_gaps(walk, segment, listing)
    for entry in listing.entries:
        walk.take(entry.origin, entry.first, entry.last, name, entry.records)
    return max([listing.reach, *quarantine])


def _learn_compacted(walk: _JournalWalk, listing: SegmentListing) -> None:
    """Ranges of which peers had only a range snapshot when the node asked: it has all that there was."""
    for entry in listing.compacted:
        walk.account_for(entry.origin, entry.first, entry.last)


def _learn_gaps(walk: _JournalWalk, segment: SegmentFile, listing: SegmentListing) -> None:
    """Ranges that the node itself has noted as given up, never to come, or lost."""
    for given_up, through in segment.given_up(listing).items():
        walk.given_up.add(given_up, 0, through)
    walk.gone.update(dict.fromkeys(gone_in(segment, listing)))


def _note_gaps(walk: _JournalWalk, head: BatchHead, batch: bytes) -> None:
    for record in unpack_records(head, batch):
        if record[2] >> 56 == RecordKind.GAP:
            gone, through = unpack_gap(record[5])
            walk.given_up.add(gone, 0, through)


# Deep: in Spark's workers


def audit_deep(
    spark: "SparkSession",
    directories: Sequence[DataDirectory],
    found: Audit,
    *,
    choice: Options | None = None,
    tell: "ProgressReport | None" = None,
) -> None:
    """Add to `found` what only reading everything shows, or everything of a `choice` (see `audit`)."""
    extents = [extent for directory in directories for extent in extents_of(directory, choice)]
    if not extents:
        return
    from qmq.spark.jobs.progress import watched
    from qmq.spark.jobs.tasks import results_of

    with watched(spark, tell):
        findings = results_of(spark, extents, verify_extent)
    known = {finding.where for finding in found.findings}
    found.findings += [finding for finding in findings if finding.where not in known]
    found.bytes_verified += sum(extent.end - extent.start for extent in extents)


def extents_of(directory: DataDirectory, choice: Options | None = None) -> Iterator[Extent]:
    """All batches of a node, journal and fanout logs, a segment at a time; of one without a head, all bytes.

    With a `choice` only the segments that it does not leave out, and of fanout logs those of its destinations.
    """
    fanouts = directory.fanout_logs()
    if choice is not None and choice.chooses:
        fanouts = (log for log in fanouts if may_be_asked(directory.name_of(log), log, choice))
    for log in [directory.journal, *fanouts]:
        for segment in log.files():
            try:
                if _is_left_out(segment, choice):
                    continue
                yield segment.extent(segment.head().size, segment.list().reach)
            except (FileNotFoundError, NotBegun):
                continue  # Retention of the running node was quicker, or it has just begun the file.
            except CorruptLog:
                yield segment.extent(0, segment.batches_end or segment.path.stat().st_size)


def verify_extent(extent: Extent) -> list[Finding]:
    """Every batch of `extent`: checksum, record lengths, and the sequences in its records.

    Raises FileNotFoundError where the directory is not there, as on a machine that does not share it.
    """
    findings: list[Finding] = []
    begin = extent.start
    try:
        with open(extent.path, "rb") as file:
            data = file.read(extent.end)
    except FileNotFoundError:
        if not Path(extent.path).parent.is_dir():
            raise  # This worker does not see the files.
        return []  # Retention of the running node was quicker.
    for start, stop in [*extent.holes, (extent.end, extent.end)]:
        piece = data[begin : max(begin, min(start, extent.end))]
        for found in scan(piece):
            offset = begin + found.start
            if found.head is None:
                findings.append(_damaged(extent.node, extent.path, offset, begin + found.end))
            elif not _is_true(found.head, piece[found.start : found.end]):
                where = f"{extent.path} {offset}: its records are not those that it announces"
                findings.append(
                    Finding(extent.node, CORRUPT, str(found.head.origin), found.head.first, found.head.last, where)
                )
        begin = max(begin, stop)
    return findings


def _damaged(node: str, path: str, start: int, stop: int) -> Finding:
    """The same, in any order of the nodes."""
    return Finding(node, CORRUPT, "", 0, 0, f"{path} {start}–{stop}: no batch can be read")


def _is_true(head: BatchHead, batch: bytes) -> bool:
    sequences = Columns(batch, [Piece(0, 0, EVERYTHING)], check=False).sequence
    grows = bool((sequences[1:] > sequences[:-1]).all())
    first, last = int(sequences[0]), int(sequences[-1])
    if head.attributes & REST:
        # It stands for a whole range, of which some records, and always the last one, were left.
        return grows and first >= head.first and last == head.last
    return grows and (first, last) == (head.first, head.last)
