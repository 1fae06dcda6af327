"""SockJS over one WebSocket."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qmq.server.web.stomp.sockjs import CLOSING_SECONDS, SockJsPipe, serve_sockjs_websocket
from qmq.wire.sockjs import SockJsLimits
from tests.server.web.support import StubPipe, events, received, websocket
from tests.wire.websocket.support import CLOSE, PING, close_frame, frame


async def serving(nursery: trio.Nursery) -> tuple[StubPipe, SockJsPipe, list[str]]:
    """A connection that is served until it ends, which the list shows."""
    kernel, _, pipe = websocket()
    session = SockJsPipe(SockJsLimits(), pipe)
    ends: list[str] = []

    async def serve() -> None:
        await serve_sockjs_websocket(pipe, session)
        ends.append("end")

    nursery.start_soon(serve)
    await wait_all_tasks_blocked()
    return kernel, session, ends


async def test_frames_and_messages_go_both_ways(nursery: trio.Nursery) -> None:
    kernel, session, _ = await serving(nursery)
    whole = frame(b'["CONNECT\\n","\\n"]')
    kernel.arrive(frame(b"", fin=True) + whole[:9])
    kernel.arrive(whole[9:] + frame(b"p", PING) + frame(b'"one"', fin=False))
    assert await session.receive_some(100) == b"CONNECT\n\n"
    session.send_now("grün".encode())
    await wait_all_tasks_blocked()
    kernel.arrive(frame(b" ", 0))

    assert await session.receive_some(100) == b"one"
    assert received(kernel.sent) == [b"o", b'a["gr\\u00fcn"]']
    assert b"\x8a\x01p" in kernel.sent
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("data", [b"", frame(b"\x03\xe8", CLOSE), frame(b"x", mask=None)])
async def test_end_of_the_connection_ends_the_session(data: bytes, nursery: trio.Nursery) -> None:
    kernel, session, ends = await serving(nursery)
    kernel.arrive(data)

    assert await session.receive_some(100) == b""
    await wait_all_tasks_blocked()
    assert ends == ["end"]


async def test_message_that_is_no_json_ends_the_connection_with_a_code(nursery: trio.Nursery) -> None:
    kernel, session, ends = await serving(nursery)
    kernel.arrive(frame(b"["))
    await wait_all_tasks_blocked()

    assert ends == ["end"]
    assert kernel.sent.endswith(close_frame(1002, "Broken framing."))
    assert await session.receive_some(100) == b""


async def test_end_of_the_session_closes_the_websocket(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    kernel, session, ends = await serving(nursery)
    session.send_now(b"last")
    session.end_sending()
    await wait_all_tasks_blocked()

    assert received(kernel.sent) == [b"o", b'a["last"]', b'c[1000,"Normal closure"]']
    assert kernel.sent.endswith(close_frame(1000))
    assert kernel.ended_at == len(kernel.sent)
    assert ends == []
    await trio.sleep(CLOSING_SECONDS + 0.1)
    assert ends == ["end"]


async def test_connection_that_breaks_while_it_is_written_ends_the_session(nursery: trio.Nursery) -> None:
    kernel, session, ends = await serving(nursery)
    kernel.close()
    session.send_now(b"x")
    await wait_all_tasks_blocked()

    assert ends == ["end"]
    assert await session.receive_some(100) == b""
    assert len(events(kernel.sent)) == 1


async def test_client_that_does_not_read_is_bounded(nursery: trio.Nursery) -> None:
    kernel, session, _ = await serving(nursery)
    kernel.block()
    count = 0
    while session.send_now(b"x" * 1000):
        count += 1
        await wait_all_tasks_blocked()

    assert count == 1 + SockJsLimits().waiting_bytes_max // 1000
    nursery.cancel_scope.cancel()
