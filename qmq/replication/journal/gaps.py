"""What peers cannot send from their journals, and what follows: wait, ask for what is left, give up.

A gap is believed at once only when the origin's own node tells it. From another node it counts when no other peer that
can be reached may still have the records: those who have more of the origin and have told no gap are waited for. Then
the peer that told it is asked for what its stores have left (`WantedRange`); only what every such peer knows nothing of
is given up (`GiveUp`), exactly so far.

A hole is damage. A damaged node may have the records in its stores, so it is asked like the others, after them; but
what it does not know, nobody gives up for it: it is unknown, and stays so until somebody brings it. Pure.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from qmq.dots import Origin, Vector


class JournalReach(NamedTuple):
    """One peer that we follow now: its incarnation, and what it had when the link began."""

    origin: Origin
    had: Vector


class WantedRange(NamedTuple):
    """Ask `peer` what is left of `origin` after `after`, up to `through`."""

    peer: str
    origin: Origin
    after: int
    through: int


class GiveUp(NamedTuple):
    """Records of `origin` up to `through` are kept by nobody who can be reached."""

    origin: Origin
    through: int


class _Notice(NamedTuple):
    through: int
    is_hole: bool


class Gaps:
    """Of the links that are open now: what a peer has told ends with its link; the next one tells it again."""

    def __init__(self) -> None:
        self._notices: dict[Origin, dict[str, _Notice]] = {}
        # Up to where a peer knows nothing either.
        self._lost: dict[tuple[Origin, str], int] = {}

    @property
    def origins(self) -> list[Origin]:
        """Of which something is missing."""
        return list(self._notices)

    def report(self, peer: str, origin: Origin, through: int, *, is_hole: bool = False) -> None:
        """`peer` cannot send records of `origin` up to `through` from its journal."""
        known = self._notices.setdefault(origin, {}).get(peer)
        if known is None or known.through < through:
            self._notices[origin][peer] = _Notice(through, is_hole)

    def lost(self, peer: str, origin: Origin, through: int) -> None:
        """`peer` was asked and knows nothing of what comes up to `through`."""
        self._lost[origin, peer] = max(through, self._lost.get((origin, peer), 0))

    def forget(self, peer: str) -> None:
        """The link to `peer` has ended."""
        for notices in self._notices.values():
            notices.pop(peer, None)
        self._lost = {key: through for key, through in self._lost.items() if key[1] != peer}

    def next(
        self, have: Vector, reach: Mapping[str, JournalReach], forgotten: Collection[Origin] = ()
    ) -> WantedRange | GiveUp | None:
        """What to do now; None: nothing, or nothing before something changes. Forgets what has been filled, and what
        the mesh has `forgotten` since it was told: nobody has anything of that."""
        found: WantedRange | GiveUp | None = None
        for origin in list(self._notices):
            known = have.get(origin, 0)
            notices = {
                peer: notice
                for peer, notice in self._notices[origin].items()
                if notice.through > known and peer in reach
            }
            if not notices or origin in forgotten:
                del self._notices[origin]
                self._lost = {key: through for key, through in self._lost.items() if key[0] != origin}
            else:
                self._notices[origin] = notices
                found = found or self._next_of(origin, known, notices, reach)
        return found

    def _next_of(
        self, origin: Origin, known: int, notices: dict[str, _Notice], reach: Mapping[str, JournalReach]
    ) -> WantedRange | GiveUp | None:
        own = any(reach[peer].origin == origin and not notice.is_hole for peer, notice in notices.items())
        others = any(
            peer not in notices and peer_reach.had.get(origin, 0) > known for peer, peer_reach in reach.items()
        )
        if others and not own:
            return None
        able = [peer for peer in notices if self._lost.get((origin, peer), 0) <= known]
        if able:
            # Who has no damage first, then the origin's own node, then who has most.
            best = max(
                able, key=lambda peer: (not notices[peer].is_hole, reach[peer].origin == origin, notices[peer].through)
            )
            return WantedRange(best, origin, known, notices[best].through)
        if any(notice.is_hole for notice in notices.values()):
            return None
        return GiveUp(origin, min(min(notice.through, self._lost[origin, peer]) for peer, notice in notices.items()))
