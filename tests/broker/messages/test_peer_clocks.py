"""Clocks of peers, learned from what their frames carry."""

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.messages.peer_clocks import WINDOW_US, PeerClocks
from qmq.model.dots import Dot, Origin

from ..rig import NOW_US as NOW_US_OF_RIG
from ..rig import SECOND_US, Client, Node, message_of

B = Origin("b", 1)
HOUR_US = 3600 * 1_000_000
NOW_US = 1_700_000_000_000_000


def test_a_clock_that_was_never_heard_of_is_unknown() -> None:
    clocks = PeerClocks()
    clocks.heard(B, 0, NOW_US)

    assert clocks.apart_us("b") is None
    assert clocks.time_at("b", NOW_US) == NOW_US


def test_the_fastest_way_counts() -> None:
    clocks = PeerClocks()

    for way_us in (5_000, 300, 900_000):
        clocks.heard(B, NOW_US + HOUR_US, NOW_US + way_us)

    assert clocks.apart_us("b") == -HOUR_US + 300


def test_what_was_seen_long_ago_does_not_count_beside_what_is_new() -> None:
    clocks = PeerClocks()
    clocks.heard(B, NOW_US, NOW_US)

    clocks.heard(B, NOW_US + WINDOW_US, NOW_US + WINDOW_US + 70)
    assert clocks.apart_us("b") == 0
    clocks.heard(B, NOW_US + 2 * WINDOW_US, NOW_US + 2 * WINDOW_US + 90)
    assert clocks.apart_us("b") == 70
    clocks.heard(B, NOW_US + 9 * WINDOW_US, NOW_US + 9 * WINDOW_US + 500)
    assert clocks.apart_us("b") == 500


def test_a_new_life_of_a_peer_has_a_new_clock() -> None:
    clocks = PeerClocks()
    clocks.heard(B, NOW_US + HOUR_US, NOW_US)

    clocks.heard(Origin("b", 2), NOW_US, NOW_US + 10)

    assert clocks.apart_us("b") == 10


def test_a_new_life_of_a_peer_that_sends_no_time_has_no_known_clock() -> None:
    clocks = PeerClocks()
    clocks.heard(B, NOW_US + HOUR_US, NOW_US)

    clocks.heard(B, 0, NOW_US)
    assert clocks.apart_us("b") == -HOUR_US
    clocks.heard(Origin("b", 2), 0, NOW_US)

    assert clocks.apart_us("b") is None


def test_how_far_the_clock_of_a_served_node_is_apart_stays_as_it_was_when_that_began() -> None:
    clocks = PeerClocks()
    clocks.heard(B, NOW_US + HOUR_US, NOW_US)
    clocks.serve("b")
    clocks.heard(Origin("b", 2), NOW_US, NOW_US + 10)
    message = message_of(B, 1, b"1", owner="b", headers=b"ttl:1000\ndelay:500\n")
    message.timestamp_us = NOW_US + HOUR_US

    assert (clocks.due(message), clocks.expiry(message)) == (NOW_US + 500_000, NOW_US + 1_000_000)
    clocks.cease("b")
    assert clocks.due(message) == NOW_US + HOUR_US + 500_000


def test_what_has_no_time_has_none_by_any_clock() -> None:
    clocks = PeerClocks()
    clocks.heard(B, NOW_US + HOUR_US, NOW_US)
    clocks.serve("b")

    message = message_of(B, 1, b"1", owner="b", headers=b"priority:7\n")

    assert (clocks.due(message), clocks.expiry(message)) == (0, 0)


# What is lent, read by the clock of its owner


def borrower(credit: int = 1) -> tuple[Node, Client]:
    """A node with one consumer, and an owner b whose clock is an hour ahead."""
    node = Node()
    node.borrowing.owner_connected("b")
    node.broker.clocks.heard(B, NOW_US_OF_RIG + HOUR_US, NOW_US_OF_RIG)
    client = node.client()
    client.subscribe(credit=credit)
    return node, client


def lent(sequence: int, headers: bytes) -> Message:
    """Accepted by b just now."""
    message = message_of(B, sequence, b"%d" % sequence, owner="b", headers=headers)
    message.timestamp_us = NOW_US_OF_RIG + HOUR_US
    return message


def returned(out: Outcome) -> list[tuple[Dot, Back]]:
    return [(message.dot, why) for message, why, _ in out.peer_returns.get("b", [])]


def test_a_lent_message_is_given_by_what_is_left_of_its_time_at_its_owner() -> None:
    node, client = borrower(credit=9)

    node.borrow(lent(1, b"ttl:1000\n"))
    node.now_us += 2 * SECOND_US
    out = node.borrow(lent(2, b"ttl:1000\n"), lent(3, b"ttl:3000\n"))

    assert client.bodies == [b"1", b"3"]
    assert returned(out) == [(Dot(B, 2), Back.UNSEEN)]


def test_a_moment_that_a_sender_named_is_its_owners_moment() -> None:
    node, client = borrower(credit=9)
    at_owner = (NOW_US_OF_RIG + HOUR_US) // 1000

    out = node.borrow(lent(1, b"expires:%d\n" % (at_owner - 1)), lent(2, b"expires:%d\n" % (at_owner + 1000)))

    assert client.bodies == [b"2"]
    assert returned(out) == [(Dot(B, 1), Back.UNSEEN)]


def test_what_waits_here_for_the_one_consumer_of_its_group_goes_back_when_it_is_late() -> None:
    node, client = borrower(credit=1)
    group = b"JMSXGroupID:g\n"
    node.borrow(lent(1, group), lent(2, group + b"ttl:1000\n"), lent(3, group))

    node.now_us += 2 * SECOND_US
    out = client.ack(client.inbox[0])

    assert client.bodies == [b"1", b"3"]
    assert returned(out) == [(Dot(B, 2), Back.UNSEEN)]


def test_an_owner_that_does_not_send_its_clock_has_looked_itself() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = node.client()
    client.subscribe()
    message = lent(1, b"ttl:1000\n")
    message.timestamp_us -= 9 * HOUR_US

    node.borrow(message)

    assert client.bodies == [b"1"]


def test_what_is_lent_by_another_than_its_owner_was_looked_at_there() -> None:
    """The lender serves a third node, and how far it takes that one's clock to be is not known here."""
    node, client = borrower()
    message = lent(1, b"ttl:1000\n")
    message.origin = Origin("a", 1)

    out = node.borrow(message)

    assert client.bodies == [b"1"]
    assert returned(out) == []
