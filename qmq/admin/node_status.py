"""The status of a node as one frozen value, in the order of its fields in JSON (docs/administration.md).

Each running object gives its own part by `statistics()`; here are the rows that join several of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qmq.admin.conditions import Condition
from qmq.broker.takeover.owner_states import TakeoverStatistics
from qmq.broker.topics.retained import RetainedStatistics
from qmq.engine.commit.commits import CommitStatistics
from qmq.mesh.repair.queue_store import RowStatistics
from qmq.sessions.clients.memory_budget import MemoryStatistics
from qmq.sessions.clients.subscriber_buffers import SlowSubscription
from qmq.sessions.clients.traffic import TrafficStatistics
from qmq.storage.log.fsync_times import SyncStatistics


@dataclass(frozen=True, slots=True)
class JournalExtent:
    """Positions: where the journal begins and ends, and up to where it is synced."""

    start: int
    end: int
    synced_end: int


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """`messages` are those that are not settled, `ready` those in memory that wait."""

    destination: str
    messages: int
    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class FanoutRow:
    destination: str
    messages: int
    bytes: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class DurableRow:
    """A durable subscription; `in_use` and `in_flight` are of this node."""

    destination: str
    name: str
    in_use: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader of the journal, and how many bytes it is behind."""

    name: str
    behind: int


@dataclass(frozen=True, slots=True)
class RetiredNode:
    node: str
    adopter: str


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The peers file that this node uses, whether the node counts, and which nodes were retired."""

    peers_version: int
    members: list[str]
    learner: bool
    lists: int
    destinations_differ: Mapping[str, Sequence[str]]
    retired: list[RetiredNode]


@dataclass(frozen=True, slots=True)
class DedupStatistics:
    """Known dedup ids, and how many dedup queries this node has made."""

    ids: int
    asked: int


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer: our link to it (`out`), its link to us (`in_`), and how many of our durable records it is missing."""

    name: str
    out: str
    in_: str
    caught_up: bool
    lag: int
    learner: bool
    peers_version: int
    topics_dropped: int
    topics_via: str | None
    topics_wanted: int
    last_error: str

    def facts(self) -> dict[str, Any]:
        """Ready for JSON, where `in_` is `in`."""
        return {name.removesuffix("_"): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Counters of topic messages that took, or might have taken, more than one route."""

    relayed: int
    unrelayed: int
    late: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: str
    software: str
    build: str
    incarnation: str
    uptime_seconds: float
    connections: int
    subscriptions: int
    delivered: int
    dropped: int
    totals: Mapping[str, int]
    traffic: TrafficStatistics
    commits: CommitStatistics
    fsync: SyncStatistics
    journal: JournalExtent
    held: bool
    disk_full: bool
    memory: MemoryStatistics
    queues: list[QueueSummary]
    fanouts: list[FanoutRow]
    durables: list[DurableRow]
    readers: list[ReaderRow]
    slow: list[SlowSubscription]
    membership: MembershipStatus
    takeover: TakeoverStatistics
    retained: RetainedStatistics
    rows: RowStatistics
    dedup: DedupStatistics
    peers: list[PeerRow]
    topics: TopicStatistics | None
    vector: Mapping[str, int]
    collected: list[str]
    conditions: list[Condition]
    past: list[Condition]

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            **asdict(self),
            "peers": [peer.facts() for peer in self.peers],
            "topics": asdict(self.topics) if self.topics else {},
        }
