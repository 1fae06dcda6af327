"""Damage that readers of the stores have found: reports each once, and schedules its repair."""

from typing import Protocol

from qmq.engine.runtime.contexts import Engine, Reporting
from qmq.mesh.repair.fanout_logs import FanoutRepair
from qmq.mesh.repair.queue_store import QueueStoreRepair


class DamageContext(Engine, Reporting, Protocol):
    fanout_repair: FanoutRepair
    queue_store_repair: QueueStoreRepair


class DamageReport:
    """One event for each place, however often it is read."""

    def __init__(self, context: DamageContext) -> None:
        self._context = context
        self._reported: set[str] = set()
        self._rows = 0

    def check(self) -> None:
        """Report what was found since the last call."""
        context = self._context
        if context.store.queues.damage.met > self._rows:
            self._rows = context.store.queues.damage.met
            context.queue_store_repair.schedule()
        for what in context.store.damage():
            if what not in self._reported:
                self._reported.add(what)
                context.fanout_repair.schedule()
                context.queue_store_repair.schedule()
                context.add_event("damage", f"{what}; the records are requested from peers and not reported as missing")
