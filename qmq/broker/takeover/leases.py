"""Which node serves an owner's queue messages: terms, claims, leases and votes, seen by one node (docs/takeover.md).

The messages that a node accepts are its own, and normally it **serves** them: it alone delivers them to consumers. When
it is silent another node takes its messages over. At no moment may two nodes deliver messages of one owner, and a dead
node looks like a silent one. So the nodes agree on the right to serve, without a leader:

- For each owner there are **terms**, numbers that only grow. In term 0 the owner serves itself. Every later term has
  one candidate that a majority of the peers file voted for. A voter votes once per term, and writes it down first: it
  has **promised** that term. An owner that comes back asks for the next term like any other node.
- A node that serves **claims** so in its beats, with the term. A peer echoes each beat and says what it has promised.
  The **lease** of a claim holds while a majority, its own node included, has echoed a beat that claimed, sent no longer
  ago than two thirds of `after_seconds`, and has promised nothing beyond its term. Only with the lease anything is
  delivered. Echoes count, not what is heard: a node that hears others and is not heard has no lease.
- A voter says yes only when it has heard no claim of another node for the whole of `after_seconds`. So each voter that
  a lease leans on stops to bear it before it can bear another, and two majorities share a voter.
- `after_seconds` is the same on all linked nodes: a link between nodes that differ is refused. But a lease may still
  lean on an echo of an earlier run of a peer, so a node that starts with a shorter time than before votes only after
  the longer time.

**No single node can name a last term.** What is said of a term far above what a majority has promised is not believed,
and gets no vote (`TERM_STEP_MAX`). A node that was away for long hears from the others' beats what they have promised.
No lease relies on that: it counts every promise.

That is all that safety needs. A node that could not deliver anything (no echo from a majority) claims nothing, so a
link that works in one direction does not keep an owner's messages shut. What a **learner** has promised may be
forgotten: it neither votes nor echoes. A node that has just started votes only after `after_seconds`, because it does
not know whose claims it has heard; nor does one that was stopped, since then it heard nothing.

Pure: the caller brings the time, seconds of a clock that also counts while the machine sleeps; writes down what is
promised before any node hears of a vote; and moves the messages (`qmq.broker.queues.handoff`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

LEASE: Final = 2 / 3
"""Part of `after_seconds` that an echo bears a lease; the rest is for clocks that do not run alike."""

PATIENCE: Final = 1 / 5
"""Part of `after_seconds` between the candidates for one owner, in the order in which they may try."""

TERM_STEP_MAX: Final = 1 << 24
"""So far above the term that a majority has promised, another is believed; a node votes twice as far. So many
elections never fail one after another, and a faulty node would need 2^38 votes of others to reach the last term."""


class Beat(NamedTuple):
    """What one node sends another many times per `after_seconds`. Stamps are the sender's own clock, or an echo of the
    other's."""

    stamp_us: int
    echo_us: int
    """The newest stamp that came from the other side; 0: none, or a learner speaks."""
    asks_echo: bool
    in_contact: bool
    """Whether a majority echoes the sender."""
    claims: Mapping[str, int]
    """Owner → term in which the sender serves it."""
    promises: Mapping[str, int]
    """Owner → highest term that the sender has voted in."""


class Term(NamedTuple):
    """A term of one owner: its number, and the node that serves in it, or that the vote was for."""

    number: int
    server: str


class Bid(NamedTuple):
    """A candidate asks for votes. `released` is the claim that ended so that this one can begin, if one did."""

    owner: str
    term: int
    candidate: str
    released: Term | None = None


class Claim(NamedTuple):
    """Beats with a stamp beyond `stamp_us` carry it; it began at `since`."""

    term: int
    stamp_us: int
    since: float


NEVER: Final = float("-inf")
INFINITE: Final = float("inf")


class PeerReport:
    """What one peer has reported: its claims (owner → term, when heard), and its last echo."""

    __slots__ = ("at", "claims", "echo_us", "promises", "well_at")

    def __init__(self) -> None:
        self.at = NEVER
        self.well_at = NEVER
        """When it last said that a majority echoes it."""
        self.claims: dict[str, tuple[int, float]] = {}
        self.echo_us = 0
        """The newest stamp of ours that it has echoed."""
        self.promises: dict[str, int] = {}


class Ownership:
    """The rules for `node`. `promised` and `terms` are what was written down before; a `learner` may lack some."""

    def __init__(
        self,
        node: str,
        members: Iterable[str],
        after_seconds: float,
        now: float,
        *,
        promised: Mapping[str, Term] | None = None,
        terms: Mapping[str, Term] | None = None,
        learner: bool = False,
        earlier_after: float = 0.0,
        is_majority: Callable[[Collection[str]], bool] | None = None,
    ) -> None:
        """`earlier_after`: the longest `after_seconds` of earlier runs, as far as leases may lean on it. `is_majority`
        says whether these nodes may decide for the mesh; by default more than half of `members`."""
        self.node = node
        self.members = sorted(members)
        self.after = after_seconds
        self.bound_until = now + earlier_after
        """Until when the lease of a peer may lean on an echo of an earlier run."""
        self.awake_since = now
        """Since when this node can have missed nothing that was sent to it."""
        self.learner = learner
        self.promised: dict[str, Term] = dict(promised or {})
        self.terms: dict[str, Term] = dict(terms or {})
        """Owner → the highest term that is known to have a server."""
        self.claims: dict[str, Claim] = {}
        self.has_own = True
        """Whether the own messages are here, or on their way since a vote. If not, only another vote brings them."""
        self.peers: dict[str, PeerReport] = {name: PeerReport() for name in self.members if name != node}
        self.is_majority = is_majority or self._is_more_than_half
        self.contact_since = INFINITE
        """Since when a majority has echoed this node; a node that is not heard can say nothing about others."""
        self._stamp_us = 0

    def enrol(self, members: Iterable[str]) -> None:
        """These are the members from now on."""
        self.members = sorted(members)
        self.peers = {name: self.peers.get(name) or PeerReport() for name in self.members if name != self.node}

    def _is_more_than_half(self, nodes: Collection[str]) -> bool:
        return 2 * len(nodes) > len(self.members)

    def term_of(self, owner: str) -> Term:
        """The highest term of `owner` that is known to have a server, and is believed."""
        term = self.terms.get(owner) or Term(0, owner)
        return term if self._is_believed(owner, term.number) else Term(0, owner)

    def _is_believed(self, owner: str, number: int) -> bool:
        return number <= TERM_STEP_MAX or number <= self._promised_by_majority(owner) + TERM_STEP_MAX

    def _promised_by_majority(self, owner: str) -> int:
        """The highest term such that a majority has promised it or a later one, as far as this node has heard."""
        promises = {name: float(self.promise_heard(name, owner)) for name in (self.node, *self.peers)}
        return int(max(0.0, self._borne(promises)))

    # Beats

    def beat(self, now: float, *, echo_us: int = 0, asks_echo: bool = True) -> Beat:
        """What to send to a peer, whose newest stamp is `echo_us`. No two beats have the same stamp."""
        self._stamp_us = max(self._stamp_us + 1, round(now * 1e6))
        return Beat(
            self._stamp_us,
            0 if self.learner else echo_us,
            asks_echo,
            self.in_contact(now),
            {owner: claim.term for owner, claim in self.claims.items()},
            {owner: promise.number for owner, promise in self.promised.items()},
        )

    def hear(self, peer: str, beat: Beat, now: float) -> None:
        """`peer` has sent `beat`."""
        heard = self.peers.get(peer)
        if heard is None:
            return
        heard.at = now
        if beat.in_contact:
            heard.well_at = now
        for owner, term in beat.claims.items():
            heard.claims[owner] = (term, now)
            self.learn(owner, Term(term, peer))
        heard.echo_us = max(heard.echo_us, beat.echo_us)
        for owner, term in beat.promises.items():
            # They only grow, and beats may overtake each other where two links join the nodes.
            heard.promises[owner] = max(term, heard.promises.get(owner, 0))

    def learn(self, owner: str, term: Term) -> bool:
        """A term of `owner` has a server. True when that is news; a lower claim of this node is over then."""
        if term.number <= self.term_of(owner).number or not self._is_believed(owner, term.number):
            return False
        self.terms[owner] = term
        claim = self.claims.get(owner)
        if claim is not None and claim.term < term.number:
            del self.claims[owner]
        return True

    def was_away(self, now: float) -> None:
        """This node did nothing for so long that it may have missed what was sent to it."""
        self.awake_since = now
        self.claims.clear()
        for heard in self.peers.values():
            heard.echo_us = 0

    # The lease

    def in_contact(self, now: float) -> bool:
        """Whether a majority echoes this node, so that a claim of it could be borne."""
        bearing = [name for name, heard in self.peers.items() if self._echo_until(name, heard, 0, now) > now]
        if not self.learner:
            bearing.append(self.node)
        return self.is_majority(bearing)

    def leads(self, owner: str, now: float) -> bool:
        """Whether this node may hand out messages of `owner` now."""
        return self.lease_until(owner, now) > now

    def lease_until(self, owner: str, now: float) -> float:
        """When the lease on `owner` ends if no more echoes come; `now` or before when there is none."""
        claim = self.claims.get(owner)
        if claim is None:
            return NEVER
        bears = {self.node: INFINITE if self._promise(owner) <= claim.term else NEVER}
        for name, heard in self.peers.items():
            if heard.promises.get(owner, 0) <= claim.term:
                bears[name] = self._echo_until(name, heard, claim.stamp_us, now)
        return self._borne(bears)

    def _echo_until(self, name: str, heard: PeerReport, after_us: int, now: float) -> float:
        """Until when the last echo of a peer counts, if it is of a beat after `after_us`."""
        if heard.echo_us <= after_us:
            return NEVER
        return heard.echo_us / 1e6 + self.after * LEASE

    def _borne(self, bears: dict[str, float]) -> float:
        """Until when a majority bears what each node bears so long."""
        found: list[str] = []
        for until, name in sorted(((until, name) for name, until in bears.items()), reverse=True):
            found.append(name)
            if self.is_majority(found):
                return until
        return NEVER

    def promise_heard(self, node: str, owner: str) -> int:
        """The highest term of `owner` that `node` has voted in, as far as it has said."""
        if node == self.node:
            return self._promise(owner)
        heard = self.peers.get(node)
        return 0 if heard is None else heard.promises.get(owner, 0)

    def _promise(self, owner: str) -> int:
        promised = self.promised.get(owner)
        return 0 if promised is None else promised.number

    # Claims

    def claim_own(self, now: float) -> bool:
        """Claim the own messages where no vote is needed: they are here, in a term of this node. True when that is new.

        Also ends claims that no node supports any more, so that others need not wait for them.
        """
        contact = self.in_contact(now)
        self.contact_since = min(self.contact_since, now) if contact else INFINITE
        for owner, claim in list(self.claims.items()):
            if not contact and now - claim.since >= self.after * LEASE and not self.leads(owner, now):
                del self.claims[owner]
        own = self.term_of(self.node)
        if not contact or self.learner or own.server != self.node or self.node in self.claims or not self.has_own:
            return False
        self.claims[self.node] = Claim(own.number, self._stamp_us, now)
        return True

    def release(self, owner: str, term: int) -> bool:
        """Serve `owner` no more, so that another can at once. True when it was claimed in that term."""
        claim = self.claims.get(owner)
        if claim is None or claim.term != term:
            return False
        del self.claims[owner]
        return True

    # Votes

    def may_vote(self, now: float) -> bool:
        """Whether this node knows what it has promised, and whose claims it has heard."""
        return not self.learner and now >= self.bound_until and now - self.awake_since >= self.after

    def vote(self, bid: Bid, now: float) -> bool:
        """Whether to vote for `bid`; then it is promised, and must be written down before any node hears of it."""
        owner, term, candidate, released = bid
        if owner not in self.members or candidate not in self.members:
            return False
        if not max(self._promise(owner), self.term_of(owner).number) < term <= self._bid_max(owner):
            return False
        if not self.may_vote(now) or not self._is_silent(owner, candidate, released, now):
            return False
        self.promised[owner] = Term(term, candidate)
        return True

    def _bid_max(self, owner: str) -> int:
        """The highest term that a node may ask votes for; what is believed is lower."""
        return self._promised_by_majority(owner) + 2 * TERM_STEP_MAX

    def _is_silent(self, owner: str, candidate: str, released: Term | None, now: float) -> bool:
        """Whether no node but `candidate` has claimed `owner` for so long, nor the owner been well."""
        if self.node != candidate and owner in self.claims:
            return False
        if owner not in (candidate, self.node) and now - self.peers[owner].well_at < self.after:
            return False
        if owner == self.node != candidate and self.in_contact(now):
            return False
        for name, heard in self.peers.items():
            term, at = heard.claims.get(owner, (0, NEVER))
            if released is not None and name == released.server and term <= released.number:
                continue
            if name != candidate and now - at < self.after:
                return False
        return True

    def server_heard(self, owner: str, now: float) -> Term | None:
        """Which other node claims `owner` in the highest term, as far as was heard lately."""
        found: Term | None = None
        for name, heard in self.peers.items():
            term, at = heard.claims.get(owner, (0, NEVER))
            if now - at < self.after and (found is None or term > found.number):
                found = Term(term, name)
        return found

    def bid_for(self, owner: str, now: float, released: Term | None = None) -> Bid | None:
        """The bid that this node should make for `owner` now; None when it should not.

        For its own messages when no node claims them; to confirm a claim where a peer has promised a later term; and
        for those of a silent node, in turns: the nodes that are there try one after the other.
        """
        if self.learner or not self.in_contact(now):
            return None
        claim = self.claims.get(owner)
        bid_max = self._bid_max(owner)
        promises = [heard.promises.get(owner, 0) for heard in self.peers.values()]
        beyond = max(self._promise(owner), self.term_of(owner).number, *[term for term in promises if term <= bid_max])
        term = min(beyond + 1, bid_max)
        if claim is not None:
            return Bid(owner, term, self.node) if beyond > claim.term else None
        if owner == self.node and self.term_of(owner).server == owner and self.has_own:
            return None  # `claim_own` needs no vote.
        if not self._is_silent(owner, self.node, released, now):
            return None
        if owner != self.node:
            patience = self.after * (1 + PATIENCE * self._turn(owner, now))
            if self._silence(owner, now) < patience:
                return None
        return Bid(owner, term, self.node, released)

    def _silence(self, owner: str, now: float) -> float:
        """For how long this node has had no reason to think that `owner` is served."""
        heard = [at for peer in self.peers.values() for _, at in [peer.claims.get(owner, (0, NEVER))]]
        bound = self.bound_until - self.after  # Also those take turns that may vote again at the same time.
        return now - max([*heard, self.peers[owner].well_at, self.awake_since, self.contact_since, bound])

    def _turn(self, owner: str, now: float) -> int:
        """The place of this node among those that are there: they follow the owner, in the order of names."""
        place = self.members.index(owner)
        order = self.members[place + 1 :] + self.members[:place]
        live = [n for n in order if n == self.node or self._echo_until(n, self.peers[n], 0, now) > now]
        return live.index(self.node)

    def won(self, bid: Bid, now: float) -> None:
        """A majority has voted for the bid of this node: it claims from now on."""
        self.terms[bid.owner] = Term(bid.term, self.node)
        self.claims[bid.owner] = Claim(bid.term, self._stamp_us, now)
