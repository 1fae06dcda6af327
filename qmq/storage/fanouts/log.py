"""Fanout logs: one chain of sparse batches per fanout destination, written by checkpoints, read by late subscribers.

The journal is the truth until a checkpoint has copied a fanout's records here; then the catalog's extent says how much
of this log counts. What a crashed checkpoint wrote beyond that is cut when the log is opened, and written again.

Retention uses the times at which records arrived at this node, as far as checkpoints know them (`RangeArrival`). The
records' own times count only within these bounds, because the clock of an origin may be wrong. The records themselves
keep their times.

Surprising: logs are opened when they are first used and only so many stay open, so a node can have many fanouts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from qmq.errors import NoDescriptor
from qmq.model.dots import Dot, Origin, Vector, covers, merge
from qmq.storage.format.batch import (
    BATCH_BYTES_TARGET,
    SPARSE,
    batch_records,
    encode_batch,
    read_head,
    record_slices,
)
from qmq.storage.format.interfaces import NO_DESCRIPTOR, Disk, FanoutExtent, Shift
from qmq.storage.format.record import FanoutEntry
from qmq.storage.format.segment import FANOUT
from qmq.storage.format.settings import Retention, StoreSettings
from qmq.storage.log.chain import Chain, Damage, Segment, cut_file, open_chain

FANOUT_DIRECTORY: Final = "fanout"
SEGMENTS_KEPT: Final = 8
"""A log is cut into about so many segments, and overstays its retention by at most one of them."""
SEGMENT_BYTES_MIN: Final = 64 * 1024
DROPPED_ORIGINS_MAX: Final = 4096
"""Incarnations of which it is known how far they were dropped; each restart of a publishing node makes one."""
_READABLE_CHARACTERS: Final = 40
NO_SHIFT: Final = Shift()
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def directory_name(destination: str) -> str:
    """A file name for any destination: what can be read of it, and a hash that distinguishes it from every other."""
    readable = "".join(character if character in _SAFE else "_" for character in destination.lower())
    digest = hashlib.blake2b(destination.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{readable.strip('_')[:_READABLE_CHARACTERS]}-{digest}"


class RangeArrival(NamedTuple):
    """When the records of one checkpoint came, µs: not before the previous one, and not after this one."""

    earliest_us: int
    latest_us: int

    def of(self, timestamp_us: int) -> int:
        """The time that counts for a record with this timestamp."""
        return min(max(timestamp_us, self.earliest_us), self.latest_us)


class FanoutLog:
    """One fanout's log. `extent` says what counts; everything written since is in `chain` but not yet in it."""

    __slots__ = ("extent", "chain", "is_new", "missing", "_settings")

    def __init__(self, disk: Disk, node: str, settings: StoreSettings, extent: FanoutExtent) -> None:
        """Open the log and make it be exactly `extent`. Raises OSError and FutureVersion."""
        self.extent = extent
        self.is_new = extent.start == extent.end
        """Whether nothing of it was committed: the name of its first file may not be durable yet."""
        self._settings = settings
        directory = f"{FANOUT_DIRECTORY}/{extent.name}"
        self.chain, unreadable = open_chain(disk, directory, FANOUT, node, is_synced=False)
        for path in unreadable:
            # Its records cannot be served in order; it stays in the directory under a name that no reader opens.
            disk.rename(path, path + ".bad")
        _cut_to(self.chain, extent)
        self.missing = _holes_between(self.chain, extent)
        """Ranges of the extent for which there is no file: the file, its head or its end is missing."""
        if self.chain.end < extent.end and (self.chain.segments or extent.start < extent.end):
            # What follows goes on after what is lost: positions are never used twice.
            self.chain.add_segment(extent.end, extent.last_us, {})

    def is_covered(self, before: Vector) -> bool:
        """Whether all that counts is deleted by `before`. False where some of it cannot be read."""
        bad: list[Damage] = list(self.missing)
        segments = [one for one in self.chain.segments if one.first < self.extent.end]
        return all(covers(before, self.chain.contents(segment, bad)[0]) for segment in segments) and not bad

    def without_deleted(self, before: Vector, have: Vector, retention: Retention) -> FanoutExtent:
        """Write again what `before` does not delete; see `rewrite`. It is a log of its own, from the first record.

        `have`: what the log should hold. Where some of it cannot be read, all of it counts as dropped.
        """
        bad: list[Damage] = list(self.missing)
        extent = self.rewrite(self._surviving(before, bad), retention)
        dropped = tuple(Dot(origin, last) for origin, last in have.items()) if bad else ()
        extent = extent._replace(dropped_records=0, dropped=dropped)
        return extent if extent.records else extent._replace(first_us=0)

    def _surviving(self, before: Vector, bad: list[Damage]) -> Iterator[bytes]:
        extent = self.extent
        for segment in list(self.chain.segments):
            for place, head, data in self.chain.batches_of(segment, bad):
                if not extent.start <= place < extent.end:
                    continue
                last = before.get(head.origin, 0)
                if head.first > last:
                    yield data
                elif head.last > last:
                    yield _after(head.origin, last, data)

    def append(self, entries: list[FanoutEntry], retention: Retention, arrival: RangeArrival) -> FanoutExtent:
        """Write `entries`, which came at `arrival`, in order; `sync_all` makes them durable.

        Returns the extent with them, which the caller commits after that.

        Segments are a fraction of what `retention` keeps, so that it can be kept to by dropping whole ones.
        """
        chain = self.chain
        extent = self.extent
        records = extent.records
        newest_us = min(extent.last_us, arrival.latest_us)
        self.is_new = self.is_new or not chain.segments
        run: list[FanoutEntry] = []
        size = 0
        for entry in entries:
            if run and (entry.origin != run[0].origin or size + len(entry.packed) > BATCH_BYTES_TARGET):
                newest_us = self._write(run, newest_us, retention, arrival)
                run, size = [], 0
            run.append(entry)
            size += len(entry.packed)
        newest_us = self._write(run, newest_us, retention, arrival)
        return extent._replace(
            start=chain.start,
            end=chain.end,
            records=records + len(entries),
            first_us=min(extent.first_us or arrival.of(entries[0].timestamp_us), newest_us),
            last_us=newest_us,
        )

    def _write(self, run: list[FanoutEntry], newest_us: int, retention: Retention, arrival: RangeArrival) -> int:
        """Write one batch; `newest_us` is the newest time that counts before it. Returns the newest one with it.

        A segment is as old as that, not as what a peer sends late: else retention would drop it too early.
        """
        origin: Origin = run[0].origin
        data = encode_batch(
            origin,
            [entry.packed for entry in run],
            run[0].sequence,
            run[-1].sequence,
            run[0].timestamp_us,
            run[-1].timestamp_us,
            SPARSE,
        )
        newest_us = max(newest_us, arrival.of(run[0].timestamp_us))
        self._put(data, newest_us, retention)
        return max(newest_us, arrival.of(run[-1].timestamp_us))

    def _put(self, data: bytes, newest_us: int, retention: Retention) -> None:
        chain = self.chain
        if not chain.segments:
            chain.add_segment(self.extent.end, newest_us, {}, is_synced=False)
        elif chain.tail_bytes() and self._is_full(len(data), newest_us, retention):
            chain.sync()
            chain.add_segment(chain.end, newest_us, {})
        chain.write(data)
        chain.extend(len(data))

    def rewrite(self, batches: Iterable[bytes], retention: Retention) -> FanoutExtent:
        """Write `batches` behind everything that is here, in files of their own, durable on return.

        Returns the extent that consists of them alone. The caller commits it, and then calls `drop`.
        """
        chain = self.chain
        before = self.extent
        arrival = RangeArrival(before.first_us, before.last_us)
        newest_us = before.first_us
        chain.sync()
        chain.add_segment(max(chain.end, before.end), newest_us, {})
        start = chain.segments[-1].base
        records = 0
        for data in batches:
            head = read_head(data)
            assert head is not None, "whole batches only"
            newest_us = max(newest_us, arrival.of(head.first_us))
            self._put(data, newest_us, retention)
            newest_us = max(newest_us, arrival.of(head.last_us))
            records += head.count
        chain.sync()
        return before._replace(start=start, end=chain.end, records=records, last_us=max(newest_us, before.last_us))

    def _is_full(self, more_bytes: int, newest_us: int, retention: Retention) -> bool:
        chain = self.chain
        most = max(SEGMENT_BYTES_MIN, retention.bytes_max // SEGMENTS_KEPT)
        if chain.tail_bytes() + more_bytes > min(self._settings.segment_bytes_max, most):
            return True
        age_us = newest_us - chain.segments[-1].head.created_us
        return age_us > retention.age_seconds_max * 1_000_000 // SEGMENTS_KEPT

    def seal_full(self) -> list[Damage]:
        """Write the missing indexes; only once the extent that covers the segments was committed.

        Returns where segments are damaged; these get none.
        """
        unsealed = self.chain.unsealed()
        for segment in unsealed:
            self.chain.seal(segment)
        return [found for segment in unsealed for found in segment.damage]

    def without_expired(self, now_us: int, retention: Retention, shift: Shift = NO_SHIFT) -> tuple[FanoutExtent, int]:
        """The extent without the oldest segments that `retention` gives up, and when the next one is due (µs).

        Commit the extent, then `drop`. When all that is there is too old, an empty segment takes its place.
        """
        chain = self.chain
        # An opening has no clock, so it believes times that are ahead of now.
        extent = self.extent._replace(last_us=min(self.extent.last_us, now_us))
        extent = extent._replace(first_us=min(extent.first_us, extent.last_us))
        age_us = retention.age_seconds_max * 1_000_000
        if extent.records and now_us - shift.of(extent.last_us) > age_us and chain.tail_bytes():
            chain.add_segment(chain.end, extent.last_us, {})
            extent = extent._replace(end=chain.end)
        segments = chain.segments
        begun_us = _begun_us(segments, extent.last_us)
        kept = 0
        dropped_now: Vector = {}
        records = 0
        while kept + 1 < len(segments):
            over = extent.end - segments[kept].base > retention.bytes_max
            old = now_us - shift.of(begun_us[kept + 1]) > age_us
            if not (over or old):
                break
            last, count = chain.contents(segments[kept])
            merge(dropped_now, last)
            records += count
            kept += 1
        newest_us = begun_us[kept + 1] if kept + 1 < len(segments) else extent.last_us
        left = max(0, extent.records - records)
        due_us = shift.of(newest_us) + age_us + 1 if left else 0
        if not kept:
            return extent, due_us
        first = segments[kept]
        dropped = dict(extent.dropped)
        merge(dropped, dropped_now)
        extent = extent._replace(
            start=first.base,
            records=left,
            first_us=begun_us[kept],
            dropped_records=extent.dropped_records + min(records, extent.records),
            dropped=tuple(Dot(origin, last) for origin, last in dropped.items())[-DROPPED_ORIGINS_MAX:],
        )
        return extent, due_us

    def drop(self) -> None:
        """Remove the files that the committed extent no longer covers."""
        self.chain.drop_before(self.extent.start)
        self.chain.disk.sync_directory(self.chain.directory)

    def close(self) -> None:
        self.chain.close()


def sync_all(disk: Disk, logs: Sequence[FanoutLog]) -> None:
    """Make what was appended to `logs` durable. Raises OSError, and NoDescriptor: only names are not durable.

    A new log is found after a power cut when its file, the name of that and the name of its directory survive.
    """
    new = [log for log in logs if log.is_new]
    names = [log.chain.directory for log in new] + ([FANOUT_DIRECTORY] if new else [])
    try:
        disk.sync_all([log.chain.segments[-1].file for log in logs], names)
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR:
            raise
        raise NoDescriptor(f"cannot sync the names of fanout logs: {error}") from error
    for log in new:
        log.is_new = False


def _after(origin: Origin, last: int, data: bytes) -> bytes:
    """The records of a batch that come after sequence `last`, as a batch. There is one at least."""
    kept = [pair for pair in zip(batch_records(data), record_slices(data), strict=True) if pair[0].sequence > last]
    first, final = kept[0][0], kept[-1][0]
    packed = [one for _, one in kept]
    times = (first.timestamp_us, final.timestamp_us)
    return encode_batch(origin, packed, first.sequence, final.sequence, *times, SPARSE)


def _begun_us(segments: Sequence[Segment], last_us: int) -> list[int]:
    """When each segment was begun: as its head says, but not later than the ones behind it, or what ends them all."""
    found: list[int] = []
    for segment in reversed(segments):
        last_us = min(last_us, segment.head.created_us)
        found.append(last_us)
    return found[::-1]


def _cut_to(chain: Chain, extent: FanoutExtent) -> None:
    chain.drop_before(extent.start)
    while chain.segments and (chain.segments[-1].first > extent.end or extent.end == 0):
        beyond = chain.segments[-1]
        chain.disk.remove(beyond.path)
        chain.segments = chain.segments[:-1]
    if chain.segments:
        tail = chain.segments[-1]
        size = extent.end - tail.base
        if tail.file.size() > size:
            tail.file = cut_file(chain.disk, tail.path, tail.file, size)
        tail.end = tail.base + tail.file.size()


def _holes_between(chain: Chain, extent: FanoutExtent) -> list[Damage]:
    holes: list[Damage] = []
    place = extent.start
    for segment in chain.segments:
        holes.append((place, segment.base))
        place = max(place, segment.end)
    holes.append((place, extent.end))
    return [(start, end) for start, end in holes if start < end]
