"""What a node knows of itself at one moment: one frozen value, of which status, overview and metrics are projections.

Each running object gives its own part by `statistics()`. What needs a look at each connection is summed in turns.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from qmq.admin.facts.totals import facts_of_totals
from qmq.admin.facts.waiting import WaitingMessages
from qmq.build import BUILD
from qmq.engine.commit.commits import CommitStatistics
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.sessions.clients.memory_budget import MemoryBudget, MemoryStatistics
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.clients.traffic import Traffic, TrafficStatistics
from qmq.storage.log.fsync_times import SyncStatistics

SESSIONS_AT_ONCE: Final = 500
"""Connections whose numbers are summed in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What does not change while the node runs."""

    node: str
    software: str
    incarnation: str
    started_seconds: float
    """trio time."""


@dataclass(frozen=True, slots=True)
class JournalExtent:
    """Positions: where the journal begins and ends, and up to where it is synced."""

    start: int
    end: int
    synced_end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class NodeFacts:
    node: str
    software: str
    build: str
    incarnation: str
    uptime_seconds: float
    connections: int
    protocols: Mapping[str, int]
    """Connections by protocol; `stomp` is always there."""
    sessions: int
    """Clients that are logged in."""
    subscriptions: int
    queues: int
    in_flight: int
    """Queue messages that consumers of this node have not settled."""
    waiting: int
    """Queue messages that this node serves, and that no consumer has."""
    held: bool
    disk_full: bool
    dropped: int
    """Messages that full buffers of topic and fanout subscriptions have dropped."""
    unroutable: int
    totals: Mapping[str, int]
    traffic: TrafficStatistics
    memory: MemoryStatistics
    commits: CommitStatistics
    commit_waiting_bytes: int
    fsync: SyncStatistics
    journal: JournalExtent
    unsaved: int
    """Bytes of the journal since the last checkpoint."""
    checkpoints: int

    @property
    def delivered(self) -> int:
        return self.totals["delivered"]

    def some(self, *names: str) -> dict[str, object]:
        """The facts of these names."""
        return {name: getattr(self, name) for name in names}


class FactsReader:
    """Reads the facts of one node."""

    def __init__(
        self,
        identity: NodeIdentity,
        tasks: Tasks,
        engine: EngineParts,
        sessions: Mapping[int, ClientSession],
        traffic: Traffic,
        memory_budget: MemoryBudget,
        buffers: SubscriberBuffers,
    ) -> None:
        self.identity = identity
        self.waiting = WaitingMessages(engine, tasks)
        self._engine = engine
        self._sessions = sessions
        self._traffic = traffic
        self._memory_budget = memory_budget
        self._buffers = buffers

    async def read(self) -> NodeFacts:
        """The facts now. Sums over connections take turns, so some are counted before others."""
        identity, engine, broker, queues = self.identity, self._engine, self._engine.broker, self._engine.broker.queues
        journal, commits = engine.store.journal, engine.commits
        traffic, protocols, subscriptions = await self._sums()
        return NodeFacts(
            node=identity.node,
            software=identity.software,
            build=BUILD,
            incarnation=identity.incarnation,
            uptime_seconds=trio.current_time() - identity.started_seconds,
            connections=len(self._sessions),
            protocols=protocols,
            sessions=len(broker.sessions),
            subscriptions=subscriptions,
            queues=len(queues.by_name) + queues.stored_names.count,
            in_flight=len(queues.deliveries),
            waiting=await self.waiting.count(),
            held=queues.held,
            disk_full=broker.send_limits.disk_full,
            dropped=self._buffers.dropped,
            unroutable=broker.totals.unroutable,
            totals=facts_of_totals(broker.totals.node()),
            traffic=traffic,
            memory=self._memory_budget.statistics(),
            commits=commits.statistics(),
            commit_waiting_bytes=commits.pending_bytes,
            fsync=journal.sync_times.statistics(),
            journal=JournalExtent(journal.start, journal.end, journal.synced_end),
            unsaved=max(0, journal.end - engine.store.checkpoint_position),
            checkpoints=engine.checkpoints.count,
        )

    async def _sums(self) -> tuple[TrafficStatistics, Mapping[str, int], int]:
        """Bytes of all connections, those that have ended included; connections by protocol; subscriptions."""
        traffic, protocols, subscriptions = self._traffic.statistics(()), Counter({"stomp": 0}), 0
        connections, sessions = list(self._sessions.values()), list(self._engine.broker.sessions.values())
        for begin in range(0, max(len(connections), len(sessions)), SESSIONS_AT_ONCE):
            if begin:
                await trio.lowlevel.checkpoint()
            part = connections[begin : begin + SESSIONS_AT_ONCE]
            protocols.update([one.protocol for one in part])
            traffic = TrafficStatistics(
                traffic.bytes_in + sum([one.bytes_in for one in part]),
                traffic.bytes_out + sum([one.bytes_out for one in part]),
            )
            subscriptions += sum([one.subscribed for one in sessions[begin : begin + SESSIONS_AT_ONCE]])
        return traffic, protocols, subscriptions
