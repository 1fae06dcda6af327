"""Deadlines of connections: login time, heart-beats to send, silence to notice. One task for all of them.

A connection is looked at only when its next deadline may have come; traffic in between only moves a time stamp, so a
busy connection costs nothing here and an idle node without heart-beats sleeps for ever.
"""

import heapq
from collections.abc import Callable
from itertools import count

import trio

Check = Callable[[float], float | None]
"""Given the time now (trio seconds): do what is due; return when to look again, or None for never."""


class Beats:
    """Calls each registered check when it wants to be asked."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Check]] = []
        self._numbers = count()
        self._sooner = trio.Event()

    def watch(self, due: float, check: Check) -> None:
        """Ask `check` at trio time `due`, and then whenever it says."""
        if not self._heap or due < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (due, next(self._numbers), check))

    async def run(self) -> None:
        """Serve for ever."""
        while True:
            due = self._heap[0][0] if self._heap else float("inf")
            with trio.move_on_at(due):
                await self._sooner.wait()
            self._sooner = trio.Event()
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                _, _, check = heapq.heappop(self._heap)
                again = check(now)
                if again is not None:
                    heapq.heappush(self._heap, (max(again, now + 0.001), next(self._numbers), check))
