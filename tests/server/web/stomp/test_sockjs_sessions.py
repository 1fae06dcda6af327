"""SockJS on the web port of a node: how its connections are counted, and what they may send before the login."""

import base64
import json

import trio
from trio.testing import MockClock

from tests.server.rig import Rig
from tests.server.web.rig import WebClient, dial, web_rig
from tests.wire.websocket.support import TEXT, frame

CONNECT = json.dumps(["CONNECT\naccept-version:1.2\nhost:h\n\n\0"]).encode()
FEW = {"logins_pending_per_address_max": 3, "logins_pending_max": 4}


async def until(client: WebClient, part: bytes) -> bool:
    """Read until `part` comes; False at the end of the connection."""
    with trio.fail_after(5):
        while part not in client._buffer:
            if client.ended:
                return False
            await client._read()
    return True


async def websocket(rig: Rig, name: str) -> WebClient:
    client = await dial(rig)
    key = base64.b64encode(name.encode().ljust(16)).decode()
    await client.write(
        client.bytes_of(
            "GET",
            f"/stomp/0/{name}/websocket",
            upgrade="websocket",
            connection="upgrade",
            sec_websocket_version="13",
            sec_websocket_key=key,
        )
    )
    assert (await client.head())[0] == 101
    return client


async def streaming(rig: Rig, name: str) -> WebClient:
    client = await dial(rig)
    await client.write(client.bytes_of("POST", f"/stomp/0/{name}/xhr_streaming"))
    assert await until(client, b"o\n")
    return client


async def test_sessions_that_are_logged_in_are_no_pending_logins(autojump_clock: MockClock) -> None:
    async with web_rig(limits=FEW).run() as rig:
        clients = []
        for number in range(8):
            client = await websocket(rig, f"w{number}")
            await client.write(frame(CONNECT, TEXT))
            assert await until(client, b"CONNECTED")
            clients.append(client)
            stream, sender = await streaming(rig, f"s{number}"), await dial(rig)
            assert (await sender.post(f"/stomp/0/s{number}/xhr_send", CONNECT)).status == 204
            assert await until(stream, b"CONNECTED")
            sender.pipe.close()
            clients.append(stream)

        for client in clients:
            with trio.move_on_after(0.1):
                await client._read()
            assert not client.ended
        assert rig.alive.admission.pending == 0


async def test_a_message_is_short_until_its_session_is_logged_in(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await websocket(rig, "w")

        await client.write(frame(b"x" * 70_000, TEXT, fin=False))

        assert not await until(client, b"no such bytes")
        assert b"A message is too long." in client._buffer


async def test_a_session_that_is_logged_in_may_send_a_large_message(autojump_clock: MockClock) -> None:
    send = json.dumps(["SEND\ndestination:/queue/q\nreceipt:r\n\n" + "x" * 500_000 + "\0"]).encode()
    async with web_rig().run() as rig:
        client = await websocket(rig, "w")
        stream, sender = await streaming(rig, "s"), await dial(rig)
        await client.write(frame(CONNECT, TEXT))
        assert (await sender.post("/stomp/0/s/xhr_send", CONNECT)).status == 204
        assert await until(client, b"CONNECTED") and await until(stream, b"CONNECTED")

        await client.write(frame(send, TEXT))
        assert (await sender.post("/stomp/0/s/xhr_send", send)).status == 204

        assert await until(client, b"receipt-id:r") and await until(stream, b"receipt-id:r")


async def test_a_poll_whose_response_breaks_ends_its_session(autojump_clock: MockClock) -> None:
    rig = web_rig()
    rig.fabric.buffer_bytes = 1000
    subscribe = json.dumps(["SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:s\n\n\0"]).encode()
    send = json.dumps(["SEND\ndestination:/queue/q\n\n" + "x" * 5000 + "\0"]).encode()
    async with rig.run():
        client, sender = await dial(rig), await dial(rig)
        assert (await client.post("/stomp/0/s/xhr")).body == b"o\n"
        for data, answer in ((CONNECT, b"CONNECTED"), (subscribe, b"RECEIPT")):
            assert (await sender.post("/stomp/0/s/xhr_send", data)).status == 204
            assert answer in (await client.post("/stomp/0/s/xhr")).body
        await client.write(client.bytes_of("POST", "/stomp/0/s/xhr"))
        assert (await sender.post("/stomp/0/s/xhr_send", send)).status == 204
        await trio.sleep(1)

        client.pipe.close()
        await trio.sleep(1)

        assert (await sender.post("/stomp/0/s/xhr")).body == b'c[1002,"Connection interrupted"]\n'
