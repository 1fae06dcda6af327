"""Fanout subscriptions: first stored messages, then live ones, as one stream without a skip or a duplicate.

A subscription begins by reading its fanout's log in the background, at the pace of its client. When it has read up to
the committed journal position, it joins the live subscriptions without an `await` in between. If the client of a live
subscription falls behind its buffer, the subscription goes back to reading, from where the present group of commits
begins in the journal. So a slow subscriber costs disk reads, not memory, and delays no other. A subscription with a
declared buffer (`qmq.sessions.clients.subscriber_buffers`) reads stored messages in the same way. Once live, it uses
its buffer as declared instead.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from functools import partial

import trio

from qmq.broker.consumers.outcome import TURN_COST, FanoutRun, Outcome
from qmq.broker.consumers.subscription import StartAt, Subscription
from qmq.broker.fanouts.gap_notice import Claim, gap_notices
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.selectors import Selector, SelectorCosts, selected, selects
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.sessions.clients.session import ClientSession, session_of
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.delivery.durable_feed import DurableFeeds
from qmq.sessions.delivery.resume_vector import ResumeVector
from qmq.storage.fanouts.reader import FanoutPage, FanoutPosition
from qmq.storage.log.journal import Mark
from qmq.storage.store import Store

READ_BYTES = 256 << 10
READS_AT_ONCE = 4
"""Worker threads that all readers together may use: the others must suffice for commits at any time."""

log = logging.getLogger("qmq.fanout_subscribers")


@dataclass(eq=False, repr=False)
class FanoutSubscribers:
    """Which subscription follows which fanout live, and which still reads."""

    _engine: EngineParts
    buffers: SubscriberBuffers
    _tasks: Tasks
    _sessions: Mapping[int, ClientSession]
    flush: InitVar[Callable[[], None]]
    _buffer_bytes: int

    def __post_init__(self, flush: Callable[[], None]) -> None:
        self._live: dict[str, dict[Subscription, None]] = {}
        self._last_group: dict[Subscription, int] = {}
        # Messages that a resuming client got elsewhere and this node may yet receive: they must not be delivered again.
        self._ahead: dict[Subscription, Vector] = {}
        # Those that read, but for durable ones: up to where they have been sent all.
        self._positions: dict[Subscription, FanoutPosition] = {}
        self._reads = trio.CapacityLimiter(READS_AT_ONCE)
        self.touched: dict[ClientSession, None] = {}
        self.feeds = DurableFeeds(
            self._engine, self._tasks, self._sessions, flush, self._buffer_bytes, self._reads, self.touched
        )
        self.reading = 0

    @property
    def live(self) -> int:
        """How many subscriptions follow live."""
        return sum(map(len, self._live.values()))

    def position_of(self, subscription: Subscription) -> FanoutPosition | None:
        """Up to where it has been sent all that the log has; None: it is live, or does not know yet where it begins."""
        return self._positions.get(subscription)

    def join(self, subscription: Subscription) -> None:
        """Begin at `subscription.start`."""
        if subscription.closed:
            return
        if subscription.durable is not None:
            if self.feeds.starts_live(subscription.durable):
                self._go_live(subscription)
            else:
                self._read_from(subscription, None)
            return
        if isinstance(subscription.start, dict):
            self._ahead[subscription] = dict(subscription.start)
        if subscription.start == "next":
            # Earlier messages may still be on their way to the disk.
            self._ahead[subscription] = {self._engine.broker.origin: subscription.since}
            self._tasks.spawn(partial(self._end_since, subscription))
            self._go_live(subscription)
        else:
            self._read_from(subscription, None)

    async def _end_since(self, subscription: Subscription) -> None:
        """Everything decided before the subscription is delivered: now it shares its encoding with the others."""
        await self._engine.tail.flushed()
        self._ahead.pop(subscription, None)

    def forget(self, ended: list[Subscription]) -> None:
        """These have ended: if nothing is sent to their fanouts again, nothing else would find that out."""
        for subscription in ended:
            self._leave(subscription)
            self._ahead.pop(subscription, None)
            self.feeds.forget(subscription)

    def _go_live(self, subscription: Subscription) -> None:
        self._live.setdefault(subscription.destination, {})[subscription] = None

    def cost_of(self, group: list[Outcome]) -> int:
        """The cost to select from `group` for live subscriptions: each selector is evaluated once for each envelope."""
        envelopes: dict[str, dict[Envelope, None]] = {}
        for out in group:
            for run in out.fanout_runs:
                envelopes.setdefault(run.destination, {}).update({one.envelope: None for one in run.messages})
        selector_cost = 0
        for destination, distinct in envelopes.items():
            selectors = {one.selector: None for one in self._live.get(destination, ())}
            costs = SelectorCosts(selectors)
            selector_cost += sum([costs.of(len(one.headers)) for one in distinct])
        return selector_cost

    def deliver(self, destination: str, messages: list[Message], begin: int, *, is_costly: bool = False) -> None:
        """Deliver to live subscriptions; `begin` is where the group of commits of these messages starts in the journal.

        If selecting from the whole group `is_costly`, subscriptions with a selector read the group from the log, page
        by page, each in turns of its own.
        """
        live = self._live.get(destination)
        if not live:
            return
        deletions = self._engine.broker.deletions
        if deletions.before(destination):
            # Messages of other origins, decided before the deletion and committed after it.
            messages = [one for one in messages if not deletions.covers(destination, one.origin, one.sequence)]
        encoded: dict[tuple[bytes, Encoder, Selector | None], bytes] = {}
        chosen: dict[Selector | None, list[Message]] = {None: messages}
        delivered = 0
        for subscription in list(live):
            session = self._sessions.get(subscription.session)
            if session is None or subscription.closed or session.finishing:
                self._leave(subscription)
                self._ahead.pop(subscription, None)
                continue
            if is_costly and subscription.selector is not None:
                self._leave(subscription)
                self._read_again(subscription, begin)
                continue
            if subscription.durable is not None:
                if not self.feeds.deliver(session, subscription.durable, messages):
                    self._leave(subscription)
                    self._read_again(subscription, begin)
                continue
            selector = subscription.selector
            wanted = chosen.get(selector)
            if wanted is None:
                assert selector is not None, "what all subscribers get is known"
                wanted = chosen[selector] = selected(selector, messages)
            if not wanted:
                continue
            if subscription.buffer is not None:
                delivered += self._send_bounded(session, subscription, wanted)
                continue
            outbox = session.outbox
            if outbox.size > self._buffer_bytes and self._last_group.get(subscription) != begin:
                # Nothing of this group has been delivered to it, so `begin` is exactly its position.
                self._leave(subscription)
                self._read_again(subscription, begin)
                continue
            self._last_group[subscription] = begin
            self.touched[session] = None
            if subscription in self._ahead:
                unseen = [one for one in wanted if self._is_unseen(subscription, one.origin, one.sequence)]
                if unseen:
                    outbox.put(session.encoder.run(subscription.prefix, session.encoder.tails(unseen)))
                    delivered += len(unseen)
                continue
            key = (subscription.prefix, session.encoder, selector)
            data = encoded.get(key)
            if data is None:
                data = encoded[key] = session.encoder.run(subscription.prefix, session.encoder.tails(wanted))
            outbox.put(data)
            delivered += len(wanted)
        if delivered:
            self._engine.broker.totals.begin(destination).delivered += delivered

    def send_lost(self, lost: list[Claim], delivered: list[FanoutRun]) -> None:
        """Report to live subscriptions with a vector or a cursor what they will never get; a reader of the log finds it
        there.

        `delivered` are messages of the same ranges.
        """
        for destination, live in self._live.items():
            reached: Vector = {}
            for run in delivered:
                if run.destination == destination:
                    merge(reached, {message.origin: message.sequence for message in run.messages})
            for subscription in live:
                session = session_of(self._sessions, subscription)
                if session is None:
                    continue
                if subscription.durable is not None:
                    self.feeds.send_lost(session, subscription.durable, [Dot(o, last) for o, _, last in lost])
                if not isinstance(subscription.start, dict):
                    continue
                resumed = {**reached, **self._ahead.get(subscription, {})}
                missing = [
                    (o, max(after, resumed.get(o, 0)), last) for o, after, last in lost if last > resumed.get(o, 0)
                ]
                if missing:
                    notices = self._notices(destination, missing, session)
                    session.outbox.put(session.encoder.run(subscription.prefix, notices))
                    self.touched[session] = None

    def _notices(self, destination: str, missing: list[Claim], session: ClientSession) -> list[bytes]:
        """Notices that these are missing, as frames without their beginning."""
        broker = self._engine.broker
        notices = [notice for notice, _ in gap_notices(destination, missing)]
        messages = [Message(one, b"", self._engine.broker.origin, -broker.new_memory_sequence(), 0) for one in notices]
        return session.encoder.tails(messages)

    def _send_bounded(self, session: ClientSession, subscription: Subscription, messages: list[Message]) -> int:
        """Deliver to a subscription with a declared buffer. It never goes back to reading: beyond its bound it misses
        messages, or its client is disconnected. Returns how many the buffer or the client got.
        """
        if subscription in self._ahead:
            messages = [m for m in messages if self._is_unseen(subscription, m.origin, m.sequence)]
        self.buffers.deliver(session, subscription, session.encoder.tails(messages))
        self.touched[session] = None
        return len(messages)

    def _is_unseen(self, subscription: Subscription, origin: Origin, sequence: int) -> bool:
        """Whether a resuming client has not got this. Drops each origin whose records are beyond what the client had
        got.
        """
        ahead = self._ahead.get(subscription)
        if ahead is None:
            return True
        if sequence <= ahead.get(origin, 0):
            return False
        ahead.pop(origin, None)
        if not ahead:
            del self._ahead[subscription]
        return True

    def _drop_reached(self, subscription: Subscription, have: Vector) -> None:
        """All of `have` has been read: only later records may still come live."""
        left = {o: last for o, last in self._ahead.pop(subscription, {}).items() if last > have.get(o, 0)}
        if left:
            self._ahead[subscription] = left

    def _leave(self, subscription: Subscription) -> None:
        self._last_group.pop(subscription, None)
        live = self._live.get(subscription.destination, {})
        live.pop(subscription, None)
        if not live:
            self._live.pop(subscription.destination, None)

    def _read_again(self, subscription: Subscription, begin: int) -> None:
        """Read again from the group that is being delivered. The journal may drop the group before the reader's turn
        comes. Then nothing else would show what this client has got, so that is stored now.
        """
        mark = self._engine.store.journal.last_append
        assert mark[0] == begin, "a group is delivered that was not appended last"
        self._read_from(subscription, mark)

    def _read_from(self, subscription: Subscription, begin: Mark | None) -> None:
        self._tasks.spawn(partial(self._read, subscription, begin))

    async def _read(self, subscription: Subscription, begin: Mark | None) -> None:
        """Read until the subscription has caught up or ended. Never raises Exception: an error ends only the client's
        session.
        """
        self.reading += 1
        try:
            await self._read_on(subscription, begin)
        except Exception:
            log.exception("! the log of %s cannot be read", subscription.destination)
            self._engine.tail.check_damage()
            session = session_of(self._sessions, subscription)
            if session is not None:
                session.evict(Refused("log-unreadable", "The log of the fanout cannot be read now; try again later."))
        finally:
            self.reading -= 1
            self._positions.pop(subscription, None)

    async def _read_on(self, subscription: Subscription, begin: Mark | None) -> None:
        store, name = self._engine.store, subscription.destination
        if subscription.durable is not None:
            if await self.feeds.read(subscription.durable, begin):
                self._go_live(subscription)
            return
        async with self._reads:
            position, skip = await self._engine.environment.run_blocking(_start, store, subscription, begin)
        resumed: ResumeVector | None = None
        if isinstance(subscription.start, dict) and (begin is None or position.seen):
            resumed = ResumeVector(dict(position.seen))
        self._positions[subscription] = position
        while True:
            async with self._reads:
                have = store.journal.vector()
                page = await self._engine.environment.run_blocking(store.fanout_page, name, position, READ_BYTES)
            session = session_of(self._sessions, subscription)
            if session is None:
                self._ahead.pop(subscription, None)
                return
            self._positions[subscription] = position = page.position
            await self._send_page(subscription, session, page, skip, resumed, have)
            skip = 0
            if page.at_end and position.journal_position == self._engine.tail.committed_end():
                self._drop_reached(subscription, have)
                self._go_live(subscription)
                return
            await session.outbox.drained()
            if page.at_end:
                # Messages that were read may be appended and not committed yet, in the commit that is running.
                await self._engine.tail.grew(position.journal_position - 1)

    async def _send_page(
        self,
        subscription: Subscription,
        session: ClientSession,
        page: FanoutPage,
        skip: int,
        resumed: ResumeVector | None,
        have: Vector,
    ) -> None:
        """Deliver the page, without its first `skip` rows. With `resumed`, also report what is missing.

        Waits for nothing but the turns of others, if selecting is costly.
        """
        tails: list[bytes] = []
        selector = subscription.selector
        lost = self._engine.broker.durable_subscriptions.lost_ranges

        def miss(missing: list[Claim]) -> None:
            tails.extend(self._notices(subscription.destination, missing, session))

        if resumed is not None:
            miss(resumed.missing(page.dropped))
        selector_cost = 0
        for origin, record in page.rows[skip:]:
            if selector is not None:
                selector_cost += selector.cost_of(len(record.headers))
                if selector_cost > TURN_COST:
                    selector_cost = 0
                    await trio.lowlevel.checkpoint()
            if resumed is not None and (missing := resumed.before(origin, record.sequence, lost)):
                miss(missing)
            if not self._is_unseen(subscription, origin, record.sequence):
                continue
            message = self._engine.tail.message_of(origin, record)
            if message is not None and (selector is None or selects(selector, message.envelope)):
                tails += session.encoder.tails([message])
        if resumed is not None and page.at_end:
            # All that this node ever got of these origins is delivered: lost ranges are reported now.
            miss(resumed.missing(lost.within(have)))
        if tails and session.owns(subscription):
            self._engine.broker.totals.begin(subscription.destination).delivered += len(tails)
            session.outbox.put(session.encoder.run(subscription.prefix, tails))
            session.outbox.flush()


def _start(store: Store, subscription: Subscription, begin: Mark | None) -> tuple[FanoutPosition, int]:
    """Where to read from, and how many rows to skip there."""
    name, start = subscription.destination, subscription.start
    if begin is not None:
        return store.fanout_at(name, begin), 0
    if isinstance(start, dict):
        return store.fanout_after(name, start), 0
    if isinstance(start, StartAt):
        found = store.fanout_begin(name, start.word, start.number)
        return found.position, found.skip
    return store.fanout_start(name), 0
