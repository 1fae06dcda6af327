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

from collections.abc import Iterator, Sequence
from contextlib import closing

from qmq.errors import CorruptLog
from qmq.model.dots import Vector, merge
from qmq.spark.jobs.audit_deep import audit_deep, is_true
from qmq.spark.jobs.audit_findings import (
    CORRUPT,
    LOST,
    LOST_FILE,
    QUARANTINED,
    Audit,
    Finding,
    JournalWalk,
    OriginRow,
    damaged,
)
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import is_left_out
from qmq.spark.reading.ranges import merged
from qmq.spark.reading.remote import read_journal
from qmq.spark.reading.segments import NotBegun, SegmentFile, SegmentListing, notes_of
from qmq.storage.disk.disk import ReadOnlyDisk
from qmq.storage.format.lost_record import unpack_lost
from qmq.storage.format.record import RecordKind, unpack_gap
from qmq.storage.format.segment import read_summary, scan

__all__ = ["Audit", "Finding", "audit", "audit_deep"]


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
    have = None if choice is not None and choice.chooses else merged(walk.have for walk in walks)
    for walk in walks:
        found.findings += walk.findings
        found.lost += [Finding(walk.node, LOST, str(origin), first, last, "") for origin, first, last in walk.lost]
        found.rows += _rows(walk, have)
        found.records += sum(walk.records.values())
    return found


def _rows(walk: JournalWalk, have: Vector | None) -> Iterator[OriginRow]:
    """`have`: what all of them have together; None with a choice."""
    for origin in sorted(walk.records if have is None else have):
        last = walk.last[origin] if have is None else walk.have.get(origin, 0)
        behind = None if have is None else have[origin] - last
        if last or behind:
            row = (str(origin), walk.first.get(origin, 0), last, walk.records.get(origin, 0), behind)
            yield OriginRow(walk.node, *row)


def _walk(directory: DataDirectory, found: Audit, choice: Options | None) -> JournalWalk:
    walk = JournalWalk(directory.node, {})
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
            if is_left_out(segment, choice):
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


def _walk_server(options: Options, found: Audit) -> JournalWalk:
    """A live node sends what is durable, from its base on. It cannot send quarantined ranges: these are missing."""
    status, batches = read_journal(options)
    walk = JournalWalk(status.node, status.base)
    for number, data in enumerate(batches):
        for lost_range in scan(data):
            piece = data[lost_range.start : lost_range.end]
            if lost_range.head is None or not is_true(lost_range.head, piece):
                walk.note(Finding(walk.node, CORRUPT, "", 0, 0, f"message {number} of the journal"))
                continue
            head = lost_range.head
            if head.origin.node == walk.node:
                for given_up, through in notes_of(head, piece, RecordKind.GAP, unpack_gap):
                    walk.given_up.add(given_up, 0, through)
                walk.lost.update(dict.fromkeys(notes_of(head, piece, RecordKind.GONE, unpack_lost)))
            walk.take(head.origin, head.first, head.last, "", head.count)
        found.bytes_verified += len(data)
    for origin, last in status.base.items():
        walk.account_for(origin, 1, last)  # Retention was quicker.
    walk.finish()
    return walk


def _walk_segment(walk: JournalWalk, segment: SegmentFile) -> int:
    """Returns the offset where its batches end, with damage and quarantined ranges."""
    name = segment.path.name
    end = segment.batches_end
    quarantine = [stop for start, stop in segment.holes if end is not None and start < end]
    with closing(ReadOnlyDisk(segment.path.parent).open(name)) as file:
        # An index may be older than the quarantine.
        summary = read_summary(file, end) if end is not None and not quarantine else None
    if end is not None and summary is not None:
        if any(kind in (RecordKind.GAP, RecordKind.GONE) for _, kind in summary.kinds):
            _learn_gaps(walk, segment, segment.list())
        missing = walk.missing_ranges()
        for origin, ranges in summary.ranges.items():
            for first, last in ranges:
                walk.take(origin, first, last, name)
        if walk.missing_ranges() > missing:
            # Of these peers had only a range snapshot when the node asked: it has all that there was.
            for entry in segment.list().compacted:
                walk.account_for(entry.origin, entry.first, entry.last)
        return end
    listing = segment.list()
    for start, stop in listing.damage:
        walk.note(damaged(walk.node, str(segment.path), start, stop))
    _learn_gaps(walk, segment, listing)
    for entry in listing.entries:
        walk.take(entry.origin, entry.first, entry.last, name, entry.records)
    return max([listing.reach, *quarantine])


def _learn_gaps(walk: JournalWalk, segment: SegmentFile, listing: SegmentListing) -> None:
    """Ranges that the node itself has noted as given up, never to come, or lost."""
    for given_up, through in segment.notes(listing, RecordKind.GAP, unpack_gap):
        walk.given_up.add(given_up, 0, through)
    walk.lost.update(dict.fromkeys(segment.notes(listing, RecordKind.GONE, unpack_lost)))
