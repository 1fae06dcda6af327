"""The one commit path: wait, decide, append, sync, deliver, replicate. Its methods are in this order.

Every Outcome of the node passes here in order of decision. Effects that need no durability are delivered at once. The
others wait while the one commit task appends all waiting records in one write and one fsync (group commit), and are
delivered after it. If an Outcome of a session waits, later ones of that session wait behind it, so a client gets its
responses in order.

A session waits in `CommitPath.slot` before it decides, never after. If an append fails, the node stops, because its
decisions and its disk no longer agree. An append without disk space has not failed: it is tried again, and everything
waits behind it.

Links follow the journal by `committed_end`: what is durable here is what they read and send.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.commit.recent_settles import NAMED_MAX, RecentSettles
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.runtime.retry_until_space import SPACE_SECONDS
from qmq.environment import Environment
from qmq.errors import DiskFull
from qmq.model.deletions import Deletion
from qmq.model.dots import Vector
from qmq.record_codec import Packing, encode_group

PACKED_AT_ONCE = 1_000
"""Records of one Outcome that are packed in one turn of the event loop, about two milliseconds."""

Follower = Callable[[], None]
"""Called after each decision, when its effects that need no durability are delivered. It returns at once."""


class Deliveries(Protocol):
    """Where effects go: `qmq.sessions.delivery.effect_dispatcher`."""

    async def slot(self, session: int, *, asks: bool) -> None: ...

    def before_commit(self, out: Outcome) -> None: ...

    def after_commit(self, group: list[Outcome], begin: int) -> None: ...

    def after_submit(self, out: Outcome) -> None: ...

    def flush(self) -> None: ...


class Guard(Protocol):
    """What may take away the right to deliver: `qmq.mesh.membership.takeover`."""

    def is_late(self) -> bool: ...

    def check(self) -> None:
        """Take back deliveries that are no longer this node's to make."""


class PeerDeliveries(Protocol):
    """Where effects for peers go: `qmq.mesh.peers.deliveries`."""

    @property
    def shares_bodies(self) -> bool:
        """Whether every member reads batches with shared bodies."""

    def before_commit(self, out: Outcome) -> None: ...

    def after_commit(self, out: Outcome) -> None: ...


@dataclass(eq=False, repr=False)
class CommitPath:
    """From a decision to all parts that it concerns; see `Committing` in the contexts."""

    _broker: Broker
    _environment: Environment
    _commits: Commits
    _pager: QueuePager
    _checkpoints: Checkpoints
    _deadlines: DeadlineTimer
    _recent_settles: RecentSettles

    def __post_init__(self) -> None:
        self._journal = self._commits.journal
        self._clients: Deliveries | None = None
        self._peers: PeerDeliveries | None = None
        self._guards: list[Guard] = []
        self._followers: list[Follower] = []
        self._watched: Callable[[list[Subscription]], None] | None = None
        self._deleted: Callable[[list[Deletion]], None] | None = None
        self.received: Vector = self._commits.journal.vector()
        """The vector that this node has taken, durable or not."""

    def deliver_to(self, clients: Deliveries) -> None:
        """Called once, before anything is decided."""
        self._clients = clients

    def replicate_to(self, peers: PeerDeliveries) -> None:
        """Called once, on a node of a mesh."""
        self._peers = peers

    @property
    def _delivery(self) -> Deliveries:
        assert self._clients is not None
        return self._clients

    def follow(self, follower: Follower) -> None:
        """Call `follower` after each decision from now on."""
        self._followers.append(follower)

    def follow_effects(
        self, watched: Callable[[list[Subscription]], None], deleted: Callable[[list[Deletion]], None]
    ) -> None:
        """From now on `watched` gets the subscriptions that begin to system topics, and `deleted` what is deleted."""
        self._watched, self._deleted = watched, deleted

    def guard(self, guard: Guard) -> None:
        """Ask `guard` from now on when a wait is over: before each decision, and before delivery of what is
        committed.
        """
        self._guards.append(guard)

    # Wait

    async def slot(self, session: int = 0, *, asks: bool = False) -> None:
        """Wait until something may be decided, by `session` if one is named.

        A session that only asks (`asks`) waits neither for disk space nor for memory.
        """
        await self._delivery.slot(session, asks=asks)
        if not asks:
            await self._pager.slot()
            await self._commits.slot()
        self.check()

    async def commit_slot(self) -> None:
        """Wait until the commit path has capacity, for what must not wait for clients."""
        await self._delivery.slot(0, asks=True)
        await self._commits.slot()
        self.check()

    def check(self) -> None:
        """Called after each wait, before anything is decided or delivered: the node may have stood still meanwhile."""
        for guard in self._guards:
            guard.check()

    def is_late(self) -> bool:
        """Whether the node stood still since the last `check`, so that another may serve now. Changes nothing."""
        return any([guard.is_late() for guard in self._guards])

    # Decide: the caller does, without an `await` until `submit`

    def submit(self, out: Outcome, settlers: int | tuple[int, ...] = 0) -> None:
        """Take over a decision. Never waits; call without an `await` after the decision.

        `settlers`: the sessions for which the node itself settles, where `out` has no session.
        """
        broker, delivery = self._broker, self._delivery
        now_us = self._environment.now_us()
        by = (out.session or settlers) if out.settles or out.attempts else 0
        first = broker.next_sequence
        broker.finish(out, now_us)
        if by:
            self._recent_settles.note(first, broker.next_sequence - 1, by)
        broker.totals.now_us = now_us
        self.received[broker.origin] = broker.next_sequence - 1
        out.offers = broker.borrowing.offers()
        out.sequence = broker.next_sequence - 1 if out.records or out.repeats else 0
        # Queue it before anything is delivered: a delivery may cause further decisions, whose records follow these. If
        # the delivery fails, the journal still has no hole.
        waits = self._commits.take(out, now_us)
        if self._peers is not None and out.is_for_peers:
            self._peers.before_commit(out)
        delivery.before_commit(out)
        if not waits:
            if out.deliveries_after:
                self.check()
            self._committed([out], self._commits.committed_end)
        elif out.has_answers:
            self._commits.await_answer(out)
        delivery.flush()
        if out.loads:
            self._pager.want(out.loads)
        self._deadlines.decided()
        if self._pager.needs_checkpoint():
            self._checkpoints.schedule()
        delivery.after_submit(out)
        if out.watchers and self._watched is not None:
            self._watched(out.watchers)
        if out.deletions and self._deleted is not None:
            self._deleted(out.deletions)
        for follower in self._followers:
            follower()

    # Append, sync, deliver

    async def run(self) -> None:
        """Append and deliver, group by group, until `Commits.stop` was called and nothing is left.

        Raises LogBroken when the disk refuses, and DiskFull when the node stops and there is no room. Nothing of that
        group has been delivered then.
        """
        while (group := await self._commits.next_group()) is not None:
            await self._commit(group)

    async def _commit(self, group: list[Outcome]) -> None:
        commits, shares = self._commits, self._peers is None or self._peers.shares_bodies
        ready: dict[int, Packing] = {}
        for out in group:
            if len(out.records) > PACKED_AT_ONCE:
                packing = ready[id(out)] = Packing(out.records, shares)
                for _ in range(0, len(out.records), PACKED_AT_ONCE):
                    packing.take(PACKED_AT_ONCE)
                    # What is decided must be appended: a cancel waits until it is.
                    await trio.lowlevel.cancel_shielded_checkpoint()
        batches = encode_group(self._broker.origin, group, shares, ready)
        begin = commits.committed_end
        if batches:
            commits.appended(await self._append(batches), batches)
        self.check()
        commits.committed(group)
        self._committed(group, begin)
        self._delivery.flush()
        commits.delivered(group)

    def _committed(self, group: list[Outcome], begin: int) -> None:
        self._delivery.after_commit(group, begin)
        if self._peers is not None:
            for out in group:
                if out.is_for_peers:
                    self._peers.after_commit(out)

    async def _append(self, batches: list[bytes]) -> int:
        # This may use the reserve: new messages are refused before they are decided (`SendLimits.disk_full`).
        append = partial(self._journal.append, batches, settle_only=True)
        commits = self._commits
        while True:
            try:
                end = await self._write(append)
            except DiskFull:
                if not commits.waits_for_space:
                    raise
                commits.is_stuck = True
                self._checkpoints.space.ran_short()
                await trio.sleep(SPACE_SECONDS)
            else:
                commits.is_stuck = False
                if self._journal.is_short:
                    self._checkpoints.space.ran_short()
                return end

    async def _write(self, append: Callable[[], int]) -> int:
        commits = self._commits
        commits.append_began = trio.current_time()
        # A sync of the journal may be under way in another thread: the event loop must not wait for it.
        is_lone = commits.is_lone and not self._journal.is_writing
        try:
            return await self._environment.run_commit(append, is_lone=is_lone)
        finally:
            commits.append_began = None

    async def flushed(self) -> None:
        """Wait until everything that is decided now is durable and delivered."""
        await self._commits.flushed()

    # Settle: what deliveries cause

    def begin_time(self, deliveries: list[Delivery]) -> list[Delivery]:
        """The deliveries under an ack-timeout; see `Queues.start_ack_timeouts`. The timer learns it after this pass."""
        delivered = self._broker.queues.start_ack_timeouts(deliveries, self._environment.now_us())
        self._deadlines.decided()
        return delivered

    def settle_written(self, deliveries: list[Delivery]) -> None:
        """Settle deliveries of subscriptions with `ack:auto`, which were written to their clients."""
        by_subscription: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_subscription.setdefault(id(delivery.subscription), []).append(delivery)
        out = Outcome(now_us=self._environment.now_us())
        for run in by_subscription.values():
            self._broker.written(run, out)
        # Mostly one: only clients of one flush come together.
        sessions = dict.fromkeys(run[0].subscription.session for run in by_subscription.values())
        self.submit(out, tuple(sessions)[:NAMED_MAX])

    # Replicate: links and readers of logs follow the journal

    def received_vector(self) -> Vector:
        """What this node has taken, durable or not. Live."""
        return self.received

    def durable_vector(self) -> Vector:
        """What the journal has on disk."""
        return self._journal.vector()

    def committed_end(self) -> int:
        """Journal position up to which everything is delivered."""
        return self._commits.committed_end
