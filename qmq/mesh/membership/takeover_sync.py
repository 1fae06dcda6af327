"""Takeover sync: brings an owner's messages into this node's queues, after a majority voted for this node.

First the records that the voters had on disk are fetched. A checkpoint brings the rows of the owner into the queue
store, and the other nodes report what their consumers hold. Then the rows are read like those of an earlier incarnation
of this node. An owner that is back does the same, after the node that served it has stopped at its request.

A node that learns of the new term drops what waits for its consumers and reports what these hold (`Holds`). No consumer
saw any other message that was lent before, by this node or by the one that served until then. This node requeues those
at that report, not before: until then they count as being with that peer.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Final, Protocol

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.waker import Waker
from qmq.errors import DiskFull
from qmq.model.dots import Dot, Vector, covers
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.incarnations import Seals

HOLDS_PART: Final = 1 / 5
"""Of `takeover_after_seconds`: how long a new server waits for the reports of what consumers of others hold."""

ARRIVAL_FACTOR: Final = 2
"""Times `takeover_after_seconds`, after which an unfinished takeover is given up and begun again."""

log = logging.getLogger("qmq.takeover")


class OwnerSync:
    """The sync of one owner, in term `number`; `needs` is what must be here first."""

    def __init__(self, number: int, needs: Vector) -> None:
        self.number = number
        self.needs = needs
        self.reported: set[str] = set()
        """Peers that know the term, and have reported what their consumers hold."""
        self.waker = Waker()


class TermHolder(Protocol):
    """The part that began it (`Takeover`)."""

    def claims(self, owner: str, number: int) -> bool: ...

    def has_begun(self, owner: str, number: int, out: Outcome) -> None: ...

    def could_not_begin(self, owner: str, number: int) -> None: ...

    def wake(self) -> None: ...


@dataclass(eq=False, repr=False)
class TakeoverSync:
    """The syncs by owner. Each ends with `Takeover.has_begun`, or with `Takeover.could_not_begin`."""

    _engine: EngineParts
    _node: NodeBasics
    _mesh: Mesh
    _membership: Membership
    _seals: Seals
    _takeover: TermHolder
    takeover_after_seconds: InitVar[float]

    def __post_init__(self, takeover_after_seconds: float) -> None:
        self._followers: list[Callable[[], None]] = []
        self._after = takeover_after_seconds
        self._syncs: dict[str, OwnerSync] = {}

    def follow(self, taken_over: Callable[[], None]) -> None:
        """Call `taken_over` when this node serves messages that it did not serve before."""
        self._followers.append(taken_over)

    def __contains__(self, owner: object) -> bool:
        return owner in self._syncs

    def begin(self, owner: str, number: int, needs: Vector, lent: Mapping[str, list[Dot]]) -> None:
        """Sync the messages of `owner`, in term `number`. `lent` says which node holds which messages, as reported by
        the node that served them until now; it is empty when that one is silent.
        """
        handoff = self._engine.broker.queues.handoff
        # This node's copy of these messages is from before, and others have settled some since.
        handoff.cede(owner, self._mesh.node)
        handoff.forget_before(owner)
        sync = self._syncs[owner] = OwnerSync(number, needs)
        handoff.expect(owner)
        for peer, dots in lent.items():
            if peer != self._mesh.node:
                handoff.hold_elsewhere(peer, dots)
        self._node.spawn(partial(self._bring_in, owner, sync))

    def renew(self, owner: str) -> None:
        """This node serves `owner` without a break, in a new term from now on."""
        self._engine.broker.queues.handoff.restart(owner)

    def end(self, owner: str) -> None:
        """Another node may serve `owner`."""
        self._syncs.pop(owner, None)
        self._engine.broker.queues.handoff.forget_before(owner)

    def peer_holds(self, peer: str, owner: str, number: int, dots: list[Dot], out: Outcome) -> None:
        """`peer` knows the term, which is the one that this node obeys, and consumers there hold these."""
        handoff = self._engine.broker.queues.handoff
        sync = self._syncs.get(owner)
        if sync is not None and sync.number == number:
            handoff.hold_only(peer, owner, dots)
            sync.reported.add(peer)
            sync.waker.wake()
        elif owner in self._engine.broker.queues.owned.serves:
            handoff.hold_elsewhere(peer, dots)
            self._requeue(owner, peer, dots, out)

    def _requeue(self, owner: str, peer: str, held: Collection[Dot], out: Outcome) -> None:
        broker = self._engine.broker
        kept = set(held)
        before = broker.queues.handoff.take_before(peer, owner)
        # A client of the peer may have seen them; the peer, or its next life, does not say why they are free.
        broker.lending.returned(peer, [(dot, Back.LEFT, None) for dot in before if dot not in kept], out)

    async def _bring_in(self, owner: str, sync: OwnerSync) -> None:
        """Begin to deliver the messages of `owner`, unless another node may by then."""
        engine = self._engine
        handoff = engine.broker.queues.handoff
        try:
            with trio.move_on_after(ARRIVAL_FACTOR * self._after):
                if await self._fetch(owner, sync):
                    async with engine.pager.load_lock:
                        if self._still(owner, sync):
                            self._adopt(owner, sync)
        except DiskFull as error:
            self._node.add_event("takeover-failed", f"no room to take over the messages of {owner}: {error}")
        finally:
            if self._syncs.get(owner) is sync:
                del self._syncs[owner]
            if owner not in self._engine.broker.queues.owned.serves and owner not in self._syncs:
                handoff.abandon(owner)
                self._takeover.could_not_begin(owner, sync.number)
        self._takeover.wake()

    async def _fetch(self, owner: str, sync: OwnerSync) -> bool:
        """Wait until the voters' records are in the store and the reports about held messages are here.

        False when it was given up half-way, because this node was stopped and its lease was over. It may have a new
        lease the next moment, and would deliver messages that are not here.

        A voter may still name dead incarnations that this node has collected: their records never come again.
        """
        engine = self._engine
        while not covers(engine.path.durable_vector(), self._seals.without(sync.needs)):
            await engine.commits.grew(engine.path.committed_end())
        if not self._still(owner, sync):
            return False
        engine.broker.queues.handoff.gather(owner)
        await engine.checkpoints.checkpoint()
        with trio.move_on_after(HOLDS_PART * self._after):
            while not self._expected().issubset(sync.reported):
                sync.waker.clear()
                await sync.waker.wait()
        return True

    def _still(self, owner: str, sync: OwnerSync) -> bool:
        is_member = owner in self._membership.members
        return self._syncs.get(owner) is sync and is_member and self._takeover.claims(owner, sync.number)

    def _expected(self) -> set[str]:
        """Peers that will report what their consumers hold. Others report it when they begin to follow this node."""
        return self._mesh.followers()

    def _adopt(self, owner: str, sync: OwnerSync) -> None:
        engine = self._engine
        handoff = engine.broker.queues.handoff
        out = Outcome(now_us=engine.environment.now_us())
        elsewhere = handoff.with_peers(owner)
        for peer in elsewhere:
            self._mesh.check_absent(peer)
        # Later reports are not waited for.
        handoff.was_lent_before(owner, {peer: dots for peer, dots in elsewhere.items() if peer not in sync.reported})
        engine.broker.queues.hold(out)
        handoff.adopt(owner, engine.store.tombstones, out)
        engine.pager.sweep_at(engine.environment.now_us())
        self._takeover.has_begun(owner, sync.number, out)
        engine.path.submit(out)
        for follower in self._followers:
            follower()
