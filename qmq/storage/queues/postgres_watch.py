"""Bounds the calls to a database: a call that hangs is cut; a call whose connection is lost is repeated.

libpq waits for a server as long as its host answers, and a server that hangs does not obey `statement_timeout`. So a
thread checks the running calls, while there are any, and shuts the sockets of one that takes too long. The call then
fails as if the connection were lost. A call may be repeated after a lost connection, because each is one transaction
with the same result when it is repeated (`interfaces.QueueStore`).
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from qmq.errors import LogBroken, StorageError

LOOKS: Final = 10
"""Checks of the running calls in the time that one call may take."""

PAUSE_SECONDS: Final = 0.2
"""Between two attempts to connect."""

P = ParamSpec("P")
T = TypeVar("T")


class LostConnection(LogBroken):
    """The running transaction is undone, or committed as a whole."""


class Watch:
    """Knows when each running call began. `cut` ends those that take longer than `seconds_max`."""

    def __init__(self, seconds_max: float, cut: Callable[[], None]) -> None:
        self.seconds_max = seconds_max
        self._cut = cut
        self._under_way: dict[object, float] = {}
        self._busy = threading.Event()
        self._closing = threading.Event()
        threading.Thread(target=self._serve, name="qmq-postgres-watch", daemon=True).start()

    @contextmanager
    def call(self) -> Iterator[float]:
        """A call runs inside; yields its deadline."""
        began, key = time.monotonic(), object()
        self._under_way[key] = began
        self._busy.set()
        try:
            yield began + self.seconds_max
        finally:
            del self._under_way[key]

    def close(self) -> None:
        self._closing.set()
        self._busy.set()

    def _serve(self) -> None:
        while self._busy.wait() and not self._closing.is_set():
            # In this order: a call that begins meanwhile sets it again.
            self._busy.clear()
            oldest = min(list(self._under_way.values()), default=None)
            if oldest is not None:
                self._busy.set()
                if time.monotonic() - oldest >= self.seconds_max:
                    self._cut()
            self._closing.wait(self.seconds_max / LOOKS)


def shut(descriptor: int) -> None:
    """A thread that waits for this socket finds it closed by the other side."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)


def made_again(method: Callable[Concatenate[Any, P], T], *, writes: bool) -> Callable[Concatenate[Any, P], T]:
    """`method`, which connects again when its connection is lost, and repeats the call, as long as `_watch` allows.

    Raises LogBroken after that.
    """

    @wraps(method)
    def bounded(self: Any, *args: P.args, **settings: P.kwargs) -> T:
        watch = self._watch
        with watch.call() as until:
            while True:
                try:
                    return method(self, *args, **settings)
                except LostConnection as error:
                    _wait_for(lambda: self._connect_again(writes), until, watch.seconds_max, error)

    return cast(Callable[Concatenate[Any, P], T], bounded)


def _wait_for(connect: Callable[[], None], until: float, seconds_max: float, why: StorageError) -> None:
    while time.monotonic() < until:
        try:
            connect()
            return
        except LogBroken:
            raise
        except StorageError as error:
            why = error
            time.sleep(PAUSE_SECONDS)
    raise LogBroken(f"{why}; no call has succeeded for {seconds_max:g} s (queue_store_seconds_max)") from why
