"""Feeding durable subscriptions of fanouts: from the log and live, as fast as their clients acknowledge.

`FanoutSubscribers` decides which subscription reads and which is live; this implements both for a subscription with a
cursor. A message offered twice is delivered once, because the attachment knows which messages it has examined. So a
live subscription without enough credit simply goes back to reading, from where the present group of commits begins.

A reader whose client has no credit keeps little in memory: it drops further messages, and reads them again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from qmq.broker.consumers.outcome import TURN_COST
from qmq.broker.consumers.subscription import Ack, Attachment, FanoutDelivery, Subscription
from qmq.broker.fanouts.gap_notice import gap_notices
from qmq.broker.messages.message import Message
from qmq.broker.selectors import selects
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.model.dots import Dot, Origin, Vector
from qmq.sessions.clients.session import ClientSession, session_of
from qmq.storage.fanouts.reader import FanoutPage
from qmq.storage.format.record import Record
from qmq.storage.log.journal import Mark

READ_BYTES = 64 << 10

KEPT_BYTES = 64 << 10
"""Bodies that a reader holds while its client has no credit; what it has read beyond them it reads again."""

REFUSED_SECONDS = 1.0
"""After a NACK, until the message is delivered again: a client that refuses everything must not cause a busy loop."""


@dataclass(eq=False, repr=False)
class DurableFeeds:
    """See the module's opening. `touched` collects sessions to be flushed."""

    _engine: EngineParts
    _tasks: Tasks
    _sessions: Mapping[int, ClientSession]
    _flush: Callable[[], None]
    _buffer_bytes: int
    _reads: trio.CapacityLimiter
    _touched: dict[ClientSession, None]

    def __post_init__(self) -> None:
        self._waiting: dict[Subscription, trio.Event] = {}
        self._refused: set[Attachment] = set()

    # Live

    def starts_live(self, attachment: Attachment) -> bool:
        """Whether it needs no stored messages."""
        if not (attachment.is_new and attachment.subscription.start == "next"):
            return False
        attachment.is_new = False
        return True

    def deliver(self, session: ClientSession, attachment: Attachment, messages: Sequence[Message]) -> bool:
        """Deliver `messages`; False, and nothing happened, when it has to read them instead."""
        if session.outbox.size > self._buffer_bytes or attachment.free < len(messages):
            return False
        run: list[FanoutDelivery] = []
        for message in messages:
            self._offer(attachment, message, run)
        self._put(session, attachment, run)
        return True

    def send_lost(self, session: ClientSession, attachment: Attachment, lost_ranges: Sequence[Dot]) -> None:
        """Report these as lost; without credit, the next message reports them."""
        if attachment.free > 0:
            run: list[FanoutDelivery] = []
            self._offer_gaps(attachment, lost_ranges, run)
            self._put(session, attachment, run)

    def _offer(self, attachment: Attachment, message: Message, run: list[FanoutDelivery]) -> None:
        """Deliver one message, if it is due, and before it a notice of what is lost for good."""
        durable_subscriptions = self._engine.broker.durable_subscriptions
        if message.origin in durable_subscriptions.lost_ranges.ends:
            reached = attachment.reached(message.origin)
            lost_ranges = durable_subscriptions.lost_ranges.before(message.origin, reached, message.sequence)
            self._offer_gaps(attachment, lost_ranges, run)
        selector = attachment.subscription.selector
        if selector is not None and not selects(selector, message.envelope):
            attachment.skip(message)
            return
        handed = durable_subscriptions.hand_out(attachment, message)
        if handed is not None:
            run.append(handed)

    def _offer_gaps(self, attachment: Attachment, lost_ranges: Sequence[Dot], run: list[FanoutDelivery]) -> None:
        broker = self._engine.broker
        missing = broker.durable_subscriptions.gaps(attachment, lost_ranges)
        for notice, claims in gap_notices(attachment.name.destination, missing):
            run.append(
                broker.durable_subscriptions.hand_out_gap(attachment, notice, claims, broker.new_memory_sequence())
            )

    def _put(self, session: ClientSession, attachment: Attachment, run: list[FanoutDelivery]) -> None:
        if not run:
            return
        subscription = attachment.subscription
        session.outbox.put(session.encoder.durable_deliveries(subscription, run))
        if subscription.ack is Ack.AUTO:
            session.settle_when_written(run)
        totals = self._engine.broker.totals.begin(attachment.name.destination)
        totals.delivered += len(run)
        subscription.delivered += len(run)
        totals.redelivered += sum([handed.redelivered for handed in run])
        self._touched[session] = None

    # Credit

    def wake(self, freed: Iterable[Attachment]) -> None:
        """These have credit again, or messages that were refused."""
        for attachment in freed:
            self.forget(attachment.subscription)
            if attachment.again and attachment not in self._refused:
                self._refused.add(attachment)
                self._tasks.spawn(partial(self._hand_out_again, attachment))

    def forget(self, subscription: Subscription) -> None:
        """Wake a reader that waits for credit; if its subscription has ended, the reader ends too."""
        event = self._waiting.pop(subscription, None)
        if event is not None:
            event.set()

    async def _hand_out_again(self, attachment: Attachment) -> None:
        await trio.sleep(REFUSED_SECONDS)
        self._refused.discard(attachment)
        session = self._session(attachment)
        if session is not None:
            self._put(session, attachment, self._engine.broker.durable_subscriptions.hand_out_again(attachment))
            self._flush()

    def _session(self, attachment: Attachment) -> ClientSession | None:
        """The session to deliver to; None when there is none any more."""
        return session_of(self._sessions, attachment.subscription)

    # Reading

    async def read(self, attachment: Attachment, begin: Mark | None) -> bool:
        """Read and deliver from the cursor on (or from `begin` in the journal), at the client's pace.

        Returns True as soon as every committed message is delivered, with no `await` in between. Returns False when the
        subscription has ended.
        """
        name = attachment.name.destination
        # Read here: the thread must not read a cursor that moves.
        vector = attachment.cursor.vector()
        async with self._reads:
            after = partial(self._engine.store.fanout_after, name, vector)
            start = after if begin is None else partial(self._engine.store.fanout_at, name, begin)
            position = await self._engine.environment.run_blocking(start)
        while True:
            async with self._reads:
                have = self._engine.store.journal.vector()
                page = await self._engine.environment.run_blocking(
                    self._engine.store.fanout_page, name, position, READ_BYTES
                )
            if self._session(attachment) is None:
                return False
            whole = await self._send_page(attachment, page, have)
            session = self._session(attachment)
            if session is None:
                return False
            if whole:
                attachment.is_new = False
                position = page.position
                if page.at_end and position.journal_position == self._engine.tail.committed_end():
                    return True
            await session.outbox.drained()
            if whole and page.at_end:
                # Messages that were read may be appended and not committed yet, in the commit that is running.
                await self._engine.tail.grew(position.journal_position - 1)

    async def _send_page(self, attachment: Attachment, page: FanoutPage, have: Vector) -> bool:
        """Deliver a page; False when some of it has to be read again, or the subscription has ended."""
        run: list[FanoutDelivery] = []
        self._offer_gaps(attachment, page.dropped, run)
        rows = page.rows
        whole = True
        index = 0
        selector = attachment.subscription.selector
        selector_cost = 0
        while index < len(rows):
            if selector is not None:
                selector_cost += selector.cost_of(len(rows[index][1].headers))
                if selector_cost > TURN_COST:
                    selector_cost = 0
                    self._send(attachment, run)
                    run = []
                    await trio.lowlevel.checkpoint()
                    if self._session(attachment) is None:
                        return False
            if attachment.free <= 0:
                self._send(attachment, run)
                run = []
                rows, index, complete = _kept(rows, index)
                whole = whole and complete
                if not await self._room(attachment):
                    return False
            origin, record = rows[index]
            index += 1
            message = self._engine.tail.message_of(origin, record)
            if message is not None:
                self._offer(attachment, message, run)
        if whole and page.at_end:
            # All that this node ever got of these origins is delivered: lost ranges are reported now.
            self._offer_gaps(attachment, self._engine.broker.durable_subscriptions.lost_ranges.within(have), run)
        self._send(attachment, run)
        return whole

    def _send(self, attachment: Attachment, run: list[FanoutDelivery]) -> None:
        session = self._session(attachment)
        if session is not None and run:
            self._put(session, attachment, run)
            self._flush()

    async def _room(self, attachment: Attachment) -> bool:
        """Wait for credit; False when the subscription has ended."""
        while attachment.free <= 0:
            if self._session(attachment) is None:
                return False
            event = self._waiting.setdefault(attachment.subscription, trio.Event())
            await event.wait()
        return self._session(attachment) is not None


def _kept(rows: list[tuple[Origin, Record]], index: int) -> tuple[list[tuple[Origin, Record]], int, bool]:
    """The rows from `index` on that may wait in memory, and whether that is all of them. At least one."""
    size = 0
    end = index
    while end < len(rows) and (size < KEPT_BYTES or end == index):
        size += len(rows[end][1].body) + len(rows[end][1].headers)
        end += 1
    return rows[index:end], 0, end == len(rows)
