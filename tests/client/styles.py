"""Whole nodes in a thread, and the client of each style as the same blocking calls, so that one test runs over all.

`Nodes` are nodes on the simulated network behind real listeners. A `Style` gives `connect`: that of
`qmq.client.blocking` itself, or one whose calls run on an event loop in another thread.
"""

import asyncio
import queue
import socketserver
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import trio

import qmq.client
import qmq.client.aio
import qmq.client.blocking
from tests.client.rig import DOORWAY_HOST, Mesh, doorway, running

Portal = Callable[..., Any]
"""Runs a function in an event loop, awaits what it returns if need be, and returns the result."""

PROXIED = (qmq.client.Client, qmq.client.Subscription, qmq.client.Message, qmq.client.Transaction)


class TrioThread:
    """A thread with trio in it."""

    def __init__(self) -> None:
        self._started: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        async with trio.open_nursery() as self.nursery:
            self._started.put(None)
            await self._over.wait()
            self.nursery.cancel_scope.cancel()

    def __enter__(self) -> "TrioThread":
        self._thread.start()
        self._started.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._over.set)
        self._thread.join()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            result = function(*args)
            return await result if isinstance(result, Awaitable) else result

        return trio.from_thread.run(run, trio_token=self._token)

    @contextmanager
    def hold(self, context: Any, *, gets_errors: bool = True) -> Iterator[Any]:
        """Inside an asynchronous context, which is entered and left by one task. It gets an exception of the block."""
        reports: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        errors: list[BaseException] = []
        left = trio.Event()

        async def task() -> None:
            try:
                async with context as held:
                    reports.put((held, None))
                    await left.wait()
                    if errors:
                        raise errors[0]
            except BaseException as error:
                reports.put((None, error))
            else:
                reports.put((None, None))

        self.call(self.nursery.start_soon, task)
        held, failure = reports.get()
        if failure is not None:
            raise failure
        try:
            yield held
        except BaseException as error:
            if not gets_errors:
                raise
            errors.append(error)
        finally:
            self.call(left.set)
            _, failure = reports.get()
        if failure is not None:
            raise failure


class Nodes:
    """The nodes of a mesh; `addresses` are those of their listeners, by name."""

    def __init__(self, thread: TrioThread, mesh: Mesh, addresses: dict[str, str]) -> None:
        self._thread = thread
        self._mesh = mesh
        self._by_name = addresses
        self.addresses = list(addresses.values())

    def of(self, client: Any) -> str:
        """The node that `client` is logged in to; "" without one."""
        at = client.statistics().node
        return next((name for name, address in self._by_name.items() if address == at), "")

    def kill(self, name: str) -> None:
        self._thread.call(self._mesh.kill, name)

    def start(self, name: str) -> None:
        self._thread.call(self._mesh.start, name)

    def break_lines(self) -> None:
        """Reset all connections of clients."""
        for host in self._mesh.hosts.values():
            self._thread.call(self._mesh.fabric.break_between, DOORWAY_HOST, host)

    def silence(self, name: str) -> None:
        """Nothing that the node says reaches its clients."""
        self._thread.call(self._mesh.fabric.cut, self._mesh.hosts[name], DOORWAY_HOST)


@contextmanager
def nodes(names: str = "a", tls: ssl.SSLContext | None = None, **settings: Any) -> Iterator[Nodes]:
    async def enter() -> tuple[Mesh, dict[str, str]]:
        mesh = await stack.enter_async_context(running(names, **settings))
        return mesh, {name: await stack.enter_async_context(doorway(mesh, tls, name)) for name in names}

    class Entering:
        async def __aenter__(self) -> tuple[Mesh, dict[str, str]]:
            await stack.__aenter__()
            return await enter()

        async def __aexit__(self, *error: Any) -> bool | None:
            return await stack.__aexit__(*error)

    stack = AsyncExitStack()
    with TrioThread() as thread, thread.hold(Entering(), gets_errors=False) as (mesh, addresses):
        yield Nodes(thread, mesh, addresses)


class _Http(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


@contextmanager
def http_port() -> Iterator[str]:
    """The address of a server that answers HTTP, whatever it is asked."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Http) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.05)
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class Proxy:
    """An object of a client on an event loop, whose calls block."""

    def __init__(self, portal: Portal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def _proxied(self, value: Any) -> Any:
        return Proxy(self._portal, value) if isinstance(value, PROXIED) else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            plain = [one._target if isinstance(one, Proxy) else one for one in args]
            return self._proxied(self._portal(lambda: value(*plain, **options)))

        return call

    def __enter__(self) -> Any:
        return self._proxied(self._portal(self._target.__aenter__))

    def __exit__(self, *error: Any) -> Any:
        return self._portal(self._target.__aexit__, *error)

    def __iter__(self) -> "Proxy":
        return self

    def __next__(self) -> Any:
        try:
            return self._proxied(self._portal(self._target.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None


class Style:
    """`connect` as blocking calls."""

    def __init__(self, connect: Callable[..., Any]) -> None:
        self.connect = connect


@contextmanager
def trio_style() -> Iterator[Style]:
    with TrioThread() as thread:

        @contextmanager
        def connect(*args: Any, **options: Any) -> Iterator[Proxy]:
            with thread.hold(qmq.client.connect(*args, **options)) as client:
                yield Proxy(thread.call, client)

        yield Style(connect)


@contextmanager
def asyncio_style() -> Iterator[Style]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)

    def portal(function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            result = function(*args)
            return await result if isinstance(result, Awaitable) else result

        return asyncio.run_coroutine_threadsafe(run(), loop).result()

    @contextmanager
    def connect(*args: Any, **options: Any) -> Iterator[Proxy]:
        with Proxy(portal, qmq.client.aio.connect(*args, **options)) as client:
            yield client

    thread.start()
    try:
        yield Style(connect)
        assert portal(asyncio.all_tasks) and len(portal(asyncio.all_tasks)) == 1, "a task is left behind"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def blocking_style() -> Iterator[Style]:
    yield Style(qmq.client.blocking.connect)
    assert not [thread for thread in threading.enumerate() if thread.name == "qmq.client"]


STYLES = {"trio": trio_style, "asyncio": asyncio_style, "blocking": blocking_style}
