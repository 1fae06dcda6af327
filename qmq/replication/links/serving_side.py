"""The serving half of one open link: how the follower's frames change this node.

The feed sends records; the send methods of the mesh send topics and lent messages. State here ends with the link,
except lent messages: the follower's clients may be working on them. The next link reports which it still holds
(`Held`). All others are requeued once the follower's own records, which hold its settles, have arrived. Until then
nothing new is lent to it either: a restarted follower does not remember what it settled, and would deliver again what
its clients have confirmed.
Pure: decisions go into the Outcome that the caller submits.
"""

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.broker.topics.retained_sync import RetainedSync
from qmq.errors import MeshError
from qmq.model.dots import Dot, Vector, covers
from qmq.replication.anti_entropy.feed import JournalFeed
from qmq.replication.links.common_frames import take_common
from qmq.replication.links.host import Host
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import Ack, Credit, Follows, Held, MembershipFrame, Returned, Settled, Welcome
from qmq.replication.protocol.handshake import Partner


class ServingSide:
    """One follower, from the moment it was believed."""

    def __init__(self, host: Host, partner: Partner, outbox: LinkOutbox) -> None:
        self.peer = partner.origin.node
        self.partner = partner
        self.outbox = outbox
        self.feed = JournalFeed()
        self.open = False
        self._host = host
        # With its consumers before this link, not yet known to be held, settled or lost; None once that is decided.
        self._suspects: set[Dot] | None = None
        # The last own record of the follower when it reported what its consumers have; None until then.
        self._through: Vector | None = None
        # Credit that came before that was decided: what its consumers settled may not be known here yet.
        self._early_offers: dict[str, int] = {}

    def begin(self) -> None:
        """Open the link: the follower may borrow, and learns what it will get."""
        lending = self._host.broker.lending
        self.outbox.now_us = self._clock_us
        self.outbox.node = self._host.origin.node
        self._suspects = lending.with_peer(self.peer)
        lending.borrower_connected(self.peer)
        self.open = True
        retained = self._host.broker.retained
        self.outbox.spread = retained.spreads[self.peer] = RetainedSync(retained, self.outbox.wake)
        self.outbox.terms = self._host.terms.terms_served
        self.outbox.is_lent = self._is_lent
        self.outbox.put(Welcome(dict(self._host.path.durable_vector()), self._clock_us()))
        self.outbox.put(MembershipFrame(self._host.membership.standing))

    def _clock_us(self) -> int:
        return self._host.broker.clocks.shown_time(self._host.environment.now_us())

    def _is_lent(self, message: Message) -> bool:
        return self._host.broker.lending.lent.get(self.peer, {}).get(message.dot) is message

    def end(self) -> list[Message]:
        """Close the link; returns the lent messages that never left. Idempotent."""
        if not self.open:
            return []
        self.open = False
        broker = self._host.broker
        broker.lending.borrower_lost(self.peer)
        broker.retained.spreads.pop(self.peer, None)
        return self.outbox.unsent_lends()

    def apply(self, frame: Follows, out: Outcome) -> None:
        """Apply one frame. Raises MeshError if it may not come now; nothing has changed then."""
        lending = self._host.broker.lending
        match frame:
            case Ack():
                self._acknowledged(frame, out)
            case Credit(offers):
                if self._through is None:
                    raise MeshError("bad-frame", "credit came before the list of held messages")
                if self._suspects is not None:
                    self._early_offers.update(offers)
                    return
                for queue, limit in offers:
                    lending.offer(self.peer, queue, limit, out)
            case Settled(dots):
                lending.settled(self.peer, dots)
            case Returned(returns):
                lending.returned(self.peer, returns, out)
            case Held(_, through):
                if self._through is not None:
                    raise MeshError("bad-frame", "the list of held messages came twice")
                # Only its report about its own records counts; anything else could never be covered.
                self._through = {origin: last for origin, last in through.items() if origin.node == self.peer}
                if self._suspects is not None:
                    self._suspects.difference_update(frame.keep)
                # Also what another served when its consumers got it.
                lent = lending.lent.get(self.peer, {})
                self._host.broker.queues.handoff.hold_elsewhere(
                    self.peer, [dot for dot in frame.keep if dot not in lent]
                )
                self.take_back(self._host.path.received_vector(), out)
                self._host.follower.held_came(self.peer)
            case _:
                take_common(self._host, self.partner.origin, frame, self.outbox, out)

    def take_back(self, have: Vector, out: Outcome, *, late: bool = False) -> int:
        """Requeue what the follower has lost, if that is known by now or overdue (`late`). Returns how many."""
        suspects = self._suspects
        if suspects is None or not self.open:
            return 0
        if not late and not self._has_its_settles(have):
            return 0
        self._suspects = None
        lending = self._host.broker.lending
        taken = lending.give_up(self.peer, suspects, out)
        for queue, limit in self._early_offers.items():
            lending.offer(self.peer, queue, limit, out)
        self._early_offers = {}
        return taken

    def _has_its_settles(self, have: Vector) -> bool:
        """Whether the follower has reported what it holds, and all own records that it had then have arrived. It may
        name an incarnation that this node has forgotten already: no record of that one will come."""
        forgotten = self._host.broker.forgotten
        return self._through is not None and covers(
            have, {origin: last for origin, last in self._through.items() if origin not in forgotten}
        )

    def _acknowledged(self, ack: Ack, out: Outcome) -> None:
        host = self._host
        host.broker.queues.settlement.clock_heard(self.partner.origin, ack.sent_us, out)
        self.feed.acknowledged(ack)
        if ack.direct is not None and self.outbox.spread is not None:
            self.outbox.spread.follows(frozenset(ack.direct))
        if ack.durable:
            host.follower.peer_durable(self.peer, dict(self.feed.durable))  # a checkpoint may read it in a thread
            # Durable, not received: a peer that crashes must not lend again what we have settled.
            host.broker.borrowing.owner_has(self.peer, self.feed.durable.get(host.origin, 0))
