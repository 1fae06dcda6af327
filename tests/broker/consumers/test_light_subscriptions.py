"""Plain subscriptions to topics by name: no object each, and no difference that anybody can see."""

import pytest

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Retain
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from tests.broker.rig import Client, Node, envelope


def hears(client: Client, topic: str, *bodies: bytes) -> bool:
    """Whether exactly that is published to `client` when `bodies` are sent to `topic`."""
    before = len(client.heard)
    for body in bodies:
        client.node.send(body, topic)
    return [message.body for message in client.heard[before:]] == list(bodies)


def test_a_million_of_them_would_make_one_object() -> None:
    node = Node()
    client = node.client()

    assert all(node.broker.subscriptions.listen(client.id, f"/topic/{name}", name, Outcome()) for name in "abc")

    session = node.broker.sessions[client.id]
    assert session.subscribed == 3 and not session.subscriptions
    assert {type(subscriber) for name in "abc" for subscriber in node.broker.topics.match(f"/topic/{name}")} == {
        LightSubscriptions
    }
    assert node.broker.topics.match("/topic/a")[0] is node.broker.topics.match("/topic/b")[0]
    assert hears(client, "/topic/a", b"1", b"2")


def test_an_id_names_one_subscription_of_either_sort() -> None:
    node = Node()
    client = node.client()
    node.broker.subscriptions.listen(client.id, "/topic/a", "1", Outcome())
    client.subscribe("/topic/b", id="2")

    with pytest.raises(Refused, match="already has"):
        node.broker.subscriptions.listen(client.id, "/topic/c", "1", Outcome())
    with pytest.raises(Refused, match="already has"):
        node.broker.subscriptions.listen(client.id, "/topic/c", "2", Outcome())
    with pytest.raises(Refused, match="already has"):
        client.subscribe("/topic/c", id="1")
    with pytest.raises(Refused, match="already has"):
        client.subscribe("/temp-queue/t", id="1")

    assert sorted(node.broker.topics) == ["/topic/a", "/topic/b"]


def test_both_sorts_count_against_the_bound_of_a_connection() -> None:
    node = Node(limits=BrokerLimits(subscriptions_max=2))
    client = node.client()
    client.subscribe("/topic/a", id="1")
    node.broker.subscriptions.listen(client.id, "/topic/b", "2", Outcome())

    with pytest.raises(Refused, match="at most 2"):
        node.broker.subscriptions.listen(client.id, "/topic/c", "3", Outcome())
    with pytest.raises(Refused, match="at most 2"):
        client.subscribe("/temp-queue/t", id="3")


def test_the_second_subscription_of_a_session_to_a_topic_needs_an_object() -> None:
    node = Node()
    client = node.client()
    node.broker.subscriptions.listen(client.id, "/topic/a", "1", Outcome())

    assert not node.broker.subscriptions.listen(client.id, "/topic/a", "2", Outcome())

    client.subscribe("/topic/a", id="2")
    client.node.send(b"x", "/topic/a")
    assert [message.body for message in client.heard] == [b"x", b"x"]


def test_so_does_one_that_may_get_a_last_value() -> None:
    node = Node()
    client = node.client()
    retained = envelope("/topic/a")
    retained.retain = Retain.SET
    node.decide(lambda out: node.broker.send(retained, b"last", node.now_us, out))

    assert not node.broker.subscriptions.listen(client.id, "/topic/a", "1", Outcome())
    assert node.broker.sessions[client.id].subscribed == 0


def test_after_unsubscribing_it_hears_no_more_and_the_peers_learn_it() -> None:
    node = Node()
    client, other = node.client(), node.client()
    node.broker.subscriptions.listen(client.id, "/topic/a", "1", Outcome())
    node.broker.subscriptions.listen(client.id, "/topic/b", "2", Outcome())
    node.broker.subscriptions.listen(other.id, "/topic/a", "1", Outcome())

    assert client.unsubscribe("1").interest_changes == {}
    assert hears(client, "/topic/a") and hears(client, "/topic/b", b"2")
    assert other.unsubscribe("1").interest_changes == {"/topic/a": False}
    with pytest.raises(Refused, match="no subscription with that id"):
        node.broker.subscriptions.unsubscribe(client.id, "1", Outcome())


def test_what_was_decided_before_it_left_finds_that_it_has_left() -> None:
    node = Node()
    client = node.client()
    node.broker.subscriptions.listen(client.id, "/topic/a", "1", Outcome())
    listener = node.broker.sessions[client.id].listener
    assert listener is not None

    client.leave()

    assert listener.ids == listener.topics == listener.prefixes == {}
    assert list(node.broker.topics) == []


def test_pattern_that_is_one_too_many_leaves_no_subscription_and_no_wish() -> None:
    node = Node(limits=BrokerLimits(pattern_words_max=3))
    client = node.client()
    client.subscribe("/topic/a.*.b", id="1")
    out = Outcome()

    with pytest.raises(Refused, match="at most 3 words"):
        node.broker.subscriptions.subscribe(Subscription(client.id, "2", "/topic/x.*.b", Ack.AUTO, 1, b""), out)

    assert node.broker.sessions[client.id].subscribed == 1
    assert list(node.broker.topics) == ["/topic/a.*.b"] and not out.interest_changes


def test_parts_of_all_selectors_are_bounded_and_those_that_left_make_room() -> None:
    cost = compile_selector("a = 1").cost
    node = Node(limits=BrokerLimits(selector_parts_max=2 * cost))
    one, other = node.client(), node.client()
    one.subscribe("/topic/a", id="1", selector="a = 1")
    known = other.subscribe("/queue/a", id="1", selector="a = 2")

    with pytest.raises(Refused, match="parts together") as refused:
        one.subscribe("/fanout/a", id="2", selector="a = 3")
    one.subscribe("/topic/a", id="3")
    assert one.subscribe("/fanout/a", id="4", selector="a = 2").selector is known.selector
    one.unsubscribe("4")
    node.broker.close_session(other.id, Outcome())
    one.subscribe("/fanout/a", id="2", selector="a = 3")

    assert refused.value.code == "too-many-selectors"
