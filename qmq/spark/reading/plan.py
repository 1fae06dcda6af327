"""Which worker reads which batches: every wanted record once, in partitions of about one size.

Journals come first: the first directory that has a sequence brings it, the others bring what it lacks. A range of
which some node got only a rest (`batch.REST`) is read there when no other has all of it. What no journal reaches back
to is read from the fanout logs, in the same manner. Only indexes and heads of batches are looked at here.

Planning depends on nothing but the logs and the ranges asked for: Spark asks again for the same ranges after a crash,
and must get the same records.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from qmq.errors import CorruptLog, QmqError
from qmq.model.dots import Origin, Vector
from qmq.spark.reading.logs import DataDirectory, Log
from qmq.spark.reading.options import Options
from qmq.spark.reading.ranges import NOTHING, Lacking, RangeMap
from qmq.spark.reading.segments import Extent, SegmentFile, SegmentListing, ranges_of
from qmq.storage.fanouts.log import directory_name
from qmq.storage.format.segment import BatchEntry

GO_ON_WITHOUT: Final = "set failOnDataLoss to false (on a command line: --set failOnDataLoss=false) to go on without"
CLOCK_MARGIN_US: Final = 60_000_000
"""A batch has the times of its first and last record; those between may lie outside when a clock was set."""


class DataLoss(QmqError):
    """Records that were asked for are nowhere: `failOnDataLoss` decides whether that is an error."""


NodeAddress = tuple[str, int] | Path
"""Of a live node; a path is that of its Unix socket."""


class Part(NamedTuple):
    """Work for one task: whole batches, and which of their records are wanted (None: all).

    Instead of extents, `servers` may name live nodes, any of which may have what is wanted; each is tried in turn.
    Unless `strict`, what none of them has was given up long ago, for all that is known; with `over_holes` that goes for
    what one of them lacks in the midst of its journal, and with `over_compacted` for what it has only a rest of.
    """

    extents: tuple[Extent, ...]
    wanted: RangeMap | None
    servers: tuple[NodeAddress, ...] = ()
    strict: bool = True
    over_holes: bool = False
    over_compacted: bool = False


ALL: Final = attrgetter("entries")
COMPACTED: Final = attrgetter("compacted")
"""Batches of a listing."""


class _Piece(NamedTuple):
    """Some batches of one segment that a worker must read."""

    extent: Extent
    wanted: RangeMap | None
    cuts: list[int]
    """Offsets between its batches."""


def plan(
    directories: Sequence[DataDirectory],
    options: Options,
    start: Vector,
    end: Vector,
    *,
    but_for: Callable[[], RangeMap],
    lacking: Lacking | None = None,
) -> list[Part]:
    """Parts that together bring every record above `start` up to `end` once.

    Everything in between is expected `but_for` what may be nowhere; what else is nowhere is an error if `options` say
    so. `but_for` is asked when the logs were looked at: what retention drops meanwhile is in it then. What is nowhere
    is added to `lacking` in any case.

    Raises:
        DataLoss: names origin and range.
        CorruptLog: a log is damaged, and the node has not put the damage aside.
    """
    wanted = RangeMap.between(start, end)
    pieces: list[_Piece] = []
    left = wanted
    for directory in directories:
        found = _take(directory.journal.segments(start), left, options, pieces, SegmentListing.whole_entries)
        left = left.minus(found)
    if left:
        compacted = RangeMap()
        for directory in directories:
            found = _take(directory.journal.segments(start), left.minus(compacted), options, pieces, COMPACTED)
            compacted = compacted.plus(found)
        unread = left if not options.only_fanouts else left.minus(compacted)
        covered, partly = _take_fanouts(directories, left.minus(compacted), options, pieces)
        left = unread.minus(covered)
        if lacking is not None:
            lacking.add(left, compacted.plus(partly))
    lost = left.minus(but_for()) if left and options.fail_on_data_loss else NOTHING
    if lost:
        raise DataLoss(loss_text(lost))
    return _parts(pieces, options)


def plan_nodes(directories: Sequence[DataDirectory], options: Options) -> list[Part]:
    """Parts that together bring every record of every node's journal, also those that several have."""
    pieces: list[_Piece] = []
    for directory in directories:
        everything = RangeMap.between({}, directory.vector())
        _take(directory.journal.segments(), everything, options, pieces, ALL)
    return _parts(pieces, options)


def _take(
    segments: list[tuple[SegmentFile, SegmentListing]],
    wanted: RangeMap,
    options: Options,
    pieces: list[_Piece],
    chosen: Callable[[SegmentListing], Sequence[BatchEntry]],
) -> RangeMap:
    """Add pieces for what `segments` have of `wanted`, in the batches that `chosen` returns. Returns what they have."""
    taken = RangeMap()
    for segment, listing in segments:
        if listing.damage and options.fail_on_data_loss:
            start, stop = listing.damage[0]
            raise DataLoss(
                f"{segment.path}: no batch can be read from {start} to {stop} and the node has not quarantined it; "
                f"see qmq log verify"
            )
        entries = chosen(listing)
        here = listing.ranges() if entries is listing.entries else ranges_of(entries)
        useful = here.common(wanted.minus(taken))
        if not useful:
            continue
        taken.extend(useful.items())
        if passed_by(listing, options):
            continue
        whole = useful.count() == here.count()
        run = entries if whole else [entry for entry in entries if _overlaps(entry, useful)]
        for begin, end, cuts in _runs(listing, run):
            pieces.append(_Piece(segment.extent(begin, end), None if whole else useful, cuts))
    return taken


def _take_fanouts(
    directories: Sequence[DataDirectory], wanted: RangeMap, options: Options, pieces: list[_Piece]
) -> tuple[RangeMap, RangeMap]:
    """As `_take`, from the fanout logs: what they cover of all that is asked for, and what any of them has.

    Of an origin, a log covers what lies between its oldest and its newest record of it, and from there up to where the
    node's journal begins: a journal drops only what was copied.
    """
    covered: dict[str, RangeMap] = {}
    taken = RangeMap()
    for directory in directories:
        if options.fail_on_data_loss:
            _require_names(directory, options)
        base = directory.base()
        for name, log in directory.fanouts():
            if not options.includes(name):
                continue
            known = covered.setdefault(name, RangeMap())
            segments = log.segments()
            taken = taken.plus(_take(segments, wanted.minus(known), options, pieces, ALL))
            for origin, after, through in _ends(segments):
                known.add(origin, after, max(through, base.get(origin, 0)))
    if options.destinations is None or not covered.keys() >= options.destinations:
        # Queues keep nothing beyond the journal: what it has dropped of them is gone.
        return RangeMap(), taken
    common: RangeMap | None = None
    for known in covered.values():
        common = known if common is None else common.common(known)
    return common or RangeMap(), taken


def _require_names(directory: DataDirectory, options: Options) -> None:
    """Raises CorruptLog for a fanout log that may be of what is asked for: it does not say, and cannot be read."""
    for log in directory.nameless():
        if may_be_asked(None, log, options):
            raise CorruptLog(f"{log.directory}: no batch can be read, not even to find out its fanout")


def may_be_asked(name: str | None, log: Log, options: Options) -> bool:
    """Whether a fanout log may be of what is asked for; without a `name` it does not say what it is of."""
    if name is not None:
        return options.includes(name)
    asked = options.destinations
    return asked is None or log.directory.name in map(directory_name, asked)


def _ends(segments: list[tuple[SegmentFile, SegmentListing]]) -> Iterator[tuple[Origin, int, int]]:
    """Every origin of a log, with the sequence before its oldest record, and its newest."""
    ends: dict[Origin, tuple[int, int]] = {}
    for _, listing in segments:
        for entry in listing.entries:
            after, through = ends.get(entry.origin, (entry.first - 1, entry.last))
            ends[entry.origin] = (min(after, entry.first - 1), max(through, entry.last))
    for origin, (after, through) in ends.items():
        yield origin, after, through


def is_left_out(segment: SegmentFile, choice: Options | None) -> bool:
    """Whether nothing of the choice may stand in a segment. Raises as `SegmentFile.list`."""
    # Without a choice whole indexes are not looked at: they take several times as long as their summaries.
    return choice is not None and choice.chooses and passed_by(segment.list(), choice)


def passed_by(listing: SegmentListing, options: Options) -> bool:
    """Whether nothing in a segment is of the wanted time and destinations, by its index."""
    index = listing.footer
    # An index about very many destinations lists none.
    named = index is not None and not options.is_unfiltered and index.destinations
    if named and not any(map(options.includes, named)):
        return True
    if index is None:
        return False
    first = min((min(entry.first_us, entry.last_us) for entry in listing.entries), default=0) - CLOCK_MARGIN_US
    last = max((max(entry.first_us, entry.last_us) for entry in listing.entries), default=0) + CLOCK_MARGIN_US
    return (options.ending_us is not None and first >= options.ending_us) or (
        options.starting_us is not None and last < options.starting_us
    )


def _overlaps(entry: BatchEntry, wanted: RangeMap) -> bool:
    return any(wanted.overlapping(entry.origin, entry.first, entry.last))


def _runs(listing: SegmentListing, chosen: Sequence[BatchEntry]) -> list[tuple[int, int, list[int]]]:
    """Stretches of batches that follow each other: begin, end, and the offsets between."""
    if not chosen:
        return []
    offsets = [entry.offset for entry in listing.entries]
    ends = dict(zip(offsets, [*offsets[1:], listing.end], strict=True))
    runs: list[tuple[int, int, list[int]]] = []
    for entry in chosen:
        end = ends[entry.offset]
        if runs and runs[-1][1] == entry.offset:
            begin, _, cuts = runs[-1]
            cuts.append(entry.offset)
            runs[-1] = (begin, end, cuts)
        else:
            runs.append((entry.offset, end, []))
    return runs


def _parts(pieces: list[_Piece], options: Options) -> list[Part]:
    """Big pieces split, small ones put together."""
    total = sum(piece.extent.end - piece.extent.start for piece in pieces)
    aim = max(1, min(options.partition_bytes, -(-total // options.partitions_min)))
    parts: list[Part] = []
    gathered: list[Extent] = []
    size = 0
    for piece in pieces:
        for extent in _split(piece, aim):
            if piece.wanted is not None:
                parts.append(Part((extent,), piece.wanted))
                continue
            if gathered and size + extent.end - extent.start > aim:
                parts.append(Part(tuple(gathered), None))
                gathered, size = [], 0
            gathered.append(extent)
            size += extent.end - extent.start
    if gathered:
        parts.append(Part(tuple(gathered), None))
    return parts


def _split(piece: _Piece, aim: int) -> list[Extent]:
    extent = piece.extent
    found: list[Extent] = []
    begin = extent.start
    # The rest joins its neighbour when it is small: half an aim more is better than another task.
    for cut in piece.cuts:
        if cut - begin >= aim and extent.end - cut > aim // 2:
            found.append(extent._replace(start=begin, end=cut))
            begin = cut
    found.append(extent._replace(start=begin))
    return found


def loss_text(left: RangeMap) -> str:
    """A sentence about records that are nowhere."""
    return (
        f"records are missing that were to be read: {ranges_text(left)}. "
        f"No node that is read has them; {GO_ON_WITHOUT} them"
    )


def ranges_text(ranges: RangeMap) -> str:
    """The first of them; "" for none."""
    texts = [f"{origin} from {after + 1} to {through}" for origin, found in ranges.items() for after, through in found]
    return f"{', '.join(texts[:8])}{' …' if len(texts) > 8 else ''}"
