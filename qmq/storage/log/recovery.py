"""Recovery of a journal: what a crash or a bad disk left is kept, cut or quarantined.

Recovery reads from the last checkpoint on; the stores have what lies before, and it is checked only when it is read.
Damage never prevents a start; it is reported. The steps, in order (docs/storage-format.md has the reasons):

1. Remove what an interrupted step left: temporary files, a last segment without a readable head or batch, segments
   that retention had already given up.
2. Read on from the checkpoint. Bytes with nothing valid after them are a torn tail: the good prefix is copied to a new
   file, synced, and renamed into place; without room for that the file is cut. Damage with valid batches after it is a
   hole: its bytes go to quarantine.
3. A batch that does not continue its origin (because a hole came before) goes to quarantine too: the vector has to stop
   before the hole, and peers will send both again.
4. Sync the tail, so that what was found is as durable as it will be reported; after a failed sync the tail is copied,
   because the pages that failed are not written by another sync of the same file.

Surprising: every step can be interrupted and repeated with the same result, so recovery needs no log of its own; and
holes stay where they are in their segment (positions never move), listed beside it in `quarantine/`.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from qmq.errors import LogBroken
from qmq.model.dots import Vector
from qmq.storage.format.batch import BatchHead, is_journal
from qmq.storage.format.interfaces import CheckpointState, Disk
from qmq.storage.format.segment import JOURNAL, SegmentHead, scan, segment_base
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.chain import Chain, Damage, Segment, cut_file, find_segment, open_chain, replace_file
from qmq.storage.log.journal import MARK_BYTES, SYNC_FAILED, Journal, Mark, advance, strip_heads
from qmq.storage.log.quarantine import Quarantined, keep, load_holes, quarantined

JOURNAL_DIRECTORY: Final = "journal"


class JournalRecovery(NamedTuple):
    """What recovery of the journal found."""

    torn_bytes: int
    quarantined: list[Quarantined]
    """Found by this recovery; earlier finds stay in the quarantine directory."""
    removed: list[str]
    """Files without any content that a crash had left."""
    lost_positions: int
    """How far the log ends before the position of the stores; more than 0: the disk lost bytes that it had synced."""


def recover_journal(
    disk: Disk,
    node: str,
    settings: StoreSettings,
    checkpoint: CheckpointState,
    base: CheckpointState,
    stored: int = 0,
    without: Callable[[Vector], Vector] = dict,
) -> tuple[Journal, JournalRecovery]:
    """Open the journal of `node`, whatever state it is in. See the module's opening.

    `stored` is the position that the queue store has reached. It may be ahead of the checkpoint, and of a journal that
    lost what it had synced: new records then go behind it, else the store would take them for known. `without` takes
    forgotten origins out of a vector.

    Raises:
        LogBroken: the disk refused; nothing is lost by that, but nothing can be served.
        FutureVersion: written by later software.
    """
    try:
        return _recover(disk, node, settings, checkpoint, base, stored, without)
    except OSError as error:
        raise LogBroken(f"cannot recover the journal: {error}") from error


def _recover(
    disk: Disk,
    node: str,
    settings: StoreSettings,
    checkpoint: CheckpointState,
    base: CheckpointState,
    stored: int,
    without: Callable[[Vector], Vector],
) -> tuple[Journal, JournalRecovery]:
    chain, bad_heads = open_chain(disk, JOURNAL_DIRECTORY, JOURNAL, node)
    strip_heads(chain, without)
    holes = load_holes(disk)
    found: list[Quarantined] = []
    raw: list[bytes] = []
    removed: list[str] = []
    for path in bad_heads:
        adopted = _adopt_without_head(chain, path, base)
        if adopted is None:
            disk.remove(path)
            removed.append(path)
        elif (adopted.base, adopted.first) not in holes:
            found.append(quarantined(adopted.base, adopted.first, None))
            raw.append(adopted.bytes_between(adopted.base, adopted.first))
    chain.drop_before(base.position)

    start = max(checkpoint.position, base.position)
    vector = dict(checkpoint.vector)
    if chain.segments and start < chain.start:
        # The catalog was lost or is older than the log: the first segment's own head says what came before it.
        start, vector = chain.start, dict(chain.segments[0].head.vector)
    marks: list[Mark] = [(segment.base, segment.head.vector) for segment in chain.segments if segment.base < start]
    marks.append((start, dict(vector)))
    torn_bytes = 0
    for segment in chain.segments[find_segment(chain.segments, start) :]:
        is_last = segment is chain.segments[-1]
        end = segment.end
        for piece_start, piece_end in _outside(holes, max(start, segment.first), end):
            data = segment.bytes_between(piece_start, piece_end)
            for span in scan(data):
                place = piece_start + span.start
                head = span.head
                if head is not None and _continues(vector, head):
                    advance(vector, head, data[span.start : span.end], node)
                    after = piece_start + span.end
                    if after - marks[-1][0] >= MARK_BYTES:
                        marks.append((after, dict(vector)))
                elif head is None and is_last and piece_start + span.end == end:
                    torn_bytes = len(data) - span.start
                    segment.end = place
                else:
                    found.append(quarantined(place, piece_start + span.end, head))
                    raw.append(data[span.start : span.end])

    after_failed_sync = SYNC_FAILED.rpartition("/")[2] in disk.names(JOURNAL_DIRECTORY)
    if chain.segments and after_failed_sync:
        _copy_tail(disk, chain.segments[-1])
    elif chain.segments and torn_bytes:
        tail = chain.segments[-1]
        tail.file = cut_file(disk, tail.path, tail.file, tail.end - tail.base)
    if found:
        # What stands there must not change any more: a power cut after the list was written would else put good
        # batches where the list says that none are.
        chain.sync()
        keep(disk, found, raw)
        holes = sorted([*holes, *((entry.start, entry.end) for entry in found)])
    if after_failed_sync:
        disk.remove(SYNC_FAILED)
    known = max(start, stored)
    lost = max(0, known - chain.end) if chain.segments else known
    if lost or not chain.segments:
        newest_us = max((segment.head.created_us for segment in chain.segments), default=0)
        chain.add_segment(known, newest_us, vector)
    else:
        chain.sync()
    disk.sync_directory(JOURNAL_DIRECTORY)
    journal = Journal(chain, settings=settings, vector=vector, marks=marks, holes=holes)
    return journal, JournalRecovery(torn_bytes, found, removed, lost)


def _continues(vector: Vector, head: BatchHead) -> bool:
    return head.first == vector.get(head.origin, 0) + 1 and is_journal(head.attributes)


def _outside(holes: list[Damage], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of `start`…`end` that no hole covers."""
    parts: list[tuple[int, int]] = []
    for hole_start, hole_end in holes:
        if hole_end <= start or hole_start >= end:
            continue
        if hole_start > start:
            parts.append((start, hole_start))
        start = max(start, hole_end)
    if start < end:
        parts.append((start, end))
    return parts


def _copy_tail(disk: Disk, segment: Segment) -> None:
    """Put a synced copy, which ends where the batches do, in the place of the file, or do not start.

    A copy, because after a failed sync the kernel may take pages for written that are not: syncing the file again
    would then promise what the disk does not hold.
    """
    whole = replace_file(disk, segment.path, segment.bytes_between(segment.base, segment.end))
    segment.file.close()
    segment.file = whole


def _adopt_without_head(chain: Chain, path: str, base: CheckpointState) -> Segment | None:
    """Put a segment whose head is unreadable in its place; None when no batch of it can be read either."""
    file = chain.disk.open(path)
    start = segment_base(path.rpartition("/")[2])
    assert start is not None, "open_chain reports only segment files"
    data = file.read(0, file.size())
    first = next((span for span in scan(data) if span.head is not None), None)
    if first is None or first.head is None:
        file.close()
        return None
    vector = dict(base.vector)
    before = [segment for segment in chain.segments if segment.base < start]
    after = [segment for segment in chain.segments if segment.base > start]
    if before:
        # The file knows its vector no more, but the segment before it can be read to its end.
        before[-1].end = min(before[-1].base + before[-1].file.size(), start)
        vector = dict(before[-1].head.vector)
        for span in scan(before[-1].bytes_between(before[-1].first, before[-1].end)):
            if span.head is not None and _continues(vector, span.head):
                vector[span.head.origin] = span.head.last
    head = SegmentHead(start, chain.content, chain.node, first.head.first_us, vector, first.start)
    end = min(start + len(data), after[0].base) if after else start + len(data)
    segment = Segment(head, path, file, end)
    chain.segments = [*before, segment, *after]
    return segment
