"""Reads one fanout as if it were one log: first its fanout log, then the journal since the last checkpoint.

A `FanoutPosition` stays valid when a checkpoint moves records from the journal to the fanout log between two reads, and
when segments are dropped. It holds the positions reached in the fanout log and in the journal, and the last sequence of
each origin that was read from the journal. The next read skips exactly those in the fanout log.

Surprising: the journal batches of a fanout are searched for only when a client reads it, and the result is kept until
the next checkpoint. So a node without late readers has no cost.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from qmq.errors import CorruptLog, LogBroken
from qmq.model.deletions import Deletions
from qmq.model.dots import Dot, Origin, Vector, covers, merge
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.batch import BatchHead, batch_records, published_destinations
from qmq.storage.format.interfaces import FanoutExtent
from qmq.storage.format.record import Record, RecordKind
from qmq.storage.log.chain import Damage
from qmq.storage.log.journal import Journal, Mark

_INDEX_READ_BYTES: Final = 1024 * 1024


class FanoutPosition(NamedTuple):
    """The position of a reader of one fanout. Opaque; it is not valid for another fanout or node."""

    log_position: int
    journal_position: int
    """Everything of this fanout before this journal position was returned, once a read says `at_end`."""
    seen: tuple[tuple[Origin, int], ...]


class FanoutPage(NamedTuple):
    """The result of one read. `dropped`: per origin, up to where retention had dropped records before this page."""

    rows: list[tuple[Origin, Record]]
    position: FanoutPosition
    at_end: bool
    dropped: tuple[Dot, ...]


class FanoutBegin(NamedTuple):
    """A place to begin: read from `position`, where the vector is `before`, and leave out the first `skip` records."""

    position: FanoutPosition
    skip: int
    before: Vector


class FanoutInfo(NamedTuple):
    """What one fanout holds now, fanout log and journal together. Of a batch of the journal, which other destinations
    share, `bytes` counts as large a part as the fanout has of its records."""

    records: int
    bytes: int
    first_us: int
    last_us: int


class _Entry(NamedTuple):
    position: int
    size: int
    origin: Origin
    first: int
    last: int
    records: int
    first_us: int
    last_us: int
    share: int = 0
    """Of `size`, in the journal."""


class FanoutReader:
    """See the module's opening. Methods are for one caller at a time, but `start` and `at` for any."""

    def __init__(self, journal: Journal, logs: FanoutLogs, prefix: str, deletions: Deletions | None = None) -> None:
        self._deletions = Deletions() if deletions is None else deletions
        self._journal = journal
        self._logs = logs
        self._prefix = prefix
        self._index: dict[str, list[_Entry]] = {}
        self._indexed_from = 0
        self._indexed_to = 0

    def start(self) -> FanoutPosition:
        """The position before all kept records."""
        return FanoutPosition(0, 0, ())

    def after(self, destination: str, vector: Vector) -> FanoutPosition:
        """The position before all records that `vector` does not cover: for a reader that resumes with its vector.

        Whole segments that it covers are skipped by their index.
        """
        _, extent = self._logs.view(destination)
        log_position = 0
        if extent is not None and covers(vector, dict(extent.dropped)):
            chain = self._logs.get(destination).chain
            for segment, after in zip(chain.segments, chain.segments[1:], strict=False):
                bad: list[Damage] = []
                if after.base > extent.end or not covers(vector, chain.contents(segment, bad)[0]) or bad:
                    break
                log_position = after.base
        return FanoutPosition(log_position, 0, tuple(vector.items()))

    def at_offset(self, destination: str, offset: int) -> FanoutBegin:
        """Before the `offset`-th record ever kept here, counted from 0; if that was dropped, before the first kept one.

        Beyond the end: the end. `offset` -1 is the last record there is.
        """
        entries, extent = self._entries(destination)
        left = offset - (extent.dropped_records if extent else 0)
        if offset < 0:
            left = max(0, sum(entry.records for entry in entries) + offset)
        return self._begin(destination, extent, entries, lambda entry, seen: entry.records <= left - seen, left)

    def behind(self, destination: str, count: int) -> FanoutBegin:
        """Behind the first `count` kept records; the end when there are not so many."""
        entries, extent = self._entries(destination)
        return self._begin(destination, extent, entries, lambda entry, seen: entry.records <= count - seen, count)

    def since(self, destination: str, timestamp_us: int) -> FanoutBegin:
        """Before the first kept record that was accepted at `timestamp_us` or later; the end when there is none."""
        entries, extent = self._entries(destination)
        begin = self._begin(destination, extent, entries, lambda entry, seen: entry.last_us < timestamp_us, 0)
        rows = self.page(destination, begin.position, 1).rows
        skip = 0
        while skip < len(rows) and rows[skip][1].timestamp_us < timestamp_us:
            skip += 1
        return begin._replace(skip=skip)

    def before(self, destination: str, begin: FanoutBegin) -> Vector:
        """The vector of all that precedes the records from `begin` on."""
        rows = self.page(destination, begin.position, 1).rows if begin.skip else []
        return {**begin.before, **{origin: record.sequence for origin, record in rows[: begin.skip]}}

    def at(self, destination: str, mark: Mark) -> FanoutPosition:
        """Before the first record whose batch begins at a mark of the journal or later, also when that is dropped."""
        journal_position, before = mark
        return FanoutPosition(self._logs.locate(destination, journal_position), journal_position, tuple(before.items()))

    def _at(self, destination: str, journal_position: int) -> FanoutPosition:
        """As `at`, of a position whose vector has to be found.

        Reads at most `MARK_BYTES` of the journal's tail for a position that was appended by this process.
        """
        log_position = self._logs.locate(destination, journal_position)
        seen = self._journal.vector_at(journal_position)
        if journal_position < self._journal.start:
            # What came before it is unknown: rather twice than never. Checked last: a checkpoint may drop it.
            return FanoutPosition(log_position, 0, ())
        return FanoutPosition(log_position, journal_position, tuple(seen.items()))

    def page(self, destination: str, position: FanoutPosition, bytes_max: int) -> FanoutPage:
        """See `Store.fanout_page`."""
        start = self._kept_from(destination)
        while True:
            page = self._page(destination, position, bytes_max)
            # After the read, so that messages deleted meanwhile are left out too.
            deleted = self._deletions.before(destination)
            if deleted:
                page = page._replace(rows=[row for row in page.rows if row[1].sequence > deleted.get(row[0], 0)])
            start, before = self._kept_from(destination), start
            if start == before or position.log_position >= start:
                return page
            # Retention dropped it while it was read: what was found may have a hole without a gap notice.

    def _kept_from(self, destination: str) -> int:
        _, extent = self._logs.view(destination)
        return extent.start if extent is not None else 0

    def _page(self, destination: str, position: FanoutPosition, bytes_max: int) -> FanoutPage:
        state, extent = self._logs.view(destination)
        checkpoint = state.position
        self._update(checkpoint)
        found: list[tuple[Origin, Record]] = []
        seen = dict(position.seen)
        left = bytes_max
        log_position = position.log_position
        dropped: tuple[Dot, ...] = ()
        if extent is not None:
            if 0 < log_position < self._logs.rewritten.get(destination, 0):
                raise CorruptLog(f"{destination}: its log was rewritten after this reader began")
            if log_position < extent.start:
                dropped = extent.dropped
                log_position = extent.start
            log = self._logs.get(destination)
            chain = log.chain
            while log_position < extent.end:
                if left <= 0:
                    after = FanoutPosition(log_position, position.journal_position, position.seen)
                    return FanoutPage(found, after, False, dropped)
                bad: list[Damage] = []
                try:
                    batches = chain.read(log_position, left, [], bad)
                except OSError as error:
                    raise LogBroken(f"cannot read the log of {destination}: {error}") from error
                if bad and bad[0][0] < extent.end:
                    self._logs.refuse(destination, f"its log is damaged from {bad[0][0]} to {bad[0][1]}")
                reached = batches[-1][0] if batches else extent.end
                for begin, end in log.missing:
                    if log_position < end and begin < min(reached, extent.end):
                        self._logs.refuse(destination, f"its log has no file from {begin} to {end}")
                if not batches:
                    log_position = extent.end
                for start, head, data in batches:
                    if start >= extent.end:
                        log_position = extent.end
                        break
                    log_position = start + head.size
                    left -= head.size
                    known = seen.get(head.origin, 0)
                    if head.last > known:
                        found.extend((head.origin, record) for record in batch_records(data) if record.sequence > known)
        journal_position = position.journal_position
        if journal_position < checkpoint:
            # `seen` stays: a resuming reader's vector may reach beyond the checkpoint.
            journal_position = checkpoint
        # The index lacks what could not be read, of whatever fanout it was.
        unreadable = min((start for start, _ in self._journal.damage if start >= journal_position), default=None)
        entries = self._index.get(destination, [])
        for entry in entries[bisect_right(entries, journal_position - 1, key=attrgetter("position")) :]:
            if unreadable is not None and entry.position > unreadable:
                break
            if left <= 0:
                after = FanoutPosition(log_position, entry.position, tuple(seen.items()))
                return FanoutPage(found, after, False, dropped)
            known = seen.get(entry.origin, 0)
            left -= entry.size
            if entry.last <= known:
                continue
            read = self._journal.read(entry.position, entry.size)
            if not read or read[0][0] != entry.position:
                if entry.position < self._journal.start:
                    # A checkpoint has carried it into the log, and dropped it here, since we began.
                    return self._page(destination, position, bytes_max)
                # Damage is passed over by the journal, which then returns a batch further on.
                raise CorruptLog(f"{destination}: the journal is damaged at {entry.position}")
            found.extend(
                (entry.origin, record)
                for record in batch_records(read[0][2])
                if record.destination == destination and record.kind == RecordKind.PUBLISH and record.sequence > known
            )
            seen[entry.origin] = entry.last
        if unreadable is not None:
            if left <= 0:
                return FanoutPage(found, FanoutPosition(log_position, unreadable, tuple(seen.items())), False, dropped)
            raise CorruptLog(f"{destination}: the journal is damaged at {unreadable}")
        return FanoutPage(found, FanoutPosition(log_position, self._indexed_to, tuple(seen.items())), True, dropped)

    def _entries(self, destination: str) -> tuple[list[_Entry], FanoutExtent | None]:
        """Every batch of the fanout that is kept, in order: of its log (`in_log`), then of the journal."""
        state, extent = self._logs.view(destination)
        self._update(state.position)
        entries: list[_Entry] = []
        if extent is not None:
            chain = self._logs.get(destination).chain
            for segment in chain.segments:
                if segment.base < extent.start or segment.first >= extent.end:
                    continue
                for found in chain.index_of(segment):
                    place = segment.base + found.offset
                    if place < extent.end:
                        size = 0
                        entries.append(_Entry(place, size, found.origin, found.first, found.last, *found[4:]))
            entries = self._undeleted(destination, entries, self._pending(destination))
        return entries + self._in_journal(destination), extent

    def _in_journal(self, destination: str) -> list[_Entry]:
        """The batches of the journal since the last checkpoint that have something of the fanout."""
        entries = self._index.get(destination, [])
        return self._undeleted(destination, entries, self._deletions.before(destination))

    def _pending(self, destination: str) -> Vector:
        """What is deleted of a fanout, unless the last checkpoint has deleted it from the log."""
        before = self._deletions.before(destination)
        return {} if covers(self._logs.deletions.before(destination), before) else before

    def _undeleted(self, destination: str, entries: list[_Entry], deleted: Vector) -> list[_Entry]:
        """`entries` without what is deleted; `records` counts what is left of a batch."""
        if not deleted:
            return entries
        kept: list[_Entry] = []
        for entry in entries:
            last = deleted.get(entry.origin, 0)
            if entry.first > last:
                kept.append(entry)
            elif entry.last > last:
                kept.append(entry._replace(records=self._records_after(destination, entry, last)))
        return kept

    def _records_after(self, destination: str, entry: _Entry, last: int) -> int:
        if entry.size:
            read = self._journal.read(entry.position, entry.size)
        else:
            read = self._logs.get(destination).chain.read(entry.position, 1, [], [])
        if not read or read[0][0] != entry.position:
            return 0  # Dropped or damaged since it was indexed.
        records = batch_records(read[0][2])
        return sum(one.destination == destination and one.sequence > last for one in records)

    def _begin(
        self,
        destination: str,
        extent: FanoutExtent | None,
        entries: list[_Entry],
        passes: Callable[[_Entry, int], bool],
        left: int,
    ) -> FanoutBegin:
        """Before the first batch that `passes` does not pass by; it is asked with the records before that batch."""
        before: Vector = dict(extent.dropped) if extent else {}
        records = 0
        for entry in entries:
            if not passes(entry, records):
                skip = max(0, left - records)
                if entry.size:
                    return FanoutBegin(self._at(destination, entry.position), skip, before)
                return FanoutBegin(FanoutPosition(entry.position, 0, ()), skip, before)
            records += entry.records
            merge(before, {entry.origin: entry.last})
        return FanoutBegin(self._at(destination, self._indexed_to), 0, before)

    def counts_behind(self, destination: str, positions: Sequence[FanoutPosition | None]) -> list[int]:
        """How many kept records come behind each position; 0 for None."""
        entries, _ = self._entries(destination)
        found: list[int] = []
        for position in positions:
            left: list[_Entry] = []
            if position is not None:
                left = [
                    entry
                    for entry in entries
                    if entry.position >= (position.journal_position if entry.size else position.log_position)
                ]
                seen = dict(position.seen)
                merge(seen, self._deletions.before(destination))
                left = self._undeleted(destination, left, seen)
            found.append(sum(entry.records for entry in left))
        return found

    def info(self, destination: str) -> FanoutInfo:
        """Counts and times, µs, 0 when there is nothing; of the fanout log the times that count for retention."""
        state, extent = self._logs.view(destination)
        self._update(state.position)
        entries = self._in_journal(destination)
        if extent is not None and self._pending(destination):
            in_log = [entry for entry in self._entries(destination)[0] if not entry.size]
            extent = extent._replace(records=sum(entry.records for entry in in_log))
        records = (extent.records if extent else 0) + sum(entry.records for entry in entries)
        first_us = extent.first_us if extent and extent.records else (entries[0].first_us if entries else 0)
        last_us = entries[-1].last_us if entries else (extent.last_us if extent else 0)
        size = (extent.end - extent.start if extent else 0) + sum(entry.share for entry in entries)
        return FanoutInfo(records, size, first_us, last_us)

    def reads_nothing(self, destination: str) -> bool:
        """Whether `info` finds all in memory now."""
        state, extent = self._logs.view(destination)
        is_indexed = state.position <= self._indexed_from and self._journal.end <= self._indexed_to
        return is_indexed and (extent is None or not self._pending(destination))

    def _update(self, checkpoint: int) -> None:
        """Bring the index to the journal's end, and forget what the checkpoint there has taken over."""
        if self._indexed_from < checkpoint:
            for destination in list(self._index):
                entries = self._index[destination]
                kept = entries[bisect_right(entries, checkpoint - 1, key=attrgetter("position")) :]
                if kept:
                    self._index[destination] = kept
                else:
                    del self._index[destination]
            self._indexed_from = checkpoint
            self._indexed_to = max(self._indexed_to, checkpoint)
        end = self._journal.end
        while self._indexed_to < end:
            batches = self._journal.read(self._indexed_to, _INDEX_READ_BYTES)
            if not batches:
                self._indexed_to = end
            for start, head, data in batches:
                if start >= end:
                    self._indexed_to = end
                    return
                for destination, records in published_destinations(data).items():
                    if destination.startswith(self._prefix):
                        share = head.size * records // head.count
                        self._index.setdefault(destination, []).append(
                            _Entry(start, head.size, head.origin, head.first, head.last, records, *_times(head), share)
                        )
                self._indexed_to = start + head.size


def _times(head: BatchHead) -> tuple[int, int]:
    return head.first_us, head.last_us
