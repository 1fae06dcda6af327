"""Restores batches quarantined behind damage, as soon as the fate of the damaged range is known.

A damaged range of the journal separates later batches of the same incarnation from its beginning. So all of these are
quarantined, valid as they are (`storage.log.recovery`). Usually peers have the range and send it. Batches that continue
the records of this node are then appended again.

A range that no peer ever had would be waited for for ever. Therefore every member is asked what it has quarantined,
after each has reported, over a present link, exactly as much of the incarnation as this node. If no member has anything
before the batches quarantined here, the range before them is lost. Then another record replaces it in the journal
(`batch.REST`), and readers of fanouts are notified (GONE). The batches behind it count again and go to the peers. If
two nodes have quarantined the same, the first by name restores it. A node without peers waits for its operator (`qmq
log release`), because the operator may have a copy.

The node that fixes the end of a dead incarnation (`incarnation_gc`) makes the same request before. A response describes
the quarantine as of the start of the node. It does not change as batches are restored, so it cannot be out of date.
"""

import logging
from collections.abc import Collection, Iterator
from functools import partial
from typing import ClassVar, Final, NamedTuple

import trio
from msgspec import Struct, field

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.waker import Waker
from qmq.errors import MeshError
from qmq.mesh.peers.calls import Count, OriginSequence, PeerCall, pack_vector
from qmq.mesh.peers.rpc import REPAIR_SECONDS, PeerRpc
from qmq.mesh.repair.losses import Losses
from qmq.model.dots import Origin, Vector
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.format.batch import REST, verify_batch
from qmq.storage.format.lost_record import LostRange
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.quarantine_restore import QuarantinedRange, quarantined_ranges, valid_quarantined
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left, snapshot_of

RETRY_SECONDS: Final = 1.0
"""Between two checks whether something can be restored, while anything is quarantined."""

BYTES_AT_ONCE: Final = 1 << 20
"""Of batches in one commit, approximately; at least one batch."""

log = logging.getLogger("qmq.quarantine_restore")


class QuarantineReply(Struct, frozen=True):
    """The first quarantined sequence behind each range of the call, in its order; 0: there is none."""

    firsts: list[Count] = field(name="aside")


class QuarantineCall(PeerCall[QuarantineReply], frozen=True):
    """What a node has quarantined behind these ranges."""

    kind: ClassVar = "quarantine"
    ranges: list[OriginSequence] = field(name="aside")

    def check(self, reply: QuarantineReply) -> None:
        if len(reply.firsts) < len(self.ranges):
            raise ValueError("a range of the request is missing")


class QuarantineRestore:
    """See the module's opening."""

    def __init__(self, engine: EngineParts, mesh: Mesh, rpc: PeerRpc, seals: Seals, losses: Losses) -> None:
        self._engine = engine
        self._mesh = mesh
        self._rpc = rpc
        self._seals = seals
        self._losses = losses
        # Valid batches that were quarantined and not in the journal at the start: first sequences and last ones,
        # ascending.
        self._quarantined: dict[Origin, list[tuple[int, int]]] = {}
        # Those of them that could not be restored; other nodes must not count them as nothing.
        self._refused: set[Origin] = set()
        self._is_known = trio.Event()
        self._waker = Waker()

    def wake(self) -> None:
        """Records arrived, a peer has reported its vector, or the members have changed."""
        if self._quarantined:
            self._waker.wake()

    async def answer(self, call: QuarantineCall) -> QuarantineReply:
        """What this node has quarantined behind the ranges of a request."""
        await self._is_known.wait()
        # What a link still delivers may be more, too.
        present = set(self._mesh.present())
        after = [entry.pair() for entry in call.ranges]
        firsts = [last + 1 if origin in present else self._next(origin, last) for origin, last in after]
        return QuarantineReply(firsts)

    async def anywhere(self, after: Vector) -> Vector | None:
        """What this node or a member has quarantined behind `after`: incarnation → the first such sequence, where there
        is one. None: some member has not responded.
        """
        holders = await self._holders(after)
        return None if holders is None else {origin: first for origin, (first, _) in holders.items()}

    async def _holders(self, after: Vector) -> dict[Origin, tuple[int, str]] | None:
        """As `anywhere`, each with the first node by name that has it."""
        engine = self._engine
        peers = list(engine.checkpoints.members)
        replies, _ = await self._rpc.ask(QuarantineCall(pack_vector(after)), REPAIR_SECONDS)
        await self._is_known.wait()
        if not replies.keys() >= set(peers):
            return None
        answers = {peer: dict(zip(after, replies[peer].firsts, strict=False)) for peer in peers}
        answers[self._mesh.node] = {origin: self._next(origin, last) for origin, last in after.items()}
        found = {o: [(firsts[o], node) for node, firsts in answers.items() if firsts.get(o)] for o in after}
        return {origin: min(holders) for origin, holders in found.items() if holders}

    async def run(self) -> None:
        """Restore what can be, until nothing is quarantined."""
        engine, links = self._engine, self._mesh
        recovered = engine.store.recovered
        if any(entry.origin is not None for entry in (*recovered.quarantined_before, *recovered.quarantined)):
            store = engine.store
            wake = partial(valid_quarantined, store.disk, recovered.vector, store.journal.start)
            self._quarantined = await engine.environment.run_blocking(wake)
        self._is_known.set()
        while not links.is_alone and self._due(links) is not None:
            self._waker.clear()
            if not await self._step(links):
                await self._waker.wait(RETRY_SECONDS)

    def _next(self, origin: Origin, after: int) -> int:
        """The first quarantined sequence behind `after`; 0: there is none."""
        return next((max(first, after + 1) for first, last in self._quarantined.get(origin, ()) if last > after), 0)

    def _due(self, links: Mesh) -> tuple[Vector, Vector] | None:
        """The vector here of incarnations whose next batch is quarantined; and of those with a missing range before it,
        if every member has as much. None when nothing is quarantined at all.

        The node of a living incarnation sends later records itself, and an incarnation that the mesh has sealed ends at
        its end.
        """
        engine = self._engine
        have, durable, present = engine.path.received_vector(), engine.path.durable_vector(), links.present()
        seals = self._seals
        following: Vector = {}
        parted: Vector = {}
        is_any = False
        for origin in self._quarantined:
            known = have.get(origin, 0)
            first = self._next(origin, known)
            if not first or origin in self._refused or origin in seals.last or origin in seals.forgotten:
                continue
            is_any = True
            if origin in present:
                continue
            if first == known + 1:
                # It cannot continue in the middle of a batch, of which only a part was here.
                if any(first == begin for begin, _ in self._quarantined[origin]):
                    following[origin] = known
            elif durable.get(origin, 0) == known and links.all_have(engine.checkpoints.members, origin, known):
                parted[origin] = known
        return (following, parted) if is_any else None

    async def _step(self, links: Mesh) -> bool:
        """Restore what can be; False when that was nothing."""
        engine = self._engine
        due = self._due(links)
        if due is None or engine.broker.send_limits.disk_full:
            return False
        following, parted = due
        if not following and parted:
            asked = list(engine.checkpoints.members)
            holders = await self._holders(parted)
            if holders is None:
                return False
            # No member has quarantined anything before what this node has.
            ours = {o: known for o, known in parted.items() if o in holders and holders[o][1] == links.node}
            return await self._bring_back(links, ours, asked)
        return await self._bring_back(links, following, ())

    async def _bring_back(self, links: Mesh, have: Vector, asked: Collection[str]) -> bool:
        """`have`: the vector here of those origins; `asked`: members with nothing before the quarantined batches.
        False: nothing was restored.
        """
        engine = self._engine
        if not have:
            return False
        steps = await engine.environment.run_blocking(quarantined_ranges, engine.store.disk, have, 0, have.keys())
        is_done = False
        for origin, known in have.items():
            step = next((step for step in steps if step.origin == origin), None)
            due = self._next(origin, known)
            if step is not None and step.first == due:
                is_done = await self._take(links, step, known, asked) or is_done
            else:
                # The quarantine has been damaged since it was read.
                self._quarantined[origin] = [batch for batch in self._quarantined[origin] if batch[0] != due]
                is_done = True
        return is_done

    async def _take(self, links: Mesh, step: QuarantinedRange, known: int, asked: Collection[str]) -> bool:
        engine = self._engine
        origin, lost = step.origin, step.lost
        for part in _parts(step.batches):
            await engine.path.commit_slot()
            due = self._due(links)
            # Other tasks ran: another node was faster, has sealed it, or has more by now.
            if (
                due is None
                or engine.broker.send_limits.disk_full
                or engine.path.received_vector().get(origin, 0) != known
            ):
                return False
            if lost is not None and not (
                due[1].get(origin) == known and set(asked).issuperset(engine.checkpoints.members)
            ):
                return False
            out = Outcome(now_us=engine.environment.now_us())
            try:
                if lost is not None:
                    links.take_snapshot(MissingRange(origin, known, lost[1]), nothing_left(lost[1]), out)
                    self._losses.note_lost(LostRange(origin, *lost), out)
                    # Apart from later records, so that readers are notified in this order.
                    engine.path.submit(out)
                    out = Outcome(now_us=out.now_us)
                if part.snapshot is not None:
                    links.take_snapshot(MissingRange(origin, part.first - 1, part.last), part.snapshot, out)
                else:
                    links.take_quarantined(part.batches, out)
            except MeshError as error:
                log.error("! quarantined batches of %s cannot be restored: %s", origin, error.message)
                self._refused.add(origin)
                return True
            finally:
                engine.path.submit(out)
            known, lost = part.last, None
        await engine.path.flushed()
        log.info("= %d records of %s are restored from quarantine", step.records, origin)
        return True


class _Part(NamedTuple):
    """Batches, or a snapshot in place of a range; sequences `first` to `last`."""

    batches: bytes
    snapshot: RangeSnapshot | None
    first: int
    last: int


def _parts(batches: Collection[bytes]) -> Iterator[_Part]:
    part: list[bytes] = []
    first = last = size = 0
    for batch in batches:
        head = verify_batch(batch)
        if part and (head.attributes & REST or size + len(batch) > BYTES_AT_ONCE):
            yield _Part(b"".join(part), None, first, last)
            part, size = [], 0
        if head.attributes & REST:
            yield _Part(b"", snapshot_of(batch), head.first, head.last)
            continue
        first = first if part else head.first
        last = head.last
        part.append(batch)
        size += len(batch)
    if part:
        yield _Part(b"".join(part), None, first, last)
