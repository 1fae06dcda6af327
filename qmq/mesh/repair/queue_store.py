"""Repairs a damaged queue store: from the own journal, and for what that has dropped, from peers.

A damaged row is found when it is read, and never returned; its queue continues without it. The message that it names is
searched for in the journal, in the quarantine, then on one peer after the other (`engine`). Peers search in the same
places, too. A message that a peer accounts for without a record is settled.
If every member has responded and none has it, it is lost, and reported with its dot. While a member is away, it may
have the message. A node without peers uses only what it has itself.

A whole file that was quarantined is the same on a larger scale: all that the journal has dropped may be missing. Until
the reachable peers were asked for it, nothing of the queues is delivered (`is_behind`).
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.parts import EngineParts
from qmq.errors import DiskFull
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.engine import RepairTask, Sink, Taken, repair
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.requests import DOTS_AT_ONCE, ask_settled
from qmq.model.dots import Dot, Origin
from qmq.record_codec import record_of
from qmq.replication.mesh import Mesh
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack_record
from qmq.storage.repair.range_snapshot import RangeSnapshot

RETRY_SECONDS: Final = 1.0
"""Until peers that could not help, or be reached, are asked again, while the queues wait for that."""

PATIENT_SECONDS: Final = 30.0
"""The same, while the queues do not wait for it."""

ROUNDS_MAX: Final = 10
"""Rounds of requests to the reachable peers for the messages of a lost file, before the queues continue without them.
"""

log = logging.getLogger("qmq.queue_store_repair")


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Damaged rows since the start: those that were repaired, and those that no member had."""

    repaired: int
    lost: int


class QueueStoreRepair(RepairTask, Sink):
    is_rows = True

    """`add_event`: for the operator."""

    def __init__(
        self,
        engine: EngineParts,
        mesh: Mesh,
        rpc: PeerRpc,
        quarantine: QuarantineRestore,
        add_event: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self.repaired = 0
        """Damaged rows, or ranges of a lost file, that were accounted for, since the start."""
        self.lost = 0
        """Those that no member had."""
        self._engine = engine
        self._mesh = mesh
        self._rpc = rpc
        self._quarantine = quarantine
        self._add_event = add_event
        self._asked: list[Callable[[], None]] = []
        self._rounds = 0
        self._is_open = any(not missing.sequence for missing in engine.store.missing_ranges())
        # The missing ranges that remain after the journal was searched for them.
        self._searched: set[MissingRange] = set()
        self._has_changed = False
        # Whether a reachable peer may know more soon.
        self._is_impatient = False

    def statistics(self) -> RowStatistics:
        return RowStatistics(self.repaired, self.lost)

    @property
    def is_behind(self) -> bool:
        """Whether peers are still to be asked for the messages of a lost file."""
        return self._is_open and self._rounds < ROUNDS_MAX

    def follow(self, asked: Callable[[], None]) -> None:
        """Call `asked` when peers were asked for all messages of a lost file."""
        self._asked.append(asked)

    def searched_for(self) -> Collection[MissingRange]:
        """What is missing although the journal was searched for it."""
        return frozenset(self._searched)

    async def _round(self) -> float:
        engine = self._engine
        self._is_impatient = False
        open_ = missing_ranges = await engine.environment.run_blocking(engine.store.missing_ranges)
        try:
            open_ = await repair(self._rpc, self._mesh, self, missing_ranges)
        except DiskFull as error:
            self._add_event("damage", f"no room to restore rows of the queue store: {error}")
        self._searched.intersection_update(open_)
        if self._has_changed:
            self._has_changed = False
            await self._reread()
        was_behind = self.is_behind
        self._rounds += bool(self._mesh.reachable())
        self._is_open = any(not missing.sequence for missing in open_)
        if was_behind and not self.is_behind:
            for follower in self._asked:
                follower()
        if not open_:
            return inf
        return RETRY_SECONDS if self.is_behind or self._is_impatient else PATIENT_SECONDS

    async def search(self, missing: MissingRange) -> MissingRange | None:
        if missing in self._searched:
            return missing
        engine = self._engine
        left = await engine.environment.run_blocking(engine.store.row_repairer.search_journal, missing)
        self._has_changed = True
        if left is not None and left.sequence:
            snapshot = self._in_memory(left)
            if snapshot is None:
                packed = await engine.environment.run_blocking(
                    engine.store.read_quarantined, Dot(left.origin, left.sequence)
                )
                snapshot = None if packed is None else RangeSnapshot(left.sequence, 0, 0, [packed])
            if snapshot is not None:
                left = await self._store(left, left.sequence - 1, snapshot)
        return self._note(left)

    def _in_memory(self, missing: MissingRange) -> RangeSnapshot | None:
        """The missing message, if this node serves it and still has it in memory."""
        sequence = missing.sequence
        message = self._engine.broker.queues.owned.by_origin.get(missing.origin, {}).get(sequence)
        if message is None or message.envelope.destination != missing.queue:
            return None
        failed = [(missing.queue, sequence, message.attempts)] if message.attempts > 0 else []
        return RangeSnapshot(sequence, 0, 0, [record_of(message)], failed)

    async def take(self, peer: str, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> Taken:
        if snapshot.lost > after:
            # It knows nothing up to there but these records; it may know later ones.
            snapshot = snapshot._replace(through=snapshot.lost)
        left: MissingRange | None = missing
        if snapshot.records or not snapshot.lost:
            if not missing.sequence and not self.is_behind:
                snapshot = await self._without_done(peer, missing.origin, snapshot)
            left = self._note(await self._store(missing, after, snapshot))
        return left, snapshot.through

    def has_answered(self, peer: str, missing: MissingRange, after: int) -> bool:
        """Less of this origin than that is a response; what its stores have not taken yet is none."""
        return self._mesh.has_none_beyond(peer, missing.origin, after)

    def no_answer(self, missing: MissingRange) -> None:
        self._is_impatient = True

    async def give_up(self, missing: MissingRange) -> MissingRange | None:
        """Give up the part that no member has quarantined: a quarantined message may come back.

        The quarantine was searched for a single message, too.
        """
        engine = self._engine
        through = missing.through
        if not self._mesh.is_alone and not missing.sequence and missing.origin != engine.broker.origin:
            firsts = await self._quarantine.anywhere({missing.origin: missing.after})
            self._is_impatient = self._is_impatient or firsts is None
            first = missing.after + 1 if firsts is None else firsts.get(missing.origin, through + 1)
            through = min(first - 1, through)
        if through > missing.after:
            self._has_changed = True
            if await engine.environment.run_blocking(engine.store.row_repairer.give_up, missing, through):
                self.lost += 1
                self._report_lost(missing, through)
        left = missing._replace(after=through)
        if left.after == left.through:
            return None
        self._searched.add(left)
        return left

    def _report_lost(self, missing: MissingRange, through: int) -> None:
        if missing.sequence:
            what = f"the message {Dot(missing.origin, missing.sequence)} of {missing.queue}"
        else:
            what = f"unsettled messages of {missing.origin} after {missing.after} up to {through}, if there were any,"
        lost = f"{what} cannot be restored: it was damaged here, and no member of the mesh has it"
        self._add_event("lost", lost)

    def _note(self, left: MissingRange | None) -> MissingRange | None:
        """The journal was searched for `left`; None: all was accounted for."""
        if left is None:
            self.repaired += 1
        else:
            self._searched.add(left)
        return left

    async def _without_done(self, peer: str, origin: Origin, snapshot: RangeSnapshot) -> RangeSnapshot:
        """With a file this node lost the record of what is settled in it, and it is about to deliver these messages: so
        it asks the others. Before that, all of it is asked about at once (`CatchUp`).
        """
        dots = [Dot(origin, unpack_record(packed).sequence) for packed in snapshot.records]
        done: set[Dot] = set()
        for other in self._mesh.reachable():
            for at in range(0, len(dots) if other != peer else 0, DOTS_AT_ONCE):
                known = await ask_settled(self._rpc, other, dots[at : at + DOTS_AT_ONCE])
                done.update(known[0] if known is not None else ())
        left = [packed for packed, dot in zip(snapshot.records, dots, strict=True) if dot not in done]
        return snapshot._replace(records=left)

    async def _store(self, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> MissingRange | None:
        self._has_changed = True
        return await self._engine.environment.run_blocking(
            self._engine.store.row_repairer.take, missing, after, snapshot
        )

    async def _reread(self) -> None:
        """Rows have returned that the queues had skipped, or rows were lost that they had counted."""
        engine = self._engine
        await engine.path.commit_slot()
        async with engine.pager.load_lock:
            out = Outcome(now_us=engine.environment.now_us())
            engine.broker.queues.handoff.rows_changed(out)
            engine.path.submit(out)
        engine.pager.sweep_at(engine.environment.now_us())
