"""When the mesh may collect a dead incarnation: applies `storage.catalog.incarnations` to this node's own incarnations.

The node of an origin fixes its end when three conditions hold. The node lives in another incarnation. Every member
reports, over a present link, exactly as much of it, received and durable. And every member responds that it has
quarantined nothing of it (`quarantine_restore`). That cannot change any more: a member with more would have reported
it, and what the dead process had sent went over links that have ended since. For a retired node, the first of the
members by name does so.

Every member reports when it has nothing of a sealed origin left. The checkpoint finds that out, and collects what all
have released. Decisions are recorded, so a node that stops in the middle continues where it was.
"""

import logging
from dataclasses import InitVar, dataclass

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.waker import Waker
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.requests import SealsCall
from qmq.model.dots import Origin
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.incarnations import Seal, Seals, pack_seals
from qmq.storage.checkpoints.report import CheckpointReport
from qmq.storage.format.record import RecordKind

ASK_SECONDS = 15.0
"""Between two requests to peers about dead incarnations, while any are known."""

SEALS_AT_ONCE = 100
"""Lines in one record."""

log = logging.getLogger("qmq.incarnation_gc")


@dataclass(eq=False, repr=False)
class IncarnationGc:
    """`seals` is live: other parts read it."""

    _engine: EngineParts
    tasks: InitVar[Tasks]
    _mesh: Mesh
    _rpc: PeerRpc
    seals: Seals
    _quarantine: QuarantineRestore

    def __post_init__(self, tasks: Tasks) -> None:
        self._node = tasks
        self._waker = Waker()

    def seals_received(self, writer: str, seals: list[Seal]) -> None:
        """A SEAL record of another node, or of an earlier incarnation of this one."""
        self.seals.take(writer, seals)

    def checkpoint_done(self, report: CheckpointReport) -> None:
        """Collect what the checkpoint has collected, and report what is due."""
        engine = self._engine
        if report.forgotten:
            received = engine.path.received_vector()
            for origin in report.forgotten:
                received.pop(origin, None)
            self.seals.forget(report.forgotten)
            engine.broker.durable_subscriptions.forget_origins(self.seals.forgotten)
            engine.broker.deletions.forget_origins(self.seals.forgotten)
            log.info("= %d dead incarnations are collected", len(report.forgotten))
        self._record(list(report.released))
        self.wake()

    async def run(self) -> None:
        """Fix ends, and ask peers about dead incarnations, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fix_ends)
            nursery.start_soon(self._ask_others)

    async def _fix_ends(self) -> None:
        while True:
            await self._waker.wait()
            ends = {seal.origin: seal.last for seal in self._ends()}
            if not ends:
                continue
            quarantined = await self._quarantine.anywhere(ends)
            if quarantined is None:
                await self._waker.wait(ASK_SECONDS)
                self._waker.wake()
                continue
            await self._engine.path.commit_slot()
            # Other tasks ran meanwhile.
            still = [seal for seal in self._ends() if ends.get(seal.origin) == seal.last]
            self._record([seal for seal in still if seal.origin not in quarantined])

    async def _ask_others(self) -> None:
        """Ask one peer after the other about the dead incarnations that are known here, until cancelled.

        Their records about these may have left their journals while this node was away.
        """
        turn = 0
        while not self._mesh.is_alone:
            await trio.sleep(ASK_SECONDS)
            engine = self._engine
            dead = self._dead()
            peers = sorted(engine.checkpoints.members)
            if not dead or not peers:
                continue
            turn += 1
            peer = peers[turn % len(peers)]
            lines = await self._rpc.ask_one(peer, SealsCall([value for origin in dead for value in origin])) or []
            await engine.path.commit_slot()
            have = engine.path.received_vector()
            lines = [line._replace(last=line.last or have.get(line.origin, 0)) for line in lines]
            own = engine.broker.origin.node
            known = [line for line in lines if line.origin in have and line.last == have[line.origin]]
            self._record([line for line in known if self.seals.is_news(own, line)])

    def _dead(self) -> list[Origin]:
        """Incarnations of which a later one is known, or may exist: those without a link now."""
        present = set(self._mesh.present())
        present.add(self._engine.broker.origin)
        return [origin for origin in self._engine.path.received_vector() if origin not in present][:SEALS_AT_ONCE]

    def wake(self) -> None:
        """A peer has caught up: it may be the last one that an end waited for."""
        self._waker.wake()

    def _ends(self) -> list[Seal]:
        """Dead incarnations for which this node is responsible and whose end is equal on all members."""
        engine, mesh = self._engine, self._mesh
        own = engine.broker.origin
        others = engine.checkpoints.members
        is_first = own.node < min(others, default="~")
        durable = engine.path.durable_vector()
        found: list[Seal] = []
        for origin, last in engine.path.received_vector().items():
            in_care = origin.node == own.node or is_first and origin.node not in others
            if not in_care or origin == own or origin in self.seals.last or len(found) >= SEALS_AT_ONCE:
                continue
            if durable.get(origin, 0) == last and mesh.all_have(engine.checkpoints.members, origin, last):
                found.append(Seal(origin, last, False))
        return found

    def _record(self, seals: list[Seal]) -> None:
        engine = self._engine
        if self._node.is_stopping:
            return  # The last records are being written; the next incarnation reports it.
        for start in range(0, len(seals), SEALS_AT_ONCE):
            part = seals[start : start + SEALS_AT_ONCE]
            now_us = engine.environment.now_us()
            out = Outcome(now_us=now_us)
            engine.broker.note_fact(RecordKind.SEAL, pack_seals(part), now_us, out)
            self.seals.take(engine.broker.origin.node, part)
            engine.path.submit(out)
            engine.checkpoints.schedule()  # The next step comes with it.
