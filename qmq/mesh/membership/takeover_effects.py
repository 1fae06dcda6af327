"""What follows from elections, on one node: frames, records, conditions, and hand-offs of messages.

A vote is sent once it is durable. A hand-off is confirmed once all that was settled here before is durable.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.takeover import election_effects
from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import Bid, Term
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.mesh.membership.takeover_sync import TakeoverSync
from qmq.model.dots import Dot
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.frames import Ask, HeartbeatFrame, Holds, Release, Terms, Vote
from qmq.storage.format.record import RecordKind
from qmq.storage.format.term_record import pack_term

log = logging.getLogger("qmq.takeover")


@dataclass(eq=False, repr=False)
class TakeoverEffects:
    """Carries out what `elections` decides. `wake` causes a poll soon."""

    _engine: EngineParts
    _node: NodeBasics
    _mesh: Mesh
    _elections: Elections
    _sync: TakeoverSync
    _wake: Callable[[], None]

    def carry_out(self, effects: Iterable[election_effects.ElectionEffect], out: Outcome) -> None:
        """Carry out what was decided; records go to `out`."""
        sync = self._sync
        for effect in effects:
            match effect:
                case election_effects.SendHeartbeat(peer, beat):
                    self._send(peer, HeartbeatFrame(beat))
                case election_effects.BeginCampaign(bid):
                    log.info("= requests votes to serve %s in term %d", bid.owner, bid.term)
                case election_effects.RequestVote(peer, bid):
                    self._send(peer, Ask(bid))
                case election_effects.RequestRelease(server, number):
                    self._send(server, Release(self._mesh.node, number))
                case election_effects.RecordVote(bid):
                    self._write(RecordKind.VOTE, bid.owner, Term(bid.term, bid.candidate), out)
                    self._node.spawn(partial(self._give_vote, bid))
                case election_effects.RecordTerm(owner, term):
                    self._write(RecordKind.TERM, owner, term, out)
                    log.info("= elected to serve %s in term %d", owner, term.number)
                case election_effects.BeginSync(owner, number, needs, lent):
                    sync.begin(owner, number, needs, lent)
                case election_effects.ContinueService(owner):
                    sync.renew(owner)
                case election_effects.EndSync(owner):
                    sync.end(owner)
                case election_effects.HandOff():
                    self._hand_off(effect)
                case election_effects.ReturnMessages(hand_off, number, was_served):
                    if was_served:
                        log.info("= %s is back: this node has stopped serving its messages", hand_off.owner)
                    self._return(hand_off, number)
                case election_effects.RaiseCondition(code, message):
                    self._node.raise_condition(code, message)
                case election_effects.ClearCondition(code, message):
                    self._node.clear_condition(code, message)
                case election_effects.ReportEvent(code, message):
                    self._node.add_event(code, message)
                case election_effects.SchedulePoll():
                    self._wake()

    def _send(self, peer: str, frame: Terms) -> None:
        self._mesh.send_terms(peer, frame)

    def _write(self, kind: RecordKind, owner: str, term: Term, out: Outcome) -> None:
        engine = self._engine
        engine.broker.note_fact(kind, pack_term(owner, term.number, term.server), engine.environment.now_us(), out)

    async def _give_vote(self, bid: Bid) -> None:
        """Send a vote once it is durable; one for this node counts then."""
        engine = self._engine
        await engine.path.flushed()
        if bid.candidate != self._mesh.node:
            self._send(bid.candidate, Vote(bid.owner, bid.term, dict(engine.path.durable_vector())))
            return
        out = Outcome(now_us=engine.environment.now_us())
        self.carry_out(
            self._elections.vote_received(bid.candidate, bid.owner, bid.term, {}, engine.environment.boot_seconds()),
            out,
        )
        engine.path.submit(out)

    def _hand_off(self, hand_off: election_effects.HandOff) -> None:
        owner, server, number = hand_off
        self._sync.end(owner)
        held = self._engine.broker.queues.handoff.cede(owner, server)
        if number:
            self._send(server, Holds(owner, number, held))

    def _return(self, hand_off: election_effects.HandOff, number: int) -> None:
        owner, handoff = hand_off.owner, self._engine.broker.queues.handoff
        lent = handoff.with_peers(owner)
        self._hand_off(hand_off)
        held = [delivery.message.dot for delivery in handoff.in_hand(owner)]
        self._node.spawn(partial(self._send_released, owner, number, {**lent, self._mesh.node: held}))

    async def _send_released(self, owner: str, number: int, lent: Mapping[str, list[Dot]]) -> None:
        """Send the release once all that was settled here is durable."""
        await self._engine.path.flushed()
        self._send(owner, Release(owner, number, dict(self._engine.path.durable_vector()), lent))
