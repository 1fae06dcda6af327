"""How long a node that starts delivers nothing of its queues: until each peer has told what it settled and holds.

The node does not remember to whom its earlier life had lent what. Each peer that follows it says so in the first frame
of its link (`Held`), and its records say what was settled; what is delivered before that may be with another consumer.
Peers that are down must not keep a queue shut: one without a link is waited for a little longer than a dial takes, and
one with a link as long as a takeover waits for the same answer.
"""

from typing import TYPE_CHECKING, Final

import trio

from qmq.server.membership.takeover_sync import HOLDS_PART

if TYPE_CHECKING:
    from qmq.server.node import Node

SPARE_SECONDS: Final = 4.0
"""Beyond `redial_seconds_max`: a dial, a handshake and a first frame on a busy machine."""


class StartHold:
    """`is_over` once and for all, in this life."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.is_over = False
        self._said: set[str] = set()
        # Peer → when its first link to this node was seen.
        self._linked_at: dict[str, float] = {}
        self._wake = trio.Event()

    def wake(self) -> None:
        """A link began or caught up, or the members have changed."""
        self._wake.set()

    def held_came(self, peer: str) -> None:
        """`peer` has told what its consumers hold."""
        self._said.add(peer)
        self.wake()

    async def run(self) -> None:
        """Return when nobody is waited for any more."""
        began = trio.current_time()
        while (until := self._until(began)) > trio.current_time():
            self._wake = trio.Event()
            with trio.move_on_at(until):
                await self._wake.wait()
        self.is_over = True

    def _until(self, began: float) -> float:
        node, settings = self._node, self._node.settings.mesh
        linked = set() if node.mesh is None else node.mesh.followers()
        for peer in linked:
            self._linked_at.setdefault(peer, trio.current_time())
        until = began
        for peer in node.peer_names:
            if peer in self._said and node.has_caught_up_with(peer):
                continue
            if peer in linked:
                until = max(until, self._linked_at[peer] + HOLDS_PART * settings.takeover_after_seconds)
            else:
                until = max(until, began + settings.redial_seconds_max + SPARE_SECONDS)
        return until
