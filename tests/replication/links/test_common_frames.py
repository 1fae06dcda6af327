"""What crosses links beside records, topics and loans: replies to sessions, and questions."""

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.replication.links.outbox import REPLY_BYTES_MAX, LinkOutbox, encode_send
from qmq.replication.protocol.frames import PeerRequest
from tests.replication.rig import Network, Node, peers_of, running, until


def pair() -> tuple[Network, Node, Node]:
    network = Network()
    peers = peers_of("ab")
    return network, Node(network, "a", peers), Node(network, "b", peers)


def address_at(node: Node) -> str:
    return node.broker.subscriptions.subscribe_replies(Subscription(1, "r", "/temp-queue/r", Ack.AUTO, 1, b""))


def reply(node: Node, address: str, body: bytes) -> None:
    out = Outcome()
    node.broker.send(Envelope(address, DestinationKind.REPLY, b"k:v\n", False), body, 1, out)
    node.submit(out)


async def test_a_reply_reaches_the_session_on_the_other_node(autojump_clock: trio.testing.MockClock) -> None:
    _, a, b = pair()
    async with running(a, b):
        reply(b, address_at(a), b"to a")
        reply(a, address_at(b), b"to b")

        await until(lambda: a.seen == [b"to a"] and b.seen == [b"to b"])


async def test_a_reply_goes_over_the_one_link_that_is_up(autojump_clock: trio.testing.MockClock) -> None:
    network, a, b = pair()
    async with running(a, b, linked=False):
        # Nobody can dial b any more, so only b follows a.
        network.listeners["b"].close()
        for pipe in list(network.pipes):
            pipe.break_now()
        await until(lambda: b.link_states() == {"a": ("caught-up", "down")})

        reply(b, address_at(a), b"to a")
        reply(a, address_at(b), b"to b")

        await until(lambda: a.seen == [b"to a"] and b.seen == [b"to b"])


async def test_a_peer_that_is_cut_off_cannot_be_replied_to_until_it_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, a, b = pair()
    async with running(a, b):
        address = address_at(a)
        network.cut("a", "b")
        await until(lambda: b.link_states() == {"a": ("down", "down")})
        reply(b, address, b"lost")
        assert b.broker.replies.peers == frozenset()

        network.heal()
        await until(lambda: a.is_linked and b.is_linked)
        reply(b, address, b"found")
        await until(lambda: bool(a.seen))

    assert a.seen == [b"found"]
    assert b.broker.replies.dropped == 1


async def test_replies_that_a_slow_peer_does_not_take_are_dropped_and_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    _, a, b = pair()
    async with running(a, b):
        address = address_at(b)
        b.slots = trio.Event()
        for _ in range(REPLY_BYTES_MAX // 1_000_000 + 8):
            reply(a, address, b"x" * 1_000_000)
            await trio.lowlevel.checkpoint()
        dropped = a.mesh.replies_dropped
        b.slots.set()
        await until(lambda: len(b.seen) + dropped == REPLY_BYTES_MAX // 1_000_000 + 8)

    assert dropped > 0


async def test_a_question_is_asked_of_every_reachable_peer_and_answered(autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    peers = peers_of("abc")
    a, b, c = (Node(network, name, peers) for name in "abc")
    async with running(a, b, c):
        asked = a.mesh.ask(5, PeerRequest("kind-", b"abc"))
        await until(lambda: len(a.answers) == 2)
        network.cut("a", "c")
        await until(lambda: a.link_states()["c"] == ("down", "down"))
        asked_then = a.mesh.ask(6, PeerRequest("kind-", b"xyz"))
        await until(lambda: len(a.answers) == 3)

    assert sorted(origin.node for origin in asked) == ["b", "c"]
    assert [origin.node for origin in asked_then] == ["b"]
    assert sorted(a.answers) == [("b", 5, b"kind-cba"), ("b", 6, b"kind-zyx"), ("c", 5, b"kind-cba")]


async def test_a_response_goes_over_the_link_by_which_the_request_came(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`a` may have ended the other one, which `b` does not know yet."""
    _, a, b = pair()
    async with running(a, b):
        ways = [link.outbox for link in b.mesh._registry.links]
        for number, way in enumerate(ways):
            waiting = {each: len(each._small) for each in ways}
            b.mesh.answer(a.origin, number, b"here", way)
            assert {each for each in ways if len(each._small) > waiting[each]} == {way}
        b.mesh.answer(a.origin, 2, b"by another", LinkOutbox(encode_send, lambda: None))
        await until(lambda: len(a.answers) == 3)

    assert sorted(a.answers) == [("b", 0, b"here"), ("b", 1, b"here"), ("b", 2, b"by another")]
