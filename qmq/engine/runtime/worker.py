"""A thread for the commits only: one blocking call after another; short lone calls need no thread.

`trio.to_thread` asks a limiter, looks for an idle thread, copies the context, and returns through trio's queue of
foreign calls. For rare calls that does not matter; a single publisher waits for all of it with each receipt. This
thread is always the same one, and writes to a pipe on which the caller waits.

Even so the hand-over costs a lone publisher more processor time than all the rest of its message. So a call that is
lone is made where it is asked for, in the thread of the event loop, while nine calls in ten are quick: they take at
most `QUICK_SECONDS`. After one that took over `SLOW_SECONDS`, many must be quick first. So a disk that begins to hang
stops the loop once, as a signal stops a process, and not again before it has answered quickly for long (decision 35).
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import trio

T = TypeVar("T")

QUICK_SECONDS: Final = 0.001
SLOW_SECONDS: Final = 0.005

DOUBT_MAX: Final = 20
"""Calls are made in the caller's thread up to this doubt. Each quick call removes 1, each other one adds `DOUBT`."""
DOUBT: Final = 10
DOUBT_AT_START: Final = DOUBT_MAX + 10
DOUBT_AFTER_SLOW: Final = DOUBT_MAX + 200


class Worker:
    """Makes calls in a thread, one at a time; `with` ends the thread. Calls go through `run` of one task."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._doubt = DOUBT_AT_START
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._result: tuple[Any, BaseException | None] = (None, None)
        self._hears, self._rings = os.pipe()
        os.set_blocking(self._hears, False)
        # If the process ends abnormally, it does not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Blocks until the call under way is done."""
        self._calls.put(None)
        self._thread.join()
        os.close(self._hears)
        os.close(self._rings)

    async def run(self, call: Callable[[], T], *, is_lone: bool = False) -> T:
        """The result of `call`. The call is never abandoned: a task that is cancelled meanwhile sees the cancellation
        at its next checkpoint.

        A call that `is_lone` is made in the caller's thread, without a checkpoint, while the disk is quick.

        Raises trio.BusyResourceError when another task waits for its own call; then neither may trust its answer.
        """
        if is_lone and self._doubt <= DOUBT_MAX:
            return self._timed(call)
        self._calls.put(call)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._hears)
        os.read(self._hears, 1)
        (result, error), self._result = self._result, (None, None)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return result  # type: ignore[no-any-return]  # of the `call` that this task put in

    def _timed(self, call: Callable[[], T]) -> T:
        began = self._clock()
        result = call()
        seconds = self._clock() - began
        if seconds > SLOW_SECONDS:
            self._doubt = DOUBT_AFTER_SLOW
        elif seconds > QUICK_SECONDS:
            self._doubt = min(self._doubt + DOUBT, DOUBT_AFTER_SLOW)
        elif self._doubt:
            self._doubt -= 1
        return result

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._result = (self._timed(call), None)
            except BaseException as error:
                self._result = (None, error)
            del call
            os.write(self._rings, b"!")
