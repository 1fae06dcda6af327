import pytest

from qmq.broker.consumers.subscription import Ack
from qmq.broker.messages.message import MAYBE_SEEN
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.broker.queues import queues
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

from ..rig import AT_ONCE, JOBS, Node, check_accounts, check_empty, message_of

A = Origin("a", 1)
OLD = Origin("a", 77)
SETTLE = Dot(Origin("b", 1), 1)
"""The record with which another node settled something."""


def queue_with(*bodies: bytes, durable: bool = True, rules: QueueRules = DEFAULT_RULES) -> Node:
    node = Node(rules=rules)
    for body in bodies:
        node.send(body, durable=durable)
    return node


def test_message_waits_for_its_first_consumer() -> None:
    node = queue_with(b"1", b"2")
    client = node.client()

    client.subscribe()

    assert client.bodies == [b"1", b"2"]
    check_accounts(node)


def test_individual_ack_settles_one_message() -> None:
    node = queue_with(b"1", b"2", b"3")
    client = node.client()
    subscription = client.subscribe(ack=Ack.CLIENT_INDIVIDUAL)

    client.ack(client.inbox[1])

    assert node.settled_dots() == [Dot(A, 2)]
    assert [d.message.body for d in subscription.in_flight.values()] == [b"1", b"3"]
    check_accounts(node)


def test_cumulative_ack_settles_all_up_to_it() -> None:
    node = queue_with(b"1", b"2", b"3")
    client = node.client()
    subscription = client.subscribe(ack=Ack.CLIENT)

    client.ack(client.inbox[1])

    assert node.settled_dots() == [Dot(A, 1), Dot(A, 2)]
    assert [d.message.body for d in subscription.in_flight.values()] == [b"3"]
    check_accounts(node)


def test_cumulative_ack_covers_its_own_subscription_only() -> None:
    node = queue_with(b"1", b"2", b"3", b"4")
    client = node.client()
    client.subscribe(id="one", ack=Ack.CLIENT, credit=2)
    client.subscribe(id="two", ack=Ack.CLIENT, credit=2)

    client.ack(client.inbox[3])

    assert node.settled_dots() == [Dot(A, 3), Dot(A, 4)]


def test_ack_makes_room_for_the_next_message() -> None:
    node = queue_with(b"1", b"2", b"3")
    client = node.client()
    client.subscribe(credit=1)

    client.ack(client.inbox[0])
    client.ack(client.inbox[1])

    assert client.bodies == [b"1", b"2", b"3"]
    check_accounts(node)


def test_settles_of_one_decision_are_one_record_per_queue() -> None:
    node = queue_with(b"1", b"2")
    node.send(b"other", "/queue/other")
    client = node.client()
    client.subscribe(ack=Ack.AUTO)
    client.subscribe("/queue/other", id="other", ack=Ack.AUTO)

    out = node.decide(lambda out: [node.broker.written([delivery], out) for delivery in client.inbox])

    assert [(record.queue, record.dots) for record in out.records] == [  # type: ignore[union-attr]
        (JOBS, [Dot(A, 1), Dot(A, 2)]),
        ("/queue/other", [Dot(A, 3)]),
    ]
    assert [record.sequence for record in out.records] == [4, 5]
    assert node.broker.next_sequence == 6


def test_memory_only_message_leaves_no_record() -> None:
    node = queue_with(b"1", durable=False)
    client = node.client()
    client.subscribe()

    client.ack(client.inbox[0])
    client.leave()

    assert node.journal == []
    assert node.broker.next_sequence == 1
    check_empty(node)


def test_ack_twice_is_refused() -> None:
    node = queue_with(b"1")
    client = node.client()
    client.subscribe()
    client.ack(client.inbox[0])

    with pytest.raises(Refused) as refused:
        client.ack(client.inbox[0])

    assert refused.value.code == "unknown-ack"


def test_client_cannot_settle_what_another_has() -> None:
    node = queue_with(b"1")
    owner, thief = node.client(), node.client()
    owner.subscribe()

    with pytest.raises(Refused) as refused:
        thief.ack(owner.inbox[0])

    assert refused.value.code == "unknown-ack"
    assert node.depth() == 1


def test_refused_message_comes_again_with_its_attempts_counted() -> None:
    node = queue_with(b"1", b"2", rules=AT_ONCE)
    client = node.client()
    client.subscribe(credit=1)

    client.nack(client.inbox[0])
    client.nack(client.inbox[1])

    assert client.bodies == [b"1", b"1", b"1"]
    assert client.inbox[-1].message.attempts == 2
    check_accounts(node)


def test_refused_message_goes_to_the_next_in_line() -> None:
    node = queue_with(b"1", rules=AT_ONCE)
    first, second = node.client(), node.client()
    first.subscribe(credit=1)
    second.subscribe()

    first.nack(first.inbox[0])

    assert second.bodies == [b"1"]


def test_cumulative_nack_returns_all_up_to_it_in_order() -> None:
    node = queue_with(b"1", b"2", b"3", b"4", rules=AT_ONCE)
    client = node.client()
    client.subscribe(ack=Ack.CLIENT, credit=3)
    client.node.queues.held = True

    client.nack(client.inbox[1])

    assert node.ready() == [b"1", b"2", b"4"]


def test_messages_of_a_client_that_leaves_return_to_the_head_in_order() -> None:
    node = queue_with(b"1", b"2", b"3", b"4")
    leaver = node.client()
    leaver.subscribe(credit=3)
    leaver.ack(leaver.inbox[1])

    leaver.leave()

    assert node.ready() == [b"1", b"3", b"4"]
    heir = node.client()
    heir.subscribe()
    assert list(zip(heir.bodies, heir.attempts, strict=True)) == [(b"1", 1), (b"3", 1), (b"4", 1)]
    check_accounts(node)


def test_messages_of_several_clients_that_leave_stand_in_their_old_order() -> None:
    node = queue_with(b"1", b"2", b"3", b"4", b"5")
    clients = [node.client(), node.client()]
    for client in clients:
        client.subscribe(credit=2)
    node.queues.held = True

    for client in clients:
        client.leave()

    assert node.ready() == [b"1", b"2", b"3", b"4", b"5"]


def test_what_a_dying_client_gives_back_does_not_go_to_its_other_subscriptions() -> None:
    node = queue_with(b"1", b"2")
    client = node.client()
    client.subscribe(id="one", credit=1)
    client.subscribe(id="two", credit=5)

    client.leave()

    assert client.bodies == [b"1", b"2"]
    assert [message.attempts for message in node.queues.by_name[JOBS].ready] == [1, 1]
    check_accounts(node)


def test_message_of_an_ended_subscription_goes_to_another_one_of_the_same_client() -> None:
    node = queue_with(b"1")
    client = node.client()
    client.subscribe(id="one")
    client.subscribe(id="two")

    client.unsubscribe("one")

    assert [d.subscription.id for d in client.inbox] == ["one", "two"]
    check_accounts(node)


def test_consumers_that_come_and_go_leave_nothing_in_line() -> None:
    node = Node()
    stayer = node.client()
    stayer.subscribe()

    for _ in range(100):
        client = node.client()
        client.subscribe()
        client.leave()

    assert len(node.queues.by_name[JOBS].in_line) == 1
    check_accounts(node)


@pytest.mark.parametrize("durable", [True, False])
def test_queue_without_messages_and_consumers_is_forgotten(durable: bool) -> None:
    node = queue_with(b"1", durable=durable)
    client = node.client()
    client.subscribe()
    client.ack(client.inbox[0])
    assert JOBS in node.queues.by_name

    client.leave()

    check_empty(node)


def test_rules_come_with_the_queue() -> None:
    few = QueueRules(messages_max=5, bytes_max=50)
    node = Node(rules_of=lambda name: few if name == JOBS else DEFAULT_RULES)

    assert node.queues.get(JOBS).rules is few
    assert node.queues.get("/queue/x").rules is DEFAULT_RULES


# Settles from elsewhere: another node's consumer, or this node's own before it lost its disk.


def test_message_settled_elsewhere_while_ready_is_never_delivered() -> None:
    node = queue_with(b"1", b"2")

    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 2}, SETTLE)

    assert node.depth() == 1
    client = node.client()
    client.subscribe()
    assert client.bodies == [b"2"]
    check_accounts(node)


def test_queue_is_forgotten_when_its_last_message_is_settled_elsewhere() -> None:
    node = queue_with(b"1")

    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 1}, SETTLE)

    check_empty(node)


@pytest.mark.parametrize("verb", ["ack", "nack", "leave"])
def test_message_settled_elsewhere_while_in_flight_is_not_returned_and_only_its_ack_is_recorded(verb: str) -> None:
    node = queue_with(b"1")
    client = node.client()
    client.subscribe()

    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 1}, SETTLE)
    check_accounts(node)
    if verb == "ack":
        client.ack(client.inbox[0])
    elif verb == "nack":
        client.nack(client.inbox[0])
    check_accounts(node)
    client.leave()

    assert node.settled_dots() == ([Dot(A, 1)] if verb == "ack" else [])
    assert client.bodies == [b"1"]
    check_empty(node)


def test_settle_received_twice_counts_once() -> None:
    node = queue_with(b"1", b"2")

    node.broker.accept_settles(JOBS, [Dot(A, 1), Dot(A, 1)], {A: 2}, SETTLE)

    assert node.depth() == 1


def test_settle_of_another_nodes_message_is_none_of_our_business() -> None:
    node = queue_with(b"1")

    node.broker.accept_settles(JOBS, [Dot(Origin("b", 1), 1), Dot(Origin("b", 1), 100)], {}, SETTLE)

    assert node.depth() == 1
    assert not node.queues.owned.settled_early


def test_settle_that_came_before_its_message_settles_it_on_arrival() -> None:
    node = Node()
    node.broker.accept_settles(JOBS, [Dot(OLD, 3)], {OLD: 2}, SETTLE)

    node.decide(lambda out: node.broker.accept(message_of(OLD, 3), out))

    check_empty(node)


def test_settle_of_a_message_that_is_known_and_gone_is_not_remembered() -> None:
    node = Node()

    node.broker.accept_settles(JOBS, [Dot(OLD, 3)], {OLD: 3}, SETTLE)

    assert not node.queues.owned.settled_early


# After a restart


def test_restored_messages_wait_until_the_hold_is_released() -> None:
    node = Node()
    node.queues.held = True
    for sequence in (1, 2):
        node.queues.intake.restore(message_of(OLD, sequence, b"old"))
    client = node.client()
    client.subscribe(credit=3)
    node.send(b"new")
    assert client.bodies == []
    check_accounts(node)

    node.decide(node.queues.release_hold)

    assert client.bodies == [b"old", b"old", b"new"]
    check_accounts(node)


def test_nothing_leaves_a_held_node_by_ack_nack_return_or_credit() -> None:
    node = queue_with(b"1", b"2", b"3", b"4", rules=AT_ONCE)
    client = node.client()
    client.subscribe(credit=2)
    node.queues.held = True
    node.lending.borrower_connected("b")

    client.ack(client.inbox[0])
    client.nack(client.inbox[1])
    out = node.offer("b", 5)

    assert client.bodies == [b"1", b"2"]
    assert not out.peer_deliveries
    assert node.ready() == [b"2", b"3", b"4"]


def test_release_lends_to_peers_that_offered_meanwhile() -> None:
    node = Node()
    node.queues.held = True
    node.queues.intake.restore(message_of(OLD, 1))
    node.lending.borrower_connected("b")
    node.offer("b", 1)

    out = node.decide(node.queues.release_hold)

    assert [message.dot for message in out.peer_deliveries["b"]] == [Dot(OLD, 1)]


def test_a_release_takes_a_turn_for_each_thousand_queues_and_a_new_hold_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queues, "DUE_AT_ONCE", 10)
    node = Node()
    node.queues.held = True
    client = node.client()
    for number in range(25):
        node.send(str(number).encode(), f"/queue/{number}")
        client.subscribe(f"/queue/{number}", id=str(number))

    node.decide(node.queues.release_hold)
    assert len(client.bodies) == 10
    node.later(0)
    assert len(client.bodies) == 20

    node.queues.held = True
    node.later(0)
    assert len(client.bodies) == 20
    node.decide(node.queues.release_hold)
    for _ in range(3):
        node.later(0)
    assert sorted(client.bodies, key=int) == [str(number).encode() for number in range(25)]


def test_restored_message_is_settled_with_the_dot_of_its_old_origin() -> None:
    node = Node()
    node.queues.intake.restore(message_of(OLD, 9))
    node.decide(node.queues.release_hold)
    client = node.client()
    client.subscribe()

    client.ack(client.inbox[0])
    client.leave()

    assert node.settled_dots() == [Dot(OLD, 9)]
    check_empty(node)


@pytest.mark.parametrize(("is_unseen", "attempts"), [(False, MAYBE_SEEN), (True, 0)])
def test_a_restored_message_is_marked_unless_the_last_life_ended_with_nothing_in_hand(
    is_unseen: bool, attempts: int
) -> None:
    node = Node()
    node.queues.paging.is_unseen = is_unseen
    node.queues.intake.restore(message_of(OLD, 1))
    client = node.client()
    client.subscribe()

    assert [delivery.message.attempts for delivery in client.inbox] == [attempts]


def test_a_restored_message_whose_delay_ends_goes_behind_what_waits() -> None:
    node = Node()
    node.queues.intake.restore(message_of(OLD, 1, b"late", headers=b"delay:500\n"))
    node.queues.intake.restore(message_of(OLD, 2, b"first"))
    node.later(500_000)
    client = node.client()
    client.subscribe()

    assert client.bodies == [b"first", b"late"]


def test_what_a_peer_has_had_since_before_it_was_served_here_is_marked_when_it_comes_back() -> None:
    node = Node()
    message = message_of(OLD, 1)
    node.queues.owned.elsewhere[message.dot] = "b"

    node.decide(lambda out: node.queues.intake.take_in(message, out))

    assert [(lent.dot, lent.attempts) for lent in node.queues.owned.lent["b"].values()] == [(message.dot, MAYBE_SEEN)]


def test_message_settled_elsewhere_during_the_hold_is_not_delivered_after_it() -> None:
    node = Node()
    node.queues.held = True
    node.queues.intake.restore(message_of(OLD, 1, b"1"))
    node.queues.intake.restore(message_of(OLD, 2, b"2"))
    client = node.client()
    client.subscribe()

    node.broker.accept_settles(JOBS, [Dot(OLD, 1)], {OLD: 2}, SETTLE)
    node.decide(node.queues.release_hold)

    assert client.bodies == [b"2"]


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_ids_by_which_old_clients_settle_are_forgotten_with_all_that_one_of_them_covers(verb: str) -> None:
    node = queue_with(b"1", b"2", b"3")
    client = node.client()
    subscription = client.subscribe(ack=Ack.CLIENT)
    subscription.message_ids = {delivery.message.message_id: delivery.tag for delivery in client.inbox}
    node.queues.held = True

    client.ack(client.inbox[1]) if verb == "ack" else client.nack(client.inbox[1])

    assert list(subscription.message_ids.values()) == [client.inbox[2].tag]
