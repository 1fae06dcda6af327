"""The open fanout logs of a node: which logs there are, what of each counts, and which files are open.

Surprising: a log is opened when it is first used, and only `OPEN_FILES_MAX` files stay open. So a node can have many
fanouts.
"""

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Final, NoReturn

from qmq.errors import CorruptLog, LogBroken, NoDescriptor
from qmq.model.deletions import Deletions
from qmq.storage.fanouts.log import FANOUT_DIRECTORY, FanoutLog, directory_name
from qmq.storage.format.interfaces import NO_DESCRIPTOR, CheckpointState, Disk, FanoutExtent
from qmq.storage.format.settings import StoreSettings

OPEN_FILES_MAX: Final = 128
"""Descriptors of open logs, one per segment; the operating system may allow no more than a thousand in all."""
BOUNDARIES_MAX: Final = 64
"""Checkpoints remembered per fanout, for readers that name an older journal position."""
NO_EXTENTS: Final[Mapping[str, FanoutExtent]] = {}


class FanoutLogs:
    """The open logs of a node, by destination, and what of them counts since which checkpoint.

    `get`, `hold` and `release` are guarded by the owner: one caller at a time. `commit` and `locate` never wait for a
    disk, so the event loop may ask where a reader has to begin.
    """

    def __init__(
        self, disk: Disk, node: str, settings: StoreSettings, state: CheckpointState, extents: dict[str, FanoutExtent]
    ) -> None:
        self.state = state
        """The last committed checkpoint."""
        self.extents = extents
        """Destination → what counts, as committed."""
        self.damaged: dict[str, str] = {}
        """Logs that were found damaged since the start and are not repaired, and what is wrong with them."""
        self.rewritten: dict[str, int] = {}
        """Destination → where a log begins that was rewritten since the start."""
        self.deletions = Deletions()
        """Deletions of fanouts that checkpoints have taken into account. The checkpointer adds to it."""
        self._floor = 0
        """Where a new log begins: beyond all that were removed since the start. No position has two meanings."""
        self._opened_position = state.position
        self._boundaries: dict[str, list[tuple[int, int]]] = {}
        self._swap = threading.Lock()
        self._disk = disk
        self._node = node
        self._settings = settings
        self._open: dict[str, FanoutLog] = {}
        self._held: dict[str, None] = {}
        self._written: dict[str, FanoutExtent] = {}

    def get(self, destination: str) -> FanoutLog:
        """The log of `destination`, opened if it was not; others may be closed for it. Raises LogBroken.

        Stays open at least until the next `get`, `hold` or `release`.
        """
        try:
            return self._get(destination)
        except OSError as error:
            raise LogBroken(f"cannot open the log of {destination}: {error}") from error

    def _get(self, destination: str) -> FanoutLog:
        log = self._open.pop(destination, None)
        while log is None:
            # A reader that opens the log must not cut off what is written and not committed yet.
            extent = self._written.get(destination) or self.extents.get(destination)
            extent = extent or FanoutExtent(directory_name(destination), self._floor, self._floor, 0, 0, 0)
            self._close_idle()
            try:
                log = FanoutLog(self._disk, self._node, self._settings, extent)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._close_one():
                    raise
        self._open[destination] = log
        return log

    def hold(self, destination: str) -> FanoutLog:
        """`get` a log that stays open until `release`, for the one thread that writes.

        Raises NoDescriptor: it can be opened later. Raises LogBroken.
        """
        try:
            log = self._get(destination)
        except OSError as error:
            kind = NoDescriptor if error.errno in NO_DESCRIPTOR else LogBroken
            raise kind(f"cannot open the log of {destination}: {error}") from error
        self._held[destination] = None
        return log

    @property
    def holds_many(self) -> bool:
        """Whether held logs have half of the files that may be open: time to sync and release them."""
        files = sum(len(self._open[destination].chain.segments) for destination in self._held)
        return 2 * files >= OPEN_FILES_MAX

    def release(self, written: Mapping[str, FanoutExtent] = NO_EXTENTS) -> None:
        """All held logs may be closed again; `written` is what they have now, durable but not yet committed."""
        self._written.update(written)
        self._held.clear()
        self._close_idle()

    def commit(self, state: CheckpointState, extents: dict[str, FanoutExtent], deleted: Collection[str] = ()) -> None:
        """The catalog has taken these; readers see both from now on, in one step. `deleted` have no log any more."""
        with self._swap:
            for destination in deleted:
                extent = self.extents.pop(destination, None)
                self._boundaries.pop(destination, None)
                self.rewritten.pop(destination, None)
                self._floor = max(self._floor, extent.end if extent else 0)
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

    def remove(self, destination: str) -> None:
        """Remove the files of a fanout that has no log any more. Raises OSError."""
        log = self._open.pop(destination, None)
        if log is not None:
            self._floor = max(self._floor, log.chain.end)
            log.close()
        self._written.pop(destination, None)
        self.damaged.pop(destination, None)
        directory = f"{FANOUT_DIRECTORY}/{directory_name(destination)}"
        for name in self._disk.names(directory):
            with suppress(FileNotFoundError):
                self._disk.remove(f"{directory}/{name}")
        self._disk.remove_directory(directory)

    def remove_left_over(self, destinations: Iterable[str]) -> None:
        """Remove files of these deleted fanouts that a crash left. Called by recovery. Raises LogBroken."""
        try:
            for destination in destinations:
                if destination not in self.extents:
                    self.remove(destination)
        except OSError as error:
            raise LogBroken(f"cannot remove the log of a deleted fanout: {error}") from error

    def replaced(self, destination: str) -> None:
        """Note that the committed extent is a rewritten log: positions of the former log are not valid in it."""
        with self._swap:
            extent = self.extents[destination]
            self._boundaries[destination] = [(self.state.position, extent.end)]
            self.rewritten[destination] = extent.start
            self._open[destination].missing = []

    def refuse(self, destination: str, what: str) -> NoReturn:
        """Note the damage and raise CorruptLog: a reader that continued would silently skip the damaged records."""
        self.damaged[destination] = what
        raise CorruptLog(f"{destination}: {what}")

    def reopen(self, destination: str) -> None:
        """Forget what was written and not committed: the next `get` cuts it off. Not while it is held."""
        self._written.pop(destination, None)
        log = self._open.pop(destination, None)
        if log is not None:
            log.close()

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
            index = bisect_right(boundaries, journal_position, key=itemgetter(0)) - 1
            return boundaries[index][1] if index >= 0 else 0

    def _close_idle(self) -> None:
        """Close the logs used longest ago, until `OPEN_FILES_MAX` holds."""
        if len(self._open) <= 1:
            return
        files = sum(len(log.chain.segments) for log in self._open.values())
        for destination in list(self._open):
            if files <= OPEN_FILES_MAX:
                return
            if destination not in self._held:
                log = self._open.pop(destination)
                files -= len(log.chain.segments)
                log.close()

    def _close_one(self) -> bool:
        """Close the log used longest ago, for its descriptors. False: all that are open are held."""
        for destination in self._open:
            if destination not in self._held:
                self._open.pop(destination).close()
                return True
        return False

    def close(self) -> None:
        for log in self._open.values():
            log.close()
        self._open.clear()
