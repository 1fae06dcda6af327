"""How many queues are only in the queue store: counted when the node starts, and again when the bound is near.

In between the broker keeps the count itself (`broker.queues.state.stored_names`). It misses only queues that end in
the store.
"""

import logging
from collections.abc import Container
from functools import partial
from typing import Final

import trio

from qmq.broker.broker import Broker
from qmq.broker.queues.state.stored_names import StoredNames
from qmq.environment import Environment
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.store import Store

POLL_SECONDS: Final = 60.0
"""Between two checks whether the bound is near."""

NAMES_AT_ONCE: Final = 10_000

log = logging.getLogger("qmq.queues")


class QueueCount:
    def __init__(self, broker: Broker, store: Store, environment: Environment) -> None:
        self._broker = broker
        self._store = store
        self._environment = environment

    async def run(self) -> None:
        """Count for as long as the node runs. Raises LogBroken."""
        await self._count()
        while True:
            await trio.sleep(POLL_SECONDS)
            if self._broker.send_limits.is_crowded:
                await self._count()

    async def _count(self) -> None:
        queues = self._broker.queues
        found = StoredNames(self._broker.limits.destinations_max)
        count = partial(_add_all, found, self._store.queues, self._broker.origin.node, queues.by_name)
        await self._environment.run_blocking(count)
        queues.stored_names = found
        if found.count:
            log.info("= %d queues are only in the store", found.count)


def _add_all(found: StoredNames, queues: QueueStore, node: str, in_memory: Container[str]) -> None:
    """Add the queues of the store that are not `in_memory`, which changes meanwhile. Runs in a worker thread: a million
    queues take seconds.
    """
    after: str | None = None
    skipped: list[str] = []
    while page := queues.listing(node, after, NAMES_AT_ONCE):
        for name, _, _ in page:
            if name in in_memory:
                skipped.append(name)
            else:
                found.add(name)
        after = page[-1][0]
    for name in skipped:
        if name not in in_memory:
            found.add(name)
