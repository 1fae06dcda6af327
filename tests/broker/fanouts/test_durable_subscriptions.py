"""The rules of durable subscriptions, without a log or a socket."""

import random

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, FanoutDelivery, StartAt, Subscription
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Moved
from qmq.errors import Refused
from qmq.model.cursors import DELETIONS_MAX, Cursor, Move, Name
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.lost_ranges import LostRanges
from tests.broker.rig import NOW_US, Node, check_accounts, message_of

F = "/fanout/f"
NAME = Name(F, "", "mail")
B, C = Origin("b", 1), Origin("c", 1)


class Reader:
    """One client with one durable subscription, fed by hand."""

    def __init__(
        self, node: Node, start: str | Vector | StartAt = "next", *, ack: Ack = Ack.CLIENT_INDIVIDUAL, credit: int = 10
    ) -> None:
        self.node = node
        self.client = node.client()
        self.subscription = Subscription(self.client.id, "s", F, ack, credit, b"")
        self.subscription.start = start
        self.out = node.decide(
            lambda out: node.broker.subscriptions.subscribe_durable(self.subscription, NAME, NOW_US, out)
        )
        assert self.subscription.durable is not None
        self.attachment = self.subscription.durable

    def offer(self, origin: Origin, *sequences: int) -> list[FanoutDelivery]:
        """What is handed out of these records."""
        handed = [
            self.node.broker.durable_subscriptions.hand_out(
                self.attachment, message_of(origin, sequence, destination=F)
            )
            for sequence in sequences
        ]
        return [one for one in handed if one is not None]

    def ack(self, *handed: FanoutDelivery) -> Outcome:
        return self.node.decide(lambda out: [self.node.broker.acknowledge(one, out) for one in handed])


def sequences(handed: list[FanoutDelivery]) -> list[int]:
    return [one.message.sequence for one in handed]


def moves(out: Outcome) -> list[Move]:
    return [record.move for record in out.records if isinstance(record, Moved)]


def test_it_begins_behind_all_that_the_node_has() -> None:
    node = Node()
    node.broker.received = lambda: {B: 5}
    node.send(destination=F)

    reader = Reader(node)

    assert sequences(reader.offer(B, 4, 5, 6)) == [6]
    assert sequences(reader.offer(node.origin, 1, 2)) == [2]
    (picture,) = moves(reader.out)
    assert (picture.start, picture.credit) == ({B: 5, node.origin: 1}, 10)


def test_one_record_says_what_all_acks_of_an_outcome_did() -> None:
    node = Node()
    reader = Reader(node, "first")
    b = reader.offer(B, 3, 5, 9)
    c = reader.offer(C, 2)

    out = reader.ack(b[2], c[0], b[0])

    (move,) = moves(out)
    assert move.done == {B: [(0, 3), (5, 9)], C: [(0, 2)]}
    assert out.needs_commit


def test_what_was_offered_before_or_is_done_is_not_handed_out() -> None:
    reader = Reader(Node(), {B: 3})
    reader.ack(*reader.offer(B, 4))

    assert sequences(reader.offer(B, 2, 3, 4, 5, 5)) == [5]


def test_a_name_is_free_again_after_its_session_and_nothing_is_in_flight() -> None:
    node = Node()
    reader = Reader(node, "first")
    first, second = reader.offer(B, 1, 2)
    reader.ack(second)
    reader.client.leave()
    check_accounts(node)

    again = Reader(node)

    handed = again.offer(B, 1, 2, 3)
    assert [(one.message.sequence, one.redelivered) for one in handed] == [(1, True), (3, False)]
    assert first.message.attempts == 0


def test_after_a_crash_as_many_of_each_origin_as_there_was_credit_may_have_been_delivered() -> None:
    dead = Node()
    reader = Reader(dead, "first", credit=2)
    reader.ack(*reader.offer(B, 1, 2))
    cursor = Cursor(NAME)
    for record in dead.journal:
        if isinstance(record, Moved):
            cursor.apply(record.move)
    node = Node(incarnation=2)
    node.broker.durable_subscriptions.restore({NAME: cursor}, {}, LostRanges())

    handed = Reader(node).offer(B, 1, 2, 3, 4, 5)

    assert [(one.message.sequence, one.redelivered) for one in handed] == [(3, True), (4, True), (5, False)]


def test_refused_messages_keep_their_credit_and_come_again_in_order() -> None:
    node = Node()
    reader = Reader(node, "first", credit=3)
    handed = reader.offer(B, 1, 2, 3)
    node.decide(lambda out: [node.broker.refuse(one, out) for one in handed[:2]])
    assert reader.attachment.free == 0
    check_accounts(node)

    again = node.broker.durable_subscriptions.hand_out_again(reader.attachment)

    assert [(one.message.sequence, one.redelivered) for one in again] == [(1, True), (2, True)]
    reader.ack(handed[2], *again)
    assert reader.attachment.cursor.vector() == {B: 3}


def test_an_ack_in_client_mode_covers_what_was_handed_out_before() -> None:
    node = Node()
    reader = Reader(node, "first", ack=Ack.CLIENT)
    handed = reader.offer(B, 1, 2, 3)

    reader.ack(handed[1])

    assert reader.attachment.cursor.vector() == {B: 2}
    check_accounts(node)


def test_a_gap_notice_has_exact_bounds_and_is_settled_by_its_ack() -> None:
    node = Node()
    reader = Reader(node, {B: 3})
    reader.ack(*reader.offer(B, 4))
    durable_subscriptions = node.broker.durable_subscriptions

    missing = durable_subscriptions.gaps(reader.attachment, [Dot(B, 9), Dot(C, 2)])

    assert missing == [(B, 4, 9), (C, 0, 2)]
    assert durable_subscriptions.gaps(reader.attachment, [Dot(B, 9), Dot(C, 2)]) == []
    assert sequences(reader.offer(B, 8, 9, 10)) == [10]
    assert durable_subscriptions.gaps(reader.attachment, [Dot(B, 9), Dot(C, 5)]) == [(C, 2, 5)]


def test_what_was_acknowledged_out_of_order_is_not_missing() -> None:
    node = Node()
    reader = Reader(node, {B: 3})
    handed = reader.offer(B, 4, 5, 6, 7)
    reader.ack(handed[1], handed[3])
    reader.client.leave()
    reader = Reader(node)

    assert node.broker.durable_subscriptions.gaps(reader.attachment, [Dot(B, 7)]) == [(B, 3, 6)]


def test_a_deletion_while_it_is_used_here_ends_the_subscription() -> None:
    node = Node()
    reader = Reader(node)

    out = Outcome()
    node.broker.durable_subscriptions.accept(Move(NAME, 0, NOW_US + 1), out)

    ((session, why, ended),) = out.evictions
    assert (session, ended, why.code) == (reader.subscription.session, reader.subscription.id, "durable-deleted")
    assert moves(reader.client.leave()) == []


def test_one_that_was_made_earlier_on_the_other_side_of_a_cut_starts_over_so_that_nothing_is_passed_by() -> None:
    node = Node()
    node.broker.received = lambda: {B: 9}
    reader = Reader(node)

    out = Outcome()
    node.broker.durable_subscriptions.accept(Move(NAME, NOW_US - 5, start={B: 4}), out)

    ((session, why, ended),) = out.evictions
    assert (session, ended, why.code) == (reader.subscription.session, reader.subscription.id, "durable-merged")
    reader.client.leave()
    assert sequences(Reader(node).offer(B, 4, 5, 9, 10)) == [5, 9, 10]


def test_a_record_that_only_repeats_the_beginning_ends_nothing() -> None:
    node = Node()
    reader = Reader(node, {B: 4})

    out = Outcome()
    node.broker.durable_subscriptions.accept(Move(NAME, NOW_US, start={B: 4}, done={B: [(4, 5)]}, credit=9), out)

    assert not out.evictions
    assert sequences(reader.offer(B, 5, 6)) == [6]


def test_a_node_that_has_just_started_makes_no_new_name_and_knows_the_old_ones() -> None:
    node = Node()
    node.queues.held = node.queues.is_starting = True
    with pytest.raises(Refused, match="not-caught-up"):
        Reader(node)

    node.broker.durable_subscriptions.accept(Move(NAME, NOW_US, start={B: 4}), Outcome())

    assert sequences(Reader(node).offer(B, 4, 5)) == [5]


def test_a_client_that_has_heard_its_last_frame_gives_its_name_away() -> None:
    node = Node()
    reader = Reader(node, "first")
    reader.offer(B, 1)
    node.broker.subscriptions._is_leaving = lambda session: session == reader.client.id

    again = Reader(node)

    assert [(one.message.sequence, one.redelivered) for one in again.offer(B, 1)] == [(1, True)]
    check_accounts(node)
    reader.client.leave()
    check_accounts(node)


def test_deletions_that_are_remembered_are_bounded() -> None:
    durable_subscriptions = Node().broker.durable_subscriptions

    for n in range(DELETIONS_MAX + 10):
        durable_subscriptions.accept(Move(Name(F, "", str(n)), 0, 5), Outcome())

    assert len(durable_subscriptions.by_name) == DELETIONS_MAX


def test_of_too_many_deletions_the_oldest_is_forgotten_not_the_oldest_name() -> None:
    durable_subscriptions = Node().broker.durable_subscriptions
    first = Name(F, "", "first")
    durable_subscriptions.accept(Move(first, 3, start={}), Outcome())
    for n in range(DELETIONS_MAX):
        durable_subscriptions.accept(Move(Name(F, "", str(n)), 0, 5 + n), Outcome())

    durable_subscriptions.accept(Move(first, 0, 1 << 40), Outcome())

    assert first in durable_subscriptions.by_name and Name(F, "", "0") not in durable_subscriptions.by_name
    assert len(durable_subscriptions.by_name) == DELETIONS_MAX


def test_deletions_that_a_start_finds_are_bounded() -> None:
    durable_subscriptions = Node().broker.durable_subscriptions
    found = {}
    for n in range(DELETIONS_MAX + 3):
        found[Name(F, "", str(n))] = Cursor(Name(F, "", str(n)))
        found[Name(F, "", str(n))].apply(Move(Name(F, "", str(n)), 0, 5 + n))

    durable_subscriptions.restore(found, {}, LostRanges())

    assert len(durable_subscriptions.by_name) == DELETIONS_MAX and Name(F, "", "2") not in durable_subscriptions.by_name


def test_a_refused_subscribe_leaves_no_name_behind() -> None:
    node = Node(limits=BrokerLimits(subscriptions_max=1))
    client = node.client()
    client.subscribe("/topic/t", id="t")
    subscription = Subscription(client.id, "s", F, Ack.CLIENT, 1, b"")

    with pytest.raises(Refused, match="too-many-subscriptions"):
        node.decide(lambda out: node.broker.subscriptions.subscribe_durable(subscription, NAME, NOW_US, out))

    assert not node.broker.durable_subscriptions.by_name


@pytest.mark.parametrize("seed", range(30))
def test_at_least_once_over_two_nodes_that_learn_of_each_other_late(seed: int) -> None:
    """Two nodes have the same log. A client hops between them; each learns the other's records late and in any order.

    Every message is handed out; what was acknowledged is handed out again only where that was not known yet; and once
    both know everything, nothing is left.
    """
    rng = random.Random(seed)
    nodes = [Node("a"), Node("b")]
    log = [(origin, sequence) for origin in (B, C) for sequence in range(1, 40) if rng.random() < 0.6]
    rng.shuffle(log)
    log.sort(key=lambda dot: dot[1])  # each origin in order
    heard = [0, 0]
    acknowledged: set[tuple[Origin, int]] = set()
    known: list[set[tuple[Origin, int]]] = [set(), set()]
    learned: list[list[set[tuple[Origin, int]]]] = [[], []]

    def learn(index: int) -> None:
        other = nodes[1 - index]
        records = [record.move for record in other.journal if isinstance(record, Moved)]
        while heard[index] < len(records):
            nodes[index].broker.durable_subscriptions.accept(records[heard[index]], Outcome())
            heard[index] += 1
        known[index] |= learned[1 - index][-1] if learned[1 - index] else set()

    for _ in range(12):
        index = rng.randrange(2)
        if rng.random() < 0.5:
            learn(index)
        reader = Reader(nodes[index], "first", credit=8)
        for origin, sequence in log:
            if reader.attachment.free <= 0:
                break
            for handed in reader.offer(origin, sequence):
                assert (origin, sequence) not in known[index], "acknowledged here, or known to be"
                if rng.random() < 0.7:
                    reader.ack(handed)
                    acknowledged.add((origin, sequence))
                    known[index].add((origin, sequence))
        reader.client.leave()
        learned[index].append(set(known[index]))
        check_accounts(nodes[index])
    for index in (0, 1):
        learn(index)
    cursors = [node.broker.durable_subscriptions.by_name[NAME] for node in nodes]
    for origin, sequence in log:
        answers = {cursor.is_done(origin, sequence) for cursor in cursors}
        assert answers == {(origin, sequence) in acknowledged}
