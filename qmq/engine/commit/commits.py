"""The decisions that wait in front of the journal: `CommitPath` puts them in, takes them in groups and appends those.

Tasks wait here for room, for growth of the journal, and for what they have decided to be delivered.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import inf

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.runtime.waker import Waker
from qmq.storage.log.journal import Journal

RECEIPT_BYTES = 64
"""What a waiting Outcome costs beyond its records, for the bound."""

CALM_US = 1000
"""After so long without a decision, the next one has no company. A busy node decides more often."""

LONE_BYTES_MAX = 4096
"""Of a decision that counts as lone. A client that sends more at once has more on its way."""


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
        # Tasks that wait for room or a response check again.
        self._progress = trio.lowlevel.ParkingLot()
        self._growth = Growth()
        self._decisions = 0
        self._decided_us = 0
        self._decider = 0
        self.is_lone = False
        """The last group was one small decision. No other session decided since the group before it, or for CALM_US."""
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

    def take(self, out: Outcome, now_us: int) -> bool:
        """Queue a decision if it needs a commit, or its session waits for one; whether it waits now.

        One that adds nothing to the journal waits only for what was decided before it.
        """
        if now_us - self._decided_us > CALM_US:
            self._decisions = 0
        # A client that asks for a message before it settles that is no company of its own.
        if not out.session or out.session != self._decider or not self._decisions:
            self._decisions += 1
        self._decided_us, self._decider = now_us, out.session
        out.is_first = out.session not in self._unanswered
        waits = out.needs_commit or (out.session and out.session in self._waiting_sessions)
        if not waits or (self._submitted == self._delivered and not out.records and not out.batches):
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
        """Wait for decisions, and take all that wait. None after `stop`, when nothing is left.

        A checkpoint after each lone group: deliveries that cause decisions leave a turn to others.
        """
        if self._waiting and self.is_lone:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while not self._waiting:
            if self._stopping:
                return None
            await self._work.wait()
        group, self._waiting = self._waiting, []
        self.is_lone = self._decisions == len(group) == 1 and _waiting_bytes(group[0]) <= LONE_BYTES_MAX
        self._decisions = 0
        return group

    def appended(self, end: int, batches: list[bytes]) -> None:
        """The batches of a group are durable; the journal ends at `end`."""
        self.committed_end = end
        self.groups += 1
        size = sum(map(len, batches))
        self.bytes += size
        self.group_bytes_max = max(size, self.group_bytes_max)

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
        self._growth.reached(self.committed_end)

    def stop_waiting_for_space(self) -> None:
        """The node stops: from now on an append without disk space is not tried again."""
        self.waits_for_space = False

    async def grew(self, position: int) -> None:
        """Wait until something beyond `position` is durable."""
        if self.committed_end <= position:
            await self._growth.beyond(position)

    async def flushed(self) -> None:
        """Wait until everything submitted before this call is delivered."""
        target = self._submitted
        while self._delivered < target:
            await self._progress.park()

    def stop(self) -> None:
        """Let the commit task return as soon as nothing waits."""
        self._stopping = True
        self._work.wake()


class Growth:
    """Tasks that wait for a position. A commit wakes only those that wait for no more than it has reached."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, trio.Event]] = []
        self._least = inf

    async def beyond(self, position: int) -> None:
        """Wait until something beyond `position` is reached."""
        waiting = (position, trio.Event())
        self._waiting.append(waiting)
        self._least = min(self._least, position)
        try:
            await waiting[1].wait()
        except trio.Cancelled:
            # The least one may be that of a task that has gone: then the next pass finds none.
            with suppress(ValueError):
                self._waiting.remove(waiting)
            raise

    def reached(self, end: int) -> None:
        """Everything before `end` is reached."""
        if end <= self._least:
            return
        for position, event in self._waiting:
            if position < end:
                event.set()
        self._waiting = [waiting for waiting in self._waiting if waiting[0] >= end]
        self._least = min((position for position, _ in self._waiting), default=inf)


def _count_down(counts: dict[int, int], session: int) -> None:
    counts[session] -= 1
    if not counts[session]:
        del counts[session]
