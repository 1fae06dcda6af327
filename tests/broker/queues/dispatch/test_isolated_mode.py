"""A node without any link delivers messages that no other node can have, until another node serves it."""

import pytest

from qmq.broker.messages.message import Message
from qmq.build import BUILD
from tests.broker.rig import JOBS, Node, check_accounts


def cut_off() -> Node:
    """A node that has lost its links, with a message that may have left it before."""
    node = Node()
    node.send(b"old")
    node.queues.held = True
    node.queues.isolated_mode.begin(node.broker.next_sequence - 1)
    return node


def test_a_consumer_gets_what_came_since_past_what_may_have_left() -> None:
    node = cut_off()
    node.send(b"new")
    client = node.client()
    client.subscribe()

    assert client.bodies == [b"new"]
    check_accounts(node)


def test_what_no_consumer_had_room_for_follows_the_others_when_a_link_is_back() -> None:
    node = cut_off()
    node.send(b"new")

    node.queues.isolated_mode.stop()
    node.decide(node.queues.end_isolation)

    assert node.ready() == [b"old", b"new"]
    check_accounts(node)


def test_what_no_consumer_had_room_for_is_left_to_the_node_that_serves_it_from_now_on() -> None:
    node = cut_off()
    node.send(b"new")
    node.send(b"in memory", durable=False)

    node.queues.handoff.cede("a", "b")
    node.decide(node.queues.end_isolation)

    levels = node.queues.by_name[JOBS].levels
    assert [message.body for level in levels for message in (*level.ready, *(level.tail or ()))] == [b"in memory"]
    assert node.depth() == 1


@pytest.mark.skipif(BUILD == "compiled", reason="a compiled class stays as it is")
def test_what_a_consumer_gives_back_is_compared_with_no_other_message(monkeypatch: pytest.MonkeyPatch) -> None:
    node = cut_off()
    client = node.client()
    client.subscribe()
    for body in (b"1", b"2", b"3"):
        node.send(body)
    compared: list[object] = []
    monkeypatch.setattr(Message, "__eq__", lambda one, other: compared.append(other), raising=False)

    client.leave()
    node.decide(node.queues.end_isolation)

    assert node.ready() == [b"old", b"1", b"2", b"3"]
    assert not compared
