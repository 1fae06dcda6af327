"""The pulling side alone: what it sends, in which order, and what ends with it."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack as Mode
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.model.dots import Dot, Origin, Vector
from qmq.replication.anti_entropy.acceptance import Acceptance
from qmq.replication.anti_entropy.gaps import Gaps
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.links.pulling_side import PullingSide
from qmq.replication.protocol.frames import Ack, Batches, Gap, Held, Hole, Lend, MembershipFrame, MeshFrame, Welcome
from qmq.replication.protocol.handshake import Partner
from qmq.storage.log.fsync_times import Durations

from ..rig import JOBS, Network, Node, batch_of, peers_of

pytestmark = pytest.mark.trio

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)


class Link:
    """Node b following node a; `told` is what b has said since it was last looked at."""

    def __init__(self) -> None:
        self.node = Node(Network(), "b", peers_of("abc"))
        self._told: list[MeshFrame] = []
        partner = Partner(origin=A, peers_version=1, features=frozenset(), beat_ms=1000)
        outbox = LinkOutbox(self._encode, lambda: None)
        acceptance = Acceptance(B, frozenset("abc"), self.node.replay)
        self.gaps = Gaps()
        self.delays = Durations()
        self.following = PullingSide(self.node, partner, outbox, acceptance, self.gaps, self.delays)

    def _encode(self, frame: MeshFrame) -> bytes:
        self._told.append(frame)
        return b""

    def told(self) -> list[MeshFrame]:
        told, self._told = self._told, []
        return told


async def test_a_link_begins_with_all_that_the_peer_must_know_in_its_order() -> None:
    link = Link()
    link.node.received_vector().update({A: 3, B: 0, Origin("b", 7): 5})
    link.node.subscribe("/topic/t")

    link.following.begin((B, C))

    through: Vector = {B: 0, Origin("b", 7): 5}
    assert link.told() == [
        MembershipFrame(link.node.membership.standing),
        Ack(0, {A: 3, B: 0, Origin("b", 7): 5}, {}, (B, C)),
        Held([], through),
    ]


async def test_later_acks_carry_only_what_changed() -> None:
    link = Link()
    link.following.begin((B,))
    link.told()

    link.following.send_ack((B,))
    assert link.told() == []
    link.following.apply(Batches(1, batch_of(A, 1, 2)), Outcome())
    assert link.following.ack_due
    link.following.send_ack((B,))
    assert link.told() == [Ack(1, {A: 2}, {}, None)]
    link.node.journal.append(batch_of(A, 1, 2))
    link.following.became_durable()
    assert link.following.ack_due
    link.following.send_ack((B, C))
    assert link.told() == [Ack(1, {}, {A: 2}, (B, C))]
    assert not link.following.ack_due


async def test_a_repeat_is_acknowledged_too_because_it_took_room_in_the_window() -> None:
    link = Link()
    link.node.received_vector()[A] = 2
    link.following.begin(())
    link.told()

    assert not link.following.apply(Batches(1, batch_of(A, 1, 2)), Outcome())
    link.following.send_ack(())

    assert link.told() == [Ack(1, {}, {}, None)]


async def test_a_full_disk_leaves_the_window_shut_until_there_is_room() -> None:
    """What is in the window comes all the same; then the peer waits, and topics, credit and lent messages go on."""
    link = Link()
    link.following.begin(())
    link.told()

    link.node.broker.send_limits.disk_full = True
    link.following.apply(Batches(1, batch_of(A, 1, 2)), Outcome())
    link.following.send_ack(())
    assert link.told() == [Ack(0, {A: 2}, {}, None)]
    link.following.send_ack(())
    assert link.told() == []

    link.node.broker.send_limits.disk_full = False
    link.following.send_ack(())
    assert link.told() == [Ack(1, {}, {}, None)]


async def test_credit_is_offered_while_the_link_lasts_and_not_after() -> None:
    link = Link()
    borrowing = link.node.broker.borrowing

    def consumer(id: str, credit: int) -> list[tuple[str, str, int]]:
        link.node.broker.subscriptions.subscribe(Subscription(1, id, JOBS, Mode.CLIENT, credit, b""), Outcome())
        return borrowing.offers()

    assert consumer("before", 10) == []
    link.following.begin(())
    assert consumer("during", 10) == [("a", JOBS, 20)]
    link.following.end()
    assert consumer("after", 500) == []
    link.following.end()


async def test_a_stale_loan_of_one_owner_takes_nothing_away_from_those_of_others_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link()
    queues = link.node.broker.queues
    monkeypatch.setattr(link.node, "greet", lambda way: None)
    worker = Subscription(1, "worker", JOBS, Mode.CLIENT, 10, b"")
    link.node.broker.subscriptions.subscribe(worker, Outcome())
    link.following.begin(())
    monkeypatch.setattr(
        link.node, "may_borrow", lambda peer, terms, echo_us, owners: {"a": True, "b": None, "c": False}
    )
    lent = [Message(Envelope(JOBS, DestinationKind.QUEUE, b"", True), b"", origin, 7, 0) for origin in (A, B, C)]
    for message in lent:
        message.owner = "a"
    out = Outcome()

    link.following.apply(Lend(lent, 0, {"b": 3}), out)

    assert [delivery.message.dot for delivery in queues.deliveries.values()] == [Dot(A, 7)]
    assert [returned.message.dot for returned in out.peer_returns["a"]] == [Dot(C, 7)]


async def test_a_hole_in_the_peers_own_records_is_remembered_and_one_in_others_is_not() -> None:
    link = Link()

    link.following.apply(Hole((C,)), Outcome())
    assert not link.following.holed
    link.following.apply(Hole((C, A)), Outcome())
    assert link.following.holed


async def test_caught_up_is_reported_once_and_our_own_records_do_not_count() -> None:
    link = Link()
    assert not link.following.has_caught_up()

    link.following.apply(Welcome({A: 2, B: 99}), Outcome())
    assert not link.following.has_caught_up()
    link.following.apply(Batches(1, batch_of(A, 1, 2)), Outcome())
    assert link.following.has_caught_up()
    assert not link.following.has_caught_up()


async def test_a_gap_beyond_what_is_here_is_left_to_the_stores_of_peers() -> None:
    link = Link()
    link.node.received_vector()[A] = 4

    link.following.apply(Gap([(A, 4)]), Outcome())
    assert link.gaps.origins == []
    link.following.apply(Gap([(A, 6)]), Outcome())

    assert link.gaps.origins == [A]
    assert link.node.received_vector()[A] == 4


async def test_how_long_records_of_the_peer_were_on_their_way_is_noted_by_its_clock() -> None:
    """It is 1 s here, and its clock is 0.6 s behind. Nothing can be said before it is known, or of what it relays."""
    link = Link()
    link.following.begin((B, C))

    link.following.apply(Batches(1, batch_of(A, 1, 2)), Outcome())
    link.node.broker.clocks.heard(A, 400_000, 1_000_000)
    link.following.apply(Batches(2, batch_of(C, 1, 5)), Outcome())
    assert link.delays.count == 0
    link.following.apply(Batches(3, batch_of(A, 3, 4) + batch_of(C, 6, 6)), Outcome())
    link.following.apply(Batches(4, batch_of(A, 3, 4)), Outcome())

    assert (link.delays.count, link.delays.seconds) == (1, pytest.approx(0.4, abs=1e-5))
