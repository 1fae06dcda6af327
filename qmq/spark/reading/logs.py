"""The content of data directories: the journal and the fanout logs of a node, as segments.

Files are read beside a running node: nothing is locked or changed. One segment is `segments`' business.

Surprising: a directory's fanout logs reach further back than its journal, and overlap with it. Which of them is read
for what is `plan`'s business.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from qmq.errors import CorruptLog
from qmq.model.dots import Vector, merge
from qmq.spark.reading.segments import NotBegun, SegmentFile, SegmentListing
from qmq.storage.disk.disk import ReadOnlyDisk
from qmq.storage.fanouts.log import FANOUT_DIRECTORY, directory_name
from qmq.storage.format.batch import read_head, unpack_records, verify_batch
from qmq.storage.format.segment import segment_base
from qmq.storage.log.quarantine import QUARANTINE_DIRECTORY, load_quarantined
from qmq.storage.log.recovery import JOURNAL_DIRECTORY

SEGMENTS_REMEMBERED_MAX: Final = 16_384
"""Indexes of sealed segments that one reader keeps: a terabyte of log. Beyond that they are read again."""


class Log:
    """The segments of one directory, journal or fanout log, oldest first."""

    def __init__(self, directory: Path, node: str, holes: list[tuple[int, int]], *, over_damage: bool = False) -> None:
        self.directory = directory
        self.node = node
        self._holes = holes
        self._over_damage = over_damage
        self._segments: dict[str, SegmentFile] = {}

    def files(self) -> list[SegmentFile]:
        """All segments that are there now, not looked at."""
        try:
            names = sorted(path.name for path in self.directory.iterdir())
        except FileNotFoundError:
            return []
        named = [(base, name) for name in names if (base := segment_base(name)) is not None]
        found = [
            self._segments.get(name)
            or SegmentFile(self.directory / name, base, self.node, self._holes, over_damage=self._over_damage)
            for base, name in named
        ]
        for segment, following in pairwise(found):
            segment.batches_end = following.base - segment.base
        if found:
            found[-1].batches_end = None
        self._segments = {segment.path.name: segment for segment in found[:SEGMENTS_REMEMBERED_MAX]}
        return found

    def segments(self, start: Vector | None = None) -> list[tuple[SegmentFile, SegmentListing]]:
        """The same, with what is in them; without those that have nothing above `start`, as the head behind them says.

        Raises as `Segment.list`, but for what was dropped or is not begun yet.
        """
        found = []
        for segment in self._files_above(start or {}):
            # Retention of the running node may have been quicker.
            with suppress(FileNotFoundError, NotBegun):
                found.append((segment, segment.list()))
        return found

    def _files_above(self, start: Vector) -> list[SegmentFile]:
        files = self.files()
        for number in range(len(files) - 1, 0, -1):
            with suppress(FileNotFoundError, CorruptLog):  # NotBegun, too
                before = files[number].head().vector
                if before and all(last <= start.get(origin, 0) for origin, last in before.items()):
                    return files[number:]
        return files


class DataDirectory:
    """The logs of one node. Raises FileNotFoundError when `path` is no data directory.

    `over_damage`: segments whose head cannot be read are read all the same.
    """

    def __init__(self, path: str | Path, *, over_damage: bool = False) -> None:
        self.path = Path(path)
        self._over_damage = over_damage
        if not (self.path / JOURNAL_DIRECTORY).is_dir():
            raise FileNotFoundError(f"{path} is not the data directory of a node: it has no {JOURNAL_DIRECTORY}/")
        self.node = self.path.name
        self._is_named = False
        """Whether its journal has said which node it is of."""
        self._fanouts: dict[str, Log] = {}
        self._names: dict[str, str] = {}
        self._notes: list[str] | None = None
        self.look()

    def look(self) -> None:
        """Read what the node has quarantined since the last look; cheap when that is nothing."""
        if not self._is_named and (node := self._node()) is not None:
            self.node, self._is_named, self._notes = node, True, None
            self._fanouts.clear()
        disk = ReadOnlyDisk(self.path)
        notes = disk.names(QUARANTINE_DIRECTORY)
        if notes == self._notes:
            return
        self._notes = notes
        self.quarantined = load_quarantined(disk)
        self.holes = [(entry.start, entry.end) for entry in self.quarantined]
        # What is known of segments was known without these holes.
        self.journal = Log(self.path / JOURNAL_DIRECTORY, self.node, self.holes, over_damage=self._over_damage)

    def base(self) -> Vector:
        """What its journal does not hold any more: the vector before its first segment."""
        begun: Vector = {}
        for segment, listing in self.journal.segments():
            if segment.knows_vector:
                return {**segment.head().vector, **begun}
            for entry in listing.entries:
                begun.setdefault(entry.origin, entry.first - 1)
        return begun

    def vector(self) -> Vector:
        """What it holds."""
        have: Vector = {}
        for segment in reversed(self.journal.files()):
            with suppress(FileNotFoundError, NotBegun):  # Retention of the running node may have been quicker.
                for entry in segment.list().entries:
                    have[entry.origin] = max(entry.last, have.get(entry.origin, 0))
                merge(have, segment.head().vector)
                if segment.knows_vector:
                    break  # What stands before it is in the vector of its head.
        return have

    def fanouts(self) -> Iterator[tuple[str, Log]]:
        """Destination and log of every fanout that has one, but for those that are `nameless`."""
        for log in self.fanout_logs():
            name = self.name_of(log)
            if name is not None:
                yield name, log

    def nameless(self) -> Iterator[Log]:
        """Fanout logs that have something and do not say what they are of: none of their batches can be read."""
        for log in self.fanout_logs():
            if self.name_of(log) is None and any(found.entries or found.damage for _, found in log.segments()):
                yield log

    def name_of(self, log: Log) -> str | None:
        """The destination of one of its fanout logs; None when that does not say."""
        directory = log.directory.name
        name = self._names.get(directory) or _destination_of(log)
        if name is None or directory_name(name) != directory:
            return None
        self._names[directory] = name
        return name

    def fanout_logs(self) -> Iterator[Log]:
        """The same, whether one can say what it is of or not."""
        root = self.path / FANOUT_DIRECTORY
        if not root.is_dir():
            return
        for directory in sorted(root.iterdir()):
            log = Log(directory, self.node, [], over_damage=self._over_damage)
            yield self._fanouts.setdefault(directory.name, log)

    def _node(self) -> str | None:
        directory = self.path / JOURNAL_DIRECTORY
        for path in sorted(directory.iterdir()):
            if segment_base(path.name) is not None:
                with suppress(CorruptLog, FileNotFoundError):
                    return SegmentFile(path, 0, "", []).head().node
        return None


def _destination_of(log: Log) -> str | None:
    """The fanout that a log is of, as its first readable batch says; None while it has none."""
    for segment in log.files():
        try:
            listing = segment.list()
            descriptor = ReadOnlyDisk(segment.path.parent).open(segment.path.name)
        except (FileNotFoundError, CorruptLog):
            continue
        with closing(descriptor):
            ends = [*(entry.offset for entry in listing.entries[1:]), listing.end]
            for entry, end in zip(listing.entries, ends, strict=False):
                with suppress(CorruptLog):  # reported by the reader of that batch
                    data = descriptor.read(entry.offset, end - entry.offset)
                    head = read_head(data)
                    if head is not None:
                        batch = data[: head.size]
                        return unpack_records(verify_batch(batch), batch)[0][3]
    return None
