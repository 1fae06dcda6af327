"""A session over a WebSocket: whole messages in order, whatever the kernel takes, and control frames between them."""

import math

import pytest
import trio
import trio.testing

from qmq.protocols.http.stomp.websocket_pipe import CLOSE_FRAME_SECONDS
from qmq.sessions.clients.outbox import ClientOutbox
from tests.protocols.http.support import events, received, websocket
from tests.protocols.http.websocket.support import BINARY, CLOSE, PING, close_frame, frame

FIRST, SECOND, LAST = b"MESSAGE\n\none\0", b"MESSAGE\n\ntwo\0", b"ERROR\n\nlast words\0"
LENGTH = len(FIRST + SECOND) + 2
PONG = b"\x8a\x01p"


@pytest.mark.parametrize("room", range(LENGTH + 1))
async def test_what_the_kernel_does_not_take_at_once_follows_as_whole_messages(room: int) -> None:
    kernel, starts, pipe = websocket(room)
    kernel.unblock()
    kernel.room = room
    outbox = ClientOutbox(pipe, starts)
    outbox.put(FIRST)
    outbox.put(SECOND)
    outbox.flush()
    outbox.put(LAST)
    outbox.flush()
    await starts.run()

    assert b"".join(received(kernel.sent)) == FIRST + SECOND + LAST
    assert outbox.size == 0


@pytest.mark.parametrize("room", range(LENGTH + 1))
async def test_last_words_do_not_continue_a_message_that_was_dropped(room: int) -> None:
    kernel, starts, pipe = websocket(room)
    kernel.unblock()
    kernel.room = room
    outbox = ClientOutbox(pipe, starts)
    outbox.put(FIRST)
    outbox.put(SECOND)
    outbox.flush()
    outbox.drop_waiting()
    outbox.put(LAST)
    outbox.flush()
    await starts.run()

    assert received(kernel.sent) == ([FIRST + SECOND, LAST] if room else [LAST])


@pytest.mark.parametrize("room", range(4))
async def test_heartbeat_of_one_byte_is_one_message(room: int) -> None:
    kernel, starts, pipe = websocket(room)
    kernel.unblock()
    kernel.room = room
    outbox = ClientOutbox(pipe, starts)
    outbox.put(b"\n")
    outbox.flush()
    await starts.run()

    assert received(kernel.sent) == [b"\n"]


@pytest.mark.parametrize("room", range(12))
def test_message_is_finished_before_another_begins(room: int) -> None:
    kernel, _, pipe = websocket()
    kernel.room = room
    data, taken = b"0123456789" + b"ab", 0
    while taken < 10:
        taken += pipe.send_now(data[taken:10])
        kernel.room += 1
    kernel.room = math.inf
    assert pipe.send_now(b"ab") == 2

    assert received(kernel.sent) == [b"0123456789", b"ab"]


async def test_more_bytes_than_a_message_lacks_begin_the_next_message() -> None:
    kernel, _, pipe = websocket()
    kernel.room = 5
    assert pipe.send_now(b"one") == 3
    kernel.room = 3
    assert pipe.send_now(b"two") == 1
    kernel.room = math.inf
    assert pipe.send_now(b"wo and more") == 2
    await pipe.send_all(b" and more")

    assert received(kernel.sent) == [b"one", b"two", b" and more"]

    kernel.room = 3
    assert pipe.send_now(b"six") == 1
    await pipe.send_all(b"ix and more")

    assert received(kernel.sent)[3:] == [b"six", b" and more"]


async def test_payload_of_messages_is_received_and_nothing_else() -> None:
    kernel, _, pipe = websocket(leftover=frame(b"SEND\n", fin=False))
    kernel.arrive(frame(b"a:b", 0) + frame(b"\n", BINARY) + frame(b"p", PING) + frame(b"\xff", BINARY))

    assert await pipe.receive_some(100) == b"SEND\n"
    assert await pipe.receive_some(100) == b"a:b\n\xff"


async def test_no_more_is_received_than_asked_for() -> None:
    _, _, pipe = websocket(leftover=frame(b"0123456789"))

    assert [await pipe.receive_some(4) for _ in range(3)] == [b"0123", b"4567", b"89"]


async def test_frame_may_arrive_byte_by_byte() -> None:
    kernel, _, pipe = websocket()
    for octet in frame(b"one") + frame(b"p", PING) + frame(b"two"):
        kernel.arrive(bytes([octet]))
    got = b""
    while len(got) < 6:
        got += await pipe.receive_some(100)

    assert got == b"onetwo"
    assert kernel.sent == PONG


async def ping(kernel: "object", pipe: "object") -> None:
    """The pipe receives a ping, and then a byte."""
    kernel.arrive(frame(b"p", PING) + frame(b"x"))  # type: ignore[attr-defined]
    assert await pipe.receive_some(100) == b"x"  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", range(1, 6))
async def test_pong_follows_the_message_that_has_begun(room: int) -> None:
    kernel, _, pipe = websocket()
    kernel.room = room
    taken = pipe.send_now(b"0123")
    await ping(kernel, pipe)
    kernel.unblock()
    await pipe.send_all(b"0123"[taken:])

    assert kernel.sent == b"\x81\x040123" + PONG


@pytest.mark.parametrize("room", range(1, 6))
async def test_pong_follows_the_message_that_is_sent_in_parts(room: int) -> None:
    kernel, starts, pipe = websocket()
    kernel.room = room
    taken = pipe.send_now(b"0123")
    await ping(kernel, pipe)
    while taken < 4:
        kernel.room += 2
        taken += pipe.send_now(b"0123"[taken:])
    await starts.run()
    kernel.unblock()
    pipe.send_now(b"x")

    assert kernel.sent == b"\x81\x040123" + PONG + b"\x81\x01x"


async def test_pong_follows_a_message_at_once_when_it_is_complete() -> None:
    kernel, _, pipe = websocket()
    kernel.room = 4
    assert pipe.send_now(b"0123") == 2
    await ping(kernel, pipe)
    kernel.unblock()
    assert pipe.send_now(b"23") == 2

    assert kernel.sent == b"\x81\x040123" + PONG


async def test_pong_follows_the_message_of_a_send_that_waits(nursery: trio.Nursery) -> None:
    kernel, starts, pipe = websocket(0)
    nursery.start_soon(pipe.send_all, b"0123")
    await trio.testing.wait_all_tasks_blocked()
    await ping(kernel, pipe)
    kernel.unblock()
    await trio.testing.wait_all_tasks_blocked()

    assert kernel.sent == b"\x81\x040123" + PONG
    assert not starts.tasks


@pytest.mark.parametrize("room", range(3))
async def test_pong_that_the_kernel_does_not_take_is_sent_by_a_task(room: int, nursery: trio.Nursery) -> None:
    kernel, starts, pipe = websocket(0)
    kernel.room = room
    await ping(kernel, pipe)
    await ping(kernel, pipe)

    assert len(starts.tasks) == 1
    assert pipe.send_now(b"one") == 0
    nursery.start_soon(pipe.send_all, b"one")
    nursery.start_soon(starts.run)
    await trio.testing.wait_all_tasks_blocked()
    kernel.room = math.inf
    assert pipe.send_now(b"one") == 0
    kernel.unblock()
    await trio.testing.wait_all_tasks_blocked()

    assert kernel.sent.startswith(PONG)
    assert received(kernel.sent) == [b"one"]
    assert pipe.send_now(b"two") == 3


async def test_many_pings_of_a_client_that_does_not_read_cost_one_pong() -> None:
    kernel, starts, pipe = websocket(0)
    for _ in range(100):
        await ping(kernel, pipe)
    kernel.unblock()
    await starts.run()

    assert kernel.sent == PONG * 2


async def test_close_frame_of_the_client_is_the_end_of_the_stream() -> None:
    kernel, _, pipe = websocket(leftover=frame(b"last") + frame(b"\x03\xe9bye", CLOSE) + frame(b"after"))

    assert await pipe.receive_some(100) == b"last"
    assert [await pipe.receive_some(100) for _ in range(2)] == [b"", b""]
    assert pipe.close_code == 1001
    assert pipe.send_now(b"receipt") == 7
    pipe.end_sending()
    assert kernel.sent == b"\x81\x07receipt" + close_frame(1001)
    assert kernel.ended_at == len(kernel.sent)


async def test_end_of_the_connection_below_is_the_end_of_the_stream() -> None:
    kernel, _, pipe = websocket()
    kernel.arrive(b"")

    assert [await pipe.receive_some(100) for _ in range(2)] == [b"", b""]
    assert pipe.close_code is None


async def test_client_that_breaks_the_protocol_gets_a_code_when_the_session_has_ended() -> None:
    kernel, _, pipe = websocket(leftover=frame(b"x", mask=None))

    assert await pipe.receive_some(100) == b""
    assert pipe.send_now(b"ERROR") == 5
    pipe.end_sending()
    assert kernel.sent[7:11] == b"\x88" + bytes([len(kernel.sent) - 9]) + b"\x03\xea"
    assert pipe.close_code == 1002


@pytest.mark.parametrize("room", [0, 1, 3, math.inf])
async def test_close_frame_and_end_follow_what_was_sent(room: float) -> None:
    kernel, starts, pipe = websocket()
    pipe.send_now(b"one")
    kernel.room = room
    pipe.end_sending(1001, "the node stops")
    pipe.end_sending()
    kernel.unblock()
    await starts.run()

    assert kernel.sent == b"\x81\x03one" + close_frame(1001, "the node stops")
    assert kernel.ended_at == len(kernel.sent)
    assert pipe.send_now(b"x") == 0
    with pytest.raises(trio.BrokenResourceError):
        await pipe.send_all(b"x")


async def test_end_waits_for_the_send_and_the_pong_under_way(nursery: trio.Nursery) -> None:
    kernel, _, pipe = websocket(0)
    nursery.start_soon(pipe.send_all, b"0123")
    await trio.testing.wait_all_tasks_blocked()
    await ping(kernel, pipe)
    pipe.end_sending()
    assert kernel.ended_at is None
    kernel.unblock()
    await trio.testing.wait_all_tasks_blocked()

    assert kernel.sent == b"\x81\x040123" + PONG + close_frame(1000)
    assert kernel.ended_at == len(kernel.sent)


async def test_answer_to_the_close_frame_of_the_pipe_is_the_end_and_not_answered_again() -> None:
    kernel, _, pipe = websocket()
    pipe.end_sending()
    kernel.arrive(frame(b"late") + frame(b"p", PING))
    kernel.arrive(frame(b"\x03\xe8", CLOSE))

    assert await pipe.receive_some(100) == b"late"
    assert await pipe.receive_some(100) == b""
    assert kernel.sent == close_frame(1000)


async def test_no_close_frame_follows_half_a_message() -> None:
    kernel, starts, pipe = websocket(4)
    pipe.send_now(b"0123")
    kernel.unblock()
    pipe.end_sending()
    await starts.run()

    assert kernel.sent == b"\x81\x0401"
    assert kernel.ended_at == 4


async def test_close_is_at_once_and_says_why_if_it_can() -> None:
    kernel, _, pipe = websocket()
    pipe.close(1008, "slow")
    pipe.close()

    assert kernel.closed
    assert kernel.sent == close_frame(1008, "slow")
    assert pipe.send_now(b"x") == 0
    for call in (pipe.send_all(b"x"), pipe.receive_some(100)):
        with pytest.raises(trio.ClosedResourceError):
            await call


async def test_close_frame_that_waits_is_still_sent_after_close(nursery: trio.Nursery) -> None:
    kernel, starts, pipe = websocket(0)
    kernel.arrive(frame(b"\x03\xe8", CLOSE))
    assert await pipe.receive_some(100) == b""
    pipe.end_sending()
    pipe.close()
    nursery.start_soon(starts.run)
    await trio.testing.wait_all_tasks_blocked()
    assert not kernel.closed
    with pytest.raises(trio.ClosedResourceError):
        await pipe.receive_some(100)
    kernel.unblock()
    await trio.testing.wait_all_tasks_blocked()

    assert kernel.sent == close_frame(1000)
    assert kernel.ended_at == len(kernel.sent)
    assert kernel.closed


async def test_close_frame_of_a_client_that_does_not_read_is_given_up(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    kernel, starts, pipe = websocket(0)
    pipe.end_sending()
    nursery.start_soon(starts.run)
    await trio.sleep(100)
    assert not kernel.closed
    pipe.close()
    await trio.sleep(CLOSE_FRAME_SECONDS + 0.1)

    assert kernel.closed
    assert kernel.sent == b""


async def test_close_wakes_waiting_tasks(nursery: trio.Nursery) -> None:
    kernel, starts, pipe = websocket(0)
    await ping(kernel, pipe)
    failed = []

    async def send() -> None:
        try:
            await pipe.send_all(b"x")
        except trio.ClosedResourceError:
            failed.append("x")

    nursery.start_soon(send)
    nursery.start_soon(starts.run)
    await trio.testing.wait_all_tasks_blocked()
    pipe.close()
    await trio.testing.wait_all_tasks_blocked()

    assert failed == ["x"]


async def test_nothing_is_sent_for_nothing() -> None:
    kernel, _, pipe = websocket()
    assert pipe.send_now(b"") == 0
    await pipe.send_all(b"")

    assert events(kernel.sent) == []


def test_peer_is_that_of_the_connection_below() -> None:
    kernel, _, pipe = websocket()

    assert pipe.peer_address == kernel.peer_address
    assert pipe.peer_certificate_names == kernel.peer_certificate_names
    assert pipe.peer_certificate_subject == kernel.peer_certificate_subject
