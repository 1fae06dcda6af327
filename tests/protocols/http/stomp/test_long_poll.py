"""STOMP over long poll: a session over requests, its bounds, and what ends it."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.protocols.http.stomp.long_poll_pipe import IDLE_SECONDS, RECEIVED_BYTES_MAX, WAITING_BYTES_MAX, LongPollPipe
from qmq.wire.stomp import Connection, Frame, Role
from tests.node.rig import Rig
from tests.protocols.http.rig import RAW, Response, WebClient, dial, web_rig
from tests.protocols.http.support import StubPipe

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\nreceipt:s\n\n\0"


class Poller:
    """A client with two connections: one sends, and one receives."""

    def __init__(self, sends: WebClient, receives: WebClient, id: str) -> None:
        self.sends = sends
        self.receives = receives
        self.path = f"/v1/stomp/{id}"
        self._stomp = Connection(Role.CLIENT)

    async def send(self, data: bytes) -> Response:
        return await self.sends.post(self.path, data, content_type=RAW)

    async def receive(self, wait_seconds: int = 5) -> list[Frame]:
        """The frames of one response, 200 or 204."""
        response = await self.receives.get(f"{self.path}?wait_seconds={wait_seconds}")
        assert (response.status == 200) == bool(response.body), response
        return self._stomp.receive(response.body)

    async def until(self, command: str) -> Frame:
        while True:
            for frame in await self.receive():
                if frame.head.command == command:
                    return frame


async def opened(rig: Rig) -> Poller:
    sends, receives = await dial(rig), await dial(rig)
    response = await sends.post("/v1/stomp")
    assert response.status == 201
    assert response.facts.keys() == {"session", "idle_seconds", "wait_seconds_max"}
    return Poller(sends, receives, response.facts["session"])


async def connected(rig: Rig) -> Poller:
    poller = await opened(rig)
    assert (await poller.send(CONNECT)).status == 204
    assert (await poller.until("CONNECTED")).head.headers["version"] == "1.2"
    return poller


async def test_frames_pass_both_ways(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        await poller.send(SUBSCRIBE)
        await poller.until("RECEIPT")
        await poller.send(b"SEND\ndestination:/queue/q\ncontent-length:3\n\n\xff\0\xfe\0")
        message = await poller.until("MESSAGE")

    assert message.body == b"\xff\0\xfe"


async def test_receive_waits_for_frames_and_answers_204_without_any(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        began = trio.current_time()
        nothing = await poller.receive(7)
        waited = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            await poller.receives.write(poller.receives.bytes_of("GET", poller.path))
            nursery.start_soon(poller.send, SUBSCRIBE)
        response = await poller.receives.response()

    assert nothing == [] and 7 <= waited < 7.1
    assert response.status == 200 and response.body.startswith(b"RECEIPT\n")
    assert response.headers["content-type"] == RAW and response.headers["cache-control"] == "no-store"


async def test_second_receive_is_refused_and_the_first_waits_on(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        await poller.receives.write(poller.receives.bytes_of("GET", poller.path))
        await trio.sleep(1)
        second = await poller.sends.get(poller.path)
        await poller.send(SUBSCRIBE)
        first = await poller.receives.response()

    assert (second.status, second.code) == (409, "already-receiving")
    assert first.body.startswith(b"RECEIPT\n")


async def test_client_that_leaves_a_waiting_receive_loses_nothing(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        await poller.receives.write(poller.receives.bytes_of("GET", poller.path))
        await trio.sleep(1)
        poller.receives.pipe.close()
        poller.receives = await dial(rig)
        await trio.sleep(1)
        await poller.send(SUBSCRIBE)

        assert (await poller.until("RECEIPT")).head.headers["receipt-id"] == "s"


async def test_deleted_session_gives_back_its_messages(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        await poller.send(SUBSCRIBE + b"SEND\ndestination:/queue/q\n\nx\0")
        await poller.until("MESSAGE")
        deleted = await poller.sends.ask("DELETE", poller.path)
        again = await poller.sends.receive("q")
        late = [await poller.receives.get(poller.path), await poller.send(SUBSCRIBE)]

    assert deleted.status == 204
    assert [(row["body"], row["redelivered"]) for row in again] == [("x", True)]
    assert [(response.status, response.code) for response in late] == [(404, "unknown-session")] * 2


async def test_idle_client_is_disconnected(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        for _ in range(3):
            await trio.sleep(IDLE_SECONDS - 1)
            await poller.receive(0)
        await trio.sleep(IDLE_SECONDS + 1)
        response = await poller.receives.get(poller.path)

    assert (response.status, response.code) == (404, "unknown-session")


async def test_connections_of_a_session_that_has_logged_in_are_no_pending_logins(autojump_clock: MockClock) -> None:
    rig = web_rig(limits={"logins_pending_per_address_max": 3})
    async with rig.run():
        poller = await opened(rig)
        assert rig.alive.session_parts.login_path.admission.pending == 3  # The session and two connections.
        await poller.send(CONNECT)
        await poller.until("CONNECTED")
        await poller.receives.write(poller.receives.bytes_of("GET", poller.path))
        await trio.sleep(1)
        pending = rig.alive.session_parts.login_path.admission.pending
        others = [await dial(rig) for _ in range(5)]
        await trio.sleep(1)
        await poller.send(SUBSCRIBE)

        assert pending == 0
        assert (await poller.receives.response()).body.startswith(b"RECEIPT\n")
        assert len(others) == 5


async def test_last_frames_are_received_before_the_end(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await opened(rig)
        await poller.send(b"NONSENSE\n\n\0")
        await poller.until("ERROR")

        assert (await poller.receives.get(poller.path)).status == 404


async def test_other_address_does_not_find_the_session(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await connected(rig)
        response = await (await dial(rig, "10.0.0.2")).get(poller.path)

    assert (response.status, response.code) == (404, "unknown-session")


async def test_bad_requests_are_refused_by_name(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        client = await dial(rig)
        poller = await connected(rig)
        answers = [
            await client.get("/v1/stomp/unknown"),
            await client.get(f"{poller.path}?wait_seconds=61"),
            await client.get(f"{poller.path}?wait_seconds=-1"),
            await client.get(f"{poller.path}?wait_seconds=0000000000999"),
            await client.get("/v1/stomp"),
            await client.post("/v1/stomp/a/b"),
            await client.post("/v1/stomp", content_type="text/plain"),
            await client.post(poller.path, b"x", content_type="application/x-www-form-urlencoded"),
            await client.post("/v1/stomp", origin="https://evil.example"),
        ]

    assert [(answer.status, answer.code) for answer in answers] == [
        (404, "unknown-session"),
        (400, "bad-query"),
        (400, "bad-query"),
        (400, "bad-query"),
        (405, "bad-method"),
        (404, "unknown-path"),
        (415, "bad-content-type"),
        (415, "bad-content-type"),
        (403, "bad-origin"),
    ]


async def test_what_waits_is_bounded_both_ways(nursery: trio.Nursery) -> None:
    pipe = LongPollPipe(StubPipe())
    assert pipe.send_now(b"x" * WAITING_BYTES_MAX) == WAITING_BYTES_MAX
    assert pipe.send_now(b"y") == 0
    nursery.start_soon(pipe.send_all, b"y")
    assert await pipe.pass_on(b"x" * RECEIVED_BYTES_MAX)
    nursery.start_soon(pipe.pass_on, b"z")
    await wait_all_tasks_blocked()
    assert pipe.held_bytes == WAITING_BYTES_MAX + RECEIVED_BYTES_MAX

    assert await pipe.receive(1) == b"x" * WAITING_BYTES_MAX
    assert await pipe.receive_some(RECEIVED_BYTES_MAX) == b"x" * RECEIVED_BYTES_MAX
    assert await pipe.receive(1) == b"y"
    assert await pipe.receive_some(10) == b"z"


async def test_broken_response_ends_the_session(autojump_clock: MockClock) -> None:
    rig = web_rig()
    rig.fabric.buffer_bytes = 1000
    async with rig.run():
        poller = await connected(rig)
        await poller.send(SUBSCRIBE.replace(b"ack:client-individual\n", b""))
        await poller.until("RECEIPT")
        await poller.receives.write(poller.receives.bytes_of("GET", poller.path))
        await poller.send(b"SEND\ndestination:/queue/q\n\n" + b"x" * 5000 + b"\0")
        await trio.sleep(1)
        poller.receives.pipe.close()
        await trio.sleep(1)
        response = await poller.sends.get(poller.path)

    assert (response.status, response.code) == (404, "unknown-session")


async def test_body_is_short_until_the_session_is_logged_in(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        poller = await opened(rig)
        early = await poller.send(b"x" * 70_000)
        poller = await connected(rig)
        late = await poller.send(b"SEND\ndestination:/queue/q\n\n" + b"x" * 70_000 + b"\0")

    assert (early.status, early.code) == (413, "body-too-large")
    assert late.status == 204
