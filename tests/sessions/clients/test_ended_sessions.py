"""A session that is over takes nothing any more, however long its client keeps the connection open."""

import logging
import socket

import pytest
import trio
from trio.testing import MockClock

from qmq.engine.runtime.sockets import SocketPipe
from qmq.errors import LogBroken
from qmq.sessions.clients.session import ClientSession
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.support.depths import depths

DISCONNECT = "DISCONNECT\nreceipt:bye\n\n"
MISTAKE = "ACK\nid:12345\n\n"
PATIENT = {"farewell_seconds": 1000.0}
"""A client that has heard its last frame is waited for longer than any test waits for a message."""


async def consumer(rig: Rig, **headers: str) -> Client:
    client = await rig.connect()
    await client.send(subscribe("/queue/q", ack="client-individual", **headers))
    await client.receipt()
    return client


async def publish(rig: Rig, *bodies: str) -> None:
    writer = await rig.connect()
    await writer.send(*[send("/queue/q", body, "r") for body in bodies])
    for _ in bodies:
        await writer.receipt()


@pytest.mark.parametrize(("last_frame", "answer"), [(MISTAKE, "ERROR"), (DISCONNECT, "RECEIPT")])
async def test_what_comes_after_the_end_goes_to_others_at_once_as_a_first_delivery(
    autojump_clock: MockClock, last_frame: str, answer: str
) -> None:
    async with Rig(limits=PATIENT).run() as rig:
        gone = await consumer(rig, delivery_limit="1")
        await gone.send(last_frame)
        assert (await gone.any()).head.command == answer

        await publish(rig, "job")
        other = await consumer(rig)
        message = await other.next("MESSAGE")

        assert (message.body, message.head.headers.get("redelivered")) == (b"job", None)
        assert not depths(rig.alive).get("/queue/dead-letters")
        rig.alive.stop()
        rig.alive.stop()


@pytest.mark.parametrize("last_frame", [MISTAKE, DISCONNECT])
async def test_what_the_client_has_goes_to_others_while_its_connection_still_stands(
    autojump_clock: MockClock, last_frame: str
) -> None:
    async with Rig(limits=PATIENT).run() as rig:
        gone = await consumer(rig)
        await publish(rig, "job")
        await gone.next("MESSAGE")
        other = await consumer(rig)

        await gone.send(last_frame)
        message = await other.next("MESSAGE")

        assert (message.body, message.head.headers["redelivered"]) == (b"job", "true")
        rig.alive.stop()
        rig.alive.stop()


async def test_clients_that_leave_in_order_with_messages_in_hand_make_no_dead_letter(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await publish(rig, "job")

        for _ in range(3):
            client = await consumer(rig, delivery_limit="1")
            await client.next("MESSAGE")
            await client.send(DISCONNECT)
            await client.until_closed()

        message = await (await consumer(rig)).next("MESSAGE")
        assert message.head.headers["redelivered"] == "true"
        assert message.head.headers["delivery-count"] == "1"


async def test_a_client_that_is_lost_with_a_message_in_hand_counts_as_a_failure(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await consumer(rig, delivery_limit="1")
        await publish(rig, "job")
        await client.next("MESSAGE")

        client.pipe.close()

        await eventually(lambda: depths(rig.alive).get("/queue/dead-letters") == 1)


async def test_what_was_never_sent_to_a_client_that_does_not_read_is_no_failure(autojump_clock: MockClock) -> None:
    async with Rig(limits={"outbox_bytes_max": 1 << 18, "body_bytes_max": 1 << 16}).run() as rig:
        client = await consumer(rig, delivery_limit="1", prefetch_count="100")
        bodies = [f"{number:060000}" for number in range(60)]
        await publish(rig, *bodies)

        client.pipe.close()

        await eventually(lambda: depths(rig.alive).get("/queue/dead-letters", 0) > 0)
        with trio.fail_after(10):
            other = await consumer(rig, prefetch_count="100")
            first = await other.next("MESSAGE")
        assert first.head.headers.get("redelivered") is None
        assert depths(rig.alive)["/queue/q"] + depths(rig.alive)["/queue/dead-letters"] == 60


async def test_what_a_client_sends_to_itself_before_it_leaves_comes_before_its_last_receipt(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send(subscribe("/topic/t"), send("/topic/t", "own"), DISCONNECT)

        frames = await client.until_closed()
        assert [frame.head.command for frame in frames] == ["RECEIPT", "MESSAGE", "RECEIPT"]


async def test_what_a_client_sends_to_itself_before_a_mistake_still_comes(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send(subscribe("/topic/t"), send("/topic/t", "own"), MISTAKE)

        frames = await client.until_closed()
        assert [frame.head.command for frame in frames] == ["RECEIPT", "MESSAGE", "ERROR"]


async def end_of(rig: Rig, session: ClientSession) -> None:
    """Serve it until it ends by itself."""
    with trio.fail_after(100 * rig.settings.limits.farewell_seconds):
        await session.serve()
    assert session.closed.is_set
    assert session.id not in rig.alive.session_parts.host.sessions


def session_on(rig: Rig, pipe: SocketPipe) -> ClientSession:
    parts = rig.alive.session_parts
    login = parts.login_path.admission.admit(pipe.peer_address)
    return ClientSession(parts.host, pipe, rig.settings.stomp[0], login, rig.alive.protocols.of("stomp"))


async def test_a_session_that_is_finished_before_it_is_served_ends(autojump_clock: MockClock) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        async with Rig().run() as rig:
            session = session_on(rig, SocketPipe(ours, "10.0.0.9"))
            session.finish()
            theirs.shutdown(socket.SHUT_WR)
            await end_of(rig, session)


async def test_a_client_that_does_not_leave_is_disconnected_after_its_farewell(autojump_clock: MockClock) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        async with Rig(limits={"farewell_seconds": 7.0}).run() as rig:
            session = session_on(rig, SocketPipe(ours, "10.0.0.9"))
            began = trio.current_time()
            session.finish()
            assert theirs.recv(1) == b"", "the node has ended its half"

            await end_of(rig, session)

            assert trio.current_time() - began == pytest.approx(7.0)


class FailingPipe(SocketPipe):
    """A connection that cannot be ended."""

    error: Exception

    def end_sending(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [LogBroken("commit failed"), ValueError("a bug")])
@pytest.mark.parametrize("is_reading", [True, False])
async def test_a_task_of_a_connection_that_fails_ends_that_connection_and_no_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, error: Exception, is_reading: bool
) -> None:
    ours, theirs = socket.socketpair()

    async def fail() -> None:
        raise error

    with theirs:
        async with Rig().run() as rig:
            other = await consumer(rig)
            pipe = FailingPipe(ours, "10.0.0.9")
            pipe.error = error
            session = session_on(rig, pipe)
            if is_reading:
                session.start(fail)
            else:
                theirs.shutdown(socket.SHUT_WR)  # The session ends its own half.
            await end_of(rig, session)

            await publish(rig, "job")
            assert (await other.next("MESSAGE")).body == b"job"

    assert [record.levelno for record in caplog.records if "session failed" in record.message] == [logging.ERROR]
    caplog.clear()


async def test_a_task_that_a_connection_starts_at_its_end_is_not_run(autojump_clock: MockClock) -> None:
    ours, theirs = socket.socketpair()
    ran: list[bool] = []

    async def late() -> None:
        ran.append(True)

    async with Rig().run() as rig:
        session = session_on(rig, SocketPipe(ours, "10.0.0.9"))
        theirs.close()
        await end_of(rig, session)
        session.start(late)
        await trio.sleep(1)

    assert not ran
