"""Browsing a queue: copies of its waiting messages anywhere in the mesh; no consumer loses one.

Every node's queue store has the unsettled messages of all nodes, as of its last checkpoint. So a browser requests a
checkpoint, then reads the store page by page at the pace of its client, node by node within each priority. Of messages
that are in memory only, it sees those of this node. Messages in flight are included, for they are not settled. Messages
that have expired or are not due yet are not.

A browser is no consumer. A message with `browser:end` marks the end, as in ActiveMQ; nothing follows it.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from qmq.broker.consumers.outcome import TURN_COST
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.selectors import select_within
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.errors import LogBroken, Refused
from qmq.model.dots import Dot
from qmq.model.levels import delivery_order
from qmq.sessions.clients.session import ClientSession, drained, session_of
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.store import Store

PAGE_ROWS: Final = 200
"""Of one page, or fewer if they are large."""
REPORT_BYTES: Final = 256 << 10
"""Bodies, approximately, between two checks whether the client has read the frames before."""
LOOKED_AT_ONCE: Final = 2_000
"""Messages in memory that are looked at before other tasks get a turn."""
AT_ONCE: Final = 4
"""Browsers that read the disk at the same time; others wait for their turn, but not for a slow client."""

END_ID: Final = "browser-end"

log = logging.getLogger("qmq.browsing")


@dataclass(eq=False, repr=False)
class Browsing:
    """Serves subscriptions with `browser:true`: those of one client one after the other, in one task."""

    _engine: EngineParts
    _tasks: Tasks
    _sessions: Mapping[int, ClientSession]
    _peer_names: Callable[[], Iterable[str]]

    def __post_init__(self) -> None:
        self._turns = trio.CapacityLimiter(AT_ONCE)
        # Session → its browsers that were not served yet.
        self._waiting: dict[int, list[Subscription]] = {}

    def begin(self, subscription: Subscription) -> None:
        """Send all messages to `subscription`, after the earlier browsers of the same client are served."""
        waiting = self._waiting.get(subscription.session)
        if waiting is None:
            self._waiting[subscription.session] = [subscription]
            self._tasks.spawn(partial(self._serve, subscription.session))
        else:
            # A client that subscribes and unsubscribes again and again must not fill the list.
            waiting[:] = [other for other in waiting if not other.closed] + [subscription]

    async def _serve(self, session_id: int) -> None:
        waiting = self._waiting[session_id]
        while waiting:
            await self._browse(waiting.pop(0))
        del self._waiting[session_id]

    async def _browse(self, subscription: Subscription) -> None:
        """Raises LogBroken when the checkpoint fails; any other error ends only the client's session."""
        try:
            if session_of(self._sessions, subscription) is None:
                return
            await self._engine.tail.flushed()
            async with self._turns:
                if session_of(self._sessions, subscription) is not None:
                    await self._engine.checkpoints.bring_up()
            await self._send_all(subscription)
        except LogBroken:
            raise
        except Exception:
            log.exception("! %s cannot be browsed", subscription.destination)
            session = session_of(self._sessions, subscription)
            if session is not None:
                session.evict(Refused("log-unreadable", "The queue store cannot be read now; try again later."))

    async def _send_all(self, subscription: Subscription) -> None:
        queue = subscription.destination
        now_us = self._engine.environment.now_us()
        nodes = [self._engine.broker.origin.node, *sorted(self._peer_names())]
        # The clock of a message's node decides whether the message is due or expired.
        times = {node: self._engine.broker.clocks.time_at(node, now_us) for node in nodes}
        async with self._turns:
            levels = await self._engine.environment.run_blocking(queue_levels, self._engine.store, nodes, queue, now_us)
        in_memory = await self._in_memory(queue, now_us)
        for priority, node, limit in levels:
            first = bisect_right(in_memory, -delivery_order(priority), key=_order)
            if not await self._send(subscription, in_memory[:first]):
                return
            del in_memory[:first]
            after: Dot | None = None
            exact = 0
            while True:
                # A client that does not read must not keep a page in memory besides its waiting frames.
                if await drained(self._sessions, subscription) is None:
                    return
                page = partial(self._engine.store.queues.page, node, queue, priority, after, times[node], limit, exact)
                async with self._turns:
                    rows: list[QueueRow] = await self._engine.environment.run_blocking(page)
                self._engine.tail.check_damage()
                if not await self._send(subscription, self._unsettled(rows, times[node])):
                    return
                if len(rows) < limit:
                    break
                after, exact = rows[-1].dot, rows[-1].exact
        if not await self._send(subscription, in_memory):
            return
        session = session_of(self._sessions, subscription)
        if session is not None:
            headers = [("message-id", END_ID), ("destination", queue), ("browser", "end")]
            session.outbox.put(session.encoder.notice(subscription, headers))
            session.outbox.flush()

    async def _in_memory(self, name: str, now_us: int) -> list[Message]:
        """Messages of this node that are in no store, in the order of delivery; also those with consumers."""
        broker = self._engine.broker
        queue = broker.queues.by_name.get(name)
        if queue is None:
            return []
        found = queue.waiting()
        found += [one.message for one in queue.in_flight()]
        for lent in broker.queues.owned.lent.values():
            found += [message for message in lent.values() if message.envelope.destination == name]
        clocks = broker.clocks
        # Level → its messages, which mostly are in order already: sorting what is in order is quick.
        by_order: dict[int, list[tuple[int, int, Message]]] = {}
        for number, one in enumerate(found):
            if number % LOOKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            is_kept_here = one.sequence < 0 and one.owner is None and not one.settled
            if is_kept_here and clocks.due(one) <= now_us and not 0 < clocks.expiry(one) <= now_us:
                by_order.setdefault(_order(one), []).append((one.place, one.sequence, one))
        return [one for order in sorted(by_order) for _, _, one in sorted(by_order[order])]

    def _unsettled(self, rows: list[QueueRow], now_us: int) -> list[Message]:
        pending_deletes = self._engine.broker.queues.paging.pending_deletes
        waiting: list[Message] = []
        for row in rows:
            if not pending_deletes.has(row.queue, row.dot) and not 0 < row.expires_us <= now_us:
                message = self._engine.tail.message_of_row(row)
                if message is not None:
                    waiting.append(message)
        return waiting

    async def _send(self, subscription: Subscription, messages: list[Message]) -> bool:
        """Send those of `messages` that match the subscription, each part after the client has read the part before;
        False when the client has disconnected.
        """
        selector = subscription.selector
        wanted: list[Message] = messages
        if selector is not None:
            wanted = []
            at = 0
            while at < len(messages):
                at, _ = select_within(selector, messages, at, TURN_COST, wanted)
                await trio.lowlevel.checkpoint()
        for part in _parts(wanted):
            session = await drained(self._sessions, subscription)
            if session is None:
                return False
            session.outbox.put(session.encoder.run(subscription.prefix, session.encoder.tails(part)))
            session.outbox.flush()
        return session_of(self._sessions, subscription) is not None


def _order(message: Message) -> int:
    """Where the level of a message stands in the order of delivery."""
    options = message.envelope.options
    return -delivery_order(PRIORITY_DEFAULT if options is None else options.level)


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    """`messages` in parts of about REPORT_BYTES, of one message at least."""
    part: list[Message] = []
    size = 0
    for message in messages:
        part.append(message)
        size += len(message.body)
        if size >= REPORT_BYTES:
            yield part
            part = []
            size = 0
    if part:
        yield part


def queue_levels(store: Store, nodes: list[str], queue: str, now_us: int) -> list[tuple[int, str, int]]:
    """In a worker thread: (level, node, rows per read) of everything that waits, in the order of delivery."""
    found = [
        (priority, place, node, _rows_of_page(head.messages, head.body_bytes))
        for place, node in enumerate(nodes)
        for head in store.queues.heads(node, [queue], now_us).values()
        for priority in head.priorities
    ]
    found.sort(key=lambda level: (-delivery_order(level[0]), level[1]))
    return [(priority, node, limit) for priority, _, node, limit in found]


def _rows_of_page(messages: int, body_bytes: int) -> int:
    """How many rows have about REPORT_BYTES, by their mean size."""
    return min(PAGE_ROWS, max(1, REPORT_BYTES * messages // max(1, body_bytes)))
