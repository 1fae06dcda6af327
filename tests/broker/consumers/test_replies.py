"""Temporary queues: which connection gets a reply, the error if none can, and that nothing is left behind."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import OBJECT_BYTES, Ack, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.model.dots import Origin

from ..rig import NOW_US, Client, Node, check_empty

ANSWERS = "/temp-queue/answers"
B = Origin("b", 7)


def implicit(client: Client, name: str = ANSWERS) -> str:
    """The address that a `reply-to` with that name becomes."""
    subscription = Subscription(client.id, name, name, Ack.AUTO, 1, b"")
    return client.node.broker.subscriptions.subscribe_replies(subscription, is_implicit=True)


def reply(node: Node, address: str, body: bytes = b"yes", headers: bytes = b"") -> Outcome:
    envelope = Envelope(address, DestinationKind.REPLY, headers, False)
    return node.decide(lambda out: node.broker.send(envelope, body, NOW_US, out))


def test_a_reply_reaches_the_session_that_made_the_address_under_its_own_name() -> None:
    node = Node()
    asker, other = node.client(), node.client()
    address, _ = implicit(asker), implicit(other)

    out = reply(node, address, headers=b"correlation-id:1\n")

    assert [(m.body, m.envelope.destination, m.envelope.headers) for m in asker.heard] == [
        (b"yes", ANSWERS, b"correlation-id:1\n")
    ]
    assert other.heard == []
    assert not out.needs_commit


def test_addresses_of_two_sessions_and_of_two_names_differ_and_carry_the_key() -> None:
    node = Node()
    node.broker.open_session(900, 0xFEED)
    asker = node.client()

    keyed = node.broker.subscriptions.subscribe_replies(Subscription(900, "s", ANSWERS, Ack.AUTO, 1, b""))

    assert len({keyed, implicit(asker), implicit(asker, "/temp-queue/more")}) == 3
    assert keyed.startswith("/reply-queue/a-0000000000000001.900.000000000000feed.")


def test_a_reply_to_a_peer_goes_to_that_peer_while_it_is_the_one_that_made_the_address() -> None:
    node = Node()
    address = f"/reply-queue/{B}.1.0000000000000000.1"

    unreachable = reply(node, address)
    node.broker.replies.peers = frozenset([Origin("b", 8)])
    restarted = reply(node, address)
    node.broker.replies.peers = frozenset([B])
    sent = reply(node, address)

    assert unreachable.peer_replies == restarted.peer_replies == {}
    assert [(peer, [m.body for m in messages]) for peer, messages in sent.peer_replies.items()] == [(B, [b"yes"])]
    assert node.broker.replies.dropped == 2


def test_a_reply_that_a_peer_hands_on_reaches_the_session_or_is_counted() -> None:
    node = Node()
    asker = node.client()
    address = implicit(asker)
    gone = Message(Envelope(f"{address}0", DestinationKind.REPLY, b"", False), b"late", B, -1, NOW_US)
    for_another_life = Message(
        Envelope(address.replace("a-0000000000000001", "a-0000000000000002"), DestinationKind.REPLY, b"", False),
        b"x",
        B,
        -2,
        NOW_US,
    )
    good = Message(Envelope(address, DestinationKind.REPLY, b"", False), b"good", B, -3, NOW_US)

    node.decide(lambda out: [node.broker.replies.from_peer(message, out) for message in (gone, for_another_life, good)])

    assert [(message.body, message.message_id) for message in asker.heard] == [(b"good", f"{B}-m3")]
    assert node.broker.replies.dropped == 2


def test_a_reply_that_is_known_to_reach_no_client_is_refused() -> None:
    node = Node()
    asker = node.client()
    address = implicit(asker)
    node.broker.replies.check(address)
    asker.leave()

    for nobody in (address, f"/reply-queue/{B}.1.0000000000000000.1"):
        with pytest.raises(Refused) as refused:
            node.broker.replies.check(nobody)
        assert refused.value.code == "unknown-destination"


@pytest.mark.parametrize("address", ["/reply-queue/x", "/reply-queue/b-12.1.2.3", "/reply-queue/b-" + "g" * 16 + ".1"])
def test_an_address_that_no_node_makes_is_refused(address: str) -> None:
    with pytest.raises(Refused) as refused:
        Node().broker.replies.check(address)

    assert refused.value.code == "bad-destination"


def test_nothing_is_left_when_the_session_ends() -> None:
    node = Node()
    asker = node.client()
    implicit(asker)
    asker.subscribe("/temp-queue/more", id="1")
    assert len(node.broker.replies) == 2

    asker.leave()

    assert len(node.broker.replies) == 0
    check_empty(node)


def test_the_address_ends_with_its_subscription_and_a_new_one_is_another() -> None:
    node = Node()
    asker = node.client()
    first = implicit(asker)

    asker.unsubscribe(ANSWERS)
    second = implicit(asker)
    reply(node, first)
    reply(node, second, b"new")

    assert first != second
    assert [message.body for message in asker.heard] == [b"new"]


def test_an_explicit_subscription_takes_over_what_reply_to_made() -> None:
    node = Node()
    asker = node.client()
    address = implicit(asker)

    explicit = asker.subscribe(ANSWERS, id="mine")
    out = reply(node, address)

    assert [run.subscriptions for run in out.topic_runs] == [(explicit,)]
    assert list(node.broker.sessions[asker.id].subscriptions) == ["mine"]
    assert implicit_again(asker) == address


def implicit_again(client: Client) -> str:
    queue = client.node.broker.replies.find(client.id, ANSWERS)
    assert queue is not None
    return queue.address


def test_an_explicit_subscription_without_an_id_of_its_own_takes_over_too() -> None:
    node = Node()
    asker = node.client()
    address = implicit(asker)

    explicit = asker.subscribe(ANSWERS, id=ANSWERS)
    out = reply(node, address)

    assert [run.subscriptions for run in out.topic_runs] == [(explicit,)]


@pytest.mark.parametrize(
    ("destination", "id", "code"),
    [
        (ANSWERS, "other", "duplicate-subscription"),
        ("/temp-queue/more", "mine", "duplicate-subscription"),
        ("/temp-queue/more", "other", "too-many-subscriptions"),
        ("/temp-queue/a*", "other", "bad-pattern"),
    ],
)
def test_a_subscription_that_may_not_be_is_refused_and_changes_nothing(destination: str, id: str, code: str) -> None:
    node = Node(limits=BrokerLimits(subscriptions_max=1))
    asker = node.client()
    asker.subscribe(ANSWERS, id="mine")

    with pytest.raises(Refused) as refused:
        asker.subscribe(destination, id=id)

    assert refused.value.code == code
    assert list(node.broker.sessions[asker.id].subscriptions) == ["mine"]
    assert len(node.broker.replies) == 1


def test_no_client_subscribes_to_a_reply_address() -> None:
    asker = Node().client()
    address = implicit(asker)

    with pytest.raises(Refused) as refused:
        asker.subscribe(address, id="other")

    assert refused.value.code == "bad-destination"


def test_a_selector_of_a_temporary_queue_counts_as_any_other() -> None:
    text = "color = 'red'"
    cost = compile_selector(text).cost
    node = Node(limits=BrokerLimits(selector_parts_max=cost))
    asker = node.client()
    address = implicit(asker)
    state = node.broker.sessions[asker.id]
    before = state.asked_bytes

    subscription = asker.subscribe(ANSWERS, ack=Ack.AUTO, selector=text)

    assert state.asked_bytes - before == subscription.memory_bytes - OBJECT_BYTES
    assert reply(node, address).selector_cost == cost
    with pytest.raises(Refused, match="Different selectors"):
        asker.subscribe("/topic/t", id="t", selector="color = 'blue'")
    asker.unsubscribe()
    assert state.asked_bytes == 0
    asker.subscribe("/topic/t", id="t", selector="color = 'blue'")
