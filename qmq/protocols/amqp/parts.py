"""What the AMQP connections of one node share: their own parts, and those of other rooms that they use."""

from collections.abc import Callable
from dataclasses import dataclass

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.protocols.amqp.gateway.encoder import SharedContents
from qmq.protocols.amqp.lookup import Lookup
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.memory_budget import MemoryBudget
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.pull_consumer import PullOf
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers


@dataclass(frozen=True, slots=True)
class AmqpParts:
    """A connection and its channels are built of them."""

    engine: EngineParts
    lookup: Lookup
    contents: SharedContents
    """What has been encoded for one connection, for all."""
    pull_of: PullOf
    login_path: LoginPath
    loops: FrameLoops
    refusals: Refusals
    beats: Heartbeats
    memory_budget: MemoryBudget
    definitions: LiveDefinitions
    declared: DeclaredQueues
    exclusive: ExclusiveQueues
    lifetimes: QueueLifetimes
    watchers: QueueWatchers
    spawn: Callable[[Callable[[], object]], None]
    body_bytes_max: int
