"""What must be looked at again at a given time: one heap for all queues and subscriptions of a node.

Kept small on purpose: each thing remembers the one time at which it wants to be looked at (`check_us`), and is put in
again only when that moves forward. An entry whose time is not the thing's `check_us` any more is stale and skipped.
So a subscription with ten thousand ACKs awaited under a timeout has one entry here, not ten thousand.
"""

import heapq
from typing import Protocol

STALE_MAX = 1000
"""Stale entries that may stay in any case."""


class Watched(Protocol):
    """`check_us`: when it wants to be looked at; 0 for never."""

    check_us: int


class Deadlines:
    """Times are µs of wall clock. Pure: the caller asks what is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Watched]] = []
        self._number = 0
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, thing: Watched, at_us: int) -> None:
        """Look at `thing` at `at_us` at the latest."""
        if not thing.check_us or at_us < thing.check_us:
            if thing.check_us:
                self._one_more_stale()
            thing.check_us = at_us
            self._number += 1
            heapq.heappush(self._heap, (at_us, self._number, thing))

    def forget(self, thing: Watched) -> None:
        """Do not look at `thing` any more, and do not keep it."""
        if thing.check_us:
            thing.check_us = 0
            self._one_more_stale()

    def _one_more_stale(self) -> None:
        """Entries may name times that are years away: when most are stale, they go."""
        self._stale += 1
        if self._stale > STALE_MAX + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].check_us == entry[0]]
            heapq.heapify(self._heap)
            self._stale = 0

    @property
    def next_us(self) -> int:
        """When something is due next; 0 when nothing waits."""
        heap = self._heap
        while heap and heap[0][2].check_us != heap[0][0]:
            heapq.heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else 0

    def due(self, now_us: int, most: int) -> list[Watched]:
        """What is to be looked at by now, `most` of it; each must be watched again if it wants more."""
        found: list[Watched] = []
        heap = self._heap
        while heap and heap[0][0] <= now_us and len(found) < most:
            at_us, _, thing = heapq.heappop(heap)
            if thing.check_us == at_us:
                thing.check_us = 0
                found.append(thing)
            else:
                self._stale -= 1
        return found
