"""What the other nodes of the mesh can read: a record that one of them would ignore must not be written.

Each node names its abilities when a link begins (`replication.protocol.handshake`), and every record reaches every
node, also through others. So a record of a kind that an older node would pass on without obeying it is written only
when all members have said that they know it; one that was never heard of since this node began counts as old. Pure.
"""

from collections.abc import Iterable
from typing import Final

BURIALS: Final = "attempts"
"""A dead letter and the settle of its message are one record, DEAD. (ATTEMPTS does no harm where it is ignored.)"""


class Abilities:
    """`members` are the other nodes of the peers file."""

    __slots__ = ("_known", "_shared", "members")

    def __init__(self) -> None:
        self.members: frozenset[str] = frozenset()
        self._known: dict[str, frozenset[str]] = {}
        self._shared: dict[str, bool] = {}

    def of_members(self, members: Iterable[str]) -> None:
        """From now on these count, and no others."""
        self.members = frozenset(members)
        self._known = {peer: named for peer, named in self._known.items() if peer in self.members}
        self._shared = {}

    def heard(self, peer: str, named: frozenset[str]) -> None:
        """`peer` says what it can."""
        if peer in self.members and self._known.get(peer) != named:
            self._known[peer] = named
            self._shared = {}

    def have_all(self, ability: str) -> bool:
        """Whether every member has named `ability`."""
        shared = self._shared.get(ability)
        if shared is None:
            shared = all(ability in self._known.get(peer, ()) for peer in self.members)
            self._shared[ability] = shared
        return shared
