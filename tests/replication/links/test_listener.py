"""The mesh port and its connections; and a dialler that reaches the wrong node."""

import logging
from dataclasses import replace

import pytest
import trio
import trio.testing

from qmq.model.dots import Dot, Origin
from qmq.replication.links.listener import PENDING_MAX
from qmq.replication.links.outbox import encode_message, encode_send
from qmq.replication.protocol.conversation import Conversation
from qmq.replication.protocol.frames import Ack, Batches, Credit, Held, MeshFrame, Settled, Welcome
from qmq.replication.protocol.handshake import Answering, Dialling, PeerIdentity

from ..rig import SECRET, Address, Network, Node, Peer, Peers, Pipe, batch_of, peers_of, running, until

pytestmark = pytest.mark.trio

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)
Clock = trio.testing.MockClock


def identity(name: str = "b", incarnation: int = 1, secret: str | None = SECRET) -> PeerIdentity:
    return PeerIdentity(
        mesh="test",
        peers_version=1,
        origin=Origin(name, incarnation),
        members=frozenset("abc"),
        secret=secret,
        beat_ms=1000,
    )


class Stranger:
    """A follower written by hand, which can say anything."""

    def __init__(self, pipe: Pipe, mine: PeerIdentity) -> None:
        self.pipe = pipe
        self.dialling = Dialling(mine, "a", "f" * 32)
        self.conversation = Conversation(self.dialling)
        self.frames: list[MeshFrame] = []

    async def read_to_end(self) -> str:
        """Read until the other side ends; the code of its ERROR, or ""."""
        with trio.fail_after(60):
            while data := await self.pipe.receive_some(65536):
                self.frames += self.conversation.receive(data)
        error = self.conversation.error
        return "" if error is None else error.code

    async def log_in(self) -> None:
        await self.pipe.send_all(self.dialling.connect())
        while self.conversation.partner is None and self.conversation.error is None:
            self.conversation.receive(await self.pipe.receive_some(65536))
        await self.pipe.send_all(self.conversation.reply)
        self.conversation.reply = b""

    async def say(self, *frames: MeshFrame) -> None:
        for frame in frames:
            await self.pipe.send_all(encode_send(frame))

    async def beat(self) -> None:
        while True:
            await trio.sleep(1)
            await self.pipe.send_all(b"\n")


async def stranger(network: Network, **about: object) -> Stranger:
    pipe = await network.seen_from("z").connect("a", 1, None, "a")
    return Stranger(pipe, identity(**about))  # type: ignore[arg-type]


async def test_garbage_gets_one_error_and_a_condition(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("abc"))

    async with running(a, linked=False):
        codes = []
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\0" * 100, b"CONNECT\nlogin:me\n\n\0"):
            visitor = await stranger(network)
            await visitor.pipe.send_all(data)
            codes.append(await visitor.read_to_end())
        refused = a.mesh.statistics().refused

    assert len(codes) == 3 and all(code.startswith("refused-") for code in codes)
    assert codes[2] == "refused-not-a-node"
    assert refused == 3
    assert a.reports


async def test_the_wrong_mesh_name_or_secret_is_refused_with_a_condition_on_both_sides(autojump_clock: Clock) -> None:
    for changes, code in (
        ({"mesh": "other"}, "wrong-mesh"),
        ({"secret": "quite another secret"}, "bad-proof"),
    ):
        network = Network()
        a = Node(network, "a", peers_of("ab"))
        b = Node(network, "b", replace(peers_of("ab"), **changes))
        async with running(a, b, linked=False):
            await until(lambda a=a, b=b: bool(a.reports and b.reports))
            await trio.sleep(20)

        assert {found for found, _ in a.reports} == {code, f"refused-{code}"}
        assert {found for found, _ in b.reports} == {code, f"refused-{code}"}
        assert a.link_states() == {"b": ("down", "down")}


async def test_the_same_condition_is_not_raised_with_every_redial(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))
    b = Node(network, "b", replace(peers_of("ab"), mesh="other"))

    async with running(a, b, linked=False):
        await trio.sleep(50)

    assert network.dials > 10
    assert [code for code, _ in a.reports].count("wrong-mesh") == 1


async def test_a_login_that_dawdles_is_ended(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        visitor = await stranger(network)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.read_to_end)
            with pytest.raises(trio.BrokenResourceError):
                for byte in visitor.dialling.connect():
                    await visitor.pipe.send_all(bytes([byte]))
                    await trio.sleep(0.5)
        lasted = trio.current_time() - began

    assert 5 <= lasted < 7


async def test_only_so_many_strangers_may_wait_at_once_and_the_longest_gives_way(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        first, second, *_ = [await stranger(network) for _ in range(PENDING_MAX)]
        await trio.sleep(1)
        late = await stranger(network)
        assert await first.read_to_end() == ""
        with trio.move_on_after(1) as waits:
            await second.read_to_end()
        assert waits.cancelled_caught
        await late.log_in()
        await until(lambda: a.link_states() == {"b": ("down", "up")})


async def test_strangers_that_come_again_and_again_keep_no_node_out(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async def come_again() -> None:
        while True:
            visitor = await stranger(network)
            await visitor.read_to_end()

    async with running(a, linked=False), trio.open_nursery() as nursery:
        for _ in range(PENDING_MAX):
            nursery.start_soon(come_again)
        await trio.sleep(10)

        late = await stranger(network)
        await late.log_in()

        await until(lambda: a.link_states() == {"b": ("down", "up")})
        nursery.cancel_scope.cancel()


async def test_a_proven_follower_that_talks_nonsense_is_ended_with_one_error(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))
    nonsense = [
        [Credit([("/queue/jobs", 1)])],
        [Held([], {}), Held([], {})],
    ]

    async with running(a, linked=False):
        for frames in nonsense:
            visitor = await stranger(network)
            await visitor.log_in()
            await visitor.say(*frames)
            assert await visitor.read_to_end() == "refused-bad-frame"
        await until(lambda: a.link_states() == {"b": ("down", "down")})


async def test_a_bad_second_proof_opens_nothing(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        visitor = await stranger(network)
        await visitor.pipe.send_all(visitor.dialling.connect())
        while visitor.conversation.partner is None:
            visitor.conversation.receive(await visitor.pipe.receive_some(65536))
        await visitor.pipe.send_all(
            b"SUBSCRIBE\nid:0\ndestination:/mesh/journal\nproof:"
            + b"0" * 64
            + b"\n\n\0"
            + encode_send(Credit([("/queue/x", 1)]))
        )
        code = await visitor.read_to_end()

    assert code == "refused-bad-proof"
    assert visitor.frames == []
    assert "/queue/x" not in a.broker.queues.by_name


async def test_a_follower_may_settle_what_was_never_lent_to_it_without_effect(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))
    a.send("/queue/jobs", b"mine")

    async with running(a, linked=False):
        visitor = await stranger(network)
        await visitor.log_in()
        await visitor.say(Ack(0, {}, {}, ()), Held([], {}), Settled([Dot(A, 1)]))
        await trio.sleep(1)
        depth = a.broker.queues.get("/queue/jobs").depth

    assert depth == 1


async def test_a_newcomer_of_the_same_incarnation_takes_the_place_at_once(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        old = await stranger(network)
        await old.log_in()
        await until(lambda: a.link_states() == {"b": ("down", "up")})
        new = await stranger(network)
        await new.log_in()
        await old.read_to_end()
        await trio.sleep(1)

        assert a.link_states() == {"b": ("down", "up")}
        assert a.reports == []


async def test_a_second_live_node_of_one_name_is_refused_with_a_condition(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False) as nursery:
        old = await stranger(network)
        await old.log_in()
        nursery.start_soon(old.beat)
        await trio.sleep(10)
        new = await stranger(network, incarnation=2)
        await new.log_in()
        code = await new.read_to_end()
        origin = a.mesh.statistics().peers[0].origin

    assert code == "refused-duplicate-node"
    assert [found for found, _ in a.reports] == ["duplicate-node"]
    assert origin == B


async def test_a_restarted_node_takes_the_place_of_its_silent_past(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        old = await stranger(network)
        await old.log_in()
        await trio.sleep(3)
        new = await stranger(network, incarnation=2)
        await new.log_in()
        await until(lambda: a.mesh.statistics().peers[0].origin == Origin("b", 2))

    assert a.reports == []


async def test_a_follower_that_does_not_read_is_let_go(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))
    for number in range(20):
        a.send("/fanout/news", b"x" * 100_000, b"%d" % number)

    async with running(a, linked=False) as nursery:
        deaf = await stranger(network)
        await deaf.log_in()
        nursery.start_soon(deaf.beat)
        await deaf.say(Ack(0, {}, {}, ()), Held([], {}))
        await trio.sleep(60)
        sent = a.mesh.statistics().peers[0].record_bytes_out

    assert sent < (1 << 20) + 3_000_000


# The other way round: a serving node that cannot be trusted


class Impostor:
    """Listens as node b and says what it likes, after a right handshake."""

    def __init__(self, network: Network, *says: bytes) -> None:
        self.network = network
        self.says = says
        self.errors: list[str] = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = await self.network.seen_from("b").listen("b", 1, None)
        task_status.started()
        while True:
            pipe = await listener.accept()
            conversation = Conversation(Answering(identity(), "9" * 32, None))
            try:
                while not conversation.is_proven:
                    conversation.receive(await pipe.receive_some(65536))
                    await pipe.send_all(conversation.reply)
                    conversation.reply = b""
                await pipe.send_all(b"".join(self.says))
                while await pipe.receive_some(65536):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                continue


async def reports_of(*says: bytes) -> tuple[Node, list[str]]:
    network = Network()
    a = Node(network, "a", peers_of("abc"))
    async with running(a, linked=False) as nursery:
        await nursery.start(Impostor(network, encode_message(Welcome({})), *says).run)
        await trio.sleep(5)
    return a, [code for code, _ in a.reports]


async def test_a_serving_node_that_lies_is_left_with_one_report_and_nothing_taken(autojump_clock: Clock) -> None:
    flipped = bytearray(batch_of(B, 1, 1))
    flipped[-1] ^= 1
    lies = {
        "forged-origin": encode_message(Batches(1, batch_of(A, 1, 1))),
        "unknown-origin": encode_message(Batches(1, batch_of(Origin("z", 1), 1, 1))),
        "bad-batch": encode_message(Batches(1, bytes(flipped))),
        "bad-frame": encode_message(Batches(1, b""))[:8] + b"nonsense\n\n\0",
    }

    for code, lie in lies.items():
        a, codes = await reports_of(lie)
        if code == "bad-frame":
            assert len(codes) == 1
        else:
            assert codes == [code]
        assert a.journal.vector == {}


async def test_a_gap_in_the_stream_makes_the_follower_subscribe_again_without_a_condition(
    autojump_clock: Clock,
) -> None:
    a, codes = await reports_of(encode_message(Batches(1, batch_of(B, 1, 1) + batch_of(B, 3, 3))))

    assert codes == []
    assert a.journal.vector == {B: 1}
    assert a.mesh.statistics().peers[0].dialled > 1


async def test_a_node_that_was_dialled_is_not_served_under_a_name_that_is_a_part_of_its_own(
    autojump_clock: Clock,
) -> None:
    network = Network()
    peers = Peers(tuple(Peer(name, Address(name, 1)) for name in ("a", "b", "bb")), secret=None)
    a = Node(network, "a", peers)
    a.mesh._listener._tls = lambda: None  # type: ignore[assignment,return-value]  # these pipes need none
    near, far = Pipe(network, "a", "bb"), Pipe(network, "bb", "a")
    near.other, far.other = far, near
    visitor = Stranger(far, identity("b", secret=None))

    async with running(a, linked=False) as nursery:
        nursery.start_soon(a.mesh._listener.serve_dialled, near, "bb")
        await trio.sleep(1)
        await visitor.log_in()

        assert await visitor.read_to_end() == "refused-wrong-certificate"


async def test_a_dialler_that_reaches_another_node_than_it_meant_says_so(autojump_clock: Clock) -> None:
    network = Network()
    a, c = Node(network, "a", peers_of("abc")), Node(network, "c", peers_of("abc"))

    async with running(a, c, linked=False):
        network.listeners["b"] = network.listeners["c"]
        await until(lambda: any(code == "refused-wrong-node" for code, _ in a.reports))

    assert any(code == "wrong-node" for code, _ in c.reports)


async def test_the_first_proof_alone_opens_nothing(autojump_clock: Clock) -> None:
    network = Network()
    a = Node(network, "a", peers_of("ab"))

    async with running(a, linked=False):
        replayed = await stranger(network)
        await replayed.pipe.send_all(replayed.dialling.connect())
        await trio.sleep(2)
        states = a.link_states()
        answer = await replayed.pipe.receive_some(65536)

    assert states == {"b": ("down", "down")}
    assert answer.startswith(b"CONNECTED\n")
    assert answer.rstrip(b"\n").count(b"\0") == 1


async def test_a_peer_that_cannot_be_reached_is_logged_once_a_minute(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "qmq.replication.links")
    a = Node(Network(), "a", peers_of("ab"))

    async with running(a, linked=False):
        await trio.sleep(90)

    assert caplog.text.count("no link with b: ") == 2
    assert a.mesh.statistics().peers[0].dialled > 10
