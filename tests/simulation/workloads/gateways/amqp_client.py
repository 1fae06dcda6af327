"""One connection of a scripted AMQP client, as bytes on the simulated network. Methods are those of pamqp.

It behaves as `workloads.client` says. A close that no fault explains is a broken promise.
"""

from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio
from pamqp import base, body, commands, exceptions, frame, header

from qmq.environment import Pipe
from qmq.protocols.amqp.codec.frames import PROTOCOL_HEADER
from qmq.protocols.amqp.codec.refusals import ReplyCode
from tests.simulation.cluster import AMQP_PORT, Member
from tests.simulation.ledger import Ledger
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import LOGIN_SECONDS, GoneError, dial

FRAME_BYTES_MAX: Final = 4096
"""Small, so that larger bodies have several frames."""

CHANNEL: Final = 1
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)


@dataclass(slots=True)
class Given:
    """A delivery or a return, whole."""

    method: Any
    body: bytes


class AmqpClient:
    """One AMQP connection of a client, with one channel."""

    def __init__(self, pipe: Pipe, name: str, ledger: Ledger, refusals: Collection[int] = ()) -> None:
        """`refusals` are codes with which its channel may be closed."""
        self._pipe = pipe
        self._name = name
        self._ledger = ledger
        self._refusals = refusals
        self._unread = bytearray()
        self._methods: deque[Any] = deque()
        self._content: tuple[Any, int, bytearray] | None = None

    async def log_in(self, vhost: str) -> None:
        await self._write(PROTOCOL_HEADER)
        await self.next(commands.Connection.Start)
        await self._write(frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0))
        tune = await self.next(commands.Connection.Tune)
        agreed = commands.Connection.TuneOk(tune.channel_max, FRAME_BYTES_MAX, 0)
        await self._write(frame.marshal(agreed, 0) + frame.marshal(commands.Connection.Open(vhost), 0))
        await self.next(commands.Connection.OpenOk)
        await self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    async def send(self, *methods: base.Frame) -> None:
        await self._write(b"".join([frame.marshal(method, CHANNEL) for method in methods]))

    async def call(self, method: base.Frame, answer: Any) -> Any:
        """Send a method; returns its answer. What comes before it is kept for `read`."""
        await self.send(method)
        return await self.next(answer)

    async def publish(self, key: str, *contents: bytes, exchange: str = "", mandatory: bool = False) -> None:
        """Persistent messages, all in one write."""
        most = FRAME_BYTES_MAX - 8
        parts: list[bytes] = []
        for content in contents:
            parts.append(frame.marshal(commands.Basic.Publish(0, exchange, key, mandatory), CHANNEL))
            parts.append(frame.marshal(header.ContentHeader(0, len(content), PERSISTENT), CHANNEL))
            for at in range(0, len(content), most):
                parts.append(frame.marshal(body.ContentBody(content[at : at + most]), CHANNEL))
        await self._write(b"".join(parts))

    async def next(self, kind: Any) -> Any:
        """The next method or `Given` of this kind; others stay for `read`, in order."""
        while True:
            for index, found in enumerate(self._methods):
                if isinstance(found, kind):
                    del self._methods[index]
                    return found
            await self._receive()

    async def read(self) -> Any:
        """The next method or `Given`."""
        while not self._methods:
            await self._receive()
        return self._methods.popleft()

    @property
    def has_more(self) -> bool:
        """Whether `read` returns at once."""
        return bool(self._methods)

    async def leave(self) -> None:
        """Close the connection in order, and wait for the answer."""
        await self._write(frame.marshal(commands.Connection.Close(200, "bye", 0, 0), 0))
        await self.next(commands.Connection.CloseOk)

    def close(self) -> None:
        self._pipe.close()

    async def _write(self, data: bytes) -> None:
        try:
            await self._pipe.send_all(data)
        except trio.BrokenResourceError:
            raise GoneError("broken") from None

    async def _receive(self) -> None:
        try:
            data = await self._pipe.receive_some(65536)
        except trio.BrokenResourceError:
            raise GoneError("broken") from None
        if not data:
            raise GoneError("ended")
        self._unread += data
        while len(self._unread) >= 8 and len(self._unread) >= int.from_bytes(self._unread[3:7], "big") + 8:
            try:
                size, _, found = frame.unmarshal(bytes(self._unread))
            except exceptions.PAMQPException as problem:
                self._ledger.wrongs.append(f"{self._name} was sent bytes that break AMQP: {problem}")
                raise GoneError("garbage") from None
            del self._unread[:size]
            self._take(found)

    def _take(self, found: Any) -> None:
        if isinstance(found, commands.Connection.Close | commands.Channel.Close):
            is_farewell = isinstance(found, commands.Connection.Close) and (
                found.reply_code == ReplyCode.CONNECTION_FORCED
            )
            if not is_farewell and found.reply_code not in self._refusals:
                self._ledger.wrongs.append(f"A3 closed: {self._name} had {found.reply_code} {found.reply_text}")
            raise GoneError(f"{found.reply_code}")
        if isinstance(found, commands.Basic.Deliver | commands.Basic.Return):
            self._content = found, -1, bytearray()
            return
        if isinstance(found, header.ContentHeader):
            assert self._content is not None
            self._content = self._content[0], found.body_size, self._content[2]
        elif isinstance(found, body.ContentBody):
            assert self._content is not None
            self._content[2].extend(found.value)
        else:
            self._methods.append(found)
            return
        method, size, content = self._content
        if len(content) == size:
            self._content = None
            self._methods.append(Given(method, bytes(content)))


@asynccontextmanager
async def amqp_connected(
    stage: Stage, name: str, member: Member, *, vhost: str = "/", refusals: Collection[int] = ()
) -> AsyncIterator[AmqpClient]:
    """A logged-in connection of the client `name` to a node, with an open channel. Raises GoneError.

    A virtual host is refused at a node that has not heard of it.
    """
    if vhost != "/":
        refusals = (*refusals, ReplyCode.NOT_ALLOWED)
    client = AmqpClient(await dial(stage, name, member, AMQP_PORT), name, stage.ledger, refusals)
    try:
        with trio.move_on_after(LOGIN_SECONDS) as scope:
            await client.log_in(vhost)
        if scope.cancelled_caught:
            raise GoneError("login took too long")
        yield client
    finally:
        client.close()
