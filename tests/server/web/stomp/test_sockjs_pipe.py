"""A session over the requests of SockJS: messages both ways, timeouts, breaks, and what waits."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.errors import RemoteProtocolError
from qmq.server.clients.outbox import ClientOutbox
from qmq.server.web.stomp.sockjs import SockJsPipe
from qmq.wire.sockjs import SockJsLimits, SockJsTransport
from tests.server.web.support import Starts, StubPipe

XHR, STREAMING = SockJsTransport.XHR, SockJsTransport.XHR_STREAMING
LIMITS = SockJsLimits(waiting_bytes_max=20, received_bytes_max=20)
PRELUDE = b"h" * 2048 + b"\n"


async def poll(pipe: SockJsPipe) -> bytes:
    """The body of one poll, sent to its client."""
    with pipe.stream(XHR) as stream:
        body = await stream.next()
        assert body is not None
        assert await stream.next() is None
    return body


async def opened() -> SockJsPipe:
    pipe = SockJsPipe(LIMITS, StubPipe())
    assert await poll(pipe) == b"o\n"
    return pipe


async def test_messages_of_the_client_are_one_stream() -> None:
    pipe = await opened()
    await pipe.send(b'["CONNECT\\n\\n\\u0000","\\n"]')

    assert await pipe.receive_some(4) == b"CONN"
    assert await pipe.receive_some(100) == b"ECT\n\n\0\n"


async def test_poll_gets_what_is_sent_while_it_waits(nursery: trio.Nursery) -> None:
    pipe = await opened()
    bodies = []

    async def client() -> None:
        bodies.append(await poll(pipe))

    nursery.start_soon(client)
    await wait_all_tasks_blocked()
    assert pipe.send_now(b"one") == 3
    await wait_all_tasks_blocked()

    assert bodies == [b'a["one"]\n']
    assert pipe.held_bytes == 0


async def test_stream_gets_frame_after_frame(nursery: trio.Nursery) -> None:
    pipe = SockJsPipe(LIMITS, StubPipe())
    pieces = []

    async def client() -> None:
        with pipe.stream(STREAMING) as stream:
            while (piece := await stream.next()) is not None:
                pieces.append(piece)

    nursery.start_soon(client)
    await wait_all_tasks_blocked()
    for data in (b"one", b"two"):
        pipe.send_now(data)
        await wait_all_tasks_blocked()
    pipe.end_sending()
    await wait_all_tasks_blocked()

    assert pieces == [PRELUDE + b"o\n", b'a["one"]\n', b'a["two"]\n', b'c[1000,"Normal closure"]\n']


async def test_what_waits_is_bounded_and_the_writer_goes_on_with_the_next_poll(nursery: trio.Nursery) -> None:
    pipe = await opened()
    outbox = ClientOutbox(pipe, lambda task: nursery.start_soon(task))
    for number in range(10):
        outbox.put(b"message %d\n" % number)
        outbox.flush()
    await wait_all_tasks_blocked()
    assert 0 < pipe.held_bytes <= LIMITS.waiting_bytes_max
    got = b""
    while b"message 9" not in got:
        got += await poll(pipe)
        await wait_all_tasks_blocked()

    assert [got.index(b"message %d" % number) for number in range(10)] == sorted(
        got.index(b"message %d" % number) for number in range(10)
    )
    assert outbox.size == 0


async def test_writer_goes_on_when_a_stream_has_taken_what_waited(nursery: trio.Nursery) -> None:
    pipe = await opened()
    pipe.send_now(b"x" * 20)
    nursery.start_soon(pipe.send_all, b"more")
    await wait_all_tasks_blocked()
    with pipe.stream(STREAMING) as stream:
        assert await stream.next() == PRELUDE + b'a["%b"]\n' % (b"x" * 20)
        assert await stream.next() == b'a["more"]\n'


async def test_client_s_messages_wait_until_the_session_reads(nursery: trio.Nursery) -> None:
    pipe = await opened()
    answered = []

    async def send(text: str) -> None:
        await pipe.send(f'["{text}"]'.encode())
        answered.append(text)

    await send("0123456789")
    nursery.start_soon(send, "a" * 11)
    await wait_all_tasks_blocked()
    assert answered == ["0123456789"]
    assert pipe.held_bytes == 10

    assert await pipe.receive_some(100) == b"0123456789"
    await wait_all_tasks_blocked()
    assert answered == ["0123456789", "a" * 11]
    assert await pipe.receive_some(100) == b"a" * 11


async def test_one_large_message_is_taken_alone() -> None:
    pipe = await opened()
    await pipe.send(b'["%b"]' % (b"x" * 1000))
    assert pipe.send_now(b"y" * 1000) == 1000

    assert len(await pipe.receive_some(2000)) == 1000
    assert len(await poll(pipe)) > 1000


async def test_wrong_body_changes_nothing() -> None:
    pipe = await opened()
    with pytest.raises(RemoteProtocolError):
        await pipe.send(b"[")
    await pipe.send(b'["x"]')

    assert await pipe.receive_some(10) == b"x"


async def test_session_without_a_response_ends_after_five_seconds(autojump_clock: MockClock) -> None:
    pipe = await opened()
    began = trio.current_time()

    assert await pipe.receive_some(10) == b""
    assert trio.current_time() - began == pytest.approx(5.0)
    assert pipe.is_over
    with pytest.raises(trio.BrokenResourceError):
        await pipe.send_all(b"x")


async def test_session_with_a_response_goes_on(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    pipe = await opened()
    ends = []

    async def session() -> None:
        ends.append(await pipe.receive_some(10))

    nursery.start_soon(session)
    for _ in range(4):
        await trio.sleep(4.0)
        assert await poll(pipe) == b"h\n"
    assert ends == [] and not pipe.is_over
    await trio.sleep(5.1)
    assert ends == [b""]


async def test_heartbeat_comes_though_the_client_sends(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    pipe = await opened()

    async def client() -> None:
        while True:
            await pipe.send(b'["x"]')
            await pipe.receive_some(10)
            await trio.sleep(1.0)

    nursery.start_soon(client)
    with trio.fail_after(LIMITS.heartbeat_seconds + 0.5):
        assert await poll(pipe) == b"h\n"
    nursery.cancel_scope.cancel()


async def test_response_that_breaks_ends_the_session() -> None:
    pipe = await opened()
    pipe.send_now(b"lost")
    with pytest.raises(trio.BrokenResourceError), pipe.stream(STREAMING) as stream:
        await stream.next()
        raise trio.BrokenResourceError

    assert pipe.send_now(b"late") == 0
    assert await pipe.receive_some(10) == b""
    assert await poll(pipe) == b'c[1002,"Connection interrupted"]\n'


async def test_client_that_leaves_a_waiting_poll_ends_the_session(autojump_clock: MockClock) -> None:
    pipe = await opened()
    with trio.move_on_after(1), pipe.stream(XHR) as stream:
        await stream.next()

    assert await pipe.receive_some(10) == b""


async def test_second_poll_is_refused_and_the_first_waits_on(nursery: trio.Nursery) -> None:
    pipe = await opened()
    bodies = []

    async def client() -> None:
        bodies.append(await poll(pipe))

    nursery.start_soon(client)
    await wait_all_tasks_blocked()
    assert await poll(pipe) == b'c[2010,"Another connection still open"]\n'
    pipe.send_now(b"one")
    await wait_all_tasks_blocked()

    assert bodies == [b'a["one"]\n']


async def test_what_was_sent_before_the_end_is_still_polled(autojump_clock: MockClock) -> None:
    pipe = await opened()
    pipe.send_now(b"RECEIPT")
    pipe.end_sending()
    assert await pipe.receive_some(10) == b""
    pipe.close()

    assert pipe.send_now(b"late") == 0
    assert not pipe.is_over
    assert await poll(pipe) == b'a["RECEIPT"]\n'
    assert await poll(pipe) == b'c[1000,"Normal closure"]\n'
    await trio.sleep(5.1)
    assert pipe.is_over


async def test_close_drops_what_waits_and_wakes_all(nursery: trio.Nursery) -> None:
    pipe = await opened()
    pipe.send_now(b"x" * 20)
    raised = []

    async def waits(call: object, *args: object) -> None:
        try:
            await call(*args)  # type: ignore[operator]
        except trio.ClosedResourceError:
            raised.append(args)

    nursery.start_soon(waits, pipe.receive_some, 10)
    nursery.start_soon(waits, pipe.send_all, b"more")
    await wait_all_tasks_blocked()
    pipe.close()
    pipe.close()
    await wait_all_tasks_blocked()

    assert sorted(map(str, raised)) == ["(10,)", "(b'more',)"]
    assert await poll(pipe) == b'c[3000,"Go away!"]\n'
    await pipe.send(b'["dropped"]')
    assert pipe.held_bytes == 0


async def test_bytes_that_are_not_text_end_the_session_with_a_reason() -> None:
    pipe = await opened()
    outbox = ClientOutbox(pipe, starts := Starts())
    outbox.put(b"\xff")
    outbox.flush()
    await starts.run()

    assert outbox.broken
    assert await pipe.receive_some(10) == b""
    assert (await poll(pipe)).startswith(b"c[1003,")


async def test_nothing_is_sent_for_nothing() -> None:
    pipe = await opened()
    assert pipe.send_now(b"") == 0
    await pipe.send_all(b"")
    assert pipe.held_bytes == 0


async def test_peer_is_that_of_the_first_request() -> None:
    first = StubPipe()
    pipe = SockJsPipe(LIMITS, first)

    assert pipe.peer_address == first.peer_address
    assert pipe.peer_certificate_names == first.peer_certificate_names
    assert pipe.peer_certificate_subject == first.peer_certificate_subject
