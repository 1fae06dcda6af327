"""The pulling half of one open link: how frames of the serving node change this node, and what is sent back.

Records go through `acceptance`. Topic messages go to local subscribers only, so that none is delivered twice. Lent
messages go to local consumers. This half sends Acks with the changes of the two vectors, credit, interest and settles.
Pure: decisions go into the Outcome that the caller submits.
"""

from collections.abc import Mapping

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.model.dots import Origin, Vector
from qmq.replication.anti_entropy.acceptance import Acceptance
from qmq.replication.anti_entropy.gaps import Gaps
from qmq.replication.links.common_frames import take_common
from qmq.replication.links.host import Host
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import (
    Ack,
    Batches,
    Forgotten,
    Gap,
    HeartbeatFrame,
    Held,
    Hole,
    Lend,
    MembershipFrame,
    Retained,
    Serves,
    Topics,
    Waiting,
    Welcome,
)
from qmq.replication.protocol.handshake import Partner
from qmq.storage.format.batch import read_head
from qmq.storage.log.fsync_times import Durations


class PullingSide:
    """One node that we follow, from the moment it was believed."""

    def __init__(
        self,
        host: Host,
        partner: Partner,
        outbox: LinkOutbox,
        acceptance: Acceptance,
        gaps: Gaps,
        delays: Durations,
    ) -> None:
        """`delays` learns how long records of the peer were on their way, over all links to it."""
        self.peer = partner.origin.node
        self.partner = partner
        self.outbox = outbox
        self.open = False
        self.welcomed = False
        self.caught_up = False
        self.holed = False
        """The peer cannot give all records of its own origin: others should relay them."""
        self.bytes_received = 0
        self._host = host
        self._acceptance = acceptance
        self._gaps = gaps
        self._delays = delays
        self.had: Vector = {}
        """What the peer had when the link began."""
        self.ack_due = False
        self._frames = 0
        self._acked_frames = 0
        self._missing: Vector = {}
        self._undurable: Vector = {}
        self._received_reported: Vector = {}
        self._durable_reported: Vector = {}
        self._sent_direct: tuple[Origin, ...] = ()
        self._echo_us = 0

    def begin(self, direct: tuple[Origin, ...]) -> None:
        """Open the link: send all that the peer must know, in the order it expects. The node sends credit later."""
        host = self._host
        self.open = True
        host.broker.borrowing.owner_connected(self.peer)
        self._received_reported = dict(host.path.received_vector())
        self._durable_reported = dict(host.path.durable_vector())
        self._sent_direct = direct
        self.outbox.put(MembershipFrame(host.membership.standing))
        host.terms.greet(self.outbox)
        sent_us = host.broker.clocks.shown_time(host.environment.now_us())
        self.outbox.put(Ack(0, self._received_reported, self._durable_reported, direct, sent_us))
        own = host.origin
        through = {origin: last for origin, last in self._received_reported.items() if origin.node == own.node}
        through[own] = host.broker.next_sequence - 1
        # All that is borrowed: the peer may serve more by now than this node knows.
        self.outbox.put(Held(host.broker.borrowing.borrowed(), through))

    def end(self) -> None:
        """Close the link; what is borrowed stays with its consumers. Idempotent."""
        if self.open:
            self.open = False
            self._host.broker.borrowing.owner_lost(self.peer)

    def apply(self, frame: Serves, out: Outcome) -> bool:
        """Obey one frame; True when the received vector grew. Raises MeshError; what was taken before stays taken."""
        broker = self._host.broker
        match frame:
            case Batches(number, body):
                return self._take_batches(number, body, out)
            case Topics(messages):
                left_out = broker.retained.left_out
                if messages:
                    broker.topic_router.accept_all(messages, out)
                self._check_space(left_out)
            case Lend(messages, sent_us, terms):
                broker.queues.settlement.clock_heard(self.partner.origin, sent_us, out)
                self._borrow(messages, terms, out)
            case Forgotten(names):
                broker.borrowing.forgotten(self.peer, names)
            case Waiting(queues):
                broker.borrowing.waiting(self.peer, queues)
            case Retained(values):
                left_out = broker.retained.left_out
                for message in values:
                    broker.topic_router.accept_value(message, self.peer, out)
                self._check_space(left_out)
            case Gap(gaps):
                self._hear_of_gaps(gaps)
            case Hole(origins):
                if self.partner.origin in origins:
                    self.holed = True
                for origin in origins:
                    if origin != self._host.origin:
                        self._gaps.report(self.peer, origin, self.had.get(origin, 0), is_hole=True)
                self._host.follower.schedule_repair()
            case Welcome(vector, sent_us):
                broker.queues.settlement.clock_heard(self.partner.origin, sent_us, out)
                self.welcomed = True
                self.had = dict(vector)
                known = {self._host.origin, *self._acceptance.forgotten}
                self._missing = {origin: last for origin, last in vector.items() if origin not in known}
                broker.borrowing.owner_has(self.peer, vector.get(self._host.origin, 0))
                self._host.follower.peer_knows(self.peer, vector)
            case _:
                if isinstance(frame, HeartbeatFrame):
                    self._echo_us = max(self._echo_us, frame.beat.echo_us)
                take_common(self._host, self.partner.origin, frame, self.outbox, out)
        return False

    def _borrow(self, messages: list[Message], terms: Mapping[str, int], out: Outcome) -> None:
        borrowing = self._host.broker.borrowing
        owners = {message.origin.node for message in messages if message.sequence > 0}
        may = self._host.terms.may_borrow(self.peer, terms, self._echo_us, owners)
        for message in messages:
            verdict = message.sequence < 0 or may.get(message.origin.node, True)
            if verdict:
                borrowing.borrow(message, out)
            else:
                borrowing.decline(message, out, is_stale=verdict is None)

    def _check_space(self, left_out: int) -> None:
        """Report if more last values were left out than `left_out`."""
        if self._host.broker.retained.left_out > left_out:
            self._host.conditions.add_event(
                "retained-full", "there is no room here for the last values of some topics, set on other nodes"
            )

    def has_caught_up(self) -> bool:
        """True once per link: all that the peer had when it began is here."""
        if self.caught_up or not self.welcomed:
            return False
        have = self._host.path.received_vector()
        self._missing = {origin: last for origin, last in self._missing.items() if have.get(origin, 0) < last}
        self.caught_up = not self._missing
        return self.caught_up

    def became_durable(self) -> None:
        """More of the journal is durable: an Ack follows if the peer sent some of it."""
        if self._undurable:
            durable = self._host.path.durable_vector()
            left = {origin: last for origin, last in self._undurable.items() if durable.get(origin, 0) < last}
            if len(left) < len(self._undurable):
                self.request_ack()
            self._undurable = left

    def request_ack(self) -> None:
        """Something changed that the peer waits for; the writer will call `send_ack`."""
        self.ack_due = True
        self.outbox.wake()

    def send_ack(self, direct: tuple[Origin, ...]) -> None:
        """Queue an Ack if something has not been reported to the peer.

        While the disk is full, no frame is acknowledged, so the peer stops at its window: the remaining disk space is
        for settles. Everything else on the link continues, and each beat checks whether there is room again.
        """
        frame_waits = self.ack_due
        self.ack_due = False
        received = _changes(self._host.path.received_vector(), self._received_reported)
        durable = _changes(self._host.path.durable_vector(), self._durable_reported)
        news = direct if direct != self._sent_direct else None
        frames = self._acked_frames if self._host.broker.send_limits.disk_full else self._frames
        if frame_waits or received or durable or news is not None or frames != self._acked_frames:
            self._received_reported.update(received)
            self._durable_reported.update(durable)
            self._sent_direct = direct
            self._acked_frames = frames
            sent_us = self._host.broker.clocks.shown_time(self._host.environment.now_us())
            self.outbox.put(Ack(frames, received, durable, news, sent_us))

    def _take_batches(self, number: int, body: bytes, out: Outcome) -> bool:
        grown = self._acceptance.take(body, self._host.path.received_vector(), out)
        if self.partner.origin in grown:
            self._note_delay(body)
        self._frames = number
        self.bytes_received += len(body)
        self.request_ack()
        self._undurable.update(grown)
        return bool(grown)

    def _note_delay(self, body: bytes) -> None:
        """Of the first batch of a frame, which has waited longest: since the peer accepted its last record."""
        head, apart_us = read_head(body), self._host.broker.clocks.apart_us(self.peer)
        if head is not None and head.origin == self.partner.origin and apart_us is not None:
            self._delays.note(max(0, self._host.environment.now_us() - apart_us - head.last_us) / 1e6)

    def _hear_of_gaps(self, gaps: list[tuple[Origin, int]]) -> None:
        """The journal of the peer has dropped records: the stores of some peer may have them."""
        for origin, through in gaps:
            if self._acceptance.check_gap(origin, through, self._host.path.received_vector()):
                self._gaps.report(self.peer, origin, through)
                self._host.follower.schedule_repair()


def _changes(now: Vector, sent: Vector) -> Vector:
    return {origin: last for origin, last in now.items() if sent.get(origin) != last}
