"""Totals of destinations: which event adds to which of them, and how many destinations have totals of their own."""

from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.messages.totals import NodeTotals
from qmq.gateways.encode import encode_deliveries
from qmq.model.dots import Origin
from qmq.wire.stomp import Version

from ..rig import AT_ONCE, JOBS, NOW_US, SECOND_US, Node, message_of

TOPIC = "/topic/news"
FANOUT = "/fanout/log"


def totals_of(node: Node, destination: str = JOBS) -> dict[str, int]:
    """Those that are not 0, without `delivered` and `redelivered`: the server counts these."""
    found = node.broker.totals.by_name[destination]
    names = ("accepted", "acknowledged", "expired", "dead_lettered", "removed", "refused")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


def test_each_accepted_message_is_counted_in_its_destination() -> None:
    node = Node()

    for destination in (JOBS, TOPIC, FANOUT):
        node.send(destination=destination)
        node.send(destination=destination, durable=destination == JOBS)

    assert [totals_of(node, name) for name in (JOBS, TOPIC, FANOUT)] == [{"accepted": 2}] * 3
    assert node.broker.totals.by_name[JOBS].since_us == NOW_US


def test_a_run_of_messages_is_counted_as_so_many() -> None:
    node = Node()
    node.send()

    for destination in (JOBS, TOPIC, FANOUT):
        of = Envelope(destination, kind_of(destination), b"", destination != TOPIC)
        node.decide(lambda out, of=of: node.broker.send_run(of, [b"1", b"2", b"3"], out))

    assert [totals_of(node, name)["accepted"] for name in (JOBS, TOPIC, FANOUT)] == [4, 3, 3]


def test_settled_messages_are_acknowledged() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    for _ in range(3):
        node.send()

    client.ack(client.inbox[0])
    client.ack(client.inbox[2])

    assert totals_of(node) == {"accepted": 3, "acknowledged": 2}


def test_a_borrowed_message_is_acknowledged_where_its_consumer_is() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.borrowing.owner_connected("b")
    node.borrowing.offers()
    node.borrow(message_of(Origin("b", 1), 1, owner="b"))

    client.ack(client.inbox[0])

    assert totals_of(node) == {"acknowledged": 1}


def test_a_dead_letter_is_counted_in_both_queues() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.send()

    client.nack(client.inbox[0], Back.REJECTED)

    assert totals_of(node) == {"accepted": 1, "dead_lettered": 1}
    assert totals_of(node, DEAD_LETTERS) == {"accepted": 1}


def test_what_is_rejected_without_a_dead_letter_queue_is_removed() -> None:
    node = Node(rules=QueueRules(dead_letter=""))
    client = node.client()
    client.subscribe()
    node.send()

    client.nack(client.inbox[0], Back.REJECTED)

    assert totals_of(node) == {"accepted": 1, "removed": 1}


def test_a_purged_message_is_removed() -> None:
    node = Node()
    node.send()
    bulk = node.broker.bulk_settlement

    node.decide(lambda out: bulk.purge(bulk.waiting(JOBS, bulk.in_memory(JOBS)), out))

    assert totals_of(node) == {"accepted": 1, "removed": 1}


def test_a_message_that_a_full_queue_drops_is_removed() -> None:
    for overflow in ("drop-oldest", "drop-newest"):
        node = Node(rules=QueueRules(messages_max=1, overflow=overflow, dead_letter=""))
        node.send(destination=JOBS)
        node.send(destination=JOBS)

        assert totals_of(node)["removed"] == 1


def test_an_expired_message_is_expired_and_a_dead_letter_if_its_policy_keeps_it() -> None:
    for keeps, found in (
        (False, {"accepted": 1, "expired": 1}),
        (True, {"accepted": 1, "expired": 1, "dead_lettered": 1}),
    ):
        node = Node(rules=QueueRules(keeps_dropped=keeps))
        node.send(headers=b"ttl:1000\n")

        node.later(2 * SECOND_US)

        assert totals_of(node) == found


def test_deliveries_and_those_that_are_marked_as_redelivered_are_counted_when_they_are_encoded() -> None:
    node = Node(rules=AT_ONCE)
    client = node.client()
    client.subscribe()
    node.send()
    node.send()
    client.nack(client.inbox[0])
    totals = node.broker.totals.by_name[JOBS]

    encode_deliveries(client.inbox[0].subscription, client.inbox, Version.V12, totals)

    # The first message is there twice, and has failed by now.
    assert (totals.delivered, totals.redelivered) == (3, 2)


def test_a_refused_destination_gets_no_totals_of_its_own() -> None:
    totals = NodeTotals()
    totals.begin(JOBS)

    for name in (JOBS, "/queue/\x00", "nonsense", ""):
        totals.refused(name)

    assert (list(totals.by_name), totals.by_name[JOBS].refused, totals.others.refused) == ([JOBS], 1, 3)
    assert totals.node().refused == 4


def test_replies_are_counted_with_the_others() -> None:
    totals = NodeTotals()

    totals.begin("/temp-queue/answers").delivered += 1

    assert (totals.by_name, totals.node().delivered) == ({}, 1)


def test_a_destination_counts_since_it_was_first_used() -> None:
    totals = NodeTotals()
    totals.now_us = 7

    assert totals.begin("/queue/a").since_us == 7
    assert totals.begin("/queue/b", 9).since_us == 9
    assert totals.begin("/queue/a", 11).since_us == 7


def test_any_number_of_destinations_is_counted_in_bounded_memory() -> None:
    totals = NodeTotals(destinations_max=10)

    for number in range(1000):
        totals.begin(f"/queue/{number}").accepted += 1

    assert len(totals.by_name) <= 10
    assert totals.node().accepted == 1000


def test_quiet_destinations_make_room_and_busy_ones_keep_their_totals() -> None:
    totals = NodeTotals(destinations_max=10)
    for number in range(10):
        totals.begin(f"/queue/quiet.{number}" if number else "/queue/busy").accepted += 1

    for number in range(100):
        totals.begin("/queue/busy").accepted += 1
        totals.begin(f"/queue/new.{number}").accepted += 1

    assert totals.by_name["/queue/busy"].accepted == 101
    assert not any(name.startswith("/queue/quiet") for name in totals.by_name)
    assert any(name.startswith("/queue/new") for name in totals.by_name)
    assert totals.node().accepted == 10 + 200
