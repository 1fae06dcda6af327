"""A WebSocket as a pipe: what a session sends becomes messages, and the payload of messages is what it receives.

What one call sends is one message. If the kernel takes only the beginning of it, the pipe remembers how many bytes the
message still lacks, and what the session sends next continues it. So nothing is held here but the rest of a frame head,
one pong and a close frame.

Surprising: control frames go between messages only. A pong is sent at once, or after the message that is being sent, or
by a task that exists only until the kernel has it. Over TLS nothing can be sent at once.
"""

from collections.abc import Awaitable, Callable

import trio

from qmq.environment import Pipe
from qmq.protocols.http.websocket import WebSocketFrames, WebSocketInput
from qmq.protocols.http.websocket.frames import NORMAL_CLOSURE
from qmq.sessions.clients.outbox import start_nothing

CLOSE_FRAME_SECONDS = 1.0
"""A close frame that the kernel has not taken may keep the connection open for so long after `close`."""

Start = Callable[[Callable[[], Awaitable[None]]], None]


class WebSocketPipe:
    """`qmq.environment.Pipe` over `pipe`, after the response 101 was sent.

    `start` starts a task in the nursery of the connection. `leftover` are the bytes that came after the request.
    """

    __slots__ = (
        "_closed",
        "_closing",
        "_control",
        "_farewell",
        "_frames",
        "_leftover",
        "_message_left",
        "_payload",
        "_pending",
        "_pipe",
        "_read_end",
        "_scope",
        "_sending",
        "_start",
        "_writing",
        "close_code",
    )

    def __init__(self, pipe: Pipe, frames: WebSocketFrames, start: Start, leftover: bytes = b"") -> None:
        self.close_code: int | None = None
        """With which code the client closed, or which it got for breaking the protocol; None until then."""
        self._pipe = pipe
        self._frames = frames
        self._start = start
        self._leftover = leftover
        self._payload = b""
        """Received, and not yet returned."""
        self._read_end = False
        self._farewell = b""
        """The answer to the close frame of the client, which `end_sending` sends: until then the session may send."""
        self._message_left = 0
        """Bytes that the session has to send until the message that has begun is complete."""
        self._pending = b""
        """The rest of something that the kernel took only the beginning of; it goes before everything else."""
        self._control = b""
        """Control frames for the next gap between messages."""
        self._sending = False
        """`send_all` is under way; it sends `_control` at its end."""
        self._writing: trio.Event | None = None
        """The task that sends `_pending` and `_control` exists; set when it ends."""
        self._scope: trio.CancelScope | None = None
        """Of that task."""
        self._closing = False
        self._closed = False

    @property
    def peer_address(self) -> str:
        return self._pipe.peer_address

    @property
    def peer_port(self) -> int:
        return self._pipe.peer_port

    @property
    def peer_certificate_names(self) -> frozenset[str]:
        return self._pipe.peer_certificate_names

    @property
    def peer_certificate_subject(self) -> frozenset[str]:
        return self._pipe.peer_certificate_subject

    async def receive_some(self, bytes_max: int) -> bytes:
        """As the pipe below. A close frame of the client, and a broken protocol, are the end of the stream."""
        if self._payload:
            await trio.lowlevel.checkpoint()
        while not self._payload:
            got = await self._read(bytes_max)
            if got is None:
                return b""
            self._payload = got.payload
        payload = self._payload
        self._payload = payload[bytes_max:]
        return payload[:bytes_max]

    async def _read(self, bytes_max: int) -> WebSocketInput | None:
        """One read; None after the end of the stream."""
        if self._closed or self._read_end or self._leftover:
            await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        if self._read_end:
            return None
        data, self._leftover = self._leftover, b""
        data = data or await self._pipe.receive_some(bytes_max)
        if not data:
            self._read_end = True
            return None
        got = self._frames.receive(data)
        if got.close_code is not None:
            self._read_end = True
            self.close_code = got.close_code
            self._farewell = got.reply
        elif got.reply and not self._closing:
            self._control = got.reply
            self._send_control()
        return got

    def send_now(self, data: bytes) -> int:
        if self._closing or self._writing is not None or not data or not self._flush():
            return 0
        if self._message_left:
            taken = self._pipe.send_now(data[: self._message_left])
            self._message_left -= taken
            self._send_control()
            return taken
        frame = self._frames.encode(data)
        head = len(frame) - len(data)
        sent = self._pipe.send_now(frame)
        if sent == len(frame) or not sent:
            return max(0, sent - head)
        # The message has begun. A caller that gets 0 may send other bytes instead, and fewer than its length. So one
        # byte is taken, unless there is only one.
        taken = max(sent - head, 1 if len(data) > 1 else 0)
        self._pending = frame[sent : head + taken]
        self._message_left = len(data) - taken
        return taken

    async def send_all(self, data: bytes) -> None:
        while self._writing is not None:
            await self._writing.wait()
        if self._closing:
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError if self._closed else trio.BrokenResourceError
        self._sending = True
        try:
            await self._pipe.send_all(self._framed(data))
            while self._control and not self._message_left:
                control, self._control = self._control, b""
                await self._pipe.send_all(control)
        finally:
            self._sending = False
        if self._closing:
            self._pipe.end_sending()

    def _framed(self, data: bytes) -> bytes:
        """What is pending, the rest of the message that has begun, and a message with what is left of `data`."""
        pending, self._pending = self._pending, b""
        left = self._message_left
        self._message_left = max(0, left - len(data))
        if left >= len(data):
            return pending + data
        return pending + data[:left] + self._frames.encode(data[left:])

    def _flush(self) -> bool:
        """Send what goes before the next bytes of the session, without waiting; whether all of it is sent."""
        while True:
            if self._pending:
                self._pending = self._pending[self._pipe.send_now(self._pending) :]
                if self._pending:
                    return False
            if not self._control or self._message_left:
                return True
            self._pending, self._control = self._control, b""

    def _send_control(self) -> None:
        """Send control frames at once if no message has begun; else they follow it."""
        if self._sending or self._writing is not None or self._message_left or self._flush():
            return
        self._writing, self._scope = trio.Event(), trio.CancelScope()
        self._start(self._write_control)

    async def _write_control(self) -> None:
        done, scope = self._writing, self._scope
        assert done is not None and scope is not None
        try:
            with scope:
                while self._pending or self._control:
                    data, self._pending, self._control = self._pending + self._control, b"", b""
                    await self._pipe.send_all(data)
                if self._closing:
                    self._pipe.end_sending()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reader finds that out, too
        finally:
            self._writing = self._scope = None
            done.set()
            if self._closed:
                self._pipe.close()

    def end_sending(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame, and the end of the stream below when the kernel has it; reading continues.

        After a message that is incomplete no close frame can follow, so only the stream ends. Idempotent.
        """
        if self._closing:
            return
        self._closing = True
        self._control += self._farewell or self._frames.close(code, reason)
        if self._sending or self._writing is not None:
            return  # they end the stream
        self._send_control()
        if self._writing is None:
            self._pipe.end_sending()

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Close at once. With `code`, a close frame is sent if the kernel takes it now.

        If `end_sending` was called and a task still sends its close frame, that task closes the connection, within
        CLOSE_FRAME_SECONDS. Without that no client of TLS would get a close frame.
        """
        if self._closed:
            return
        ends = self._closing
        if code is not None and not self._sending and self._writing is None and not ends:
            self._control += self._farewell or self._frames.close(code, reason)
            self._flush()
        self._closed = self._closing = True
        self._start = start_nothing
        if ends and self._scope is not None:
            self._scope.deadline = trio.current_time() + CLOSE_FRAME_SECONDS
        else:
            self._pipe.close()
