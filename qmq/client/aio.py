"""The client on asyncio: its connections, and `connect`. The classes are those of `qmq.client`.

A connection is a Protocol of asyncio, which the loop calls with bytes, and one timer for its heart-beats.

Surprising: nothing is written while the transport holds more than its high-water mark, so what waits stays in the
core, within the window.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

from qmq.address import Address
from qmq.client.client import Client as Client
from qmq.client.client import Statistics as Statistics
from qmq.client.core.failures import tls_failure
from qmq.client.core.keepalive import Keepalive
from qmq.client.message import Message as Message
from qmq.client.message import Receipt as Receipt
from qmq.client.options import ConnectOptions, ConnectPlan, plan
from qmq.client.runner import Runner
from qmq.client.styles import Connecting
from qmq.client.subscription import Subscription as Subscription
from qmq.client.transaction import Transaction as Transaction

T = TypeVar("T")


class Wire(asyncio.Protocol):
    """One connection. `ended` gets the exception with which it ends."""

    def __init__(self, runner: "AioRunner") -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._beats: Keepalive | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.closed = asyncio.Event()
        """Once its socket is."""

    def begin(self, transport: asyncio.WriteTransport, beats: Keepalive) -> None:
        """The client logs in. What a node has sent before that is dropped: it is no answer."""
        self._transport = transport
        self._beats = beats
        self.flush()
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        elif not self.ended.cancelled():
            self.ended.exception()  # Otherwise the loop logs that it was never looked at.

    def flush(self) -> None:
        """Send what the core has to say."""
        if self._beats is not None and not self._is_paused and (data := self._runner.core.take_output()):
            self._transport.write(data)
            self._beats.sent(self._loop.time())

    def _arm(self) -> None:
        assert self._beats is not None
        if self._timer is not None:
            self._timer.cancel()
        due = self._beats.due
        self._timer = self._loop.call_at(due, self._check) if due != float("inf") else None

    def _check(self) -> None:
        assert self._beats is not None
        try:
            self._beats.check(self._loop.time(), is_writing=self._is_paused)
        except TimeoutError as error:
            self._end(error)
        else:
            self._runner.wake()
            self._arm()

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    # Called by the loop

    def data_received(self, data: bytes) -> None:
        if self._beats is None or self.ended.done():
            return
        was_online = self._beats.is_online
        try:
            self._runner.received(self._beats, data)
        except Exception as error:  # `serve` raises it
            self._end(error)
        if self._beats.is_online and not was_online:
            self._arm()

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(tls_failure(error))
        self.closed.set()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.flush()


class AioRunner(Runner):
    """See `Runner`."""

    _wire: Wire | None = None

    def event(self) -> asyncio.Event:
        return asyncio.Event()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def within(self, seconds: float, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                return await call
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s") from None

    def wake(self) -> None:
        super().wake()
        if self._wire is not None:
            self._wire.flush()

    async def serve(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.attempt_seconds
        name = address.host if self.tls is not None else None
        try:
            async with asyncio.timeout_at(deadline):
                transport, wire = await loop.create_connection(
                    lambda: Wire(self), address.host, address.port, ssl=self.tls, server_hostname=name
                )
        except TimeoutError:
            raise TimeoutError(f"no connection within {self.attempt_seconds:g} s") from None
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        self._wire = wire
        try:
            beats = self.begin(address, deadline)
            if beats is not None:
                wire.begin(transport, beats)
                await wire.ended
        finally:
            self._wire = None
            wire.close()
            transport.abort()
            await wire.closed.wait()


def connect(addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> Connecting:
    """As `qmq.client.connect`, on asyncio."""
    return Connecting("asyncio", lambda: _open(plan(addresses, **options)))


@asynccontextmanager
async def _open(plan: ConnectPlan) -> AsyncIterator[Client]:
    runner = AioRunner(plan.core, plan.rotation, tls=plan.tls, attempt_seconds=plan.attempt_seconds)
    client = Client(plan.core, runner, plan.tracing)
    running = asyncio.create_task(runner.run())
    try:
        await runner.online(plan.connect_timeout_seconds)
        yield client
        await client.leave(plan.farewell_seconds)
    finally:
        client.close()
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()  # raises what only a bug leaves it as
