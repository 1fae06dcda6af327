"""Loads the messages that queues need next from the queue store, and evicts from memory what the store has.

One load at a time: no checkpoint may end between the read of a page and its use (`qmq.broker.queues.paging.pager`).
Pages of many queues are loaded in one read. A node whose queues always fit in memory never uses this.
"""

import logging
from dataclasses import dataclass, field
from functools import partial

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.queues.paging.pager import Load, LoadedPage, page_limit
from qmq.engine.runtime.contexts import Committing
from qmq.engine.runtime.damage_report import DamageReport
from qmq.engine.runtime.served_rows import served_rows
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment
from qmq.model.dots import Vector
from qmq.record_codec import Replay
from qmq.storage.format.queue_store import QueueHead, QueueRow
from qmq.storage.queues.plan import is_page_full
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store

LOADS_AT_ONCE = 256
"""Queues served by one read of the store."""

LOAD_BYTES = 16 << 20
"""After so many bytes a page ends, or a read returns, and its other queues wait for the next."""

UNSAVED_FACTOR = 2.5
"""This many times `messages_kept` in memory and not in the store request a checkpoint (half as many if each is in a
queue of its own). So do twice as many settled ones to be remembered.
"""

UNSAVED_MOST = 3
"""At so many times the amount that requests a checkpoint, clients wait until the present one is done. A disk that hangs
for seconds must not fill the memory.
"""

UNSAVED_BYTES_MOST = 2
"""If so many times the journal that requests a checkpoint is written during one, clients wait for it, too. Large
messages may arrive faster than a queue store takes them.
"""

EVICT_SLICE = 5_000
"""Queues or messages examined before other tasks get a turn."""

EXPIRED_AT_ONCE = 1_000
EXPIRED_BYTES = 16 << 20
"""Bodies and headers of expired messages read at once."""
EXPIRED_ROWS_MAX = 64_000
EXPIRED_BYTES_MAX = 64 << 20
"""The limit of a scan past messages in memory; the scan continues when consumers are done with those."""
FAR_US = 1 << 62

log = logging.getLogger("qmq.queue_pager")


@dataclass(slots=True)
class LoadResult:
    """What the store returned for one Load, as it came from the worker thread."""

    limit: int
    head: QueueHead | None = None
    priority: int | None = None
    rows: list[QueueRow] = field(default_factory=list)
    next_due_us: int = 0


class QueuePager:
    """`messages_kept`, `bytes_kept`: queue messages, and bytes of their bodies, that may stay in memory although the
    store has them. `checkpoint_bytes`: after so much journal a checkpoint begins.
    """

    def __init__(
        self,
        broker: Broker,
        store: Store,
        environment: Environment,
        replay: Replay,
        damage: DamageReport,
        *,
        messages_kept: int,
        bytes_kept: int,
        checkpoint_bytes: int,
    ) -> None:
        self._broker = broker
        self._store = store
        self._environment = environment
        self._replay = replay
        self._damage = damage
        self._asks_checkpoint = False
        self._kept = messages_kept
        self._bytes_kept = bytes_kept
        self._unsaved_max = int(messages_kept * UNSAVED_FACTOR)
        self._unsaved_most = UNSAVED_MOST * self._unsaved_max
        self._unsaved_bytes_most = UNSAVED_BYTES_MOST * checkpoint_bytes
        self._wanted: list[str] = []
        self._work = Waker()
        self.load_lock = trio.Lock()
        """Held while pages are read and used: the owners that this node serves must not change in between."""
        self._sweeper = Waker()
        self._sweep_at_us = 0
        self._sweep_rows = EXPIRED_AT_ONCE
        self._sweep_bytes = EXPIRED_BYTES
        self._begun_at = self._broker.next_sequence
        self._begun_end = self._store.journal.end
        self._lost_left = 0
        # Set when the present checkpoint is over; None while none runs.
        self._over: trio.Event | None = None
        self.loads = 0
        self.loaded = 0
        self.evicted = 0

    def _rows(self) -> ServedRows:
        return served_rows(self._broker, self._store)

    def _ceased(self, rows: ServedRows) -> bool:
        """Whether this node has ceased to serve an owner since `rows` were requested: those rows belong to another node
        now.
        """
        return not self._broker.queues.owned.serves.issuperset(rows.nodes)

    # Loading

    def want(self, names: list[str]) -> None:
        """Load what the queues with these names need next."""
        self._wanted += names
        self._work.wake()

    async def run(self, commits: Committing) -> None:
        """Load until cancelled. Raises LogBroken when the store fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep, commits)
            while True:
                await self._work.wait()
                while self._wanted:
                    async with self.load_lock:
                        await self._load(commits)

    async def _load(self, commits: Committing) -> None:
        paging = self._broker.queues.paging
        queues = self._broker.queues
        names, self._wanted = self._wanted[:LOADS_AT_ONCE], self._wanted[LOADS_AT_ONCE:]
        loads: list[Load] = []
        loading: list[str] = []
        now_us = self._environment.now_us()
        out = Outcome(now_us=now_us)
        for name in names:
            queue = queues.by_name[name]  # A queue that waits for a load is not idle, so it was not dropped.
            load = paging.next_load(queue, now_us)
            if load is None:
                paging.take_none(queue, out)
            else:
                loads.append(load)
                loading.append(name)
        commits.submit(out)
        if not loads:
            return
        rows = self._rows()
        answers = await self._environment.run_blocking(_ask, rows, loads)
        self._damage.check()
        if self._ceased(rows):
            self._wanted = loading + self._wanted
            return
        self._wanted = loading[len(answers) :] + self._wanted
        out = Outcome(now_us=self._environment.now_us())
        for load, answer in zip(loads, answers, strict=False):
            load = load._replace(limit=answer.limit)
            messages = [message for row in answer.rows if (message := self._replay.message_of_row(row)) is not None]
            counted: QueueHead | None = None
            if load.priority is None and not load.due_after_us:
                counted = answer.head or QueueHead(0, 0, (), 0)
            self.loads += 1
            self.loaded += len(messages)
            paging.take(load, LoadedPage(counted, answer.priority, messages, answer.next_due_us), out)
        commits.submit(out)

    # Checkpoints

    def needs_checkpoint(self) -> bool:
        """Whether so much is in memory that the store should take it over, however little the journal has grown."""
        broker = self._broker
        paging, owned = broker.queues.paging, broker.queues.owned
        if self._asks_checkpoint:
            self._asks_checkpoint = False
            return True
        if owned.needs_checkpoint:
            owned.needs_checkpoint = False
            return True
        if len(paging.pending_deletes) - self._lost_left > 2 * self._unsaved_max:
            return True
        new = broker.next_sequence - self._begun_at
        if 2 * new <= self._unsaved_max:
            return False
        messages, weight = owned.in_memory, self._weight
        return weight > self._unsaved_max and new * weight > self._unsaved_max * messages

    @property
    def _weight(self) -> int:
        """Messages in memory. A queue costs about as much as a message: a million queues with one message each count
        twice.
        """
        queues = self._broker.queues
        messages = queues.owned.in_memory
        return messages + min(messages, len(queues.by_name))

    def checkpoint_begins(self) -> None:
        """A checkpoint takes what has been decided by now. `checkpoint_ends` always follows."""
        self._over = trio.Event()
        self._begun_at = self._broker.next_sequence
        self._begun_end = self._store.journal.end
        self._broker.queues.paging.checkpoint_begins()

    def checkpoint_ends(self) -> None:
        """The checkpoint is over, and what it evicted is no longer in memory."""
        if self._over is not None:
            self._over.set()
            self._over = None

    @property
    def is_full(self) -> bool:
        """Whether memory has so much that durable messages are refused while no checkpoint is possible."""
        return self._fills(1)

    @property
    def has_much_room(self) -> bool:
        """Whether it has at most half of that."""
        return not self._fills(2)

    def _fills(self, part: int) -> bool:
        bytes_in_memory = self._broker.queues.paging.bytes_in_memory
        is_over = part * bytes_in_memory > UNSAVED_MOST * self._bytes_kept
        return is_over or part * self._weight > self._unsaved_most

    async def slot(self) -> None:
        """Wait while a checkpoint runs and much more has arrived than it takes. No trio checkpoint if not."""
        while self._over is not None and self._is_overrun():
            await self._over.wait()

    def _is_overrun(self) -> bool:
        most = self._unsaved_most
        if 2 * (self._broker.next_sequence - self._begun_at) > most and self._weight > most:
            return True
        return self._store.journal.end - self._begun_end > self._unsaved_bytes_most

    async def checkpoint_done(self, vector: Vector) -> None:
        """The store has everything that `vector` covers: evict it where memory is short."""
        async with self.load_lock:
            queues = self._broker.queues
            queues.paging.checkpoint_done(vector)
            self._lost_left = len(queues.paging.pending_deletes)
            if queues.paging.vague:
                await self._recount()
            if queues.owned.in_memory > self._kept or queues.paging.bytes_in_memory > self._bytes_kept:
                await self._evict()
        self.sweep_at(self._environment.now_us())

    async def _recount(self) -> None:
        paging = self._broker.queues.paging
        names, paging.vague = list(paging.vague), {}
        heads = await self._environment.run_blocking(self._rows().heads, names, 0)
        for name in names:
            head = heads.get(name)
            paging.recount(name, *((0, 0) if head is None else (head.messages, head.body_bytes)))

    async def _evict(self) -> None:
        queues = self._broker.queues
        before = self.evicted
        looked = 0
        messages = queues.paging.owned_in_memory()
        names: dict[str, None] = {}
        for begin in range(0, len(messages), EVICT_SLICE):
            names |= queues.paging.queues_to_evict(messages[begin : begin + EVICT_SLICE])
            await trio.lowlevel.checkpoint()
        for name in names:
            queue = queues.by_name.get(name)
            dropped = 0 if queue is None else queues.paging.evict(queue)
            self.evicted += dropped
            looked += 1 + dropped
            if looked >= EVICT_SLICE:
                looked = 0
                await trio.lowlevel.checkpoint()
        if self.evicted > before:
            log.info("= %d queue messages are only in the store now", self.evicted - before)

    # Expiry of what is only in the store

    def sweep_at(self, at_us: int) -> None:
        """Look for expired messages in the store at that time or before."""
        if not self._sweep_at_us or at_us < self._sweep_at_us:
            self._sweep_at_us = at_us
        # An earlier time may have been asked for when the store had nothing of this node: the sweeper waits since then.
        self._sweeper.wake()

    async def _sweep(self, commits: Committing) -> None:
        while True:
            if not self._broker.queues.owned.has_stored or not self._sweep_at_us:
                await self._sweeper.wait()
                continue
            wait_us = self._sweep_at_us - self._environment.now_us()
            if wait_us > 0:
                await self._sweeper.wait(wait_us / 1_000_000)
                continue
            async with self.load_lock:
                await self._sweep_once(commits)

    async def _sweep_once(self, commits: Committing) -> None:
        now_us = self._environment.now_us()
        self._sweep_at_us = 0
        if self._broker.queues.held:
            self.sweep_at(now_us + 1_000_000)
            return
        served = self._rows()
        # While the clock is in doubt, nothing from before the start is expired; later messages wait in the store until
        # then.
        doubt_us = self._broker.clocks.in_doubt_us
        look = partial(_expired, served, now_us - doubt_us, self._sweep_rows, self._sweep_bytes)
        rows, is_full, next_us = await self._environment.run_blocking(look)
        dead_letters = [at_us for at_us in self._broker.queues.owned.dead_letters_from_us.values() if at_us > now_us]
        next_us = min([next_us, *dead_letters] if next_us else dead_letters, default=0)
        self._damage.check()
        if self._ceased(served) or self._broker.queues.held:
            self.sweep_at(now_us + 1_000_000)
            return
        out = Outcome(now_us=now_us)
        messages = [message for row in rows if (message := self._replay.message_of_row(row)) is not None]
        is_full = not self._broker.queues.redelivery.expire_stored(messages, out) or is_full
        settled_any = bool(out.settles or out.records)
        # A checkpoint removes their rows; until then they would hide the next ones. The scan continues after it.
        self._asks_checkpoint = is_full and settled_any
        commits.submit(out)
        if is_full and settled_any:
            return
        if is_full:
            # All of them are in memory, perhaps with consumers: look further.
            self._sweep_rows = min(4 * self._sweep_rows, EXPIRED_ROWS_MAX)
            self._sweep_bytes = min(4 * self._sweep_bytes, EXPIRED_BYTES_MAX)
            self.sweep_at(now_us + 1_000_000)
        else:
            self._sweep_rows, self._sweep_bytes = EXPIRED_AT_ONCE, EXPIRED_BYTES
            if next_us:
                self.sweep_at(max(next_us + doubt_us, now_us + 1_000_000))


def _ask(rows: ServedRows, loads: list[Load]) -> list[LoadResult]:
    """In a worker thread: the results of `loads`, in order, up to LOAD_BYTES; at least the first."""
    answers: list[LoadResult] = []
    uncounted = [load.queue for load in loads if load.priority is None and not load.due_after_us]
    heads = rows.heads(uncounted, loads[0].until_us) if uncounted else {}
    left = LOAD_BYTES
    for load in loads:
        if left <= 0:
            break
        answer = LoadResult(load.limit)
        if load.due_after_us:
            answer.rows = rows.due(load.queue, load.due_after_us, load.until_us, load.limit)
            found = rows.heads([load.queue], load.until_us).get(load.queue)
            answer.next_due_us = 0 if found is None else found.next_due_us
        else:
            priority = load.priority
            if priority is None:
                answer.head = heads.get(load.queue)
                if answer.head is not None and answer.head.priorities:
                    priority = answer.head.priorities[0]
                    answer.limit = page_limit(answer.head.messages, answer.head.body_bytes)
            answer.priority = priority
            if priority is not None:
                bounds = answer.limit, load.exact, LOAD_BYTES
                answer.rows = rows.page(load.queue, priority, load.after, load.until_us, *bounds)
                if is_page_full(answer.rows, answer.limit, LOAD_BYTES):
                    answer.limit = len(answer.rows)  # Large messages among small ones: there may be more.
        left -= sum([len(row.body) for row in answer.rows])
        answers.append(answer)
    return answers


def _expired(served: ServedRows, now_us: int, limit: int, bytes_max: int) -> tuple[list[QueueRow], bool, int]:
    """In a worker thread: expired rows, whether there may be more, and if not, when the next one expires (0: never)."""
    rows = served.expired(now_us, limit, bytes_max)
    if len(rows) >= limit or sum([len(row.headers) + len(row.body) for row in rows]) >= bytes_max:
        return rows, True, 0
    later = served.expired(FAR_US, len(rows) + 1, bytes_max)[len(rows) :]
    return rows, False, served.expires_at(later[0]) if later else 0
