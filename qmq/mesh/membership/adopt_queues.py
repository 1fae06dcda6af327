"""Adoption: the queue messages that a retired node left become messages of its adopter.

The adopter accepts each as a new message, with the same envelope, body, time and failure count, and settles the old one
in the same batch. After a crash both have happened, or neither. Under their old names they would bind the mesh to an
origin that writes no more. Now its incarnations can be collected as soon as the last message is settled.

Adoption waits until this node has all records, settles included, that a majority of the members had, learners excluded.
It leaves out messages that are with a consumer of a reachable member: they are soon settled or released. A member that
does not respond is waited for as long as a silent borrower (`redeliver_after_seconds`). Records that arrive later are
adopted then.

If another node took the messages over before the retirement, it hands them off first, and confirms that by its response
about held messages. A node that cannot be reached has no lease any more after `takeover_after_seconds`.
"""

import logging
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, ClassVar, Protocol

import trio
from msgspec import Meta, Struct

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.config import MeshSettings
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.waker import Waker
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.peers.calls import Count, Node, OriginSequence, PeerCall, check_incarnation, pack_vector, vector_of
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Dot, Origin, Vector, covers, merge
from qmq.model.members import Membership, Retirement
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.plan import is_page_full

RECORDS_SECONDS = 10.0
"""For the records that the others had at their response to arrive here; then they are asked again."""

POLL_SECONDS = 1.0
"""Between two checks of what a retired node has left."""

SLICE_ROWS = 500
SLICE_BYTES = 1 << 20
"""Adopted in one decision, approximately; other sessions have their turn in between."""

QUEUES_AT_ONCE = 100

HELD_MAX = 10_000
"""Messages of one owner that a node names as with its consumers, at most; beyond it nothing is adopted yet."""

FAR_US = 1 << 62
"""After every due time."""

log = logging.getLogger("qmq.adopt_queues")


class CoveringDeletions(Protocol):
    """See `qmq.settings.definitions.deleted_queues`."""

    def cover(self, message: Message, accepted_us: int) -> bool: ...

    def messages_adopted(self) -> None:
        """This node serves messages that it did not serve before."""


class HeldMessage(Struct, frozen=True, array_like=True):
    """A message of the owner in question."""

    incarnation: int
    sequence: Count

    def __post_init__(self) -> None:
        check_incarnation(self.incarnation)


class HeldReply(Struct, frozen=True):
    """`holds`: those messages. None when there are too many to list, or the node still delivers some, or would adopt
    them itself. `has`: its vector.
    """

    holds: Annotated[list[HeldMessage], Meta(max_length=HELD_MAX)] | None
    has: list[OriginSequence] = []


class HeldCall(PeerCall[HeldReply], frozen=True):
    """Which messages of a retired node are with consumers of a node."""

    kind: ClassVar = "held"
    holds: Node


@dataclass(eq=False, repr=False)
class QueueAdoption:
    """One task for as long as the node runs; it sleeps for ever if no node was retired."""

    _engine: EngineParts
    _mesh: Mesh
    _membership: Membership
    _rpc: PeerRpc
    _takeover: Takeover
    _seals: Seals
    _deletions: CoveringDeletions
    _settings: MeshSettings

    def __post_init__(self) -> None:
        self._since: dict[str, float] = {}
        self._waker = Waker()
        self.adopted = 0
        """Adopted messages, since the start."""

    def answer(self, call: HeldCall) -> HeldReply:
        """The reply of this node to a peer."""
        owner = call.holds
        if not self._takeover.has_let_go(owner) or self._is_adopter(owner):
            return HeldReply(None)
        rows = [HeldMessage(dot.origin.incarnation, dot.sequence) for dot in self._held_here(owner)]
        has = pack_vector(self._engine.path.received_vector())
        return HeldReply(rows if len(rows) <= HELD_MAX else None, has)

    def _is_adopter(self, owner: str) -> bool:
        """As far as this node knows: if two nodes have retired the same one, the lesser name may still arrive."""
        return owner in self._membership.adopted_by(self._mesh.node)

    def _held_here(self, owner: str) -> set[Dot]:
        """Durable messages of `owner` that are with consumers, as far as this node knows: for the node that has served
        them.
        """
        broker = self._engine.broker
        # In one turn: what is held and what this node has (`answer`) are of one moment.
        dots = chain(
            broker.borrowing.borrowed(),
            (delivery.message.dot for delivery in broker.queues.deliveries.values()),
            chain.from_iterable(broker.lending.lent.values()),
        )
        return {dot for dot in dots if dot.origin.node == owner and dot.sequence > 0}

    def wake(self) -> None:
        """The members have changed."""
        self._waker.wake()

    async def run(self) -> None:
        """Adopt until cancelled."""
        while True:
            owners = self._membership.adopted_by(self._mesh.node)
            if not owners:
                await self._waker.wait()
                continue
            for owner in owners:
                await self._adopt(self._membership.retired[owner])
            await trio.sleep(POLL_SECONDS)

    async def _adopt(self, retirement: Retirement) -> None:
        """Adopt the messages of one node that may be adopted now."""
        engine, owner = self._engine, retirement.node
        since = self._since.setdefault(owner, trio.current_time())
        patience = max(self._settings.redeliver_after_seconds, self._settings.takeover_after_seconds)
        is_patient = trio.current_time() < since + patience
        if not self._takeover.has_let_go(owner):
            return
        if engine.broker.queues.held or (is_patient and not covers(engine.path.durable_vector(), retirement.sealed)):
            return
        queues = engine.store.queues
        is_empty = partial(queues.is_empty, owner)
        left = {origin: last for origin, last in engine.path.durable_vector().items() if origin.node == owner}
        if covers(engine.store.stored_vector, left) and await engine.environment.run_blocking(is_empty):
            return  # Usually for good: this needs no checkpoint.
        await engine.checkpoints.bring_up()
        if engine.broker.send_limits.disk_full or await engine.environment.run_blocking(is_empty):
            return
        held = await self._held(owner, is_patient)
        if held is None:
            return
        # Records on this node settle what is adopted already and what the others hold no more. The stores show these
        # messages until they have those records.
        settled_by = engine.path.committed_end()
        await engine.checkpoints.bring_up()
        if engine.broker.send_limits.disk_full or engine.store.checkpoint_position < settled_by:
            return
        before = self.adopted
        name: str | None = None
        while True:
            listed = await engine.environment.run_blocking(queues.listing, owner, name, QUEUES_AT_ONCE)
            for name, _, _ in listed:
                await self._adopt_queue(owner, name, held)
            if len(listed) < QUEUES_AT_ONCE:
                break
        if self.adopted > before:
            log.info("= adopted %d queue messages of %s", self.adopted - before, owner)
            await engine.path.flushed()
            self._deletions.messages_adopted()

    async def _held(self, owner: str, is_patient: bool) -> set[Dot] | None:
        """The messages of `owner` that are with consumers in the mesh. None: there are too many, a member has not
        responded, or this node is missing records of a member, which may settle what it holds no more.
        """
        engine = self._engine
        replies, missing = await self._rpc.ask(HeldCall(owner))
        if is_patient and missing:
            return None
        membership = self._membership
        # A learner has lost its record of what is settled.
        vouching = {peer for peer in replies if membership.counts(peer)}
        if membership.may_vote:
            vouching.add(self._mesh.node)
        if not membership.is_majority(vouching):
            return None
        held = self._held_here(owner)
        needs: Vector = {}
        for reply in replies.values():
            if reply.holds is None:
                return None
            held.update([Dot(Origin(owner, one.incarnation), one.sequence) for one in reply.holds])
            merge(needs, vector_of(reply.has))
        with trio.move_on_after(RECORDS_SECONDS):
            # While clients are busy, some of it is always on its way.
            while not covers(engine.path.durable_vector(), self._seals.without(needs)):
                await engine.commits.grew(engine.path.committed_end())
            return held
        return None

    async def _adopt_queue(self, owner: str, queue: str, held: set[Dot]) -> None:
        engine = self._engine
        queues = engine.store.queues
        heads = await engine.environment.run_blocking(queues.heads, owner, [queue], FAR_US)
        for priority in heads[queue].priorities if queue in heads else ():
            after: Dot | None = None
            exact = 0
            while True:
                call = partial(queues.page, owner, queue, priority, after, FAR_US, SLICE_ROWS, exact, SLICE_BYTES)
                rows = await engine.environment.run_blocking(call)
                engine.damage.check()
                if rows:
                    await engine.path.slot()
                    if not self._is_adopter(owner):
                        return
                    self._take(self._membership.retired[owner], queue, [row for row in rows if row.dot not in held])
                    after, exact = rows[-1].dot, rows[-1].exact
                if not is_page_full(rows, SLICE_ROWS, SLICE_BYTES):
                    break

    def _take(self, retirement: Retirement, queue: str, rows: list[QueueRow]) -> None:
        """Accept these messages of a retired node as messages of this one, with times by its clock; settle the old
        ones."""
        engine = self._engine
        out = Outcome(now_us=engine.environment.now_us())
        dots: list[Dot] = []
        ahead_us = engine.broker.clocks.apart_us(retirement.node) or 0
        for row in rows:
            message = engine.replay.message_of_row(row)
            if message is None:
                continue  # This version does not know the kind; the message stays where it is.
            dot = Dot(engine.broker.origin, engine.broker.next_sequence)
            accepted_us = row.timestamp_us + ahead_us
            if retirement.heard_us and row.dot.sequence <= retirement.sealed.get(row.dot.origin, 0):
                # This node may never have heard the clock of the retired one.
                accepted_us = min(accepted_us, retirement.heard_us - 1)
            is_superseded = engine.broker.queues.first_attempts.is_superseded(message)
            if not is_superseded and not self._deletions.cover(message, accepted_us):
                engine.broker.send(message.envelope, message.body, accepted_us, out)
            if row.attempts and engine.broker.next_sequence > dot.sequence:
                # Before a delivery: a message that failed before keeps its failure count with its new owner.
                out.attempts.setdefault(queue, {})[dot] = row.attempts
                engine.broker.queues.redelivery.failed_before({dot: row.attempts})
            out.settles.setdefault(queue, []).append(row.dot)
            dots.append(row.dot)
            self.adopted += 1
        engine.path.submit(out)
        # If this node had taken the messages over before, they leave its queues as for any other record.
        record = Dot(engine.broker.origin, engine.broker.next_sequence - 1)
        engine.broker.accept_settles(queue, dots, engine.path.received_vector(), record)
