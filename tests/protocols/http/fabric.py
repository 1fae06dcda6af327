"""The simulated network with a WebSocket around every connection of clients, as if each had been opened by HTTP."""

import random
from collections.abc import Callable

import trio
from wsproto.events import BytesMessage, CloseConnection, Pong, TextMessage

from qmq.environment import Pipe, PipeListener, Tls
from qmq.protocols.http.stomp.websocket_pipe import WebSocketPipe
from qmq.protocols.http.websocket import WebSocketFrames, WebSocketLimits
from tests.protocols.http.support import events
from tests.protocols.http.websocket.support import CLOSE, PING, frame
from tests.support.network import Fabric, HostNetwork

SLICE_BYTES = 1000


class WebSocketClient:
    """The client's end: what is sent becomes masked messages, cut anywhere, with pings between them."""

    def __init__(self, pipe: Pipe) -> None:
        self.peer_address = pipe.peer_address
        self.messages: list[bytes] = []
        self.pongs = 0
        self.close_code: int | None = None
        self._pipe = pipe
        self._raw = b""

    async def send_all(self, data: bytes) -> None:
        out = b""
        for begin in range(0, len(data), SLICE_BYTES):
            out += frame(data[begin : begin + SLICE_BYTES], 2) + frame(b"p", PING)
        await self._pipe.send_all(out)

    async def receive_some(self, bytes_max: int) -> bytes:
        while True:
            data = await self._pipe.receive_some(bytes_max)
            if not data:
                return b""
            self._raw += data
            got = self._complete()
            if got or self.close_code is not None:
                return got

    def _complete(self) -> bytes:
        """The messages that are complete, and no longer in `_raw`."""
        got = b""
        while (end := end_of_frame(self._raw)) is not None:
            whole, self._raw = self._raw[:end], self._raw[end:]
            for event in events(whole):
                if isinstance(event, TextMessage | BytesMessage):
                    self.messages.append(event.data.encode() if isinstance(event, TextMessage) else bytes(event.data))
                    got += self.messages[-1]
                elif isinstance(event, Pong):
                    self.pongs += 1
                elif isinstance(event, CloseConnection):
                    self.close_code = int(event.code)
        return got

    async def leave(self, code: int = 1000) -> None:
        await self._pipe.send_all(frame(code.to_bytes(2, "big"), CLOSE))

    def close(self) -> None:
        self._pipe.close()


def end_of_frame(data: bytes) -> int | None:
    """How long the first frame of a server is; None while it is incomplete."""
    if len(data) < 2:
        return None
    size, begin = data[1], 2
    if size >= 126:
        begin = 4 if size == 126 else 10
        size = int.from_bytes(data[2:begin], "big")
    return begin + size if len(data) >= begin + size else None


class WebSocketListener:
    """A listener whose connections are WebSockets."""

    def __init__(self, listener: PipeListener, wrap: Callable[[Pipe], Pipe]) -> None:
        self.address = listener.address
        self._listener = listener
        self._wrap = wrap

    async def accept(self) -> Pipe:
        return self._wrap(await self._listener.accept())

    def close(self) -> None:
        self._listener.close()


class WebSocketNetwork(HostNetwork):
    """A host whose listeners expect WebSockets."""

    def __init__(self, fabric: "WebSocketFabric", host: str) -> None:
        super().__init__(fabric, host)
        self._nursery = fabric.nursery

    async def listen(self, host: str, port: int, tls: Tls | None) -> PipeListener:  # type: ignore[override]
        return WebSocketListener(await super().listen(host, port, tls), self._wrap)

    def _wrap(self, pipe: Pipe) -> Pipe:
        frames = WebSocketFrames(WebSocketLimits(), is_text=True)
        return WebSocketPipe(pipe, frames, self._nursery.start_soon)


class WebSocketFabric(Fabric):
    """See the module."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(random.Random("websocket"))
        self.nursery = nursery
        self.odd_chunks = 0.5
        self.buffer_bytes = 4 << 10

    def network(self, host: str) -> HostNetwork:
        return WebSocketNetwork(self, host)

    async def dial(self, host: str, target: str, port: int) -> Pipe:
        return WebSocketClient(await super().dial(host, target, port))  # type: ignore[return-value]
