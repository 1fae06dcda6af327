"""SockJS over one WebSocket: its frames are messages of text, and the session ends with the connection."""

from collections.abc import Callable
from math import inf

import trio

from qmq.errors import RemoteProtocolError
from qmq.server.web.stomp.sockjs_pipe import SockJsPipe
from qmq.server.web.stomp.websocket_pipe import WebSocketPipe
from qmq.wire.sockjs import SockJsTransport
from qmq.wire.websocket.frames import PROTOCOL_ERROR

READ_BYTES_MAX = 65536

CLOSING_SECONDS = 2.0
"""For the client to answer the close frame."""


async def serve_sockjs_websocket(
    websocket: WebSocketPipe, session: SockJsPipe, message_bytes_max: Callable[[], float] = lambda: inf
) -> None:
    """Pass messages both ways until either side has ended. Does not close `websocket`; the session is closed then.

    A message that is longer than `message_bytes_max`, as it is when a part of the message arrives, ends both.

    A client that does not take what it is sent is bounded by the session, whose waiting messages have a limit. When
    cancelled, an unknown part of a message is sent, so the connection must be closed.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, websocket, session, nursery.cancel_scope)
        try:
            while messages := await websocket.receive_messages(READ_BYTES_MAX, message_bytes_max):
                for message in messages:
                    if message:  # an empty one means nothing
                        await session.send(message)
        except RemoteProtocolError:
            websocket.end_sending(PROTOCOL_ERROR, "Broken framing.")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        nursery.cancel_scope.cancel()


async def _send(websocket: WebSocketPipe, session: SockJsPipe, scope: trio.CancelScope) -> None:
    with session.stream(SockJsTransport.WEBSOCKET) as stream:
        try:
            while (frame := await stream.next()) is not None:
                await websocket.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()
            return
    websocket.end_sending()
    scope.deadline = trio.current_time() + CLOSING_SECONDS
