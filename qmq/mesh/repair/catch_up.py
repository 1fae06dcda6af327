"""Catch-up: a node that is missing records no longer in its peers' journals requests snapshots, and checks its
messages.

A node that was away for too long has two problems:

- It is missing records. It requests snapshots of them, range by range and at its own pace, from the peer that reported
  the gap. `replication.anti_entropy.gaps` decides which peer that is, and when a gap is final; the journal is the sink
  (`engine`).
- It is missing settles, so its messages may be settled already. Until a peer was asked about every message in its queue
  store, it delivers nothing of its queues. Messages that the peer knows as settled are settled here by a record of its
  own.

The cursors of durable subscriptions are fetched, too.
"""

import logging
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.retry_until_space import when_space_is_free
from qmq.errors import MeshError
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.engine import RepairTask, Sink, Taken, ask_in_turn
from qmq.mesh.repair.losses import Losses
from qmq.mesh.repair.queue_store import QueueStoreRepair
from qmq.mesh.repair.requests import DOTS_AT_ONCE, DurablesCall, ask_settled
from qmq.model.dots import Dot, Origin
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format.lost_record import LostRange
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.repair.range_snapshot import RangeSnapshot

RETRY_SECONDS: Final = 1.0
"""Until a peer that gave no response is asked again."""

GAP_SECONDS: Final = 12.0
"""A gap of which no reachable peer sends a part holds the queues for so long; a peer that is silent is asked twice."""

log = logging.getLogger("qmq.catch_up")


class StaleHold(Protocol):
    """Holds queue messages back while they may be settled (`qmq.mesh.membership.start_hold`)."""

    def hold_back(self) -> None: ...

    def release(self) -> None: ...


class CatchUp(RepairTask, Sink):
    def __init__(self, engine: EngineParts, mesh: Mesh, rpc: PeerRpc, losses: Losses, rows: QueueStoreRepair) -> None:
        super().__init__()
        self.taken = 0
        """Records taken from snapshots, since the start."""
        self.settled = 0
        """Messages of this node's stores that were found to be settled, since the start."""
        self._engine = engine
        self._mesh = mesh
        self._rpc = rpc
        self._losses = losses
        self._rows = rows
        self._holds: list[StaleHold] = []
        # Peers to ask about the messages of this node, since one of them had dropped what it was missing.
        self._unchecked: dict[str, None] = {}
        # Whether one of them has responded: then a peer that is down is not waited for.
        self._has_answer = False
        self.is_stale = UNCHECKED in engine.store.catalog.facts()
        """Messages in the queue store may be settled: none of them may be delivered."""
        # Whether the last request had no response: other work comes first.
        self._is_postponed = False
        # Open gaps: the time since which nothing of them has come.
        self._waiting: dict[Origin, float] = {}

    def hold_with(self, hold: StaleHold) -> None:
        """Hold messages back with this from now on."""
        self._holds.append(hold)

    async def _round(self) -> float:
        mesh = self._mesh
        if self.is_stale and not self._engine.checkpoints.members and not self._rows.is_behind:
            # No member can know more than this node.
            await self._end()
        if mesh.is_alone:
            return inf
        if await self._step(mesh):
            return 0.0
        return RETRY_SECONDS if mesh.gaps.origins or self.is_stale else inf

    async def _step(self, links: Mesh) -> bool:
        """Do the next step; False when there is nothing to do now."""
        engine = self._engine
        await engine.path.commit_slot()
        todo = links.next_repair()
        self._note_gaps(links)
        if todo is not None:
            self._is_postponed = False
            for peer in todo.peers:
                if not self._is_overdue(todo.missing.origin):
                    await self._hold_back(links, peer, todo.missing)
            await ask_in_turn(self._rpc, self, todo.missing, todo.peers, is_all=not todo.peers)
            if not self._is_postponed:
                return True
        if self.is_stale and not self._waits_for_gaps(links) and not self._rows.is_behind:
            if not self._unchecked:
                # An earlier incarnation was interrupted, or no peer responded: each reachable peer is asked.
                self._unchecked.update(dict.fromkeys(links.reachable()))
                if not self._unchecked:
                    return False
            peer = next(iter(self._unchecked))
            if await self._check(peer):
                self._has_answer = True
            elif peer in links.reachable() and not self._has_answer:
                # The others may be faster, also one that was not linked when the gap was found.
                self._unchecked.update(dict.fromkeys(links.reachable()))
                self._unchecked[peer] = self._unchecked.pop(peer)
                return False
            # A peer that left or does not respond need not be asked, as long as another one was.
            del self._unchecked[peer]
            if self._unchecked:
                return True
            if self._has_answer:
                await self._end()
                return True
        return False

    def _waits_for_gaps(self, links: Mesh) -> bool:
        """Whether what is missing may come soon.

        What a damaged peer cannot account for is unknown until every member has answered, and one of them may be away
        for good. The queues go on without it. When a part of it comes, the messages of this node are checked again.
        """
        self._note_gaps(links)
        return not all(map(self._is_overdue, self._waiting))

    def _note_gaps(self, links: Mesh) -> None:
        now = trio.current_time()
        self._waiting = {origin: self._waiting.get(origin, now) for origin in links.gaps.origins}

    def _is_overdue(self, origin: Origin) -> bool:
        return trio.current_time() - self._waiting.get(origin, inf) >= GAP_SECONDS

    async def _end(self) -> None:
        """All reachable peers were asked: from here on this node knows what its queues hold, also after a crash."""
        engine = self._engine
        log.info("= compared held messages with peers: %d were settled already", self.settled)
        self._has_answer = False
        await engine.path.flushed()
        await engine.environment.run_blocking(engine.store.journal.sync)
        await when_space_is_free(engine.environment, partial(engine.store.catalog.set_facts, {UNCHECKED: None}))
        self.is_stale = False
        for hold in self._holds:
            hold.release()

    # The journal as a sink

    async def take(self, peer: str, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> Taken:
        engine, links, origin = self._engine, self._mesh, missing.origin
        await self._hold_back(links, peer, missing)
        self._waiting.pop(origin, None)
        if snapshot.lost:
            links.gaps.lost(peer, origin, snapshot.lost)
            return missing, missing.through
        await engine.path.commit_slot()
        out = Outcome(now_us=engine.environment.now_us())
        try:
            links.take_snapshot(missing._replace(after=after), snapshot, out)
            if after < snapshot.dropped <= snapshot.through == engine.path.received_vector().get(origin, 0):
                # Retention of the fanouts was faster than this node, or no node has it: subscribers are notified.
                self._losses.note_lost(LostRange(origin, after + 1, snapshot.dropped), out)
        except MeshError as error:
            log.error("! the snapshot that %s sent of %s cannot be applied: %s", peer, origin, error.message)
            links.gaps.lost(peer, origin, missing.through)
            return missing, missing.through
        finally:
            engine.path.submit(out)
        if snapshot.attempts:
            await self._take_attempts(origin, snapshot)
        self.taken += len(snapshot.records)
        # Links deliver meanwhile.
        return missing, max(snapshot.through, engine.path.received_vector().get(origin, 0))

    def no_answer(self, missing: MissingRange) -> None:
        self._mesh.gaps.postpone(missing.origin)
        self._is_postponed = True

    async def give_up(self, missing: MissingRange) -> MissingRange | None:
        self._losses.accept_gap(missing.origin, missing.through)
        return None

    async def _hold_back(self, links: Mesh, peer: str, missing: MissingRange) -> None:
        """Deliver nothing of the queues until peers were asked about all messages of this node."""
        engine = self._engine
        if peer not in self._unchecked:
            log.info("= %s no longer has the missing records of %s after %d", peer, missing.origin, missing.after)
            # All of them: the peer with the snapshot may itself hold messages that another peer knows as settled.
            self._unchecked.update(dict.fromkeys([peer, *links.reachable()]))
            self._has_answer = False
        for hold in self._holds:
            hold.hold_back()
        if not self.is_stale:
            # At once: parts that decide meanwhile whether to deliver find it stale.
            self.is_stale = True
            # Before the first record: after the vector has passed over settles, nothing else would inform the next
            # incarnation.
            await when_space_is_free(engine.environment, partial(engine.store.catalog.set_facts, {UNCHECKED: ""}))

    async def _take_attempts(self, origin: Origin, snapshot: RangeSnapshot) -> None:
        """Record the failure counts of these messages here, too. The record has no meaning if it precedes the messages
        in the journal, so they are waited for: own records come first in a group.
        """
        await self._engine.path.flushed()
        await self._engine.path.commit_slot()
        self._note_attempts([(queue, Dot(origin, sequence), count) for queue, sequence, count in snapshot.attempts])

    def _note_attempts(self, failed: list[tuple[str, Dot, int]]) -> None:
        if failed:
            out = Outcome(now_us=self._engine.environment.now_us())
            for queue, dot, count in failed:
                out.attempts.setdefault(queue, {})[dot] = count
            self._engine.broker.queues.redelivery.failed_before({dot: count for _, dot, count in failed})
            self._engine.path.submit(out)

    async def _check(self, peer: str) -> bool:
        """Ask `peer` about everything in the queue store, and for the durable subscriptions; False: ask again."""
        engine = self._engine
        await engine.bring_up_stores()
        after: Dot | None = None
        while True:
            page = await engine.environment.run_blocking(engine.store.repair_source.in_doubt, after, DOTS_AT_ONCE)
            if not page:
                break
            after = page[-1][1]
            known = await ask_settled(self._rpc, peer, [dot for _, dot, _ in page])
            if known is None:
                return False
            done, failed = known
            await engine.path.commit_slot()
            self._settle([(queue, dot) for queue, dot, _ in page if dot in done])
            self._note_attempts([(queue, dot, failed[dot]) for queue, dot, n in page if failed.get(dot, 0) > n])
        return await self._fetch_cursors(peer)

    def _settle(self, done: list[tuple[str, Dot]]) -> None:
        """These were settled while this node was away: settle them here, too, by a record that survives a crash."""
        engine = self._engine
        have = engine.path.received_vector()
        out = Outcome(now_us=engine.environment.now_us())
        for queue, dot in done:
            engine.broker.queues.settlement.settled_elsewhere(queue, dot, have.get(dot.origin, 0), None)
            out.settles.setdefault(queue, []).append(dot)
        self.settled += len(done)
        engine.path.submit(out)

    async def _fetch_cursors(self, peer: str) -> bool:
        engine = self._engine
        after: tuple[str, str, str] | None = None
        while moves := await self._rpc.ask_one(peer, DurablesCall(after)):
            await engine.path.commit_slot()
            out = Outcome(now_us=engine.environment.now_us())
            for move in moves:
                after = max(after or ("", "", ""), (move.name.destination, move.name.client, move.name.name))
                engine.broker.durable_subscriptions.accept(move, out)
                out.moves.append(move)
            engine.path.submit(out)
        return moves is not None
