"""The one commit path: decide, record, deliver.

Every Outcome of the node passes here in order of decision. Effects that need no durability are delivered at once. The
others wait while the one commit task appends all waiting records in one write and one fsync (group commit), and are
delivered after it. If an Outcome of a session waits, later ones of that session wait behind it, so a client gets its
responses in order.

A session waits in `CommitPath.slot` before it decides, never after: `slot` here is the part that waits for the disk. If
an append fails, the node stops, because its decisions and its disk no longer agree. An append without disk space has
not failed: it is tried again, and everything waits behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.engine.runtime.retry_until_space import SPACE_SECONDS
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment
from qmq.errors import DiskFull
from qmq.record_codec import Packing, encode_group
from qmq.storage.log.journal import Journal

RECEIPT_BYTES = 64
"""What a waiting Outcome costs beyond its records, for the bound."""


PACKED_AT_ONCE = 1_000
"""Records of one Outcome that are packed in one turn of the event loop, about two milliseconds."""


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
    """The queue in front of the journal. `before_commit` and `after_commit` pass effects to sessions and links; `flush`
    sends what they put; `on_short` is called when the disk reserve comes into use.
    """

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        environment: Environment,
        *,
        pending_bytes_max: int,
        shares_bodies: Callable[[], bool],
        before_commit: Callable[[Outcome], None],
        after_commit: Callable[[list[Outcome], int], None],
        flush: Callable[[], None],
        on_short: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._environment = environment
        self._pending_bytes_max = pending_bytes_max
        self._shares_bodies = shares_bodies
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._flush = flush
        self._on_short = on_short
        self._waits_for_space = True
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

    def submit(self, out: Outcome) -> None:
        """Take over a decision. Never waits; call without an `await` after the decision."""
        # Queue it before anything is delivered: a delivery may cause further decisions, whose records follow these. If
        # the delivery fails, the journal still has no hole.
        out.is_first = out.session not in self._unanswered
        waits = out.needs_commit or (out.session and out.session in self._waiting_sessions)
        if waits:
            self._waiting.append(out)
            self._waiting_sessions[out.session] = self._waiting_sessions.get(out.session, 0) + 1
            self.pending_bytes += _waiting_bytes(out)
            self._submitted += 1
            self._work.wake()
        self._before_commit(out)
        if waits and out.has_answers:
            self._unanswered[out.session] = self._unanswered.get(out.session, 0) + 1
        if not waits:
            self._after_commit([out], self.committed_end)
        self._flush()

    async def run(self) -> None:
        """Append and deliver, group by group, until `stop` was called and nothing is left.

        Raises LogBroken when the disk refuses, and DiskFull when the node stops and there is no room. Nothing of that
        group has been delivered then.
        """
        while True:
            if not self._waiting:
                if self._stopping:
                    return
                await self._work.wait()
                continue
            group, self._waiting = self._waiting, []
            await self._commit(group)

    async def _commit(self, group: list[Outcome]) -> None:
        shares = self._shares_bodies()
        ready: dict[int, Packing] = {}
        for out in group:
            if len(out.records) > PACKED_AT_ONCE:
                packing = ready[id(out)] = Packing(out.records, shares)
                for _ in range(0, len(out.records), PACKED_AT_ONCE):
                    packing.take(PACKED_AT_ONCE)
                    # What is decided must be appended: a cancel waits until it is.
                    await trio.lowlevel.cancel_shielded_checkpoint()
        batches = encode_group(self._broker.origin, group, shares, ready)
        begin = self.committed_end
        if batches:
            self.committed_end = await self._append(batches)
            self.groups += 1
            size = sum(map(len, batches))
            self.bytes += size
            if size > self.group_bytes_max:
                self.group_bytes_max = size
        for out in group:
            self.records += len(out.records)
            self.pending_bytes -= _waiting_bytes(out)
            left = self._waiting_sessions[out.session] - 1
            if left:
                self._waiting_sessions[out.session] = left
            else:
                del self._waiting_sessions[out.session]
            if out.has_answers:
                left = self._unanswered[out.session] - 1
                if left:
                    self._unanswered[out.session] = left
                else:
                    del self._unanswered[out.session]
        self._after_commit(group, begin)
        self._flush()
        self._delivered += len(group)
        self._progress.unpark_all()

    async def _append(self, batches: list[bytes]) -> int:
        # This may use the reserve: new messages are refused before they are decided (`SendLimits.disk_full`).
        append = partial(self._journal.append, batches, settle_only=True)
        while True:
            try:
                end = await self._write(append)
            except DiskFull:
                if not self._waits_for_space:
                    raise
                self.is_stuck = True
                self._on_short()
                await trio.sleep(SPACE_SECONDS)
            else:
                self.is_stuck = False
                if self._journal.is_short:
                    self._on_short()
                return end

    async def _write(self, append: Callable[[], int]) -> int:
        self.append_began = trio.current_time()
        try:
            with trio.CancelScope(shield=True):
                end = await self._environment.run_commit(append)
        finally:
            self.append_began = None
        return end

    def stop_waiting_for_space(self) -> None:
        """The node stops: from now on an append without disk space is not tried again."""
        self._waits_for_space = False

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
        """Let `run` return as soon as nothing waits."""
        self._stopping = True
        self._work.wake()
