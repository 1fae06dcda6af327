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
from functools import partial
from typing import Annotated, ClassVar, Protocol

import trio
from msgspec import Meta, Struct

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.commit.commits import Commits
from qmq.engine.runtime.contexts import Committing, Engine, JournalTail, MeshPeers, Reporting
from qmq.engine.runtime.waker import Waker
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.peers.calls import Count, Node, OriginSequence, PeerCall, check_incarnation, pack_vector, vector_of
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.incarnation_gc import IncarnationGc
from qmq.model.dots import Dot, Origin, Vector, covers, merge
from qmq.model.members import Retirement
from qmq.record_codec import Replay
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

    def cover(self, message: Message) -> bool: ...


class AdoptionContext(Engine, Committing, JournalTail, MeshPeers, Reporting, Protocol):
    takeover: Takeover
    checkpoints: Checkpoints
    commits: Commits
    incarnation_gc: IncarnationGc
    peer_rpc: PeerRpc
    replay: Replay

    @property
    def deleted_queues(self) -> CoveringDeletions: ...

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


def messages_held(context: AdoptionContext, call: HeldCall) -> HeldReply:
    """The reply of this node."""
    owner = call.holds
    if not context.takeover.has_let_go(owner) or _is_adopter(context, owner):
        return HeldReply(None)
    rows = [HeldMessage(dot.origin.incarnation, dot.sequence) for dot in _held_here(context, owner)]
    return HeldReply(rows if len(rows) <= HELD_MAX else None, pack_vector(context.received_vector()))


def _is_adopter(context: AdoptionContext, owner: str) -> bool:
    """As far as this node knows: if two nodes have retired the same one, the lesser name may still arrive."""
    return owner in context.membership.adopted_by(context.origin.node)


def _held_here(context: AdoptionContext, owner: str) -> set[Dot]:
    """Durable messages of `owner` that are with consumers, as far as this node knows: for the node that has served
    them.
    """
    queues, lending = context.broker.queues, context.broker.lending
    borrowing = context.broker.borrowing
    held = set(borrowing.borrowed())
    held.update(delivery.message.dot for delivery in queues.deliveries.values())
    held.update(dot for lent in lending.lent.values() for dot in lent)
    return {dot for dot in held if dot.origin.node == owner and dot.sequence > 0}


class QueueAdoption:
    """One task for as long as the node runs; it sleeps for ever if no node was retired."""

    def __init__(self, context: AdoptionContext) -> None:
        self._context = context
        self._since: dict[str, float] = {}
        self._waker = Waker()
        self.adopted = 0
        """Adopted messages, since the start."""

    def wake(self) -> None:
        """The members have changed."""
        self._waker.wake()

    async def run(self) -> None:
        """Adopt until cancelled."""
        context = self._context
        while True:
            owners = context.membership.adopted_by(context.origin.node)
            if not owners:
                await self._waker.wait()
                continue
            for owner in owners:
                await self._adopt(context.membership.retired[owner])
            await trio.sleep(POLL_SECONDS)

    async def _adopt(self, retirement: Retirement) -> None:
        """Adopt the messages of one node that may be adopted now."""
        context, owner = self._context, retirement.node
        since = self._since.setdefault(owner, trio.current_time())
        patience = max(context.settings.mesh.redeliver_after_seconds, context.settings.mesh.takeover_after_seconds)
        is_patient = trio.current_time() < since + patience
        if not context.takeover.has_let_go(owner):
            return
        if context.broker.queues.held or (is_patient and not covers(context.durable_vector(), retirement.sealed)):
            return
        queues = context.store.queues
        is_empty = partial(queues.is_empty, owner)
        left = {origin: last for origin, last in context.durable_vector().items() if origin.node == owner}
        if covers(context.store.stored_vector, left) and await context.environment.run_blocking(is_empty):
            return  # Usually for good: this needs no checkpoint.
        await context.checkpoints.bring_up()
        if context.broker.send_limits.disk_full or await context.environment.run_blocking(is_empty):
            return
        held = await self._held(owner, is_patient)
        if held is None:
            return
        # Records on this node settle what is adopted already and what the others hold no more. The stores show these
        # messages until they have those records.
        settled_by = context.committed_end()
        await context.checkpoints.bring_up()
        if context.broker.send_limits.disk_full or context.store.checkpoint_position < settled_by:
            return
        before = self.adopted
        name: str | None = None
        while True:
            listed = await context.environment.run_blocking(queues.listing, owner, name, QUEUES_AT_ONCE)
            for name, _, _ in listed:
                await self._adopt_queue(owner, name, held)
            if len(listed) < QUEUES_AT_ONCE:
                break
        if self.adopted > before:
            log.info("= adopted %d queue messages of %s", self.adopted - before, owner)
            await context.flushed()
            context.messages_adopted()

    async def _held(self, owner: str, is_patient: bool) -> set[Dot] | None:
        """The messages of `owner` that are with consumers in the mesh. None: there are too many, a member has not
        responded, or this node is missing records of a member, which may settle what it holds no more.
        """
        context = self._context
        replies, missing = await context.peer_rpc.ask(HeldCall(owner))
        if is_patient and missing:
            return None
        membership = context.membership
        # A learner has lost its record of what is settled.
        vouching = {peer for peer in replies if membership.counts(peer)}
        if membership.may_vote:
            vouching.add(context.origin.node)
        if not membership.is_majority(vouching):
            return None
        held = _held_here(context, owner)
        needs: Vector = {}
        for reply in replies.values():
            if reply.holds is None:
                return None
            held.update([Dot(Origin(owner, one.incarnation), one.sequence) for one in reply.holds])
            merge(needs, vector_of(reply.has))
        with trio.move_on_after(RECORDS_SECONDS):
            # While clients are busy, some of it is always on its way.
            while not covers(context.durable_vector(), context.incarnation_gc.seals.without(needs)):
                await context.commits.grew(context.committed_end())
            return held
        return None

    async def _adopt_queue(self, owner: str, queue: str, held: set[Dot]) -> None:
        context = self._context
        queues = context.store.queues
        heads = await context.environment.run_blocking(queues.heads, owner, [queue], FAR_US)
        for priority in heads[queue].priorities if queue in heads else ():
            after: Dot | None = None
            exact = 0
            while True:
                call = partial(queues.page, owner, queue, priority, after, FAR_US, SLICE_ROWS, exact, SLICE_BYTES)
                rows = await context.environment.run_blocking(call)
                context.check_damage()
                if rows:
                    await context.slot()
                    if not _is_adopter(context, owner):
                        return
                    self._take(owner, queue, [row for row in rows if row.dot not in held])
                    after, exact = rows[-1].dot, rows[-1].exact
                if not is_page_full(rows, SLICE_ROWS, SLICE_BYTES):
                    break

    def _take(self, owner: str, queue: str, rows: list[QueueRow]) -> None:
        """Accept these messages of `owner` as messages of this node, with times by its clock; settle the old ones."""
        context = self._context
        out = Outcome(now_us=context.environment.now_us())
        dots: list[Dot] = []
        ahead_us = context.broker.clocks.apart_us(owner) or 0
        for row in rows:
            message = context.replay.message_of_row(row)
            if message is None:
                continue  # This version does not know the kind; the message stays where it is.
            dot = Dot(context.origin, context.broker.next_sequence)
            is_superseded = context.broker.queues.first_attempts.is_superseded(message)
            if not is_superseded and not context.deleted_queues.cover(message):
                context.broker.send(message.envelope, message.body, row.timestamp_us + ahead_us, out)
            if row.attempts and context.broker.next_sequence > dot.sequence:
                # Before a delivery: a message that failed before keeps its failure count with its new owner.
                out.attempts.setdefault(queue, {})[dot] = row.attempts
                context.broker.queues.redelivery.failed_before({dot: row.attempts})
            out.settles.setdefault(queue, []).append(row.dot)
            dots.append(row.dot)
            self.adopted += 1
        context.submit(out)
        # If this node had taken the messages over before, they leave its queues as for any other record.
        record = Dot(context.origin, context.broker.next_sequence - 1)
        context.broker.accept_settles(queue, dots, context.received_vector(), record)
