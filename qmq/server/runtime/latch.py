"""An event for many who exist and few who wait."""

import trio


class Latch:
    """Set once, for good. Like `trio.Event`, whose 330 bytes it takes only when somebody waits before it is set."""

    __slots__ = ("_event", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._event: trio.Event | None = None

    def set(self) -> None:
        """Let everybody go on who waits or will wait. Idempotent."""
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
