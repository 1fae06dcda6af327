"""The end of the journal, for readers that follow it."""

from qmq.broker.messages.message import Message
from qmq.engine.commit.commits import Commits
from qmq.engine.runtime.damage_report import DamageReport
from qmq.model.dots import Origin
from qmq.record_codec import Replay
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.record import Record


class CommittedTail:
    """What is committed, and when more is."""

    def __init__(self, commits: Commits, replay: Replay, damage: DamageReport) -> None:
        self._commits = commits
        self._replay = replay
        self._damage = damage

    def committed_end(self) -> int:
        """Journal position up to which everything is delivered."""
        return self._commits.committed_end

    async def grew(self, position: int) -> None:
        """Wait until something beyond `position` is delivered."""
        self._damage.check()  # Each reader of a log calls this at its end.
        await self._commits.grew(position)

    async def flushed(self) -> None:
        """Wait until everything that is decided now is durable and delivered."""
        await self._commits.flushed()

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        """A fanout record as a message."""
        return self._replay.message_of(origin, record)

    def message_of_row(self, row: QueueRow) -> Message | None:
        """A row of the queue store as a message."""
        return self._replay.message_of_row(row)

    def check_damage(self) -> None:
        """Report damage that readers have met, and schedule its repair."""
        self._damage.check()
