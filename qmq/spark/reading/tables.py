"""The small views: what planning knows of nodes, segments and ranges, without reading a record."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from qmq.model.dots import Origin
from qmq.spark.reading.logs import DataDirectory, Log
from qmq.spark.reading.options import vector_to_json
from qmq.spark.reading.segments import SegmentFile, SegmentListing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(view: str, directories: Sequence[DataDirectory]) -> list[dict[str, Any]]:
    """Rows of `ranges`, `segments` or `nodes`. Raises as `Log.segments`."""
    make = {"ranges": _ranges, "segments": _segments, "nodes": _nodes}[view]
    return [row for directory in directories for row in make(directory)]


def _ranges(directory: DataDirectory) -> Iterator[dict[str, Any]]:
    """One row per origin and range of sequences without a hole, in the order in which the journal has them."""
    open_ranges: dict[Origin, list[int]] = {}
    for _, listing in directory.journal.segments():
        for entry in listing.entries:
            known = open_ranges.get(entry.origin)
            if known is not None and known[1] + 1 == entry.first:
                # A mark of the end of a rest has no time.
                known[1:] = entry.last, known[2] or entry.first_us, entry.last_us or known[3]
                continue
            if known is not None:
                yield range_row(directory.node, entry.origin, *known)
            open_ranges[entry.origin] = [entry.first, entry.last, entry.first_us, entry.last_us]
    for origin, known in open_ranges.items():
        yield range_row(directory.node, origin, *known)


def range_row(node: str, origin: Origin, first: int, last: int, first_us: int = 0, last_us: int = 0) -> dict[str, Any]:
    """A row of `ranges`; 0 for times that are not known."""
    return {
        "node": node,
        "origin": str(origin),
        "first": first,
        "last": last,
        "first_timestamp": time_of(first_us) if first_us else None,
        "last_timestamp": time_of(last_us) if last_us else None,
    }


def _segments(directory: DataDirectory) -> Iterator[dict[str, Any]]:
    for segment, listing in directory.journal.segments():
        yield _segment_row(directory, "journal", segment, listing)
    for name, log in directory.fanouts():
        for segment, listing in log.segments():
            yield _segment_row(directory, name, segment, listing)


def _segment_row(
    directory: DataDirectory, content: str, segment: SegmentFile, listing: SegmentListing
) -> dict[str, Any]:
    entries = listing.entries
    timed = [entry for entry in entries if entry.last_us]
    return {
        "node": directory.node,
        "path": str(segment.path),
        "content": content,
        "base": segment.base,
        "bytes": listing.end,
        "batches": len(entries),
        "records": sum(entry.records for entry in entries),
        "sealed": listing.sealed,
        "first_timestamp": time_of(min(entry.first_us for entry in timed)) if timed else None,
        "last_timestamp": time_of(max(entry.last_us for entry in timed)) if timed else None,
    }


def _nodes(directory: DataDirectory) -> Iterator[dict[str, Any]]:
    logs: list[Log] = [directory.journal, *(log for _, log in directory.fanouts())]
    listed = [listing for log in logs for _, listing in log.segments()]
    vector = directory.vector()
    yield {
        "node": directory.node,
        "source": str(directory.path),
        "origins": len(vector),
        "records": sum(entry.records for _, listing in directory.journal.segments() for entry in listing.entries),
        "bytes": sum(listing.end for listing in listed),
        "damaged": sum(len(listing.damage) for listing in listed) + len(directory.holes),
        "vector": list(vector_to_json(vector).items()),
    }


def time_of(us: int) -> datetime:
    """µs since 1970 as a time in UTC."""
    return _EPOCH + timedelta(microseconds=us)
