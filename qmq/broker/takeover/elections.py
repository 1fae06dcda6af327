"""Elections: heartbeats, bids, votes and hand-offs that follow from the leases, as one node decides them.

`Ownership` (`qmq.broker.takeover.leases`) has the rules: which votes and claims are safe. This decides what the node
does about them: when it sends heartbeats, which owners it hands off, and what follows when a campaign (`campaigns`) is
won. Each method is one event, and returns what follows as values, in their order. So each of them can be tested without
a node, a clock or a disk.

Pure: the caller brings the time of the clock that `Ownership` uses, and a random number between 0 and 1 where two nodes
must not try again at the same time. It carries out the effects before it calls the next method.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from qmq.broker.takeover.campaigns import POLLS, Campaigns, NodeView, Released
from qmq.broker.takeover.election_effects import (
    BeginSync,
    ClearCondition,
    ContinueService,
    ElectionEffect,
    EndSync,
    HandOff,
    RaiseCondition,
    RecordTerm,
    RecordVote,
    ReportEvent,
    ReturnMessages,
    SchedulePoll,
    SendHeartbeat,
)
from qmq.broker.takeover.leases import INFINITE, LEASE, NEVER, Beat, Bid, Ownership, Term
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.members import Membership

NODES_MIN: Final = 3
"""Of a mesh in which a majority remains without one node."""

ECHO_POLLS: Final = 2.5
"""Of a peer whose last echo is of a heartbeat sent earlier than so many polls before, one is requested."""


class Elections:
    """What the node of `rules` does about them. `draw` gives random numbers from 0 to 1."""

    def __init__(self, rules: Ownership, membership: Membership, *, is_wanted: bool, draw: Callable[[], float]) -> None:
        self.rules = rules
        self._membership = membership
        self._is_wanted = is_wanted
        self.campaigns = Campaigns(rules, membership, is_wanted=is_wanted, draw=draw)
        self.served: dict[str, int] = {}
        """Owner → term in which this node serves it, if that is not term 0."""
        self._has_foreign_server = False
        """Whether some node still serves another although takeover is not possible any more: its messages have to be
        returned.
        """
        # Peer → the newest stamp of its heartbeats.
        self._stamps: dict[Origin, int] = {}
        # Owner → the term that this node has obeyed.
        self._obeyed: dict[str, Term] = {}
        # The standing conditions by their subject, an owner.
        self._conditions: dict[str, RaiseCondition] = {}
        self._sent_at = NEVER
        self._sent: tuple[object, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether others may take over the messages that this node does not serve for a while."""
        return self._has_foreign_server or (self._is_wanted and self._membership.members_fewest >= NODES_MIN)

    def lease_end(self, owners: Collection[str], now: float) -> float:
        """Until when this node may deliver messages of `owners`; `now` or before when it may not."""
        if not self.is_active:
            return INFINITE
        return min([self.rules.lease_until(owner, now) for owner in owners], default=INFINITE)

    # What is due

    def poll(self, now: float, view: NodeView) -> list[ElectionEffect]:
        """Everything that is due now without a frame or a record."""
        if not self.is_active:
            return self.obey_terms()
        self._claim_own(now, view)
        effects = self._heartbeats_due(now) + self.campaigns.poll(now, view)
        # A promise is sent before anything that becomes durable after it (`qmq.broker.takeover.quorum_acks`).
        return effects + self._heartbeats_due(now) + self.obey_terms()

    def after_frame(self, now: float, view: NodeView) -> list[ElectionEffect]:
        """What is due after a frame of a peer, while takeover is active."""
        self._claim_own(now, view)
        return self._heartbeats_due(now) + self.obey_terms()

    def _claim_own(self, now: float, view: NodeView) -> None:
        self.rules.has_own = self.rules.node in view.serves or self.rules.node in view.syncs
        self.rules.claim_own(now)

    def _heartbeats_due(self, now: float) -> list[ElectionEffect]:
        rules = self.rules
        # The last of them before anything more is lent that relies on it (`may_borrow`).
        state = (rules.in_contact(now), dict(rules.claims), dict(rules.promised))
        if now - self._sent_at < rules.after / POLLS and state == self._sent:
            return []
        # In quiet times the heartbeats of the peers are echo enough.
        asks, early = state != self._sent, now - ECHO_POLLS * rules.after / POLLS
        self._sent_at, self._sent = now, state
        stamps = {origin.node: stamp for origin, stamp in self._stamps.items()}
        return [
            SendHeartbeat(
                peer,
                rules.beat(now, echo_us=stamps.get(peer, 0), asks_echo=asks or heard.echo_us < early * 1e6),
            )
            for peer, heard in rules.peers.items()
        ]

    def obey_terms(self) -> list[ElectionEffect]:
        """Hand off what other nodes serve now, and what this node may not claim any more."""
        rules = self.rules
        effects: list[ElectionEffect] = []
        self._has_foreign_server = any(rules.term_of(owner).server != owner for owner in rules.members)
        for owner in rules.members:
            term = rules.term_of(owner)
            if not self._is_obeyed(owner):
                self._obeyed[owner] = term
                self.campaigns.end(owner)
                if term.server != rules.node:
                    effects.append(self._hand_off(owner, term.server, effects))
                    if owner == rules.node:
                        served = f"{term.server} serves the messages of this node, in term {term.number}"
                        self._raise(owner, "taken-over", served, effects)
                else:
                    effects.append(EndSync(owner))
                    if owner == rules.node:
                        # An earlier incarnation of this node won it; peers accept nothing that is lent in a lesser
                        # term.
                        self.served[owner] = term.number
        for owner in list(self.served):
            if owner != rules.node and (owner not in rules.claims or owner not in rules.members):
                rules.claims.pop(owner, None)
                effects.append(self._hand_off(owner, owner, effects))
        return effects

    def _is_obeyed(self, owner: str) -> bool:
        return self.rules.term_of(owner) == self._obeyed.get(owner, Term(0, owner))

    def _hand_off(self, owner: str, server: str, effects: list[ElectionEffect]) -> HandOff:
        """Serve `owner` no more. Returns the hand-off, which is to follow."""
        self.served.pop(owner, None)
        self._clear(owner, effects)
        term = self.rules.term_of(owner)
        return HandOff(owner, server, term.number if term.server == server else 0)

    def _raise(self, subject: str, code: str, message: str, effects: list[ElectionEffect]) -> None:
        """Raise a condition about `subject`; the one before about the same subject ends, unless it is equal."""
        before, condition = self._conditions.get(subject), RaiseCondition(code, message)
        if before is not None and before != condition:
            effects.append(ClearCondition(*before))
        self._conditions[subject] = condition
        effects.append(condition)

    def _clear(self, subject: str, effects: list[ElectionEffect]) -> None:
        if (condition := self._conditions.pop(subject, None)) is not None:
            effects.append(ClearCondition(*condition))

    # Heartbeats and terms of peers

    def links_changed(self, peers: Collection[Origin]) -> None:
        """There are links with these incarnations now. What was heard of others is echoed to none.

        A peer that has started again must not take it for an echo of its own. If its machine was booted meanwhile, its
        clock begins again, and the lease would last until that clock shows the old time.
        """
        self._stamps = {o: s for o, s in self._stamps.items() if [p for p in peers if p.node == o.node] == [o]}

    def heartbeat_received(self, peer: Origin, beat: Beat, now: float) -> Beat | None:
        """The response to a heartbeat, if it wants one."""
        self._stamps = {o: s for o, s in self._stamps.items() if o.node != peer.node or o == peer}
        self._stamps[peer] = max(beat.stamp_us, self._stamps.get(peer, 0))
        self.rules.hear(peer.node, beat, now)
        return self.rules.beat(now, echo_us=self._stamps[peer], asks_echo=False) if beat.asks_echo else None

    def term_recorded(self, owner: str, term: Term, *, is_vote: bool) -> list[ElectionEffect]:
        """A record says which node serves `owner`, or what an earlier incarnation of this one promised."""
        if is_vote:
            if term.number > self.rules.promised.get(owner, Term(0, "")).number:
                self.rules.promised[owner] = term
            return []
        return [SchedulePoll()] if self.rules.learn(owner, term) else []

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str], now: float
    ) -> tuple[Mapping[str, bool | None], list[ElectionEffect]]:
        """See `Host.may_borrow`."""
        if not self.is_active:
            return dict.fromkeys(owners, True), []
        may: dict[str, bool | None] = {}
        effects: list[ElectionEffect] = []
        # Every voter that the lender's lease relied on when it lent votes for no other for at least that long.
        is_recent = now - echo_us / 1e6 <= self.rules.after * (1 - LEASE)
        for owner in owners:
            known, named = self.rules.term_of(owner), Term(terms.get(owner, 0), peer)
            is_stale = named.number < known.number or (named.number == known.number and known.server != peer)
            may[owner] = None if is_stale else is_recent
            if not is_stale and self.rules.learn(owner, named):
                effects.append(SchedulePoll())
        if not all(map(self._is_obeyed, owners)):
            # Messages lent in a new term come after the report of those held from before.
            effects += self.obey_terms()
        if not is_recent:
            effects.append(SendHeartbeat(peer, self.rules.beat(now)))
        return may, effects

    # Votes

    def vote_requested(self, candidate: str, bid: Bid, now: float) -> list[ElectionEffect]:
        """`candidate` requests the vote of this node."""
        if bid.candidate != candidate or not self.is_active or not self._membership.may_vote:
            return []
        return [RecordVote(bid)] if self.rules.vote(bid, now) else []

    def vote_received(self, voter: str, owner: str, number: int, has: Vector, now: float) -> list[ElectionEffect]:
        """`voter` has voted for this node, durably; `has` is what it had."""
        campaign = self.campaigns.vote_received(voter, owner, number, has)
        if campaign is None:
            return []
        continues = campaign.confirms and owner in self.rules.claims and now < campaign.until
        self.rules.won(campaign.bid, now)
        term = self._obeyed[owner] = Term(number, self.rules.node)
        effects: list[ElectionEffect] = [RecordTerm(owner, term)]
        if continues:
            self.served[owner] = number
            effects.append(ContinueService(owner))
        else:
            self.served.pop(owner, None)
            lent = {} if campaign.released is None else campaign.released.lent
            effects.append(BeginSync(owner, number, campaign.has, lent))
        return effects + self._heartbeats_due(now)

    # Syncs

    def claims(self, owner: str, number: int) -> bool:
        """Whether this node may serve `owner` in term `number`, as soon as it can."""
        claim = self.rules.claims.get(owner)
        return claim is not None and claim.term == number

    def sync_done(self, owner: str, number: int) -> list[ElectionEffect]:
        """The messages of `owner` have arrived."""
        self.served[owner] = number
        effects: list[ElectionEffect] = []
        if owner == self.rules.node:
            self._clear(owner, effects)
            effects.append(ReportEvent("returned", f"this node serves its own messages again, in term {number}"))
        else:
            self._raise(owner, "takeover", f"this node serves the messages of {owner}, in term {number}", effects)
        return effects

    def sync_failed(self, owner: str, number: int, now: float) -> bool:
        """The messages of `owner` have not arrived in time. Whether this node had still claimed them."""
        if not self.rules.release(owner, number):
            return False
        self.campaigns.pause(owner, now)
        return True

    def obeys(self, owner: str, number: int) -> bool:
        """Whether this node serves `owner` in term `number`, as far as it knows."""
        return self._obeyed.get(owner) == Term(number, self.rules.node)

    # Returns to the owner

    def release_requested(self, asker: str, owner: str, number: int) -> list[ElectionEffect]:
        """The owner is back: return its messages to it."""
        claim = self.rules.claims.get(owner)
        if asker != owner or (claim is not None and claim.term > number):
            return []
        was_served = self.rules.release(owner, number)
        effects: list[ElectionEffect] = []
        effects.append(ReturnMessages(self._hand_off(owner, owner, effects), number, was_served))
        return effects

    def released(self, server: str, owner: str, number: int, has: Vector, lent: Mapping[str, list[Dot]]) -> None:
        """`server` has stopped serving `owner`, at the request of this node."""
        if owner == self.rules.node:
            self.campaigns.released(Released(Term(number, server), has, lent))
