"""Priority, delay and expiry of queue messages that are in memory."""

import pytest

from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.dispatch.expiry import EXPIRY_PAUSE_US
from qmq.model.dots import Dot, Origin

from ..rig import AT_ONCE, JOBS, NOW_US, SECOND_US, Client, Node, check_accounts, check_empty

A = Origin("a", 1)
KEEPS = QueueRules(keeps_dropped=True)


def consumer(node: Node, credit: int = 10) -> Client:
    client = node.client()
    client.subscribe(credit=credit)
    return client


def priority(digit: int) -> bytes:
    return b"priority:%d\n" % digit


# Priority


def test_higher_priorities_go_first_and_equal_ones_in_order() -> None:
    node = Node()
    for number, digit in enumerate((0, 9, 4, 9, 0, 5)):
        node.send(b"%d-%d" % (digit, number), headers=priority(digit))
    node.send(b"4-6")

    assert node.ready() == consumer(node).bodies == [b"9-1", b"9-3", b"5-5", b"4-2", b"4-6", b"0-0", b"0-4"]


def test_late_message_of_a_higher_priority_overtakes_all_that_wait() -> None:
    node = Node()
    for _ in range(3):
        node.send(b"low", headers=priority(1))
    client = consumer(node, credit=1)
    node.send(b"high", headers=priority(8))

    client.ack_all()

    assert client.bodies == [b"low", b"high", b"low", b"low"]
    check_accounts(node)


def test_message_that_comes_back_stands_first_among_its_own_priority_only() -> None:
    node = Node(rules=AT_ONCE)
    client = consumer(node, credit=1)
    node.send(b"low", headers=priority(1))
    node.send(b"low 2", headers=priority(1))
    node.send(b"high", headers=priority(8))
    node.queues.held = True

    client.nack(client.inbox[0])

    assert node.ready() == [b"high", b"low", b"low 2"]


def test_peers_are_lent_the_highest_priority_first() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    for digit in (1, 9, 5):
        node.send(b"%d" % digit, headers=priority(digit))

    assert [m.body for m in node.offer("b", 2).peer_deliveries["b"]] == [b"9", b"5"]


def test_priority_means_nothing_outside_of_queues() -> None:
    node = Node()
    client = node.client()
    client.subscribe("/topic/t")

    for digit in (1, 9):
        node.send(b"%d" % digit, "/topic/t", headers=priority(digit), durable=False)

    assert [message.body for message in client.heard] == [b"1", b"9"]


# Delay


def test_delayed_message_is_not_delivered_before_its_time() -> None:
    node = Node()
    client = consumer(node)
    node.send(b"x", headers=b"delay:1500\n")

    node.later(1_500_000 - 1)
    assert client.bodies == []
    node.later(1)

    assert client.bodies == [b"x"]
    assert client.attempts == [0]
    check_accounts(node)


def test_depth_counts_what_is_delayed_and_a_consumer_does_not_speed_it_up() -> None:
    node = Node()
    node.send(b"xx", headers=b"delay:1500\n")

    client = consumer(node)

    assert node.depth() == 1
    assert node.queues.by_name[JOBS].body_bytes == 2
    assert node.ready() == []
    assert client.bodies == []


def test_delayed_messages_come_in_order_of_their_time_and_then_of_their_acceptance() -> None:
    node = Node()
    for number, delay in enumerate((300, 100, 200, 100)):
        node.send(b"%d-%d" % (delay, number), headers=b"delay:%d\n" % delay)

    node.later(SECOND_US)

    assert node.ready() == [b"100-1", b"100-3", b"200-2", b"300-0"]


def test_message_that_becomes_due_stands_behind_what_waits_already_within_its_priority() -> None:
    node = Node()
    node.send(b"late", headers=b"delay:100\n")
    node.send(b"late high", headers=b"delay:100\npriority:9\n")
    node.send(b"early")

    node.later(100_000)
    node.send(b"last")

    assert node.ready() == [b"late high", b"early", b"late", b"last"]


def test_delay_of_zero_is_none() -> None:
    node = Node()
    client = consumer(node)

    node.send(b"x", headers=b"delay:0\n")

    assert client.bodies == [b"x"]


def test_delay_that_was_over_before_a_restart_is_not_waited_for_again() -> None:
    node = Node()
    node.queues.held = True
    client = consumer(node)
    message = node.send(b"x", headers=b"delay:100\n").records[0]
    heir = Node("a", 2)
    heir.now_us = NOW_US + SECOND_US

    heir.queues.intake.restore(message)  # type: ignore[arg-type]
    reader = consumer(heir)
    heir.later(0)

    assert client.bodies == []
    assert reader.bodies == [b"x"]


def test_delayed_message_that_is_settled_elsewhere_never_comes() -> None:
    node = Node()
    client = consumer(node)
    node.send(headers=b"delay:100\n")

    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 1}, Dot(Origin("b", 1), 1))
    node.later(SECOND_US)
    client.leave()

    assert client.bodies == []
    check_empty(node)


def test_held_node_hands_out_what_became_due_meanwhile_only_when_it_is_released() -> None:
    node = Node()
    client = consumer(node)
    node.queues.held = True
    node.send(b"x", headers=b"delay:100\n")

    node.later(SECOND_US)
    assert client.bodies == []
    node.decide(node.queues.release_hold)

    assert client.bodies == [b"x"]


# Expiry


def test_expired_message_is_never_delivered_even_when_the_timer_is_late() -> None:
    node = Node()
    node.send(b"old", headers=b"ttl:1000\n")
    node.send(b"new")
    node.now_us += SECOND_US

    client = consumer(node)

    assert client.bodies == [b"new"]
    assert node.settled_dots() == [Dot(A, 1)]
    assert node.depth() == 1
    check_accounts(node)


def test_message_is_delivered_up_to_the_last_moment() -> None:
    node = Node()
    node.send(b"x", headers=b"ttl:1000\n")
    node.now_us += SECOND_US - 1

    assert consumer(node).bodies == [b"x"]


def test_expired_message_of_a_queue_without_consumers_goes_by_the_clock() -> None:
    node = Node()
    node.send(b"1", headers=b"ttl:1000\n")
    node.send(b"2", headers=b"expires:%d\n" % ((NOW_US + 1_000_000) // 1000))

    out = node.later(SECOND_US)

    assert [record.dots for record in out.records] == [[Dot(A, 1), Dot(A, 2)]]  # type: ignore[union-attr]
    check_empty(node)


def test_node_that_may_not_serve_gives_nothing_up_and_keeps_each_message_in_one_place() -> None:
    node = Node()
    node.send(b"1", headers=b"ttl:1000\n")
    node.queues.held = True

    node.later(2 * SECOND_US)
    node.later(SECOND_US)
    assert node.settled_dots() == [] and node.ready() == [b"1"]
    node.queues.held = False
    node.later(2 * SECOND_US)

    assert node.settled_dots() == [Dot(A, 1)]
    check_empty(node)


def test_messages_that_expire_one_after_the_other_are_looked_for_at_most_once_a_second() -> None:
    node = Node()
    for number in range(20):
        node.send(headers=b"ttl:%d\n" % (1000 + 100 * number))

    looks = 0
    while node.depth():
        node.now_us = node.queues.deadlines.next_us
        node.later(0)
        looks += 1

    assert looks <= 1 + 1_900_000 // EXPIRY_PAUSE_US + 1
    assert node.now_us <= NOW_US + 2_900_000 + EXPIRY_PAUSE_US


def test_message_with_a_consumer_does_not_expire_there_but_when_it_comes_back() -> None:
    node = Node()
    client = consumer(node)
    node.send(b"x", headers=b"ttl:1000\n")

    node.later(2 * SECOND_US)
    assert node.depth() == 1
    assert node.settled_dots() == []
    client.unsubscribe()
    other = consumer(node)

    assert other.bodies == []
    assert node.settled_dots() == [Dot(A, 1)]


def test_message_that_a_consumer_settles_after_its_expiry_is_settled_once() -> None:
    node = Node()
    client = consumer(node)
    node.send(b"x", headers=b"ttl:1000\n")
    node.later(2 * SECOND_US)

    client.ack(client.inbox[0])
    node.later(2 * SECOND_US)
    client.leave()

    assert node.settled_dots() == [Dot(A, 1)]
    check_empty(node)


@pytest.mark.parametrize("looks", [True, False])
def test_message_that_would_be_due_after_its_expiry_is_never_delivered(looks: bool) -> None:
    node = Node()
    client = consumer(node)
    node.send(b"x", headers=b"delay:5000\nttl:1000\n")

    if looks:
        node.later(2 * SECOND_US)
    node.later(10 * SECOND_US)

    assert client.bodies == []
    assert node.settled_dots() == [Dot(A, 1)]


def test_message_that_expires_during_its_pause_after_a_failure_is_not_delivered_again() -> None:
    node = Node(rules=QueueRules(redelivery_us_min=5 * SECOND_US))
    client = consumer(node)
    node.send(b"x", headers=b"ttl:1000\n")
    client.nack(client.inbox[0])

    node.later(10 * SECOND_US)

    assert len(client.inbox) == 1
    assert node.settled_dots() == [Dot(A, 1)]


def test_expired_message_is_kept_where_the_policy_names_a_dead_letter_queue() -> None:
    node = Node(rules=KEEPS)
    node.send(b"x", headers=b"ttl:1000\ncolour:red\n")

    node.later(SECOND_US)

    (letter,) = node.queues.by_name[DEAD_LETTERS].ready
    assert letter.envelope.headers == (
        b"dead-letter-reason:expired\ndead-letter-from:/queue/jobs\n"
        b"dead-letter-id:%b-1\ndead-letter-deliveries:0\ndead-letter-path:/queue/jobs\ncolour:red\n" % str(A).encode()
    )
    assert node.depth() == 0


def test_expired_message_leaves_no_letter_where_the_policy_names_none() -> None:
    node = Node()
    node.send(headers=b"ttl:1000\n")

    node.later(SECOND_US)

    assert node.depth(DEAD_LETTERS) == 0
    assert node.settled_dots() == [Dot(A, 1)]


def test_expired_letter_is_no_letter_of_its_own_queue() -> None:
    node = Node(rules=KEEPS)
    node.send(b"x", DEAD_LETTERS, headers=b"ttl:1000\n")

    node.later(SECOND_US)

    check_empty(node)


def test_memory_only_message_expires_without_a_record() -> None:
    node = Node()
    node.send(durable=False, headers=b"ttl:1000\n")

    out = node.later(SECOND_US)

    assert not out.records
    check_empty(node)


def test_expiry_does_not_wake_a_queue_that_is_gone() -> None:
    node = Node()
    client = consumer(node)
    node.send(headers=b"ttl:1000\n")
    client.ack_all()
    client.leave()

    node.later(10 * SECOND_US)

    check_empty(node)


def test_rejected_message_that_has_also_expired_is_a_rejected_one() -> None:
    node = Node(rules=KEEPS)
    client = consumer(node)
    node.send(headers=b"ttl:1000\n")
    node.later(2 * SECOND_US)

    client.nack(client.inbox[0], Back.REJECTED)

    (letter,) = node.queues.by_name[DEAD_LETTERS].ready
    assert letter.envelope.headers.startswith(b"dead-letter-reason:rejected\n")


def test_message_that_expired_in_flight_is_settled_when_it_comes_back_unwanted() -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=1)
    node.send(b"x", headers=b"ttl:1000\n")
    node.later(2_000_000)
    client.leave()

    node.later(10_000_000)

    assert node.depth() == 0


def test_what_has_expired_is_forgotten_with_its_deadlines() -> None:
    """Names that are used once, with a time to live of a day, must not stay for a day."""
    node = Node()
    for number in range(3000):
        node.send(b"x", f"/queue/{number}", headers=b"ttl:86400000\n")
        client = node.client()
        client.subscribe(f"/queue/{number}")
        client.ack(client.inbox[0])
        client.leave()

    assert not node.queues.by_name
    assert len(node.queues.deadlines) < 2500
