"""Messages of an owner on their way into this node's queues, once a majority lets this node serve them.

What the voters had durably is fetched, a checkpoint brings the rows of the owner into the queue store, the other nodes
say what their consumers hold, and then the rows are read like those of an earlier life of this node. An owner that is
back takes the same road, after the one that served it has stopped at its request.

Who hears of the new term lets go of what waits for its consumers and says what these have (`Holds`). Of what was lent
before, by this node or by the one that served until then, everything else was seen by nobody. It is taken back at that
word, not before: until then it counts as being with that peer.
"""

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.dots import Dot, Vector, covers
from qmq.errors import DiskFull

if TYPE_CHECKING:
    from qmq.server.membership.takeover import Takeover
    from qmq.server.node import Node

HOLDS_PART: Final = 1 / 5
"""Of `takeover_after_seconds`: how long who takes over waits to hear what consumers of others have."""

ARRIVAL_FACTOR: Final = 2
"""Times `takeover_after_seconds`, after which a takeover that has not come to its end is given up and begun anew."""

log = logging.getLogger("qmq.takeover")


class SyncedPeer:
    """Those of one owner, in term `number`; `needs` is what must be here first."""

    def __init__(self, number: int, needs: Vector) -> None:
        self.number = number
        self.needs = needs
        self.said: set[str] = set()
        """Peers that have heard of the term, and said what their consumers have."""
        self.heard = trio.Event()


class TakeoverSync:
    """By owner. Each ends with `Takeover.has_begun`, or with `Takeover.could_not_begin`."""

    def __init__(self, node: "Node", takeover: "Takeover", takeover_after_seconds: float) -> None:
        self._node = node
        self._takeover = takeover
        self._after = takeover_after_seconds
        self._takeover_sync: dict[str, SyncedPeer] = {}

    def __contains__(self, owner: str) -> bool:
        return owner in self._takeover_sync

    def begin(self, owner: str, number: int, needs: Vector, lent: Mapping[str, list[Dot]]) -> None:
        """Bring the messages of `owner` in, in term `number`. `lent` is who has what, as the node says that has served
        them until now; nothing when that one is silent."""
        handoff = self._node.broker.queues.handoff
        # What this node may have of these messages is from before, and others have settled some since.
        handoff.cede(owner, self._node.origin.node)
        handoff.forget_before(owner)
        arrival = self._takeover_sync[owner] = SyncedPeer(number, needs)
        handoff.expect(owner)
        for peer, dots in lent.items():
            if peer != self._node.origin.node:
                handoff.hold_elsewhere(peer, dots)
        self._node.spawn(partial(self._bring_in, owner, arrival))

    def go_on(self, owner: str) -> None:
        """This node serves `owner` without a break, in a new term from now on."""
        self._node.broker.queues.handoff.begin_anew(owner)

    def end(self, owner: str) -> None:
        """Somebody else may serve `owner`."""
        self._takeover_sync.pop(owner, None)
        self._node.broker.queues.handoff.forget_before(owner)

    def peer_holds(self, peer: str, owner: str, number: int, dots: list[Dot], out: Outcome) -> None:
        """`peer` has heard of the term, which is the one that this node obeys, and consumers there have these."""
        handoff = self._node.broker.queues.handoff
        arrival = self._takeover_sync.get(owner)
        if arrival is not None and arrival.number == number:
            handoff.hold_only(peer, owner, dots)
            arrival.said.add(peer)
            arrival.heard.set()
        elif owner in handoff.serves:
            handoff.hold_elsewhere(peer, dots)
            self._take_back(owner, peer, dots, out)

    def _take_back(self, owner: str, peer: str, held: Collection[Dot], out: Outcome) -> None:
        broker = self._node.broker
        kept = set(held)
        before = broker.queues.handoff.take_before(peer, owner)
        broker.lending.returned(peer, [(dot, Back.UNSEEN, None) for dot in before if dot not in kept], out)

    async def _bring_in(self, owner: str, arrival: SyncedPeer) -> None:
        """Begin to hand out the messages of `owner`, unless somebody else may by then."""
        node = self._node
        handoff = node.broker.queues.handoff
        try:
            with trio.move_on_after(ARRIVAL_FACTOR * self._after):
                if await self._fetch(owner, arrival):
                    async with node.queue_pager.load_lock:
                        if self._still(owner, arrival):
                            self._adopt(owner, arrival)
        except DiskFull as error:
            node.alarm("takeover", f"no room to take over the messages of {owner}: {error}")
        finally:
            if self._takeover_sync.get(owner) is arrival:
                del self._takeover_sync[owner]
            if owner not in handoff.serves and owner not in self._takeover_sync:
                handoff.abandon(owner)
                self._takeover.could_not_begin(owner, arrival.number)
        self._takeover.wake()

    async def _fetch(self, owner: str, arrival: SyncedPeer) -> bool:
        """Have everything that the voters had, in the store, and hear what consumers of others hold.

        False when it was given up half-way, because this node stood still and its lease was over: it may have a new one
        the next moment, and would hand out what is not here.

        A voter may still name dead incarnations that this node has forgotten: nothing of them comes ever again.
        """
        node = self._node
        while not covers(node.durable_vector(), node.incarnation_gc.seals.without(arrival.needs)):
            await node.commits.grew(node.committed_end())
        if not self._still(owner, arrival):
            return False
        node.broker.queues.handoff.gather(owner)
        await node.checkpoints.checkpoint()
        with trio.move_on_after(HOLDS_PART * self._after):
            while not self._expected().issubset(arrival.said):
                arrival.heard = trio.Event()
                await arrival.heard.wait()
        return True

    def _still(self, owner: str, arrival: SyncedPeer) -> bool:
        is_member = owner in self._node.membership.members
        return self._takeover_sync.get(owner) is arrival and is_member and self._takeover.claims(owner, arrival.number)

    def _expected(self) -> set[str]:
        """Peers that will say what their consumers hold. Others do so when they begin to follow this node."""
        mesh = self._node.mesh
        return set() if mesh is None else mesh.aware_followers()

    def _adopt(self, owner: str, arrival: SyncedPeer) -> None:
        node = self._node
        handoff = node.broker.queues.handoff
        out = Outcome(now_us=node.environment.now_us())
        elsewhere = handoff.with_peers(owner)
        for peer in elsewhere:
            if node.mesh is not None:
                node.mesh.check_absent(peer)
        # Who says it later than this was waited for.
        handoff.was_lent_before(owner, {peer: dots for peer, dots in elsewhere.items() if peer not in arrival.said})
        node.broker.queues.held = True
        handoff.adopt(owner, node.store.tombstones, out)
        node.queue_pager.sweep_at(node.environment.now_us())
        self._takeover.has_begun(owner, arrival.number, out)
        node.submit(out)
