"""Takeover at run time: heartbeats and bids, and votes that are durable before they are sent.

`qmq.broker.takeover.leases` decides which node may serve which owner's messages. `TakeoverSync` brings the messages
here, and `qmq.broker.queues.lending.handoff` moves them in memory. This adds the clock, the records and the frames. It
polls at least ten times in `takeover_after_seconds`, and after each event that may matter. Each poll decides what this
node claims, which votes it requests, and whether it may deliver at all (`Queues.held`).

Surprising: the clock that counts here runs on while the process is stopped. It is read before any decision (`check`),
so a node that was stopped does not first deliver what it was about to.

Long for one module: every step reads and writes the same few tables (campaigns, releases, obeyed terms, stamps). Their
order within one poll keeps two nodes from serving together.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.takeover.leases import LEASE, NEVER, PATIENCE, Bid, Ownership, OwnerState, Term
from qmq.broker.takeover.quorum_acks import settled_through
from qmq.config import MeshSettings, NodeSettings
from qmq.dots import Dot, Origin, Vector, merge
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.takeover_frames import Ask, HeartbeatFrame, Holds, Release, Terms, Vote
from qmq.server.commit.receipts import Receipts
from qmq.server.membership.members import LiveMembership
from qmq.server.membership.takeover_sync import TakeoverSync, TakeoverSyncContext
from qmq.server.peers.dedup_query import DedupQuery
from qmq.server.repair.catch_up import CatchUp
from qmq.server.runtime.waker import Waker
from qmq.storage.catalog.facts import TAKEOVER_AFTER
from qmq.storage.format.record import RecordKind
from qmq.storage.format.term_record import TermNote, pack_term

POLLS: Final = 10
"""In `takeover_after_seconds`: beats and looks at what is due."""

NODES_MIN: Final = 3
"""Of a mesh in which a majority remains without one node."""

SNAPSHOT_FACTOR: Final = 2
"""Times `takeover_after_seconds`: after a failed sync a node leaves that owner to the others for so long. One of them
may have the missing records, or the room. For its own messages it asks again after that.
"""

log = logging.getLogger("qmq.takeover")


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


class TakeoverContext(TakeoverSyncContext, Protocol):
    """What takeover needs of the node."""

    settings: NodeSettings
    catch_up: CatchUp
    members: LiveMembership
    receipts: Receipts
    dedup_query: DedupQuery

    def has_synced_with_majority(self) -> bool:
        """Whether this node has everything that a majority had when the links began."""


class Takeover:
    """The terms of one node. Made after its broker and its membership."""

    def __init__(self, context: TakeoverContext, settings: MeshSettings) -> None:
        self._context = context
        self._after = settings.takeover_after_seconds
        self.is_wanted = settings.takeover
        self._boot = context.environment.boot_seconds
        notes = context.store.recovered.terms
        self._earlier_ms = self._longest_earlier_after()
        self.rules = Ownership(
            context.settings.name,
            context.membership.members,
            self._after,
            self._boot(),
            promised={note.owner: Term(note.number, note.server) for note in notes if note.is_vote},
            terms={note.owner: Term(note.number, note.server) for note in notes if not note.is_vote},
            earlier_after=self._earlier_ms / 1000,
            is_majority=context.membership.is_majority,
        )
        self.served: dict[str, int] = {}
        """Owner → term in which this node serves it, if that is not term 0."""
        self.is_starting = False
        self._has_foreign_server = False
        """Whether some node still serves another although takeover is not possible any more: its messages have to be
        returned.
        """
        self._forgot = False
        # Peer → the newest stamp of its heartbeats.
        self._stamps: dict[Origin, int] = {}
        # Owner → the term that this node has obeyed.
        self._obeyed: dict[str, Term] = {}
        self._campaigns: dict[str, Campaign] = {}
        self._takeover_sync = TakeoverSync(context, self, self._after)
        self._released: dict[str, Released] = {}
        self._asked_at = 0.0
        self._bid_again_at = 0.0
        # Owner → the time until which this node does not bid again, after a failed sync.
        self._no_bid_before: dict[str, float] = {}
        # The standing alarms by their subject, an owner: code and message.
        self._alarms: dict[str, tuple[str, str]] = {}
        self._polled_at = self._boot()
        self._sent_at = float("-inf")
        self._sent: tuple[object, ...] = ()
        self._lease_until = float("inf")
        self._waker = Waker()

    def _longest_earlier_after(self) -> int:
        """The longest `takeover_after_seconds` of earlier runs, in ms, on which the lease of a peer may still rely.

        The time of this run is on the disk before any peer hears this node.
        """
        after_ms = round(self._after * 1000)
        catalog = self._context.store.catalog
        earlier_ms = int(catalog.facts().get(TAKEOVER_AFTER, 0))
        if earlier_ms < after_ms:
            catalog.set_facts({TAKEOVER_AFTER: str(after_ms)})
        return earlier_ms

    @property
    def announced_ms(self) -> int:
        """See `Host.takeover_ms`."""
        return round(self._after * 1000) if self.is_wanted else 0

    @property
    def name(self) -> str:
        return self.rules.node

    @property
    def is_active(self) -> bool:
        """Whether others may take over the messages that this node does not serve for a while."""
        return self._has_foreign_server or (self.is_wanted and self._context.membership.members_fewest >= NODES_MIN)

    def begin(self) -> None:
        """Obey the recorded terms; nothing is delivered before the first lease."""
        out = Outcome(now_us=self._context.environment.now_us())
        self._obey_terms()
        self._set_held(out)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.poll()
            self._waker.clear()
            await self._waker.wait(self._pause())

    def _pause(self) -> float:
        """Seconds until the next poll that is due by itself; a lease must not expire unnoticed."""
        if not self.is_active:
            return float("inf")
        return max(0.001, min(self._after / POLLS, self._lease_until - self._boot()))

    def wake(self) -> None:
        """Poll soon."""
        self._waker.wake()

    def has_let_go(self, owner: str) -> bool:
        """Whether this node delivers nothing of a retired owner, now or later."""
        self.poll()
        return owner not in self._context.broker.queues.owned.serves

    def links_changed(self) -> None:
        """A link began or ended, in the middle of another decision."""
        if self._context.mesh is not None and self._context.mesh.linked():
            self._context.broker.queues.isolated_mode.stop()
        self.wake()

    # Polling

    def check(self) -> None:
        """Called before each decision: was this node stopped, or has its lease ended?"""
        now = self._boot()
        if self.is_active and (now - self._polled_at > self._after / 2 or now >= self._lease_until):
            self.poll()

    def poll(self) -> None:
        """Do everything that is due now without a frame or a record."""
        now = self._boot()
        context, rules = self._context, self.rules
        out = Outcome(now_us=context.environment.now_us())
        away = now - self._polled_at
        if away > self._after / 2:
            if self.is_active:  # else only events cause a poll
                log.warning(
                    "! this node was paused for %.1f s: it delivers nothing until its peers have responded", away
                )
            rules.was_away(now)
            context.dedup_query.was_away()
        self._polled_at = now
        rules.enrol(context.membership.members)
        self._check_learning(now)
        self._check_earlier(now)
        if self.is_active:
            self._claim_own(now)
            self._send_if_due(now)
            self._check_bids(now, out)
            # A promise is sent before anything that becomes durable after it (`qmq.broker.takeover.quorum_acks`).
            self._send_if_due(now)
        self._obey_terms()
        self._check_isolation(now, out)
        self._set_held(out)
        context.receipts.terms_changed()
        context.submit(out)

    def _claim_own(self, now: float) -> None:
        self.rules.has_own = self.name in self._context.broker.queues.owned.serves or self.name in self._takeover_sync
        self.rules.claim_own(now)

    def _check_isolation(self, now: float, out: Outcome) -> None:
        """While no link is up, messages that never left this node may be delivered."""
        context, queues = self._context, self._context.broker.queues
        isolated_mode = queues.isolated_mode
        is_linked = context.mesh is None or bool(context.mesh.linked())
        if self.is_active and not is_linked and not self.is_starting and not self.rules.leads(self.name, now):
            isolated_mode.begin(context.broker.next_sequence - 1)
        elif isolated_mode.after is not None or isolated_mode.waiting:
            queues.end_isolation(out)

    def _check_learning(self, now: float) -> None:
        """A learner that had made promises on an earlier disk waits until no peer can rely on them any more."""
        membership = self._context.membership
        if membership.is_learner:
            self.rules.learner = True
            return
        if self.rules.learner and not self._forgot:
            own = self._context.store.catalog.incarnations()
            known = self._context.received_vector()
            self._forgot = any(o.node == self.name and o not in own for o in known)
        self.rules.learner = self._forgot and now - self.rules.awake_since < self._after

    def _check_earlier(self, now: float) -> None:
        """When no lease relies on an earlier run any more, the next run need not wait for it."""
        after_ms = round(self._after * 1000)
        if self._earlier_ms > after_ms and now >= self.rules.bound_until:
            self._earlier_ms = after_ms
            self._context.members.remember({TAKEOVER_AFTER: str(after_ms)})

    def _send_if_due(self, now: float) -> None:
        rules = self.rules
        # The last of them before anything more is lent that relies on it (`may_borrow`).
        state = (rules.in_contact(now), dict(rules.claims), dict(rules.promised))
        if now - self._sent_at >= self._after / POLLS or state != self._sent:
            self._sent_at, self._sent = now, state
            self.send_all_terms(now)

    def send_all_terms(self, now: float) -> None:
        """Send heartbeats to every peer that understands them."""
        mesh = self._context.mesh
        stamps = {origin.node: stamp for origin, stamp in self._stamps.items()}
        for peer in self.rules.peers:
            if mesh is not None:
                mesh.send_terms(peer, self._heartbeat(now, stamps.get(peer, 0)))

    def _heartbeat(self, now: float, echo_us: int = 0, *, wants_echo: bool = True) -> HeartbeatFrame:
        return HeartbeatFrame(self.rules.beat(now, echo_us=echo_us, wants_echo=wants_echo))

    # Frames and records of peers

    def greet(self, link: LinkOutbox) -> None:
        """See `Host.greet`."""
        link.put(self._heartbeat(self._boot()))

    def received(self, peer: Origin, frame: Terms, link: LinkOutbox, out: Outcome) -> None:
        """See `Host.terms_came`."""
        now = self._boot()
        match frame:
            case HeartbeatFrame(beat):
                self._stamps = {o: s for o, s in self._stamps.items() if o.node != peer.node or o == peer}
                self._stamps[peer] = max(beat.stamp_us, self._stamps.get(peer, 0))
                self.rules.hear(peer.node, beat, now)
                if beat.wants_echo:
                    link.put(self._heartbeat(now, self._stamps[peer], wants_echo=False))
            case Ask(bid):
                self._vote(peer.node, bid, now, out)
            case Vote(owner, number, has):
                campaign = self._campaigns.get(owner)
                if campaign is not None and campaign.bid.term == number:
                    campaign.votes.add(peer.node)
                    merge(campaign.has, has)
                    self._count(campaign, out)
            case Release(owner, number, None, _):
                self._release(peer.node, owner, number, out)
            case Release(owner, number, has, lent):
                assert has is not None
                if owner == self.name:
                    released = self._released[owner] = Released(Term(number, peer.node), has, lent)
                    campaign = self._campaigns.get(owner)
                    if campaign is not None:
                        # The bid began before, and may be won now that the claim has ended.
                        campaign.released = released
                        merge(campaign.has, has)
            case Holds(owner, number, dots):
                if self._obeyed.get(owner) == Term(number, self.name):
                    self._takeover_sync.peer_holds(peer.node, owner, number, dots, out)
        if self.is_active:
            self._claim_own(now)
            self._send_if_due(now)
            self._obey_terms()
            self._set_held(out)
            self._context.receipts.terms_changed()
        if isinstance(frame, Release):
            self.wake()

    def noted(self, note: TermNote) -> None:
        """A record says which node serves, or what an earlier incarnation promised. In the middle of a decision."""
        term = Term(note.number, note.server)
        if note.is_vote:
            if note.number > self.rules.promised.get(note.owner, Term(0, "")).number:
                self.rules.promised[note.owner] = term
        elif self.rules.learn(note.owner, term):
            self.wake()

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        """See `Host.may_borrow`."""
        if not self.is_active:
            return dict.fromkeys(owners, True)
        may: dict[str, bool | None] = {}
        now = self._boot()
        # Every voter that the lender's lease relied on when it lent votes for no other for at least that long.
        is_fresh = now - echo_us / 1e6 <= self._after * (1 - LEASE)
        for owner in owners:
            known, named = self.rules.term_of(owner), Term(terms.get(owner, 0), peer)
            is_stale = named.number < known.number or (named.number == known.number and known.server != peer)
            may[owner] = None if is_stale else is_fresh
            if not is_stale and self.rules.learn(owner, named):
                self.wake()
        if not all(map(self._is_obeyed, owners)):
            # Messages lent in a new term come after the report of those held from before.
            self._obey_terms()
        if not is_fresh and self._context.mesh is not None:
            self._context.mesh.send_terms(peer, self._heartbeat(now))
        return may

    # Votes

    def _vote(self, candidate: str, bid: Bid, now: float, out: Outcome) -> None:
        if bid.candidate != candidate or not self.is_active or not self._context.membership.may_vote:
            return
        if self.rules.vote(bid, now):
            self._write(RecordKind.VOTE, bid.owner, Term(bid.term, candidate), out)
            self._context.spawn(partial(self._send_vote, candidate, bid))

    async def _send_vote(self, candidate: str, bid: Bid) -> None:
        """Send a vote once it is durable."""
        context = self._context
        await context.flushed()
        if context.mesh is not None:
            context.mesh.send_terms(candidate, Vote(bid.owner, bid.term, dict(context.durable_vector())))

    def _write(self, kind: RecordKind, owner: str, term: Term, out: Outcome) -> None:
        context = self._context
        context.broker.note_fact(kind, pack_term(owner, term.number, term.server), context.environment.now_us(), out)

    def _check_bids(self, now: float, out: Outcome) -> None:
        """Request votes if that is this node's turn; request the release of our own messages from the node that serves
        them.
        """
        context, rules = self._context, self.rules
        for owner, campaign in list(self._campaigns.items()):
            if now >= campaign.until:
                del self._campaigns[owner]
                self._bid_again_at = now + context.environment.rng.uniform(0, PATIENCE * self._after)
            elif now - campaign.asked_at >= self._after / POLLS:
                self._request_votes(campaign, now)
        if not self._may_serve_more():
            return
        self._request_release(now)
        if now < self._bid_again_at:
            return
        for owner in rules.members:
            released = self._released.get(owner)
            if owner != self.name and not self.is_wanted:
                continue  # What others serve goes back to its owner, and no more.
            if owner in self._campaigns or owner in self._takeover_sync or now < self._no_bid_before.get(owner, 0.0):
                continue
            bid = rules.bid_for(owner, now, None if released is None else released.term)
            if bid is not None:
                self._campaign(bid, now, released, out)

    def _may_serve_more(self) -> bool:
        """Whether this node has what a majority had, and knows which of it is settled. A node that is missing records
        would win, and then deliver nothing until its sync is done, while another node could have delivered.
        """
        return self._context.has_synced_with_majority() and not self._context.catch_up.is_stale

    def _campaign(self, bid: Bid, now: float, released: Released | None, out: Outcome) -> None:
        log.info("= requests votes to serve %s in term %d", bid.owner, bid.term)
        is_served = bid.owner in self._context.broker.queues.owned.serves and self.rules.leads(bid.owner, now)
        until = now + PATIENCE * self._after
        campaign = self._campaigns[bid.owner] = Campaign(bid, until, confirms=is_served, released=released)
        if released is not None:
            merge(campaign.has, released.has)
        self._request_votes(campaign, now)
        if self._context.membership.may_vote and self.rules.vote(bid, now):
            self._write(RecordKind.VOTE, bid.owner, Term(bid.term, self.name), out)
            self._context.spawn(partial(self._vote_for_itself, campaign))

    def _request_votes(self, campaign: Campaign, now: float) -> None:
        """With each poll, request the votes not given yet: a node that got a later heartbeat of the owner agrees later.
        A node that has promised its vote ignores the request.
        """
        campaign.asked_at = now
        for peer in self.rules.peers:
            if self._context.mesh is not None and peer not in campaign.votes:
                self._context.mesh.send_terms(peer, Ask(campaign.bid))

    async def _vote_for_itself(self, campaign: Campaign) -> None:
        await self._context.flushed()
        out = Outcome(now_us=self._context.environment.now_us())
        campaign.votes.add(self.name)
        self._count(campaign, out)
        self._context.submit(out)

    def _count(self, campaign: Campaign, out: Outcome) -> None:
        bid = campaign.bid
        if self._campaigns.get(bid.owner) is not campaign or not self._context.membership.is_majority(campaign.votes):
            return
        now = self._boot()
        del self._campaigns[bid.owner]
        self._released.pop(bid.owner, None)
        is_served = campaign.confirms and bid.owner in self.rules.claims and now < campaign.until
        self.rules.won(bid, now)
        term = self._obeyed[bid.owner] = Term(bid.term, self.name)
        self._write(RecordKind.TERM, bid.owner, term, out)
        log.info("= elected to serve %s in term %d", bid.owner, bid.term)
        if is_served:
            self.served[bid.owner] = bid.term
            self._takeover_sync.renew(bid.owner)
        else:
            self.served.pop(bid.owner, None)
            lent = {} if campaign.released is None else campaign.released.lent
            self._takeover_sync.begin(bid.owner, bid.term, campaign.has, lent)
        self._send_if_due(now)

    def claims(self, owner: str, number: int) -> bool:
        """Whether this node may serve `owner` in term `number`, as soon as it can."""
        claim = self.rules.claims.get(owner)
        return claim is not None and claim.term == number

    def has_begun(self, owner: str, number: int, out: Outcome) -> None:
        """The messages of `owner` have arrived."""
        self.served[owner] = number
        if owner == self.name:
            self._alarm(owner, "returned", f"this node serves its own messages again, in term {number}")
        else:
            self._alarm(owner, "takeover", f"this node serves the messages of {owner}, in term {number}")
        self._set_held(out)

    def _alarm(self, subject: str, code: str, message: str) -> None:
        """Raise an alarm about `subject`; the one before about the same subject ends, unless it is equal."""
        before = self._alarms.get(subject)
        if before is not None and before != (code, message):
            self._context.alarm_over(*before)
        self._alarms[subject] = code, message
        self._context.alarm(code, message)

    def _alarm_over(self, subject: str) -> None:
        if (alarm := self._alarms.pop(subject, None)) is not None:
            self._context.alarm_over(*alarm)

    def could_not_begin(self, owner: str, number: int) -> None:
        """The messages of `owner` have not arrived in time."""
        if self.rules.release(owner, number):
            log.warning("! the messages of %s could not be taken over in time", owner)
            self._no_bid_before[owner] = self._boot() + SNAPSHOT_FACTOR * self._after

    def _is_obeyed(self, owner: str) -> bool:
        return self.rules.term_of(owner) == self._obeyed.get(owner, Term(0, owner))

    def _obey_terms(self) -> None:
        """Hand off what other nodes serve now, and what this node may not claim any more."""
        rules = self.rules
        self._has_foreign_server = any(rules.term_of(owner).server != owner for owner in rules.members)
        for owner in rules.members:
            term = rules.term_of(owner)
            if not self._is_obeyed(owner):
                self._obeyed[owner] = term
                self._takeover_sync.end(owner)
                self._campaigns.pop(owner, None)
                if term.server != self.name:
                    self._hand_off(owner, term.server)
                    if owner == self.name:
                        served = f"{term.server} serves the messages of this node, in term {term.number}"
                        self._alarm(owner, "taken-over", served)
                elif owner == self.name:
                    # An earlier incarnation of this node won it; peers accept nothing that is lent in a lesser term.
                    self.served[owner] = term.number
        for owner in list(self.served):
            if owner != self.name and (owner not in rules.claims or owner not in rules.members):
                rules.claims.pop(owner, None)
                self._hand_off(owner, owner)

    def _hand_off(self, owner: str, server: str) -> None:
        context = self._context
        self.served.pop(owner, None)
        self._alarm_over(owner)
        self._takeover_sync.end(owner)
        held = context.broker.queues.handoff.cede(owner, server)
        term = self.rules.term_of(owner)
        if context.mesh is not None and term.number and term.server == server:
            context.mesh.send_terms(server, Holds(owner, term.number, held))

    def _release(self, asker: str, owner: str, number: int, out: Outcome) -> None:
        """The owner is back: return its messages to it."""
        if asker != owner:
            return
        claim = self.rules.claims.get(owner)
        if claim is not None and claim.term > number:
            return
        if self.rules.release(owner, number):
            log.info("= %s is back: this node has stopped serving its messages", owner)
        handoff = self._context.broker.queues.handoff
        lent = handoff.with_peers(owner)
        self._hand_off(owner, owner)
        held = [delivery.message.dot for delivery in handoff.in_hand(owner)]
        self._context.spawn(partial(self._send_released, owner, number, {**lent, self.name: held}))

    async def _send_released(self, owner: str, number: int, lent: Mapping[str, list[Dot]]) -> None:
        """Send the release once all that was settled here is durable."""
        context = self._context
        await context.flushed()
        if context.mesh is not None:
            context.mesh.send_terms(owner, Release(owner, number, dict(context.durable_vector()), lent))

    def _request_release(self, now: float) -> None:
        rules, own = self.rules, self.name
        if own in rules.claims or not rules.in_contact(now):
            return
        heard = rules.server_heard(own, now)
        released = self._released.get(own)
        if (
            heard is None
            or (released is not None and released.term == heard)
            or now - self._asked_at < self._after / POLLS
        ):
            return
        self._asked_at = now
        if self._context.mesh is not None:
            self._context.mesh.send_terms(heard.server, Release(own, heard.number))

    # Whether anything may be delivered

    def _set_held(self, out: Outcome) -> None:
        now = self._boot()
        queues = self._context.broker.queues
        until = float("inf")
        if self.is_active:
            until = min([self.rules.lease_until(owner, now) for owner in queues.owned.serves], default=until)
        self._lease_until = until if until > now else float("inf")
        queues.is_starting = self.is_starting or self._context.catch_up.is_stale
        held = queues.is_starting or until <= now or (self.is_active and not self._context.has_synced_with_majority())
        if held:
            queues.held = True
        elif queues.held:
            queues.release_hold(out)

    def settled_through(self, owner: str, marks: Mapping[str, int]) -> int:
        """See `qmq.broker.takeover.quorum_acks`; `marks` are those of the peers, and this node has all of its
        records."""
        if not self._context.membership.is_learner:
            marks = {**marks, self.name: self._context.broker.next_sequence}
        return settled_through(self.rules, owner, marks)

    # Status

    def _place(self, owner: str, now: float) -> OwnerState:
        if owner in self._takeover_sync:
            return OwnerState.ARRIVING
        if owner in self._context.broker.queues.owned.serves:
            is_held = self._context.broker.queues.held
            return OwnerState.SERVING if self.rules.leads(owner, now) and not is_held else OwnerState.WAITING
        return OwnerState.BIDDING if owner in self._campaigns else OwnerState.OTHERS

    def _claimed_for(self, owner: str, now: float) -> float | None:
        """Seconds for which this node has claimed `owner` without a break."""
        claim = self.rules.claims.get(owner)
        return None if claim is None else round(now - claim.since, 1)

    def picture(self) -> dict[str, Any]:
        """For the status: which node serves which owner, as far as this node knows."""
        now = self._boot()
        return {
            "active": self.is_active,
            "may_hand_out": not self._context.broker.queues.held,
            "serves": sorted(self._context.broker.queues.owned.serves),
            "owners": [
                {
                    "owner": owner,
                    "server": self.rules.term_of(owner).server,
                    "term": self.rules.term_of(owner).number,
                    "place": self._place(owner, now).name.lower(),
                    "seconds": self._claimed_for(owner, now),
                    "lease_seconds": round(max(0.0, min(self.rules.lease_until(owner, now) - now, self._after)), 1),
                }
                for owner in self.rules.members
            ],
        }
