"""A node that loses the right to serve: what it has decided to deliver and not sent comes back, and only that."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Delivery

from ..rig import JOBS, NOW_US, Client, Node, check_accounts, envelope
from .test_pull_consumers import grant, pull


def decide_to_send(node: Node, *bodies: bytes, durable: bool = True) -> list[Delivery]:
    """The deliveries of a decision whose commit is under way."""
    out = Outcome(now_us=NOW_US)
    for body in bodies:
        node.broker.send(envelope(JOBS, durable=durable), body, NOW_US, out)
    node.broker.finish(out, NOW_US)
    node.journal += out.records
    waiting = out.deliveries_after if durable else out.deliveries_now
    return [delivery for run in waiting.values() for delivery in run]


def hold(node: Node) -> Outcome:
    return node.decide(node.queues.hold)


def release(node: Node) -> Outcome:
    return node.decide(node.queues.release_hold)


@pytest.mark.parametrize("ack", [Ack.AUTO, Ack.CLIENT, Ack.CLIENT_INDIVIDUAL])
def test_what_was_not_sent_comes_back_in_order_and_has_not_failed(ack: Ack) -> None:
    node = Node()
    client: Client = node.client()
    client.subscribe(ack=ack)
    node.send(b"0")
    unsent = decide_to_send(node, b"1", b"2")
    late = Outcome(now_us=NOW_US)
    node.broker.send(envelope(), b"3", NOW_US, late)

    hold(node)

    assert node.ready() == [b"1", b"2", b"3"]
    assert node.queues.start_ack_timeouts(unsent, NOW_US) == []
    assert all(one.subscription.may_lose_unsent for one in unsent)
    node.broker.finish(late, NOW_US)
    check_accounts(node)
    assert client.bodies == [b"0"]

    release(node)

    assert client.bodies == [b"0", b"1", b"2", b"3"]
    assert client.attempts == [0, 0, 0, 0]
    check_accounts(node)


def test_what_a_client_was_sent_and_what_no_other_node_has_stays() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.send(b"sent")
    [memory] = decide_to_send(node, b"memory", durable=False)

    hold(node)

    assert [one.message.body for one in node.queues.deliveries.values()] == [b"sent", b"memory"]
    assert not memory.subscription.may_lose_unsent
    check_accounts(node)


def test_a_consumer_that_pulls_gets_what_it_was_granted_later() -> None:
    node = Node()
    client = node.client()
    subscription = pull(client)
    grant(node, subscription)
    decide_to_send(node, b"1", b"2")

    hold(node)
    assert node.ready() == [b"1", b"2"]
    release(node)

    assert client.bodies == [b"1"]
    check_accounts(node)
