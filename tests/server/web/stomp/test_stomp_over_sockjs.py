"""A STOMP session runs over SockJS unchanged, by polls and by streaming responses."""

import json
import math
import random

import pytest
import trio
from trio.testing import MockClock

from qmq.environment import Pipe, PipeListener, Tls
from qmq.server.web.stomp.sockjs import SockJsPipe
from qmq.wire.sockjs import SockJsLimits, SockJsTransport
from qmq.wire.stomp import Connection, Frame, Role
from tests.server.rig import HOST, Rig
from tests.server.web.support import StubPipe
from tests.support.network import Fabric, HostNetwork

MESSAGES = 300


class SockJsListener:
    """A listener that accepts the sessions that a test opens."""

    def __init__(self, listener: PipeListener, sessions: trio.MemoryReceiveChannel[Pipe]) -> None:
        self.address = listener.address
        self.close = listener.close
        self._sessions = sessions

    async def accept(self) -> Pipe:
        return await self._sessions.receive()


class SockJsFabric(Fabric):
    """The network of a node whose clients come by SockJS."""

    def __init__(self) -> None:
        super().__init__(random.Random("sockjs"))
        self.opened, self.sessions = trio.open_memory_channel[Pipe](math.inf)

    def network(self, host: str) -> HostNetwork:
        fabric = self

        class Network(HostNetwork):
            async def listen(self, host: str, port: int, tls: Tls | None) -> PipeListener:  # type: ignore[override]
                return SockJsListener(await super().listen(host, port, tls), fabric.sessions)

        return Network(self, host)


class SockJsClient:
    """What sockjs-client does: it sends arrays of strings, and has one receiving request after the other."""

    def __init__(self, fabric: SockJsFabric, transport: SockJsTransport) -> None:
        self.session = SockJsPipe(SockJsLimits(response_bytes_max=4096), StubPipe())
        self.frames: list[Frame] = []
        self.closed: list[object] | None = None
        self._transport = transport
        self._stomp = Connection(Role.CLIENT)
        self._come = trio.Event()
        fabric.opened.send_nowait(self.session)

    async def receive(self) -> None:
        """Open receiving requests until the session closes."""
        while self.closed is None:
            await self.receive_once()

    async def receive_once(self) -> None:
        with self.session.stream(self._transport) as stream:
            while (piece := await stream.next()) is not None:
                self._take(piece.decode().lstrip("h").strip())

    def _take(self, frame: str) -> None:
        if frame.startswith("a"):
            for message in json.loads(frame[1:]):
                self.frames += self._stomp.receive(message.encode())
        elif frame.startswith("c"):
            self.closed = json.loads(frame[1:])
        self._come.set()
        self._come = trio.Event()

    async def send(self, *frames: str) -> None:
        await self.session.send(json.dumps([frame + "\0" for frame in frames]).encode())

    async def until(self, command: str, count: int = 1) -> list[Frame]:
        with trio.fail_after(600):
            while len(found := [frame for frame in self.frames if frame.head.command == command]) < count:
                await self._come.wait()
        return found


@pytest.mark.parametrize("transport", [SockJsTransport.XHR, SockJsTransport.XHR_STREAMING])
async def test_messages_arrive_in_order(transport: SockJsTransport, autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.fabric = fabric = SockJsFabric()
    assert rig.settings.stomp[0].address.host == HOST
    async with rig.run(), trio.open_nursery() as nursery:
        client = SockJsClient(fabric, transport)
        nursery.start_soon(client.receive)
        await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n")
        await client.until("CONNECTED")
        await client.send("SUBSCRIBE\nid:1\ndestination:/topic/t\n\n")
        bodies = [f"{number} " + "grün" * (number % 100) for number in range(MESSAGES)]
        for body in bodies:
            await client.send(f"SEND\ndestination:/topic/t\n\n{body}")
        got = [frame.body.decode() for frame in await client.until("MESSAGE", MESSAGES)]
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until("RECEIPT")

    assert got == bodies
    assert client.closed == [1000, "Normal closure"]


async def test_client_that_stops_polling_is_disconnected(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.fabric = fabric = SockJsFabric()
    async with rig.run():
        client = SockJsClient(fabric, SockJsTransport.XHR)
        await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n")
        for _ in range(2):
            await client.receive_once()
        assert len(await client.until("CONNECTED")) == 1
        await trio.sleep(4.9)
        assert len(rig.alive.sessions) == 1
        await trio.sleep(0.2)
        assert not rig.alive.sessions
        assert client.session.is_over


async def test_error_is_polled_before_the_end(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.fabric = fabric = SockJsFabric()
    async with rig.run(), trio.open_nursery() as nursery:
        client = SockJsClient(fabric, SockJsTransport.XHR)
        nursery.start_soon(client.receive)
        await client.send("NONSENSE\n\n")
        await client.until("ERROR")

    assert client.closed == [1000, "Normal closure"]
