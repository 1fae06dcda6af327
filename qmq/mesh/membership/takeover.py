"""Takeover at run time: the clock, the frames and the records of elections, and votes durable before they are sent.

`qmq.broker.takeover.elections` decides which owners' messages this node serves, hands off or requests votes for.
`TakeoverSync` brings the messages here, and `qmq.broker.queues.handoff` moves them in memory. This polls at least ten
times in `takeover_after_seconds`, and after each event that may matter. It carries out what was decided, in that order,
and decides whether the node may deliver at all (`Queues.held`).

Surprising: the clock that counts here runs on while the process is stopped. It is read before any decision (`check`),
so a node that was stopped does not first deliver what it was about to.
"""

import logging
import math
from collections.abc import Collection, Mapping
from typing import Protocol

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.takeover.campaigns import POLLS, NodeView
from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import Ownership, Term
from qmq.broker.takeover.owner_states import TakeoverStatistics, takeover_statistics
from qmq.broker.takeover.quorum_acks import settled_through
from qmq.config import MeshSettings
from qmq.engine.commit.receipts import Receipts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.waker import Waker
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.takeover_effects import TakeoverEffects
from qmq.mesh.membership.takeover_sync import TakeoverSync, TakeoverSyncContext
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.repair.catch_up import CatchUp
from qmq.model.dots import Origin
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import Ask, HeartbeatFrame, Holds, Release, Terms, Vote
from qmq.storage.catalog.facts import TAKEOVER_AFTER
from qmq.storage.format.term_record import TermNote

HELD_SECONDS = 10.0
"""For which a node delivers no queue messages, before that is a condition: a start or a lost link takes less."""

HELD = "this node delivers no queue messages until it hears a majority of the nodes and what they settled"

log = logging.getLogger("qmq.takeover")


class TakeoverContext(TakeoverSyncContext, Protocol):
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
        self.elections = Elections(
            self.rules, context.membership, is_wanted=self.is_wanted, draw=context.environment.rng.random
        )
        self.served = self.elections.served
        self.is_starting = False
        self._forgot = False
        self._takeover_sync = TakeoverSync(context, self, self._after)
        self._carry_out = TakeoverEffects(context, self.elections, self._takeover_sync, self.wake).carry_out
        self._polled_at = self._boot()
        self._lease_until = math.inf
        self._held_since = math.inf
        self._held = ConditionGroup(context, "queues-held")
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
    def is_active(self) -> bool:
        """Whether others may take over the messages that this node does not serve for a while."""
        return self.elections.is_active

    @property
    def _serves(self) -> Collection[str]:
        return self._context.broker.queues.owned.serves

    def begin(self) -> None:
        """Obey the recorded terms; nothing is delivered before the first lease."""
        out = Outcome(now_us=self._context.environment.now_us())
        self._carry_out(self.elections.obey_terms(), out)
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
            return math.inf
        return max(0.001, min(self._after / POLLS, self._lease_until - self._boot()))

    def wake(self) -> None:
        """Poll soon."""
        self._waker.wake()

    def has_let_go(self, owner: str) -> bool:
        """Whether this node delivers nothing of a retired owner, now or later."""
        self.poll()
        return owner not in self._serves

    def links_changed(self) -> None:
        """A link began or ended, in the middle of another decision."""
        mesh = self._context.mesh
        if mesh is not None:
            self.elections.links_changed(mesh.present())
            if mesh.linked():
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
        self._carry_out(self.elections.poll(now, self._view()), out)
        self._check_isolation(now, out)
        self._set_held(out)
        context.receipts.terms_changed()
        context.submit(out)

    def _view(self) -> NodeView:
        """What the decisions need to know of this node now."""
        context = self._context
        has_all = context.has_synced_with_majority() and not context.catch_up.is_stale
        return NodeView(self._serves, self._takeover_sync, has_all)

    def _check_isolation(self, now: float, out: Outcome) -> None:
        """While no link is up, messages that never left this node may be delivered."""
        context, queues = self._context, self._context.broker.queues
        isolated_mode = queues.isolated_mode
        is_linked = context.mesh is None or bool(context.mesh.linked())
        if self.is_active and not is_linked and not self.is_starting and not self.rules.leads(context.origin.node, now):
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
            self._forgot = any(o.node == self.rules.node and o not in own for o in known)
        self.rules.learner = self._forgot and now - self.rules.awake_since < self._after

    def _check_earlier(self, now: float) -> None:
        """When no lease relies on an earlier run any more, the next run need not wait for it."""
        after_ms = round(self._after * 1000)
        if self._earlier_ms > after_ms and now >= self.rules.bound_until:
            self._earlier_ms = after_ms
            self._context.members.remember({TAKEOVER_AFTER: str(after_ms)})

    # Frames and records of peers

    def greet(self, way: LinkOutbox) -> None:
        """See `Host.greet`."""
        way.put(HeartbeatFrame(self.rules.beat(self._boot())))

    def received(self, peer: Origin, frame: Terms, way: LinkOutbox, out: Outcome) -> None:
        """See `Host.terms_came`."""
        now, elections = self._boot(), self.elections
        match frame:
            case HeartbeatFrame(beat):
                response = elections.heartbeat_received(peer, beat, now)
                if response is not None:
                    way.put(HeartbeatFrame(response))
            case Ask(bid):
                self._carry_out(elections.vote_requested(peer.node, bid, now), out)
            case Vote(owner, number, has):
                self._carry_out(elections.vote_received(peer.node, owner, number, has, now), out)
            case Release(owner, number, None, _):
                self._carry_out(elections.release_requested(peer.node, owner, number), out)
            case Release(owner, number, has, lent):
                assert has is not None
                elections.released(peer.node, owner, number, has, lent)
            case Holds(owner, number, dots):
                if elections.obeys(owner, number):
                    self._takeover_sync.peer_holds(peer.node, owner, number, dots, out)
        if self.is_active:
            self._carry_out(elections.after_frame(now, self._view()), out)
            self._set_held(out)
            self._context.receipts.terms_changed()
        if isinstance(frame, Release):
            self.wake()

    def noted(self, note: TermNote) -> None:
        """A record says which node serves, or what an earlier incarnation promised. In the middle of a decision."""
        if self.elections.term_recorded(note.owner, Term(note.number, note.server), is_vote=note.is_vote):
            self.wake()

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        """See `Host.may_borrow`."""
        may, effects = self.elections.may_borrow(peer, terms, echo_us, owners, self._boot())
        self._carry_out(effects, Outcome())
        return may

    # Syncs

    def claims(self, owner: str, number: int) -> bool:
        """Whether this node may serve `owner` in term `number`, as soon as it can."""
        return self.elections.claims(owner, number)

    def has_begun(self, owner: str, number: int, out: Outcome) -> None:
        """The messages of `owner` have arrived."""
        self._carry_out(self.elections.sync_done(owner, number), out)
        self._set_held(out)

    def could_not_begin(self, owner: str, number: int) -> None:
        """The messages of `owner` have not arrived in time."""
        if self.elections.sync_failed(owner, number, self._boot()):
            log.warning("! the messages of %s could not be taken over in time", owner)

    # Whether anything may be delivered

    def _set_held(self, out: Outcome) -> None:
        now = self._boot()
        queues = self._context.broker.queues
        until = self.elections.lease_end(self._serves, now)
        self._lease_until = until if until > now else math.inf
        queues.is_starting = self.is_starting or self._context.catch_up.is_stale
        held = queues.is_starting or until <= now or (self.is_active and not self._context.has_synced_with_majority())
        if held:
            queues.held = True
        elif queues.held:
            queues.release_hold(out)
        self._held_since = min(self._held_since, now) if held else math.inf
        self._held.show([HELD] if now - self._held_since >= HELD_SECONDS else [])

    def settled_through(self, owner: str, marks: Mapping[str, int]) -> int:
        """See `qmq.broker.takeover.quorum_acks`; `marks` are those of the peers, and this node has all of its
        records."""
        if not self._context.membership.is_learner:
            marks = {**marks, self.rules.node: self._context.broker.next_sequence}
        return settled_through(self.rules, owner, marks)

    def statistics(self) -> TakeoverStatistics:
        return takeover_statistics(self.elections, self._boot(), self._view(), is_held=self._context.broker.queues.held)
