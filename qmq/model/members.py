"""The members of the mesh that count, as one node sees them: members, learners, retired nodes, and majorities.

Open to every layer, like `cursors`. The peers file names the nodes; three things change what that means:

- A **learner** does not count: its disk began empty, so it has forgotten what an earlier disk of its name promised. It
  has no vote, and receipts do not count it as a copy. It is one until it has, durably, all that a majority of the
  others had when it met them: every majority that an earlier disk was part of has a node among those. Another learner
  with an incarnation that the mesh knows has forgotten too, so it does not count here. When it has learnt, the link
  with it begins again. Only if so many have forgotten that no majority is left, learners count for each other.
- A **retired** node is in no list, whatever the files contain, and its name is not used again. It is retired when a
  majority of the remaining nodes votes for it: one peer alone retires no member. This node's own vote counts once it
  agrees, because the node has been silent for some time or because an operator ordered it.
- A node **without a disk** serves its own messages, but has no vote and is no copy, ever. It is in no list over which
  majorities are counted. Each start is that of a learner with a replaced disk; others take it for one all the time.
- While the files of two nodes **differ**, a majority is one of both lists, so the old and the new mesh cannot decide
  apart from each other.

Surprising: a learner reports that itself and is believed, because no other node can know what its disk has forgotten.
The last report of a peer counts also while no link to it is up. Pure: the caller makes changes durable.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from qmq.model.dots import Vector, merge


class Listing(NamedTuple):
    """A peers file, as far as counting goes."""

    version: int
    names: frozenset[str]
    without_disk: frozenset[str] = frozenset()
    """Those of `names` that keep everything in memory. Our own file says so, not a report: until it does, such a node
    is missing in majorities, and never more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """`node` has left the mesh for good, and `adopter` serves the queue messages that it leaves behind."""

    node: str
    adopter: str
    sealed: Vector = field(default_factory=dict)
    """Its incarnations, and how far any node that could be reached had their records."""
    heard_us: int = field(default=0, compare=False)
    """When this node heard of it, by its own clock: all that `sealed` covers is older. 0: it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a node reports to its peers about itself."""

    listing: Listing
    disk: str
    """The uuid of its data directory, drawn when that was empty."""
    is_learner: bool
    retired: tuple[Retirement, ...] = ()
    heard_of: Mapping[str, int] = field(default_factory=dict)
    """Nodes of lists that peers have reported, each with the number of hops: this node accepts their records and sends
    them on."""


HOPS_MAX: Final = 8
"""Hops of a reported name: as many as a mesh has nodes. Nodes that repeat to each other a name that no list has count
up to this bound, and forget it."""

UNLISTED_MAX: Final = 900
"""Retired nodes, beyond which none that is in no list is taken from a peer: a frame may name few more."""


def majority(voters: Collection[str], lists: Iterable[Collection[str]]) -> bool:
    """Whether `voters` are more than half of every one of `lists`. False without any list."""
    voting = frozenset(voters)
    counted = [2 * len(voting.intersection(names)) > len(names) for names in lists]
    return bool(counted) and all(counted)


class Membership:
    """The members as `node` knows them."""

    def __init__(
        self,
        node: str,
        listing: Listing,
        *,
        disk: str = "",
        is_learner: bool = False,
        retired: Iterable[Retirement] = (),
    ) -> None:
        self.node = node
        self.listing = listing
        self.disk = disk
        self.retired = {retirement.node: retirement for retirement in retired}
        self.members = listing.names.difference(self.retired)
        """The nodes of our own peers file that are not retired."""
        self.is_learner = is_learner
        """As in `Standing`."""
        self._standings: dict[str, Standing] = {}
        self.lists: list[frozenset[str]] = []
        """Every different list of members with disks that a member goes by; our own is the first."""
        self._listed: set[str] = set()
        """The members of all lists, with and without disks."""
        self._count_lists()
        # Peers whose records at the begin of the link are here, and of these, those that had forgotten nothing.
        self._met: set[str] = set()
        self._learnt_from: set[str] = set()
        # Peers that have learnt since their link began, and of these, those whose link must begin again.
        self._turned: set[str] = set()
        self._must_reconnect: set[str] = set()
        # Retirements that peers report and this node agrees with, until they are decided.
        self._agreed: dict[str, Retirement] = {}
        self._forgetful: set[str] = set()
        """Learners, as last reported, with an earlier incarnation that the mesh knows."""
        if is_learner and self.has_disk and not self.voting_peers:
            self.is_learner = False
        if is_learner and not self.peers:
            self.is_learner = False

    # Members

    @property
    def peers(self) -> list[str]:
        """The members but ourselves, by name."""
        return sorted(self.members - {self.node})

    @property
    def voting_peers(self) -> list[str]:
        """Those of `peers` that have disks, which count as copies and have votes once they are no learners."""
        return sorted(self.members - self.listing.without_disk - {self.node})

    @property
    def has_disk(self) -> bool:
        """Whether this node can ever count."""
        return self.node not in self.listing.without_disk

    @property
    def members_fewest(self) -> int:
        """How many members with disks the smallest list has."""
        return min(map(len, self.lists))

    @property
    def origins_known(self) -> frozenset[str]:
        """Nodes whose records are accepted: those of any list, because another node may have read the new file first,
        also one that only peers reach; and retired nodes, because their records stay."""
        return self.listing.names.union(self.retired, self.heard_of)

    @property
    def heard_of(self) -> dict[str, int]:
        """As in `Standing`."""
        found: dict[str, int] = {}
        for one in self._standings.values():
            further = {name: hops + 1 for name, hops in one.heard_of.items()} | dict.fromkeys(one.listing.names, 1)
            for name, hops in further.items():
                if hops <= HOPS_MAX and name not in self.listing.names and name not in self.retired:
                    found[name] = min(hops, found.get(name, hops))
        return found

    def is_retired(self, node: str) -> bool:
        return node in self.retired

    # Votes

    def is_majority(self, voters: Collection[str]) -> bool:
        """Whether these nodes may decide for the mesh."""
        return majority(voters, self.lists)

    @property
    def may_vote(self) -> bool:
        """Whether this node's own vote counts."""
        return not self.is_learner and self.has_disk and self.node in self.members

    def counts(self, peer: str) -> bool:
        """Whether what `peer` has durably is a copy. A peer that has not sent its standing yet counts."""
        standing = self._standings.get(peer)
        has_vote = peer in self.members and peer not in self.listing.without_disk
        return has_vote and (standing is None or not standing.is_learner)

    def standing_of(self, peer: str) -> Standing | None:
        """The last report of `peer`."""
        return self._standings.get(peer)

    @property
    def standing(self) -> Standing:
        """What this node reports to its peers."""
        return Standing(
            listing=self.listing,
            disk=self.disk,
            is_learner=self.is_learner or not self.has_disk,
            retired=(*self.retired.values(), *self._agreed.values()),
            heard_of=self.heard_of,
        )

    # What changes

    def hear(self, peer: str, standing: Standing) -> None:
        """`peer` reports its standing."""
        if peer in self.retired:
            return  # Its list would count for ever.
        before = self._standings.get(peer)
        self._standings[peer] = standing
        if before is not None and before.is_learner and not standing.is_learner:
            if self.is_learner and peer not in self._learnt_from:
                (self._must_reconnect if peer in self._forgetful else self._turned).add(peer)
            self._forgetful.discard(peer)
        self._count_lists()

    def retirements_reported(self) -> dict[str, dict[str, Retirement]]:
        """Node → the last report of each peer about its retirement, if that is new."""
        reported: dict[str, dict[str, Retirement]] = {}
        for peer, standing in self._standings.items():
            for retirement in standing.retired:
                if self._is_news(retirement):
                    reported.setdefault(retirement.node, {})[peer] = retirement
        return reported

    def agree(self, absent: Collection[str]) -> bool:
        """Agree with the reports of peers on the `absent` nodes, and no others; whether that changes the standing."""
        before = self._agreed.keys()
        self._agreed = {
            node: min(votes.values(), key=lambda retirement: retirement.adopter)
            for node, votes in self._votes().items()
            if node in absent and node != self.node and node not in self.retired and self._is_listed(node)
        }
        return self._agreed.keys() != before

    def decided(self) -> list[Retirement]:
        """The reported retirements that a majority of the remaining nodes supports; the caller has to `retire` them.

        The remaining nodes exclude all that this node agrees have left: if a majority is lost for good, the others may
        decide. This does not hold for its own retirement, where it has no vote. A node in no list needs no majority.
        """
        found: list[Retirement] = []
        for node, votes in self._votes().items():
            voters = {*votes, self.node} if node in self._agreed else {*votes}
            leaving = {node} if node == self.node else {node, *self._agreed}
            if not self._is_listed(node):
                found += votes.values() if len(self.retired) + len(found) < UNLISTED_MAX else ()
            elif majority(voters, [names - leaving for names in self.lists]):
                found += votes.values()
        return found

    def _votes(self) -> dict[str, dict[str, Retirement]]:
        """The reported retirements that leave a member as the heir; others wait until that node is a member here.

        The adopter of a node that is retired already changes to a member only: no report ends the line of heirs.
        """
        found: dict[str, dict[str, Retirement]] = {}
        for node, reports in self.retirements_reported().items():
            heirs, is_known = self.members - {node}, node in self.retired
            for peer, one in reports.items():
                if (one.adopter if is_known else self._heir(one.adopter)) in heirs:
                    found.setdefault(node, {})[peer] = one
        return found

    def _is_listed(self, node: str) -> bool:
        return node in self._listed

    def retire(self, retirement: Retirement) -> bool:
        """Take a retirement; False when nothing is new in it.

        Two nodes may have retired the same one at the same time. Then the lesser adopter's name stays, on every node.
        """
        if not self._is_news(retirement):
            return False
        known = self.retired.get(retirement.node)
        sealed = dict(retirement.sealed)
        adopter = retirement.adopter
        if known is not None:
            merge(sealed, known.sealed)
            adopter = min(adopter, known.adopter)
        self.retired[retirement.node] = replace(retirement, adopter=adopter, sealed=sealed)
        self._agreed.pop(retirement.node, None)
        self._standings.pop(retirement.node, None)
        self.members = self.listing.names - self.retired.keys()
        self._count_lists()
        return True

    def _is_news(self, retirement: Retirement) -> bool:
        known = self.retired.get(retirement.node)
        return known is None or retirement.adopter < known.adopter

    def take_up(self, listing: Listing) -> None:
        """Our peers file has changed."""
        self.listing = listing
        self.members = listing.names.difference(self.retired)
        for peer in list(self._standings):
            if peer not in listing.names:
                del self._standings[peer]
        self._count_lists()

    def _count_lists(self) -> None:
        """Compute the lists again after a change; they are read many times per beat."""
        self.lists = [self.members - self.listing.without_disk]
        self._listed = set(self.members)
        for standing in self._standings.values():
            names = standing.listing.names - self.retired.keys()
            self._listed |= names
            names -= self.listing.without_disk
            if names not in self.lists:
                self.lists.append(names)

    def must_reconnect(self, peer: str) -> bool:
        """Whether what `peer` had when we met it is not enough: it, or this node, had forgotten something then."""
        return self.is_learner and peer in self._must_reconnect

    def meets(self, peer: str) -> None:
        """A link to `peer` begins."""
        self._turned.discard(peer)
        self._must_reconnect.discard(peer)

    def caught_up_with(self, peer: str, *, has_a_past: bool) -> None:
        """What `peer` had when the link began is here. `has_a_past`: the mesh knows an earlier incarnation of it."""
        if has_a_past and peer in self._turned:
            self._must_reconnect.add(peer)
        if peer in self._must_reconnect:
            return
        self._met.add(peer)
        standing = self._standings.get(peer)
        if has_a_past and standing is not None and standing.is_learner:
            self._forgetful.add(peer)
        else:
            self._learnt_from.add(peer)

    @property
    def has_learnt(self) -> bool:
        """Whether a learner need not be one any more. Others may leave until those that it has met are enough."""
        if not self.is_learner:
            return False
        others = [names - {self.node} for names in self.lists]
        if not any(others):
            return True  # All others are without disks, and know of no promise.
        if majority(self._learnt_from, others):
            return True
        is_void = not all(majority(names - self._forgetful, [names]) for names in others)
        return is_void and majority(self._met, others)

    def forgets(self) -> None:
        """The disk has forgotten something: this node is a learner until its links with the others have begun again.

        Peers that it had met already report nothing more over their links, so these links must begin again.
        """
        self.is_learner = True
        self._must_reconnect |= self._met
        for met in (self._met, self._learnt_from, self._turned):
            met.clear()

    def learnt(self) -> None:
        """What a majority of the others had is durable here."""
        self.is_learner = False

    def adopted_by(self, node: str) -> list[str]:
        """The retired nodes whose queue messages `node` serves, by name."""
        return sorted(name for name in self.retired if self._heir(name) == node)

    def _heir(self, name: str) -> str | None:
        """The node that serves the messages of a retired node: its adopter, or the adopter of that one if it is retired
        too. None for two that have retired each other."""
        known: set[str] = set()
        while name in self.retired:
            if name in known:
                return None
            known.add(name)
            name = self.retired[name].adopter
        return name
