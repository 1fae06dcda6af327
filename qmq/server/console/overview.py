"""What one node reports on the first page of the console: a few KB, the same for all users."""

from dataclasses import asdict
from typing import Any, Final, Protocol

import trio

from qmq import __version__
from qmq.build import BUILD
from qmq.replication.mesh import Mesh
from qmq.server.admin.conditions import Conditions
from qmq.server.admin.totals import facts_of_totals
from qmq.server.clients.memory_budget import MemoryBudget
from qmq.server.clients.session import ClientSession
from qmq.server.clients.traffic import Traffic
from qmq.server.inspection.connections import link_rows
from qmq.server.membership.takeover import Takeover
from qmq.server.runtime.contexts import Engine, MeshPeers, Tasks

CONDITIONS_SHOWN: Final = 20
"""Of one node, the most severe; `/control/conditions` has all."""

FREE_SECONDS: Final = 10.0
"""Between two looks at the free space of the disk."""


class OverviewContext(Engine, MeshPeers, Tasks, Protocol):
    started_seconds: float
    sessions: dict[int, ClientSession]
    traffic: Traffic
    memory_budget: MemoryBudget
    takeover: Takeover
    conditions: Conditions
    web_addresses: list[tuple[str, int]]
    mesh: Mesh | None


class Overview:
    """Facts of this node, ready for JSON."""

    def __init__(self, context: OverviewContext) -> None:
        self._context = context
        self._free_bytes = 0
        self._looked_at = float("-inf")

    async def facts(self) -> dict[str, Any]:
        """Waits for the disk at most every FREE_SECONDS."""
        context = self._context
        now = trio.current_time()
        if now >= self._looked_at + FREE_SECONDS:
            self._looked_at = now
            self._free_bytes = await context.environment.run_blocking(context.store.disk.free_bytes)
        broker, journal, sessions = context.broker, context.store.journal, context.sessions.values()
        conditions = context.conditions.present()
        membership = context.membership
        return {
            "node": context.settings.name,
            "version": __version__,
            "build": BUILD,
            "incarnation": f"{context.origin.incarnation:016x}",
            "uptime_seconds": round(trio.current_time() - context.started_seconds, 1),
            "at_us": context.environment.now_us(),
            "stopping": context.is_stopping,
            "held": broker.queues.held,
            "disk_full": broker.send_limits.disk_full,
            "disk_free_bytes": self._free_bytes,
            "journal_bytes": journal.end - journal.start,
            "memory_bytes": context.memory_budget.bytes,
            "memory_max_bytes": context.memory_budget.bytes_max,
            "fsync": asdict(journal.sync_times.statistics()),
            "connections": len(sessions),
            "subscriptions": sum([session.subscribed for session in broker.sessions.values()]),
            "queues": len(broker.queues.by_name) + broker.queues.stored_names.count,
            "in_flight": len(broker.queues.deliveries),
            "totals": facts_of_totals(broker.totals.node()),
            "traffic": asdict(context.traffic.statistics(sessions)),
            "members": sorted(membership.members),
            "learner": membership.is_learner,
            "retired": sorted(membership.retired),
            "links": link_rows(context)["rows"],
            "owners": [] if context.mesh is None else [asdict(one) for one in context.takeover.statistics().owners],
            "conditions": [asdict(one) for one in conditions[:CONDITIONS_SHOWN]],
            "conditions_more": max(0, len(conditions) - CONDITIONS_SHOWN),
        }
