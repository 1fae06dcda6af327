"""A STOMP session runs over a WebSocket unchanged: on a slow network that cuts everything, with pings between."""

from typing import cast

import trio
from trio.testing import MockClock

from tests.node.rig import Client, Rig
from tests.protocols.http.fabric import WebSocketClient, WebSocketFabric


def send(destination: str, body: str, *headers: str) -> str:
    return "\n".join(["SEND", f"destination:{destination}", *headers, "", body])


def line(client: Client) -> WebSocketClient:
    return cast(WebSocketClient, client.pipe)


async def rig_of(nursery: trio.Nursery) -> Rig:
    rig = Rig()
    rig.fabric = WebSocketFabric(nursery)
    return rig


async def test_messages_arrive_in_order_both_ways(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        publisher, consumer = await rig.connect("10.0.0.1"), await rig.connect("10.0.0.2")
        await consumer.send("SUBSCRIBE\nid:1\ndestination:/topic/t\nreceipt:r\n\n")
        await consumer.receipt()
        bodies = [f"{number} " + "grün" * (number % 300) for number in range(300)]
        for body in bodies:
            await publisher.send(send("/topic/t", body))
        await publisher.send(send("/topic/t", "last", "receipt:last"))
        await publisher.receipt()

        got = [body.decode() for body in await consumer.messages(len(bodies))]

    assert got == bodies
    assert line(publisher).pongs > 50


async def test_bodies_that_are_not_text_and_large_ones_arrive(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        client = await rig.connect()
        await client.send("SUBSCRIBE\nid:1\ndestination:/topic/t\n\n")
        bodies = [bytes(range(256)) * 4, b"x" * 1_000_000, b""]
        for body in bodies:
            await client.send(b"SEND\ndestination:/topic/t\ncontent-length:%d\n\n%b" % (len(body), body))

        assert await client.messages(3) == bodies


async def test_disconnect_gets_its_receipt_and_a_close_frame(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        client = await rig.connect()
        await client.send("DISCONNECT\nreceipt:bye\n\n")

        assert await client.receipt() == "bye"
        await client.until_closed()
        assert line(client).close_code == 1000


async def test_close_frame_ends_the_session(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        client = await rig.connect()
        await line(client).leave(1001)
        await client.until_closed()

        assert line(client).close_code == 1001
        assert not rig.alive.sessions


async def test_error_arrives_before_the_close_frame(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        client = await rig.dial()
        await client.send("NONSENSE\n\n")
        frames = await client.until_closed()

        assert [frame.head.command for frame in frames] == ["ERROR"]
        assert line(client).close_code == 1000


async def test_heartbeat_is_a_message_of_one_byte(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (await rig_of(nursery)).run() as rig:
        client = await rig.connect(heart_beat="0,1000")
        with trio.move_on_after(5):
            while True:
                await client._read()

        assert line(client).messages[-1] == b"\n"
