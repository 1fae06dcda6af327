"""Purge, move, redrive and delete on one node: all messages of a queue that wait on it, page by page.

A job begins with a checkpoint, as a browser does: then the queue store has every durable message, in the order of
delivery. Each page is read, selected and settled under the pager's load lock, so no checkpoint ends in between. Then
others have a turn, and the page is durable before the next one is read. Messages that are in memory only come last.

A job covers the messages that the node has when the job begins. It touches only messages that the node may deliver now.
"""

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import trio
from msgspec import Meta, Struct

from qmq.broker.consumers.outcome import TURN_COST, Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues.paging.pager import PAGE_MESSAGES, page_limit
from qmq.broker.selectors import compile_selector, select_within
from qmq.engine.checkpoint.queue_pager import FAR_US
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.mesh.peers.calls import Count, Facts, Text
from qmq.model.dots import Dot
from qmq.settings.definitions.live import LiveDefinitions
from qmq.storage.format.forgotten_record import pack_forgotten
from qmq.storage.format.queue_store import QueueHead
from qmq.storage.format.record import RecordKind

CHECKPOINT_MESSAGES: Final = 50_000
"""Messages that a job settles between two checkpoints: until then their rows and their dots take space."""

NOT_SERVING: Final = "not-serving"
HAS_CONSUMERS: Final = "has-consumers"
CLIENT_LEFT: Final = "client-left"

UNKNOWN: Final[Facts] = {"known": False}
"""Facts about a queue of which a node has no messages, consumers or definitions: its name may be misspelled."""


class BulkJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target`: the queue to move to; "" for `redrive` and `purge`. `count` 0: all messages. `id` names the job.

    A job of a peer with a field that this version does not know is refused: it may be about fewer messages.
    """

    verb: Annotated[str, Meta(pattern=r"^(purge|move|redrive|delete)\Z")]
    queue: Text
    id: Text
    target: Text = ""
    selector: Text = ""
    ids: list[Text] = []
    """Only these messages; empty: all."""
    count: Count = 0
    is_dry_run: bool = False
    is_forced: bool = False
    """A deletion settles messages although the queue has consumers."""


class Coverage(NamedTuple):
    """Which messages a job on this node covers, of those that the node has when it begins."""

    covers: Callable[[Message], bool]
    check: Callable[[], None]
    """Called before each page; raises Refused when the job must end."""


def all_until(check: Callable[[], None]) -> Coverage:
    """All messages, as long as `check` lets the job go on."""
    return Coverage(lambda message: True, check)


async def run_bulk_job(
    engine: EngineParts, definitions: LiveDefinitions, job: BulkJob, coverage: Coverage | None = None
) -> Facts:
    """Run `job` on this node.

    Returns how many `messages` it settled, and `reason`: why it stopped early, or left some of them; "" if it did not.
    `serves`: the nodes whose messages it covered, because this node served them from begin to end. With `known` false
    the node has no such queue.
    """
    served = engine.broker.queues.owned.serves
    serves = set(served)
    run = _Run(engine, definitions, job, coverage)
    try:
        await run.all()
    except Refused as refused:
        run.reason = f"{refused.code}: {refused.message}"
    facts: Facts = {"messages": run.done, "reason": run.reason, **({} if run.is_known else UNKNOWN)}
    return {**facts, "serves": sorted(serves & set(served))} if not run.reason.startswith(NOT_SERVING) else facts


class _Run:
    def __init__(
        self, engine: EngineParts, definitions: LiveDefinitions, job: BulkJob, coverage: Coverage | None
    ) -> None:
        self._engine = engine
        self._definitions = definitions
        self._job = job
        self._coverage = coverage
        self._selector = compile_selector(job.selector) if job.selector else None
        self._ids = frozenset(job.ids)
        self._before = dict(engine.path.received_vector())
        self._memory_before = engine.broker.memory_sequence
        self._uncheckpointed = 0
        self._has_forgotten = False
        self.done = 0
        self.reason = ""
        self.is_known = True

    @property
    def _is_over(self) -> bool:
        return bool(self._job.count) and self.done >= self._job.count

    async def all(self) -> None:
        """Settle everything that the job covers. Raises Refused when this node may not deliver.

        An unforced deletion is refused first of all because of consumers.
        """
        engine, job = self._engine, self._job
        is_deletion = job.verb == "delete"
        if is_deletion and not job.is_forced:
            self._check_consumers()
        self._check_serving()
        await engine.path.flushed()
        # What is not in memory is in the store: then a queue that is empty, say, costs no checkpoint.
        known = engine.broker.queues.by_name.get(job.queue)
        is_up = known is None or not known.held or await engine.checkpoints.bring_up()
        head = await engine.environment.run_blocking(self._head)
        self.is_known = head is not None or job.queue in engine.broker.queues.by_name
        if head is not None:
            for priority in head.priorities:
                await self._level(priority, page_limit(head.messages, head.body_bytes))
        # On a full disk there is no checkpoint, and memory has durable messages that the store has not.
        bulk = engine.broker.bulk_settlement
        left = bulk.in_memory(job.queue)
        left.reverse()
        while left:
            page = [one for one in reversed(left[-PAGE_MESSAGES:]) if self._is_covered(one)]
            del left[-PAGE_MESSAGES:]
            page = [one for one in page if not one.settled and (one.sequence < 0 or not is_up)]
            if self._is_over:
                break
            if page:
                await self._settle(page)
                await engine.path.flushed()
            await trio.lowlevel.checkpoint()
        if not job.is_dry_run:
            for _ in bulk.forgetting(job.queue):
                await trio.lowlevel.checkpoint()
            out = Outcome(now_us=engine.environment.now_us())
            bulk.finish(job.queue, out, is_deleted=is_deletion)
            engine.path.submit(out)
        if self._has_forgotten:
            # The same id may be sent to any node next.
            await engine.path.flushed()
            await self._definitions.spread()

    def _head(self) -> QueueHead | None:
        return self._engine.served_rows().heads([self._job.queue], FAR_US).get(self._job.queue)

    async def _level(self, priority: int, limit: int) -> None:
        engine, queue = self._engine, self._job.queue
        after: Dot | None = None
        exact = 0
        while not self._is_over:
            async with engine.pager.load_lock:
                rows = await engine.environment.run_blocking(
                    engine.served_rows().page, queue, priority, after, FAR_US, limit, exact
                )
                engine.damage.check()
                messages = [message for row in rows if (message := engine.replay.message_of_row(row)) is not None]
                await self._settle([message for message in messages if self._is_covered(message)])
            await engine.path.flushed()
            if self._uncheckpointed >= CHECKPOINT_MESSAGES:
                self._uncheckpointed = 0
                await engine.checkpoints.bring_up()
            if len(rows) < limit:
                return
            after, exact = rows[-1].dot, rows[-1].exact

    def _is_covered(self, message: Message) -> bool:
        """Whether the job is about the message, and the node had it when the job began."""
        if self._coverage is not None and not self._coverage.covers(message):
            return False
        if self._ids and message.message_id not in self._ids:
            return False
        if message.sequence < 0:
            return -message.sequence <= self._memory_before
        return message.sequence <= self._before.get(message.origin, 0)

    async def _settle(self, messages: list[Message]) -> None:
        engine, job = self._engine, self._job
        messages = await self._selected(messages)
        await engine.path.slot(asks=True)
        self._check_serving()
        if self._coverage is not None:
            self._coverage.check()
        bulk = engine.broker.bulk_settlement
        waiting = bulk.waiting(job.queue, messages)
        if job.count:
            waiting = waiting[: job.count - self.done]
        if job.is_dry_run or not waiting:
            self.done += len(waiting)
            return
        out = Outcome(now_us=engine.environment.now_us())
        if job.verb in ("move", "redrive"):
            done, why = bulk.move(waiting, job.target, out)
            if why is not None:
                self.reason = self.reason or f"{why.code}: {why.message}"
        else:
            done = bulk.purge(waiting, out)
            self._forget_ids(waiting, out)
        self.done += done
        self._uncheckpointed += done
        engine.path.submit(out)

    def _forget_ids(self, removed: list[Message], out: Outcome) -> None:
        """What an operator removed may be sent again with its dedup id."""
        broker = self._engine.broker
        ids = {one.dot: key for one in removed if (key := one.envelope.key) is not None}
        broker.dedup.forget(ids)
        durable = {dot: key for dot, key in ids.items() if dot.sequence > 0}
        if durable:
            self._has_forgotten = True
            broker.note_fact(RecordKind.FORGOTTEN, pack_forgotten(durable), out.now_us, out)

    async def _selected(self, messages: list[Message]) -> list[Message]:
        if self._selector is None:
            return messages
        wanted: list[Message] = []
        at = 0
        while at < len(messages):
            at, _ = select_within(self._selector, messages, at, TURN_COST, wanted)
            await trio.lowlevel.checkpoint()
        return wanted

    def _check_consumers(self) -> None:
        """Raises Refused while clients of this node consume the queue."""
        queue = self._engine.broker.queues.by_name.get(self._job.queue)
        if queue is not None and queue.subscriptions:
            raise Refused(HAS_CONSUMERS, f"{queue.name} has consumers: stop them, or force it (`--force`, force:true).")

    def _check_serving(self) -> None:
        """Raises Refused while another node may deliver the messages of this one."""
        if self._engine.broker.queues.held:
            raise Refused(NOT_SERVING, "This node may not deliver its queue messages now; see its status.")
