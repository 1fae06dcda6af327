"""The RECEIPT of a SUBSCRIBE precedes the first message of the subscription, whichever node has that message."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.node.node import Node
from qmq.sessions.clients.outbox import HELD_BYTES_MAX
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe

SLOW_SECONDS = 0.4


def slow_commits(node: Node, monkeypatch: pytest.MonkeyPatch, seconds: float = SLOW_SECONDS) -> None:
    """Let each commit of the node take that long, so that what waits for the disk comes late."""
    run_commit = node.environment.run_commit

    async def slowly(call: Callable[[], Any], **how: Any) -> Any:
        await trio.sleep(seconds)
        return await run_commit(call, **how)

    monkeypatch.setattr(node.environment, "run_commit", slowly)


async def published(client: Client, destination: str, *bodies: str, **headers: str) -> None:
    await client.send(*[send(destination, body, "r", **headers) for body in bodies])
    for _ in bodies:
        await client.receipt()


async def order(client: Client, messages: int) -> list[str]:
    """What comes until that many messages are here: receipt ids, and bodies of messages."""
    came: list[str] = []
    while sum(not one.startswith("sub") for one in came) < messages:
        frame = await client.any()
        came.append(frame.head.headers["receipt-id"] if frame.head.command == "RECEIPT" else frame.body.decode())
    return came


@pytest.mark.parametrize(
    ("destination", "headers"),
    [
        ("/queue/q", {"ack": "client-individual"}),
        ("/queue/q", {}),
        ("/queue/memory", {"ack": "client-individual"}),
        ("/queue/q", {"browser": "true"}),
        ("/fanout/f", {"x_stream_offset": "first"}),
        ("/fanout/f", {"qmq_resume": ""}),
        ("/fanout/f", {"ack": "client", "durable": "true", "x_stream_offset": "first"}),
        ("/topic/t", {}),
        ("/topic/#", {}),
        ("/topic/t", {"buffer_messages": "10"}),
    ],
)
async def test_the_receipt_comes_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, destination: str, headers: dict[str, str]
) -> None:
    async with Rig().run() as rig:
        writer = await rig.connect()
        await published(writer, "/queue/q", "kept")
        await published(writer, "/queue/memory", "kept", persistent="false")
        await published(writer, "/fanout/f", "kept")
        await published(writer, "/topic/t", "kept", retain="set")
        slow_commits(rig.alive, monkeypatch)
        client = await rig.connect()

        # What was sent in the same read holds up the receipt until it is on the disk.
        await client.send(send("/queue/other", "x"), subscribe(destination, **headers))

        assert await order(client, 1) == ["sub-0", "kept"]


async def test_what_a_peer_lends_waits_for_the_receipt(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MeshRig("a", "b")
    async with rig.run():
        await published(await rig.connect("a"), "/queue/q", "one", "two")
        slow_commits(rig.nodes["b"], monkeypatch, 5.0)
        client = await rig.connect("b")

        await client.send(send("/queue/other", "x"), subscribe("/queue/q", ack="client-individual"))

        assert await order(client, 2) == ["sub-0", "one", "two"]


async def test_a_topic_message_waits_for_the_receipt_that_peers_confirm(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", mesh={"interest_confirm_seconds": 3.0})
    async with rig.run():
        writer, client = await rig.connect("b"), await rig.connect("b")
        rig.fabric.cut("127.0.1.1", "127.0.1.2")
        await client.send(subscribe("/topic/t"))
        await eventually(lambda: "/topic/t" in rig.nodes["b"].broker.topics)
        await published(writer, "/topic/t", "live")

        assert await order(client, 1) == ["sub-0", "live"]


async def test_messages_of_other_subscriptions_keep_their_order_and_none_is_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client, writer = await rig.connect(), await rig.connect()
        await client.send(subscribe("/topic/t"))
        await client.receipt()
        slow_commits(rig.alive, monkeypatch)

        await client.send(send("/queue/other", "x"), subscribe("/queue/q", id="1"))
        await eventually(lambda: "/queue/q" in rig.alive.broker.queues.by_name)
        await published(writer, "/topic/t", *map(str, range(20)))

        assert await order(client, 20) == ["sub-1", *map(str, range(20))]


async def test_a_subscription_without_a_receipt_holds_nothing_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client, writer = await rig.connect(), await rig.connect()
        slow_commits(rig.alive, monkeypatch, 20.0)
        await client.send(send("/queue/other", "x", "stored"), "SUBSCRIBE\nid:0\ndestination:/topic/t\n\n")
        await eventually(lambda: "/topic/t" in rig.alive.broker.topics)

        await writer.send(send("/topic/t", "live"))

        assert (await client.any()).body == b"live"


async def test_more_than_may_be_held_back_goes_out_before_the_receipt(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client, writer = await rig.connect(), await rig.connect()
        slow_commits(rig.alive, monkeypatch, 20.0)
        await client.send(send("/queue/other", "x"), subscribe("/topic/t"))
        await eventually(lambda: "/topic/t" in rig.alive.broker.topics)
        body = "x" * 8192

        await published(writer, "/topic/t", *[body] * (HELD_BYTES_MAX // len(body) + 1))

        assert (await client.any()).head.command == "MESSAGE"
        assert await client.receipt() == "sub-0"


async def test_an_auto_message_that_was_held_back_is_settled_when_it_has_gone_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        writer, client = await rig.connect(), await rig.connect()
        await published(writer, "/queue/q", "one")
        slow_commits(rig.alive, monkeypatch)
        await client.send(send("/queue/other", "x"), subscribe("/queue/q"))

        assert await order(client, 1) == ["sub-0", "one"]

        await eventually(lambda: not rig.alive.broker.queues.deliveries)


async def test_a_client_that_leaves_before_the_receipt_gets_its_last_answers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        slow_commits(rig.alive, monkeypatch)

        await client.send(send("/queue/other", "x"), subscribe("/queue/q"), "ACK\nid:7\nreceipt:wrong\n\n")

        frames = await client.until_closed()
        assert [frame.head.command for frame in frames] == ["RECEIPT", "ERROR"]


async def test_heartbeats_go_on_while_messages_are_held_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(heart_beat="0,1000")
        publisher = await rig.connect()
        slow_commits(rig.alive, monkeypatch, 5.0)
        await client.send(send("/queue/q", "on its way to the disk", "s"), subscribe("/topic/t"))
        await trio.sleep(0.1)
        await publisher.send(send("/topic/t", "held back"))

        beats = [await client.pipe.receive_some(100) for _ in range(4)]

        assert beats == [b"\n"] * 4
        assert [await client.receipt(), await client.receipt()] == ["s", "sub-0"]
        assert await client.messages(1) == [b"held back"]
