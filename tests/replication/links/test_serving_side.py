"""The serving half alone: when lent messages come back, and what a follower may not say."""

import pytest
import trio
import trio.testing

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.errors import MeshError
from qmq.model.dots import Dot, Origin
from qmq.replication.links.outbox import LinkOutbox, encode_message
from qmq.replication.links.serving_side import ServingSide
from qmq.replication.protocol.frames import Credit, Held, MembershipFrame, Returned, Welcome
from qmq.replication.protocol.handshake import Partner

from ..rig import JOBS, Network, Node, peers_of, running, until

pytestmark = pytest.mark.trio

A, B = Origin("a", 1), Origin("b", 1)


def node_and_follower() -> tuple[Node, ServingSide]:
    """Node a that has lent its messages 1 and 2 to b over a link that has ended, and b's next link."""
    node = Node(Network(), "a", peers_of("ab"))
    out = Outcome()
    first = serve(node)
    first.apply(Held([], {}), out)
    first.apply(Credit([(JOBS, 10)]), out)
    node.send(JOBS, b"one", b"two")
    first.end()
    return node, serve(node)


def serve(node: Node) -> ServingSide:
    partner = Partner(origin=B, peers_version=1, features=frozenset(), beat_ms=1000)
    serving = ServingSide(node, partner, LinkOutbox(encode_message, lambda: None))
    serving.begin()
    return serving


def lent(node: Node) -> list[Dot]:
    return list(node.broker.lending.lent["b"])


async def test_what_the_follower_still_holds_stays_lent_and_the_rest_comes_back_once_its_records_are_here() -> None:
    node, serving = node_and_follower()
    out = Outcome()

    serving.apply(Held([Dot(A, 1)], {B: 3}), out)
    early = lent(node)
    node.received_vector()[B] = 2
    assert serving.take_back(node.received_vector(), out) == 0
    node.received_vector()[B] = 3
    count = serving.take_back(node.received_vector(), out)

    assert early == [Dot(A, 1), Dot(A, 2)]
    assert (count, lent(node)) == (1, [Dot(A, 1)])
    assert [message.body for message in node.broker.queues.get(JOBS).ready] == [b"two"]


async def test_what_the_follower_gives_back_before_its_records_are_here_is_not_with_it_any_more() -> None:
    node, serving = node_and_follower()
    out = Outcome()

    serving.apply(Held([Dot(A, 1), Dot(A, 2)], {B: 3}), out)
    serving.apply(Returned([(Dot(A, 2), Back.UNSEEN, None)]), out)
    node.received_vector()[B] = 3
    serving.take_back(node.received_vector(), out)

    assert lent(node) == [Dot(A, 1)]
    assert [message.body for message in node.broker.queues.get(JOBS).ready] == [b"two"]


async def test_nothing_is_lent_over_a_new_link_until_the_followers_records_are_here() -> None:
    node, serving = node_and_follower()
    out = Outcome()

    serving.apply(Held([], {B: 3}), out)
    serving.apply(Credit([(JOBS, 5)]), out)
    serving.apply(Credit([(JOBS, 10)]), out)
    node.send(JOBS, b"new")
    early = lent(node)
    node.received_vector()[B] = 3
    serving.take_back(node.received_vector(), out)

    # One and two came back and were lent again with the credit that had waited; the new one never came back.
    attempts = {message.body: message.attempts for message in node.broker.lending.lent["b"].values()}
    assert early == [Dot(A, 1), Dot(A, 2)]
    assert attempts == {b"one": 1, b"two": 1, b"new": 0}


async def test_only_the_followers_word_about_its_own_records_is_waited_for() -> None:
    node, serving = node_and_follower()

    serving.apply(Held([], {Origin("z", 9): 1000, A: 99}), Outcome())

    assert lent(node) == []


async def test_a_life_of_the_follower_that_is_forgotten_here_is_not_waited_for() -> None:
    node, serving = node_and_follower()
    dead = Origin("b", 7)
    node.broker.forgotten = {dead}

    serving.apply(Held([], {B: 0, dead: 5}), Outcome())

    assert lent(node) == []


async def test_a_follower_that_never_says_what_it_holds_loses_it_in_the_end() -> None:
    node, serving = node_and_follower()
    out = Outcome()

    assert serving.take_back({}, out) == 0
    assert serving.take_back({}, out, late=True) == 2
    assert serving.take_back({}, out, late=True) == 0


async def test_an_ended_link_takes_nothing_back() -> None:
    node, serving = node_and_follower()
    serving.end()

    assert serving.take_back({}, Outcome(), late=True) == 0
    assert serving.end() == []
    assert len(lent(node)) == 2


async def test_the_follower_is_welcomed_with_what_is_durable() -> None:
    node, serving = node_and_follower()

    welcome = encode_message(Welcome({}, node.environment.now_us()))
    assert serving.outbox.take() == welcome + encode_message(MembershipFrame(node.membership.standing))


async def test_a_frame_that_comes_too_early_changes_nothing() -> None:
    node, serving = node_and_follower()

    with pytest.raises(MeshError):
        serving.apply(Credit([("/queue/other", 1)]), Outcome())

    assert "/queue/other" not in node.broker.queues.by_name


async def test_a_hole_makes_other_peers_relay(autojump_clock: trio.testing.MockClock) -> None:
    """c's journal is damaged in the middle; b follows c directly, so a relays only because c says so."""
    network, peers = Network(), peers_of("abc")
    nodes = a, b, c = Node(network, "a", peers), Node(network, "b", peers), Node(network, "c", peers)
    origin = Origin("c", 1)

    async with running(*nodes):
        network.cut("b", "c")
        network.cut("a", "b")
        for body in (b"1", b"2", b"3"):
            c.send("/fanout/news", body)
            await trio.sleep(0.5)
        await until(lambda: a.journal.vector == {origin: 3})
        c.journal.lose(1)
        network.cuts.discard(frozenset("bc"))
        await until(lambda: b.journal.vector == {origin: 1})
        await trio.sleep(10)
        isolated_mode = dict(b.journal.vector)
        network.heal()
        await until(lambda: b.journal.vector == {origin: 3})

    assert isolated_mode == {origin: 1}
    assert b.fanouts == [(origin, b"1"), (origin, b"2"), (origin, b"3")]


async def test_last_values_are_sent_while_the_link_lasts() -> None:
    node = Node(Network(), "a", peers_of("ab"))
    partner = Partner(origin=B, peers_version=1, features=frozenset(), beat_ms=1000)
    serving = ServingSide(node, partner, LinkOutbox(encode_message, lambda: None))
    serving.begin()

    assert list(node.broker.retained.spreads) == ["b"]
    serving.end()
    assert not node.broker.retained.spreads
