"""Children of a fanout: queues that get a copy of every message, put there by the node that accepted it."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.messages.limits import COPIES_BYTES_MAX
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.rules import QueueRules
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin
from tests.broker.rig import NOW_US, Node, envelope, message_of

NEWS = "/fanout/news"
MAIL = "/queue/mail"
AUDIT = "/queue/audit"


def family(*children: str) -> Envelope:
    """The envelope of a message to a fanout with these children."""
    parent = envelope(NEWS)
    parent.copies = tuple(envelope(child) for child in children)
    return parent


def publish(node: Node, parent: Envelope, body: bytes = b"m") -> Outcome:
    node.broker.send_limits.check_send(parent, len(body))
    return node.decide(lambda out: node.broker.send(parent, body, NOW_US, out))


def test_each_child_gets_one_copy_with_a_dot_of_its_own() -> None:
    node = Node()

    out = publish(node, family(MAIL, AUDIT), b"extra")

    records = [record for record in out.records if isinstance(record, Message)]
    assert [(record.envelope.destination, record.body) for record in records] == [
        (NEWS, b"extra"),
        (MAIL, b"extra"),
        (AUDIT, b"extra"),
    ]
    assert [record.dot for record in records] == [Dot(node.origin, sequence) for sequence in (1, 2, 3)]
    assert (node.depth(MAIL), node.depth(AUDIT)) == (1, 1)


def test_a_message_of_a_peer_is_not_copied_again() -> None:
    node = Node()

    node.decide(lambda out: node.broker.accept(message_of(Origin("b", 1), 7, destination=NEWS), out))

    assert node.depth(MAIL) == 0


def test_a_full_child_refuses_the_whole_message_by_its_name() -> None:
    node = Node(rules_of=lambda name: QueueRules(messages_max=1 if name == AUDIT else 0))
    publish(node, family(MAIL, AUDIT))

    with pytest.raises(Refused, match=f"{AUDIT} gets a copy") as refused:
        publish(node, family(MAIL, AUDIT))

    assert refused.value.code == "queue-full"
    assert (node.depth(MAIL), node.depth(AUDIT), len(node.journal)) == (1, 1, 3)


def test_a_transaction_whose_copies_do_not_all_fit_is_refused_as_a_whole() -> None:
    node = Node(rules_of=lambda name: QueueRules(messages_max=2))
    client = node.client()
    client.begin("t")
    client.hold(HeldFrame(envelope=envelope(MAIL), body=b"one"))
    client.hold(HeldFrame(envelope=family(MAIL), body=b"two"))
    client.hold(HeldFrame(envelope=family(MAIL), body=b"three"))

    with pytest.raises(Refused, match=f"{MAIL} gets a copy"):
        client.commit("t")

    assert node.depth(MAIL) == 0
    assert not node.journal


def test_a_transaction_puts_its_copies_into_the_same_batch() -> None:
    node = Node()
    client = node.client()
    client.begin("t")
    client.hold(HeldFrame(envelope=family(MAIL), body=b"one"))

    out = client.commit("t")

    assert [record.envelope.destination for record in out.records if isinstance(record, Message)] == [NEWS, MAIL]


def test_a_message_whose_copies_would_not_fit_into_one_batch_is_refused() -> None:
    node = Node()

    with pytest.raises(Refused) as refused:
        publish(node, family(MAIL), bytes(COPIES_BYTES_MAX // 2))

    assert refused.value.code == "body-too-large"


def test_copies_count_for_the_size_of_a_transaction() -> None:
    isolated_mode, with_child = (
        HeldFrame(envelope=envelope(NEWS), body=b"x" * 999),
        HeldFrame(envelope=family(MAIL), body=b"x" * 999),
    )

    assert with_child.bytes - isolated_mode.bytes > 999


def test_a_full_disk_refuses_a_message_with_children() -> None:
    node = Node()
    node.broker.send_limits.disk_full = True

    with pytest.raises(Refused) as refused:
        publish(node, family(MAIL))

    assert refused.value.code == "disk-full"
