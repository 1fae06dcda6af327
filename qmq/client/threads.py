"""The client in threads: what runs its coroutines, and its connections. `qmq.client.blocking` is its public side.

A call runs its coroutine in the thread of the caller, where waiting blocks. One thread of the client dials, moves the
bytes and keeps heart-beats. One lock guards everything below `Core`: each thread holds it except while it waits, for an
event, a socket or a name.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from ssl import SSLContext, SSLError, SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Any, TypeVar

from qmq.address import Address
from qmq.client.connection import dial
from qmq.client.core.core import Core
from qmq.client.core.failures import tls_failure
from qmq.client.core.keepalive import READ_BYTES_MAX, Keepalive
from qmq.client.core.requests import Phase
from qmq.client.core.rotation import Rotation
from qmq.client.runner import Runner

JOIN_SECONDS = 1.0
"""For the thread of the client at its end. While it dials it may need longer, and ends by itself."""

T = TypeVar("T")


class _Limit(threading.local):
    """Until when a thread waits at most."""

    deadline = math.inf


class BlockingEvent:
    """An event under the lock of a runner, which waiting releases."""

    def __init__(self, lock: threading.Lock, limit: _Limit) -> None:
        self._condition = threading.Condition(lock)
        self._limit = limit
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._condition.notify_all()

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        """Block. Raises TimeoutError at the limit of the thread."""
        seconds = self._limit.deadline - time.monotonic()
        if not self._condition.wait_for(self.is_set, None if seconds == math.inf else max(seconds, 0.0)):
            raise TimeoutError


class ThreadRunner(Runner):
    """See `Runner`. `run` is for a thread of its own; `call` for all others."""

    def __init__(self, core: Core, rotation: Rotation, *, tls: SSLContext | None, attempt_seconds: float) -> None:
        self._lock = threading.Lock()
        self._limit = _Limit()
        super().__init__(core, rotation, tls=tls, attempt_seconds=attempt_seconds)
        self._closed = self.event()
        self._process = os.getpid()
        self._bell, self._ear = socket.socketpair()
        """A byte through these interrupts the thread's wait for its connection."""
        self._is_rung = False
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._thread = threading.Thread(target=self._keep_connected, name="qmq.client", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)

    def call(self, steps: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of this client, which blocks where it waits."""
        with closing(steps), self.locked():
            try:
                steps.send(None)
            except StopIteration as done:
                result: T = done.value
                return result
        raise AssertionError("a coroutine of the client waits by blocking")

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that has the thread. There, the lock may be held for ever."""
        return os.getpid() != self._process

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises RuntimeError in a child of the process that has connected."""
        if self.is_forked:
            raise RuntimeError("this client was connected before the process forked: connect in the child")
        with self._lock:
            yield

    def event(self) -> BlockingEvent:
        return BlockingEvent(self._lock, self._limit)

    def now(self) -> float:
        return time.monotonic()

    async def checkpoint(self) -> None:
        return

    async def sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await self.within(seconds, self._closed.wait())

    async def within(self, seconds: float, call: Awaitable[T]) -> T:
        before = self._limit.deadline
        self._limit.deadline = min(before, time.monotonic() + seconds)
        try:
            return await call
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s") from None
        finally:
            self._limit.deadline = before

    def wake(self) -> None:
        super().wake()
        is_closed = self.core.phase is Phase.CLOSED
        if is_closed:
            self._closed.set()
        if (is_closed or self.core.has_output) and not self._is_rung:
            self._is_rung = True
            with suppress(OSError):  # the thread has ended
                self._bell.send(b"\0")

    def _keep_connected(self) -> None:
        with self._bell, self._ear:
            self.call(self.run())

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    async def serve(self, address: Address) -> None:
        if self.core.phase is Phase.CLOSED:
            return
        deadline = self.now() + self.attempt_seconds
        try:
            with self._unlocked():
                line = dial(address, self.attempt_seconds, self.tls)
        except SSLError as error:
            raise tls_failure(error) from error
        with line, DefaultSelector() as selector:
            beats = self.begin(address, deadline)
            if beats is None:
                return
            line.setblocking(False)
            selector.register(self._ear, EVENT_READ)
            selector.register(line, EVENT_READ)
            try:
                self._move(line, beats, selector)
            except SSLError as error:
                raise tls_failure(error) from error

    def _move(self, line: socket.socket, beats: Keepalive, selector: DefaultSelector) -> None:
        """Until the client is closed, or the connection ends with an error."""
        unsent = bytearray()
        while self.core.phase is not Phase.CLOSED:
            unsent += self.core.take_output()
            selector.modify(line, EVENT_READ | EVENT_WRITE if unsent else EVENT_READ)
            is_buffered = isinstance(line, SSLSocket) and line.pending() > 0
            seconds = 0.0 if is_buffered else max(beats.due - self.now(), 0.0)
            with self._unlocked():
                found = selector.select(None if seconds == math.inf else seconds)
            ready = {key.fileobj: events for key, events in found}
            if self._ear in ready:
                self._ear.recv(4096)
                self._is_rung = False
            if ready.get(line, 0) & EVENT_WRITE:
                with suppress(BlockingIOError, SSLWantReadError, SSLWantWriteError):
                    del unsent[: line.send(unsent)]
                    beats.sent(self.now())
            if is_buffered or ready.get(line, 0) & EVENT_READ:
                with suppress(BlockingIOError, SSLWantReadError, SSLWantWriteError):
                    self.received(beats, line.recv(READ_BYTES_MAX))
            beats.check(self.now(), is_writing=bool(unsent))
            self.wake()
