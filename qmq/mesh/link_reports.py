"""Passes reports of links and members to the parts that act on them (`qmq.replication.links.host.LinkFollower`).

Each method returns at once, because reports come in the middle of other decisions. Parts of rooms above this one follow
by `follow`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from qmq.engine.commit.receipts import Receipts
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.waker import Waker
from qmq.gateways.rules import Rules
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.catch_up import CatchUp
from qmq.model.dots import Origin, Vector
from qmq.model.members import Standing
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.frames import PeerRequest

Follower = Callable[[], None]


@dataclass(eq=False, repr=False)
class LinkReports:
    """Also what status and settings ask about links."""

    _engine: EngineParts
    _mesh: Mesh
    _members: LiveMembership
    _rpc: PeerRpc
    _catch_up: CatchUp
    _start_hold: StartHold
    _receipts: Receipts
    _rules: Rules

    def __post_init__(self) -> None:
        self._links: list[Follower] = []
        self._caught_up: list[Callable[[str], None]] = []
        self._durable: list[Follower] = []
        self._membership: list[Follower] = []
        self._interest_heard = Waker()

    def follow(
        self,
        *,
        links: tuple[Follower, ...] = (),
        caught_up: tuple[Callable[[str], None], ...] = (),
        durable: tuple[Follower, ...] = (),
        members: tuple[Follower, ...] = (),
    ) -> None:
        """Call these from now on: when links have changed, when this node has caught up with a peer, when a peer has
        more on its disk, and when the members have changed.
        """
        self._links += links
        self._caught_up += caught_up
        self._durable += durable
        self._membership += members

    # Links

    def links_changed(self) -> None:
        for follower in self._links:
            follower()

    def link_caught_up(self, peer: str) -> None:
        for follower in self._caught_up:
            follower(peer)

    def schedule_repair(self) -> None:
        self._catch_up.schedule()

    def held_came(self, peer: str) -> None:
        self._start_hold.held_received(peer)

    def request_received(self, peer: Origin, number: int, request: PeerRequest, way: LinkOutbox) -> None:
        self._rpc.request_received(peer, number, request, way)

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        self._rpc.response_received(peer, number, answer)

    def interest_progressed(self) -> None:
        self._receipts.interest_progressed()
        self._interest_heard.wake()

    async def learn_interest(self, seconds: float) -> None:
        """Wait until a topic message would reach its subscribers on other nodes, at most `seconds`."""
        with trio.move_on_after(seconds):
            while not self._mesh.knows_interest:
                await self._interest_heard.wait()

    def late_peers(self) -> Mapping[str, Vector]:
        """The linked peers that have reported more than this node has, and what of it is missing here."""
        have, forgotten = self._engine.path.received_vector(), self._engine.broker.forgotten
        late: dict[str, Vector] = {}
        for peer in self._mesh.linked():
            reported = self._engine.checkpoints.members.get(peer, {})
            missing = {
                origin: last
                for origin, last in reported.items()
                if have.get(origin, 0) < last and origin not in forgotten
            }
            if missing:
                late[peer] = missing
        return late

    # Members

    def peer_knows(self, peer: str, vector: Vector) -> None:
        self._members.knows(peer, vector)

    def refused_as_retired(self, peer: str) -> None:
        self._members.refused_as_retired(peer)

    def membership_received(self, peer: str, standing: Standing) -> None:
        self._members.membership_received(peer, standing)

    def peer_durable(self, peer: str, vector: Vector) -> None:
        engine = self._engine
        if peer in engine.checkpoints.members:
            engine.checkpoints.members[peer] = vector
            engine.broker.borrowing.owner_has(peer, vector.get(engine.broker.origin, 0))
            self.count_copies_of(peer)
            for follower in self._durable:
                follower()

    def count_copies_of(self, peer: str) -> None:
        """Let receipts use what is durable on `peer`, if it counts."""
        engine = self._engine
        durable = engine.checkpoints.members.get(peer, {}) if self._members.membership.counts(peer) else {}
        self._receipts.peer_durable(peer, durable.get(engine.broker.origin, 0))

    def rules_changed(self) -> None:
        """Levels that no policy names may have changed."""
        self._rules.members_changed(len(self._members.membership.voting_peers))

    def members_changed(self) -> None:
        """Apply the present members to all parts that depend on them."""
        checkpoints, names = self._engine.checkpoints, self._members.membership.peers
        checkpoints.members_changed(names)
        self._receipts.enrol(names)
        self.rules_changed()
        for follower in self._membership:
            follower()
