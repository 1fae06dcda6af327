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
from typing import Protocol

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.runtime.contexts import Committing, Engine, MeshPeers, Repairing, Tasks
from qmq.engine.runtime.waker import Waker
from qmq.mesh.peers.rpc import PeerRpc
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


class IncarnationGcContext(Engine, Committing, MeshPeers, Repairing, Tasks, Protocol):
    peer_rpc: PeerRpc


class IncarnationGc:
    """`links` is None on a node without peers. `seals.forgotten` is live: links and the broker read it."""

    def __init__(self, context: IncarnationGcContext) -> None:
        self.links: Mesh | None = None
        self.seals = Seals.of(context.store.catalog.facts())
        self._context = context
        self._waker = Waker()

    def seals_received(self, writer: str, seals: list[Seal]) -> None:
        """A SEAL record of another node, or of an earlier incarnation of this one."""
        self.seals.take(writer, seals)

    def checkpoint_done(self, report: CheckpointReport) -> None:
        """Collect what the checkpoint has collected, and report what is due."""
        context = self._context
        if report.forgotten:
            received = context.received_vector()
            for origin in report.forgotten:
                received.pop(origin, None)
            self.seals.forget(report.forgotten)
            context.broker.durable_subscriptions.forget_origins(self.seals.forgotten)
            context.broker.deletions.forget_origins(self.seals.forgotten)
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
            quarantined = await self._context.quarantined_anywhere(ends)
            if quarantined is None:
                await self._waker.wait(ASK_SECONDS)
                self._waker.wake()
                continue
            await self._context.commit_slot()
            # Other tasks ran meanwhile.
            still = [seal for seal in self._ends() if ends.get(seal.origin) == seal.last]
            self._record([seal for seal in still if seal.origin not in quarantined])

    async def _ask_others(self) -> None:
        """Ask one peer after the other about the dead incarnations that are known here, until cancelled.

        Their records about these may have left their journals while this node was away.
        """
        turn = 0
        while self.links is not None:
            await trio.sleep(ASK_SECONDS)
            context = self._context
            dead = self._dead()
            peers = sorted(context.member_names)
            if not dead or not peers:
                continue
            turn += 1
            peer = peers[turn % len(peers)]
            lines = (
                await context.peer_rpc.ask_one(peer, SealsCall([value for origin in dead for value in origin])) or []
            )
            await context.commit_slot()
            have = context.received_vector()
            lines = [line._replace(last=line.last or have.get(line.origin, 0)) for line in lines]
            own = context.origin.node
            known = [line for line in lines if line.origin in have and line.last == have[line.origin]]
            self._record([line for line in known if self.seals.is_news(own, line)])

    def answer(self, origins: list[Origin]) -> list[Seal]:
        """This node's knowledge of the incarnations in a peer's request."""
        return self.seals.about(origins)

    def _dead(self) -> list[Origin]:
        """Incarnations of which a later one is known, or may exist: those without a link now."""
        present = set(self.links.present()) if self.links is not None else set()
        present.add(self._context.origin)
        return [origin for origin in self._context.received_vector() if origin not in present][:SEALS_AT_ONCE]

    def wake(self) -> None:
        """A peer has caught up: it may be the last one that an end waited for."""
        self._waker.wake()

    def _ends(self) -> list[Seal]:
        """Dead incarnations for which this node is responsible and whose end is equal on all members."""
        context, links = self._context, self.links
        own = context.origin
        others = context.member_names
        is_first = own.node < min(others, default="~")
        durable = context.durable_vector()
        found: list[Seal] = []
        for origin, last in context.received_vector().items():
            in_care = origin.node == own.node or is_first and origin.node not in others
            if not in_care or origin == own or origin in self.seals.last or len(found) >= SEALS_AT_ONCE:
                continue
            if durable.get(origin, 0) == last and (links is None or links.all_have(context.member_names, origin, last)):
                found.append(Seal(origin, last, False))
        return found

    def _record(self, seals: list[Seal]) -> None:
        context = self._context
        if context.is_stopping:
            return  # The last records are being written; the next incarnation reports it.
        for start in range(0, len(seals), SEALS_AT_ONCE):
            part = seals[start : start + SEALS_AT_ONCE]
            now_us = context.environment.now_us()
            out = Outcome(now_us=now_us)
            context.broker.note_fact(RecordKind.SEAL, pack_seals(part), now_us, out)
            self.seals.take(context.origin.node, part)
            context.submit(out)
            context.schedule_checkpoint()  # The next step comes with it.
