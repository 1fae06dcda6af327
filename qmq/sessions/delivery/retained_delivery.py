"""Retained values for subscriptions that begin: first the retained values, then live messages.

A subscription to one name gets its value at once. A pattern may match very many values. So one task goes through them,
a page at a time, subscriptions in turn. A client that does not read delays no other. Its outbox is never filled beyond
what a bounded subscription may put there.

Surprising: the subscription gets live messages while it still gets retained values. Even so a topic's value precedes
its first live message, because the sender of live messages first calls `deliver_first`. A value that was set after the
subscription began has reached it live, so it is left out here.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from qmq.broker.consumers.light_subscriptions import Subscriber
from qmq.broker.consumers.outcome import TURN_COST
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.selectors import Selector, selects
from qmq.broker.topics.retained import RetainedValues, pattern_for
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.sessions.clients.session import ClientSession, session_of
from qmq.sessions.clients.subscriber_buffers import STRAIGHT_BYTES_MAX, SubscriberBuffers

PAGE_BYTES = 16 << 10
VALUE_BYTES_MIN = 16
"""Of one value, with its name: smaller values are selected from in one turn where the selector is costly."""

RETAINED: Final = ("retained", "true")
"""The header of a retained value."""

log = logging.getLogger("qmq.retained_delivery")


class _RetainedScan:
    """One subscription that gets retained values: `since` is the last change before it, `position` the progress."""

    __slots__ = ("pattern", "position", "since", "subscription", "delivered")

    def __init__(self, subscription: Subscription, since: int) -> None:
        self.subscription = subscription
        self.pattern = pattern_for(subscription.destination)
        self.since = since
        self.position = ""
        # Ahead of its turn, because a live message came.
        self.delivered: dict[str, None] = {}


class RetainedDelivery:
    """Delivers retained values. `spawn` runs a task in the node; `outbox_bytes_max` is the same for every client."""

    def __init__(
        self,
        sessions: dict[int, ClientSession],
        retained: RetainedValues,
        buffers: SubscriberBuffers,
        *,
        outbox_bytes_max: int,
        spawn: Callable[[Callable[[], object]], None],
    ) -> None:
        self._sessions = sessions
        self._retained = retained
        self._buffers = buffers
        self._spawn = spawn
        self._late_bytes_max = min(STRAIGHT_BYTES_MAX - PAGE_BYTES, outbox_bytes_max // 4)
        self._ready: deque[_RetainedScan] = deque()
        self._running = False
        self.walking: dict[Subscriber, _RetainedScan] = {}
        """Subscriptions that have not got all their retained values yet."""
        self.touched: dict[ClientSession, None] = {}
        """Sessions whose outbox is to be flushed; the dispatcher flushes and clears it."""

    def begin(self, subscription: Subscription, since: int) -> None:
        """Deliver to `subscription` the values as of its beginning, at the change `since`. The caller flushes later."""
        session = self._sessions.get(subscription.session)
        if session is None:
            return
        scan = _RetainedScan(subscription, since)
        if scan.pattern is None and session.outbox.size <= self._late_bytes_max:
            self._deliver(subscription, self._of_one(scan))
        else:
            self.walking[subscription] = scan
            self._go_on(scan)

    def deliver_first(self, subscriptions: tuple[Subscriber, ...], messages: list[Message]) -> None:
        """`messages` are about to be delivered live: the values of their topics go first, if they are still due."""
        for subscription in subscriptions:
            scan = self.walking.get(subscription)
            if scan is None:
                continue
            for message in messages:
                name = message.envelope.destination
                if name > scan.position and name not in scan.delivered:
                    scan.delivered[name] = None
                    value = self._retained.older(name, scan.since)
                    if value is not None:
                        self._deliver(scan.subscription, [value])

    def _of_one(self, scan: _RetainedScan) -> list[Message]:
        value = self._retained.older(scan.subscription.destination, scan.since)
        return [] if value is None else [value]

    def _deliver(self, subscription: Subscription, values: list[Message]) -> None:
        session = self._sessions.get(subscription.session)
        selector = subscription.selector
        if selector is not None:
            values = [value for value in values if _is_selected(selector, value)]
        if session is None or not values or not session.owns(subscription):
            return
        self.touched[session] = None
        tails = tails_of(values, session.encoder)
        if subscription.buffer is not None:
            self._buffers.deliver(session, subscription, tails)
        else:
            session.outbox.put(session.encoder.run(subscription.prefix, tails))

    # Pages

    def _go_on(self, scan: _RetainedScan) -> None:
        self._ready.append(scan)
        if not self._running:
            self._running = True
            self._spawn(self._run)

    async def _run(self) -> None:
        """One page, then the turn of other tasks. One task for all, so that many patterns at once delay others no more
        than one.

        Never raises Exception: an error ends only the subscriber's session.
        """
        while self._ready:
            await trio.lowlevel.checkpoint()
            scan = self._ready.popleft()
            try:
                self._send_page(scan)
            except Exception:
                log.exception("! the retained values of %s cannot be read", scan.subscription.destination)
                self.walking.pop(scan.subscription, None)
                session = self._sessions.get(scan.subscription.session)
                if session is not None:
                    session.evict(Refused("values-untold", "The last values cannot be read now; try again later."))
        self._running = False

    def _send_page(self, scan: _RetainedScan) -> None:
        subscription = scan.subscription
        session = session_of(self._sessions, subscription)
        if session is None:
            del self.walking[subscription]
            return
        # A non-empty buffer, too: retained values do not count against a slow client.
        if session.outbox.size > self._late_bytes_max or (subscription.buffer is not None and len(subscription.buffer)):
            self._spawn(partial(self._wait, scan, session))
            return
        position: str | None = None
        if scan.pattern is None:
            values = self._of_one(scan)
        else:
            selector = subscription.selector
            page_bytes = (
                PAGE_BYTES if selector is None else min(PAGE_BYTES, VALUE_BYTES_MIN * TURN_COST // selector.cost)
            )
            values, position = self._retained.page(scan.pattern, scan.position, scan.since, page_bytes)
        self._deliver(subscription, [value for value in values if value.envelope.destination not in scan.delivered])
        session.outbox.flush()
        if position is None:
            del self.walking[subscription]
        else:
            scan.position = position
            self._ready.append(scan)

    async def _wait(self, scan: _RetainedScan, session: ClientSession) -> None:
        """Wait until the client has read its waiting frames, or has disconnected."""
        await session.outbox.drained()
        self._go_on(scan)


def _is_selected(selector: Selector, value: Message) -> bool:
    """Whether a subscriber's selector matches a retained value. Caches nothing with the value."""
    envelope = value.envelope
    wanted = selects(selector, envelope)
    envelope.properties = envelope.answers = None
    return wanted


def tails_of(values: list[Message], encoder: Encoder) -> list[bytes]:
    """Retained values without the prefix of their subscription. Caches no encoding with the stored values."""
    tails = [encoder.marked(tail, *RETAINED) for tail in encoder.tails(values)]
    for value in values:
        value.tail = b""
    return tails
