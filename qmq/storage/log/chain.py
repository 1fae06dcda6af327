"""A log as a chain of segment files in one directory: append at the end, read from any position, drop from the front.

Journal and fanout logs are both chains. They decide which batches are allowed and what recovery does with damage. One
thread appends, any number of threads read at the same time, and one other may drop and seal. Segments are only added at
the back and removed from the front of a list. The list is replaced, never changed, and a lock keeps one replacement
from undoing another.

Surprising: a segment's batches end at the base of the next segment. So the position after a full segment and the base
of the next one are the same number, and the next batch begins one segment head later.

Appending, reading and dropping are one module, because the list, its lock and this arithmetic bind all three.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from qmq.errors import CorruptLog, DiskFull, NoDescriptor
from qmq.model.dots import Vector, merge
from qmq.storage.format.batch import HEAD_BYTES, BatchHead, read_head, verify_batch
from qmq.storage.format.interfaces import NO_DESCRIPTOR, NO_SPACE, Disk, File
from qmq.storage.format.segment import (
    BatchEntry,
    Footer,
    SegmentHead,
    encode_footer,
    encode_head,
    is_sealed,
    make_footer,
    read_footer,
    read_segment_head,
    scan,
    segment_base,
    segment_name,
)

TEMPORARY_SUFFIX: Final = ".tmp"
_SEAL_READ_BYTES: Final = 4 * 1024 * 1024


Damage = tuple[int, int]
"""Positions (start, end) where no batch could be read."""


@dataclass(slots=True, eq=False)
class Segment:
    """One file of a chain. `end` is the position after its last batch; for the last segment it grows.

    `sealed`: the segment is known to have its index; one that an earlier run sealed is checked once. A segment with
    `damage` gets no index, because an index over unreadable bytes would say that there are no records.
    """

    head: SegmentHead
    path: str
    file: File
    end: int
    sealed: bool = False
    damage: list[Damage] = field(default_factory=list)

    @property
    def base(self) -> int:
        return self.head.base

    @property
    def first(self) -> int:
        """Position of the first batch."""
        return self.head.base + self.head.size

    def bytes_between(self, start: int, end: int) -> bytes:
        return self.file.read(start - self.head.base, end - start)


class Chain:
    """See the module's opening. Raises OSError as the disk does; the owner decides what that means."""

    def __init__(self, disk: Disk, directory: str, content: int, node: str, segments: list[Segment]) -> None:
        self.disk = disk
        self.directory = directory
        self.content = content
        self.node = node
        self.segments = segments
        self._changing = threading.Lock()

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def add_segment(
        self,
        base: int,
        created_us: int,
        vector: Vector,
        syncing: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        is_synced: bool = True,
    ) -> None:
        """Begin a new last segment at `base`; the file and its name are durable on return, synced within `syncing`.

        Not so without `is_synced`: the caller syncs both when something is in it.
        Raises DiskFull; then it was not begun.
        """
        path = f"{self.directory}/{segment_name(base)}"
        head = encode_head(base, self.content, self.node, created_us, vector)
        try:
            file = self.disk.create(path)
            file.write(head)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise NoDescriptor(f"cannot open another segment: {error}") from error
            if error.errno not in NO_SPACE:
                raise
            with suppress(OSError):
                self.disk.remove(path)
            raise DiskFull(f"no room for another segment: {error}") from error
        if is_synced:
            with syncing():
                file.sync()
                self.disk.sync_directory(self.directory)
        known = SegmentHead(base, self.content, self.node, created_us, dict(vector), len(head))
        segment = Segment(known, path, file, base + len(head))
        with self._changing:
            self.segments = [*self.segments, segment]

    def tail_bytes(self) -> int:
        """Bytes of batches in the last segment."""
        tail = self.segments[-1]
        return tail.end - tail.first

    def write(self, data: bytes) -> None:
        """Append to the last segment, without syncing; readers see it when the owner calls `extend`.

        Raises DiskFull; nothing was written then.
        """
        tail = self.segments[-1]
        _append(tail.file, data, tail.end - tail.base)

    def extend(self, size: int) -> None:
        """Make that many more bytes visible to readers."""
        self.segments[-1].end += size

    def sync(self) -> None:
        self.segments[-1].file.sync()

    def read(
        self, position: int, bytes_max: int, holes: Sequence[Damage], damage: list[Damage]
    ) -> list[tuple[int, BatchHead, bytes]]:
        """Whole batches from `position` on, checksums verified: about `bytes_max`, but at least one; [] at the end.

        `holes` (sorted) are passed over. Damage that is met is passed over too and added to `damage`, once: readers
        never get a bad batch, and they notice the missing sequences themselves.
        """
        segments = self.segments
        found: list[tuple[int, BatchHead, bytes]] = []
        left = bytes_max
        index = find_segment(segments, position)
        while index < len(segments) and (left > 0 or not found):
            segment = segments[index]
            position = max(position, segment.first)
            hole_start = segment.end
            for start, end in holes:
                if start <= position < end:
                    position = end
                elif start > position:
                    hole_start = min(start, hole_start)
                    break
            if position >= segment.end:
                index += 1
                continue
            data = segment.bytes_between(position, min(hole_start, position + max(left, HEAD_BYTES)))
            size = _whole_batches(data, position, found)
            if size == 0:
                if found and position + len(data) < hole_start:
                    break  # The next one is larger than what is left; the next read begins with it.
                size = self._read_one(segment, position, hole_start, found, damage)
            position += size
            left -= size
        return found

    def _read_one(
        self,
        segment: Segment,
        position: int,
        limit: int,
        found: list[tuple[int, BatchHead, bytes]],
        damage: list[Damage],
    ) -> int:
        """One batch that is larger than the read, or the way round a bad one. Returns how far that is."""
        try:
            head = read_head(segment.bytes_between(position, min(limit, position + HEAD_BYTES)))
            if head is not None and position + head.size <= limit:
                data = segment.bytes_between(position, position + head.size)
                found.append((position, verify_batch(data), data))
                return head.size
        except CorruptLog:
            pass  # Damage: the scan below finds out how far it reaches.
        data = segment.bytes_between(position, limit)
        for span in scan(data):
            if span.head is not None:
                found.append((position + span.start, span.head, data[span.start : span.end]))
                return span.end
            if (found_bad := (position + span.start, position + span.end)) not in damage:
                damage.append(found_bad)
        return len(data) or limit - position

    def drop_before(self, position: int) -> int:
        """Forget and remove whole segments that end at or before `position`; the last one stays. Returns bytes freed.

        The names are gone for good only after the caller's next `sync_directory`; finding them again is harmless.
        """
        freed = 0
        while len(self.segments) > 1 and self.segments[1].base <= position:
            dropped = self.segments[0]
            with self._changing:
                self.segments = self.segments[1:]
            freed += dropped.end - dropped.base
            # Open handles of readers keep the bytes alive until they are collected, so none is closed here.
            self.disk.remove(dropped.path)
        return freed

    def seal(self, segment: Segment, holes: Sequence[Damage] = (), footer: Footer | None = None) -> None:
        """Append the index to a full segment, unless there is `damage` in it beside the `holes` that are known.

        `footer` is that index when it is known already; else the segment is read. A crash in the middle leaves it
        unsealed, and it is sealed again. Raises DiskFull; nothing was written then.
        """
        if footer is None:
            found = self.batches_of(segment, segment.damage, holes)
            footer = make_footer(
                segment.end - segment.base, ((position - segment.base, head, data) for position, head, data in found)
            )
        if not segment.damage:
            _append(segment.file, encode_footer(footer), segment.file.size())
            segment.file.sync()
            segment.sealed = True

    def batches_of(
        self, segment: Segment, damage: list[Damage] | None = None, holes: Sequence[Damage] = ()
    ) -> Iterator[tuple[int, BatchHead, bytes]]:
        """The valid batches of one segment, with their positions; damaged ranges are added to `damage`."""
        bad = [] if damage is None else damage
        position = segment.first
        only = Chain(self.disk, self.directory, self.content, self.node, [segment])
        while chunk := only.read(position, _SEAL_READ_BYTES, holes, bad):
            yield from chunk
            position = chunk[-1][0] + chunk[-1][1].size

    def index_of(self, segment: Segment, damage: list[Damage] | None = None) -> list[BatchEntry]:
        """Its batches, from the index if there is one; else damaged ranges are added to `damage`."""
        footer = read_footer(segment.file, segment.end - segment.base) if segment is not self.segments[-1] else None
        if footer is not None:
            return footer.batches
        return [
            BatchEntry(position - segment.base, head.origin, head.first, head.last, head.count, *_times(head))
            for position, head, _ in self.batches_of(segment, damage)
        ]

    def contents(self, segment: Segment, damage: list[Damage] | None = None) -> tuple[Vector, int]:
        """Per origin the last sequence in `segment`, and how many records there are; `damage` as in `index_of`."""
        last: Vector = {}
        entries = self.index_of(segment, damage)
        for entry in entries:
            merge(last, {entry.origin: entry.last})
        return last, sum(entry.records for entry in entries)

    def unsealed(self) -> list[Segment]:
        """Full segments that wait for their index, oldest first. One whose end is lost gets none."""
        found: list[Segment] = []
        for segment, following in pairwise(self.segments):
            if not segment.sealed and not segment.damage and segment.end == following.base:
                segment.sealed = is_sealed(segment.file, segment.end - segment.base)
                if not segment.sealed:
                    found.append(segment)
        return found

    def close(self) -> None:
        for segment in self.segments:
            segment.file.close()


def _times(head: BatchHead) -> tuple[int, int]:
    return head.first_us, head.last_us


def find_segment(segments: list[Segment], position: int) -> int:
    """Index of the segment that holds `position`; before the first one: 0."""
    low, high = 0, len(segments) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if segments[middle].base <= position:
            low = middle
        else:
            high = middle - 1
    return low


def _whole_batches(data: bytes, position: int, found: list[tuple[int, BatchHead, bytes]]) -> int:
    """Move the whole good batches at the front of `data` to `found`. Returns their bytes."""
    place = 0
    while place < len(data):
        try:
            head = read_head(data, place)
            if head is None or place + head.size > len(data):
                break
            batch = data[place : place + head.size]
            verify_batch(batch)
        except CorruptLog:
            break
        found.append((position + place, head, batch))
        place += head.size
    return place


def open_chain(
    disk: Disk, directory: str, content: int, node: str, *, is_synced: bool = True
) -> tuple[Chain, list[str]]:
    """The chain in `directory`, as far as heads can be read, and the paths of files whose head cannot.

    The last segment ends where its file does: what of it counts is the owner's to find out. Raises FutureVersion.
    """
    disk.make_directory(directory, is_synced=is_synced)
    segments: list[Segment] = []
    bad: list[str] = []
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(path)
            continue
        base = segment_base(name)
        if base is None:
            continue
        file = disk.open(path)
        try:
            head = read_segment_head(file)
            if head.base != base or head.content != content:
                raise CorruptLog("the segment is not what its name says")
        except CorruptLog:
            bad.append(path)
            file.close()
            continue
        if segments:
            segments[-1].end = min(segments[-1].end, base)
        segments.append(Segment(head, path, file, base + file.size()))
    return Chain(disk, directory, content, node, segments), bad


def _append(file: File, data: bytes, size: int) -> None:
    """Append `data` to `file`, which has `size` bytes. DiskFull: it has as many again, so the next one goes there.

    OSError: how much was written is unknown.
    """
    try:
        file.write(data)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        file.cut(size)
        if file.size() != size:
            raise
        raise DiskFull(f"no room on the disk: {error}") from error


def cut_file(disk: Disk, path: str, file: File, size: int) -> File:
    """Let a file end after `size` bytes, durable on return; `file` is closed, or it is the one that is returned.

    A copy takes its place, so that a reader beside the node keeps what it has open. On a disk without room for a copy
    the file itself is cut: a start must not need room.
    """
    try:
        whole = _write_beside(disk, path, file.read(0, size))
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        file.cut(size)
        file.sync()
        return file
    file.close()
    _put_in_place(disk, path)
    return whole


def replace_file(disk: Disk, path: str, data: bytes) -> File:
    """Put a durable file with exactly `data` in the place of `path`, in one step."""
    file = _write_beside(disk, path, data)
    _put_in_place(disk, path)
    return file


def _write_beside(disk: Disk, path: str, data: bytes) -> File:
    """A durable file that waits to take the place of `path`. OSError: nothing is left of it."""
    temporary = path + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        file.write(data)
        file.sync()
    except OSError:
        file.close()
        with suppress(OSError):
            disk.remove(temporary)
        raise
    return file


def _put_in_place(disk: Disk, path: str) -> None:
    """OSError: whether it has happened is unknown, so nothing may be written to either file."""
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_directory(path.rpartition("/")[0])
