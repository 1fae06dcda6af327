"""A connection whose kernel takes as much as a test says, and clients that read WebSocket frames from it."""

import math
from collections.abc import Awaitable, Callable

import trio
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage

from qmq.protocols.http.stomp.websocket_pipe import WebSocketPipe
from qmq.protocols.http.websocket import WebSocketFrames, WebSocketLimits


class StubPipe:
    """A pipe that takes `room` bytes at once, and everything in `send_all` once `unblock` was called."""

    peer_address = "10.0.0.1"
    peer_port = 50_000
    peer_certificate_names = frozenset({"client.example"})
    peer_certificate_subject = frozenset({"client"})

    def __init__(self, room: float = math.inf) -> None:
        self.room = room
        self.sent = b""
        self.ended_at: int | None = None
        """How many bytes were sent when the stream was ended."""
        self.closed = False
        self._gate = trio.Event()
        if room:
            self._gate.set()
        self._put, self._arrived = trio.open_memory_channel[bytes](math.inf)

    def arrive(self, data: bytes) -> None:
        self._put.send_nowait(data)

    def block(self) -> None:
        self.room = 0
        self._gate = trio.Event()

    def unblock(self) -> None:
        self.room = math.inf
        self._gate.set()

    async def receive_some(self, bytes_max: int) -> bytes:
        if self.closed:
            raise trio.ClosedResourceError
        data = await self._arrived.receive()
        assert len(data) <= bytes_max
        return data

    def send_now(self, data: bytes) -> int:
        taken = 0 if self.closed else int(min(len(data), self.room))
        self.room -= taken
        self.sent += data[:taken]
        return taken

    async def send_all(self, data: bytes) -> None:
        await self._gate.wait()
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        self.sent += data

    def end_sending(self) -> None:
        self.ended_at = len(self.sent)

    def close(self) -> None:
        self.closed = True
        self._gate.set()


class Starts:
    """The nursery of the connection: tasks begin when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], Awaitable[None]]] = []

    def __call__(self, task: Callable[[], Awaitable[None]]) -> None:
        self.tasks.append(task)

    start = __call__

    def waiting_grew(self, delta: int) -> None:
        """See `OutboxOwner`."""

    async def run(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)()


def websocket(
    room: float = math.inf, leftover: bytes = b"", *, is_text: bool = True
) -> tuple[StubPipe, Starts, WebSocketPipe]:
    kernel, starts = StubPipe(room), Starts()
    frames = WebSocketFrames(WebSocketLimits(), is_text=is_text)
    return kernel, starts, WebSocketPipe(kernel, frames, starts, leftover)


def events(sent: bytes) -> list[Event]:
    """What a client reads."""
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(sent)
    return list(client.events())


def received(sent: bytes) -> list[bytes]:
    """The messages that a client has received, all of them complete."""
    found = []
    for event in events(sent):
        if isinstance(event, TextMessage | BytesMessage):
            assert event.message_finished, event
            found.append(event.data.encode() if isinstance(event, TextMessage) else bytes(event.data))
        elif isinstance(event, CloseConnection):
            break
    return found
