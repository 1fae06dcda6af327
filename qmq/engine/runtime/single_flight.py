"""A value that takes long to find: one task finds it for all clients that ask, and it is kept for a while.

The task is the node's. So a client that leaves stops nothing, and one that waits no longer gets the value before.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from qmq.engine.runtime.contexts import Tasks
from qmq.errors import CorruptLog, LogBroken

PAUSE_FACTOR: Final = 10
"""A value is kept for so many times as long as it took to find it."""

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """`find` is called when `get` or `refresh` asks and the last value is old.

    It is not old before it was kept for `kept_seconds`, and for PAUSE_FACTOR times the duration of its search. Values
    that were found in less than `short_seconds` are not kept.
    """

    def __init__(
        self,
        tasks: Tasks,
        find: Callable[[], Awaitable[T]],
        first: T,
        *,
        kept_seconds: float = 0.0,
        short_seconds: float = 0.0,
    ) -> None:
        self._tasks = tasks
        self._find = find
        self._kept_seconds = kept_seconds
        self._short_seconds = short_seconds
        self._until = float("-inf")
        self._done: trio.Event | None = None
        self._error: Exception | None = None
        self.value = first
        """The last one that was found, or the first."""
        self.began_at: float | None = None
        """The time of trio at which its search began; None before the first is done."""

    @property
    def is_old(self) -> bool:
        return self._done is None and trio.current_time() >= self._until

    async def refresh(self, wait_seconds: float) -> T:
        """The value, new unless it is recent; after `wait_seconds` the one before."""
        with trio.move_on_after(wait_seconds):
            return await self.get()
        return self.value

    async def get(self) -> T:
        """The value, new unless it is recent. Raises CorruptLog, LogBroken and OSError as the search did."""
        if self.is_old:
            self._done = trio.Event()
            self._tasks.spawn(self._search)
        if self._done is not None:
            await self._done.wait()
        if self._error is not None:
            raise self._error
        return self.value

    async def _search(self) -> None:
        began = trio.current_time()
        try:
            self.value, self._error = await self._find(), None
        except (CorruptLog, LogBroken, OSError) as error:
            self._error = error
        else:
            self.began_at = began
        now = trio.current_time()
        took = now - began
        self._until = now + max(self._kept_seconds, PAUSE_FACTOR * took if took >= self._short_seconds else 0.0)
        assert self._done is not None
        self._done.set()
        self._done = None
