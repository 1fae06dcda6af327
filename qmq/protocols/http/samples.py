"""Samples for metrics that no part of the node counts anyway: the deepest queues, and the free space of the disk.

Samples are taken only because of a scrape, and a scrape waits for them for a bounded time. After that the page has the
previous samples, with their age. So a disk that hangs does not delay a scrape for long.

A node may have a million queues. One turn of the event loop examines TURN_QUEUES of them, and other tasks run before
the next turn. The queue store sorts its own queues, in a worker thread. The pause before the next pass is proportional
to the time that the last pass took.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, Protocol

import trio

from qmq.broker.queues.dispatch.queue import Queue
from qmq.engine.checkpoint.queue_ages import oldest_ages_us
from qmq.engine.runtime.contexts import Engine, Tasks

QUEUES_SHOWN: Final = 100

CANDIDATES: Final = 2 * QUEUES_SHOWN
"""So many of those in memory, and of those in the store, are counted exactly. A queue that is in both is among the
first by one of them, unless as many others have more."""

TURN_QUEUES: Final = 2_000
"""Looked at in one turn, about a millisecond."""

TURN_SECONDS: Final = 0.004
"""Between two turns, so that a pass takes about a fifth of the event loop at most."""

WAIT_SECONDS: Final = 1.0
"""How long a scrape waits for new samples."""

PAUSE_SECONDS: Final = 5.0
"""Between two passes: scrapers that come together share one."""

PAUSE_FACTOR: Final = 10
"""A pass begins after so many times the duration of the one before it."""


class SamplesContext(Engine, Tasks, Protocol):
    """What sampling needs of the node."""


@dataclass(frozen=True, slots=True)
class QueueSample:
    """One of the deepest queues: messages that this node serves, including those in flight and lent."""

    name: str
    messages: int
    body_bytes: int
    consumers: int
    """Of this node."""
    unacknowledged: int
    """Messages that these consumers have, and have not settled."""
    oldest_waiting_us: int | None
    """Age of the oldest message that no consumer has; None if there is none."""


class Samples:
    """The last samples. `taken_at` is the trio time at which their pass began; None before the first pass is done."""

    def __init__(self, context: SamplesContext) -> None:
        self._context = context
        self.queues: list[QueueSample] = []
        self.free_bytes = 0
        self.taken_at: float | None = None
        self._next_at = 0.0
        self._done: trio.Event | None = None

    async def refresh(self) -> None:
        """Take new samples, unless the last ones are recent; wait for them at most WAIT_SECONDS."""
        if self._done is None:
            if self.taken_at is not None and trio.current_time() < self._next_at:
                return
            self._done = trio.Event()
            self._context.spawn(self._take)
        with trio.move_on_after(WAIT_SECONDS):
            await self._done.wait()

    async def _take(self) -> None:
        began = trio.current_time()
        run_blocking = self._context.environment.run_blocking
        self.free_bytes = await run_blocking(self._context.store.disk.free_bytes)
        self.queues = await self._deepest()
        self.taken_at = began
        now = trio.current_time()
        self._next_at = now + max(PAUSE_SECONDS, PAUSE_FACTOR * (now - began))
        assert self._done is not None
        self._done.set()
        self._done = None

    async def _deepest(self) -> list[QueueSample]:
        context = self._context
        run_blocking = context.environment.run_blocking
        rows = context.served_rows()
        stored = await run_blocking(rows.deepest, CANDIDATES)
        in_memory = await self._deepest_in_memory()
        unknown = [queue.name for queue in in_memory if not queue.is_counted and queue.name not in stored]
        heads = await run_blocking(rows.heads, unknown, 0) if unknown else {}
        stored |= {name: (head.messages, head.body_bytes) for name, head in heads.items()}
        queues = context.broker.queues
        depth = queues.paging.depth
        names = {**dict.fromkeys(queue.name for queue in in_memory), **dict.fromkeys(stored)}
        depths = {name: depth(name, *stored.get(name, (0, 0))) for name in names}
        deepest = nlargest(QUEUES_SHOWN, (name for name in names if depths[name][0]), key=depths.__getitem__)
        ages_us = await oldest_ages_us(context, rows, deepest, only_waiting=True)
        return [
            QueueSample(name, *depths[name], *_consumers(queues.by_name.get(name)), ages_us.get(name))
            for name in deepest
        ]

    async def _deepest_in_memory(self) -> list[Queue]:
        """The first CANDIDATES by what is known of them in memory."""
        listed = self._context.broker.queues.listed
        found: list[Queue] = []
        floor = 0
        end = len(listed)
        while end:
            # From the end: what a queue that is dropped meanwhile leaves free is filled with one that was looked at.
            begin = max(0, end - TURN_QUEUES)
            found += [queue for queue in listed[begin:end] if queue.held + queue.stored > floor]
            if len(found) > CANDIDATES:
                found = _first(found)
                floor = found[-1].depth
            await trio.sleep(TURN_SECONDS)
            end = min(begin, len(listed))
        return found


def _first(queues: Iterable[Queue]) -> list[Queue]:
    # A queue that was dropped between two turns may be found twice.
    return nlargest(CANDIDATES, dict.fromkeys(queues), key=lambda queue: queue.depth)


def _consumers(queue: Queue | None) -> tuple[int, int]:
    """How many this node has, and how many messages they have."""
    subscriptions = () if queue is None else queue.subscriptions
    return len(subscriptions), sum([len(one.in_flight) for one in subscriptions])
