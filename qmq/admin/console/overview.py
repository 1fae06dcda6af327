"""What one node reports on the first page of the console: a few KB, the same for all users."""

from typing import Any, Final

import trio
from msgspec import to_builtins

from qmq import __version__
from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.node_facts import FactsReader
from qmq.admin.inspection.connections import Connections, LinksCall
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.mesh.parts import MeshParts
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.draining import DRAINING
from qmq.sessions.delivery.journal_readers import JournalReaders

CONDITIONS_SHOWN: Final = 20
"""Of one node, the most severe; `/control/conditions` has all."""

READERS_SHOWN: Final = 20
"""Named readers of the journal."""

FREE_SECONDS: Final = 10.0
"""Between two looks at the free space of the disk."""


class Overview:
    """Facts of this node, ready for JSON."""

    def __init__(
        self,
        engine: EngineParts,
        tasks: Tasks,
        mesh: Mesh,
        mesh_parts: MeshParts,
        facts: FactsReader,
        conditions: Conditions,
        connections: Connections,
        readers: JournalReaders,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._mesh = mesh
        self._mesh_parts = mesh_parts
        self._facts = facts
        self._conditions = conditions
        self._connections = connections
        self._readers = readers
        self._free_bytes = 0
        self._looked_at = float("-inf")

    async def facts(self) -> dict[str, Any]:
        """Waits for the disk at most every FREE_SECONDS."""
        engine, mesh_parts = self._engine, self._mesh_parts
        now = trio.current_time()
        if now >= self._looked_at + FREE_SECONDS:
            self._looked_at = now
            self._free_bytes = await engine.environment.run_blocking(engine.store.disk.free_bytes)
        found = await self._facts.read()
        conditions = self._conditions.present()
        membership = mesh_parts.members.membership
        names = ("build", "incarnation", "held", "disk_full", "connections", "subscriptions")
        return {
            "node": found.node,
            "version": __version__,
            "uptime_seconds": round(found.uptime_seconds, 1),
            "at_us": engine.environment.now_us(),
            "stopping": self._tasks.is_stopping,
            "draining": any(one.code == DRAINING for one in conditions),
            **found.some(*names, "queues", "waiting", "in_flight", "totals"),
            "disk_free_bytes": self._free_bytes,
            "journal_bytes": found.journal.bytes,
            "memory_bytes": found.memory.bytes,
            "memory_max_bytes": found.memory.max,
            "fsync": to_builtins(found.fsync),
            "traffic": to_builtins(found.traffic),
            "members": sorted(membership.members),
            "learner": membership.is_learner,
            "retired": sorted(membership.retired),
            "links": self._connections.links(LinksCall()).rows,
            "owners": [] if self._mesh.is_alone else to_builtins(mesh_parts.takeover.statistics().owners),
            "readers": [row._asdict() for row in self._readers.rows()[:READERS_SHOWN]],
            "conditions": to_builtins(conditions[:CONDITIONS_SHOWN]),
            "conditions_more": max(0, len(conditions) - CONDITIONS_SHOWN),
        }
