"""Deliveries whose ACK does not come in time."""

import pytest

from qmq.broker.consumers.session import LATE_MAX, ClientState, HeldFrame
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

from ..rig import AT_ONCE, JOBS, SECOND_US, Node, check_accounts, envelope, message_of

A = Origin("a", 1)
PATIENT = QueueRules(ack_timeout_us=10 * SECOND_US)


def test_delivery_without_an_ack_comes_again_when_its_time_is_over_and_not_before() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack_timeout_us=SECOND_US)
    node.send(b"x")

    node.later(SECOND_US - 1)
    assert client.bodies == [b"x"]
    node.later(1)

    assert client.bodies == [b"x", b"x"]
    assert client.inbox[1].message.attempts == 1
    assert client.inbox[0].tag != client.inbox[1].tag
    check_accounts(node)


def test_time_counts_from_the_delivery_and_not_from_the_send() -> None:
    node = Node()
    node.send(b"x")
    node.later(5 * SECOND_US)
    client = node.client()
    client.subscribe(ack_timeout_us=SECOND_US)

    node.later(SECOND_US - 1)

    assert client.bodies == [b"x"]


def test_late_message_goes_to_the_next_in_line() -> None:
    node = Node()
    slow, other = node.client(), node.client()
    slow.subscribe(credit=1, ack_timeout_us=SECOND_US)
    node.send(b"x")
    other.subscribe()

    node.later(SECOND_US)

    assert other.bodies == [b"x"]
    assert slow.bodies == [b"x"]


def test_ack_in_time_ends_the_wait() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack_timeout_us=SECOND_US)
    node.send(b"x")
    client.ack(client.inbox[0])

    node.later(10 * SECOND_US)

    assert client.bodies == [b"x"]
    assert node.settled_dots() == [Dot(A, 1)]


def test_message_comes_before_consumer_comes_before_policy() -> None:
    node = Node(rules=PATIENT)
    by_policy, by_consumer = node.client(), node.client()
    by_policy.subscribe(credit=1)
    by_consumer.subscribe(credit=2, ack_timeout_us=5 * SECOND_US)
    for headers in (b"", b"", b"ack-timeout:2\n"):
        node.send(headers=headers)

    deadlines = {d.message.sequence: d.deadline_us - node.now_us for d in (*by_policy.inbox, *by_consumer.inbox)}

    assert deadlines == {1: 10 * SECOND_US, 2: 5 * SECOND_US, 3: 2 * SECOND_US}


def test_nothing_waits_for_an_ack_that_no_client_sends() -> None:
    node = Node(rules=PATIENT)
    client = node.client()
    client.subscribe(ack=Ack.AUTO, ack_timeout_us=SECOND_US)
    node.send(headers=b"ack-timeout:1\n")

    node.later(60 * SECOND_US)

    assert len(client.inbox) == 1
    assert client.inbox[0].deadline_us == 0


def test_late_deliveries_count_to_the_limit_and_end_as_dead_letters() -> None:
    node = Node(rules=QueueRules(ack_timeout_us=SECOND_US, delivery_limit=3))
    client = node.client()
    client.subscribe()
    node.send(b"x")

    for _ in range(3):
        node.later(SECOND_US)

    assert client.bodies == [b"x"] * 3
    (letter,) = node.queues.by_name[DEAD_LETTERS].ready
    assert b"dead-letter-reason:delivery-limit\n" in letter.envelope.headers
    assert b"dead-letter-deliveries:3\n" in letter.envelope.headers


def test_only_what_is_late_comes_back() -> None:
    node = Node()
    client, other = node.client(), node.client()
    client.subscribe(ack_timeout_us=SECOND_US)
    node.send(b"1")
    node.later(SECOND_US // 2)
    node.send(b"2")
    client.node.queues.held = True

    node.later(SECOND_US // 2)
    assert node.ready() == [b"1"]
    node.later(SECOND_US // 2)

    assert node.ready() == [b"1", b"2"]
    assert not other.inbox
    check_accounts(node)


def test_subscription_with_many_deliveries_has_one_deadline() -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=100, ack_timeout_us=SECOND_US)

    for _ in range(100):
        node.send()

    assert len(client.inbox) == 100
    assert len(node.queues.deadlines) == 1


def test_consumer_that_left_is_not_looked_at_any_more() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack_timeout_us=SECOND_US)
    node.send()
    client.leave()

    assert node.queues.deadlines.next_us == 0
    node.later(10 * SECOND_US)
    assert node.queues.by_name[JOBS].ready[0].attempts == 1


def test_session_knows_which_of_its_deliveries_were_late_by_tag_and_by_message_id() -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=1, ack_timeout_us=SECOND_US)
    node.send()
    session = node.broker.sessions[client.id]
    late = client.inbox[0]
    assert not session.was_late(late.tag)

    node.later(SECOND_US)

    assert session.was_late(late.tag)
    assert session.was_late(late.message.message_id)
    assert not session.was_late(client.inbox[1].tag)


def test_names_of_late_deliveries_are_remembered_up_to_a_bound_and_the_oldest_forgotten_first() -> None:
    session = ClientState(1)
    subscription = Subscription(1, "s", JOBS, Ack.CLIENT, 1, b"")
    deliveries = [Delivery(tag, subscription, message_of(A, tag)) for tag in range(1, LATE_MAX)]

    for delivery in deliveries:
        session.remember_late(delivery)

    assert not session.was_late(1)
    assert not session.was_late(deliveries[0].message.message_id)
    assert session.was_late(LATE_MAX - 1)
    assert session.was_late(deliveries[-1].message.message_id)
    assert sum(session.was_late(tag) for tag in range(1, LATE_MAX)) == LATE_MAX // 2


@pytest.mark.parametrize("is_ack", [True, False])
def test_transaction_with_a_late_delivery_is_refused_as_a_whole(is_ack: bool) -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=1, ack_timeout_us=SECOND_US)
    node.send(b"in")
    client.begin()
    client.hold(HeldFrame(envelope=envelope("/queue/out"), body=b"out"))
    client.hold(HeldFrame(delivery=client.inbox[0], is_ack=is_ack))
    node.later(SECOND_US)

    with pytest.raises(Refused) as refused:
        client.commit()

    assert refused.value.code == "unknown-ack"
    assert node.depth("/queue/out") == 0
    assert node.settled_dots() == []


def test_late_borrowed_message_returns_to_its_owner() -> None:
    node = Node(rules=AT_ONCE)
    node.borrowing.owner_connected("b")
    client = node.client()
    client.subscribe(ack_timeout_us=SECOND_US)
    borrowed: Message = message_of(Origin("b", 1), 1, owner="b")
    node.borrow(borrowed)

    out = node.later(SECOND_US)

    assert [(m.dot, why.name) for m, why, _ in out.peer_returns["b"]] == [(borrowed.dot, "TIMED_OUT")]
    assert node.borrowing.borrowed_from("b") == []


def test_cumulative_ack_after_a_late_one_covers_what_is_still_there() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.CLIENT, credit=2, ack_timeout_us=SECOND_US)
    node.send(b"1")
    node.later(SECOND_US // 2)
    node.send(b"2")
    node.later(SECOND_US // 2)
    assert client.bodies == [b"1", b"2", b"1"]

    client.ack(client.inbox[1])

    assert node.settled_dots() == [Dot(A, 2)]
    assert [d.message.body for d in node.queues.deliveries.values()] == [b"1"]
