"""The client on trio, which is `qmq.client` itself: its connections, and `connect`.

A connection is three tasks in one nursery: a reader, a writer, and its heart-beats. The first one that ends also ends
the connection.

Surprising: an exception of the block leaves `connect` as it is and not inside an ExceptionGroup, despite the nursery.
"""

import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar, Unpack

import trio

from qmq.address import Address
from qmq.client.client import Client
from qmq.client.core.core import Core
from qmq.client.core.failures import tls_failure
from qmq.client.core.keepalive import READ_BYTES_MAX, Keepalive
from qmq.client.core.rotation import Rotation
from qmq.client.options import ConnectOptions, ConnectPlan, plan
from qmq.client.runner import Runner
from qmq.client.styles import Connecting
from qmq.errors import Refused, RemoteProtocolError, TlsFailed

T = TypeVar("T")


class Line(Protocol):
    """What the client needs of a connection; any `qmq.environment.Pipe` is one, so tests dial a network in memory.
    Waiting calls raise trio.BrokenResourceError or trio.ClosedResourceError.
    """

    async def receive_some(self, bytes_max: int) -> bytes:
        """Wait for bytes; b"" when the other side has ended."""

    async def send_all(self, data: bytes) -> None:
        """After a cancel an unknown part is sent, so the connection must be closed."""

    def close(self) -> None:
        """Close at once. Idempotent."""


class Dial(Protocol):
    """How connections are made."""

    async def __call__(self, host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> Line:
        """Raises OSError and TlsFailed. With `tls` the certificate must carry `server_name`."""


class StreamLine:
    """A TCP connection, or TLS over one."""

    def __init__(self, socket: trio.SocketStream, stream: trio.abc.Stream) -> None:
        self._socket = socket
        self._stream = stream

    async def receive_some(self, bytes_max: int) -> bytes:
        return bytes(await self._stream.receive_some(bytes_max))

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    def close(self) -> None:
        self._socket.socket.close()


async def dial(host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> Line:
    """See `Dial`. A failed or cancelled handshake leaves no socket open."""
    socket = await trio.open_tcp_stream(host, port)
    if tls is None:
        return StreamLine(socket, socket)
    secured = trio.SSLStream(socket, tls, server_hostname=server_name, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        socket.socket.close()
        raise tls_failure(error.__cause__) from error
    except BaseException:
        socket.socket.close()
        raise
    return StreamLine(socket, secured)


class TrioRunner(Runner):
    """See `Runner`."""

    def __init__(
        self, core: Core, rotation: Rotation, dial: Dial, *, tls: ssl.SSLContext | None, attempt_seconds: float
    ) -> None:
        super().__init__(core, rotation, tls=tls, attempt_seconds=attempt_seconds)
        self._dial = dial
        self._is_writing = False

    def event(self) -> trio.Event:
        return trio.Event()

    def now(self) -> float:
        return trio.current_time()

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def within(self, seconds: float, call: Awaitable[T]) -> T:
        with trio.move_on_after(seconds):
            return await call
        raise TimeoutError(f"not within {seconds:g} s")

    async def serve(self, address: Address) -> None:
        with trio.move_on_after(self.attempt_seconds) as attempt:
            line = await self._dial(address.host, address.port, self.tls, address.host)
        if attempt.cancelled_caught:
            raise TimeoutError(f"no connection within {self.attempt_seconds:g} s")
        failure: list[Exception] = []
        try:
            beats = self.begin(address, attempt.deadline)
            if beats is None:
                return
            self._is_writing = False
            async with trio.open_nursery() as nursery:

                async def ending(task: Callable[[Line, Keepalive], Awaitable[None]]) -> None:
                    try:
                        await task(line, beats)
                    except (Refused, RemoteProtocolError, OSError, TlsFailed) as error:
                        failure.append(error)
                    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                        failure.append(tls_failure(error.__cause__))
                    nursery.cancel_scope.cancel()

                for task in (self._read, self._write, self._watch):
                    nursery.start_soon(ending, task)
        finally:
            line.close()
        if failure:
            raise failure[0]

    async def _read(self, line: Line, beats: Keepalive) -> None:
        while True:
            self.received(beats, await line.receive_some(READ_BYTES_MAX))

    async def _write(self, line: Line, beats: Keepalive) -> None:
        while True:
            await self.output.wait()
            self.output = self.event()
            while data := self.core.take_output():
                self._is_writing = True
                await line.send_all(data)
                self._is_writing = False
                beats.sent(self.now())

    async def _watch(self, line: Line, beats: Keepalive) -> None:
        with trio.move_on_at(beats.due):
            await self.logged_in.wait()
        while True:
            await trio.sleep_until(beats.due)
            beats.check(self.now(), is_writing=self._is_writing)
            self.wake()


def connect(
    addresses: str | Iterable[str],
    *,
    dial: Dial = dial,
    rng: random.Random | None = None,
    **options: Unpack[ConnectOptions],
) -> Connecting:
    """A client of the first node of `addresses` (`host:port`) that admits it, and of the others when that one fails.

    Inside `async with`, which waits for the first login up to `connect_timeout_seconds`. `options` are those of
    ConnectOptions; `dial` and `rng` are for tests. At the end of the block earlier sends get up to `farewell_seconds`
    to arrive; after an exception or a cancel the connection is cut at once.

    Raises:
        Refused: every node refuses the login.
        TlsFailed: no node can be reached by TLS.
        NotConnected: no node has admitted the client in time.
        ValueError: `addresses` is empty or not a list of addresses, or a bound is not positive.
        LocalProtocolError: a login, passcode or client id that STOMP cannot carry.
        RuntimeError: this code does not run on trio; the text says which module is for it.
    """
    return Connecting("trio", lambda: _open(plan(addresses, rng=rng, **options), dial))


@asynccontextmanager
async def _open(plan: ConnectPlan, dial: Dial) -> AsyncIterator[Client]:
    runner = TrioRunner(plan.core, plan.rotation, dial, tls=plan.tls, attempt_seconds=plan.attempt_seconds)
    client = Client(plan.core, runner, plan.tracing)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        try:
            await runner.online(plan.connect_timeout_seconds)
            yield client
            await client.leave(plan.farewell_seconds)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            failure = error  # raised below, where no nursery wraps it; a cancel propagates
        finally:
            client.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
