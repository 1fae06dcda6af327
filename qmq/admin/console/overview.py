"""What one node reports on the first page of the console: a few KB, the same for all users."""

from dataclasses import fields
from functools import cache
from typing import Any, Final, Protocol

import trio

from qmq import __version__
from qmq.admin.conditions import Conditions
from qmq.admin.facts.totals import facts_of_totals
from qmq.admin.inspection.connections import LinksCall, link_rows
from qmq.build import BUILD
from qmq.engine.runtime.contexts import Engine, MeshPeers, Tasks
from qmq.mesh.membership.takeover import Takeover
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.memory_budget import MemoryBudget
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.traffic import Traffic

CONDITIONS_SHOWN: Final = 20
"""Of one node, the most severe; `/control/conditions` has all."""

SESSIONS_AT_ONCE: Final = 500
"""Connections whose numbers are summed in one turn of the event loop."""

FREE_SECONDS: Final = 10.0
"""Between two looks at the free space of the disk."""


class OverviewContext(Engine, MeshPeers, Tasks, Protocol):
    started_seconds: float
    sessions: dict[int, ClientSession]
    traffic: Traffic
    memory_budget: MemoryBudget
    takeover: Takeover
    conditions: Conditions
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
        broker, journal = context.broker, context.store.journal
        traffic, subscriptions = await self._sums()
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
            "fsync": _facts(journal.sync_times.statistics()),
            "connections": len(context.sessions),
            "subscriptions": subscriptions,
            "queues": len(broker.queues.by_name) + broker.queues.stored_names.count,
            "in_flight": len(broker.queues.deliveries),
            "totals": facts_of_totals(broker.totals.node()),
            "traffic": traffic,
            "members": sorted(membership.members),
            "learner": membership.is_learner,
            "retired": sorted(membership.retired),
            "links": link_rows(context, LinksCall()).rows,
            "owners": [] if context.mesh is None else [_facts(one) for one in context.takeover.statistics().owners],
            "conditions": [_facts(one) for one in conditions[:CONDITIONS_SHOWN]],
            "conditions_more": max(0, len(conditions) - CONDITIONS_SHOWN),
        }

    async def _sums(self) -> tuple[dict[str, int], int]:
        """Bytes of all connections, those that have ended included; and how many subscriptions there are."""
        context = self._context
        traffic, subscriptions = _facts(context.traffic.statistics(())), 0
        connections, sessions = list(context.sessions.values()), list(context.broker.sessions.values())
        for begin in range(0, max(len(connections), len(sessions)), SESSIONS_AT_ONCE):
            if begin:
                await trio.lowlevel.checkpoint()
            part = slice(begin, begin + SESSIONS_AT_ONCE)
            traffic["bytes_in"] += sum([one.bytes_in for one in connections[part]])
            traffic["bytes_out"] += sum([one.bytes_out for one in connections[part]])
            subscriptions += sum([one.subscribed for one in sessions[part]])
        return traffic, subscriptions


def _facts(statistics: Any) -> dict[str, Any]:
    """The fields of a snapshot whose values are plain. `asdict` copies each value, which takes most of an overview."""
    return {name: getattr(statistics, name) for name in _names(statistics.__class__)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple([field.name for field in fields(kind)])
