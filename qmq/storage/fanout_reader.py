"""Reading one fanout as if it were one log: first its fanout log, then the journal since the last checkpoint.

A `FanoutPosition` stays right when a checkpoint moves records from the journal to the fanout log between two reads,
and when segments are dropped: it says how far the fanout log was read, how far the journal was, and up to which
sequence of each origin records were taken from the journal. The next read skips exactly those in the log.

Surprising: which journal batches hold records of a fanout is found out only when somebody reads, and remembered until
the next checkpoint; a node without late readers pays nothing for it.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

from qmq.dots import Origin, Vector
from qmq.errors import LogBroken
from qmq.storage.batch import batch_records, published_destinations
from qmq.storage.fanout import FanoutLogs
from qmq.storage.journal import Journal
from qmq.storage.record import Kind, Record

_INDEX_READ_BYTES: Final = 1024 * 1024


class FanoutPosition(NamedTuple):
    """Where a reader of one fanout stands. Keep it as it is; it means nothing for another fanout or node."""

    log_position: int
    journal_position: int
    """Everything of this fanout before this journal position was returned, once a read says `at_end`."""
    seen: tuple[tuple[Origin, int], ...]


class FanoutInfo(NamedTuple):
    """What one fanout holds now, fanout log and journal together. `bytes` counts the fanout log only."""

    records: int
    bytes: int
    first_us: int
    last_us: int


class _Entry(NamedTuple):
    position: int
    size: int
    origin: Origin
    last: int
    records: int
    first_us: int
    last_us: int


class FanoutReader:
    """See the module's opening. `read` and `info` are for one caller at a time; `start`, `after` and `at` for any."""

    def __init__(self, journal: Journal, logs: FanoutLogs, prefix: str) -> None:
        self._journal = journal
        self._logs = logs
        self._prefix = prefix
        self._index: dict[str, list[_Entry]] = {}
        self._indexed_from = 0
        self._indexed_to = 0

    def start(self) -> FanoutPosition:
        """Before everything that is kept."""
        return FanoutPosition(0, 0, ())

    def after(self, vector: Vector) -> FanoutPosition:
        """Before everything that `vector` does not cover: for a reader that resumes with what it has."""
        return FanoutPosition(0, 0, tuple(vector.items()))

    def at(self, destination: str, journal_position: int) -> FanoutPosition:
        """Before the first record whose batch begins at `journal_position` or later.

        Reads at most `MARK_BYTES` of the journal's tail for a position that was appended by this process.
        """
        log_position = self._logs.locate(destination, journal_position)
        seen = self._journal.vector_at(journal_position)
        if journal_position < self._journal.start:
            # Nobody knows any more what came before it: rather twice than never. Asked last, as it may be dropped now.
            return FanoutPosition(log_position, 0, ())
        return FanoutPosition(log_position, journal_position, tuple(seen.items()))

    def read(
        self, destination: str, position: FanoutPosition, bytes_max: int
    ) -> tuple[list[tuple[Origin, Record]], FanoutPosition, bool]:
        """Records from `position` on, about `bytes_max` of log but at least one batch; the position after; at end?"""
        state, extent = self._logs.view(destination)
        checkpoint = state.position
        self._update(checkpoint)
        found: list[tuple[Origin, Record]] = []
        seen = dict(position.seen)
        left = bytes_max
        log_position = position.log_position
        if extent is not None:
            log_position = max(log_position, extent.start)
            chain = self._logs.get(destination).chain
            while log_position < extent.end:
                if left <= 0:
                    return found, FanoutPosition(log_position, position.journal_position, position.seen), False
                try:
                    batches = chain.read(log_position, left, [], [])
                except OSError as error:
                    raise LogBroken(f"cannot read the log of {destination}: {error}") from error
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
        entries = self._index.get(destination, [])
        for entry in entries[bisect_right(entries, journal_position - 1, key=_entry_position) :]:
            if left <= 0:
                return found, FanoutPosition(log_position, entry.position, tuple(seen.items())), False
            known = seen.get(entry.origin, 0)
            left -= entry.size
            if entry.last <= known:
                continue
            for start, head, data in self._journal.read(entry.position, entry.size):
                # Damage is passed over by the journal, which may then return a batch further on.
                if start == entry.position:
                    found.extend(
                        (head.origin, record)
                        for record in batch_records(data)
                        if record.destination == destination and record.kind == Kind.PUBLISH and record.sequence > known
                    )
            seen[entry.origin] = entry.last
        return found, FanoutPosition(log_position, self._indexed_to, tuple(seen.items())), True

    def info(self, destination: str) -> FanoutInfo:
        """Counts and times; times are those of batches, µs, 0 when there is nothing."""
        state, extent = self._logs.view(destination)
        self._update(state.position)
        entries = self._index.get(destination, [])
        records = (extent.records if extent else 0) + sum(entry.records for entry in entries)
        first_us = extent.first_us if extent and extent.records else (entries[0].first_us if entries else 0)
        last_us = entries[-1].last_us if entries else (extent.last_us if extent else 0)
        return FanoutInfo(records, extent.end - extent.start if extent else 0, first_us, last_us)

    def _update(self, checkpoint: int) -> None:
        """Bring the index to the journal's end, and forget what the checkpoint there has taken over."""
        if self._indexed_from < checkpoint:
            for destination in list(self._index):
                entries = self._index[destination]
                kept = entries[bisect_right(entries, checkpoint - 1, key=_entry_position) :]
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
                        self._index.setdefault(destination, []).append(
                            _Entry(start, head.size, head.origin, head.last, records, head.first_us, head.last_us)
                        )
                self._indexed_to = start + head.size


def _entry_position(entry: _Entry) -> int:
    return entry.position
