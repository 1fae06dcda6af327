"""Topics between whole links: through a third node when a pair is cut, over one connection when one side can dial."""

import pytest
import trio
import trio.testing

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message

from ..rig import Network, Node, peers_of, running, until

pytestmark = pytest.mark.trio

T = "/topic/t"


async def three(network: Network) -> tuple[Node, Node, Node]:
    peers = peers_of("abc")
    a, b, c = (Node(network, name, peers) for name in "abc")
    return a, b, c


def via(node: Node, peer: str) -> str | None:
    return next(found.topics_via for found in node.mesh.statistics().peers if found.name == peer)


def wanted(node: Node, topic: str) -> set[str]:
    return set(node.broker.interest.match(topic))


async def test_topics_of_a_cut_pair_go_through_the_third_node_and_directly_again_when_it_heals(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    a, b, c = await three(network)
    b.subscribe(T)
    async with running(a, b, c):
        await until(lambda: wanted(a, T) == {"b"})
        network.cut("a", "b")
        await until(lambda: a.link_states()["b"] == ("down", "down") == b.link_states()["a"])
        during = wanted(a, T), via(a, "b")
        a.send(T, b"round")
        await until(lambda: b.seen == [b"round"])
        b.subscribe("/topic/late")
        await until(lambda: wanted(a, "/topic/late") == {"b"})
        network.heal()
        await until(lambda: a.is_linked and b.is_linked)
        a.send(T, b"straight")
        await until(lambda: b.seen == [b"round", b"straight"])
        after = via(a, "b")

    assert during == ({"b"}, "c")
    assert after == "b"
    assert c.mesh.statistics().topics_relayed == 1
    assert b.mesh.statistics().topics_late == 0


async def test_a_stream_that_is_cut_and_healed_is_in_order_and_has_nothing_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    a, b, c = await three(network)
    b.subscribe(T)
    sent = [str(number).encode() for number in range(2000)]
    async with running(a, b, c):
        await until(lambda: wanted(a, T) == {"b"})
        for number, body in enumerate(sent):
            a.send(T, body)
            if number % 400 == 150:
                network.cut("a", "b")
            if number % 400 == 350:
                network.heal()
            await trio.sleep(0.01)
        await until(lambda: b.seen[-1:] == sent[-1:])

    heard = [int(body) for body in b.seen]
    assert heard == sorted(set(heard))
    assert len(heard) > 1800
    assert c.mesh.statistics().topics_relayed > 0


async def test_a_silent_link_is_left_for_the_third_node_once_it_is_suspected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    a, b, c = await three(network)
    b.subscribe(T)
    async with running(a, b, c):
        await until(lambda: wanted(a, T) == {"b"})
        network.silence("a", "b")
        await until(lambda: via(a, "b") == "c")
        a.send(T, b"round")
        await until(lambda: b.seen == [b"round"])


async def test_what_no_node_can_pass_on_is_dropped_and_counted(autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    a, b, c = await three(network)
    b.subscribe(T)
    async with running(a, b, c):
        await until(lambda: wanted(a, T) == {"b"})
        network.cut("a", "b")
        network.cut("c", "b")
        await until(lambda: wanted(a, T) == set())
        envelope = Envelope(T, DestinationKind.TOPIC, b"", False)
        a.mesh.send_topics("b", [Message(envelope, b"late", a.origin, -1, 0)])
        b_as_a_sees_it = next(peer for peer in a.mesh.statistics().peers if peer.name == "b")

    assert b_as_a_sees_it.topics_via is None
    assert b_as_a_sees_it.topics_dropped == 1


async def test_topics_take_both_ways_over_the_only_connection_that_can_be_dialled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    a.subscribe("/topic/of-b")
    b.subscribe("/topic/of-a")
    network.deaf.add("b")
    async with running(a, b, linked=False):
        await until(lambda: wanted(a, "/topic/of-a") == {"b"} and wanted(b, "/topic/of-b") == {"a"})
        states = a.link_states()["b"][1], b.link_states()["a"]
        a.send("/topic/of-a", b"one", b"two")
        b.send("/topic/of-b", b"three", b"four")
        await until(lambda: b.seen == [b"one", b"two"] and a.seen == [b"three", b"four"])

    assert states == ("up", ("caught-up", "down"))
