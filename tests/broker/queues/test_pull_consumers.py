"""Consumers that pull: they get as many messages as they are granted, and no settled one makes room for another."""

import random
from functools import partial

import pytest

from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.model.dots import Origin

from ..rig import AT_ONCE, JOBS, SECOND_US, Client, Node, check_accounts, check_empty, envelope, message_of

B = Origin("b", 1)


def pull(client: Client, *, id: str = "s", ack_timeout_us: int = 0, selector: str = "") -> Subscription:
    subscription = client.subscribe(id=id, credit=0, ack_timeout_us=ack_timeout_us, selector=selector)
    subscription.is_pull = True
    return subscription


def grant(node: Node, subscription: Subscription, count: int = 1) -> None:
    node.decide(lambda out: node.queues.grant(subscription, count, out))


def test_it_gets_one_message_for_each_grant() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    for body in (b"1", b"2", b"3"):
        node.send(body)
    assert client.bodies == []

    grant(node, subscription)
    assert client.bodies == [b"1"]
    grant(node, subscription)
    assert client.bodies == [b"1", b"2"]

    client.ack(client.inbox[0])
    client.nack(client.inbox[1], Back.UNSEEN)
    assert client.bodies == [b"1", b"2"]
    assert node.ready() == [b"2", b"3"]
    check_accounts(node)


def test_several_messages_are_granted_at_once() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    for body in (b"1", b"2", b"3"):
        node.send(body)

    grant(node, subscription, 2)

    assert client.bodies == [b"1", b"2"]
    check_accounts(node)


def test_one_that_has_ceased_is_a_consumer_again_with_what_it_has_in_flight() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    for body in (b"1", b"2", b"3"):
        node.send(body)
    grant(node, subscription, 2)
    node.decide(lambda out: node.queues.cease(subscription, out))
    client.ack(client.inbox[0])

    node.decide(lambda out: node.queues.subscribe(subscription, out))

    assert client.bodies == [b"1", b"2"]
    check_accounts(node)
    grant(node, subscription)
    assert client.bodies == [b"1", b"2", b"3"]
    check_accounts(node)


def test_a_grant_waits_for_a_message() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    grant(node, subscription)

    node.send(b"1")
    node.send(b"2")

    assert client.bodies == [b"1"]
    check_accounts(node)


def test_what_was_granted_and_not_used_is_withdrawn() -> None:
    node = Node()
    client, other = node.client(), node.client()
    subscription = pull(client)
    grant(node, subscription)
    node.send(b"1")
    grant(node, subscription)

    node.queues.withdraw(subscription)
    node.queues.withdraw(subscription)
    node.send(b"2")

    assert client.bodies == [b"1"]
    other.subscribe()
    assert other.bodies == [b"2"]
    check_accounts(node)


def test_a_message_whose_time_is_over_goes_to_another_one() -> None:
    node = Node(rules=AT_ONCE)
    client, other = node.client(), node.client()
    subscription = pull(client, ack_timeout_us=SECOND_US)
    node.send(b"1")
    grant(node, subscription)
    grant(node, pull(other))

    node.later(2 * SECOND_US)

    assert (client.bodies, other.bodies) == ([b"1"], [b"1"])
    check_accounts(node)


def test_peers_are_offered_what_is_granted_although_others_are_at_work() -> None:
    node = Node()
    node.decide(lambda out: node.borrowing.owner_connected("b"))
    busy, waiting = node.client(), node.client()
    for client in (busy, waiting):
        subscription = pull(client)
        if client is busy:
            for body in (b"1", b"2"):
                node.send(body)
                grant(node, subscription)
    assert busy.bodies == [b"1", b"2"]
    node.borrowing.offers()

    grant(node, subscription)

    assert [(peer, limit) for peer, name, limit in node.borrowing.offers() if name == JOBS] == [("b", 1)]
    node.queues.withdraw(subscription)
    assert [(peer, limit) for peer, name, limit in node.borrowing.offers() if name == JOBS] == [("b", 0)]


def test_a_consumer_that_has_ceased_is_granted_nothing() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    node.send(b"1")
    node.send(b"2")
    grant(node, subscription)
    node.decide(lambda out: node.queues.cease(subscription, out))

    grant(node, subscription)

    assert client.bodies == [b"1"]
    assert node.queues.by_name[JOBS].free == 0
    client.ack(client.inbox[0])
    client.leave()
    assert node.ready() == [b"2"]
    check_accounts(node)


def ceased_with(node: Node, *bodies: bytes, headers: bytes = b"") -> Client:
    """A client whose consumer gets nothing more, and has these messages in flight."""
    client = node.client()
    subscription = pull(client)
    for body in bodies:
        node.send(body, headers=headers)
    grant(node, subscription, len(bodies))
    node.decide(lambda out: node.queues.cease(subscription, out))
    return client


def test_what_one_that_has_ceased_holds_leaves_with_the_other_messages_of_its_node() -> None:
    node = Node()
    client = ceased_with(node, b"1")

    node.queues.handoff.cede("a", "b")

    assert (client.bodies, node.depth()) == ([b"1"], 0)


def test_a_queue_is_kept_for_one_that_has_ceased() -> None:
    node = Node()
    node.decide(lambda out: node.borrowing.owner_connected("b"))
    client = node.client()
    subscription = pull(client)
    grant(node, subscription)
    node.borrow(message_of(B, 1, b"of b", owner="b"))
    node.decide(lambda out: node.queues.cease(subscription, out))
    node.queues.forget_if_idle(node.queues.by_name[JOBS])

    client.ack(client.inbox[0])

    assert node.queues.by_name[JOBS].free == 0
    check_accounts(node)
    client.leave()
    assert not node.queues.by_name


def test_a_selective_queue_knows_what_one_that_has_ceased_holds() -> None:
    node = Node()
    client = ceased_with(node, b"1")

    node.client().subscribe(selector="colour = 'red'")

    check_accounts(node)
    client.ack(client.inbox[0])
    check_accounts(node)


def test_what_one_that_has_ceased_holds_is_found_by_its_queue() -> None:
    node = Node()
    client = ceased_with(node, b"1", b"2")
    client.ack(client.inbox[0])

    assert [one.message.body for one in node.queues.in_flight_of(JOBS)] == [b"2"]

    client.leave()
    assert list(node.queues.in_flight_of(JOBS)) == []
    assert list(node.queues.in_flight_of("/queue/unknown")) == []


def test_a_message_may_be_given_to_one_of_them_before_all_others() -> None:
    node = Node()
    client, other = node.client(), node.client()
    other.subscribe(credit=1)
    taker = pull(client)
    node.send(b"for the other")
    node.send(b"waits")
    assert node.queues.may_give(taker)

    node.decide(lambda out: node.broker.send(envelope(), b"mine", node.now_us, out, taker))

    assert (client.bodies, other.bodies) == ([b"mine"], [b"for the other"])
    assert isinstance(node.journal[-1], Message) and node.journal[-1].body == b"mine"
    check_accounts(node)
    client.nack(client.inbox[0], Back.RELEASED)
    assert node.ready() == [b"waits", b"mine"]


def test_nothing_can_be_given_to_one_of_them_where_not_each_may_have_it() -> None:
    node = Node()
    taker = pull(node.client())
    node.client().subscribe(selector="colour = 'red'")

    assert not node.queues.may_give(taker)


@pytest.mark.parametrize("seed", range(20))
def test_the_accounts_are_right_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    node = Node(rules=AT_ONCE)
    clients = [node.client() for _ in range(4)]
    pulls = [pull(client) for client in clients[:3]]
    clients[3].subscribe(credit=2, selector="colour = 'red'" if seed % 3 == 0 else "")

    for _ in range(300):
        kind = rng.randrange(7)
        if kind == 0:
            node.send(b"%d" % rng.randrange(1000), durable=rng.random() < 0.5, headers=b"colour:red\n")
        elif kind == 1:
            grant(node, rng.choice(pulls), rng.randrange(1, 4))
        elif kind == 2:
            node.queues.withdraw(rng.choice(pulls))
        elif kind == 6:
            one = rng.choice(pulls)
            is_one = one in node.queues.get(one.destination).subscriptions
            node.decide(partial(node.queues.cease if is_one else node.queues.subscribe, one))
        else:
            client = rng.choice(clients)
            held = [one for one in client.inbox if one.tag in node.queues.deliveries]
            if held and kind == 3:
                client.ack(rng.choice(held))
            elif held:
                client.nack(rng.choice(held), rng.choice([Back.RELEASED, Back.UNSEEN, Back.FAILED, Back.TIMED_OUT]))
        check_accounts(node)

    for client in clients:
        client.leave()
    last = node.client()
    last.subscribe()
    last.ack_all()
    last.leave()
    check_empty(node)
