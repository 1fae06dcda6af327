"""Takeover at run time: the clock, the frames and the records of elections, and votes durable before they are sent.

`qmq.broker.takeover.elections` decides which owners' messages this node serves, hands off or requests votes for.
`TakeoverSync` brings the messages here, and `qmq.broker.queues.handoff` moves them in memory. This polls at least ten
times in `takeover_after_seconds`, and after each event that may matter. It carries out what was decided, in that order,
and decides whether the node may deliver at all (`Queues.held`).

Surprising: the clock that counts here runs on while the process is stopped. It is read before any decision, and
before what was decided earlier is delivered (`check`). So a node that was stopped does not first deliver what it was
about to.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.takeover.campaigns import POLLS, NodeView
from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import Ownership, Term
from qmq.broker.takeover.owner_states import TakeoverStatistics, takeover_statistics
from qmq.broker.takeover.quorum_acks import settled_through
from qmq.config import MeshSettings
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.waker import Waker
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.takeover_effects import TakeoverEffects
from qmq.mesh.membership.takeover_sync import TakeoverSync
from qmq.mesh.repair.catch_up import CatchUp
from qmq.model.dots import Origin
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.frames import Ask, HeartbeatFrame, Holds, Release, Terms, Vote
from qmq.storage.catalog.facts import TAKEOVER_AFTER
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.format.term_record import TermNote

HELD_SECONDS = 10.0
"""For which a node delivers no queue messages, before that is a condition: a start or a lost link takes less."""

HELD = "this node delivers no queue messages until it hears a majority of the nodes and what they settled"

log = logging.getLogger("qmq.takeover")


class Takeover:
    """The terms of one node. Made after its broker and its membership."""

    def __init__(
        self,
        engine: EngineParts,
        node: NodeBasics,
        mesh: Mesh,
        members: LiveMembership,
        catch_up: CatchUp,
        seals: Seals,
        settings: MeshSettings,
    ) -> None:
        self._engine = engine
        self._mesh = mesh
        self._members = members
        self._membership = membership = members.membership
        self._catch_up = catch_up
        self._pauses: list[Callable[[], None]] = []
        self._terms: list[Callable[[], None]] = []
        self._after = settings.takeover_after_seconds
        self.is_wanted = settings.takeover
        self._environment = engine.environment
        notes = engine.store.recovered.terms
        self._earlier_ms = self._longest_earlier_after()
        self.rules = Ownership(
            membership.node,
            membership.members,
            self._after,
            self._environment.boot_seconds(),
            promised={note.owner: Term(note.number, note.server) for note in notes if note.is_vote},
            terms={note.owner: Term(note.number, note.server) for note in notes if not note.is_vote},
            earlier_after=self._earlier_ms / 1000,
            is_majority=membership.is_majority,
        )
        self.elections = Elections(
            self.rules, self._membership, is_wanted=self.is_wanted, draw=self._environment.rng.random
        )
        self.is_starting = False
        self._forgot = False
        self.sync = TakeoverSync(engine, node, mesh, membership, seals, self, self._after)
        self._effects = TakeoverEffects(engine, node, mesh, self.elections, self.sync, self.wake)
        self._polled_at = self._environment.boot_seconds()
        self._lease_until = math.inf
        self._held_since = math.inf
        self._held = ConditionGroup(node, "queues-held")
        self._waker = Waker()

    def _longest_earlier_after(self) -> int:
        """The longest `takeover_after_seconds` of earlier runs, in ms, on which the lease of a peer may still rely.

        The time of this run is on the disk before any peer hears this node.
        """
        after_ms = round(self._after * 1000)
        catalog = self._engine.store.catalog
        earlier_ms = int(catalog.facts().get(TAKEOVER_AFTER, 0))
        if earlier_ms < after_ms:
            catalog.set_facts({TAKEOVER_AFTER: str(after_ms)})
        return earlier_ms

    @property
    def terms_served(self) -> Mapping[str, int]:
        """See `LinkTerms.terms_served`."""
        return self.elections.served

    @property
    def is_active(self) -> bool:
        """Whether others may take over the messages that this node does not serve for a while."""
        return self.elections.is_active

    @property
    def _serves(self) -> Collection[str]:
        return self._engine.broker.queues.owned.serves

    def follow(self, *, paused: Callable[[], None], terms: Callable[[], None]) -> None:
        """Call `paused` when this process was stopped for long, and `terms` when terms may have changed."""
        self._pauses.append(paused)
        self._terms.append(terms)

    def _terms_changed(self) -> None:
        for follower in self._terms:
            follower()

    def begin(self) -> None:
        """Obey the recorded terms; nothing is delivered before the first lease."""
        self.is_starting = True
        out = Outcome(now_us=self._engine.environment.now_us())
        self._engine.broker.queues.hold(out)
        self._effects.carry_out(self.elections.obey_terms(), out)
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
        return max(0.001, min(self._after / POLLS, self._lease_until - self._environment.boot_seconds()))

    def wake(self) -> None:
        """Poll soon."""
        self._waker.wake()

    def has_let_go(self, owner: str) -> bool:
        """Whether this node delivers nothing of a retired owner, now or later."""
        self.poll()
        return owner not in self._serves

    def links_changed(self) -> None:
        """A link began or ended, in the middle of another decision."""
        self.elections.links_changed(self._mesh.present())
        if self._mesh.linked():
            self._engine.broker.queues.isolated_mode.stop()
        self.wake()

    # Polling

    def is_late(self) -> bool:
        """Whether this node was stopped, or its lease has ended, since the last poll."""
        now = self._environment.boot_seconds()
        return self.is_active and (now - self._polled_at > self._after / 2 or now >= self._lease_until)

    def check(self) -> None:
        """Called after each wait."""
        if self.is_late():
            self.poll()

    def poll(self) -> None:
        """Do everything that is due now without a frame or a record."""
        now = self._environment.boot_seconds()
        engine, rules = self._engine, self.rules
        out = Outcome(now_us=engine.environment.now_us())
        away = now - self._polled_at
        if away > self._after / 2:
            if self.is_active:  # else only events cause a poll
                log.warning(
                    "! this node was paused for %.1f s: it delivers nothing until its peers have responded", away
                )
            rules.was_away(now)
            if self.is_active:
                self._engine.broker.queues.hold(out)  # before it can pass on as delivered what no client was sent
            for follower in self._pauses:
                follower()
        self._polled_at = now
        rules.enrol(self._membership.members)
        self._check_learning(now)
        self._check_earlier(now)
        self._effects.carry_out(self.elections.poll(now, self._view()), out)
        self._check_isolation(now, out)
        self._set_held(out)
        self._terms_changed()
        engine.path.submit(out)

    def _view(self) -> NodeView:
        """What the decisions need to know of this node now."""
        has_all = self._mesh.has_synced_with_majority() and not self._catch_up.is_stale
        return NodeView(self._serves, self.sync, has_all)

    def _check_isolation(self, now: float, out: Outcome) -> None:
        """While no link is up, messages that never left this node may be delivered."""
        engine, queues = self._engine, self._engine.broker.queues
        isolated_mode = queues.isolated_mode
        is_linked = self._mesh.is_alone or bool(self._mesh.linked())
        if self.is_active and not is_linked and not self.is_starting and not self.rules.leads(self._mesh.node, now):
            isolated_mode.begin(engine.broker.next_sequence - 1)
        elif isolated_mode.after is not None or isolated_mode.waiting:
            queues.end_isolation(out)

    def _check_learning(self, now: float) -> None:
        """A learner that had made promises on an earlier disk waits until no peer can rely on them any more."""
        membership = self._membership
        if membership.is_learner:
            self.rules.learner = True
            return
        if self.rules.learner and not self._forgot:
            own = self._engine.store.catalog.incarnations()
            known = self._engine.path.received_vector()
            self._forgot = any(o.node == self.rules.node and o not in own for o in known)
        self.rules.learner = self._forgot and now - self.rules.awake_since < self._after

    def _check_earlier(self, now: float) -> None:
        """When no lease relies on an earlier run any more, the next run need not wait for it."""
        after_ms = round(self._after * 1000)
        if self._earlier_ms > after_ms and now >= self.rules.bound_until:
            self._earlier_ms = after_ms
            self._members.remember({TAKEOVER_AFTER: str(after_ms)})

    # Frames and records of peers

    def greet(self, way: LinkOutbox) -> None:
        """See `LinkTerms.greet`."""
        way.put(HeartbeatFrame(self.rules.beat(self._environment.boot_seconds())))

    def terms_came(self, peer: Origin, frame: Terms, way: LinkOutbox, out: Outcome) -> None:
        """See `LinkTerms.terms_came`."""
        now, elections = self._environment.boot_seconds(), self.elections
        match frame:
            case HeartbeatFrame(beat):
                response = elections.heartbeat_received(peer, beat, now)
                if response is not None:
                    way.put(HeartbeatFrame(response))
            case Ask(bid):
                self._effects.carry_out(elections.vote_requested(peer.node, bid, now), out)
            case Vote(owner, number, has):
                self._effects.carry_out(elections.vote_received(peer.node, owner, number, has, now), out)
            case Release(owner, number, None, _):
                self._effects.carry_out(elections.release_requested(peer.node, owner, number), out)
            case Release(owner, number, has, lent):
                assert has is not None
                elections.released(peer.node, owner, number, has, lent)
            case Holds(owner, number, dots):
                if elections.obeys(owner, number):
                    self.sync.peer_holds(peer.node, owner, number, dots, out)
        if self.is_active:
            self._effects.carry_out(elections.after_frame(now, self._view()), out)
            self._set_held(out)
            self._terms_changed()
        if isinstance(frame, Release):
            self.wake()

    def noted(self, note: TermNote) -> None:
        """A record says which node serves, or what an earlier incarnation promised. In the middle of a decision."""
        if self.elections.term_recorded(note.owner, Term(note.number, note.server), is_vote=note.is_vote):
            self.wake()

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        """See `LinkTerms.may_borrow`."""
        may, effects = self.elections.may_borrow(peer, terms, echo_us, owners, self._environment.boot_seconds())
        self._effects.carry_out(effects, Outcome())
        return may

    # Syncs

    def claims(self, owner: str, number: int) -> bool:
        """Whether this node may serve `owner` in term `number`, as soon as it can."""
        return self.elections.claims(owner, number)

    def has_begun(self, owner: str, number: int, out: Outcome) -> None:
        """The messages of `owner` have arrived."""
        self._effects.carry_out(self.elections.sync_done(owner, number), out)
        self._set_held(out)

    def could_not_begin(self, owner: str, number: int) -> None:
        """The messages of `owner` have not arrived in time."""
        if self.elections.sync_failed(owner, number, self._environment.boot_seconds()):
            log.warning("! the messages of %s could not be taken over in time", owner)

    # Whether anything may be delivered

    def _set_held(self, out: Outcome) -> None:
        now = self._environment.boot_seconds()
        queues = self._engine.broker.queues
        until = self.elections.lease_end(self._serves, now)
        self._lease_until = until if until > now else math.inf
        queues.is_starting = self.is_starting or self._catch_up.is_stale
        held = queues.is_starting or until <= now or (self.is_active and not self._mesh.has_synced_with_majority())
        if held:
            queues.hold(out)
        elif queues.held:
            queues.release_hold(out)
        self._held_since = min(self._held_since, now) if held else math.inf
        self._held.show([HELD] if now - self._held_since >= HELD_SECONDS else [])

    def settled_through(self, owner: str, marks: Mapping[str, int]) -> int:
        """See `qmq.broker.takeover.quorum_acks`; `marks` are those of the peers, and this node has all of its
        records."""
        if not self._membership.is_learner:
            marks = {**marks, self.rules.node: self._engine.broker.next_sequence}
        return settled_through(self.rules, owner, marks)

    def statistics(self) -> TakeoverStatistics:
        return takeover_statistics(
            self.elections, self._environment.boot_seconds(), self._view(), is_held=self._engine.broker.queues.held
        )
