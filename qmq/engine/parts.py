"""The parts of the engine, for rooms above it: one value in place of ten parameters."""

from dataclasses import dataclass

from qmq.broker.broker import Broker
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.checkpoint.queue_count import QueueCount
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.commit.committed_tail import CommittedTail
from qmq.engine.commit.recent_settles import RecentSettles
from qmq.engine.commit_path import CommitPath
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.runtime.damage_report import DamageReport
from qmq.engine.runtime.served_rows import served_rows
from qmq.environment import Environment
from qmq.record_codec import Replay
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Makes decisions durable; see `qmq.engine`."""

    broker: Broker
    store: Store
    environment: Environment
    replay: Replay
    damage: DamageReport
    commits: Commits
    tail: CommittedTail
    pager: QueuePager
    deadlines: DeadlineTimer
    queue_count: QueueCount
    checkpoints: Checkpoints
    recent_settles: RecentSettles
    path: CommitPath

    def served_rows(self) -> ServedRows:
        """The rows in the queue store of the messages that this node serves now."""
        return served_rows(self.broker, self.store)

    async def bring_up_stores(self) -> bool:
        """Checkpoint everything that is durable here. False: there is no disk space for it."""
        await self.path.flushed()
        return await self.checkpoints.bring_up()
