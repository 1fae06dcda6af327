"""Ranges that peers cannot send from their journals: wait, request a snapshot of the range, or give up.

A gap that the origin's own node reports counts at once. A gap from another node counts only if no other reachable peer
may still have the records: peers that have more of the origin and reported no gap come first. Then the peer that
reported the gap is asked for what its stores still hold (`NextRepair`). Only what every such peer does not have is
given up, exactly up to that sequence.

A hole is damage. A damaged node may have the records in its stores, so it is asked too, after the other peers. If it
does not have them, nothing is given up: the range stays unknown until another node sends it. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from qmq.model.dots import Origin, Vector
from qmq.storage.format.missing_range import MissingRange


class JournalReach(NamedTuple):
    """One peer that this node pulls from: its incarnation, and its vector when the link began."""

    origin: Origin
    had: Vector


class NextRepair(NamedTuple):
    """Ask `peers` for what they still hold of `missing`; without any, no reachable node holds its records."""

    missing: MissingRange
    peers: Sequence[str]


class _Notice(NamedTuple):
    through: int
    is_hole: bool


class Gaps:
    """Gaps of the open links. A notice of a peer ends with its link; the next link repeats it."""

    def __init__(self) -> None:
        self._notices: dict[Origin, dict[str, _Notice]] = {}
        # Up to where the stores of a peer have nothing either.
        self._lost: dict[tuple[Origin, str], int] = {}

    @property
    def origins(self) -> list[Origin]:
        """Origins with a missing range."""
        return list(self._notices)

    def report(self, peer: str, origin: Origin, through: int, *, is_hole: bool = False) -> None:
        """`peer` cannot send records of `origin` up to `through` from its journal."""
        known = self._notices.setdefault(origin, {}).get(peer)
        if known is None or known.through < through:
            self._notices[origin][peer] = _Notice(through, is_hole)

    def lost(self, peer: str, origin: Origin, through: int) -> None:
        """`peer` was asked and has nothing up to `through`."""
        self._lost[origin, peer] = max(through, self._lost.get((origin, peer), 0))

    def postpone(self, origin: Origin) -> None:
        """Nothing of it came now: gaps of other origins are next."""
        if origin in self._notices:
            self._notices[origin] = self._notices.pop(origin)

    def forget(self, peer: str) -> None:
        """The link to `peer` has ended."""
        for notices in self._notices.values():
            notices.pop(peer, None)
        self._lost = {key: through for key, through in self._lost.items() if key[1] != peer}

    def next(
        self, have: Vector, reach: Mapping[str, JournalReach], forgotten: Collection[Origin] = ()
    ) -> NextRepair | None:
        """The next action; None: nothing to do before something changes. Forgets ranges that are filled, and origins
        that the mesh has `forgotten` since the notice: no node has records of them."""
        found: NextRepair | None = None
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
    ) -> NextRepair | None:
        own = any(reach[peer].origin == origin and not notice.is_hole for peer, notice in notices.items())
        others = any(
            peer not in notices and peer_reach.had.get(origin, 0) > known for peer, peer_reach in reach.items()
        )
        if others and not own:
            return None
        able = [peer for peer in notices if self._lost.get((origin, peer), 0) <= known]
        if able:
            # Peers without damage first, then the origin's own node, then the one that has most.
            best = max(
                able, key=lambda peer: (not notices[peer].is_hole, reach[peer].origin == origin, notices[peer].through)
            )
            return NextRepair(MissingRange(origin, known, notices[best].through), [best])
        if any(notice.is_hole for notice in notices.values()):
            return None
        through = min(min(notice.through, self._lost[origin, peer]) for peer, notice in notices.items())
        return NextRepair(MissingRange(origin, known, through), [])
