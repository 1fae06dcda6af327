"""Membership of one running node: its peers file, its disk and its peers decide; changes become durable, then active.

`Membership` (qmq.model.members) decides which nodes count; here its changes reach receipts, checkpoints, links and the
catalog. A change that arrives in the middle of another decision is applied at once if it can be. Otherwise it waits for
the one task that writes to the catalog: a node counts only after it is durable that it is no learner any more.

Surprising: a data directory may be older than the node's own past. A peer may know more of the node's earlier
incarnations than the directory has. Then the directory is a restored copy, or the disk was replaced or lost what it had
synced. In each case promises may be lost, so the node becomes a learner again.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import trio

from qmq.config import Address, PeersFile
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.retry_until_space import when_space_is_free
from qmq.engine.runtime.waker import Waker
from qmq.errors import NodeRetired
from qmq.model.dots import Origin, Vector
from qmq.model.members import Listing, Membership, Retirement, Standing, majority
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.facts import DISK, LEARNER, SELF_RETIRED, disks_of, retirement_fact, retirements_of
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.store import Store

FAREWELL_SECONDS = 1.0
"""For a retired node to be notified before its links end. It then stops by itself."""

"""Code of the condition."""

UNCONFIRMED = "retirement-unconfirmed"
"""Code of the condition."""

SILENT_SECONDS = 5.0
"""Without a link with a node, before this one agrees that it is retired: a link that breaks and a quick restart take
less. The requested node waits for it, and so does its operator.
"""

AGREED_SECONDS = 600.0
"""For which an operator's `--force` counts, although the node has links."""

OLD_COPY = "an old copy"
REPLACED = "a replaced disk"
"""Values of the fact LEARNER, for the condition at a later start; it has another one in a new mesh, too."""

IS_OLD_COPY = (
    "the data directory of this node is an old copy, or the disk lost what it had synced. "
    "It is a learner until it has what a majority of the others has"
)
IS_REPLACED = (
    "the mesh knows this node, but its data directory began empty: a replaced disk. It is a learner "
    "until it has what a majority of the others has"
)

POLL_AGAIN_SECONDS = 1.0
"""While peers report that a node is retired, and this one does not agree yet."""

log = logging.getLogger("qmq.model.members")


def listing_of(peers: PeersFile) -> Listing:
    names = frozenset(peer.name for peer in peers.nodes)
    return Listing(peers.version, names, names.difference(peers.with_disk))


def membership_at_start(store: Store, node: str, peers: PeersFile | None) -> Membership:
    """The members as the peers file and the disk say. Raises NodeRetired."""
    facts = store.catalog.facts()
    if SELF_RETIRED in facts:
        raise NodeRetired(node, facts[SELF_RETIRED])
    return Membership(
        node,
        listing_of(peers) if peers is not None else Listing(0, frozenset({node})),
        disk=store.recovered.identity.uuid,
        is_learner=LEARNER in facts,
        retired=retirements_of(facts),
    )


class MembershipFollower(Protocol):
    """What depends on the members of the mesh (`qmq.mesh.link_reports`)."""

    def count_copies_of(self, peer: str) -> None:
        """Let receipts use what is durable on `peer`, if it counts."""

    def rules_changed(self) -> None:
        """Levels that no policy names may have changed."""

    def members_changed(self) -> None: ...


@dataclass(eq=False, repr=False)
class LiveMembership:
    """`membership`, of `membership_at_start`, is live: links and receipts read it."""

    _engine: EngineParts
    _node: NodeBasics
    _mesh: Mesh
    membership: Membership
    _peers: PeersFile | None
    _seals: Seals
    _stop: Callable[[], None]

    def __post_init__(self) -> None:
        catalog = self._engine.store.catalog
        facts = catalog.facts()
        self._followers: list[MembershipFollower] = []
        self._learning = ConditionGroup(self._node, "new-disk")
        self._replaced = ConditionGroup(self._node, "new-disk")
        self._restored = ConditionGroup(self._node, "old-disk")
        self._new_disks: dict[str, str] = {}
        """Peer → the text of its condition."""
        self._disks = disks_of(facts)
        self._incarnations = frozenset(catalog.incarnations())
        """Incarnations of this node on this directory. No other node can have had more of them than this directory had
        when it opened.
        """
        self._had = {**dict.fromkeys(self._incarnations, 0), **self._engine.store.journal.vector()}
        self._linked: frozenset[str] = frozenset()
        self._unlinked_at: dict[str, float] = {}
        self._began = math.inf
        self._forced_until: dict[str, float] = {}
        self._unconfirmed = ConditionGroup(self._node, UNCONFIRMED)
        self.retired_because = ""
        """Why this node is retired, so that it stops; "": it is not."""
        self._refused_by: set[str] = set()
        # Facts to write, in this order, and the callbacks for when they are written.
        self._facts: dict[str, str | None] = {}
        self._are_written = True
        self._wrote = trio.lowlevel.ParkingLot()
        self._waker = Waker()

    def report_to(self, follower: MembershipFollower) -> None:
        """Report changes to `follower` from now on."""
        self._followers.append(follower)

    async def run(self) -> None:
        """Write facts and apply them until cancelled. Raises LogBroken when the disk refuses."""
        self._began = trio.current_time()
        if self.membership.is_learner:
            learns_after = self._engine.store.catalog.facts().get(LEARNER)
            if learns_after == OLD_COPY:
                self._restored.show([IS_OLD_COPY])
            elif learns_after == REPLACED:
                self._replaced.show([IS_REPLACED])
        while True:
            await self._waker.wait(POLL_AGAIN_SECONDS if self.membership.retirements_reported() else math.inf)
            self._check_retirements()
            await self._write_facts()
            if self.retired_because:
                self._stop()
            if self.membership.has_learnt:
                await self._become_whole()

    def remember(self, facts: dict[str, str | None]) -> None:
        """Write these facts to the catalog soon."""
        self._facts.update(facts)
        self._are_written = False
        self._waker.wake()

    async def written(self) -> None:
        """Wait until the catalog has all facts passed to `remember`."""
        while not self._are_written:
            await self._wrote.park()

    async def _write_facts(self) -> None:
        if self._facts:
            facts, self._facts = self._facts, {}
            await when_space_is_free(self._engine.environment, partial(self._engine.store.catalog.set_facts, facts))
        self._are_written = not self._facts
        self._wrote.unpark_all()

    # Reports of peers

    def membership_received(self, peer: str, standing: Standing) -> None:
        """See `LinkFollower.membership_received`."""
        membership = self.membership
        counted, heard_of = membership.counts(peer), membership.heard_of
        membership.hear(peer, standing)
        known = self._disks.get(peer)
        if standing.disk and known != standing.disk:
            if known is not None and standing.is_learner and peer in membership.voting_peers:
                self._new_disks[peer] = (
                    f"{peer} has another data directory than before; it does not count as a copy and has no vote until "
                    "it has what a majority of the others has"
                )
                self._learning.show([*self._new_disks.values()])
            self._disks[peer] = standing.disk
            self.remember({DISK + peer: standing.disk})
        self._check_retirements()
        self._waker.wake()  # Check again later, in case a retirement is in dispute.
        if counted != membership.counts(peer):
            log.info("= %s %s", peer, "is a learner: it does not count" if counted else "counts from now on")
            if not counted and peer in self._new_disks:
                del self._new_disks[peer]
                self._learning.show([*self._new_disks.values()])
            for follower in self._followers:
                follower.count_copies_of(peer)
        self._check_learning()
        for follower in self._followers:
            follower.rules_changed()
        self._mesh.membership_changed()
        if membership.heard_of != heard_of:
            self._send_membership()
        self._check_meeting(peer)

    def knows(self, peer: str, vector: Vector) -> None:
        """`peer` had this vector when the link to it began."""
        self.membership.meets(peer)
        lost = [origin for origin, last in vector.items() if self._has_forgotten(origin, last)]
        if not lost:
            return
        self._had.update({origin: vector[origin] for origin in lost})
        if self.membership.is_learner:
            if not self._restored.is_shown and self.membership.has_disk:
                self._replaced.show([IS_REPLACED])
                self.remember({LEARNER: REPLACED})
            return
        self._restored.show(
            self.membership.has_disk
            * [
                f"{peer} knows more of incarnation {lost[0]} of this node than its data directory: "
                "an old copy was restored, or the disk lost what it had synced. "
                "It is a learner until it has what a majority of the others has",
            ]
        )
        self.membership.forgets()
        self.membership.meets(peer)
        for other in self.membership.peers:
            self._check_meeting(other)
        self.remember({LEARNER: OLD_COPY})
        self._send_membership()

    def _has_forgotten(self, origin: Origin, last: int) -> bool:
        """Whether this directory once held more of an earlier incarnation of this node, as the data of others shows."""
        engine = self._engine
        if (
            origin.node != engine.broker.origin.node
            or origin == engine.broker.origin
            or origin in self._seals.forgotten
        ):
            return False
        # Of an incarnation on another directory, before this one began empty, others may always have more.
        return origin not in self._had or origin in self._incarnations and last > self._had[origin]

    def caught_up_with(self, peer: str) -> None:
        """Everything that `peer` had when the link began is decided here."""
        engine = self._engine
        incarnations = {o for o in (*engine.path.received_vector(), *self._seals.forgotten) if o.node == peer}
        self.membership.caught_up_with(peer, has_a_past=len(incarnations) > 1)
        self._check_learning()
        self._check_meeting(peer)

    def _check_meeting(self, peer: str) -> None:
        """Records from another learner are not enough while that one still learns."""
        if self.membership.must_reconnect(peer):
            self._mesh.reconnect(peer)

    def _check_learning(self) -> None:
        """A peer was met, or the counting members have changed."""
        if self.membership.has_learnt:
            self._waker.wake()

    async def _become_whole(self) -> None:
        engine = self._engine
        await engine.path.flushed()
        await engine.environment.run_blocking(engine.store.journal.sync)
        await when_space_is_free(engine.environment, partial(engine.store.catalog.set_facts, {LEARNER: None}))
        self._facts.pop(LEARNER, None)  # A link may have begun meanwhile.
        self.membership.learnt()
        self._replaced.show([])
        self._restored.show([])
        log.info(
            "= this node has what a majority of the others had%s",
            ": it counts as a copy from now on" if self.membership.has_disk else "",
        )
        self._send_membership()

    def _send_membership(self) -> None:
        self._mesh.send_membership()

    # Changes of the mesh

    def take_up(self, peers: PeersFile) -> None:
        """Apply a new peers file, already checked against the one before (`qmq.config.peers`)."""
        self._peers = peers
        self.membership.take_up(listing_of(peers))
        self._check_learning()
        self._obey()

    def links_changed(self) -> None:
        """A link began or ended."""
        linked = frozenset(peer.node for peer in self._mesh.present())
        self._unlinked_at.update(dict.fromkeys(self._linked - linked, trio.current_time()))
        self._linked = linked

    def addresses(self, protocol: str) -> dict[str, Address]:
        """Where the peers that have links with this node serve clients of `protocol`, by name."""
        found = {
            peer.name: peer.client if protocol == "stomp" else peer.served.get(protocol)
            for peer in (self._peers.nodes if self._peers is not None else ())
            if peer.name in self._linked
        }
        return {name: address for name, address in found.items() if address is not None}

    def agrees_in(self, name: str) -> float | None:
        """Seconds until this node agrees that `name` has left; None while a link with it is up and it is not forced."""
        now = trio.current_time()
        if self._forced_until.get(name, 0.0) > now:
            return 0.0
        if name in self._linked:
            return None
        return max(0.0, self._unlinked_at.get(name, self._began) + SILENT_SECONDS - now)

    def force(self, name: str) -> None:
        """The operator of this node demands that `name` leaves, even with links up."""
        self._forced_until[name] = trio.current_time() + AGREED_SECONDS

    def _check_retirements(self) -> None:
        """Retirements may be due: peers reported one, time has passed, or a link has begun or ended."""
        membership = self.membership
        if membership.agree({name for name in membership.retirements_reported() if self.agrees_in(name) == 0}):
            self._send_membership()
        for retirement in membership.decided():
            self.retired(retirement)
        self._unconfirmed.show(
            [
                f"{', '.join(sorted(peers))} report {name} as retired, without a majority; this node reaches it"
                for name, peers in membership.retirements_reported().items()
                if name in self._linked
            ]
        )

    def retired(self, retirement: Retirement) -> None:
        """It is decided that a node has left. May come in the middle of a decision, and more than once."""
        if self.membership.retire(replace(retirement, heard_us=self._engine.environment.now_us())):
            kept = self.membership.retired[retirement.node]
            if kept.node == self.membership.node:
                self._leave(f"{kept.adopter} has adopted its messages")
            log.warning("= %s is retired; %s has adopted its messages", kept.node, kept.adopter)
            if self._new_disks.pop(kept.node, None) is not None:
                self._learning.show([*self._new_disks.values()])
            self.remember(retirement_fact(kept))
            self._check_learning()
            self._node.spawn(self._schedule_obey)

    def refused_as_retired(self, peer: str) -> None:
        """`peer` refuses links of this node. A refusal comes before the other side has proven its identity. So one
        refusal is not enough; refusals of a majority are.
        """
        self._refused_by.add(peer)
        if majority(self._refused_by, [names - {self.membership.node} for names in self.membership.lists]):
            self._leave(f"{', '.join(sorted(self._refused_by))} say so")

    def _leave(self, why: str) -> None:
        if not self.retired_because:
            self.retired_because = why
            self._node.raise_condition(
                "retired", f"this node was retired from the mesh ({why}): it stops, and its disk must not come back"
            )
            self.remember({SELF_RETIRED: why})

    async def _schedule_obey(self) -> None:
        """A retired node does not count from now on, and is notified before the links with it end."""
        for follower in self._followers:
            follower.members_changed()
        self._mesh.membership_changed()
        self._mesh.send_membership()
        await trio.sleep(FAREWELL_SECONDS)
        self._obey()

    def _obey(self) -> None:
        for follower in self._followers:
            follower.members_changed()
        if self._peers is not None:
            self._mesh.take_up(self._peers)
