"""The decisions that wait in front of the journal: `CommitPath` puts them in, takes them in groups and appends those.

Tasks wait here for room, for growth of the journal, and for what they have decided to be delivered.
"""

from dataclasses import dataclass

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.runtime.waker import Waker
from qmq.storage.log.journal import Journal

RECEIPT_BYTES = 64
"""What a waiting Outcome costs beyond its records, for the bound."""


def _waiting_bytes(out: Outcome) -> int:
    """The bytes that `out` counts for while it waits. Records of peers wait in memory like our own. A link is
    acknowledged when its records are decided, so nothing else stops a fast peer from filling a node with a slow disk.
    """
    return RECEIPT_BYTES + out.record_bytes + sum([len(batch) for _, _, batch in out.batches])


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Group commits since the start; `records` are own ones, `bytes` those of all batches."""

    groups: int
    records: int
    bytes: int
    group_bytes_max: int


class Commits:
    """The queue in front of `journal`, of at most `pending_bytes_max` and one decision more."""

    def __init__(self, journal: Journal, pending_bytes_max: int) -> None:
        self.journal = journal
        self._pending_bytes_max = pending_bytes_max
        self.waits_for_space = True
        """An append without disk space is tried again."""
        self.is_stuck = False
        """The waiting records find no room, not even in the reserve."""
        self.append_began: float | None = None
        """When the append began that is with the disk now (trio seconds); None: none is."""
        self._waiting: list[Outcome] = []
        self._waiting_sessions: dict[int, int] = {}
        # Those of them that have responses to deliver; an `accepted` one got its response before it is on the disk.
        self._unanswered: dict[int, int] = {}
        self._work = Waker()
        # Tasks that wait for room, growth or a response check again.
        self._progress = trio.lowlevel.ParkingLot()
        self._submitted = 0
        self._delivered = 0
        self._stopping = False
        self.pending_bytes = 0
        self.committed_end = journal.end
        """Journal position up to which everything is durable (as `sync` defines it) and delivered."""
        self.groups = 0
        self.records = 0
        """Own ones."""
        self.bytes = 0
        """Of all batches, those of peers included."""
        self.group_bytes_max = 0
        """The largest group since the start."""

    def statistics(self) -> CommitStatistics:
        return CommitStatistics(self.groups, self.records, self.bytes, self.group_bytes_max)

    async def slot(self) -> None:
        """Wait until there is room to decide more. No checkpoint when there is."""
        while self.pending_bytes >= self._pending_bytes_max:
            await self._progress.park()

    def take(self, out: Outcome) -> bool:
        """Queue a decision if it needs a commit, or its session waits for one; whether it waits now."""
        out.is_first = out.session not in self._unanswered
        if not (out.needs_commit or (out.session and out.session in self._waiting_sessions)):
            return False
        self._waiting.append(out)
        self._waiting_sessions[out.session] = self._waiting_sessions.get(out.session, 0) + 1
        self.pending_bytes += _waiting_bytes(out)
        self._submitted += 1
        self._work.wake()
        return True

    def await_answer(self, out: Outcome) -> None:
        """`out` waits, and has responses to deliver."""
        self._unanswered[out.session] = self._unanswered.get(out.session, 0) + 1

    async def next_group(self) -> list[Outcome] | None:
        """Wait for decisions, and take all that wait. None after `stop`, when nothing is left."""
        while not self._waiting:
            if self._stopping:
                return None
            await self._work.wait()
        group, self._waiting = self._waiting, []
        return group

    def appended(self, end: int, batches: list[bytes]) -> None:
        """The batches of a group are durable; the journal ends at `end`."""
        self.committed_end = end
        self.groups += 1
        size = sum(map(len, batches))
        self.bytes += size
        if size > self.group_bytes_max:
            self.group_bytes_max = size

    def committed(self, group: list[Outcome]) -> None:
        """Nothing of `group` waits any more; its effects are delivered next."""
        for out in group:
            self.records += len(out.records)
            self.pending_bytes -= _waiting_bytes(out)
            _count_down(self._waiting_sessions, out.session)
            if out.has_answers:
                _count_down(self._unanswered, out.session)

    def delivered(self, group: list[Outcome]) -> None:
        """The effects of `group` are delivered."""
        self._delivered += len(group)
        self._progress.unpark_all()

    def stop_waiting_for_space(self) -> None:
        """The node stops: from now on an append without disk space is not tried again."""
        self.waits_for_space = False

    async def grew(self, position: int) -> None:
        """Wait until something beyond `position` is durable."""
        while self.committed_end <= position:
            await self._progress.park()

    async def flushed(self) -> None:
        """Wait until everything submitted before this call is delivered."""
        target = self._submitted
        while self._delivered < target:
            await self._progress.park()

    def stop(self) -> None:
        """Let the commit task return as soon as nothing waits."""
        self._stopping = True
        self._work.wake()


def _count_down(counts: dict[int, int], session: int) -> None:
    left = counts[session] - 1
    if left:
        counts[session] = left
    else:
        del counts[session]
