"""A node with an AMQP listener on the simulated network, and clients that speak raw AMQP to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from pamqp import base, body, commands, frame, header

from qmq.config import Address, ListenerSettings
from qmq.environment import Pipe
from qmq.protocols.amqp.codec.frames import PROTOCOL_HEADER
from tests.node.rig import ANSWER_SECONDS, HOST, Rig

AMQP_PORT = 5672
LISTENER = ListenerSettings(address=Address(HOST, AMQP_PORT))


class Message:
    """A delivery, a return, or the answer of basic.get."""

    def __init__(self, method: Any, properties: Any, content: bytes) -> None:
        self.method = method
        self.properties = properties
        self.body = content


class AmqpClient:
    """Raw AMQP over one pipe. Methods of all channels are in one list, in order."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.frame_bytes_max = 131072
        self.received: list[tuple[int, Any]] = []
        """Channel, and a method or a Message."""
        self.heartbeats = 0
        self.ended = False
        self._unread = b""
        self._partial: dict[int, list[Any]] = {}

    async def log_in(
        self,
        response: str = "\0guest\0guest",
        *,
        mechanism: str = "PLAIN",
        host: str = "/",
        heartbeat: int = 0,
        frame_max: int = 131072,
        properties: dict[str, Any] | None = None,
    ) -> None:
        await self.pipe.send_all(PROTOCOL_HEADER)
        await self.next(commands.Connection.Start)
        await self.send(0, commands.Connection.StartOk(properties or {}, mechanism, response, "en_US"))
        tune = await self.next(commands.Connection.Tune)
        self.frame_bytes_max = frame_max
        agreed = commands.Connection.TuneOk(tune.channel_max, frame_max, heartbeat)
        await self.send(0, agreed, commands.Connection.Open(host))
        await self.next(commands.Connection.OpenOk)

    async def channel(self, number: int = 1) -> int:
        await self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)
        return number

    async def send(self, channel: int, *methods: base.Frame) -> None:
        await self.pipe.send_all(b"".join(frame.marshal(method, channel) for method in methods))

    async def call(self, channel: int, method: base.Frame, answer: Any) -> Any:
        await self.send(channel, method)
        return await self.next(answer)

    def publishing(
        self,
        key: str,
        content: bytes,
        exchange: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        channel: int = 1,
        **properties: Any,
    ) -> bytes:
        most = self.frame_bytes_max - 8
        return b"".join(
            [
                frame.marshal(commands.Basic.Publish(0, exchange, key, mandatory, immediate), channel),
                frame.marshal(header.ContentHeader(0, len(content), commands.Basic.Properties(**properties)), channel),
                *(
                    frame.marshal(body.ContentBody(content[at : at + most]), channel)
                    for at in range(0, len(content), most)
                ),
            ]
        )

    async def publish(self, key: str, *contents: bytes, **options: Any) -> None:
        await self.pipe.send_all(b"".join(self.publishing(key, content, **options) for content in contents))

    async def declare(self, queue: str = "jobs", channel: int = 1, **options: Any) -> Any:
        method = commands.Queue.Declare(0, queue, **{"durable": True, **options})
        return await self.call(channel, method, commands.Queue.DeclareOk)

    async def consume(self, queue: str = "jobs", tag: str = "c", channel: int = 1, **options: Any) -> None:
        await self.call(channel, commands.Basic.Consume(0, queue, tag, **options), commands.Basic.ConsumeOk)

    async def next(self, kind: Any) -> Any:
        """The next of that kind; others keep their order. A close that is not expected fails."""
        return (await self.next_of(kind))[1]

    async def next_of(self, kind: Any) -> tuple[int, Any]:
        with trio.fail_after(ANSWER_SECONDS):
            while True:
                for index, (_, found) in enumerate(self.received):
                    if isinstance(found, kind):
                        return self.received.pop(index)
                    closes = commands.Channel.Close | commands.Connection.Close
                    assert not isinstance(found, closes), (found.reply_code, found.reply_text)
                assert not self.ended, f"the node closed the connection; expected {kind}"
                await self._read()

    async def messages(self, count: int) -> list[Message]:
        return [await self.next(Message) for _ in range(count)]

    async def bodies(self, count: int) -> list[bytes]:
        return [message.body for message in await self.messages(count)]

    async def nothing(self, seconds: float = 2.0) -> None:
        """Nothing comes for so long (virtual) seconds."""
        with trio.move_on_after(seconds):
            while True:
                await self._read()
        assert self.received == [], self.received

    async def closed(self, channel: int = 1) -> tuple[int, str]:
        """Code and text of the close of a channel, confirmed; 0 is the connection."""
        number, close = await self.next_of(commands.Connection.Close if channel == 0 else commands.Channel.Close)
        assert number == channel
        if channel:
            await self.send(channel, commands.Channel.CloseOk())
        return close.reply_code, close.reply_text

    async def until_ended(self) -> None:
        with trio.fail_after(ANSWER_SECONDS):
            while not self.ended:
                await self._read()

    async def _read(self) -> None:
        data = await self.pipe.receive_some(65536)
        self.ended = self.ended or not data
        self._unread += data
        while len(self._unread) >= 8:
            try:
                size, channel, found = frame.unmarshal(self._unread)
            except Exception:
                return
            self._unread = self._unread[size:]
            self._take(channel, found)

    def _take(self, channel: int, found: Any) -> None:
        partial = self._partial.get(channel)
        if isinstance(found, base.Frame):
            if found.name in ("Basic.Deliver", "Basic.GetOk", "Basic.Return"):
                self._partial[channel] = [found, None, b""]
            else:
                self.received.append((channel, found))
            return
        if isinstance(found, header.ContentHeader):
            assert partial is not None
            partial[1] = found
        elif isinstance(found, body.ContentBody):
            assert partial is not None
            partial[2] += found.value
        else:
            self.heartbeats += 1
            return
        if len(partial[2]) == partial[1].body_size:
            del self._partial[channel]
            self.received.append((channel, Message(partial[0], partial[1].properties, partial[2])))


@asynccontextmanager
async def amqp_node(**settings: Any) -> AsyncIterator[Rig]:
    async with Rig(**{"amqp": (LISTENER,), **settings}).run() as rig:
        yield rig


async def dial(rig: Rig) -> AmqpClient:
    return AmqpClient(await rig.fabric.dial("10.0.0.1", HOST, AMQP_PORT))


async def connect(rig: Rig, **options: Any) -> AmqpClient:
    """A logged-in client with channel 1."""
    client = await dial(rig)
    await client.log_in(**options)
    await client.channel()
    return client
