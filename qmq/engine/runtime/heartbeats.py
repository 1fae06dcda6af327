"""Deadlines of connections: login time, heartbeats to send, silence to notice. One task for all of them.

A connection is checked only when its next deadline may have come. Traffic in between only updates a time stamp, so a
busy connection costs nothing here and an idle node without heartbeats sleeps for ever.
"""

import heapq
from collections.abc import Callable
from itertools import count

import trio

from qmq.engine.runtime.waker import Waker

SLACK = 64
"""Forgotten entries that may stay in the heap, beside as many live ones."""

SECOND_POLL_SECONDS = 0.25
"""A client that seems silent gets this much longer: a process that was stopped must read before it judges."""

Check = Callable[[float], float | None]
"""Given the time now (trio seconds): do what is due; return the time of the next call, or None for never."""


class Heartbeats:
    """Calls each registered check at the time that it returned last."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._checks: dict[int, Check] = {}
        self._numbers = count()
        self._sooner = Waker()

    def __len__(self) -> int:
        return len(self._checks)

    def watch(self, due: float, check: Check) -> int:
        """Call `check` at trio time `due`, and then at each time that it returns. Returns a number for `forget`."""
        if not self._heap or due < self._heap[0][0]:
            self._sooner.wake()
        number = next(self._numbers)
        self._checks[number] = check
        heapq.heappush(self._heap, (due, number))
        return number

    def forget(self, number: int) -> None:
        """Call it no more; a client may have named an interval of many days, and its connection must not be held so
        long.
        """
        self._checks.pop(number, None)
        if len(self._heap) > 2 * len(self._checks) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._checks]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._sooner.wait_until(self._heap[0][0] if self._heap else float("inf"))
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                _, number = heapq.heappop(self._heap)
                check = self._checks.get(number)
                again = None if check is None else check(now)
                if again is None:
                    self._checks.pop(number, None)
                else:
                    heapq.heappush(self._heap, (max(again, now + 0.001), number))
