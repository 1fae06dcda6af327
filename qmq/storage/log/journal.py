"""The journal: the one log of a node that is synced on the hot path, that links follow and recovery replays.

A chain of segments that takes dense batches of any origin and knows, per origin, up to where nothing is missing.
The callers decide which records to append and that none comes twice: a batch that does not continue its origin is a
bug of the caller. `recovery` handles opening, torn tails and damage.

One thread appends; others may read, seek and ask for vectors at the same time. `drop_before`, `note` and
`seal_full` belong to the checkpoint's thread.

Surprising: after a failed write or sync only reading works until the process restarts. A write without room does not
count as failed: the file is cut to its former size, and parts of the disk's reserve are freed as long as there are any.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Final

from qmq.errors import DiskFull, LogBroken, NoDescriptor
from qmq.model.dots import Vector, covers, merge
from qmq.storage.format.batch import GAPS, REST, BatchHead, Unpacked, batch_records, is_journal, read_head
from qmq.storage.format.record import RecordKind, unpack_gap
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.chain import Chain, Damage, find_segment
from qmq.storage.log.compacted_ranges import CompactedRanges
from qmq.storage.log.fsync_times import SyncTimes
from qmq.storage.log.segment_index import SegmentIndexer
from qmq.storage.log.tail_cache import TailCache

MARK_BYTES: Final = 1024 * 1024
"""Distance of the positions whose vector is kept; a seek returns a position at most this much too early."""

SYNC_FAILED: Final = "journal/sync-failed"
"""Exists after a failed sync: the kernel may hold pages of the tail as written that the disk does not have."""

Mark = tuple[int, Vector]
"""A position and the vector of everything before it."""


class Journal:
    """See the module's opening. Made by `recovery.recover_journal`."""

    def __init__(
        self,
        chain: Chain,
        *,
        settings: StoreSettings,
        vector: Vector,
        marks: list[Mark],
        holes: list[Damage],
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._vector = vector
        self._marks = marks
        self._holes = holes
        self._compacted = CompactedRanges(chain)
        self._recent = TailCache()
        self._indexing = SegmentIndexer()
        self._writing = threading.Lock()
        self._state = threading.Lock()
        self._broken = False
        self.sync_times = SyncTimes(settings.clock)
        # The newest time of any record so far: it gives a segment its age, not the old records that peers send late.
        self._newest_us = max((segment.head.created_us for segment in chain.segments), default=0)
        self.end = chain.end
        """Position after the last appended batch."""
        self.synced_end = chain.end
        """Position up to which everything survives a power cut."""
        # Not `end`: the next segment may have been begun, and then no room was left for the first batch in it.
        self._appended_end = chain.end
        self.last_append: Mark = (chain.end, dict(vector))
        """Where the last `append` began: where the one before it ended. Valid for the appending thread until its next
        append."""
        self.is_short = False
        """A part of the reserve was freed; the task that restores the reserve resets this."""
        self.damage: list[Damage] = []
        """Ranges that reads found damaged and skipped since the start; the node raises a condition for them."""

    @property
    def node(self) -> str:
        """The node to which the journal belongs."""
        return self._chain.node

    @property
    def start(self) -> int:
        """First kept position."""
        return self._chain.start

    @property
    def is_writing(self) -> bool:
        """Whether an append or a sync is under way, in any thread; the next one waits for it."""
        return self._writing.locked()

    def vector(self) -> Vector:
        """Per origin the highest sequence below which nothing is missing, dropped records included."""
        with self._state:
            return dict(self._vector)

    def base(self) -> Vector:
        """What retention has dropped: the vector at `start`."""
        return dict(self._chain.segments[0].head.vector)

    def snapshot_ends(self) -> Vector:
        """Per origin the end of the last range snapshot; see `CompactedRanges.last`."""
        return self._compacted.last()

    def append(self, batches: Sequence[bytes], settle_only: bool = False) -> int:
        """Write whole `batches` at the tail with one write; return the position after them.

        Durable on return with `sync="always"` (one sync for all of them); else after the next `sync`. Readers see
        them from then on. `settle_only` batches may use the disk's reserve. Blocks as long as the disk takes.

        Raises:
            ValueError: a batch does not continue its origin, or may not be journalled. Nothing was written.
            DiskFull: only the reserve is left; with `settle_only`, not even that. Nothing was written.
            LogBroken: how much reached the disk is unknown; every later call raises it too.
        """
        with self._writing:
            if self._broken:
                raise LogBroken("the journal failed before; restart to recover")
            heads = self._check(batches)
            began = (self._appended_end, dict(self._vector))
            data = batches[0] if len(batches) == 1 else b"".join(batches)
            try:
                if not settle_only:
                    self._require_space(len(data))
                self._write(heads, data)
            except OSError as error:
                self._broken = True
                raise LogBroken(f"append failed: {error}") from error
            chain = self._chain
            if self._settings.sync == "always":
                with self._syncing():
                    chain.sync()
            with self._state:
                position = chain.end
                for head, batch in zip(heads, batches, strict=True):
                    self._recent.add(position, head, batch)
                    position += head.size
                    advance(self._vector, head, batch, chain.node)
                    self._newest_us = max(self._newest_us, head.last_us)
                    if head.attributes & REST:
                        self._compacted.note(head)
                chain.extend(len(data))
                self.end = self._appended_end = chain.end
                self.last_append = began
                if self._settings.sync == "always":
                    self.synced_end = self.end
                if self.end - self._marks[-1][0] >= MARK_BYTES:
                    self._marks.append((self.end, dict(self._vector)))
            return self.end

    def sync(self) -> None:
        """Make everything appended so far durable. Raises LogBroken."""
        with self._writing:
            if self._broken:
                raise LogBroken("the journal failed before; restart to recover")
            if self.synced_end == self.end:
                return
            with self._syncing():
                self._chain.sync()
            self.synced_end = self.end

    def read(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        """Whole batches from `position` on, in log order, with their positions; about `bytes_max`, but at least one.

        [] at the end. The next position to ask for is the last one plus its `head.size`. Positions before `start`
        mean `start`. Damaged batches are passed over and noted in `damage`. Raises LogBroken when the disk refuses.
        """
        try:
            return self._chain.read(position, bytes_max, self._holes, self.damage)
        except OSError as error:
            raise LogBroken(f"cannot read the journal: {error}") from error

    def read_recent(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        """As `read`, from memory only; never blocks. [] when the batch at `position` is not in memory."""
        with self._state:
            return self._recent.since(position, bytes_max)

    def seek(self, vector: Vector) -> int:
        """A position before which every record is covered by `vector`; at most `MARK_BYTES` or a segment too early.

        For a vector behind `base` that is `start`: the caller must send the reader a gap notice.
        """
        with self._state:
            if covers(vector, self._vector):
                return self.end
            marks = self._marks
            low, high = 0, len(marks)
            while low < high:
                middle = (low + high) // 2
                if covers(vector, marks[middle][1]):
                    low = middle + 1
                else:
                    high = middle
            return max(marks[low - 1][0], self.start) if low else self.start

    def vector_at(self, position: int) -> Vector:
        """The vector of everything before `position`; for a dropped position, the base."""
        with self._state:
            index = bisect_right(self._marks, position, key=itemgetter(0)) - 1
            place, known = self._marks[max(index, 0)]
        vector = dict(known)
        while place < position:
            batches = self.read(place, min(MARK_BYTES, position - place))
            if not batches:
                break
            for start, head, data in batches:
                if start >= position:
                    return vector
                advance(vector, head, data, self._chain.node)
                place = start + head.size
        return vector

    def segment_bounds(self) -> list[tuple[int, int, Vector]]:
        """Full segments, oldest first: end position, timestamp µs and vector where the next one begins."""
        segments = self._chain.segments
        return [(after.base, after.head.created_us, after.head.vector) for after in segments[1:]]

    def drop_before(self, position: int) -> int:
        """Remove whole segments that end at or before `position`. Returns bytes freed. Raises LogBroken."""
        try:
            freed = self._chain.drop_before(position)
            if freed:
                self._chain.disk.sync_directory(self._chain.directory)
        except OSError as error:
            raise LogBroken(f"cannot drop segments: {error}") from error
        with self._state:
            kept = [mark for mark in self._marks if mark[0] > self.start]
            self._marks = [(self.start, self.base()), *kept]
        return freed

    def forget(self, without: Callable[[Vector], Vector]) -> None:
        """Remove origins of which nothing is here any more; `without` removes them from a vector."""
        with self._state:
            self._vector = without(self._vector)
            self.last_append = (self.last_append[0], without(self.last_append[1]))
            self._marks = [(position, without(vector)) for position, vector in self._marks]
            strip_heads(self._chain, without)
        self._compacted.forget(without)

    def note(self, position: int, head: BatchHead, records: list[Unpacked]) -> None:
        """Note the records of a batch that a checkpoint has read, so that `seal_full` need not read it again."""
        segments = self._chain.segments
        self._indexing.note(segments[find_segment(segments, position)], position, head, records)

    def seal_full(self, until: int | None = None) -> int:
        """Write the index of full segments that have none and are not damaged; only of those that end at or before
        `until`, if it is given. Returns how many. Raises LogBroken, and DiskFull, after which the rest has none.
        """
        try:
            unsealed = [segment for segment in self._chain.unsealed() if until is None or segment.end <= until]
            for segment in unsealed:
                footer = self._indexing.index_of(segment)
                if any(segment.base <= start < segment.end for start, _ in self.damage):
                    footer = None  # It was sound when the checkpoint read it.
                self._chain.seal(segment, self._holes, footer)
                self.damage += [found for found in segment.damage if found not in self.damage]
        except OSError as error:
            raise LogBroken(f"cannot seal a segment: {error}") from error
        return sum(segment.sealed for segment in unsealed)

    def segments(self) -> int:
        """How many files there are."""
        return len(self._chain.segments)

    def close(self) -> None:
        """Final sync, unless the journal is broken already; then the files are closed."""
        try:
            if not self._broken:
                self.sync()
        finally:
            self._broken = True
            self._chain.close()

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        """When the disk refuses, for whatever reason, the journal is broken: LogBroken. A note for the next start is
        written, if this disk still takes one."""
        times = self.sync_times
        began = times.clock()
        try:
            yield
        except OSError as error:
            self._broken = True
            disk = self._chain.disk
            with suppress(OSError):
                disk.create(SYNC_FAILED).close()
                disk.sync_directory(self._chain.directory)
            raise LogBroken(f"sync failed: {error}") from error
        times.note(times.clock() - began)

    def _write(self, heads: Sequence[BatchHead], data: bytes) -> None:
        """Write `data` into this segment or the next one, if need be where the reserve was.

        Raises DiskFull, when nothing is left of that: nothing was written. Raises OSError and LogBroken.
        """
        chain = self._chain
        while True:
            try:
                if heads and chain.tail_bytes() and chain.tail_bytes() + len(data) > self._settings.segment_bytes_max:
                    self._roll(max(self._newest_us, heads[0].first_us))
                chain.write(data)
                return
            except NoDescriptor:
                raise  # The reserve of room is for something else.
            except DiskFull:
                self.is_short = True
                if not chain.disk.give_up_reserve(len(data)):
                    raise

    def _check(self, batches: Sequence[bytes]) -> list[BatchHead]:
        """The heads of `batches`, each continuing its origin. Raises ValueError."""
        heads: list[BatchHead] = []
        ahead: Vector = {}
        for batch in batches:
            head = read_head(batch)
            if head is None or head.size != len(batch):
                raise ValueError("not exactly one batch")
            if not is_journal(head.attributes):
                raise ValueError(f"{head!r} may not be journalled")
            have = max(ahead.get(head.origin, 0), self._vector.get(head.origin, 0))
            if head.first != have + 1:
                raise ValueError(f"{head!r} does not continue {head.origin} at {have}")
            heads.append(head)
            if head.attributes & GAPS:
                advance(ahead, head, batch, self._chain.node)
            ahead[head.origin] = head.last
        return heads

    def _require_space(self, size: int) -> None:
        if self._chain.disk.free_bytes() - size < self._settings.reserve_bytes:
            raise DiskFull("only the reserve for settles is left on the disk")

    def _roll(self, created_us: int) -> None:
        """Begin the next segment. The full one is durable before, so damage in it can never be a torn tail."""
        if self.synced_end != self.end:
            with self._syncing():
                self._chain.sync()
            self.synced_end = self.end
        self._chain.add_segment(self.end, created_us, self._vector, self._syncing)
        with self._state:
            self.end = self.synced_end = self._chain.end
            self._marks.append((self.end, dict(self._vector)))


def strip_heads(chain: Chain, without: Callable[[Vector], Vector]) -> None:
    """Take forgotten origins out of what the segments say came before them; the files stay as they are."""
    for segment in chain.segments:
        segment.head = segment.head._replace(vector=without(segment.head.vector))


def advance(vector: Vector, head: BatchHead, data: bytes, node: str) -> None:
    """Take one more batch into `vector`.

    A GAP counts only in the journal of the node that wrote it: what that node gave up, another may still get.
    """
    vector[head.origin] = head.last
    if head.attributes & GAPS and head.origin.node == node:
        for record in batch_records(data):
            if record.kind == RecordKind.GAP:
                origin, through = unpack_gap(record.body)
                merge(vector, {origin: through})
