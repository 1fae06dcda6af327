"""From a decision to all parts it concerns: how each `Outcome` is processed, and which tasks wait before deciding.

`Commits` appends and calls the dispatcher; this adds what surrounds it. Peers are offered the credit that a decision
freed, pages that a queue needs are loaded, deadlines are set, and a checkpoint begins when it is due.
"""

from collections.abc import Callable
from typing import Protocol

from qmq.admin.counts import DestinationCounts
from qmq.admin.deletion import note_deletions
from qmq.admin.inspection.recent_settles import NAMED_MAX, RecentSettles
from qmq.admin.system import SystemTopics
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.commit.receipts import Receipts
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.runtime.contexts import Engine, Reporting
from qmq.mesh.membership.takeover import Takeover
from qmq.model.dots import Vector
from qmq.record_codec import Replay
from qmq.replication.mesh import Mesh
from qmq.sessions.delivery.effect_dispatcher import Dispatcher
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes


class CommitPathContext(Engine, Reporting, Protocol):
    """The parts that process a decision."""

    replay: Replay
    commits: Commits
    dispatcher: Dispatcher
    receipts: Receipts
    queue_pager: QueuePager
    checkpoints: Checkpoints
    deadline_timer: DeadlineTimer
    system: SystemTopics
    takeover: Takeover
    mesh: Mesh | None
    counts: DestinationCounts
    definitions: LiveDefinitions
    queue_lifetimes: QueueLifetimes
    recent_settles: RecentSettles

    def schedule_checkpoint(self) -> None: ...


class CommitPath:
    """See `qmq.engine.runtime.contexts`: `Committing` and `JournalTail`."""

    def __init__(self, context: CommitPathContext) -> None:
        self._context = context
        self.received: Vector = context.store.journal.vector()
        """The vector that this node has taken, durable or not."""

    async def slot(self, session: int = 0, *, asks: bool = False) -> None:
        context = self._context
        await context.dispatcher.selecting.delivered(session)
        if not asks:
            await context.receipts.slot()
            await context.queue_pager.slot()
            await context.commits.slot()
        context.takeover.check()

    async def commit_slot(self) -> None:
        await self._context.dispatcher.selecting.delivered(0)
        await self._context.commits.slot()
        self._context.takeover.check()

    def after_delivery(self, session: int, do: Callable[[], None]) -> None:
        self._context.dispatcher.selecting.after_delivery(session, do)

    def submit(self, out: Outcome, settlers: int | tuple[int, ...] = 0) -> None:
        """`settlers`: the sessions for which the node itself settles, where `out` has no session."""
        context = self._context
        broker = context.broker
        now_us = context.environment.now_us()
        by = (out.session or settlers) if out.settles or out.attempts else 0
        first = broker.next_sequence
        broker.finish(out, now_us)
        if by:
            context.recent_settles.note(first, broker.next_sequence - 1, by)
        broker.totals.now_us = now_us
        self.received[context.origin] = broker.next_sequence - 1
        out.offers = broker.borrowing.offers()
        out.sequence = broker.next_sequence - 1 if out.records or out.repeats else 0
        context.commits.submit(out)
        if out.loads:
            context.queue_pager.want(out.loads)
        context.deadline_timer.decided()
        if context.queue_pager.needs_checkpoint():
            context.checkpoints.schedule()
        context.dispatcher.after_submit(out)
        if out.watchers:
            context.system.answer(out.watchers)
        if out.deletions:
            note_deletions(context, out.deletions)
        if context.definitions.news:
            context.definitions.publish()
        if broker.queues.consumers_changed:
            context.queue_lifetimes.consumers_changed()

    def begin_time(self, deliveries: list[Delivery]) -> list[Delivery]:
        """The deliveries under an ack-timeout; see `Queues.start_ack_timeouts`. The timer learns it after this pass."""
        delivered = self._context.broker.queues.start_ack_timeouts(deliveries, self._context.environment.now_us())
        self._context.deadline_timer.decided()
        return delivered

    def settle_written(self, deliveries: list[Delivery]) -> None:
        """Settle deliveries of subscriptions with `ack:auto`, which were written to their clients."""
        by_subscription: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_subscription.setdefault(id(delivery.subscription), []).append(delivery)
        out = Outcome(now_us=self._context.environment.now_us())
        for run in by_subscription.values():
            self._context.broker.written(run, out)
        # Mostly one: only clients of one flush come together.
        sessions = dict.fromkeys(run[0].subscription.session for run in by_subscription.values())
        self.submit(out, tuple(sessions)[:NAMED_MAX])

    def received_vector(self) -> Vector:
        return self.received

    def durable_vector(self) -> Vector:
        return self._context.store.journal.vector()

    def committed_end(self) -> int:
        return self._context.commits.committed_end

    async def journal_grew(self, position: int) -> None:
        self._context.check_damage()  # Each reader of a log calls this at its end.
        await self._context.commits.grew(position)
