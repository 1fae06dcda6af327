"""A node that cannot dial a peer follows it over a connection that the peer has dialled."""

import pytest
import trio
from trio.testing import MockClock

from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.model.members import Listing
from qmq.replication.protocol.frames import PeerRequest
from qmq.replication.protocol.handshake import DIAL, Answering, PeerIdentity, make_proof, turn
from qmq.wire.stomp import Connection, Limits, Role
from qmq.wire.stomp.frames import Frame

from ..rig import JOBS, Network, Node, peers_of, running, until

NEWS = "/fanout/news"
NONCE = "0" * 32


async def test_a_node_that_cannot_be_dialled_is_followed_and_lends_all_the_same(autojump_clock: MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    network.deaf.add("b")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.send(NEWS, b"record")
        await until(lambda: a.fanouts == [(b.origin, b"record")])
        a.subscribe(JOBS)
        b.send(JOBS, b"lent")
        await until(lambda: a.seen == [b"lent"])
        a.settle(b"lent")
        await until(lambda: b.journal.vector == a.journal.vector)

        assert a.link_states() == {"b": ("caught-up", "up")}
        assert a.reports == b.reports == []


async def test_such_a_link_is_made_again_when_it_breaks_and_dialled_when_that_works(
    autojump_clock: MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    network.deaf.add("b")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        for number in range(2):
            network.cut("a", "b")
            await until(lambda: not a.is_linked and not b.is_linked)
            network.heal()
            await until(lambda: a.is_linked and b.is_linked)
            b.send(NEWS, b"%d" % number)
            await until(lambda n=number: (b.origin, b"%d" % n) in a.fanouts)
        network.cut("a", "b")
        await until(lambda: not a.is_linked)
        network.deaf.clear()
        network.heal()
        await until(lambda: a.is_linked and b.is_linked)
        await trio.sleep(100)

        assert a.is_linked and b.is_linked


async def test_a_peer_that_leaves_while_a_frame_to_it_is_stuck_is_offered_no_connection(
    autojump_clock: MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    network.deaf.add("a")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b, linked=False):
        await trio.sleep(2 * a.settings.suspicion_seconds - 0.5)
        assert a.link_states() == {"b": ("caught-up", "down")}
        b.slots = trio.Event()
        for number in range(2):
            a.mesh.ask(number, PeerRequest("kind", bytes(1 << 20)))
            await trio.sleep(0.1)
        a.membership.take_up(Listing(2, frozenset("a")))
        a.mesh.take_up(peers_of("a", version=2))
        await trio.sleep(1)

        assert a.link_states() == {}


async def test_between_nodes_that_dial_each_other_nothing_is_turned(autojump_clock: MockClock) -> None:
    network, peers = Network(), peers_of("abc")
    nodes = [Node(network, name, peers) for name in "abc"]

    async with running(*nodes):
        dials = network.dials
        await trio.sleep(100)

        assert network.dials == dials


def identity(node: str, secret: str = "s") -> PeerIdentity:
    return PeerIdentity(
        mesh="m", peers_version=1, origin=Origin(node, 1), members=frozenset("ab"), secret=secret, beat_ms=1000
    )


def frame_of(data: bytes) -> Frame:
    (frame,) = Connection(Role.SERVER, Limits()).receive(data)
    return frame


def test_only_a_node_with_the_secret_is_followed_over_its_connection() -> None:
    asked = frame_of(turn(identity("b"), "a", NONCE))

    assert Answering(identity("a"), NONCE, None).turned(asked) == "b"
    with pytest.raises(MeshError) as refused:
        Answering(identity("a", "another"), NONCE, None).turned(asked)
    assert refused.value.code == "bad-proof"
    with pytest.raises(MeshError) as refused:
        Answering(identity("a"), NONCE, lambda: ["c"]).turned(asked)
    assert refused.value.code == "wrong-certificate"


def test_the_proof_of_a_turned_connection_opens_no_other() -> None:
    asked = turn(identity("b"), "a", NONCE)

    with pytest.raises(MeshError) as refused:
        Answering(identity("a"), NONCE, None).connect(frame_of(asked))
    assert refused.value.code == "bad-proof"
    dialled = asked.replace(
        frame_of(asked).head.headers["proof"].encode(),
        make_proof("s", DIAL, ("m", str(Origin("b", 1)), "a", NONCE)).encode(),
    )
    with pytest.raises(MeshError) as refused:
        Answering(identity("a"), NONCE, None).turned(frame_of(dialled))
    assert refused.value.code == "bad-proof"
