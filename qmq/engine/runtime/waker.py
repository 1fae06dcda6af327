"""What wakes tasks: that of a task that works in rounds, and an event for many instances with few waiting tasks."""

import math

import trio


class Waker:
    """An auto-reset event for one waiting task. Wake-ups between two waits count as one."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def wake(self) -> None:
        """End the present wait or the next one. Idempotent."""
        self._event.set()

    def clear(self) -> None:
        """Forget a wake-up: the state that the caller reads next includes what caused it."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self, seconds: float = math.inf) -> None:
        """Return at a wake-up since the last wait, or after `seconds`; always a checkpoint."""
        if seconds == math.inf:
            await self._event.wait()
            self.clear()
        else:
            await self.wait_until(trio.current_time() + seconds)

    async def wait_until(self, deadline: float) -> None:
        """Like `wait`, but at most until `deadline`, a time of trio."""
        with trio.move_on_at(deadline):
            await self._event.wait()
        self.clear()


class Latch:
    """Set once, for good. Like `trio.Event`, but takes its 330 bytes only if a task waits before it is set."""

    __slots__ = ("_event", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._event: trio.Event | None = None

    def set(self) -> None:
        """Wake all waiting tasks; later waits return at once. Idempotent."""
        self.is_set = True
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Return when it is set; always a checkpoint."""
        if self.is_set:
            await trio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
