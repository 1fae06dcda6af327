"""Effects of decisions that go to peers over links, besides what the journal carries: the mesh side of the commit path.

What needs no durability leaves before the commit, everything else after it. Nothing here waits or fails: what a link
that is down does to each of them is in `qmq.replication.mesh`.
"""

from qmq.broker.consumers.outcome import Outcome
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.handshake import SHARED_BODIES


class MeshDeliveries:
    """See `qmq.engine.commit_path.PeerDeliveries`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    @property
    def shares_bodies(self) -> bool:
        return SHARED_BODIES in self._mesh.features_of_all

    def before_commit(self, out: Outcome) -> None:
        mesh = self._mesh
        if out.interest_changes:
            mesh.routes.own_changed(out.interest_changes)
        if out.offers:
            mesh.offer(out.offers)
        for peer, messages in out.peer_topics.items():
            mesh.send_topics(peer, messages)
        for origin, messages in out.peer_replies.items():
            mesh.send_replies(origin, messages)
        for peer, dots in out.peer_settled_now.items():
            mesh.settled(peer, dots)
        for peer, returns in out.peer_returns.items():
            mesh.give_back(peer, returns)

    def after_commit(self, out: Outcome) -> None:
        mesh = self._mesh
        for peer, messages in out.peer_deliveries.items():
            mesh.lend(peer, messages)
        for peer, names in out.peer_forgotten.items():
            mesh.forget(peer, names)
        for peer, queues in out.peer_waiting.items():
            mesh.waiting(peer, queues)
        for peer, dots in out.peer_settled_after.items():
            mesh.settled(peer, dots)
