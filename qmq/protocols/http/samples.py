"""Samples for metrics that no part of the node counts anyway: the deepest queues, and the free space of the disk.

Samples are taken only because of a scrape, and a scrape waits for them for a bounded time. After that the page has the
previous samples, with their age. So a disk that hangs does not delay a scrape for long.
"""

from dataclasses import dataclass
from typing import Final

from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.broker.queues.dispatch.queue import Queue
from qmq.engine.checkpoint.queue_ages import oldest_ages_us
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.single_flight import SingleFlight

QUEUES_SHOWN: Final = 100

WAIT_SECONDS: Final = 1.0
"""How long a scrape waits for new samples."""

PAUSE_SECONDS: Final = 5.0
"""Between two samples at least: scrapers that come together share one."""


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
    """The last samples, none before the first are taken."""

    def __init__(self, engine: EngineParts, node: Tasks, catalog: QueueCatalog) -> None:
        self._engine = engine
        self._catalog = catalog
        nothing: tuple[int, list[QueueSample]] = 0, []
        self._taken = SingleFlight(node, self._take, nothing, kept_seconds=PAUSE_SECONDS)

    @property
    def free_bytes(self) -> int:
        return self._taken.value[0]

    @property
    def queues(self) -> list[QueueSample]:
        """The deepest first."""
        return self._taken.value[1]

    @property
    def taken_at(self) -> float | None:
        """The trio time at which sampling began; None before the first samples are taken."""
        return self._taken.began_at

    async def refresh(self) -> None:
        """Take new samples, unless the last ones are recent; wait for them at most WAIT_SECONDS."""
        await self._taken.refresh(WAIT_SECONDS)

    async def _take(self) -> tuple[int, list[QueueSample]]:
        engine, queues = self._engine, self._engine.broker.queues
        free_bytes = await engine.environment.run_blocking(engine.store.disk.free_bytes)
        sizes = await self._catalog.deepest(QUEUES_SHOWN)
        deepest = [name for name, (messages, _) in sizes.items() if messages]
        ages_us = await oldest_ages_us(
            engine.broker, engine.environment, engine.served_rows(), deepest, only_waiting=True
        )
        return free_bytes, [
            QueueSample(name, *sizes[name], *_consumers(queues.by_name.get(name)), ages_us.get(name))
            for name in deepest
        ]


def _consumers(queue: Queue | None) -> tuple[int, int]:
    """How many this node has, and how many messages they have."""
    subscriptions = () if queue is None else queue.subscriptions
    return len(subscriptions), sum([len(one.in_flight) for one in subscriptions])
