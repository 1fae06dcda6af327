"""Campaigns: the owners for which one node requests votes, for how long, and with which votes so far.

An owner has one campaign at most. It is won by the votes of a majority, and given up after a part of
`takeover_after_seconds`. `Ownership.bid_for` decides whether a bid is due; this also waits after a campaign that was
given up, and after a sync that failed. Pure, as `elections` is, which drives it.
"""

from collections.abc import Callable, Collection, Container, Mapping
from typing import Final, NamedTuple

from qmq.broker.takeover.election_effects import BeginCampaign, ElectionEffect, RecordVote, RequestRelease, RequestVote
from qmq.broker.takeover.leases import NEVER, PATIENCE, Bid, Ownership, Term
from qmq.model.dots import Dot, Vector, merge
from qmq.model.members import Membership

POLLS: Final = 10
"""In `takeover_after_seconds`: heartbeats, polls and requests."""

SNAPSHOT_FACTOR: Final = 2
"""Times `takeover_after_seconds`: after a failed sync a node leaves that owner to the others for so long. One of them
may have the missing records, or the room. For its own messages it asks again after that.
"""


class Released(NamedTuple):
    """The claim that ended at our request, and the vector of its node at that time."""

    term: Term
    has: Vector
    lent: Mapping[str, list[Dot]]


class Campaign:
    """A bid, the nodes that voted for it, and their vectors; given up at `until`."""

    def __init__(self, bid: Bid, until: float, *, confirms: bool, released: Released | None) -> None:
        self.bid = bid
        self.until = until
        self.confirms = confirms
        """This node serves the owner already, and no other node can have begun to before `until`."""
        self.released = released
        self.votes: set[str] = set()
        self.has: Vector = {}
        self.asked_at = NEVER


class NodeView(NamedTuple):
    """What the node has, at the time of an event. `serves` and `syncs` may be live."""

    serves: Collection[str]
    """Owners whose messages are in the queues of this node."""
    syncs: Container[str]
    """Owners whose messages this node is fetching."""
    may_serve_more: bool
    """Whether this node has what a majority had, and knows which of it is settled. A node that is missing records would
    win, and then deliver nothing until its sync is done, while another node could have delivered.
    """


class Campaigns:
    """The campaigns of the node of `rules`. `draw` gives random numbers from 0 to 1."""

    def __init__(self, rules: Ownership, membership: Membership, *, is_wanted: bool, draw: Callable[[], float]) -> None:
        self._rules = rules
        self._membership = membership
        self._is_wanted = is_wanted
        self._draw = draw
        self.by_owner: dict[str, Campaign] = {}
        self._released: dict[str, Released] = {}
        self._asked_at = 0.0
        self._bid_again_at = 0.0
        # Owner → the time until which this node does not bid again, after a failed sync.
        self._no_bid_before: dict[str, float] = {}

    def poll(self, now: float, view: NodeView) -> list[ElectionEffect]:
        """Request votes if that is this node's turn; request the release of our own messages from the node that serves
        them.
        """
        rules = self._rules
        effects: list[ElectionEffect] = []
        for owner, campaign in list(self.by_owner.items()):
            if now >= campaign.until:
                del self.by_owner[owner]
                # Two candidates must not try again at the same time.
                self._bid_again_at = now + PATIENCE * rules.after * self._draw()
            elif now - campaign.asked_at >= rules.after / POLLS:
                effects += self._request_votes(campaign, now)
        if not view.may_serve_more:
            return effects
        effects += self._request_release(now)
        if now < self._bid_again_at:
            return effects
        for owner in rules.members:
            if owner != rules.node and not (self._is_wanted and self._membership.has_disk):
                continue  # What others serve goes back to its owner, and no more.
            if owner in self.by_owner or owner in view.syncs or now < self._no_bid_before.get(owner, 0.0):
                continue
            released = self._released.get(owner)
            bid = rules.bid_for(owner, now, None if released is None else released.term)
            if bid is not None:
                confirms = owner in view.serves and rules.leads(owner, now)
                until = now + PATIENCE * rules.after
                effects += self._begin(Campaign(bid, until, confirms=confirms, released=released), now)
        return effects

    def _begin(self, campaign: Campaign, now: float) -> list[ElectionEffect]:
        bid = campaign.bid
        self.by_owner[bid.owner] = campaign
        if campaign.released is not None:
            merge(campaign.has, campaign.released.has)
        effects: list[ElectionEffect] = [BeginCampaign(bid), *self._request_votes(campaign, now)]
        if self._membership.may_vote and self._rules.vote(bid, now):
            effects.append(RecordVote(bid))
        return effects

    def _request_votes(self, campaign: Campaign, now: float) -> list[ElectionEffect]:
        """With each poll, request the votes not given yet: a node that got a later heartbeat of the owner agrees later.
        A node that has promised its vote ignores the request.
        """
        campaign.asked_at = now
        return [RequestVote(peer, campaign.bid) for peer in self._rules.peers if peer not in campaign.votes]

    def vote_received(self, voter: str, owner: str, number: int, has: Vector) -> Campaign | None:
        """`voter` has voted for this node, durably; `has` is what it had. Returns the campaign that is won by that."""
        campaign = self.by_owner.get(owner)
        if campaign is None or campaign.bid.term != number:
            return None
        campaign.votes.add(voter)
        merge(campaign.has, has)
        if not self._membership.is_majority(campaign.votes):
            return None
        del self.by_owner[owner]
        self._released.pop(owner, None)
        return campaign

    def end(self, owner: str) -> None:
        """A new term of `owner` has a server."""
        self.by_owner.pop(owner, None)

    def pause(self, owner: str, now: float) -> None:
        """The sync of `owner` has failed."""
        self._no_bid_before[owner] = now + SNAPSHOT_FACTOR * self._rules.after

    # Own messages that another node serves

    def _request_release(self, now: float) -> list[ElectionEffect]:
        rules, own = self._rules, self._rules.node
        if own in rules.claims or not rules.in_contact(now):
            return []
        heard, released = rules.server_heard(own, now), self._released.get(own)
        is_released = released is not None and released.term == heard
        if heard is None or is_released or now - self._asked_at < rules.after / POLLS:
            return []
        self._asked_at = now
        return [RequestRelease(heard.server, heard.number)]

    def released(self, released: Released) -> None:
        """A node has stopped serving this node's messages, at its request."""
        own = self._rules.node
        self._released[own] = released
        campaign = self.by_owner.get(own)
        if campaign is not None:
            # The bid began before, and may be won now that the claim has ended.
            campaign.released = released
            merge(campaign.has, released.has)
