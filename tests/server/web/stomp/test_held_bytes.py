"""Sessions of STOMP over requests: what the node holds of them, in both directions, counts in the memory budget."""

import json

from trio.testing import MockClock

from tests.server.rig import Rig, eventually, nothing_more, send
from tests.server.web.rig import dial, web_rig
from tests.server.web.stomp.test_long_poll import connected
from tests.server.web.stomp.test_sockjs_sessions import CONNECT, streaming, until, websocket
from tests.wire.websocket.support import TEXT, frame

MIB = 1 << 20
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/topic/news\nreceipt:s\n\n\0"
LIMITS = {"memory_bytes_max": 8 * MIB, "body_bytes_max": 2 * MIB}


async def publish(rig: Rig, size: int) -> None:
    sender = await rig.connect()
    await sender.send(send("/topic/news", "x" * size))
    await nothing_more(sender)
    sender.pipe.close()


async def test_frames_that_wait_for_a_long_poll_are_counted_until_they_are_taken(autojump_clock: MockClock) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        poller = await connected(rig)
        await poller.send(SUBSCRIBE)
        await poller.until("RECEIPT")

        await publish(rig, MIB)

        assert rig.alive.memory_budget.bytes >= MIB
        assert len((await poller.until("MESSAGE")).body) == MIB
        await eventually(lambda: rig.alive.memory_budget.bytes == 0)


async def test_messages_that_wait_for_a_poll_of_sockjs_are_counted_until_the_session_ends(
    autojump_clock: MockClock,
) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        stream, sender = await streaming(rig, "s"), await dial(rig)
        assert (await sender.post("/stomp/0/s/xhr_send", CONNECT)).status == 204
        assert await until(stream, b"CONNECTED")
        body = json.dumps([SUBSCRIBE.decode()]).encode()
        assert (await sender.post("/stomp/0/s/xhr_send", body)).status == 204
        assert await until(stream, b"receipt-id:s")
        # A response of this size is the last one of its stream.
        await publish(rig, 200_000)
        assert not await until(stream, b"its end")

        await publish(rig, MIB)

        assert rig.alive.memory_budget.bytes >= MIB
        await eventually(lambda: rig.alive.memory_budget.bytes == 0)


async def test_a_message_of_a_websocket_below_sockjs_is_counted_while_it_is_incomplete(
    autojump_clock: MockClock,
) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        client = await websocket(rig, "w")
        await client.write(frame(CONNECT, TEXT))
        assert await until(client, b"CONNECTED")

        await client.write(frame(b"x" * MIB, TEXT, fin=False))

        await eventually(lambda: rig.alive.memory_budget.bytes >= MIB)
        client.pipe.close()
        await eventually(lambda: rig.alive.memory_budget.bytes == 0)
