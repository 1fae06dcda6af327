"""Requests between nodes: which peers are waited for, how many are under way, and what a failing response causes."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import pytest
import trio
from msgspec import Meta
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.errors import Refused
from qmq.mesh.membership.decommission import OpinionCall
from qmq.mesh.peers.calls import CallTable, PeerCall
from qmq.mesh.peers.rpc import ANSWER_SECONDS, REQUESTS_AT_ONCE, PeerRpc
from qmq.model.dots import Origin
from qmq.replication.links.outbox import SINGLE_ANSWER_BYTES_MAX, LinkOutbox, encode_send
from qmq.replication.protocol.frames import PeerRequest
from tests.node.mesh_rig import MeshRig

B, C = Origin("b", 1), Origin("c", 1)
WAY = LinkOutbox(encode_send, lambda: None)
"""Of the link by which each request comes."""


class Links:
    """Links that carry nothing; what they were given is kept."""

    def __init__(self, *peers: Origin) -> None:
        self.peers = list(peers)
        self.asked: list[int] = []
        self.answered: list[tuple[Origin, int, bytes]] = []
        self.node, self.members = "a", {"b", "c"}
        self.links: dict[Origin, list[object]] = {peer: ["dialled", "served"] for peer in peers}

    def ask(self, number: int, question: bytes) -> list[Origin]:
        self.asked.append(number)
        return self.peers

    def ask_one(self, peer: str, number: int, question: bytes) -> list[Origin]:
        self.asked.append(number)
        return [origin for origin in self.peers if origin.node == peer]

    def answer(self, peer: Origin, number: int, answer: bytes, way: LinkOutbox) -> None:
        assert way is WAY
        self.answered.append((peer, number, answer))

    def links_to(self, peer: Origin) -> list[object]:
        return self.links.get(peer, [])


class Echo(PeerCall[Annotated[str, Meta(max_length=5)]], frozen=True):
    """Answered with the same word."""

    kind: ClassVar = "echo"
    word: str


ASKED = Echo("?")


def peer_rpc(nursery: trio.Nursery, links: Links, answer: Callable[[Any, Echo], Any] | None = None) -> PeerRpc:
    async def echo(context: Any, call: Echo) -> str:
        await trio.lowlevel.checkpoint()
        return call.word

    table = CallTable([Echo.by(answer or echo)])
    return PeerRpc(links, nursery.start_soon, {"echo": table}.get, lambda: None)  # type: ignore[arg-type]


def request(word: str) -> PeerRequest:
    return Echo(word).request()


async def test_the_answers_of_all_end_the_wait(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B, C)
        node = peer_rpc(nursery, links)
        got: list[Any] = []

        async def ask() -> None:
            got.append(await node.ask(ASKED))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        (number,) = links.asked
        node.response_received(C, number, b'"c"')
        node.response_received(C, number, b'"again"')
        node.response_received(Origin("b", 2), number, b'"other"')
        await wait_all_tasks_blocked()
        assert got == []
        node.response_received(B, number, b'"b"')

    assert got == [({"b": "b", "c": "c"}, [])]
    assert trio.current_time() == 0


async def test_a_node_that_does_not_answer_in_time_is_left_out_and_may_come_late(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B, C)
        node = peer_rpc(nursery, links)

        async def answer_one() -> None:
            await wait_all_tasks_blocked()
            node.response_received(B, links.asked[0], b'"b"')

        nursery.start_soon(answer_one)
        got = await node.ask(ASKED)
        node.response_received(C, links.asked[0], b'"late"')

    assert got == ({"b": "b"}, ["c"])
    assert trio.current_time() == ANSWER_SECONDS


async def test_without_a_peer_nothing_is_waited_for(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        assert await peer_rpc(nursery, Links()).ask(ASKED) == ({}, ["b", "c"])

    assert trio.current_time() == 0


async def test_so_many_questions_are_under_way_and_the_others_wait_their_turn(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B)
        node = peer_rpc(nursery, links)
        for _ in range(REQUESTS_AT_ONCE + 1):
            nursery.start_soon(node.ask, ASKED)
        await wait_all_tasks_blocked()
        at_first = len(links.asked)
        node.response_received(B, links.asked[0], b'"b"')
        await wait_all_tasks_blocked()

        assert (at_first, len(links.asked)) == (REQUESTS_AT_ONCE, REQUESTS_AT_ONCE + 1)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_asks_too_much_at_once_is_ignored_and_others_are_not(autojump_clock: MockClock) -> None:
    gate = trio.Event()

    async def answer(context: Any, call: Echo) -> str:
        await gate.wait()
        return call.word

    async with trio.open_nursery() as nursery:
        links = Links()
        node = peer_rpc(nursery, links, answer)
        for number in range(REQUESTS_AT_ONCE + 5):
            node.request_received(B, number, request("?"), WAY)
        node.request_received(C, 0, request("?"), WAY)
        gate.set()
        await wait_all_tasks_blocked()
        node.request_received(B, 99, request("?"), WAY)

    assert sum(peer == B for peer, _, _ in links.answered) == REQUESTS_AT_ONCE + 1
    assert (C, 0, b'"?"') in links.answered
    assert (B, 99, b'"?"') in links.answered


async def test_an_answer_that_fails_is_none_and_harms_no_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(context: Any, call: Echo) -> str:
        await trio.lowlevel.checkpoint()
        if call.word == "nonsense":
            raise Refused("bad-destination", "nonsense")
        if call.word == "broken":
            raise OSError("disk")
        return call.word

    async with trio.open_nursery() as nursery:
        links = Links()
        node = peer_rpc(nursery, links, answer)
        for number, question in enumerate(("nonsense", "broken", "good")):
            node.request_received(B, number, request(question), WAY)

    assert links.answered == [(B, 2, b'"good"')]
    assert "a request of b failed" in caplog.text


async def test_a_peer_that_no_link_leads_to_any_more_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B, C)
        node = peer_rpc(nursery, links)
        got: list[Any] = []

        async def ask() -> None:
            got.append(await node.ask(ASKED))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        links.links[B] = []
        node.links_changed()
        node.response_received(C, links.asked[0], b'"c"')

    assert got == [({"c": "c"}, ["b"])]
    assert trio.current_time() == 0


async def test_what_went_over_a_link_that_ended_is_asked_again_over_another(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B)
        node = peer_rpc(nursery, links)
        got: list[str | None] = []

        async def ask() -> None:
            got.append(await node.ask_one("b", ASKED))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        links.links[B] = ["dialled", "served", "a third"]
        node.links_changed()
        assert len(links.asked) == 1, "a link that begins loses nothing"
        links.links[B] = ["served"]
        node.links_changed()
        node.links_changed()
        assert links.asked == links.asked[:1] * 2
        node.response_received(B, links.asked[0], b'"b"')

    assert got == ["b"]
    assert trio.current_time() == 0


async def test_a_response_that_is_too_long_for_a_link_is_left_out_and_the_link_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: PeerRequest) -> bytes:
        return bytes(SINGLE_ANSWER_BYTES_MAX)

    def dialled() -> list[int]:
        meshes = [node.mesh for node in rig.nodes.values()]
        return [peer.dialled for mesh in meshes for peer in mesh.statistics().peers]

    async with MeshRig("a", "b").run() as rig:
        before = dialled()
        monkeypatch.setattr(rig.nodes["b"].peer_rpc, "_answer", answer)

        assert await rig.nodes["a"].peer_rpc.ask(OpinionCall("b")) == ({}, ["b"])
        await trio.sleep(60)

        assert dialled() == before


@pytest.mark.parametrize("answer", [b"", b"5", b'"too long"', b"null", b"[" * 100_000, b'"\xff"'])
async def test_an_invalid_reply_counts_as_none_and_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(B, C)
        node = peer_rpc(nursery, links)
        got: list[Any] = []

        async def ask() -> None:
            got.append(await node.ask(ASKED))
            got.append(await node.ask_one("b", ASKED))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        node.response_received(B, links.asked[0], answer)
        node.response_received(C, links.asked[0], b'"c"')
        await wait_all_tasks_blocked()
        node.response_received(B, links.asked[1], answer)

    assert got == [({"c": "c"}, ["b"]), None]
    assert caplog.text.count("b: invalid reply to a request of the kind echo") == 2


async def test_this_node_is_asked_as_its_peers_are(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = peer_rpc(nursery, Links())

        assert await node.ask_all(ASKED) == ({"a": "?"}, ["b", "c"])
        assert await node.ask_all(ASKED, is_mesh=False) == ({"a": "?"}, [])
