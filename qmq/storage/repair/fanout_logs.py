"""Repair of a damaged fanout log: find what is missing, search for it, and rewrite the log with it.

The log itself shows what it is missing. Around each hole it is known, per origin, which records came before it and
which after. What lies between is missing, if it belongs to this fanout at all. The journal of this node may still have
it; for the remainder the node asks its peers (`server.repair.fanout_logs`). Then the log is rewritten behind its old
end, with the found records in place of the holes, and one commit of the catalog replaces the old log. After a crash
before that commit, the old log is unchanged, and the next opening cuts off the new bytes.

Surprising: an origin that never wrote to this fanout counts as missing too, as far as the log shows. An answer
accounts for a whole range, so an empty answer is valid.
"""

import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from qmq.errors import CorruptLog, DiskFull, LogBroken
from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.storage.checkpoints.checkpoint import Checkpointer
from qmq.storage.fanouts.log import DROPPED_ORIGINS_MAX
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.batch import SPARSE, BatchHead, batch_records, encode_batch, record_slices
from qmq.storage.format.interfaces import NO_SPACE, Disk, FanoutExtent
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import KIND_OFFSET, RecordKind, unpack_record
from qmq.storage.log.chain import Chain, Damage
from qmq.storage.log.journal import Journal

SPOOL: Final = "mending.tmp"
"""Found records are in this file until the log is rewritten. A whole segment may be missing: too much for memory."""

_READ_BYTES: Final = 1024 * 1024


class Survey(NamedTuple):
    """The state of a log when all of it was read."""

    extent: FanoutExtent
    holes: frozenset[int]
    """Where they begin."""
    missing_ranges: list[tuple[int, MissingRange]]
    """What is unreadable here, if there is any such record, after the position of the hole to which it belongs."""


class _Good(NamedTuple):
    place: int
    origin: Origin
    first: int
    last: int


def survey(chain: Chain, extent: FanoutExtent, holes: list[Damage], vector: Vector, given_up: Vector) -> Survey:
    """Read all of a log and find what it is missing. `vector`: what it should have; `given_up`: what no member has."""
    good: list[_Good] = []
    bad = list(holes)
    for segment in chain.segments:
        found: list[Damage] = []
        for place, head, _ in chain.batches_of(segment, found):
            if extent.start <= place < extent.end:
                good.append(_Good(place, head.origin, head.first, head.last))
        bad += [hole for hole in found if extent.start < hole[1] and hole[0] < extent.end]
    before: Vector = dict(extent.dropped)
    merge(before, given_up)
    missing_ranges: list[tuple[int, MissingRange]] = []
    begin = 0
    for place in sorted(start for start, _ in bad):
        while begin < len(good) and good[begin].place < place:
            merge(before, {good[begin].origin: good[begin].last})
            begin += 1
        following: Vector = dict(vector)
        for batch in reversed(good[begin:]):
            following[batch.origin] = batch.first - 1
        for origin, through in sorted(following.items()):
            after = before.get(origin, 0)
            if through > after:
                missing_ranges.append((place, MissingRange(origin, after, through)))
                before[origin] = through
    return Survey(extent, frozenset(start for start, _ in bad), missing_ranges)


class FoundRange:
    """What was found of a survey's gaps, in a file; only offsets are in memory."""

    def __init__(self, disk: Disk, of: Survey) -> None:
        self.survey = of
        self.left = [missing for _, missing in of.missing_ranges]
        """What is still missing of each gap."""
        self.lost: Vector = {}
        """Per origin, up to where the retention of a peer had dropped records that no other member has."""
        self._disk = disk
        self._file = disk.create(SPOOL)
        self._at: dict[int, list[tuple[int, int]]] = {}
        self.size = 0
        """Bytes of what was found."""

    def add(self, index: int, through: int, records: list[bytes]) -> None:
        """`records`, packed, are all of `left[index]` up to `through`. Raises LogBroken, and DiskFull."""
        gap = self.left[index]
        if records:
            known = [unpack_record(packed) for packed in records]
            data = encode_batch(
                gap.origin,
                records,
                known[0].sequence,
                known[-1].sequence,
                known[0].timestamp_us,
                known[-1].timestamp_us,
                SPARSE,
            )
            try:
                self._file.write(data)
            except OSError as error:
                if error.errno in NO_SPACE:
                    raise DiskFull(f"no room for what was found of a fanout: {error}") from error
                raise LogBroken(f"cannot keep what was found of a fanout: {error}") from error
            self._at.setdefault(self.survey.missing_ranges[index][0], []).append((self.size, len(data)))
            self.size += len(data)
        self.left[index] = gap._replace(after=min(through, gap.through))

    @property
    def is_complete(self) -> bool:
        return self.missing == 0

    @property
    def missing(self) -> int:
        """How many gaps are not accounted for."""
        return sum(gap.after < gap.through for gap in self.left)

    def give_up(self, index: int) -> None:
        """Give up the remainder of this gap: no member has it."""
        gap = self.left[index]
        merge(self.lost, {gap.origin: gap.through})
        self.left[index] = gap._replace(after=gap.through)

    def at(self, places: range) -> Iterator[bytes]:
        """The batches that belong to holes that begin at these places."""
        for place in sorted(self._at):
            if place in places:
                for offset, size in self._at[place]:
                    yield self._file.read(offset, size)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._disk.remove(SPOOL)


def search_journal(journal: Journal, destination: str, found: FoundRange, end: int) -> None:
    """Take what the journal still has of the gaps, before position `end`. Raises LogBroken."""
    wanted = {gap.origin for gap in found.left if gap.after < gap.through}
    position = journal.start
    while position < end and (batches := journal.read(position, _READ_BYTES)):
        for start, head, data in batches:
            position = start + head.size
            if start < end and head.origin in wanted:
                _take(found, destination, head, data)


def _take(found: FoundRange, destination: str, head: BatchHead, data: bytes) -> None:
    for index, gap in enumerate(found.left):
        # A range snapshot (`batch.REST`) accounts for its whole range, too.
        if gap.origin == head.origin and head.first <= gap.after + 1 and gap.after < min(head.last, gap.through):
            found.add(index, head.last, records_of(destination, data, gap.after, gap.through))


def records_of(destination: str, data: bytes, after: int, through: int) -> list[bytes]:
    """The packed messages for `destination` in a batch, after one sequence and up to another."""
    return [
        packed
        for record, packed in zip(batch_records(data), record_slices(data), strict=True)
        if after < record.sequence <= through and packed[KIND_OFFSET] == RecordKind.PUBLISH
        if record.destination == destination
    ]


def repaired(chain: Chain, found: FoundRange, end: int) -> Iterator[bytes]:
    """The batches of the repaired log up to `end`: the readable ones, and in place of the holes what was found.

    Raises CorruptLog when more is damaged than the survey saw.
    """
    extent = found.survey.extent
    holes = found.survey.holes
    place = extent.start
    for segment in [segment for segment in chain.segments if segment.base < end]:
        bad: list[Damage] = []
        for start, _, data in chain.batches_of(segment, bad):
            if extent.start <= start < end:
                yield from found.at(range(place, start + 1))
                yield data
                place = start + 1
        if any(start not in holes and start < end and stop > extent.start for start, stop in bad):
            raise CorruptLog("more of the log is damaged by now")
    yield from found.at(range(place, end + 1))


class FanoutRepairer:
    """Of one store. `begin` and `finish` keep checkpoints waiting while they read or write a whole log."""

    def __init__(
        self, disk: Disk, journal: Journal, logs: FanoutLogs, lock: threading.RLock, checkpointer: Checkpointer
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._logs = logs
        self._lock = lock
        self._checkpointer = checkpointer

    def begin(self, destination: str, given_up: Vector) -> FoundRange | None:
        """Find what the log of `destination` is missing and what the journal has of it. The caller closes the result.

        None: the fanout was deleted.

        Raises LogBroken, and NoDescriptor.
        """
        with self._checkpointer.working():
            state, extent = self._logs.view(destination)
            if extent is None:
                self._logs.damaged.pop(destination, None)
                return None
            with self._lock:
                log = self._logs.hold(destination)
            seen = survey(log.chain, extent, log.missing, state.vector, given_up)
            with self._lock:
                self._logs.release()
        found = FoundRange(self._disk, seen)
        search_journal(self._journal, destination, found, state.position)
        return found

    def finish(self, destination: str, found: FoundRange, reserve_bytes: int) -> bool:
        """Rewrite the log with what was found. False: it has changed meanwhile, or there is no room; nothing is done.

        Readers with a position in the old log get one CorruptLog and begin again. Raises LogBroken.
        """
        with self._checkpointer.working():
            state, extent = self._logs.view(destination)
            seen = found.survey.extent
            if extent is None or extent.start != seen.start:
                return False  # Retention has changed it meanwhile.
            if self._disk.free_bytes() - reserve_bytes < extent.end - extent.start + found.size:
                return False
            with self._lock:
                log = self._logs.hold(destination)
            try:
                whole = log.rewrite(
                    repaired(log.chain, found, extent.end), self._checkpointer.retention.bounds(destination)
                )
                if found.lost:
                    dropped = dict(extent.dropped)
                    merge(dropped, found.lost)
                    whole = whole._replace(dropped=tuple(Dot(*one) for one in dropped.items())[-DROPPED_ORIGINS_MAX:])
                self._checkpointer.retention.commit_extent(destination, whole)
            except (CorruptLog, DiskFull):
                with self._lock:
                    self._logs.release()
                    self._logs.reopen(destination)
                return False
            self._logs.replaced(destination)
            log.drop()
            with self._lock:
                self._logs.release()
        return True
