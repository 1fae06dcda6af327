"""Repairs a damaged queue store: from the own journal, and for what that has dropped, from peers.

A damaged row is found when it is read, and never returned; its queue continues without it. The message that it names is
searched for in the journal, in the quarantine, then on one peer after the other. The requests are those for a gap
(`catch_up`), and peers search in the same places, too. A message that a peer accounts for without a record is settled.
If every member has responded and none has it, it is lost, and reported with its dot. While a member is away, it may
have the message. A node without peers uses only what it has itself.

A whole file that was quarantined is the same on a larger scale: all that the journal has dropped may be missing. Until
the reachable peers were asked for it, nothing of the queues is delivered (`is_behind`).
"""

import logging
from collections.abc import Collection
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.dots import Dot, Origin
from qmq.errors import CorruptLog, DiskFull
from qmq.record_codec import record_of
from qmq.replication.anti_entropy.gaps import WantedRange
from qmq.server.checkpoint.queue_pager import QueuePager
from qmq.server.repair.catch_up import DOTS_AT_ONCE, ask_settled, ask_snapshot
from qmq.server.runtime.contexts import Alarming, Committing, Engine, Links, MeshPeers, Repairing
from qmq.storage.format.interfaces import MissingRange
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


class QueueStoreContext(Engine, Committing, Alarming, MeshPeers, Repairing, Protocol):
    """What repairing the queue store needs of the node."""

    queue_pager: QueuePager


class QueueStoreRepair:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, context: QueueStoreContext) -> None:
        self.links: Links | None = None
        self.mended = 0
        """Damaged rows, or ranges of a lost file, that were accounted for, since the start."""
        self.lost = 0
        """Those that no member had."""
        self._context = context
        self._wake = trio.Event()
        self._rounds = 0
        self._is_open = any(not missing.sequence for missing in context.store.missing_ranges())
        # The missing ranges that remain after the journal was searched for them.
        self._searched: set[MissingRange] = set()
        self._has_changed = False
        # Whether a reachable peer may know more soon.
        self._is_impatient = False

    @property
    def is_behind(self) -> bool:
        """Whether peers are still to be asked for the messages of a lost file."""
        return self._is_open and self._rounds < ROUNDS_MAX

    def schedule(self) -> None:
        """A damaged row was found, or there is another peer to ask."""
        self._wake.set()

    @property
    def searched_for(self) -> Collection[MissingRange]:
        """What is missing although the journal was searched for it."""
        return frozenset(self._searched)

    async def run(self) -> None:
        """Repair what is damaged, until cancelled."""
        context = self._context
        while True:
            self._wake = trio.Event()
            self._is_impatient = False
            missing_ranges = await context.environment.run_blocking(context.store.missing_ranges)
            open_ = missing_ranges
            try:
                # All of them before the first request: peers may be missing the same, and ask here.
                left = [one for missing in missing_ranges if (one := await self._search(missing)) is not None]
                open_ = [one for missing in left if (one := await self._repair(missing)) is not None]
            except DiskFull as error:
                context.alarm("damage", f"no room to restore rows of the queue store: {error}")
            self._searched.intersection_update(open_)
            if self._has_changed:
                self._has_changed = False
                await self._read_anew()
            was_behind = self.is_behind
            self._rounds += bool(self.links is not None and self.links.reachable())
            self._is_open = any(not missing.sequence for missing in open_)
            if was_behind and not self.is_behind:
                context.schedule_repair()
            patience = RETRY_SECONDS if self.is_behind or self._is_impatient else PATIENT_SECONDS
            with trio.move_on_after(patience if open_ else inf):
                await self._wake.wait()

    async def _search(self, missing: MissingRange) -> MissingRange | None:
        """The part of `missing` that neither the own journal nor the quarantine of this node restores."""
        if missing in self._searched:
            return missing
        context = self._context
        left = await context.environment.run_blocking(partial(context.store.repair_from_journal, missing))
        self._has_changed = True
        if left is not None and left.sequence:
            snapshot = self._in_memory(left)
            if snapshot is None:
                packed = await context.environment.run_blocking(
                    partial(context.store.read_quarantined, Dot(left.origin, left.sequence))
                )
                snapshot = None if packed is None else RangeSnapshot(left.sequence, 0, 0, [packed])
            if snapshot is not None:
                left = await self._take(left, left.sequence - 1, snapshot)
        if left is None:
            self.mended += 1
        else:
            self._searched.add(left)
        return left

    def _in_memory(self, missing: MissingRange) -> RangeSnapshot | None:
        """The missing message, if this node serves it and still has it in memory."""
        sequence = missing.sequence
        message = self._context.broker.queues.owned.by_origin.get(missing.origin, {}).get(sequence)
        if message is None or message.envelope.destination != missing.queue:
            return None
        failed = [(missing.queue, sequence, message.attempts)] if message.attempts > 0 else []
        return RangeSnapshot(sequence, 0, 0, [record_of(message)], failed)

    async def _repair(self, missing: MissingRange) -> MissingRange | None:
        """The part that is still missing after every reachable peer was asked."""
        context = self._context
        left = missing
        knows_all = True
        if self.links is not None:
            peers = self.links.reachable()
            knows_all = set(peers) >= set(context.member_names)
            for peer in peers:
                still, is_all = await self._ask(self.links, peer, left)
                knows_all = knows_all and is_all
                self._is_impatient = self._is_impatient or not is_all
                if still is None:
                    self.mended += 1
                    return None
                left = still
        through = await self._nowhere_up_to(left) if knows_all else left.after
        if through > left.after:
            await self._give_up(left, through)
            left = left._replace(after=through)
        if left.after == left.through:
            return None
        self._searched.add(left)
        return left

    async def _ask(self, links: Links, peer: str, missing: MissingRange) -> tuple[MissingRange | None, bool]:
        """The part that is still missing after `peer` was asked, and whether `peer` can by itself never know more."""
        left: MissingRange | None = missing
        after = missing.after
        while left is not None and after < left.through:
            snapshot = await ask_snapshot(
                self._context, WantedRange(peer, missing.origin, after, left.through), row=missing.sequence
            )
            if snapshot is None or max(snapshot.lost, snapshot.through) <= after:
                # Less of this origin than that is a response; what its stores have not taken yet is none.
                return left, snapshot is not None and links.has_none_beyond(peer, missing.origin, after)
            if snapshot.lost > after:
                # It knows nothing up to there but these records; it may know later ones.
                snapshot = snapshot._replace(through=snapshot.lost)
            if snapshot.records or not snapshot.lost:
                try:
                    if not missing.sequence and not self.is_behind:
                        snapshot = await self._without_done(links, peer, missing.origin, snapshot)
                    left = await self._take(left, after, snapshot)
                except (CorruptLog, ValueError) as error:
                    log.error("! the snapshot that %s sent of %s cannot be applied: %s", peer, missing.origin, error)
                    return left, False
            after = snapshot.through
        return left, True

    async def _without_done(self, links: Links, peer: str, origin: Origin, snapshot: RangeSnapshot) -> RangeSnapshot:
        """With a file this node lost the record of what is settled in it, and it is about to deliver these messages: so
        it asks the others. Before that, all of it is asked about at once (`CatchUp`).
        """
        dots = [Dot(origin, unpack_record(packed).sequence) for packed in snapshot.records]
        done: set[Dot] = set()
        for other in links.reachable():
            for at in range(0, len(dots) if other != peer else 0, DOTS_AT_ONCE):
                known = await ask_settled(self._context, other, dots[at : at + DOTS_AT_ONCE])
                done.update(known[0] if known is not None else ())
        left = [packed for packed, dot in zip(snapshot.records, dots, strict=True) if dot not in done]
        return snapshot._replace(records=left)

    async def _take(self, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> MissingRange | None:
        self._has_changed = True
        return await self._context.environment.run_blocking(
            partial(self._context.store.repair_from_snapshot, missing, after, snapshot)
        )

    async def _nowhere_up_to(self, left: MissingRange) -> int:
        """Every member has responded: the end of the range that no member has quarantined; a quarantined message may
        come back.

        The quarantine was searched for a single message, too.
        """
        if self.links is None or left.sequence or left.origin == self._context.origin:
            return left.through
        firsts = await self._context.quarantined_anywhere({left.origin: left.after})
        if firsts is None:
            self._is_impatient = True
            return left.after
        return min(firsts.get(left.origin, left.through + 1) - 1, left.through)

    async def _give_up(self, missing: MissingRange, through: int) -> None:
        """No node has it up to there."""
        context = self._context
        self._has_changed = True
        if not await context.environment.run_blocking(partial(context.store.give_up_rows, missing, through)):
            return
        self.lost += 1
        left = missing._replace(through=through)
        if left.sequence:
            what = f"the message {Dot(left.origin, left.sequence)} of {left.queue}"
        else:
            what = f"unsettled messages of {left.origin} after {left.after} up to {left.through}, if there were any,"
        context.alarm("lost", f"{what} cannot be restored: it was damaged here, and no member of the mesh has it")

    async def _read_anew(self) -> None:
        """Rows have returned that the queues had skipped, or rows were lost that they had counted."""
        context = self._context
        await context.commit_slot()
        async with context.queue_pager.load_lock:
            out = Outcome(now_us=context.environment.now_us())
            context.broker.queues.handoff.rows_changed(out)
            context.submit(out)
        context.queue_pager.sweep_at(context.environment.now_us())
