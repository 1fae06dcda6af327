"""Consumers with a priority: which consumer with room is next, on one node and over the mesh."""

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import WITHDRAWN, class_of, offer_name

from ...rig import JOBS, Client, Node, check_accounts
from .test_dispatcher import RED, consumer, group, talk


def send(node: Node, *bodies: bytes, headers: bytes = b"") -> None:
    for body in bodies:
        node.send(body, headers=headers)


def test_those_with_the_highest_priority_are_served_while_they_have_room() -> None:
    node = Node()
    low, plain, high, other = (consumer(node, priority=p, credit=2) for p in (-1, 0, 5, 5))

    send(node, *(b"%d" % number for number in range(7)))

    assert (high.bodies, other.bodies) == ([b"0", b"2"], [b"1", b"3"])
    assert (plain.bodies, low.bodies) == ([b"4", b"5"], [b"6"])
    check_accounts(node)


def test_a_waiting_message_goes_to_the_highest_priority_that_has_room_again() -> None:
    node = Node()
    low, high = consumer(node, priority=1, credit=1), consumer(node, priority=2, credit=1)
    send(node, b"0", b"1", b"2", b"3")

    high.ack(high.inbox[-1])
    low.ack(low.inbox[-1])

    assert (high.bodies, low.bodies) == ([b"0", b"2"], [b"1", b"3"])
    check_accounts(node)


def test_a_higher_priority_comes_and_goes_in_the_midst() -> None:
    node = Node()
    low = consumer(node, credit=10)
    send(node, b"0")
    high = consumer(node, priority=1, credit=10)
    send(node, b"1", b"2")
    high.leave()
    send(node, b"3")

    assert (low.bodies[:1], high.bodies) == ([b"0"], [b"1", b"2"])
    assert sorted(low.bodies) == [b"0", b"1", b"2", b"3"]
    low.ack_all()
    consumer(node).leave()
    queue = node.queues.by_name[JOBS]
    assert queue.selective is None, "a queue with plain consumers only is dispatched as before"
    check_accounts(node)


def test_a_priority_counts_among_those_that_want_the_message() -> None:
    node = Node()
    plain, red = consumer(node, credit=10), consumer(node, priority=3, credit=1, selector="color = 'red'")

    send(node, b"1", headers=b"color:blue\n")
    send(node, b"2", b"3", headers=RED)

    assert (red.bodies, plain.bodies) == ([b"2"], [b"1", b"3"])


def test_groups_stay_together_whatever_the_priorities() -> None:
    node = Node()
    consumers = [consumer(node, priority=p, credit=10) for p in (0, 5)]

    for number in range(20):
        send(node, b"a", b"b", headers=group(str(number)))

    by_group = [[delivery.message.envelope.headers for delivery in one.inbox] for one in consumers]
    assert not set(by_group[0]) & set(by_group[1])
    assert by_group[0] and by_group[1]


def test_a_client_with_a_window_has_its_priority() -> None:
    node = Node()
    low = consumer(node, credit=10)
    high = consumer(node, priority=1, credit=10, window=ConnectionPrefetch(2))

    send(node, b"0", b"1", b"2")

    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2"])


def pair(*, credit: int) -> tuple[Node, Node, Client, Client]:
    """The owner `a` with a plain consumer, and the peer `b` with one of priority 5."""
    owner, peer = Node("a"), Node("b")
    peer.borrowing.owner_connected("a")
    owner.lending.borrower_connected("b")
    low = consumer(owner, credit=10)
    high = consumer(peer, priority=5, credit=credit)
    talk(peer, owner)
    return owner, peer, low, high


def test_a_peer_with_a_higher_priority_is_lent_to_before_consumers_of_the_owner() -> None:
    owner, peer, low, high = pair(credit=2)

    outcomes = [owner.send(body) for body in (b"0", b"1", b"2")]
    talk(peer, owner, *outcomes)

    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2"])
    check_accounts(owner)


def test_a_consumer_of_the_owner_is_first_among_equal_priorities() -> None:
    owner, peer, low, high = pair(credit=5)
    own = consumer(owner, priority=5, credit=1)

    talk(peer, owner, *[owner.send(body) for body in (b"0", b"1")])

    assert (own.bodies, high.bodies, low.bodies) == ([b"0"], [b"1"], [])


def test_a_lower_priority_of_a_peer_waits_for_what_the_owner_has_no_room_for() -> None:
    owner, peer, low, high = pair(credit=5)
    below = consumer(peer, priority=-3, credit=5)
    talk(peer, owner)

    talk(peer, owner, *[owner.send(b"%d" % number) for number in range(16)])

    assert (len(high.bodies), len(low.bodies), len(below.bodies)) == (5, 10, 1)


def test_when_the_link_ends_or_the_consumer_leaves_the_owner_serves_its_own() -> None:
    owner, peer, low, high = pair(credit=5)
    of = offer_name(JOBS, class_of(None, 0, 5))

    owner.offer("b", WITHDRAWN, of)
    owner.send(b"0")
    owner.offer("b", 5, of)
    owner.lending.borrower_lost("b")
    owner.send(b"1")

    assert low.bodies == [b"0", b"1"]
    check_accounts(owner)
