"""Fanout logs: one chain of sparse batches per fanout destination, written by checkpoints, read by late subscribers.

The journal is the truth until a checkpoint has copied a fanout's records here; then the catalog's extent says how much
of this log counts. What a crashed checkpoint wrote beyond that is cut when the log is opened, and written again.

Surprising: logs are opened when they are first used and only so many stay open, so a node can have many fanouts.
"""

import hashlib
import threading
from bisect import bisect_right
from typing import Final

from qmq.dots import Origin
from qmq.errors import LogBroken
from qmq.storage.batch import BATCH_BYTES_TARGET, SPARSE, encode_batch
from qmq.storage.chain import Chain, open_chain, replace_file
from qmq.storage.ports import CheckpointState, Disk, FanoutExtent, Retention, StorageSettings
from qmq.storage.reduce import FanoutEntry
from qmq.storage.segment import FANOUT, read_footer

FANOUT_DIRECTORY: Final = "fanout"
OPEN_FILES_MAX: Final = 128
"""Descriptors of open logs, one per segment; the operating system may allow no more than a thousand in all."""
BOUNDARIES_MAX: Final = 64
"""Checkpoints remembered per fanout, for readers that name an older journal position."""
_READABLE_CHARACTERS: Final = 40
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def directory_name(destination: str) -> str:
    """A file name for any destination: what can be read of it, and a hash that tells it from every other."""
    readable = "".join(character if character in _SAFE else "_" for character in destination.lower())
    digest = hashlib.blake2b(destination.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{readable.strip('_')[:_READABLE_CHARACTERS]}-{digest}"


class FanoutLog:
    """One fanout's log. `extent` says what counts; everything written since is in `chain` but not yet in it."""

    __slots__ = ("extent", "chain", "_settings")

    def __init__(self, disk: Disk, node: str, settings: StorageSettings, extent: FanoutExtent) -> None:
        """Open the log and make it be exactly `extent`. Raises OSError and FutureVersion."""
        self.extent = extent
        self._settings = settings
        directory = f"{FANOUT_DIRECTORY}/{extent.name}"
        self.chain, unreadable = open_chain(disk, directory, FANOUT, node)
        for path in unreadable:
            # Nothing of it can be served in order; it stays beside the log, under a name that no reader takes.
            disk.rename(path, path + ".bad")
        _cut_to(self.chain, extent)

    def append(self, entries: list[FanoutEntry]) -> FanoutExtent:
        """Write `entries` in order, durable on return. Returns the extent with them, which the caller commits."""
        chain = self.chain
        extent = self.extent
        records = extent.records
        run: list[FanoutEntry] = []
        size = 0
        for entry in entries:
            if run and (entry.origin != run[0].origin or size + len(entry.packed) > BATCH_BYTES_TARGET):
                self._write(run)
                run, size = [], 0
            run.append(entry)
            size += len(entry.packed)
        self._write(run)
        chain.sync()
        return extent._replace(
            start=chain.start,
            end=chain.end,
            records=records + len(entries),
            first_us=extent.first_us or entries[0].timestamp_us,
            last_us=entries[-1].timestamp_us,
        )

    def _write(self, run: list[FanoutEntry]) -> None:
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
        chain = self.chain
        if not chain.segments:
            chain.add_segment(self.extent.end, run[0].timestamp_us, {})
        elif chain.tail_bytes() and chain.tail_bytes() + len(data) > self._settings.segment_bytes_max:
            chain.sync()
            chain.add_segment(chain.end, run[0].timestamp_us, {})
        chain.write(data)
        chain.extend(len(data))

    def seal_full(self) -> None:
        """Write the missing indexes; only once the extent that covers the segments was committed."""
        for segment in self.chain.unsealed():
            self.chain.seal(segment)

    def without_expired(self, now_us: int, retention: Retention) -> FanoutExtent:
        """The extent without the oldest segments that `retention` gives up. Commit it, then `drop`."""
        segments = self.chain.segments
        extent = self.extent
        kept = 0
        dropped = 0
        while kept + 1 < len(segments):
            after = segments[kept + 1]
            over = extent.end - segments[kept].base > retention.bytes_max
            old = now_us - after.head.created_us > retention.age_seconds_max * 1_000_000
            if not (over or old):
                break
            footer = read_footer(segments[kept].file)
            dropped += sum(entry.records for entry in footer.batches) if footer else 0
            kept += 1
        if not kept:
            return extent
        first = segments[kept]
        return extent._replace(
            start=first.base, records=max(0, extent.records - dropped), first_us=first.head.created_us
        )

    def drop(self) -> None:
        """Remove the files that the committed extent no longer covers."""
        self.chain.drop_before(self.extent.start)
        self.chain.disk.sync_directory(self.chain.directory)

    def close(self) -> None:
        self.chain.close()


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
            data = tail.file.read(0, size)
            tail.file.close()
            tail.file = replace_file(chain.disk, tail.path, data)
        tail.end = tail.base + tail.file.size()
    elif extent.end:
        # Retention can drop everything but the last segment, so this file was lost; what follows goes on after it.
        chain.add_segment(extent.end, extent.last_us, {})


class FanoutLogs:
    """The open logs of a node, by destination, and what of them counts since which checkpoint.

    `get`, `hold` and `release` are guarded by the owner: one caller at a time. `commit` and `locate` never wait for a
    disk, so the event loop may ask where a reader has to begin.
    """

    def __init__(
        self, disk: Disk, node: str, settings: StorageSettings, state: CheckpointState, extents: dict[str, FanoutExtent]
    ) -> None:
        self.state = state
        """The last committed checkpoint."""
        self.extents = extents
        """Destination → what counts, as committed."""
        self._opened_position = state.position
        self._boundaries: dict[str, list[tuple[int, int]]] = {}
        self._swap = threading.Lock()
        self._disk = disk
        self._node = node
        self._settings = settings
        self._open: dict[str, FanoutLog] = {}
        self._held = ""
        self._written: dict[str, FanoutExtent] = {}

    def get(self, destination: str) -> FanoutLog:
        """The log of `destination`, opened if it was not; others may be closed for it. Raises LogBroken.

        Stays open at least until the next `get`, `hold` or `release`.
        """
        log = self._open.pop(destination, None)
        if log is None:
            # What waits for its commit must not be cut off by a reader who opens the log in between.
            extent = self._written.get(destination) or self.extents.get(destination)
            extent = extent or FanoutExtent(directory_name(destination), 0, 0, 0, 0, 0)
            self._close_idle()
            try:
                log = FanoutLog(self._disk, self._node, self._settings, extent)
            except OSError as error:
                raise LogBroken(f"cannot open the log of {destination}: {error}") from error
        self._open[destination] = log
        return log

    def hold(self, destination: str) -> FanoutLog:
        """`get` a log that stays open until `release`, for the one thread that writes. Raises LogBroken."""
        log = self.get(destination)
        self._held = destination
        return log

    def release(self, written: FanoutExtent | None = None) -> None:
        """The held log may be closed again; `written` is what it has now, durable but not yet committed."""
        if written is not None:
            self._written[self._held] = written
        self._held = ""
        self._close_idle()

    def commit(self, state: CheckpointState, extents: dict[str, FanoutExtent]) -> None:
        """The catalog has taken these; readers see both from now on, in one step."""
        with self._swap:
            for destination, extent in extents.items():
                boundaries = self._boundaries.setdefault(destination, [])
                if not boundaries:
                    before = self.extents.get(destination)
                    boundaries.append((self._opened_position, before.end if before else 0))
                boundaries.append((state.position, extent.end))
                del boundaries[:-BOUNDARIES_MAX]
                self.extents[destination] = extent
                self._written.pop(destination, None)
                log = self._open.get(destination)
                if log is not None:
                    log.extent = extent
            self.state = state

    def view(self, destination: str) -> tuple[CheckpointState, FanoutExtent | None]:
        """The checkpoint, and what it covers of `destination`; of the same moment."""
        with self._swap:
            return self.state, self.extents.get(destination)

    def locate(self, destination: str, journal_position: int) -> int:
        """A position of the fanout log before which everything came from before `journal_position` of the journal."""
        with self._swap:
            if journal_position >= self.state.position:
                extent = self.extents.get(destination)
                return extent.end if extent else 0
            boundaries = self._boundaries.get(destination, [])
            index = bisect_right(boundaries, journal_position, key=_boundary_position) - 1
            return boundaries[index][1] if index >= 0 else 0

    def _close_idle(self) -> None:
        """Close the logs used longest ago, until `OPEN_FILES_MAX` holds."""
        if len(self._open) <= 1:
            return
        files = sum(len(log.chain.segments) for log in self._open.values())
        for destination in list(self._open):
            if files <= OPEN_FILES_MAX:
                return
            if destination != self._held:
                log = self._open.pop(destination)
                files -= len(log.chain.segments)
                log.close()

    def close(self) -> None:
        for log in self._open.values():
            log.close()
        self._open.clear()


def _boundary_position(boundary: tuple[int, int]) -> int:
    return boundary[0]
