"""A thread for the commits only: one blocking call after another.

`trio.to_thread` asks a limiter, looks for an idle thread, copies the context, and returns through trio's queue of
foreign calls. For rare calls that does not matter; a single publisher waits for all of it with each receipt. This
thread is always the same one, and writes to a pipe on which the caller waits.
"""

import os
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

T = TypeVar("T")


class Worker:
    """Makes calls in a thread, one at a time; `with` ends the thread. Calls go through `run` of one task."""

    def __init__(self, name: str) -> None:
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

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`. The call is never abandoned: a task that is cancelled meanwhile sees the cancellation
        at its next checkpoint.

        Raises trio.BusyResourceError when another task waits for its own call; then neither may trust its answer.
        """
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

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._result = (call(), None)
            except BaseException as error:
                self._result = (None, error)
            del call
            os.write(self._rings, b"!")
