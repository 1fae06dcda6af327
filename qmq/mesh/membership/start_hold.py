"""The start hold: a starting node delivers nothing of its queues until each peer has reported its settles and held
messages.

The node does not store which peers borrowed messages from its earlier incarnation. Each peer that follows it reports
them in the first frame of its link (`Held`), and its records show what was settled. A message delivered before that may
be with another consumer. Peers that are down must not keep a queue paused. A peer without a link is waited for a little
longer than a dial takes. A peer with a link is waited for as long as in a takeover.
"""

from dataclasses import dataclass
from typing import Final

import trio

from qmq.broker.broker import Broker
from qmq.config import MeshSettings
from qmq.engine.runtime.waker import Waker
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.membership.takeover_sync import HOLDS_PART
from qmq.mesh.repair.catch_up import CatchUp
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh

SPARE_SECONDS: Final = 4.0
"""Beyond `redial_seconds_max`: a dial, a handshake and a first frame on a busy machine."""


@dataclass(eq=False, repr=False)
class StartHold:
    """`is_over` stays true once set, in this incarnation."""

    _broker: Broker
    _mesh: Mesh
    _membership: Membership
    _takeover: Takeover
    _catch_up: CatchUp
    _settings: MeshSettings

    def __post_init__(self) -> None:
        self.is_over = False
        self._reported: set[str] = set()
        # Peer → the time of its first link to this node.
        self._linked_at: dict[str, float] = {}
        self._waker = Waker()

    def wake(self) -> None:
        """A link began or caught up, or the members have changed."""
        self._waker.wake()

    def held_received(self, peer: str) -> None:
        """`peer` has reported what its consumers hold."""
        self._reported.add(peer)
        self.wake()

    async def run(self) -> None:
        """Hold until no peer is waited for any more, then release."""
        began = trio.current_time()
        while (until := self._until(began)) > trio.current_time():
            await self._waker.wait_until(until)
        self.is_over = True
        self.release()

    def hold_back(self) -> None:
        """Deliver nothing of the queues until `release`: their messages may be settled."""
        takeover = self._takeover
        if not takeover.is_starting:
            takeover.is_starting = True
            takeover.poll()

    def release(self) -> None:
        """Deliver again, if nothing else pauses the queues."""
        if self._broker.queues.held and self.is_over and not self._catch_up.is_stale:
            self._takeover.is_starting = False
            self._takeover.poll()

    def _until(self, began: float) -> float:
        settings, linked = self._settings, self._mesh.followers()
        for peer in linked:
            self._linked_at.setdefault(peer, trio.current_time())
        until = began
        for peer in self._membership.peers:
            if peer in self._reported and self._mesh.has_caught_up_with(peer):
                continue
            if peer in linked:
                until = max(until, self._linked_at[peer] + HOLDS_PART * settings.takeover_after_seconds)
            else:
                until = max(until, began + settings.redial_seconds_max + SPARE_SECONDS)
        return until
